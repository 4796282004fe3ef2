//! Fields that would change the answer and that this server cannot honour. A value that changes
//! nothing is let through, so that clients which always send the field still work; a field that is
//! in no list is taken to be neutral.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A field, the values that change nothing beside `null`, and what to tell the client otherwise.
pub(crate) struct Refused {
    field: &'static str,
    neutral: fn(&Value) -> bool,
    problem: &'static str,
}

/// Refuses the first of `fields` that the body sets to something that would change the answer.
pub(crate) fn check(body: &Map<String, Value>, lists: &[&[Refused]]) -> Result<(), ApiError> {
    for refused in lists.iter().copied().flatten() {
        match body.get(refused.field) {
            None | Some(Value::Null) => {}
            Some(value) if (refused.neutral)(value) => {}
            Some(_) => return Err(ApiError::field(refused.field, refused.problem)),
        }
    }
    Ok(())
}

const GRAMMAR: &str = "constrained output is not supported";
const ONE_ANSWER: &str = "one answer a request is supported: send the request several times";

/// For every endpoint that generates.
pub(crate) const EVERYWHERE: &[Refused] = &[
    refuse("n", is_one, ONE_ANSWER),
    refuse("best_of", is_one, ONE_ANSWER),
    refuse("use_beam_search", is_false, "beam search is not supported"),
    refuse("length_penalty", is_one, "beam search is not supported"),
    refuse("grammar", is_empty, GRAMMAR),
    refuse("json_schema", is_empty, GRAMMAR),
    refuse("guided_json", is_empty, GRAMMAR),
    refuse("guided_regex", is_empty, GRAMMAR),
    refuse("guided_choice", is_empty, GRAMMAR),
    refuse("guided_grammar", is_empty, GRAMMAR),
    refuse("structured_outputs", is_empty, GRAMMAR),
    refuse("response_format", is_text_format, "only {\"type\": \"text\"} is supported"),
    refuse("min_tokens", is_zero, "a least number of tokens is not supported"),
    refuse("ignore_eos", is_false, "generating past the end of an answer is not supported"),
    refuse("stop_token_ids", is_empty, "use `stop` with texts"),
    refuse("repeat_penalty", is_one, "use `repetition_penalty`"),
    refuse("typical_p", is_one, "not supported: use `top_p` or `min_p`"),
    refuse("mirostat", is_zero, "not supported: use `top_p` or `min_p`"),
    refuse("dry_multiplier", is_zero, "not supported: use `presence_penalty`"),
    refuse("xtc_probability", is_zero, "not supported"),
    refuse("prompt_logprobs", is_zero, "log-probabilities of the prompt are not supported"),
    refuse("thinking_budget", never, "a budget for thinking is not supported: use `max_tokens`"),
    refuse("lora_request", is_empty, "adapters are not supported"),
];

/// For `/v1/chat/completions` besides.
pub(crate) const CHAT: &[Refused] = &[
    refuse("functions", is_empty, "use `tools`"),
    refuse("function_call", is_auto_or_none, "use `tools` and `tool_choice`"),
    refuse("modalities", is_text_only, "only text is supported"),
    refuse("audio", is_empty, "only text is supported"),
    refuse("web_search_options", never, "searching the web is not supported: offer it as a tool"),
    refuse("verbosity", is_medium, "not supported: say it in the system message"),
    refuse("chat_template", never, "the checkpoint's own template is used"),
    refuse("add_generation_prompt", is_true, "the answer always starts a new message"),
    refuse("continue_final_message", is_false, "the answer always starts a new message"),
    refuse("echo", is_false, "the prompt cannot be repeated in the answer"),
    refuse("documents", is_empty, "documents are not supported: put them into a message"),
    refuse("prefix", is_false, "the answer always starts a new message"),
];

/// For `/v1/completions` besides.
pub(crate) const COMPLETION: &[Refused] = &[
    refuse("echo", is_false, "the prompt cannot be repeated in the answer"),
    refuse("suffix", is_empty, "text can only be continued, not filled in"),
    refuse("prompt_embeds", is_empty, "send text or token ids as `prompt`"),
    refuse("messages", is_empty, "send conversations to /v1/chat/completions"),
];

const fn refuse(
    field: &'static str,
    neutral: fn(&Value) -> bool,
    problem: &'static str,
) -> Refused {
    Refused { field, neutral, problem }
}

fn never(_: &Value) -> bool {
    false
}

fn is_true(value: &Value) -> bool {
    value == &Value::Bool(true)
}

fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn is_auto_or_none(value: &Value) -> bool {
    value == "auto" || value == "none"
}

fn is_medium(value: &Value) -> bool {
    value == "medium"
}

fn is_text_format(value: &Value) -> bool {
    value["type"] == "text"
}

fn is_text_only(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(|item| item == "text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check_chat(body: Value) -> Result<(), String> {
        let body = body.as_object().expect("an object");
        check(body, &[EVERYWHERE, CHAT]).map_err(|error| error.to_string())
    }

    #[test]
    fn null_and_neutral_values_pass() {
        let body = json!({
            "n": 1, "best_of": null, "response_format": { "type": "text" }, "modalities": ["text"],
            "functions": [], "stop_token_ids": [], "ignore_eos": false, "made_up": { "x": 1 },
        });
        assert_eq!(check_chat(body), Ok(()));
    }

    #[test]
    fn every_listed_field_is_refused_by_name() {
        for refused in EVERYWHERE.iter().chain(CHAT) {
            let odd = json!({ refused.field: { "type": "json_schema" } });
            let error = check_chat(odd).expect_err(refused.field);
            assert!(error.starts_with(&format!("`{}`", refused.field)), "{error}");
        }
    }
}
