//! `calla eval perplexity`: how well the model expects a text.

use std::time::Instant;

use calla_engine::backend::Backend;
use serde::Serialize;

use super::{
    forced::{Forced, log_sum_exp},
    text,
};
use crate::{args::PerplexityArgs, error::Error, fit::Demand, model, output};

/// Tokens of a window, unless told otherwise and as far as the model holds them.
const WINDOW_DEFAULT: usize = 2048;

pub(crate) fn run(args: &PerplexityArgs, verbose: u8) -> Result<(), Error> {
    let ids = text::read(&args.text, &args.model)?;
    let (mut window, mut stride) = (0, 0);
    let mut loaded = model::load_for(&args.model, &args.backend, verbose, |shape| {
        (window, stride) = spans(args, shape.context_max)?;
        Ok(Demand { tokens: Some((window, "window")), sequences: 1, cache_bytes: 0 })
    })?;

    let start = Instant::now();
    let mut sums = Sums::default();
    windows(&ids, window, stride).try_for_each(|w| sums.add(loaded.backend.as_mut(), &ids, &w))?;
    let nll_mean = sums.nll / sums.scored as f64;
    let report = Report {
        model: args.model.name(),
        backend: loaded.backend.description(),
        tokens: ids.len(),
        scored: sums.scored,
        window,
        stride,
        nll_mean,
        perplexity: nll_mean.exp(),
        tok_s: sums.computed as f64 / start.elapsed().as_secs_f64(),
    };
    match args.output.json {
        true => output::json(&report),
        false => output::text(&report.table()),
    }
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    backend: String,
    /// Tokens of the text.
    tokens: usize,
    /// Of these, tokens that were predicted.
    scored: usize,
    window: usize,
    stride: usize,
    /// Mean of -ln p over the scored tokens.
    nll_mean: f64,
    perplexity: f64,
    /// Tokens computed a second, those of overlaps as often as they were.
    tok_s: f64,
}

impl Report {
    fn table(&self) -> String {
        format!(
            "tokens      {}\n\
             scored      {}\n\
             window      {}\n\
             stride      {}\n\
             nll_mean    {:.6}\n\
             perplexity  {:.4}\n\
             tok_s       {:.0}\n",
            self.tokens,
            self.scored,
            self.window,
            self.stride,
            self.nll_mean,
            self.perplexity,
            self.tok_s,
        )
    }
}

/// Window and stride in tokens.
fn spans(args: &PerplexityArgs, context_max: usize) -> Result<(usize, usize), Error> {
    let window = args.window.unwrap_or(WINDOW_DEFAULT.min(context_max));
    let stride = args.stride.map_or(window / 2, |stride| stride.get());
    let flag = |flag, problem| Err(Error::Flag { flag, problem });
    match () {
        () if window < 2 => flag("window", "at least 2 tokens: one to read, one to expect".into()),
        () if window > context_max => {
            flag("window", format!("{window} tokens, the model holds {context_max}"))
        }
        () if stride > window => {
            let problem = format!("{stride} tokens, more than the window's {window}, leave gaps");
            flag("stride", problem)
        }
        () => Ok((window, stride)),
    }
}

/// A window over the text: it is read from `begin` on, and the tokens from `first` to `end` are
/// scored.
#[derive(Debug, PartialEq, Eq)]
struct Window {
    begin: usize,
    first: usize,
    end: usize,
}

/// Windows that score every token once, but for the first of the text and, where windows do not
/// overlap, of each window: nothing comes before it.
fn windows(ids: &[u32], window: usize, stride: usize) -> impl Iterator<Item = Window> {
    let len = ids.len();
    let mut next = Some((0, 1));
    std::iter::from_fn(move || {
        let (begin, first) = next?;
        let end = (begin + window).min(len);
        next = (end < len).then(|| (begin + stride, end.max(begin + stride + 1)));
        Some(Window { begin, first, end })
    })
    .filter(|window| window.first < window.end)
}

#[derive(Default)]
struct Sums {
    nll: f64,
    scored: usize,
    computed: usize,
}

impl Sums {
    fn add(
        &mut self,
        backend: &mut dyn Backend,
        ids: &[u32],
        window: &Window,
    ) -> Result<(), Error> {
        let &Window { begin, first, end } = window;
        let mut forced = Forced::new(backend);
        forced.begin(end - begin)?;
        forced.skip(&ids[begin..first - 1])?;
        // What follows the token before the first scored one scores that one, and so on.
        let mut target = first;
        for chunk in ids[first - 1..end - 1].chunks(forced.chunk_tokens_max()) {
            forced.read(chunk)?;
            for index in 0..chunk.len() {
                let logits = forced.row(index);
                self.nll += log_sum_exp(logits) - f64::from(logits[ids[target] as usize]);
                target += 1;
            }
        }
        forced.end()?;
        self.scored += end - first;
        self.computed += end - 1 - begin;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(len: usize, window: usize, stride: usize) -> Vec<(usize, usize, usize)> {
        let ids = vec![0; len];
        windows(&ids, window, stride).map(|w| (w.begin, w.first, w.end)).collect()
    }

    #[test]
    fn windows_score_every_token_once() {
        assert_eq!(list(10, 4, 2), [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 10)]);
        assert_eq!(list(7, 4, 2), [(0, 1, 4), (2, 4, 6), (4, 6, 7)]);
        assert_eq!(list(3, 4, 2), [(0, 1, 3)]);
        assert_eq!(list(4, 4, 2), [(0, 1, 4)]);
        assert_eq!(list(2, 4, 2), [(0, 1, 2)]);
    }

    #[test]
    fn windows_without_overlap_leave_their_first_tokens_out() {
        assert_eq!(list(10, 4, 4), [(0, 1, 4), (4, 5, 8), (8, 9, 10)]);
        // A last window of one token scores nothing.
        assert_eq!(list(9, 4, 4), [(0, 1, 4), (4, 5, 8)]);
    }
}
