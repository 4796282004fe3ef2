//! The files of a checkpoint that text needs.

use calla_engine::checkpoint::Source;
use calla_text::{ChatTemplate, Tokenizer, find_template};
use serde_json::Value;

use crate::ChatError;

/// The files as they lie in the checkpoint.
pub(crate) struct TextFiles {
    tokenizer: Vec<u8>,
    template: Option<String>,
    tokenizer_config: Option<Value>,
    pub(crate) generation_config: Option<Value>,
}

impl TextFiles {
    pub(crate) fn read(source: &Source) -> Result<Self, ChatError> {
        let tokenizer = source.read_optional("tokenizer.json")?;
        let template = source.read_optional("chat_template.jinja")?;
        let template = template.map(String::from_utf8).transpose();
        Ok(Self {
            tokenizer: tokenizer.ok_or(ChatError::MissingFile {
                file: "tokenizer.json",
                advice: "copy it from the publisher's repository of the same model",
            })?,
            template: template.map_err(|error| {
                bad_file("chat_template.jinja", format!("{error}: damaged, fetch it again"))
            })?,
            tokenizer_config: read_json(source, "tokenizer_config.json")?,
            generation_config: read_json(source, "generation_config.json")?,
        })
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer, ChatError> {
        Ok(Tokenizer::from_bytes(&self.tokenizer)?)
    }

    pub(crate) fn template(&self) -> Result<ChatTemplate, ChatError> {
        let text = find_template(self.tokenizer_config.as_ref(), self.template.as_deref())?;
        let text = text.ok_or(ChatError::MissingFile {
            file: "chat_template.jinja",
            advice: "copy it from the publisher's repository of the same model, or use a \
                     tokenizer_config.json that holds the template",
        })?;
        Ok(ChatTemplate::new(&text)?)
    }

    /// The file that the template is in.
    pub(crate) fn template_file(&self) -> &'static str {
        match self.template {
            Some(_) => "chat_template.jinja",
            None => "tokenizer_config.json",
        }
    }

    /// The text of a token that tokenizer_config.json names, as text or as an object.
    pub(crate) fn special_token(&self, field: &str) -> Option<String> {
        let value = self.tokenizer_config.as_ref()?.get(field)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.map(str::to_owned)
    }

    /// `eos_token_id` of generation_config.json: one id or a list.
    pub(crate) fn eos_ids(&self) -> Result<Vec<u32>, ChatError> {
        let value = self.generation_config.as_ref().and_then(|config| config.get("eos_token_id"));
        let ids = match value {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.as_slice(),
            Some(id) => std::slice::from_ref(id),
        };
        let read = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        ids.iter().map(read).collect::<Option<_>>().ok_or_else(|| {
            bad_file(
                "generation_config.json",
                "eos_token_id: expected a token id or a list of them",
            )
        })
    }
}

fn read_json(source: &Source, file: &'static str) -> Result<Option<Value>, ChatError> {
    let Some(bytes) = source.read_optional(file)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err(bad_file(file, "not a JSON object: damaged, fetch it again")),
        Err(error) => Err(bad_file(file, format!("{error}: cut short or damaged, fetch it again"))),
    }
}

fn bad_file(file: &'static str, problem: impl ToString) -> ChatError {
    ChatError::BadFile { file, problem: problem.to_string() }
}
