//! The declared types of tool parameters. The model writes every value as bare text; the schema
//! says which of them are numbers, booleans or JSON.

use serde::de::IgnoredAny;
use serde_json::Value as Json;

/// The tools a request declares.
#[derive(Debug, Clone)]
pub(crate) struct ToolSchemas {
    functions: Vec<Json>, // {name, parameters}
}

/// The JSON types a parameter may take; none of them: undeclared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ValueTypes {
    string: bool,
    number: bool,
    integer: bool,
    boolean: bool,
    null: bool,
    object: bool,
    array: bool,
}

impl ToolSchemas {
    /// Takes tools as `{"type": "function", "function": {...}}` or as the bare function object.
    pub(crate) fn new(tools: &[Json]) -> Self {
        let function = |tool: &Json| tool.get("function").unwrap_or(tool).clone();
        Self { functions: tools.iter().map(function).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The types declared for a parameter of a function.
    pub(crate) fn types_of(&self, function: &str, parameter: &str) -> ValueTypes {
        let mut types = ValueTypes::default();
        let declared = self.functions.iter().find(|f| f["name"] == function);
        let Some(schema) = declared.and_then(|f| f.get("parameters")) else { return types };
        let named = schema.get("properties").and_then(|properties| properties.get(parameter));
        if let Some(named) = named.or_else(|| schema.get("additionalProperties")) {
            let mut visits_left = VISITS_MAX;
            types.collect(named, schema, &mut visits_left);
        }
        types
    }
}

/// Schemas come from clients and `$ref` may form cycles: looking at this many parts is enough.
const VISITS_MAX: usize = 256;

impl ValueTypes {
    /// Whether every value is text, so that it can be passed on before its end is known.
    pub(crate) fn is_text_only(self) -> bool {
        self == Self { string: true, ..Self::default() } || self == Self::default()
    }

    /// The JSON for a value the model wrote as `text`: as declared where the text allows it, else a
    /// string. Numbers and JSON keep their spelling, so no digit is lost.
    pub(crate) fn to_json(self, text: &str) -> String {
        let bare = text.trim();
        let typed = match bare {
            "null" | "None" if self.null => Some("null"),
            "true" | "True" if self.boolean => Some("true"),
            "false" | "False" if self.boolean => Some("false"),
            _ if self.number && is_json_number(bare) => Some(bare),
            _ if self.integer && is_json_integer(bare) => Some(bare),
            _ if self.object && bare.starts_with('{') && is_json(bare) => Some(bare),
            _ if self.array && bare.starts_with('[') && is_json(bare) => Some(bare),
            _ => None,
        };
        typed.map_or_else(|| Json::from(text).to_string(), str::to_owned)
    }

    fn collect(&mut self, schema: &Json, root: &Json, visits_left: &mut usize) {
        if *visits_left == 0 {
            return;
        }
        *visits_left -= 1;
        let pointer = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        if let Some(target) = pointer.and_then(|pointer| root.pointer(pointer)) {
            self.collect(target, root, visits_left);
        }
        for union in ["anyOf", "oneOf", "allOf"] {
            for member in schema[union].as_array().into_iter().flatten() {
                self.collect(member, root, visits_left);
            }
        }
        match &schema["type"] {
            Json::String(name) => self.allow(name),
            Json::Array(names) => names.iter().filter_map(Json::as_str).for_each(|n| self.allow(n)),
            _ => self.infer(schema),
        }
        self.null |= schema["nullable"] == true;
    }

    /// Types of a schema that states none.
    fn infer(&mut self, schema: &Json) {
        self.object |= schema.get("properties").is_some();
        self.array |= schema.get("items").is_some();
        let listed = schema["enum"].as_array().into_iter().flatten();
        for value in listed.chain(schema.get("const")) {
            self.allow(match value {
                Json::Null => "null",
                Json::Bool(_) => "boolean",
                Json::Number(_) => "number",
                Json::String(_) => "string",
                Json::Array(_) => "array",
                Json::Object(_) => "object",
            });
        }
    }

    fn allow(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "number" => self.number = true,
            "integer" => self.integer = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => {}
        }
    }
}

/// JSON that can be read again as a part of the arguments, which has its depth and its numbers limited.
fn is_json(text: &str) -> bool {
    let inside = || serde_json::from_str::<Json>(&format!("[{text}]")).is_ok();
    serde_json::from_str::<IgnoredAny>(text).is_ok() && inside()
}

fn is_json_number(text: &str) -> bool {
    text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && is_json(text)
}

/// JSON Schema counts `5.0` as an integer.
fn is_json_integer(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    is_json_number(text)
        && whole.bytes().all(|b| b == b'-' || b.is_ascii_digit())
        && fraction.bytes().all(|b| b == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_typed_by_its_schema() {
        let cases = [
            (json!({"type": "string"}), "02134", r#""02134""#),
            (json!({"type": "string"}), "5", r#""5""#),
            (json!({"type": "string"}), "a\"\n", r#""a\"\n""#),
            (json!({}), "5", r#""5""#),
            (json!({"type": "integer"}), "5", "5"),
            (json!({"type": "integer"}), " -12 ", "-12"),
            (json!({"type": "integer"}), "5.0", "5.0"),
            (json!({"type": "integer"}), "5.5", r#""5.5""#),
            (json!({"type": "integer"}), "02134", r#""02134""#),
            (
                json!({"type": "integer"}),
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (json!({"type": "number"}), "1e-7", "1e-7"),
            (json!({"type": "number"}), "NaN", r#""NaN""#),
            (json!({"type": "number"}), "true", r#""true""#),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"type": "boolean"}), "false", "false"),
            (json!({"type": "boolean"}), "yes", r#""yes""#),
            (json!({"type": ["string", "null"]}), "None", "null"),
            (json!({"type": ["string", "integer"]}), "7", "7"),
            (json!({"type": ["string", "integer"]}), "007", r#""007""#),
            (json!({"type": "object"}), r#"{"b": [1, {"a": 2}]}"#, r#"{"b": [1, {"a": 2}]}"#),
            (json!({"type": "object"}), r#"{"b": "#, r#""{\"b\": ""#),
            (json!({"type": "array"}), "[1, 2]\n", "[1, 2]"),
            (json!({"anyOf": [{"type": "array"}, {"type": "null"}]}), "null", "null"),
            (json!({"$ref": "#/$defs/count"}), "3", "3"),
            (json!({"$ref": "#/$defs/loop"}), "3", r#""3""#),
            (json!({"enum": [1, 2]}), "2", "2"),
            (json!({"enum": ["1", "2"]}), "2", r#""2""#),
            (json!({"type": "string", "nullable": true}), "null", "null"),
        ];
        for (schema, text, want) in cases {
            let tool = json!({"type": "function", "function": {"name": "f", "parameters": {
                "properties": {"p": schema},
                "$defs": {
                    "count": {"type": "integer"},
                    "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]},
                },
            }}});
            let types = ToolSchemas::new(&[tool]).types_of("f", "p");
            assert_eq!(types.to_json(text), want, "{schema} {text:?}");
        }
    }

    #[test]
    fn what_could_not_be_read_again_stays_text() {
        let tool = json!({"name": "f", "parameters": {"properties": {"p": {"type": ["array", "number"]}}}});
        let types = ToolSchemas::new(&[tool]).types_of("f", "p");
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        for (text, is_text) in [
            (nested(126), false),
            (nested(127), true),
            (nested(100_000), true),
            ("1e999".to_owned(), true),
            ("1,2".to_owned(), true),
            ("1e99".to_owned(), false),
        ] {
            let arguments = format!("{{\"p\": {}}}", types.to_json(&text));
            let read: Json = serde_json::from_str(&arguments).expect("valid JSON");
            assert_eq!(read["p"].is_string(), is_text, "{:.20}", text);
        }
    }

    #[test]
    fn bare_functions_and_unknown_names_are_read() {
        let tool = json!({"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}});
        let schemas = ToolSchemas::new(&[tool]);
        assert!(!schemas.types_of("f", "n").is_text_only());
        assert!(schemas.types_of("f", "other").is_text_only());
        assert!(schemas.types_of("g", "n").is_text_only());
    }
}
