use std::sync::Arc;

use calla_chat::{Answer, ChatError, ChatStream, Model};

use tokio::sync::Semaphore;

use crate::{
    error::ApiError,
    state::{Running, State},
};

/// Steps 2 and 3 take a while for long conversations, so they run where they hold up no stream,
/// and a few at a time.
/// `prompt_param` is the field that the prompt came from.
pub(crate) async fn start<F>(
    state: &State,
    model: &Model,
    prompt_param: &'static str,
    ask: F,
) -> Result<ChatStream, ApiError>
where
    F: FnOnce(&Model) -> Result<ChatStream, ChatError> + Send + 'static,
{
    let model = model.clone();
    let started = prepare(state.preparing(), move || ask(&model)).await?;
    started.map_err(|error| ApiError::from_chat(error, prompt_param))
}

/// The permit goes with the work, which does not end when the client leaves.
async fn prepare<T, W>(preparing: Arc<Semaphore>, work: W) -> Result<T, ApiError>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let permit = preparing.acquire_owned().await.expect("the semaphore is never closed");
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    done.await.map_err(|panic| ApiError::Internal(panic.to_string()))
}

/// Step 9, not streamed: waits for the whole answer. When the client goes away this future is
/// dropped, and the generation with it.
pub(crate) async fn collect(
    mut stream: ChatStream,
    mut running: Running,
) -> Result<Answer, ApiError> {
    let mut answer = Answer::default();
    loop {
        tokio::select! {
            event = stream.next() => match event {
                Some(event) => answer.add(event),
                None => return Ok(answer),
            },
            () = running.stopped() => return Err(ApiError::Draining),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_whose_client_left_still_counts() {
        let preparing = Arc::new(Semaphore::new(1));
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let client = tokio::spawn(prepare(preparing.clone(), move || {
            let _ = started.send(());
            let _ = wait.recv();
        }));
        has_started.await.expect("the work starts");
        client.abort();
        assert!(client.await.expect_err("it was aborted").is_cancelled());
        assert_eq!(preparing.available_permits(), 0);
        go_on.send(()).expect("the work waits");
        assert_eq!(prepare(preparing, || 3).await.expect("no panic"), 3);
    }
}
