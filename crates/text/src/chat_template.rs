//! Step 2: a conversation to the prompt text, by the template the checkpoint carries.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json};

use crate::{TextError, python};

mod guard;

use guard::Stack;

/// A compiled chat template. It renders as Python's Jinja2 set up by transformers does, to the byte.
///
/// Known differences, none of them reachable from the family's published templates: `strftime_now`
/// is in UTC, and integers beyond 64 bits arrive as floats from the JSON reader.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    stack: Stack,
}

/// What a template can see.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// The conversation, each an object with `role` and `content`; `tool_calls[].function.arguments`
    /// must be an object, not JSON text.
    pub messages: &'a [Json],
    /// The tools on offer, in the client's key order; empty: the template sees none.
    pub tools: &'a [Json],
    /// Whether to open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Further variables: `enable_thinking`, `preserve_thinking`, whatever the template knows. They
    /// cannot replace the ones above.
    pub extra: &'a Map<String, Json>,
    /// The text of the begin-of-text token, if the tokenizer has one.
    pub bos_token: Option<&'a str>,
    /// The text of the end-of-turn token, if the tokenizer has one.
    pub eos_token: Option<&'a str>,
}

const NAME: &str = "chat_template";

const ADVICE: &str = "use the template of the publisher's repository";

/// What a template may do before it has seen anything: one fuel pays for an instruction or for 64
/// bytes. The family's templates take a few hundred a message.
const FUEL: u64 = 200_000;

/// What it may do more for each value of the conversation, and for each byte of text in it.
const FUEL_PER_VALUE: u64 = 2_000;
const FUEL_PER_BYTE: u64 = 8;

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] with the line.
    pub fn new(source: &str) -> Result<Self, TextError> {
        let refuse = |reason: String| TextError::TemplateSyntax { reason };
        let stack = Stack::of(source).ok_or_else(|| {
            refuse(format!(
                "{} bytes that nest more than any template does: {ADVICE}",
                source.len()
            ))
        })?;
        let settled = guard::with_settled_assignments(source);
        let settled = settled.map_err(|problem| refuse(format!("{problem}: {ADVICE}")))?;
        let compiled = stack.run(|| compile(settled));
        let compiled = compiled.map_err(|error| refuse(format!("no thread to do it: {error}")))?;
        Ok(Self { environment: compiled.map_err(syntax_error)?, stack })
    }

    /// The prompt text.
    ///
    /// # Errors
    /// [`TextError::TemplateRaised`] when the template refuses the conversation,
    /// [`TextError::TemplateRender`] when it fails in any other way, or does far more than a
    /// conversation of this length asks for.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, TextError> {
        check_depth(input)?;
        let render = || {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(fuel(input)));
            guard::install(&mut environment);
            environment.get_template(NAME)?.render(context(input))
        };
        let rendered = self.stack.run(render).map_err(|error| TextError::TemplateRender {
            reason: format!("no thread to do it: {error}"),
        })?;
        rendered.map_err(render_error)
    }
}

fn compile(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    environment.set_syntax(syntax);
    environment.set_debug(false);
    environment.set_recursion_limit(guard::RECURSION_MAX);
    python::install(&mut environment);
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

/// Picks a checkpoint's template: `chat_template.jinja` wins over `tokenizer_config.json`, where it
/// is text or a list of `{name, template}` of which the one named `default` counts. `None` when
/// neither has one.
///
/// # Errors
/// [`TextError::TemplateSource`] when the config's entry has another form.
pub fn find_template(
    tokenizer_config: Option<&Json>,
    jinja_file: Option<&str>,
) -> Result<Option<String>, TextError> {
    if let Some(text) = jinja_file {
        return Ok(Some(text.to_owned()));
    }
    let entry = tokenizer_config.and_then(|config| config.get("chat_template"));
    match entry {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.clone())),
        Some(Json::Array(list)) => {
            let default = list.iter().find(|item| item["name"] == "default");
            let text = default.and_then(|item| item["template"].as_str());
            text.map(|text| Some(text.to_owned())).ok_or_else(|| TextError::TemplateSource {
                reason: "tokenizer_config.json: chat_template is a list without an entry of \
                         `name` \"default\" that has a `template`"
                    .to_owned(),
            })
        }
        Some(other) => Err(TextError::TemplateSource {
            reason: format!(
                "tokenizer_config.json: chat_template must be text or a list of named templates, \
                 found {other}"
            ),
        }),
    }
}

/// Refuses values that are nested deeper than any that is read from a request.
fn check_depth(input: &RenderInput<'_>) -> Result<(), TextError> {
    let lists = [("messages", input.messages), ("tools", input.tools)];
    let listed =
        lists.into_iter().flat_map(|(name, list)| list.iter().map(move |item| (name, item)));
    let named = input.extra.iter().map(|(name, value)| (name.as_str(), value));
    match listed.chain(named).find(|(_, value)| is_deeper(value, python::DEPTH_MAX)) {
        None => Ok(()),
        Some((name, _)) => Err(TextError::TemplateRender {
            reason: format!("{name}: nested deeper than {} levels", python::DEPTH_MAX),
        }),
    }
}

fn is_deeper(value: &Json, levels: usize) -> bool {
    match value {
        Json::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Json::Object(map) => levels == 0 || map.values().any(|item| is_deeper(item, levels - 1)),
        _ => false,
    }
}

/// A template is a program: its work is bounded by the conversation that it renders.
fn fuel(input: &RenderInput<'_>) -> u64 {
    let given = input.messages.iter().chain(input.tools).chain(input.extra.values());
    let fuel = given.map(fuel_of).fold(FUEL, u64::saturating_add);
    let keys: usize = input.extra.keys().map(String::len).sum();
    fuel.saturating_add(FUEL_PER_BYTE * keys as u64)
}

fn fuel_of(value: &Json) -> u64 {
    let of_bytes = |text: &str| FUEL_PER_BYTE * text.len() as u64;
    let within = match value {
        Json::String(text) => of_bytes(text),
        Json::Array(items) => items.iter().map(fuel_of).sum(),
        Json::Object(map) => map.iter().map(|(key, item)| of_bytes(key) + fuel_of(item)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    };
    FUEL_PER_VALUE + within
}

fn context(input: &RenderInput<'_>) -> Value {
    let list = |items: &[Json]| items.iter().map(python::value_of).collect::<Value>();
    let own = [
        ("messages", list(input.messages)),
        ("tools", if input.tools.is_empty() { Value::from(()) } else { list(input.tools) }),
        ("documents", Value::from(())),
        ("add_generation_prompt", input.add_generation_prompt.into()),
    ];
    let tokens = [("bos_token", input.bos_token), ("eos_token", input.eos_token)];
    let tokens = tokens.into_iter().filter_map(|(name, token)| Some((name, token?.into())));
    let extra = input.extra.iter().map(|(name, value)| (name.as_str(), python::value_of(value)));
    // Of two variables with one name the later counts.
    Value::from_pairs(extra.chain(own).chain(tokens))
}

fn syntax_error(error: Error) -> TextError {
    TextError::TemplateSyntax { reason: describe(&error) }
}

fn render_error(error: Error) -> TextError {
    match python::raised_message(&error) {
        Some(message) => TextError::TemplateRaised { message: message.to_owned() },
        None if error.kind() == ErrorKind::OutOfFuel => TextError::TemplateRender {
            reason: format!(
                "{}: far more work than this conversation asks for, {ADVICE}",
                describe(&error)
            ),
        },
        None => TextError::TemplateRender { reason: describe(&error) },
    }
}

/// The error with its line. Only syntax errors come without a cause worth following.
fn describe(error: &Error) -> String {
    let line = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.kind() {
        ErrorKind::SyntaxError => format!("{line}{what}"),
        kind => format!("{line}{kind}: {what}"),
    }
}
