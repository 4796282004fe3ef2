//! The text that a model is judged on.

use std::path::Path;

use calla_chat::Renderer;

use super::exam;
use crate::{args::ModelArgs, error::Error, input, model};

/// The tokens of a file, or of stdin for `-`: at least two.
pub(super) fn read(path: &Path, model: &ModelArgs) -> Result<Vec<u32>, Error> {
    let piped = path == Path::new("-");
    let text = if piped { input::stdin()? } else { input::file(path)? };
    let refuse = |problem: String| match piped {
        true => Error::Input { input: "stdin", problem },
        false => Error::File { path: path.to_owned(), problem },
    };
    if text.is_empty() {
        return Err(refuse("holds no text".into()));
    }
    let ids = model::tokenizer(&model.source()?)?.encode(&text)?;
    if ids.len() < 2 {
        return Err(refuse(format!("is {} token(s): at least 2 are needed", ids.len())));
    }
    Ok(ids)
}

/// The tokens of each item of the embedded exam: of all, or of so many a skill.
pub(super) fn exam(model: &ModelArgs, per_skill: Option<usize>) -> Result<Vec<Vec<u32>>, Error> {
    let renderer = Renderer::load(&model.source()?)?;
    let texts = exam::texts(&renderer, per_skill)?;
    texts.iter().map(|text| Ok(renderer.tokenizer().encode(text)?)).collect()
}
