//! Steps 2 and 3 without an engine.

use std::sync::Arc;

use calla_engine::checkpoint::Source;
use calla_text::{ChatTemplate, RenderInput, Tokenizer};
use serde_json::{Map, Value};

use crate::{ChatError, ChatRequest, Message, files::TextFiles, message};

/// A checkpoint's text side: conversations to the text that the model is given, and to tokens.
#[derive(Debug)]
pub struct Renderer {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl Renderer {
    /// Reads tokenizer.json and the chat template of a checkpoint.
    ///
    /// # Errors
    /// [`ChatError::MissingFile`], [`ChatError::BadFile`], [`ChatError::Text`],
    /// [`ChatError::Engine`]: a file is missing or cannot be used.
    pub fn load(source: &Source) -> Result<Self, ChatError> {
        Self::new(&TextFiles::read(source)?)
    }

    pub(crate) fn new(files: &TextFiles) -> Result<Self, ChatError> {
        Ok(Self {
            tokenizer: Arc::new(files.tokenizer()?),
            template: files.template()?,
            bos_token: files.special_token("bos_token"),
            eos_token: files.special_token("eos_token"),
        })
    }

    /// What the model is given to answer a conversation. Step 2.
    ///
    /// # Errors
    /// [`ChatError::Request`] for a conversation without messages, [`ChatError::Text`] when the
    /// template refuses it.
    pub fn prompt(&self, request: &ChatRequest) -> Result<String, ChatError> {
        let mut extra: Map<String, Value> = request.template_kwargs.clone();
        if let Some(thinking) = request.thinking {
            extra.insert("enable_thinking".to_owned(), Value::Bool(thinking));
        }
        self.render(&request.messages, &request.tools, true, &extra)
    }

    /// A conversation that is over: the prompt and its answer, as the template writes answers.
    ///
    /// # Errors
    /// As [`Renderer::prompt`].
    pub fn transcript(&self, messages: &[Message], tools: &[Value]) -> Result<String, ChatError> {
        self.render(messages, tools, false, &Map::new())
    }

    /// Words to tokens and back. Step 3.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    fn render(
        &self,
        messages: &[Message],
        tools: &[Value],
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, ChatError> {
        if messages.is_empty() {
            let problem = "must hold at least one message".to_owned();
            return Err(ChatError::Request { field: "messages", problem });
        }
        let messages = message::for_template(messages);
        let input = RenderInput {
            messages: &messages,
            tools,
            add_generation_prompt,
            extra,
            bos_token: self.bos_token.as_deref(),
            eos_token: self.eos_token.as_deref(),
        };
        Ok(self.template.render(&input)?)
    }
}
