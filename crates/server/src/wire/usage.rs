use calla_chat::{Finish, Usage};
use serde_json::{Value, json};

use crate::error::ApiError;

/// The `usage` object.
pub(crate) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
    })
}

/// The `finish_reason`, or the error that an answer which did not end in its own way is.
pub(crate) fn finish_reason(finish: &Finish) -> Result<&'static str, ApiError> {
    match finish {
        Finish::Stop => Ok("stop"),
        Finish::Length => Ok("length"),
        Finish::ToolCalls => Ok("tool_calls"),
        Finish::NotANumber => Ok("not_a_number"),
        Finish::Cancelled => Err(ApiError::Draining),
        Finish::Deadline => Err(ApiError::Deadline),
        Finish::Failed(error) => Err(ApiError::Internal(error.to_string())),
    }
}
