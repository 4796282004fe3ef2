//! The inner loops of the CPU backend, one table of them for each instruction set.
//!
//! Objects: [`Kernels`] is a table of functions compiled for one instruction set;
//! [`Activations`] are the prepared inputs of quantised products. Both are shared by threads: a
//! thread calls a kernel for its part of the outputs, heads or rows. The kernels know no
//! threads, layers or sequences.
//!
//! Every result has one fixed order of operations, whatever is computed beside it: any split
//! into rows, output ranges and runs of tokens that start at the same places gives the same
//! bits. Between instruction sets bits may differ.

// Loops over lanes and tiles index several arrays at once.
#![allow(clippy::needless_range_loop)]

mod activations;
mod attention;
mod delta_net;
mod elementwise;
mod matmul;
mod samples;
mod self_test;
mod simd;
mod table;

#[cfg(test)]
mod tests;

use std::{ops::Range, sync::OnceLock};

pub use activations::Activations;
pub use self_test::self_test;

use crate::{Error, model::Linear};

/// Name of the environment variable that forces an instruction set.
pub const SIMD_VARIABLE: &str = "CALLA_SIMD";

/// The kernels of one instruction set.
pub struct Kernels {
    /// `portable`, `avx2`, `avx512`, `avx512_amd` or `neon`.
    pub name: &'static str,
    detected: fn() -> bool,
    ops: table::Ops,
}

/// A run of tokens' inputs of a DeltaNet value head. A token's vectors begin `stride` floats after
/// those of the token before.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRun<'a> {
    /// Normalised and scaled queries, key_dim floats each.
    pub queries: &'a [f32],
    /// Normalised keys, key_dim floats each.
    pub keys: &'a [f32],
    /// Values, a float for each row of the state.
    pub values: &'a [f32],
    /// Floats from one token to the next.
    pub stride: usize,
    /// Width of a key.
    pub key_dim: usize,
    /// g: what remains of the old state `[tokens]`.
    pub decays: &'a [f32],
    /// β: how much of the error is written `[tokens]`.
    pub betas: &'a [f32],
}

/// A run of cached tokens and the queries that look at all of them.
#[derive(Debug, Clone, Copy)]
pub struct AttendBlock<'a> {
    /// Queries of the heads that share this KV head `[heads, head_dim]`.
    pub queries: &'a [f32],
    /// Width of a head.
    pub head_dim: usize,
    /// Factor of the scores, 1 / √head_dim.
    pub scale: f32,
    /// Cached keys `[tokens, stride]`, of which the first head_dim of each row are used.
    pub keys: Cached<'a>,
    /// Cached values `[tokens, stride]`, of which the first head_dim of each row are used.
    pub values: Cached<'a>,
    /// Elements from one token to the next.
    pub stride: usize,
    /// Tokens to attend to.
    pub tokens: usize,
    /// Keys and values that this thread reads next, laid out alike, so that they are asked for in
    /// time, if they come from memory.
    pub next: Option<[Cached<'a>; 2]>,
}

/// A part of a KV cache.
#[derive(Debug, Clone, Copy)]
pub enum Cached<'a> {
    /// Bits of IEEE half floats.
    F16(&'a [u16]),
    /// Single floats.
    F32(&'a [f32]),
}

/// Softmax in progress for some query heads; blocks of tokens are added in order.
#[derive(Debug)]
pub struct Running<'a> {
    /// Largest score so far `[heads]`; starts as -∞.
    pub max: &'a mut [f32],
    /// Sum of weights relative to it `[heads]`; starts as 0.
    pub sum: &'a mut [f32],
    /// Weighted values `[heads, head_dim]`; starts as 0.
    pub acc: &'a mut [f32],
}

impl Running<'_> {
    /// Back to no tokens.
    pub fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.acc.fill(0.0);
    }

    /// Divides by the sum of weights: `acc` then holds the attention's result.
    pub fn finish(&mut self) {
        let dim = self.acc.len() / self.sum.len();
        for (acc, sum) in self.acc.chunks_exact_mut(dim).zip(&*self.sum) {
            let factor = 1.0 / sum;
            acc.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// Whether the kernels can multiply with this matrix; to be asked once, when weights are loaded.
///
/// # Errors
/// What is unsupported, with the value.
pub fn supports(w: &Linear) -> Result<(), String> {
    if !matches!(w.bits, 4 | 8) {
        return Err(format!("{} bits an element: the cpu backend knows 4 and 8", w.bits));
    }
    if !matches!(w.group, 32 | 64 | 128) {
        return Err(format!("groups of {}: the cpu backend knows 32, 64 and 128", w.group));
    }
    if !w.inputs.is_multiple_of(64) || !w.inputs.is_multiple_of(w.group) {
        return Err(format!(
            "{} inputs in groups of {}: the cpu backend needs a multiple of 64 and of the group",
            w.inputs, w.group
        ));
    }
    for (what, bytes, expected) in [
        ("weight", w.weight.len(), w.outputs * w.row_bytes()),
        ("scales", w.scales.len(), w.outputs * w.groups() * 2),
        ("biases", w.biases.len(), w.outputs * w.groups() * 2),
    ] {
        if bytes != expected {
            return Err(format!("{what} has {bytes} bytes, expected {expected}"));
        }
    }
    Ok(())
}

impl Kernels {
    /// The fastest instruction set of this processor, or the one that `CALLA_SIMD` names.
    ///
    /// # Errors
    /// As for [`Kernels::named`], for the variable's value.
    pub fn detect() -> Result<&'static Kernels, Error> {
        static CHOICE: OnceLock<&'static Kernels> = OnceLock::new();
        if let Some(kernels) = CHOICE.get() {
            return Ok(kernels);
        }
        let kernels = match std::env::var(SIMD_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::named(&name)?,
            _ => Self::available().next().expect("portable is always available"),
        };
        Ok(CHOICE.get_or_init(|| kernels))
    }

    /// The instruction set of that name.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when it does not exist or this processor lacks it.
    pub fn named(name: &str) -> Result<&'static Kernels, Error> {
        let unavailable = |problem: String| Error::BackendUnavailable {
            backend: "cpu".into(),
            problem: format!(
                "{SIMD_VARIABLE}={name}: {problem}; this processor can run {}",
                Self::available().map(|kernels| kernels.name).collect::<Vec<_>>().join(", ")
            ),
        };
        if !["portable", "avx2", "avx512", "avx512_amd", "neon"].contains(&name) {
            return Err(unavailable("no such instruction set".into()));
        }
        Self::available()
            .find(|kernels| kernels.name == name)
            .ok_or_else(|| unavailable("the processor lacks it".into()))
    }

    /// Every instruction set that this processor has, fastest first.
    pub fn available() -> impl Iterator<Item = &'static Kernels> {
        table::ALL.iter().copied().filter(|kernels| (kernels.detected)())
    }

    /// Every instruction set that this build knows, fastest first, and whether this processor has
    /// it.
    pub fn known() -> impl Iterator<Item = (&'static str, bool)> {
        table::ALL.iter().map(|kernels| (kernels.name, (kernels.detected)()))
    }

    /// Fills row `row` of the activations with `x` `[inputs]`.
    ///
    /// # Safety
    /// No other thread reads or fills this row meanwhile.
    ///
    /// # Panics
    /// When the row does not exist or `x` has another width.
    pub unsafe fn prepare(&self, to: &Activations, row: usize, x: &[f32]) {
        assert!(row < to.rows(), "row {row} of {}", to.rows());
        assert_eq!(x.len(), to.inputs(), "width of an activation row");
        // SAFETY: the instruction set is there (no table is handed out without it); the row
        // exists, is as wide as `x`, and is this thread's by the caller's promise.
        unsafe { (self.ops.prepare)(to, row, x) }
    }

    /// Products of some prepared rows with some outputs of `w`:
    /// `y[i * stride + o] = w[o] · x[rows[i]]` for `o` in `outputs`.
    ///
    /// Threads share the work by outputs. A row may be named twice, so that the routed experts
    /// gather without copying.
    ///
    /// # Safety
    /// [`supports`] holds for `w`. Every named row is prepared, and nobody prepares any row meanwhile.
    /// `y` is writable at the places above and nobody else touches them meanwhile.
    ///
    /// # Panics
    /// When widths, outputs or rows lie outside `w` and `x`.
    pub unsafe fn matmul(
        &self,
        w: &Linear,
        x: &Activations,
        rows: &[u32],
        outputs: Range<usize>,
        y: *mut f32, // [rows, stride]
        stride: usize,
    ) {
        assert_eq!(w.inputs, x.inputs(), "width of weights and activations");
        assert!(outputs.end <= w.outputs, "outputs {outputs:?} of {}", w.outputs);
        assert!(rows.iter().all(|&row| (row as usize) < x.rows()), "a row beyond {}", x.rows());
        // SAFETY: the instruction set is there; ranges were checked; the rest is the caller's.
        unsafe { (self.ops.matmul)(w, x, rows, outputs, y, stride) }
    }

    /// Row `row` of a matrix as f32 `[inputs]`: an embedding.
    ///
    /// # Panics
    /// When [`supports`] fails for `w`, the row does not exist or `out` has another width.
    pub fn dequantize_row(&self, w: &Linear, row: usize, out: &mut [f32]) {
        assert_eq!(supports(w), Ok(()));
        assert!(row < w.outputs, "row {row} of {}", w.outputs);
        assert_eq!(out.len(), w.inputs, "width of an embedding");
        // SAFETY: the instruction set is there; the row exists and `out` is as wide.
        unsafe { (self.ops.dequantize_row)(w, row, out) }
    }

    /// `out = x / √(mean(x²) + eps) · gain`
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn rms_norm(&self, x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), gain.len(), "lengths of x and gain");
        assert_eq!(x.len(), out.len(), "lengths of x and out");
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.rms_norm)(x, gain, eps, out) }
    }

    /// `x ← x / √(Σx² + eps) · factor`
    pub fn l2_norm(&self, x: &mut [f32], eps: f32, factor: f32) {
        // SAFETY: the instruction set is there.
        unsafe { (self.ops.l2_norm)(x, eps, factor) }
    }

    /// `gate ← silu(gate) · up`
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.silu_mul)(gate, up) }
    }

    /// `x ← x · silu(gate)`
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn mul_silu(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len(), "lengths of x and gate");
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.mul_silu)(x, gate) }
    }

    /// `x ← x · sigmoid(gate)`
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn mul_sigmoid(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len(), "lengths of x and gate");
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.mul_sigmoid)(x, gate) }
    }

    /// `x ← x + y`
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths of x and y");
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.add)(x, y) }
    }

    /// `x ← x + factor · y`
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add_scaled(&self, x: &mut [f32], factor: f32, y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths of x and y");
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.add_scaled)(x, factor, y) }
    }

    /// `x ← exp(x − max x) / Σ exp(x − max x)`
    pub fn softmax(&self, x: &mut [f32]) {
        // SAFETY: the instruction set is there.
        unsafe { (self.ops.softmax)(x) }
    }

    /// One token of a depthwise causal convolution and its SiLU:
    /// `out = silu(Σ weights · inputs)` over the taps, oldest first, each a pair of slices as
    /// long as `out`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn conv_silu(&self, taps: &[(&[f32], &[f32])], out: &mut [f32]) {
        for (weights, inputs) in taps {
            assert_eq!(weights.len(), out.len(), "lengths of a tap's weights and out");
            assert_eq!(inputs.len(), out.len(), "lengths of a tap's inputs and out");
        }
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.conv_silu)(taps, out) }
    }

    /// Turns the pairs `(i, i + R/2)` of a head's first R dimensions by angles whose cosines and
    /// sines are given [R/2].
    ///
    /// # Panics
    /// When the head is shorter than R, or the angles' lengths differ.
    pub fn rope(&self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert_eq!(cos.len(), sin.len(), "lengths of cos and sin");
        assert!(head.len() >= 2 * cos.len(), "a head of {} for {} angles", head.len(), cos.len());
        // SAFETY: the instruction set is there.
        unsafe { (self.ops.rope)(&mut head[..2 * cos.len()], cos, sin) }
    }

    /// Rounds to half floats, ties to even.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn store_f16(&self, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len(), "lengths of x and out");
        // SAFETY: the instruction set is there; lengths agree.
        unsafe { (self.ops.store_f16)(x, out) }
    }

    /// A run of tokens of a value head's recurrence (Gated DeltaNet, arXiv 2412.06464, equation 10),
    /// token by token: `S ← g·S;  δ = β·(v − S·k);  S ← S + δ⊗k;  out = S·q`.
    ///
    /// `state` is `[value_dim, key_dim]`; each token's out begins `out_stride` floats after the one
    /// before and has `value_dim`. A thread may take some rows of the state, with the same rows of
    /// values and out. Any split of the tokens into runs gives the same bits.
    ///
    /// # Panics
    /// When the lengths disagree.
    pub fn delta_run(
        &self,
        run: &DeltaRun<'_>,
        state: &mut [f32],
        out: &mut [f32],
        out_stride: usize,
    ) {
        let Some(last) = run.decays.len().checked_sub(1) else { return };
        let value_dim = state.len() / run.key_dim;
        assert_eq!(run.betas.len(), run.decays.len(), "lengths of decays and betas");
        assert_eq!(state.len(), value_dim * run.key_dim, "length of the state");
        let needed = |width| last * run.stride + width;
        assert!(run.queries.len() >= needed(run.key_dim), "{} queries", run.queries.len());
        assert!(run.keys.len() >= needed(run.key_dim), "{} keys", run.keys.len());
        assert!(run.values.len() >= needed(value_dim), "{} values", run.values.len());
        assert!(out.len() >= last * out_stride + value_dim, "length of out");
        // SAFETY: the instruction set is there; lengths were checked.
        unsafe { (self.ops.delta_run)(run, state, out, out_stride) }
    }

    /// Adds a block of cached tokens to a softmax in progress. Blocks must start at fixed
    /// positions (the pages') and come in order for the same bits every time.
    ///
    /// # Panics
    /// When lengths disagree, a cache is too short, the caches differ in type, or head_dim is
    /// not a multiple of 16.
    pub fn attend(&self, block: &AttendBlock<'_>, running: &mut Running<'_>) {
        let heads = running.max.len();
        assert!(
            block.head_dim.is_multiple_of(16),
            "head_dim {} is no multiple of 16",
            block.head_dim
        );
        assert_eq!(running.sum.len(), heads, "sums of the heads");
        assert_eq!(running.acc.len(), heads * block.head_dim, "accumulators of the heads");
        assert_eq!(block.queries.len(), heads * block.head_dim, "queries of the heads");
        if block.tokens == 0 {
            return;
        }
        let needed = (block.tokens - 1) * block.stride + block.head_dim;
        assert!(block.stride >= block.head_dim, "stride {}", block.stride);
        assert!(block.keys.len() >= needed, "{} cached keys", block.keys.len());
        assert!(block.values.len() >= needed, "{} cached values", block.values.len());
        // SAFETY: the instruction set is there; lengths were checked.
        unsafe {
            match (block.keys, block.values) {
                (Cached::F16(k), Cached::F16(v)) => (self.ops.attend_f16)(block, k, v, running),
                (Cached::F32(k), Cached::F32(v)) => (self.ops.attend_f32)(block, k, v, running),
                _ => panic!("keys and values differ in type"),
            }
        }
    }
}

impl Cached<'_> {
    fn len(&self) -> usize {
        match self {
            Cached::F16(x) => x.len(),
            Cached::F32(x) => x.len(),
        }
    }

    fn as_ptr(&self) -> *const u8 {
        match self {
            Cached::F16(x) => x.as_ptr().cast(),
            Cached::F32(x) => x.as_ptr().cast(),
        }
    }
}
