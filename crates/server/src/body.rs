use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{error::ApiError, state::State};

/// A request body that is a JSON object. Its content type does not matter.
pub(crate) struct Body(pub(crate) Map<String, Value>);

impl FromRequest<State> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &State) -> Result<Self, ApiError> {
        let bytes = read_bytes(request, state).await?;
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(body)) => Ok(Body(body)),
            Ok(_) => Err(ApiError::Syntax("expected an object".to_owned())),
            Err(error) => Err(ApiError::Syntax(error.to_string())),
        }
    }
}

impl Body {
    /// Reads the fields that `T` has; an error names the field by its path.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_path_to_error::deserialize(&self.0).map_err(|error| {
            let path = error.path().to_string();
            let problem = error.inner().to_string();
            // A missing field is reported at the object that lacks it.
            match missing_field(&problem) {
                Some(field) if path == "." => ApiError::field(field, "is required"),
                Some(field) => ApiError::field(format!("{path}.{field}"), "is required"),
                None => ApiError::field(path, in_plain_words(&problem)),
            }
        })
    }
}

async fn read_bytes(request: Request, state: &State) -> Result<Bytes, ApiError> {
    let bytes_max = state.config().body_bytes_max;
    if content_length(request.headers()).is_some_and(|length| length > bytes_max as u64) {
        return Err(ApiError::TooLarge { bytes_max });
    }
    let timeout = state.config().body_timeout;
    match tokio::time::timeout(timeout, Bytes::from_request(request, state)).await {
        Ok(read) => read.map_err(|rejection| unreadable(&rejection, bytes_max)),
        Err(_) => Err(ApiError::BodyTimeout { timeout }),
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn unreadable(rejection: &BytesRejection, bytes_max: usize) -> ApiError {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge { bytes_max },
        _ => ApiError::Body(rejection.body_text()),
    }
}

/// A problem as serde tells it, without the names of Rust's types.
fn in_plain_words(problem: &str) -> String {
    let Some((found, expected)) = problem.rsplit_once(", expected ") else {
        return problem.to_owned();
    };
    let expected = match expected {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" => "a whole number, not negative",
        "i64" => "a whole number",
        "f32" => "a number",
        "a boolean" => "true or false",
        "a map" => "an object",
        name if name.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{found}, expected {expected}")
}

fn missing_field(problem: &str) -> Option<&str> {
    problem.strip_prefix("missing field `")?.strip_suffix('`')
}
