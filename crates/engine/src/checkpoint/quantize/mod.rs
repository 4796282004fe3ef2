//! Unquantised checkpoints of the family (BF16, F16 or F32) to MLX's affine format, bit for bit as
//! `mlx_lm.convert -q --dtype bfloat16` writes them.
//!
//! `plan` finds the source's tensors under any of its naming schemes and says what becomes of each,
//! `affine` is the arithmetic, `metadata` makes config.json, and the checkpoint writer does the
//! files. Weights stream from the mapped source a few megabytes at a time.

mod affine;
mod metadata;
mod names;
mod piece;
mod plan;

use std::path::Path;

use super::{
    Source, config, folder,
    safetensors::Tensors,
    writer::{self, Draft},
};
use crate::Error;

/// How to quantise, and what to do with a checkpoint that is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Bits of an element: 4 or 8. The router and the shared expert's gate always take 8.
    pub bits: usize,
    /// Elements that share a scale and a bias: 32, 64 or 128. The router's and the shared expert's
    /// gate always have 64.
    pub group: usize,
    /// Keep the gains of norms in float32 where mlx-lm rounds 1 + weight to bfloat16. The
    /// checkpoint then is not bit for bit mlx-lm's own.
    pub keep_norm_float32: bool,
    /// Replace a checkpoint that is there already. Any other file in the folder is an error.
    pub replace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { bits: 4, group: 64, keep_norm_float32: false, replace: false }
    }
}

/// How far a conversion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors written.
    pub done_bytes: u64,
    /// Bytes of tensors to write.
    pub total_bytes: u64,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of all tensors.
    pub size_bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of safetensors files.
    pub shards: usize,
    /// Tensors of the source that generate no text and were left out.
    pub left_out: LeftOut,
}

/// Tensors of a source that a conversion leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// The vision tower's.
    pub vision: usize,
    /// Those of multi-token prediction, which drafts tokens.
    pub draft: usize,
    /// The head of a model that uses its embedding matrix instead.
    pub tied_head: usize,
}

/// Quantises the checkpoint `source` to the folder `out`, which appears only when it is complete.
///
/// `progress` is called on this thread as tensors are written.
///
/// # Errors
/// [`Error::Config`] for options out of range and for a source that is quantised or not of the
/// family, [`Error::Tensor`] for one that is missing, unknown, misshapen or not finite,
/// [`Error::Format`] when `out` exists and may not be replaced, [`Error::Io`].
pub fn quantize(
    source: &Source,
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, Error> {
    check_options(out, options)?;
    refuse_own_source(source, out)?;
    let (shape, fields) = config::read_unquantised(source)?;
    let config = metadata::config(source, fields, &shape, options)?;
    let small_files = metadata::small_files(source)?;
    let plan = plan::plan(source, Tensors::open(source)?, &shape, options)?;
    let draft = Draft { config: &config, small_files: &small_files, pieces: &plan.pieces };
    let written = writer::write(out, options.replace, &draft, &mut |done_bytes, total_bytes| {
        progress(Progress { done_bytes, total_bytes });
    })?;
    Ok(Summary {
        size_bytes: written.size_bytes,
        tensors: written.tensors,
        shards: written.shards,
        left_out: plan.left_out,
    })
}

fn check_options(out: &Path, options: &Options) -> Result<(), Error> {
    let refuse = |field: &str, problem: String| {
        let path = out.join("config.json");
        Err(Error::Config { path, field: format!("quantization.{field}"), problem })
    };
    if ![4, 8].contains(&options.bits) {
        return refuse("bits", format!("{} is not supported, only 4 and 8", options.bits));
    }
    if ![32, 64, 128].contains(&options.group) {
        let problem = format!("{} is not supported, only 32, 64 and 128", options.group);
        return refuse("group_size", problem);
    }
    Ok(())
}

/// A folder that replaced itself would lose its weights while they are read.
fn refuse_own_source(source: &Source, out: &Path) -> Result<(), Error> {
    let partial = folder::partial_of(out)?;
    for made in [out, &partial] {
        if let (Ok(from), Ok(to)) = (source.path().canonicalize(), made.canonicalize())
            && from == to
        {
            let problem = "is the source, which is not replaced: choose another folder".into();
            return Err(Error::Format { path: made.to_owned(), problem });
        }
    }
    Ok(())
}
