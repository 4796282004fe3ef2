//! Step 9, streamed: a [`ChatStream`] as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse, Response, Sse,
    sse::{Event, KeepAlive},
};
use calla_chat::{ChatEvent, ChatStream};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

use crate::{error::ApiError, state::Running, wire::chat_answer::cut_short};

/// Events that may wait for a slow client before generation waits too.
const EVENTS_AHEAD: usize = 64;

/// What an endpoint's chunks look like.
pub(crate) trait Chunks: Send + 'static {
    /// The chunks that an event gives, often none or one.
    fn chunks(&mut self, event: ChatEvent) -> Result<Vec<Value>, ApiError>;
}

/// Streams the answer. Headers leave with the first output, or after `heartbeat` without any; an
/// error before that is an ordinary one, later it is the stream's last event. From then on the
/// stream is never silent for longer than `heartbeat`. When the client goes away, the generation
/// ends.
pub(crate) async fn respond(
    mut stream: ChatStream,
    mut running: Running,
    heartbeat: Duration,
    mut chunks: impl Chunks,
) -> Result<Response, ApiError> {
    let mut first = Vec::new();
    let mut ended = false;
    let deadline = Instant::now() + heartbeat;
    while first.is_empty() {
        let event = tokio::select! {
            event = stream.next() => event.ok_or_else(cut_short)?,
            () = running.stopped() => return Err(ApiError::Draining),
            () = tokio::time::sleep_until(deadline) => break,
        };
        ended = matches!(event, ChatEvent::End { .. });
        first = chunks.chunks(event)?;
    }

    let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
    tokio::spawn(async move {
        // An error means that the client is gone; dropping the stream ends the generation.
        let _ = pump(first, ended, stream, running, chunks, &sender).await;
    });
    let events = Sse::new(ReceiverStream::new(receiver))
        .keep_alive(KeepAlive::new().interval(heartbeat).text("keep-alive"));
    // Proxies that collect a response before passing it on would defeat the stream.
    Ok(([("x-accel-buffering", "no")], events).into_response())
}

type Sender = mpsc::Sender<Result<Event, Infallible>>;

/// The client closed its connection.
struct ClientGone;

/// Sends the chunks that are `ready`, then those of the events that follow, unless the answer has
/// `ended`.
async fn pump(
    mut ready: Vec<Value>,
    mut ended: bool,
    mut stream: ChatStream,
    mut running: Running,
    mut chunks: impl Chunks,
    sender: &Sender,
) -> Result<(), ClientGone> {
    loop {
        for chunk in ready {
            send(sender, chunk.to_string()).await?;
        }
        if ended {
            return send(sender, "[DONE]".to_owned()).await;
        }
        let event = tokio::select! {
            event = stream.next() => event,
            () = running.stopped() => {
                return send(sender, ApiError::Draining.body().to_string()).await;
            }
            () = sender.closed() => return Err(ClientGone),
        };
        ended = matches!(event, Some(ChatEvent::End { .. }));
        ready = match event.ok_or_else(cut_short).and_then(|event| chunks.chunks(event)) {
            Ok(chunks) => chunks,
            Err(error) => return send(sender, error.body().to_string()).await,
        };
    }
}

async fn send(sender: &Sender, data: String) -> Result<(), ClientGone> {
    sender.send(Ok(Event::default().data(data))).await.map_err(|_| ClientGone)
}
