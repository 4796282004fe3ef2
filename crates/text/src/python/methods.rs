//! The methods of Python's `str` and `dict` that chat templates call.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use super::text::{bytes_max, to_str, too_large};

/// Calls `value.name(args)` for a method that the template engine itself does not have.
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => call_str(state, value.as_str().unwrap_or_default(), name, args),
        ValueKind::Map => call_dict(value, name, args),
        ValueKind::Seq => call_list(state, value, name, args),
        _ => Err(unknown_method()),
    }
}

fn call_str(state: &State<'_, '_>, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    Ok(match name {
        "startswith" => any_affix(args, |affix| text.starts_with(affix))?.into(),
        "endswith" => any_affix(args, |affix| text.ends_with(affix))?.into(),
        "strip" => strip(text, optional_text(args)?.as_deref()).into(),
        "lstrip" => strip_start(text, optional_text(args)?.as_deref()).into(),
        "rstrip" => strip_end(text, optional_text(args)?.as_deref()).into(),
        "split" => split(text, args, Side::Left)?,
        "rsplit" => split(text, args, Side::Right)?,
        "splitlines" => split_lines(text, args)?,
        "partition" => partition(text, args, Side::Left)?,
        "rpartition" => partition(text, args, Side::Right)?,
        "replace" => replace(text, args, bytes_max(state))?,
        "removeprefix" => {
            let (affix,): (&str,) = from_args(args)?;
            text.strip_prefix(affix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            text.strip_suffix(affix).unwrap_or(text).into()
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            join(state, text, items)?.into()
        }
        "find" => place_of(text, args, |needle| text.find(needle))?,
        "rfind" => place_of(text, args, |needle| text.rfind(needle))?,
        "count" => {
            let (needle,): (&str,) = from_args(args)?;
            let empty_matches = text.chars().count() + 1;
            if needle.is_empty() { empty_matches } else { text.matches(needle).count() }.into()
        }
        "isdigit" | "isalpha" | "isalnum" | "isspace" | "isupper" | "islower" => {
            let () = from_args(args)?;
            classify(text, name).into()
        }
        "upper" | "lower" | "title" | "capitalize" => {
            let () = from_args(args)?;
            change_case(text, name).into()
        }
        _ => return Err(unknown_method()),
    })
}

fn call_dict(map: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "get" => {
            let (key, default): (&Value, Option<&Value>) = from_args(args)?;
            let found = map.get_item(key)?;
            let missing = found.is_undefined();
            Ok(if missing { default.cloned().unwrap_or(Value::from(())) } else { found })
        }
        "keys" => {
            let () = from_args(args)?;
            Ok(map.try_iter()?.collect())
        }
        "values" => {
            let () = from_args(args)?;
            map.try_iter()?.map(|key| map.get_item(&key)).collect()
        }
        "items" => {
            let () = from_args(args)?;
            let pair = |key: Value| {
                let item = map.get_item(&key)?;
                Ok(Value::from(Tuple::from([key, item])))
            };
            map.try_iter()?.map(pair).collect()
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(map.clone())
        }
        _ => Err(unknown_method()),
    }
}

fn call_list(
    state: &State<'_, '_>,
    list: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let (wanted,): (&Value,) = match name {
        "count" | "index" => from_args(args)?,
        _ => return Err(unknown_method()),
    };
    let mut matches = list.try_iter()?.enumerate().filter(|(_, item)| item == wanted);
    if name == "count" {
        return Ok(matches.count().into());
    }
    match matches.next() {
        Some((index, _)) => Ok(index.into()),
        None => {
            let reason = format!("{} is not in list", to_str(state, wanted)?);
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        }
    }
}

/// Python's `strip`: white space, or any of the given characters, off both ends.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>) -> &'a str {
    strip_end(strip_start(text, chars), chars)
}

fn strip_start<'a>(text: &'a str, chars: Option<&str>) -> &'a str {
    text.trim_start_matches(|c| chars.map_or_else(|| is_space(c), |chars| chars.contains(c)))
}

fn strip_end<'a>(text: &'a str, chars: Option<&str>) -> &'a str {
    text.trim_end_matches(|c| chars.map_or_else(|| is_space(c), |chars| chars.contains(c)))
}

/// `str.isspace`: Unicode white space and the four separators of ASCII, which Unicode leaves out.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

fn split(text: &str, args: &[Value], side: Side) -> Result<Value, Error> {
    let (separator, splits, named): (Option<&Value>, Option<i64>, Kwargs) = from_args(args)?;
    let named_separator: Option<Value> = named.get("sep")?;
    let named_splits: Option<i64> = named.get("maxsplit")?;
    named.assert_all_used()?;
    let separator = separator.or(named_separator.as_ref()).filter(|value| !value.is_none());
    let splits = usize::try_from(splits.or(named_splits).unwrap_or(-1)).unwrap_or(usize::MAX);
    let Some(separator) = separator else {
        return Ok(split_space(text, splits, side));
    };
    let separator = non_empty(separator, "separator")?;
    let parts_max = splits.saturating_add(1);
    let parts: Vec<&str> = match side {
        Side::Left => text.splitn(parts_max, separator).collect(),
        Side::Right => {
            let mut parts: Vec<&str> = text.rsplitn(parts_max, separator).collect();
            parts.reverse();
            parts
        }
    };
    Ok(list(parts))
}

/// Splits at runs of white space, without empty parts; what the limit leaves keeps its inner white
/// space and that of the far end.
fn split_space(text: &str, splits: usize, side: Side) -> Value {
    let mut parts = Vec::new();
    let mut rest = match side {
        Side::Left => strip_start(text, None),
        Side::Right => strip_end(text, None),
    };
    while !rest.is_empty() {
        if parts.len() == splits {
            parts.push(rest);
            break;
        }
        let (part, after) = match side {
            Side::Left => {
                let (part, after) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
                (part, strip_start(after, None))
            }
            Side::Right => {
                let part = rest.rsplit(is_space).next().unwrap_or(rest);
                (part, strip_end(&rest[..rest.len() - part.len()], None))
            }
        };
        parts.push(part);
        rest = after;
    }
    if side == Side::Right {
        parts.reverse();
    }
    list(parts)
}

/// `str.splitlines(keepends=False)`.
fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep_ends,): (Option<bool>,) = from_args(args)?;
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(
            |c| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'),
        );
        let Some(end) = end else {
            lines.push(rest);
            break;
        };
        let break_len = match rest[end..].starts_with("\r\n") {
            true => 2,
            false => rest[end..].chars().next().map_or(0, char::len_utf8),
        };
        let line_len = if keep_ends == Some(true) { end + break_len } else { end };
        lines.push(&rest[..line_len]);
        rest = &rest[end + break_len..];
    }
    Ok(list(lines))
}

fn partition(text: &str, args: &[Value], side: Side) -> Result<Value, Error> {
    let (separator,): (&Value,) = from_args(args)?;
    let separator = non_empty(separator, "separator")?;
    let parts = match side {
        Side::Left => text.split_once(separator).map(|(a, b)| [a, separator, b]),
        Side::Right => text.rsplit_once(separator).map(|(a, b)| [a, separator, b]),
    };
    let unsplit = if side == Side::Left { [text, "", ""] } else { ["", "", text] };
    Ok(Value::from(Tuple::from(parts.unwrap_or(unsplit).map(Value::from))))
}

fn join(state: &State<'_, '_>, separator: &str, items: &Value) -> Result<String, Error> {
    let mut joined = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        joined.push_str(if index == 0 { "" } else { separator });
        joined.push_str(&to_str(state, &item)?);
        if joined.len() > bytes_max(state) {
            return Err(too_large());
        }
    }
    Ok(joined)
}

fn replace(text: &str, args: &[Value], bytes_max: usize) -> Result<Value, Error> {
    let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
    let places = text.matches(from).count();
    if places.saturating_mul(to.len()).saturating_add(text.len()) > bytes_max {
        return Err(too_large());
    }
    Ok(match usize::try_from(count.unwrap_or(-1)) {
        Ok(count) => text.replacen(from, to, count),
        Err(_) => text.replace(from, to),
    }
    .into())
}

/// Where `search` finds its needle, in characters; -1 for nowhere.
fn place_of(
    text: &str,
    args: &[Value],
    search: impl Fn(&str) -> Option<usize>,
) -> Result<Value, Error> {
    let (needle,): (&str,) = from_args(args)?;
    Ok(search(needle).map_or(Value::from(-1), |byte| text[..byte].chars().count().into()))
}

fn any_affix(args: &[Value], matches: impl Fn(&str) -> bool) -> Result<bool, Error> {
    let (affix,): (&Value,) = from_args(args)?;
    if let Some(affix) = affix.as_str() {
        return Ok(matches(affix));
    }
    if affix.kind() != ValueKind::Seq {
        let reason = format!("expected text or a tuple of texts, found {}", affix.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(affix.try_iter()?.any(|affix| affix.as_str().is_some_and(&matches)))
}

fn list<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

fn optional_text(args: &[Value]) -> Result<Option<String>, Error> {
    let (text,): (Option<String>,) = from_args(args)?;
    Ok(text)
}

fn non_empty<'a>(value: &'a Value, what: &str) -> Result<&'a str, Error> {
    value.as_str().filter(|text| !text.is_empty()).ok_or_else(|| {
        let reason = format!("{what} must be text and not empty, found {value:?}");
        Error::new(ErrorKind::InvalidOperation, reason)
    })
}

fn classify(text: &str, name: &str) -> bool {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    match name {
        "isdigit" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        _ => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
    }
}

fn change_case(text: &str, name: &str) -> String {
    match name {
        "upper" => return text.to_uppercase(),
        "lower" => return text.to_lowercase(),
        _ => {}
    }
    let mut out = String::with_capacity(text.len());
    let mut inside_word = false;
    for c in text.chars() {
        if inside_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside_word = name == "capitalize" || c.is_alphabetic();
    }
    out
}

fn unknown_method() -> Error {
    Error::from(ErrorKind::UnknownMethod)
}
