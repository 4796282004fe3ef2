use axum::{
    extract::{Request, State as Extract},
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};
use subtle::ConstantTimeEq;

use crate::{error::ApiError, state::State};

/// Lets a request pass when the server has no key or the request carries it.
pub(crate) async fn require_key(
    Extract(state): Extract<State>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match &state.config().api_key {
        Some(key) if !carries(request.headers(), key) => Err(ApiError::Unauthorized),
        _ => Ok(next.run(request).await),
    }
}

/// The comparison takes the same time wherever the two keys first differ.
fn carries(headers: &HeaderMap, key: &str) -> bool {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return false };
    let Some((scheme, given)) = value.as_bytes().split_first_chunk::<7>() else { return false };
    scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(key.as_bytes()))
}
