//! Python's `str` and `repr`.

use std::fmt::{self, Write};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Deepest nesting that is written out: no JSON is read that is deeper.
pub(crate) const DEPTH_MAX: usize = 256;

/// `str(value)`, if it is not longer than the template may still make.
pub(super) fn to_str(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write_within(&mut text, state, value)?;
    Ok(text)
}

/// Writes `str(value)`, if it is not longer than the template may still make.
pub(super) fn write_within(
    out: &mut dyn Write,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let mut out = Limited { out, left: bytes_max(state) };
    write_str(&mut out, value).map_err(|_| too_large())
}

/// Bytes that what is left of the template's fuel pays for.
pub(super) fn bytes_max(state: &State<'_, '_>) -> usize {
    const BYTES_PER_FUEL: u64 = 64;
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
    usize::try_from(left.saturating_mul(BYTES_PER_FUEL)).unwrap_or(usize::MAX)
}

pub(crate) fn too_large() -> Error {
    Error::new(ErrorKind::OutOfFuel, "a text that is too long, or nested too deeply")
}

/// A value may hold another many times over, so its text can be of any length.
struct Limited<'a> {
    out: &'a mut dyn Write,
    left: usize,
}

impl Write for Limited<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left = self.left.checked_sub(text.len()).ok_or(fmt::Error)?;
        self.out.write_str(text)
    }
}

/// Writes `str(value)`; an undefined value prints as nothing, as in Jinja2.
fn write_str(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value, 0),
    }
}

fn write_repr(out: &mut dyn Write, value: &Value, depth: usize) -> fmt::Result {
    if depth > DEPTH_MAX {
        return Err(fmt::Error);
    }
    if let Some(text) = value.as_str() {
        return write_string_repr(out, text);
    }
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&float_repr(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.write_char(open)?;
            let mut count = 0;
            for item in value.try_iter().into_iter().flatten() {
                out.write_str(if count == 0 { "" } else { ", " })?;
                write_repr(out, &item, depth + 1)?;
                count += 1;
            }
            out.write_str(if value.is_tuple() && count == 1 { "," } else { "" })?;
            out.write_char(close)
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if index == 0 { "" } else { ", " })?;
                write_repr(out, &key, depth + 1)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1)?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

/// `repr(number)`: the shortest digits that read back as the same float, with an exponent below
/// 1e-4 and from 1e16 on.
pub(super) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("`{:e}` writes a whole exponent");
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// `repr(text)`: single quotes unless only double ones avoid an escape.
fn write_string_repr(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c))?,
            c if u32::from(c) < 0x1_0000 => write!(out, "\\u{:04x}", u32::from(c))?,
            c => write!(out, "\\U{:08x}", u32::from(c))?,
        }
    }
    out.write_char(quote)
}

/// `str.isprintable` for one character: control, format, private-use and space characters other
/// than U+0020 are not. Unassigned code points are taken as printable: which those are depends on
/// the Unicode version of each Python.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            u32::from(c),
            0xA0 | 0xAD
                | 0x600..=0x605
                | 0x61C
                | 0x6DD
                | 0x70F
                | 0x890..=0x891
                | 0x8E2
                | 0x1680
                | 0x180E
                | 0x2000..=0x200F
                | 0x2028..=0x202F
                | 0x205F..=0x206F
                | 0x3000
                | 0xE000..=0xF8FF
                | 0xFEFF
                | 0xFFF9..=0xFFFB
                | 0x110BD
                | 0x110CD
                | 0x13430..=0x1343F
                | 0x1BCA0..=0x1BCA3
                | 0x1D173..=0x1D17A
                | 0xE0001..=0xE007F
                | 0xF0000..=0x10FFFF
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_does() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1e100, "1e+100"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (number, want) in cases {
            assert_eq!(float_repr(number), want);
        }
    }

    #[test]
    fn containers_print_as_python_does() {
        let value: serde_json::Value = serde_json::from_str(
            r#"[true, null, "it's", "a\"b'c", "\u0007\u00a0é\ud83e\udd80", {"k": [1, 2.0], "": {}}]"#,
        )
        .expect("valid JSON");
        let mut text = String::new();
        write_str(&mut text, &crate::python::value_of(&value)).expect("it is not deep");
        assert_eq!(
            text,
            r#"[True, None, "it's", 'a"b\'c', '\x07\xa0é🦀', {'k': [1, 2.0], '': {}}]"#
        );
    }
}
