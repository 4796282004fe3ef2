use std::{net::SocketAddr, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use calla_chat::ChatError;
use serde_json::{Value, json};

/// Why a server cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another --port or --host")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The model cannot be loaded.
    #[error("{0}")]
    Load(crate::LoadError),
    /// The socket or a signal handler failed.
    #[error("server: {0}")]
    Io(#[from] std::io::Error),
}

/// What a client is told when a request is not answered. The variants' statuses are in
/// [`ApiError::status`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    Syntax(String),
    /// The body could not be read to its end.
    #[error("the body could not be read: {0}")]
    Body(String),
    /// A field is wrong or asks for something that cannot be done.
    #[error("`{param}`: {problem}")]
    Field { param: String, problem: String },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt_tokens} tokens, the context holds {context_tokens}: shorten the \
         prompt, or raise the server's context limit"
    )]
    ContextExceeded { param: &'static str, prompt_tokens: usize, context_tokens: usize },
    /// The prompt is so long that it was not even counted.
    #[error(
        "the prompt has at least {prompt_tokens_min} tokens, the context holds {context_tokens}: \
         shorten the prompt, or raise the server's context limit"
    )]
    PromptTooLong { param: &'static str, prompt_tokens_min: usize, context_tokens: usize },
    /// The key is missing or wrong.
    #[error("missing or incorrect API key: send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    /// No such path.
    #[error("no such path: {0}")]
    NotFound(String),
    /// No such model.
    #[error("the model `{0}` does not exist here: see /v1/models")]
    UnknownModel(String),
    /// The path exists, for another method.
    #[error("method {method} is not allowed on {path}")]
    MethodNotAllowed { method: String, path: String },
    /// The body is larger than the server takes.
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    /// The body took too long to arrive.
    #[error("the body did not arrive whole within {} seconds", timeout.as_secs_f32())]
    BodyTimeout { timeout: Duration },
    /// The model is not there yet.
    #[error("the model is still loading")]
    Loading,
    /// The server is about to stop.
    #[error("the server is shutting down")]
    Draining,
    /// Too many requests wait.
    #[error("{0}")]
    Busy(String),
    /// The deadline passed.
    #[error("the request took longer than it may")]
    Deadline,
    /// Something that the client cannot help.
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    pub(crate) fn field(param: impl Into<String>, problem: impl Into<String>) -> Self {
        ApiError::Field { param: param.into(), problem: problem.into() }
    }

    /// Says what a failure below means for the client. `prompt_param` is the field that the prompt
    /// came from.
    pub(crate) fn from_chat(error: ChatError, prompt_param: &'static str) -> Self {
        use calla_engine::Error as Engine;
        match error {
            ChatError::Request { field, problem } => ApiError::field(field, problem),
            ChatError::Text(error) => ApiError::field(prompt_param, error.to_string()),
            ChatError::Engine(Engine::ContextExceeded { prompt_tokens, context_tokens }) => {
                ApiError::ContextExceeded { param: prompt_param, prompt_tokens, context_tokens }
            }
            ChatError::PromptTooLong { prompt_tokens_min, context_tokens } => {
                ApiError::PromptTooLong { param: prompt_param, prompt_tokens_min, context_tokens }
            }
            ChatError::Engine(Engine::Request { field, problem }) => {
                ApiError::field(client_name(field, prompt_param), problem)
            }
            ChatError::Engine(error @ Engine::QueueFull { .. }) => {
                ApiError::Busy(error.to_string())
            }
            ChatError::Engine(Engine::ShuttingDown) => ApiError::Draining,
            error @ (ChatError::Engine(_)
            | ChatError::MissingFile { .. }
            | ChatError::BadFile { .. }) => ApiError::Internal(error.to_string()),
        }
    }

    /// The HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            ApiError::Syntax(_)
            | ApiError::Body(_)
            | ApiError::Field { .. }
            | ApiError::ContextExceeded { .. }
            | ApiError::PromptTooLong { .. } => StatusCode::BAD_REQUEST,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::NotFound(_) | ApiError::UnknownModel(_) => StatusCode::NOT_FOUND,
            ApiError::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            ApiError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            ApiError::Loading | ApiError::Draining | ApiError::Busy(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::Deadline => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The body, as OpenAI's clients read it. Also the payload of an error inside a stream.
    pub(crate) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            ApiError::Field { param, .. } => Some(param),
            ApiError::ContextExceeded { param, .. } | ApiError::PromptTooLong { param, .. } => {
                Some(param)
            }
            ApiError::UnknownModel(_) => Some("model"),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            ApiError::Syntax(_) => Some("invalid_json"),
            ApiError::ContextExceeded { .. } | ApiError::PromptTooLong { .. } => {
                Some("context_length_exceeded")
            }
            ApiError::Unauthorized => Some("invalid_api_key"),
            ApiError::UnknownModel(_) => Some("model_not_found"),
            ApiError::TooLarge { .. } => Some("body_too_large"),
            ApiError::BodyTimeout { .. } => Some("body_timeout"),
            ApiError::Loading => Some("model_loading"),
            ApiError::Draining => Some("shutting_down"),
            ApiError::Busy(_) => Some("queue_full"),
            ApiError::Deadline => Some("deadline_exceeded"),
            _ => None,
        }
    }

    /// Seconds after which trying again makes sense.
    fn retry_after_s(&self) -> Option<u32> {
        match self {
            ApiError::Loading | ApiError::Busy(_) => Some(1),
            ApiError::Draining => Some(5),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, ApiError::Unauthorized) {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// The engine's word for a field, in the words of the API. In chats `logprobs` is a switch, and
/// `top_logprobs` the number.
fn client_name(field: &'static str, prompt_param: &str) -> &'static str {
    match field {
        "logprobs" if prompt_param == "messages" => "top_logprobs",
        "tokens_max" | "limits.tokens_max" => "max_tokens",
        field => field.strip_prefix("sampling.").unwrap_or(field),
    }
}
