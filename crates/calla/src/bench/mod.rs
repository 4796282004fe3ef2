//! `calla bench`: how fast, how near to what the memory allows, and the same tokens every time.

mod measure;
mod profile;

use std::{fmt::Write as _, time::Instant};

use serde::Serialize;

use crate::{
    args::BenchArgs,
    error::Error,
    fit::Demand,
    machine::{self, Machine},
    model, output, version,
};

use self::{
    measure::{Sample, Work},
    profile::Phases,
};

pub(crate) fn run(args: &BenchArgs, verbose: u8) -> Result<(), Error> {
    let mut contexts = Vec::new();
    let mut loaded = model::load_for(&args.model, &args.backend, verbose, |shape| {
        contexts = contexts_of(args, shape.context_max)?;
        let tokens = contexts.iter().map(|&context| measure::tokens_max(context, args.steps.get()));
        Ok(Demand {
            tokens: tokens.max().map(|most| (most, "contexts")),
            sequences: args.streams.get(),
            cache_bytes: 0,
        })
    })?;
    if args.profile {
        // Whoever cannot says so before anything is measured.
        loaded.backend.start_profile()?;
        loaded.backend.end_profile();
    }
    let start = Instant::now();
    loaded.backend.settle();
    let settle = start.elapsed();
    let machine = Machine::here(args.backend.device.options().threads);
    let read_bytes_s =
        loaded.backend.memory_bytes_s().unwrap_or_else(|| machine::read_bytes_s(machine.threads));
    let mut report = Report {
        version: version::SHORT,
        machine,
        backend: loaded.backend.description(),
        model: args.model.name(),
        streams: args.streams.get(),
        steps: args.steps.get(),
        repetitions: args.repetitions.get(),
        load_s: loaded.load.as_secs_f64(),
        settle_s: settle.as_secs_f64(),
        read_gb_s: read_bytes_s / 1e9,
        resident_anonymous_bytes: None,
        runs: Vec::new(),
    };
    let figures = loaded.checkpoint.figures();
    let mut changed = None;
    for &context in &contexts {
        let backend = loaded.backend.as_mut();
        let work = Work { context, streams: report.streams, steps: report.steps };
        let samples = measure::samples(backend, work, report.repetitions)?;
        let token_bytes = figures.decode_bytes(backend.bytes_for(context + report.steps / 2));
        let mut run = Run::new(work, &samples, token_bytes, read_bytes_s);
        if args.profile {
            run.profile = Some(measure::profile(backend, work)?);
        }
        report.runs.push(run);
        changed = changed.or(changed_digest(context, &samples));
        report.resident_anonymous_bytes = machine::resident_anonymous_bytes();
    }
    match args.output.json {
        true => output::json(&report)?,
        false => output::text(&report.table())?,
    }
    changed.map_or(Ok(()), Err)
}

/// The prompts to measure on a model that holds `context_max` tokens.
fn contexts_of(args: &BenchArgs, context_max: usize) -> Result<Vec<usize>, Error> {
    let contexts = args.contexts(context_max, measure::generated(args.steps.get()));
    if contexts.is_empty() {
        let problem = format!("the model holds {context_max} tokens: give shorter prompts");
        return Err(Error::Flag { flag: "contexts", problem });
    }
    for &context in &contexts {
        measure::check(context, args.steps.get(), context_max)?;
    }
    Ok(contexts)
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    backend: String,
    model: String,
    /// Sequences decoded together.
    streams: usize,
    steps: usize,
    repetitions: usize,
    /// From nothing to ready for the first token.
    load_s: f64,
    /// From then until the weights are in memory, which the runs wait for.
    settle_s: f64,
    /// Read bandwidth of the memory, measured before the runs with as many threads.
    read_gb_s: f64,
    /// Memory after the runs that is not a mapped file, where the system tells.
    resident_anonymous_bytes: Option<u64>,
    runs: Vec<Run>,
}

/// One context's results: medians, and the range over the repetitions.
#[derive(Debug, Serialize)]
struct Run {
    context: usize,
    prefill_tok_s: f64,
    prefill_tok_s_min: f64,
    prefill_tok_s_max: f64,
    /// Of all streams together.
    decode_tok_s: f64,
    decode_tok_s_min: f64,
    decode_tok_s_max: f64,
    /// Of each stream.
    decode_stream_tok_s: f64,
    /// Bytes that a token decoded by itself must read or write at this context.
    token_bytes: u64,
    /// Time that these bytes take at the measured bandwidth, over the time a token took; of one
    /// stream, as several share what they read.
    #[serde(skip_serializing_if = "Option::is_none")]
    floor_share: Option<f64>,
    digest: String,
    /// Of one more run.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Phases>,
}

impl Run {
    fn new(work: Work, samples: &[Sample], token_bytes: u64, read_bytes_s: f64) -> Self {
        let prefill = Spread::of(samples.iter().map(|sample| sample.prefill_tok_s));
        let decode = Spread::of(samples.iter().map(|sample| sample.decode_tok_s));
        Run {
            context: work.context,
            prefill_tok_s: prefill.median,
            prefill_tok_s_min: prefill.min,
            prefill_tok_s_max: prefill.max,
            decode_tok_s: decode.median,
            decode_tok_s_min: decode.min,
            decode_tok_s_max: decode.max,
            decode_stream_tok_s: decode.median / work.streams as f64,
            token_bytes,
            floor_share: (work.streams == 1)
                .then(|| token_bytes as f64 / read_bytes_s * decode.median),
            digest: samples[0].digest_hex(),
            profile: None,
        }
    }
}

impl Report {
    fn table(&self) -> String {
        let mut text = format!(
            "calla {}  {}\nbackend  {}\nmachine  {}\nready    {:.2} s, all in memory {:.2} s later\nread     {:.1} GB/s\n",
            self.version,
            self.model,
            self.backend,
            self.machine,
            self.load_s,
            self.settle_s,
            self.read_gb_s,
        );
        if let Some(bytes) = self.resident_anonymous_bytes {
            writeln!(text, "memory   {:.0} MB beyond the mapped weights", bytes as f64 / 1e6)
                .expect(STRING_GROWS);
        }
        // Of one stream the floor, of several what each of them gets.
        let last = if self.streams == 1 { "floor" } else { "each" };
        if self.streams > 1 {
            writeln!(text, "streams  {} decoded together", self.streams).expect(STRING_GROWS);
        }
        writeln!(
            text,
            "\n{:>8}  {:>14}  {:>17}  {:>14}  {:>17}  {:>6}  digest",
            "context", "prefill tok/s", "(min..max)", "decode tok/s", "(min..max)", last
        )
        .expect(STRING_GROWS);
        for run in &self.runs {
            let last = match run.floor_share {
                Some(share) => format!("{:.1}%", 100.0 * share),
                None => format!("{:.2}", run.decode_stream_tok_s),
            };
            writeln!(
                text,
                "{:>8}  {:>14.1}  {:>17}  {:>14.2}  {:>17}  {:>6}  {}",
                run.context,
                run.prefill_tok_s,
                format!("({:.1}..{:.1})", run.prefill_tok_s_min, run.prefill_tok_s_max),
                run.decode_tok_s,
                format!("({:.2}..{:.2})", run.decode_tok_s_min, run.decode_tok_s_max),
                last,
                run.digest,
            )
            .expect(STRING_GROWS);
        }
        for run in &self.runs {
            if let Some(Phases { prefill, decode }) = &run.profile {
                prefill.write("prefill", run.context, &mut text);
                decode.write("decode", run.context, &mut text);
            }
        }
        text
    }
}

const STRING_GROWS: &str = "writing to a String cannot fail";

struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    /// Of at least one value.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Spread { min: values[0], median, max: values[values.len() - 1] }
    }
}

/// The error for repetitions that disagree.
fn changed_digest(context: usize, samples: &[Sample]) -> Option<Error> {
    if samples.iter().all(|sample| sample.digest == samples[0].digest) {
        return None;
    }
    let digests: Vec<String> = samples.iter().map(Sample::digest_hex).collect();
    Some(Error::Digest { context, digests: digests.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0].into_iter()).median, 2.0);
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0].into_iter());
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.5, 4.0));
    }

    #[test]
    fn a_digest_that_changes_is_an_error_that_shows_all_of_them() {
        let sample = |digest| Sample { prefill_tok_s: 1.0, decode_tok_s: 1.0, digest };
        assert!(changed_digest(8, &[sample(1), sample(1)]).is_none());
        let error = changed_digest(8, &[sample(1), sample(255)]).expect("they differ").to_string();
        assert!(error.contains("0000000000000001, 00000000000000ff"), "{error}");
    }

    #[test]
    fn the_floor_share_is_the_least_time_over_the_time_taken() {
        let sample = Sample { prefill_tok_s: 1.0, decode_tok_s: 5.0, digest: 0 };
        // 2 GB a token at 20 GB/s: 0.1 s of the 0.2 s taken.
        let work = |streams| Work { context: 8, streams, steps: 1 };
        let run = Run::new(work(1), std::slice::from_ref(&sample), 2_000_000_000, 20e9);
        assert!((run.floor_share.expect("one stream") - 0.5).abs() < 1e-12);
        let run = Run::new(work(4), &[sample], 2_000_000_000, 20e9);
        assert_eq!((run.floor_share, run.decode_stream_tok_s), (None, 1.25));
    }
}
