//! A model for tests that answers known questions word for word: everything is real but the
//! weights. Used by the API tests and by the `scripted` example; no product code sees it.

pub(crate) mod backend;
mod script;
mod tokenizer;

use calla_chat::{Model, ModelText, SamplingOverrides};
use calla_engine::{Engine, EngineConfig, backend::Backend, checkpoint::Source};

pub(crate) use backend::Pace;
use backend::ScriptedBackend;
use script::Script;
pub(crate) use script::standard_script;

/// The template of the model that ships with the project.
const TEMPLATE: &[u8] = include_bytes!("../../../../../models/seedling/chat_template.jinja");

/// A model that answers as `script` says.
pub(crate) fn scripted_model(script: &Script, pace: Pace, engine: EngineConfig) -> Model {
    let tokenizer_json = tokenizer::json();
    let tokenizer = calla_text::Tokenizer::from_bytes(&tokenizer_json).expect("it is well-formed");
    let backend = ScriptedBackend::new(script, &tokenizer, pace);
    let shape = backend.shape().clone();
    let engine = Engine::start(Box::new(backend), engine).expect("the engine starts");
    let text = ModelText::load(&source(tokenizer_json), &shape, SamplingOverrides::default());
    Model::new("scripted".to_owned(), text.expect("good files"), engine)
}

/// A checkpoint that holds what text needs. It lives as long as the process, as an embedded one
/// does.
fn source(tokenizer_json: Vec<u8>) -> Source {
    let files: Vec<(&'static str, &'static [u8])> =
        vec![("tokenizer.json", tokenizer_json.leak()), ("chat_template.jinja", TEMPLATE)];
    Source::embedded(files.leak())
}
