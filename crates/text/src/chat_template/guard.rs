//! What keeps a hostile template within the stack.
//!
//! The template engine recurses: over an expression when it compiles it, over a value when it compares
//! or drops it. How deep either can be follows from the template's text, with one exception: what is
//! assigned to a namespace lives on from one round of a loop to the next and can grow without end, or
//! hold itself. So assignments to namespaces are limited, and the rest gets the stack that it can need.

use std::{
    io,
    panic::resume_unwind,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::python::{DEPTH_MAX, too_large};

/// Calls within calls, and rounds of a recursive loop, that a template may make. A macro takes four.
pub(super) const RECURSION_MAX: usize = 128;

/// What a level of an expression or of a value takes when the engine recurses over it: under 600 bytes.
const LEVEL_BYTES: usize = 1 << 10;

/// What rendering takes without any of that.
const STACK_BYTES: usize = 8 << 20;

/// More than this is no template but an attack. The family's templates have 8 kB.
const STACK_BYTES_MAX: usize = 1 << 30;
const SOURCE_BYTES_MAX: usize = 128 << 10;

/// What a tag may have beside its strings: the engine compiles some expressions in time that grows with
/// the square of their length.
const TAG_BYTES_MAX: usize = 4 << 10;

/// A stack on which a template compiles and renders, whatever it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stack {
    bytes: usize,
}

impl Stack {
    /// The stack for this template; `None` when it would be out of all proportion.
    pub(super) fn of(source: &str) -> Option<Self> {
        // An operator nests an expression by one level. These also nest the value, each time they run.
        let nesting = source.bytes().filter(|byte| b"[{(,|*+".contains(byte)).count();
        let levels = nesting.checked_mul(RECURSION_MAX)?.checked_add(source.len())?;
        let bytes = levels.checked_mul(LEVEL_BYTES)?.checked_add(STACK_BYTES)?;
        let is_credible = source.len() <= SOURCE_BYTES_MAX && bytes <= STACK_BYTES_MAX;
        is_credible.then_some(Self { bytes })
    }

    /// Runs `work` on it.
    pub(super) fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let name = "chat template".to_owned();
            let builder = thread::Builder::new().name(name).stack_size(self.bytes);
            let worker = builder.spawn_scoped(scope, work)?;
            Ok(worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

/// Name of the filter that [`with_settled_assignments`] puts into a template.
const SETTLE: &str = "calla_settle";

/// Values that the filter looks at for each fuel that is left.
const VISITS_PER_FUEL: u64 = 2;

/// Gives one rendering the filter that assignments to namespaces pass through.
pub(super) fn install(environment: &mut Environment<'_>) {
    let visits = AtomicU64::new(0);
    environment.add_filter(SETTLE, move |state: &State<'_, '_>, value: Value| {
        let fuel_left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
        let visits_max = fuel_left.saturating_mul(VISITS_PER_FUEL);
        let visit = || match visits.fetch_add(1, Ordering::Relaxed) < visits_max {
            true => Ok(()),
            false => Err(too_large()),
        };
        Ok::<_, Error>(settled(&value, DEPTH_MAX, &visit)?.unwrap_or(value))
    });
}

/// What a namespace may hold in place of `value`: text, numbers, lists and maps of no great depth, each
/// list whole. `None`: as it is.
fn settled(
    value: &Value,
    levels: usize,
    visit: &impl Fn() -> Result<(), Error>,
) -> Result<Option<Value>, Error> {
    visit()?;
    let deeper =
        |value: &Value| settled(value, levels.checked_sub(1).ok_or_else(too_large)?, visit);
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            // A slice and the like refer to another list, which may refer to another.
            let mut changed = !value.is_tuple() && type_name(value) != type_name(&a_list());
            let mut items = Vec::new();
            for item in value.try_iter()? {
                let new = deeper(&item)?;
                changed |= new.is_some();
                items.push(new.unwrap_or(item));
            }
            Ok(changed.then(|| Value::from(items)))
        }
        ValueKind::Map if !is_machinery(value) => {
            let mut changed = type_name(value) != type_name(&a_map());
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                let (new_key, new) = (deeper(&key)?, deeper(&item)?);
                changed |= new_key.is_some() || new.is_some();
                pairs.push((new_key.unwrap_or(key), new.unwrap_or(item)));
            }
            Ok(changed.then(|| Value::from_pairs(pairs)))
        }
        ValueKind::Map | ValueKind::Plain | ValueKind::Invalid => {
            let reason = "a namespace can hold text, numbers, lists and maps, nothing else";
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        }
        _ => Ok(None),
    }
}

fn a_list() -> Value {
    Value::from(vec![Value::from(1)])
}

fn a_map() -> Value {
    Value::from_pairs([("key", 1)])
}

fn type_name(value: &Value) -> &'static str {
    value.as_object().map_or("", |object| object.type_name())
}

/// Namespaces, macros, loops: they show their fields as a map does, and refer to what refers to them.
fn is_machinery(value: &Value) -> bool {
    let name = type_name(value);
    name.starts_with("minijinja::vm::") || name.ends_with("::Namespace")
}

/// The template with every value that it assigns to an attribute, as only a namespace has them, passed
/// through the filter: `{% set n.x = a %}` becomes `{% set n.x = (a)|calla_settle %}`.
///
/// Lines stay what they are. A template that does not compile is still one that does not.
///
/// # Errors
/// The line of a tag that is far too long.
pub(super) fn with_settled_assignments(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut at = 0;
    while let Some(open) = source[at..].find('{').map(|found| at + found) {
        let mark = |place: usize| source.as_bytes().get(place).copied();
        let inside = open + 2 + usize::from(matches!(mark(open + 2), Some(b'-' | b'+')));
        let after = match mark(open + 1) {
            Some(b'#') => end_of(source, inside, "#}"),
            Some(b'{') => Tag::scan(source, inside, "}}")?.map(|tag| tag.after),
            Some(b'%') => match word_tag(source, inside, "raw") {
                Some(raw) => end_of_raw(source, raw),
                None => Tag::scan(source, inside, "%}")?.map(|tag| {
                    for (place, addition) in tag.settling(source) {
                        out.push_str(&source[copied..place]);
                        out.push_str(&addition);
                        copied = place;
                    }
                    tag.after
                }),
            },
            _ => Some(open + 1),
        };
        // What never ends does not compile.
        let Some(after) = after else { break };
        at = after;
    }
    out.push_str(&source[copied..]);
    Ok(out)
}

/// `{% … %}` or `{{ … }}`: what is between the marks, and the place after it.
struct Tag {
    start: usize,
    end: usize,
    after: usize,
}

impl Tag {
    /// Finds the end of a tag as the engine does: outside of strings and of brackets. `None`: it has
    /// none.
    fn scan(source: &str, start: usize, close: &str) -> Result<Option<Self>, String> {
        let bytes = source.as_bytes();
        let mut open_brackets = 0_usize;
        let mut at = start;
        let mut string_bytes = 0;
        while let Some(&byte) = bytes.get(at) {
            if at - start - string_bytes > TAG_BYTES_MAX {
                let line = source[..start].matches('\n').count() + 1;
                return Err(format!(
                    "line {line}: a tag of more than {TAG_BYTES_MAX} bytes beside its strings"
                ));
            }
            if open_brackets == 0 {
                let sign = usize::from(matches!(byte, b'-' | b'+'));
                if bytes[at + sign..].starts_with(close.as_bytes()) {
                    return Ok(Some(Self { start, end: at, after: at + sign + close.len() }));
                }
            }
            match byte {
                b'(' | b'[' | b'{' => open_brackets += 1,
                b')' | b']' | b'}' if open_brackets == 0 => return Ok(None),
                b')' | b']' | b'}' => open_brackets -= 1,
                b'\'' | b'"' => {
                    let Some(end) = end_of_string(bytes, at) else { return Ok(None) };
                    string_bytes += end - at;
                    at = end;
                }
                _ => {}
            }
            at += 1;
        }
        Ok(None)
    }

    /// What to add, and where, so that an assignment to an attribute is settled.
    fn settling(&self, source: &str) -> Vec<(usize, String)> {
        let body = &source[self.start..self.end];
        let is_space = |c: char| c.is_ascii_whitespace();
        let Some(rest) = body.trim_start_matches(is_space).strip_prefix("set") else {
            return Vec::new();
        };
        if rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return Vec::new();
        }
        let sign = rest.find(['=', '|']);
        let (target, value) = rest.split_at(sign.unwrap_or(rest.len()));
        let filter = format!("|{SETTLE}");
        match value.bytes().next() {
            _ if !target.contains('.') => Vec::new(),
            // A block's text is no list.
            None => Vec::new(),
            Some(b'|') => vec![(self.end, filter)],
            // An empty value would become a list.
            Some(_) if value[1..].trim_matches(is_space).is_empty() => Vec::new(),
            Some(_) => {
                let start = self.end - value.len() + 1;
                vec![(start, "(".to_owned()), (self.end, format!("){filter}"))]
            }
        }
    }
}

/// The place of the quote that ends the string.
fn end_of_string(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while *bytes.get(at)? != bytes[start] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    Some(at)
}

fn end_of(source: &str, start: usize, mark: &str) -> Option<usize> {
    source.get(start..)?.find(mark).map(|found| start + found + mark.len())
}

/// The place after a tag of this one word.
fn word_tag(source: &str, start: usize, word: &str) -> Option<usize> {
    let is_space = |c: char| c.is_ascii_whitespace();
    let rest = source.get(start..)?.trim_start_matches(is_space).strip_prefix(word)?;
    let rest = rest.trim_start_matches(is_space);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(source.len() - rest.len())
}

/// The place after the tag that ends raw text.
fn end_of_raw(source: &str, start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at = end_of(source, at, "{%")?;
        let sign = usize::from(source[at..].starts_with(['-', '+']));
        if let Some(after) = word_tag(source, at + sign, "endraw") {
            return Some(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_to_attributes_are_settled_and_nothing_else() {
        for (source, expected) in [
            ("{% set n.x = a %}", "{% set n.x =( a )|calla_settle%}"),
            ("{%-set n.x=1,2-%}é{{ x }}", "{%-set n.x=(1,2)|calla_settle-%}é{{ x }}"),
            ("{%+\tset (a, n.x) = b+%}", "{%+\tset (a, n.x) =( b)|calla_settle+%}"),
            (
                "{% set n.x = '%}\\'' ~ {'a': [1]}%}",
                "{% set n.x =( '%}\\'' ~ {'a': [1]})|calla_settle%}",
            ),
            ("{% set n.x | list %}a{% endset %}", "{% set n.x | list |calla_settle%}a{% endset %}"),
            (
                "{{ '{%' }}{% raw %}{% set n.x = 1 %}{%- endraw %}{# {% #}{% set n.x = 1 %}",
                "{{ '{%' }}{% raw %}{% set n.x = 1 %}{%- endraw %}{# {% #}{% set n.x =( 1 )|calla_settle%}",
            ),
        ] {
            assert_eq!(with_settled_assignments(source).as_deref(), Ok(expected));
        }
        for same in [
            "{% set x = n.x %}",
            "{% set n.x %}a{% endset %}",
            "{% set n.x = %}",
            "{% settle n.x = 1 %}",
            "{{ set n.x = 1 }}",
            "{# {% set n.x = 1 %} #}",
            "{{ '{% set n.x = 1 %}' }}",
            "{% raw %}{% set n.x = 1 %}{% endraw %}",
            "{% set n.x = [n]) + ([1] %}",
            "{% set n.x = 'a %}",
            "{% set n.x = (1 %}",
            "{ {%",
            "{",
        ] {
            assert_eq!(with_settled_assignments(same).as_deref(), Ok(same));
        }
    }
}
