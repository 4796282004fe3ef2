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
    output::text(&format!(
        "{}: {} tensors, {:.2} GB in {} file{}, {seconds:.1} s\n",
        args.out.display(),
        summary.tensors,
        summary.size_bytes as f64 / 1e9,
        summary.shards,
        if summary.shards == 1 { "" } else { "s" },
    ))
}
