//! What is served here, and whether it can be used yet.

use axum::{
    Json,
    extract::{Path, State as Extract, rejection::PathRejection},
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use calla_chat::Model;
use serde_json::{Value, json};

use crate::{
    error::ApiError,
    state::{Phase, State},
};

/// `GET /health`.
pub(crate) async fn health(Extract(state): Extract<State>) -> Response {
    let phase = state.phase();
    let (status, word) = match phase {
        Phase::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        Phase::Ready => (StatusCode::OK, "ok"),
        Phase::Failed => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
    };
    let mut body = json!({ "status": word });
    if let Some(problem) = state.model().ok().and_then(|model| model.engine().failure()) {
        body["error"] = problem.into();
    }
    let body = Json(body);
    match phase {
        // It will not be better in a second: no word of trying again.
        Phase::Ready | Phase::Failed => (status, body).into_response(),
        _ => (status, [(header::RETRY_AFTER, "1")], body).into_response(),
    }
}

/// `GET /v1/models`.
pub(crate) async fn models(Extract(state): Extract<State>) -> Result<Json<Value>, ApiError> {
    let model = state.model()?;
    Ok(Json(json!({ "object": "list", "data": [describe(model)] })))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn model(
    Extract(state): Extract<State>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let model = state.model()?;
    // What does not decode to text names no model.
    let Ok(Path(id)) = id else { return Err(ApiError::UnknownModel(uri.path().to_owned())) };
    match id == model.name() {
        true => Ok(Json(describe(model))),
        false => Err(ApiError::UnknownModel(id)),
    }
}

/// `GET /props`: what a request gets that leaves everything out.
pub(crate) async fn props(Extract(state): Extract<State>) -> Result<Json<Value>, ApiError> {
    let model = state.model()?;
    let defaults = model.sampling_defaults();
    let sampling = |thinking| {
        let sampling = defaults.resolve(&Default::default(), thinking);
        json!({
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed,
        })
    };
    Ok(Json(json!({
        "model": model.name(),
        "version": env!("CARGO_PKG_VERSION"),
        "context_tokens": model.context_tokens(),
        "thinking": model.thinks_by_default(),
        "sampling": { "thinking": sampling(true), "non_thinking": sampling(false) },
        "sampling_flags": defaults.flags(),
        "sampling_source": defaults.source(),
        "stop_token_ids": model.stop_ids(),
        "body_bytes_max": state.config().body_bytes_max,
    })))
}

fn describe(model: &Model) -> Value {
    json!({
        "id": model.name(),
        "object": "model",
        "created": model.loaded_unix_s(),
        "owned_by": "calla",
        // The name under which other servers of this API give the context limit.
        "max_model_len": model.context_tokens(),
    })
}
