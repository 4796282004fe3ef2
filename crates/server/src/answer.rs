use calla_chat::{Answer, ChatError, ChatStream, Model};

use crate::{error::ApiError, state::Running};

/// Steps 2 and 3 take a while for long conversations, so they run where they hold up no stream.
/// `prompt_param` is the field that the prompt came from.
pub(crate) async fn start<F>(
    model: &Model,
    prompt_param: &'static str,
    ask: F,
) -> Result<ChatStream, ApiError>
where
    F: FnOnce(&Model) -> Result<ChatStream, ChatError> + Send + 'static,
{
    let model = model.clone();
    let started = tokio::task::spawn_blocking(move || ask(&model)).await;
    let started = started.map_err(|panic| ApiError::Internal(panic.to_string()))?;
    started.map_err(|error| ApiError::from_chat(error, prompt_param))
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
