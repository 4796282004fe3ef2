use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::StatusCode,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{error::ApiError, state::State};

/// A request body that is a JSON object. Its content type does not matter.
pub(crate) struct Body(pub(crate) Map<String, Value>);

impl FromRequest<State> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &State) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let bytes_max = state.config().body_bytes_max;
            unreadable(&rejection, bytes_max)
        })?;
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
                None => ApiError::field(path, problem),
            }
        })
    }
}

fn unreadable(rejection: &BytesRejection, bytes_max: usize) -> ApiError {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge { bytes_max },
        _ => ApiError::Body(rejection.body_text()),
    }
}

fn missing_field(problem: &str) -> Option<&str> {
    problem.strip_prefix("missing field `")?.strip_suffix('`')
}
