//! Tensors of an unquantised checkpoint by the one name that all its naming schemes share.

use std::{collections::BTreeMap, path::PathBuf};

use super::LeftOut;
use crate::{
    Error,
    checkpoint::{
        Source,
        safetensors::{Tensor, Tensors},
        weights::UNUSED_PREFIXES,
    },
};

/// Prefixes of the schemes: the published multimodal class, MLX's, and the text-only class.
const SCHEMES: [(&str, &str); 3] =
    [("model.language_model.", "model."), ("language_model.", ""), ("", "")];

/// The tensors that generate text, each under its text-only name as `model.norm.weight`.
pub(super) struct Named {
    folder: PathBuf,
    by_name: BTreeMap<String, (String, Tensor)>, // with its name in the file
    left_out: LeftOut,
}

impl Named {
    /// Sorts out what generates no text.
    pub(super) fn new(source: &Source, tensors: Tensors) -> Result<Self, Error> {
        let mut named =
            Named { folder: source.path(), by_name: BTreeMap::new(), left_out: LeftOut::default() };
        for (full, tensor) in tensors.iter() {
            match UNUSED_PREFIXES.iter().find(|prefix| full.starts_with(**prefix)) {
                Some(prefix) if prefix.contains("mtp.") => named.left_out.draft += 1,
                Some(_) => named.left_out.vision += 1,
                None => named.insert(full, tensor)?,
            }
        }
        Ok(named)
    }

    fn insert(&mut self, full: &str, tensor: &Tensor) -> Result<(), Error> {
        let (prefix, replacement) =
            SCHEMES.iter().find(|(prefix, _)| full.starts_with(prefix)).expect("the last has none");
        let name = format!("{replacement}{}", &full[prefix.len()..]);
        let held = self.by_name.insert(name, (full.to_owned(), tensor.clone()));
        match held {
            None => Ok(()),
            Some((other, _)) => Err(Error::Tensor {
                path: tensor.path.clone(),
                tensor: full.to_owned(),
                problem: format!("is `{other}` once more, under another naming scheme"),
            }),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Removes a tensor of this shape and of a float type.
    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, Error> {
        let Some((full, tensor)) = self.by_name.remove(name) else {
            return Err(self.missing(name));
        };
        let wrong = |problem: String| Error::Tensor {
            path: tensor.path.clone(),
            tensor: full.clone(),
            problem,
        };
        if tensor.shape != shape {
            return Err(wrong(format!("shape {:?}, where {shape:?} is expected", tensor.shape)));
        }
        if !tensor.dtype.is_float() {
            let problem = format!("{:?}, where BF16, F16 or F32 is expected", tensor.dtype);
            return Err(wrong(problem));
        }
        Ok(tensor)
    }

    fn missing(&self, name: &str) -> Error {
        Error::Tensor {
            path: self.folder.clone(),
            tensor: self.full_name(name),
            problem: "missing".into(),
        }
    }

    /// The name that a tensor would have in this checkpoint's scheme.
    fn full_name(&self, name: &str) -> String {
        let scheme = self.by_name.values().find_map(|(full, _)| {
            SCHEMES.iter().find(|(prefix, _)| !prefix.is_empty() && full.starts_with(prefix))
        });
        match scheme {
            Some((prefix, replacement)) if name.starts_with(replacement) => {
                format!("{prefix}{}", &name[replacement.len()..])
            }
            _ => name.to_owned(),
        }
    }

    /// Whether norms are stored whole: see [`crate::checkpoint`]'s reading of converted weights.
    pub(super) fn is_converted(&self) -> bool {
        let conv = self.by_name.iter().find(|(name, _)| name.ends_with(".conv1d.weight"));
        conv.is_none_or(|(_, (_, tensor))| tensor.shape.last() == Some(&1))
    }

    /// Leaves out the head of a tied model, which may be there once more.
    pub(super) fn drop_tied_head(&mut self) {
        if self.by_name.remove("lm_head.weight").is_some() {
            self.left_out.tied_head = 1;
        }
    }

    /// What was left out; an error when tensors remain that no part of the model took.
    pub(super) fn finish(self) -> Result<LeftOut, Error> {
        let count = self.by_name.len();
        match self.by_name.into_values().next() {
            None => Ok(self.left_out),
            Some((full, tensor)) => Err(Error::Tensor {
                path: tensor.path,
                tensor: full,
                problem: format!(
                    "no part of this model ({count} such tensors): config.json and the weights \
                     disagree"
                ),
            }),
        }
    }
}
