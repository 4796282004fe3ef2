//! Python's `json.dumps`, as the `tojson` filter that transformers gives its templates.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::text::{DEPTH_MAX, bytes_max, float_repr, too_large};

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn to_json(state: &State<'_, '_>, value: &Value, args: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = args.get("indent")?;
    let separators: Option<Vec<String>> = args.get("separators")?;
    let style = Style {
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: indent.filter(|v| !v.is_none()).map(|v| indent_text(&v)).transpose()?,
        separators,
        bytes_max: bytes_max(state),
    };
    args.assert_all_used()?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

/// Wider indents serve nobody and would let a template ask for any amount of memory.
const INDENT_MAX: i64 = 64;

fn indent_text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str().filter(|text| text.len() <= INDENT_MAX as usize) {
        return Ok(text.to_owned());
    }
    let width = i64::try_from(value.clone())?;
    if width > INDENT_MAX {
        let reason = format!("tojson indent {width} is above {INDENT_MAX}");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(" ".repeat(usize::try_from(width).unwrap_or(0)))
}

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,          // the text of one level
    separators: Option<Vec<String>>, // between items, after a key
    bytes_max: usize,
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        // A value may hold another many times over, so its text can be of any length.
        if depth > DEPTH_MAX || out.len() > self.bytes_max {
            return Err(too_large());
        }
        if let Some(text) = value.as_str() {
            self.write_string(out, text);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&float_json(f64::try_from(value.clone())?)),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.write_container(out, ['[', ']'], items, depth)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    items.push((Some(key_text(&key)?), item));
                }
                if self.sort_keys {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_container(out, ['{', '}'], items, depth)?;
            }
            kind => {
                let reason = format!("a value of type {kind} has no JSON form");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
        Ok(())
    }

    fn write_container(
        &self,
        out: &mut String,
        brackets: [char; 2],
        items: Vec<(Option<String>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        let [open, close] = brackets;
        out.push(open);
        let is_empty = items.is_empty();
        for (index, (key, item)) in items.into_iter().enumerate() {
            if index > 0 {
                out.push_str(self.item_separator());
            }
            self.break_line(out, depth + 1);
            if let Some(key) = key {
                self.write_string(out, &key);
                out.push_str(self.key_separator());
            }
            self.write(out, &item, depth + 1)?;
        }
        if !is_empty {
            self.break_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn item_separator(&self) -> &str {
        let default = if self.indent.is_some() { "," } else { ", " };
        self.separators.as_ref().and_then(|s| s.first()).map_or(default, String::as_str)
    }

    fn key_separator(&self) -> &str {
        self.separators.as_ref().and_then(|s| s.get(1)).map_or(": ", String::as_str)
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}").expect("writing to a String cannot fail");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn float_json(number: f64) -> String {
    match number {
        n if n.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        n => float_repr(n),
    }
}

/// JSON keys are text; Python turns numbers, booleans and None into it.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if key.is_integer() => Ok(key.to_string()),
        ValueKind::Number => Ok(float_json(f64::try_from(key.clone())?)),
        kind => {
            let reason = format!("a JSON key cannot be of type {kind}");
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        }
    }
}
