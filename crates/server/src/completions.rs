//! `POST /v1/completions`.

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
    wire::completion::{self, CompletionBody, CompletionChunks},
};

pub(crate) async fn create(
    Extract(state): Extract<State>,
    body: Body,
) -> Result<Response, ApiError> {
    let Admitted { model, running } = state.admit()?;
    let CompletionBody { request, stream: delivery } = CompletionBody::read(&body)?;
    let with_logprobs = request.options.logprobs.is_some();
    let stream = answer::start(&state, &model, "prompt", |model| model.complete(request)).await?;
    if delivery.is_stream() {
        let chunks = CompletionChunks::new(model.name(), delivery.includes_usage());
        return sse::respond(stream, running, state.config().heartbeat, chunks).await;
    }
    let answer = answer::collect(stream, running).await?;
    Ok(Json(completion::whole(answer, model.name(), with_logprobs)?).into_response())
}
