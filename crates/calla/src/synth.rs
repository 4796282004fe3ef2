//! `calla synth`.

use std::{num::NonZeroUsize, time::Instant};

use calla_engine::checkpoint::synth;
use serde_json::json;

use crate::{args::SynthArgs, error::Error, output};

pub(crate) fn run(args: &SynthArgs) -> Result<(), Error> {
    let options = synth::Options {
        preset: args.preset(),
        layers: args.layers.map(NonZeroUsize::get),
        seed: args.seed,
        replace: args.force,
    };
    let start = Instant::now();
    let summary = synth::write(&args.out, &options)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.output.json {
        return output::json(&json!({
            "out": args.out,
            "shape": options.preset.name(),
            "seed": options.seed,
            "size_bytes": summary.size_bytes,
            "tensors": summary.tensors,
            "shards": summary.shards,
            "seconds": seconds,
        }));
    }
    let synth::Summary { tensors, size_bytes, shards } = summary;
    output::text(&output::checkpoint(&args.out, tensors, size_bytes, shards, seconds))
}
