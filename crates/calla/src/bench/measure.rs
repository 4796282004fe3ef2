//! One timed run: prefill made-up prompts, decode them together greedily, digest the tokens.
//!
//! The backend is driven directly, so that nothing but the model is timed.

use std::time::Instant;

use calla_engine::{
    backend::{Backend, Batch, Logits, Row, Scores, SequenceId, Wants, profile::Profile},
    sampler::largest,
};

use super::profile::{Phase, Phases};
use crate::error::Error;

/// Tokens in a digest, the one that ends the prefill included.
const DIGEST_TOKENS: usize = 64;
/// Decode steps of a warm-up.
const WARM_UP_STEPS: usize = 2;

/// A greedy next token, and nothing of the logits beside it.
const TOKEN: Wants = Wants::Candidates { temperature: 0.0 };

/// What a run does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Tokens of a prompt.
    pub(super) context: usize,
    /// Sequences, each with a prompt of its own.
    pub(super) streams: usize,
    /// Decode steps, of all sequences together.
    pub(super) steps: usize,
}

/// What one run measured.
pub(super) struct Sample {
    /// Prompt tokens over the time to the first generated token of the last stream.
    pub(super) prefill_tok_s: f64,
    /// Decoded tokens of all streams over the time they took.
    pub(super) decode_tok_s: f64,
    /// FNV-1a of the first 64 generated ids of each stream, each as four bytes, little endian.
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
pub(super) fn samples(
    backend: &mut dyn Backend,
    work: Work,
    repetitions: usize,
) -> Result<Vec<Sample>, Error> {
    let mut logits = Logits::new();
    let mut streams = Streams::open(backend, work)?;
    streams.prefill(backend, &mut logits)?;
    for _ in 0..WARM_UP_STEPS.min(work.steps) {
        streams.step(backend, &mut logits)?;
    }
    streams.close(backend)?;
    (0..repetitions).map(|_| sample(backend, work, &mut logits)).collect()
}

fn sample(backend: &mut dyn Backend, work: Work, logits: &mut Logits) -> Result<Sample, Error> {
    let mut streams = Streams::open(backend, work)?;

    let start = Instant::now();
    streams.prefill(backend, logits)?;
    let prefill_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    for _ in 0..work.steps {
        streams.step(backend, logits)?;
    }
    let decode_s = start.elapsed().as_secs_f64();

    // The digest is over as many tokens however few steps were timed.
    for _ in work.steps..DIGEST_TOKENS - 1 {
        streams.step(backend, logits)?;
    }
    streams.close(backend)?;
    Ok(Sample {
        prefill_tok_s: (work.streams * work.context) as f64 / prefill_s,
        decode_tok_s: (work.streams * work.steps) as f64 / decode_s,
        digest: digest(streams.all.iter().flat_map(|stream| &stream.generated[..DIGEST_TOKENS])),
    })
}

/// Where the time of one more run goes.
pub(super) fn profile(backend: &mut dyn Backend, work: Work) -> Result<Phases, Error> {
    let mut logits = Logits::new();
    let mut streams = Streams::open(backend, work)?;
    let prefill = profiled(backend, |backend| streams.prefill(backend, &mut logits))?;
    let decode = profiled(backend, |backend| {
        (0..work.steps).try_for_each(|_| streams.step(backend, &mut logits))
    })?;
    streams.close(backend)?;
    Ok(Phases {
        prefill: Phase::new(&prefill, work.streams * work.context),
        decode: Phase::new(&decode, work.streams * work.steps),
    })
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

/// The sequences of a run.
struct Streams {
    all: Vec<Stream>,
}

struct Stream {
    sequence: SequenceId,
    prompt: Vec<u32>,
    generated: Vec<u32>,
}

impl Stream {
    /// Its last token, for the next.
    fn last(&self) -> Row<'_> {
        let last = self.generated.len() - 1;
        Row { sequence: self.sequence, tokens: &self.generated[last..], wants: TOKEN }
    }
}

impl Streams {
    fn open(backend: &mut dyn Backend, work: Work) -> Result<Self, Error> {
        let capacity = tokens_max(work.context, work.steps);
        let vocab = backend.shape().vocab;
        let stream = |index: usize| {
            let sequence = backend.open(capacity)?;
            let prompt = prompt(index, work.context, vocab);
            Ok(Stream { sequence, prompt, generated: Vec::with_capacity(capacity) })
        };
        Ok(Self { all: (0..work.streams).map(stream).collect::<Result<_, Error>>()? })
    }

    fn close(&self, backend: &mut dyn Backend) -> Result<(), Error> {
        self.all.iter().try_for_each(|stream| Ok(backend.close(stream.sequence)?))
    }

    /// One prompt after the other, up to its first generated token.
    fn prefill(&mut self, backend: &mut dyn Backend, logits: &mut Logits) -> Result<(), Error> {
        for stream in &mut self.all {
            let mut chunks = stream.prompt.chunks(backend.batch_tokens_max()).peekable();
            while let Some(tokens) = chunks.next() {
                let wants = if chunks.peek().is_some() { Wants::Nothing } else { TOKEN };
                let row = Row { sequence: stream.sequence, tokens, wants };
                backend.forward(&Batch { rows: &[row] }, logits)?;
            }
            stream.generated.push(top(logits, 0, stream.prompt.len() - 1)?);
        }
        Ok(())
    }

    /// The next token of each, in one pass.
    fn step(&mut self, backend: &mut dyn Backend, logits: &mut Logits) -> Result<(), Error> {
        let rows: Vec<Row> = self.all.iter().map(Stream::last).collect();
        backend.forward(&Batch { rows: &rows }, logits)?;
        for (index, stream) in self.all.iter_mut().enumerate() {
            let position = backend.len(stream.sequence)? - 1;
            stream.generated.push(top(logits, index, position)?);
        }
        Ok(())
    }
}

/// Token `i` is ((i · 2654435761) mod 2^32) mod vocab: spread over the whole vocabulary, so that
/// experts are chosen as by real text. Each stream goes on where the one before it ends.
fn prompt(stream: usize, len: usize, vocab: usize) -> Vec<u32> {
    let start = stream * len;
    (start..start + len).map(|i| (i as u32).wrapping_mul(2_654_435_761) % vocab as u32).collect()
}

/// The most probable token of a row, the lowest of equals.
fn top(logits: &Logits, row: usize, position: usize) -> Result<u32, Error> {
    let best = match logits.scores(row) {
        Scores::Candidates(candidates) => {
            let best = candidates.best().first().filter(|_| candidates.is_finite());
            best.map(|candidate| candidate.id)
        }
        Scores::Logits(row) => largest(row),
    };
    best.ok_or(Error::NotANumber { position })
}

/// FNV-1a, 64 bits.
fn digest<'a>(ids: impl Iterator<Item = &'a u32>) -> u64 {
    ids.flat_map(|id| id.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_is_that_of_the_contract() {
        // 2654435761 mod 248320 and 2 · 2654435761 mod 2^32 mod 248320
        assert_eq!(prompt(0, 3, 248_320), [0, 143_281, 1_013_904_226 % 248_320]);
        assert_eq!(prompt(1, 2, 248_320)[0], prompt(0, 3, 248_320)[2]);
        assert!(prompt(7, 5000, 320).iter().all(|&token| token < 320));
    }

    #[test]
    fn the_digest_is_fnv_1a_of_little_endian_bytes() {
        // From the test vectors that the hash's authors publish.
        assert_eq!(digest([u32::from_le_bytes(*b"foob")].iter()), 0xdd12_0e79_0c25_12af);
        assert_eq!(digest([].iter()), 0xcbf2_9ce4_8422_2325);
    }
}
