//! What is refused before it reaches the step loop.

use super::EngineConfig;
use crate::{Error, Request, model::Shape, sampler::ALTERNATIVES_MAX};

/// Checks the configuration against the model; gives the context length that holds.
pub(super) fn config(config: &EngineConfig, shape: &Shape) -> Result<usize, Error> {
    let wrong = |field, problem| Err(Error::Engine { field, problem });
    if config.prefill_chunk_tokens == Some(0) {
        return wrong("prefill_chunk_tokens", "0, expected at least 1".to_owned());
    }
    let context_tokens = config.context_tokens.unwrap_or(shape.context_max);
    if context_tokens < 2 || context_tokens > shape.context_max {
        let problem = format!("{context_tokens}, expected 2 to the model's {}", shape.context_max);
        return wrong("context_tokens", problem);
    }
    Ok(context_tokens)
}

/// Checks everything about a request that can be known before it runs.
pub(super) fn request(request: &Request, vocab: usize, context_tokens: usize) -> Result<(), Error> {
    let wrong = |field, problem| Err(Error::Request { field, problem });
    let prompt_tokens = request.prompt.len();
    if prompt_tokens == 0 {
        return wrong("prompt", "empty, expected at least one token".to_owned());
    }
    if prompt_tokens >= context_tokens {
        return Err(Error::ContextExceeded { prompt_tokens, context_tokens });
    }
    ids("prompt", &request.prompt, vocab)?;
    ids("stop_ids", &request.stop_ids, vocab)?;
    if let Some(count) = request.logprobs
        && count > ALTERNATIVES_MAX
    {
        return wrong("logprobs", format!("{count}, expected at most {ALTERNATIVES_MAX}"));
    }
    if let Some(place) = request.snapshot_at.iter().find(|&&place| place > prompt_tokens) {
        let problem = format!("{place}, but the prompt has {prompt_tokens} tokens");
        return wrong("snapshot_at", problem);
    }
    request.sampling.check(vocab)
}

fn ids(field: &'static str, ids: &[u32], vocab: usize) -> Result<(), Error> {
    match ids.iter().position(|&id| id as usize >= vocab) {
        None => Ok(()),
        Some(place) => Err(Error::Request {
            field,
            problem: format!(
                "token {} at place {place} is outside the vocabulary of {vocab}",
                ids[place]
            ),
        }),
    }
}
