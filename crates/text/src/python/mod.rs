//! The Python behind a chat template: templates are written for Python's Jinja2 and what they print
//! becomes tokens, so `str`, `json.dumps` and the methods of `str` and `dict` must agree to the byte.

mod json;
mod methods;
mod text;
mod time;

use std::fmt;

pub(crate) use text::{DEPTH_MAX, too_large};

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Teaches `env` Python's formatting, methods and the functions transformers offers templates.
pub(crate) fn install(env: &mut Environment<'static>) {
    env.set_formatter(|out, state, value| text::write_within(out, state, value));
    env.set_unknown_method_callback(|state, value, name, args| {
        methods::call(state, value, name, args)
    });

    env.add_filter("string", text::to_str);
    env.add_filter("tojson", json::to_json);
    env.add_filter("trim", trim);

    // Jinja2 asks for `len` and `[]`, for `iter()`, and for Python's number tower.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });

    // Both write values of any depth, in time that grows with its square; no chat template needs them.
    env.remove_filter("pprint");
    env.remove_global("debug");

    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: &str| time::format_utc_now(format));
}

/// The template's view of a JSON value, keys in their order.
pub(crate) fn value_of(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), value_of(value))))
        }
    }
}

/// The message a template passed to `raise_exception`, if that is what `error` came from.
pub(crate) fn raised_message(error: &Error) -> Option<&str> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(Raised(message)) = e.downcast_ref() {
            return Some(message);
        }
        cause = e.source();
    }
    None
}

#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn trim(state: &State<'_, '_>, value: &Value, chars: Option<&str>) -> Result<String, Error> {
    Ok(methods::strip(&text::to_str(state, value)?, chars).to_owned())
}

fn raise_exception(
    state: &State<'_, '_>,
    message: &Value,
    _more: Rest<Value>,
    _named: Kwargs,
) -> Result<Value, Error> {
    let raised = Raised(text::to_str(state, message)?);
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}
