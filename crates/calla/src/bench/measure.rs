//! One timed run: prefill a made-up prompt, decode greedily, digest the tokens.
//!
//! The backend is driven directly, so that nothing but the model is timed.

use std::time::Instant;

use calla_engine::backend::{Backend, Batch, Logits, Row, SequenceId, Wants, profile::Profile};

use super::profile::{Phase, Phases};
use crate::error::Error;

/// Tokens in a digest, the one that ends the prefill included.
const DIGEST_TOKENS: usize = 64;
/// Decode steps of a warm-up.
const WARM_UP_STEPS: usize = 2;

/// What one run measured.
pub(super) struct Sample {
    /// Prompt tokens over the time to the logits of the first generated token.
    pub(super) prefill_tok_s: f64,
    /// Steps over the time they took.
    pub(super) decode_tok_s: f64,
    /// FNV-1a of the first 64 generated ids, each as four bytes, little endian.
    pub(super) digest: u64,
}

impl Sample {
    pub(super) fn digest_hex(&self) -> String {
        format!("{:016x}", self.digest)
    }
}

/// Whether prompt and answer fit in a model that holds `context_max` tokens.
pub(super) fn check(context: usize, steps: usize, context_max: usize) -> Result<(), Error> {
    if tokens_max(context, steps) <= context_max {
        return Ok(());
    }
    let problem = format!(
        "{context} tokens and {} generated ones are more than the model's {context_max}",
        generated(steps)
    );
    Err(Error::Flag { flag: "contexts", problem })
}

/// Tokens that a run feeds back after the prompt.
pub(super) fn generated(steps: usize) -> usize {
    steps.max(DIGEST_TOKENS - 1)
}

/// Warms up with the same shape, then runs as often as asked.
pub(super) fn context(
    backend: &mut dyn Backend,
    context: usize,
    steps: usize,
    repetitions: usize,
) -> Result<Vec<Sample>, Error> {
    let prompt = prompt(context, backend.shape().vocab);
    let mut logits = Logits::new();
    let capacity = tokens_max(context, steps);
    let sequence = backend.open(capacity)?;
    let mut token = prefill(backend, sequence, &prompt, &mut logits)?;
    for _ in 0..WARM_UP_STEPS.min(steps) {
        token = step(backend, sequence, token, &mut logits)?;
    }
    backend.close(sequence)?;
    (0..repetitions).map(|_| sample(backend, &prompt, steps, capacity, &mut logits)).collect()
}

fn sample(
    backend: &mut dyn Backend,
    prompt: &[u32],
    steps: usize,
    capacity: usize,
    logits: &mut Logits,
) -> Result<Sample, Error> {
    let sequence = backend.open(capacity)?;
    let mut generated = Vec::with_capacity(capacity - prompt.len());

    let start = Instant::now();
    generated.push(prefill(backend, sequence, prompt, logits)?);
    let prefill_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    for i in 0..steps {
        generated.push(step(backend, sequence, generated[i], logits)?);
    }
    let decode_s = start.elapsed().as_secs_f64();

    // The digest is over as many tokens however few steps were timed.
    for i in steps..DIGEST_TOKENS - 1 {
        generated.push(step(backend, sequence, generated[i], logits)?);
    }
    backend.close(sequence)?;
    Ok(Sample {
        prefill_tok_s: prompt.len() as f64 / prefill_s,
        decode_tok_s: steps as f64 / decode_s,
        digest: digest(&generated[..DIGEST_TOKENS]),
    })
}

/// Where the time of one more run goes.
pub(super) fn profile(
    backend: &mut dyn Backend,
    context: usize,
    steps: usize,
) -> Result<Phases, Error> {
    let prompt = prompt(context, backend.shape().vocab);
    let mut logits = Logits::new();
    let sequence = backend.open(tokens_max(context, steps))?;
    let mut token = 0;
    let prefill = profiled(backend, |backend| {
        token = prefill(backend, sequence, &prompt, &mut logits)?;
        Ok(())
    })?;
    let decode = profiled(backend, |backend| {
        for _ in 0..steps {
            token = step(backend, sequence, token, &mut logits)?;
        }
        Ok(())
    })?;
    backend.close(sequence)?;
    Ok(Phases { prefill: Phase::new(&prefill, context), decode: Phase::new(&decode, steps) })
}

fn profiled(
    backend: &mut dyn Backend,
    run: impl FnOnce(&mut dyn Backend) -> Result<(), Error>,
) -> Result<Profile, Error> {
    backend.start_profile()?;
    run(backend)?;
    Ok(backend.end_profile().expect("it was started"))
}

/// Tokens of a sequence at the end of a run.
pub(super) fn tokens_max(context: usize, steps: usize) -> usize {
    context.saturating_add(generated(steps))
}

/// Token `i` is ((i · 2654435761) mod 2^32) mod vocab: spread over the whole vocabulary, so that
/// experts are chosen as by real text.
fn prompt(len: usize, vocab: usize) -> Vec<u32> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761) % vocab as u32).collect()
}

/// The first generated token.
fn prefill(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    prompt: &[u32],
    logits: &mut Logits,
) -> Result<u32, Error> {
    let mut chunks = prompt.chunks(backend.batch_tokens_max()).peekable();
    while let Some(tokens) = chunks.next() {
        let wants = if chunks.peek().is_some() { Wants::Nothing } else { Wants::Last };
        backend.forward(&Batch { rows: &[Row { sequence, tokens, wants }] }, logits)?;
    }
    top(logits, prompt.len() - 1)
}

/// The token after `token`.
fn step(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    token: u32,
    logits: &mut Logits,
) -> Result<u32, Error> {
    let row = Row { sequence, tokens: &[token], wants: Wants::Last };
    backend.forward(&Batch { rows: &[row] }, logits)?;
    top(logits, backend.len(sequence)? - 1)
}

/// The most probable token, the lowest of equals.
fn top(logits: &Logits, position: usize) -> Result<u32, Error> {
    let row = logits.row(0);
    let max =
        row.iter().fold(f32::NEG_INFINITY, |max, &value| if value > max { value } else { max });
    let best = row.iter().position(|&value| value == max);
    // No number at all: the maximum never left its start.
    let best = best.filter(|_| max > f32::NEG_INFINITY).ok_or(Error::NotANumber { position })?;
    Ok(best as u32)
}

/// FNV-1a, 64 bits.
fn digest(ids: &[u32]) -> u64 {
    ids.iter().flat_map(|id| id.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_is_that_of_the_contract() {
        // 2654435761 mod 248320 and 2 · 2654435761 mod 2^32 mod 248320
        assert_eq!(prompt(3, 248_320), [0, 143_281, 1_013_904_226 % 248_320]);
        assert!(prompt(5000, 320).iter().all(|&token| token < 320));
    }

    #[test]
    fn the_digest_is_fnv_1a_of_little_endian_bytes() {
        // From the test vectors that the hash's authors publish.
        assert_eq!(digest(&[u32::from_le_bytes(*b"foob")]), 0xdd12_0e79_0c25_12af);
        assert_eq!(digest(&[]), 0xcbf2_9ce4_8422_2325);
    }
}
