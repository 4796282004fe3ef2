//! `POST /v1/chat/completions`.

use axum::{
    Json,
    extract::State as Extract,
    response::{IntoResponse, Response},
};

use crate::{
    answer,
    body::Body,
    error::ApiError,
    sse,
    state::{Admitted, State},
    wire::{
        chat::ChatBody,
        chat_answer::{self, ChatChunks},
    },
};

pub(crate) async fn create(
    Extract(state): Extract<State>,
    body: Body,
) -> Result<Response, ApiError> {
    let Admitted { model, running } = state.admit()?;
    let ChatBody { request, stream: delivery } = ChatBody::read(&body)?;
    let with_logprobs = request.options.logprobs.is_some();
    let stream = answer::start(&state, &model, "messages", |model| model.chat(request)).await?;
    if delivery.is_stream() {
        let chunks = ChatChunks::new(model.name(), delivery.includes_usage());
        return sse::respond(stream, running, state.config().heartbeat, chunks).await;
    }
    let answer = answer::collect(stream, running).await?;
    Ok(Json(chat_answer::whole(answer, model.name(), with_logprobs)?).into_response())
}
