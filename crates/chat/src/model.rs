use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use calla_engine::{Engine, Limits, Request, checkpoint::Source, model::Shape};
use calla_text::{Detokenizer, OutputParser, StopStrings, Tokenizer};

use crate::{
    ChatError, ChatRequest, ChatStream, CompletionRequest, GenerationOptions, Message, Prompt,
    Renderer, SamplingDefaults, SamplingOverrides,
    files::TextFiles,
    places::Places,
    stream::{Decoder, Output},
};

/// Prompts up to this are encoded whatever the context, so that the refusal can count their tokens.
const COUNTED_BYTES_MAX: usize = 256 * 1024;

/// A loaded checkpoint ready to talk. Clones are handles to the same one.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    loaded_unix_s: u64,
    engine: Engine,
    text: ModelText,
}

/// Everything of a [`Model`] but its engine: read and checked before any weight is loaded.
pub struct ModelText {
    renderer: Renderer,
    stop_ids: Vec<u32>,
    sampling: SamplingDefaults,
    places: Places,
    thinks_by_default: bool,
}

impl ModelText {
    /// Reads what text needs from the checkpoint: tokenizer.json, the chat template and
    /// generation_config.json. `sampling` wins over the publisher's values.
    ///
    /// # Errors
    /// [`ChatError::MissingFile`], [`ChatError::BadFile`], [`ChatError::Text`],
    /// [`ChatError::Engine`]: a file is missing, cannot be used, or is another model's.
    pub fn load(
        source: &Source,
        shape: &Shape,
        sampling: SamplingOverrides,
    ) -> Result<Self, ChatError> {
        let files = TextFiles::read(source)?;
        let renderer = Renderer::new(&files)?;
        let tokenizer = renderer.tokenizer();
        check_vocabulary(tokenizer, shape)?;
        let mut text = Self {
            stop_ids: stop_ids(tokenizer, shape, &files.eos_ids()?)?,
            sampling: SamplingDefaults::new(shape, sampling, files.generation_config.as_ref())?,
            places: Places::new(tokenizer)?,
            thinks_by_default: false,
            renderer,
        };
        // The template alone knows; a question without a word about thinking asks it. It also
        // proves at load time that the template renders at all.
        let prompt = text.renderer.prompt(&ChatRequest {
            messages: vec![Message::user("Hello")],
            ..ChatRequest::default()
        })?;
        if prompt.is_empty() {
            let problem = "the chat template makes nothing of a question: damaged, fetch it again";
            return Err(ChatError::BadFile {
                file: files.template_file(),
                problem: problem.to_owned(),
            });
        }
        text.thinks_by_default = OutputParser::new(&prompt, &[]).in_reasoning();
        Ok(text)
    }
}

impl Model {
    /// Joins the text side of a checkpoint with the engine that runs its weights. `name` is what
    /// clients see.
    pub fn new(name: String, text: ModelText, engine: Engine) -> Self {
        let loaded_unix_s = unix_time_s();
        Self { inner: Arc::new(Inner { name, loaded_unix_s, engine, text }) }
    }

    /// Starts the answer to a conversation: a request's whole way, steps 2 to 8.
    ///
    /// # Errors
    /// [`ChatError::Request`] for a conversation without messages, [`ChatError::Text`] when the
    /// template refuses it, [`ChatError::PromptTooLong`], [`ChatError::Engine`] when the engine refuses the request.
    pub fn chat(&self, request: ChatRequest) -> Result<ChatStream, ChatError> {
        let Inner { engine, text, .. } = &*self.inner;
        let ModelText { renderer, sampling, places, stop_ids, .. } = text;
        let ChatRequest { tools, single_tool_call, options, .. } = &request;

        // 2. chat template
        let prompt_text = renderer.prompt(&request)?;
        // 3. token ids
        let prompt = self.encode(&prompt_text)?;
        let prompt_tokens = prompt.len();

        // The end of the prompt says whether the answer starts inside its reasoning.
        let parser = OutputParser::new(&prompt_text, tools);
        // 4. scheduler  5. model  6. kernels  7. sampler
        let events = engine.submit(Request {
            snapshot_at: places.of(&prompt),
            sampling: sampling.resolve(&options.sampling, parser.in_reasoning()),
            stop_ids: stop_ids.clone(),
            limits: limits(options),
            logprobs: options.logprobs,
            prompt,
        })?;
        // 8. detokeniser, reasoning and tool-call parser, stop strings
        let output = Output::Parsed { parser, single_tool_call: *single_tool_call };
        Ok(ChatStream::new(events, prompt_tokens, self.decoder(output, options)))
    }

    /// Starts the continuation of a text or of token ids. No template and no parser: what the
    /// model writes is content as it comes.
    ///
    /// # Errors
    /// [`ChatError::Text`], [`ChatError::PromptTooLong`] and [`ChatError::Engine`].
    pub fn complete(&self, request: CompletionRequest) -> Result<ChatStream, ChatError> {
        let Inner { engine, text: ModelText { sampling, stop_ids, .. }, .. } = &*self.inner;
        let CompletionRequest { prompt, options } = request;
        let prompt = match prompt {
            Prompt::Text(text) => self.encode(&text)?,
            Prompt::Tokens(ids) => ids,
        };
        let prompt_tokens = prompt.len();
        let events = engine.submit(Request {
            snapshot_at: Vec::new(),
            sampling: sampling.resolve(&options.sampling, false),
            stop_ids: stop_ids.clone(),
            limits: limits(&options),
            logprobs: options.logprobs,
            prompt,
        })?;
        Ok(ChatStream::new(events, prompt_tokens, self.decoder(Output::Raw, &options)))
    }

    /// The name that clients see.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// When it was loaded, in seconds since 1970.
    pub fn loaded_unix_s(&self) -> u64 {
        self.inner.loaded_unix_s
    }

    /// Tokens that a conversation may have, prompt and answer together.
    pub fn context_tokens(&self) -> usize {
        self.inner.engine.context_tokens()
    }

    /// Whether it thinks when a request does not say.
    pub fn thinks_by_default(&self) -> bool {
        self.inner.text.thinks_by_default
    }

    /// Where sampling values come from that a request leaves out.
    pub fn sampling_defaults(&self) -> &SamplingDefaults {
        &self.inner.text.sampling
    }

    /// Tokens that end an answer.
    pub fn stop_ids(&self) -> &[u32] {
        &self.inner.text.stop_ids
    }

    /// Words to tokens and back.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.inner.text.renderer.tokenizer()
    }

    /// The engine that runs it.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Encoding takes far more memory than the text: a prompt that cannot fit is refused before.
    fn encode(&self, prompt: &str) -> Result<Vec<u32>, ChatError> {
        let context_tokens = self.context_tokens();
        let prompt_tokens_min = self.tokenizer().tokens_min(prompt.len());
        if prompt.len() > COUNTED_BYTES_MAX && prompt_tokens_min >= context_tokens {
            return Err(ChatError::PromptTooLong { prompt_tokens_min, context_tokens });
        }
        Ok(self.tokenizer().encode(prompt)?)
    }

    fn decoder(&self, output: Output, options: &GenerationOptions) -> Decoder {
        let tokenizer = self.tokenizer();
        let detokenizer = Detokenizer::new(Arc::clone(tokenizer));
        let stops = StopStrings::new(&options.stop);
        Decoder::new(Arc::clone(tokenizer), detokenizer, output, stops)
    }
}

/// A tokenizer may know fewer tokens than the model has rows for them, which are padded, never more.
fn check_vocabulary(tokenizer: &Tokenizer, shape: &Shape) -> Result<(), ChatError> {
    let (ids, rows) = (tokenizer.vocab_size(), shape.vocab);
    if ids <= rows {
        return Ok(());
    }
    Err(ChatError::BadFile {
        file: "tokenizer.json",
        problem: format!(
            "it has token ids up to {}, the model of config.json has vocab_size {rows}: they are \
             of different models, copy tokenizer.json from the publisher's repository of this one",
            ids - 1
        ),
    })
}

/// ChatML's two ends, which checkpoints of the family do not always list, and the checkpoint's own.
fn stop_ids(
    tokenizer: &Tokenizer,
    shape: &Shape,
    generation_config: &[u32],
) -> Result<Vec<u32>, ChatError> {
    let files =
        [("config.json", shape.eos.as_slice()), ("generation_config.json", generation_config)];
    for (file, ids) in files {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= shape.vocab) {
            let problem = format!(
                "eos_token_id: {id} is outside the vocabulary of {}: damaged, or of another model, \
                 fetch it again",
                shape.vocab
            );
            return Err(ChatError::BadFile { file, problem });
        }
    }
    let chat_ml = ["<|im_end|>", "<|endoftext|>"].into_iter().filter_map(|name| tokenizer.id(name));
    let all = chat_ml.chain(shape.eos.iter().chain(generation_config).copied());
    Ok(all.collect::<BTreeSet<u32>>().into_iter().collect())
}

fn limits(options: &GenerationOptions) -> Limits {
    Limits { tokens_max: options.tokens_max, deadline: options.deadline }
}

fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
