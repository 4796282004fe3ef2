//! The ways in which clients switch thinking on and off.

use serde_json::{Map, Value};

use crate::{error::ApiError, wire::generation::object_or_null};

/// What the body says about thinking: `chat_template_kwargs.enable_thinking`, `enable_thinking`,
/// `thinking.type`, `reasoning.enabled`, `reasoning.effort`, `reasoning_effort`; the first of these
/// that is given counts. `None`: the template decides.
pub(crate) fn read(body: &Map<String, Value>) -> Result<Option<bool>, ApiError> {
    object_or_null(body, "thinking")?;
    object_or_null(body, "reasoning")?;
    refuse_budget(body, "thinking", "budget_tokens")?;
    refuse_budget(body, "reasoning", "max_tokens")?;
    let sources: [(&str, &[&str], Reader); 6] = [
        (
            "chat_template_kwargs.enable_thinking",
            &["chat_template_kwargs", "enable_thinking"],
            flag,
        ),
        ("enable_thinking", &["enable_thinking"], flag),
        ("thinking.type", &["thinking", "type"], kind),
        ("reasoning.enabled", &["reasoning", "enabled"], flag),
        ("reasoning.effort", &["reasoning", "effort"], effort),
        ("reasoning_effort", &["reasoning_effort"], effort),
    ];
    let mut thinking = None;
    for (name, path, reader) in sources {
        if let Some(value) = lookup(body, path) {
            // Each one given must be well-formed, also those that do not count.
            let read = reader(value).map_err(|problem| ApiError::field(name, problem))?;
            thinking = thinking.or(read);
        }
    }
    Ok(thinking)
}

type Reader = fn(&Value) -> Result<Option<bool>, &'static str>;

/// The value at the path; `null` counts as absent.
fn lookup<'a>(body: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let found = rest.iter().try_fold(body.get(*first)?, |value, field| value.get(*field))?;
    (!found.is_null()).then_some(found)
}

fn flag(value: &Value) -> Result<Option<bool>, &'static str> {
    value.as_bool().map(Some).ok_or("expected true or false")
}

fn kind(value: &Value) -> Result<Option<bool>, &'static str> {
    match value.as_str() {
        Some("enabled") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        Some("auto" | "adaptive") => Ok(None),
        _ => Err("expected \"enabled\", \"disabled\" or \"auto\""),
    }
}

/// The model thinks or it does not: every effort above minimal is the same.
fn effort(value: &Value) -> Result<Option<bool>, &'static str> {
    match value.as_str() {
        Some("none" | "minimal") => Ok(Some(false)),
        Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(Some(true)),
        Some("auto") => Ok(None),
        _ => Err("expected \"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\""),
    }
}

fn refuse_budget(body: &Map<String, Value>, object: &str, field: &str) -> Result<(), ApiError> {
    match lookup(body, &[object, field]) {
        None => Ok(()),
        Some(_) => Err(ApiError::field(
            format!("{object}.{field}"),
            "a budget for thinking is not supported: use `max_tokens`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_json(body: Value) -> Result<Option<bool>, String> {
        read(body.as_object().expect("an object")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_spelling_is_understood() {
        for (on, off) in [
            (
                json!({ "chat_template_kwargs": { "enable_thinking": true } }),
                json!({ "chat_template_kwargs": { "enable_thinking": false } }),
            ),
            (json!({ "enable_thinking": true }), json!({ "enable_thinking": false })),
            (
                json!({ "thinking": { "type": "enabled" } }),
                json!({ "thinking": { "type": "disabled" } }),
            ),
            (
                json!({ "reasoning": { "effort": "high" } }),
                json!({ "reasoning": { "effort": "none" } }),
            ),
            (json!({ "reasoning_effort": "low" }), json!({ "reasoning_effort": "minimal" })),
        ] {
            assert_eq!(read_json(on.clone()), Ok(Some(true)), "{on}");
            assert_eq!(read_json(off.clone()), Ok(Some(false)), "{off}");
        }
    }

    #[test]
    fn absent_null_and_auto_leave_it_to_the_template() {
        for body in [
            json!({}),
            json!({ "enable_thinking": null, "reasoning": { "effort": null } }),
            json!({ "thinking": { "type": "auto" }, "chat_template_kwargs": {} }),
        ] {
            assert_eq!(read_json(body.clone()), Ok(None), "{body}");
        }
    }

    #[test]
    fn malformed_values_and_budgets_are_named() {
        for (body, name) in [
            (json!({ "thinking": false }), "`thinking`: expected an object"),
            (json!({ "thinking": "x" }), "`thinking`: expected an object"),
            (json!({ "reasoning": "none" }), "`reasoning`: expected an object"),
            (json!({ "reasoning": 1 }), "`reasoning`: expected an object"),
            (json!({ "enable_thinking": "yes" }), "`enable_thinking`"),
            (json!({ "reasoning_effort": 3 }), "`reasoning_effort`"),
            (json!({ "reasoning": { "effort": "lots" } }), "`reasoning.effort`"),
            (json!({ "enable_thinking": true, "thinking": { "type": 1 } }), "`thinking.type`"),
            (
                json!({ "thinking": { "type": "enabled", "budget_tokens": 9 } }),
                "`thinking.budget_tokens`",
            ),
        ] {
            let error = read_json(body).expect_err(name);
            assert!(error.starts_with(name), "{error}");
        }
    }
}
