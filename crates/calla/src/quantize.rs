//! `calla quantize`.

use std::time::{Duration, Instant};

use calla_engine::checkpoint::{
    Source,
    quantize::{LeftOut, Options, Progress, Summary, quantize},
};
use serde_json::json;

use crate::{args::QuantizeArgs, error::Error, model, output};

pub(crate) fn run(args: &QuantizeArgs, verbose: u8) -> Result<(), Error> {
    let options = Options {
        bits: args.bits,
        group: args.group,
        keep_norm_float32: args.keep_norm_float32,
        replace: args.force,
    };
    let start = Instant::now();
    let mut reporter = Reporter { start, last: start, verbose };
    let source = Source::folder(model::folder(&args.source)?);
    let summary = quantize(&source, &args.out, &options, &mut |p| reporter.tell(p))?;
    let seconds = start.elapsed().as_secs_f64();
    let left_out = summary.left_out;
    if args.output.json {
        return output::json(&json!({
            "source": args.source,
            "out": args.out,
            "bits": options.bits,
            "group": options.group,
            "keep_norm_float32": options.keep_norm_float32,
            "size_bytes": summary.size_bytes,
            "tensors": summary.tensors,
            "shards": summary.shards,
            "left_out": {
                "vision": left_out.vision,
                "draft": left_out.draft,
                "tied_head": left_out.tied_head,
            },
            "seconds": seconds,
        }));
    }
    let Summary { tensors, size_bytes, shards, .. } = summary;
    let line = output::checkpoint(&args.out, tensors, size_bytes, shards, seconds);
    output::text(&(line + &left_out_note(left_out)))
}

/// A line on the tensors that were left out; nothing when there were none.
fn left_out_note(left_out: LeftOut) -> String {
    let parts: Vec<String> = [
        (left_out.vision, "for vision"),
        (left_out.draft, "for drafting"),
        (left_out.tied_head, "of a head that is the embedding"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("left out: {}\n", parts.join(", ")),
    }
}

/// Says every few seconds how far the conversion is.
struct Reporter {
    start: Instant,
    last: Instant,
    verbose: u8,
}

impl Reporter {
    fn tell(&mut self, progress: Progress) {
        if self.last.elapsed() < Duration::from_secs(2) {
            return;
        }
        self.last = Instant::now();
        let share = progress.done_bytes as f64 / progress.total_bytes as f64;
        let left = self.start.elapsed().as_secs_f64() * (1.0 / share - 1.0);
        let line = format!(
            "{} of {} written, about {left:.0} s left",
            output::size(progress.done_bytes),
            output::size(progress.total_bytes),
        );
        output::note(self.verbose, &line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_one_line_or_none() {
        assert_eq!(left_out_note(LeftOut::default()), "");
        let left_out = LeftOut { vision: 3, draft: 0, tied_head: 1 };
        let note = "left out: 3 for vision, 1 of a head that is the embedding\n";
        assert_eq!(left_out_note(left_out), note);
    }
}
