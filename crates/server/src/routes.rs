use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    middleware,
    routing::{get, post},
};

use crate::{auth, chat_completions, completions, error::ApiError, info, state::State};

/// The API.
pub(crate) fn router(state: State) -> Router {
    let body_limit = DefaultBodyLimit::max(state.config().body_bytes_max);
    let require_key = middleware::from_fn_with_state(state.clone(), auth::require_key);

    let protected = Router::new()
        // Answers
        .route("/v1/chat/completions", post(chat_completions::create))
        .route("/v1/completions", post(completions::create))
        // What is served here
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/props", get(info::props))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(require_key);

    Router::new()
        // 503 while the model loads, 200, 503 while the server drains; never needs the key
        .route("/health", get(info::health))
        .method_not_allowed_fallback(method_not_allowed)
        .merge(protected)
        .layer(body_limit)
        .with_state(state)
}

async fn not_found(request: Request) -> ApiError {
    ApiError::NotFound(request.uri().path().to_owned())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    }
}
