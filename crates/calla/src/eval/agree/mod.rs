//! `calla eval agree`: two sets of logits for the same tokens, position by position.

mod golden;
mod sums;

use std::path::Path;

use calla_engine::backend::{Backend, select};

use self::{
    golden::{Golden, GoldenReader},
    sums::{Agreement, Sums},
};
use super::{forced::Forced, text};
use crate::{
    args::{AgreeArgs, BackendChoice},
    error::Error,
    fit::Demand,
    model, output,
};

/// Tokens of a sequence, unless told otherwise and as far as the model holds them.
const WINDOW_DEFAULT: usize = 2048;

pub(crate) fn run(args: &AgreeArgs, verbose: u8) -> Result<(), Error> {
    let agreement = match (&args.against, &args.with) {
        (Some(path), _) => against(args, path, verbose)?,
        (None, with) => {
            let other = with.as_ref().expect("the parser asks for --against or --with");
            with_backend(args, other, verbose)?
        }
    };
    match args.output.json {
        true => output::json(&agreement),
        false => output::text(&agreement.table()),
    }
}

/// Against the logits of a file.
fn against(args: &AgreeArgs, path: &Path, verbose: u8) -> Result<Agreement, Error> {
    let golden = Golden::open(path)?;
    let mut loaded = model::load(&args.model, &args.backend, verbose)?;
    golden.check(loaded.backend.shape())?;
    let mut theirs = Theirs::File(golden.reader());
    compare(loaded.backend.as_mut(), &mut theirs, golden.sequences())
}

/// Against another backend on a text.
fn with_backend(args: &AgreeArgs, other: &BackendChoice, verbose: u8) -> Result<Agreement, Error> {
    let texts = match &args.text {
        Some(path) => vec![text::read(path, &args.model)?],
        None => text::exam(&args.model, args.per_skill.map(|count| count.get()))?,
    };
    let mut window = 0;
    let loaded = model::load_for(&args.model, &args.backend, verbose, |shape| {
        window = tokens_of_sequence(args, shape.context_max)?;
        Ok(Demand { tokens: Some((window, "window")), sequences: 1, cache_bytes: 0 })
    })?;
    let model::Loaded { checkpoint, mut backend, .. } = loaded;
    let options = other.options(&args.backend.device);
    let name = Some(other.backend.as_str());
    let mut other = select::select(name, &checkpoint.shape, &checkpoint.weights, &options)?;
    output::note(verbose, &format!("compared with {}", other.description()));
    let mut theirs = Theirs::Backend(Forced::new(other.as_mut()));
    let sequences = texts.iter().flat_map(|ids| ids.chunks(window));
    compare(backend.as_mut(), &mut theirs, sequences)
}

fn tokens_of_sequence(args: &AgreeArgs, context_max: usize) -> Result<usize, Error> {
    let window = args.window.map_or(WINDOW_DEFAULT.min(context_max), |window| window.get());
    if window > context_max {
        let problem = format!("{window} tokens, the model holds {context_max}");
        return Err(Error::Flag { flag: "window", problem });
    }
    Ok(window)
}

/// Feeds every sequence in chunks and compares every position.
fn compare<'a>(
    ours: &mut dyn Backend,
    theirs: &mut Theirs<'_>,
    sequences: impl Iterator<Item = &'a [u32]>,
) -> Result<Agreement, Error> {
    let mut ours = Forced::new(ours);
    let mut sums = Sums::default();
    for ids in sequences {
        ours.begin(ids.len())?;
        theirs.begin(ids.len())?;
        let mut position = 0;
        for chunk in ids.chunks(ours.chunk_tokens_max().min(theirs.chunk_tokens_max())) {
            ours.read(chunk)?;
            theirs.read(chunk)?;
            for index in 0..chunk.len() {
                position += 1;
                sums.add(ours.row(index), theirs.row(index), ids.get(position).copied());
            }
        }
    }
    ours.end()?;
    theirs.end()?;
    Ok(sums.agreement())
}

/// What is compared with. The two read alike.
enum Theirs<'a> {
    File(GoldenReader<'a>),
    Backend(Forced<'a>),
}

impl Theirs<'_> {
    fn chunk_tokens_max(&self) -> usize {
        match self {
            Theirs::File(_) => usize::MAX,
            Theirs::Backend(forced) => forced.chunk_tokens_max(),
        }
    }

    fn begin(&mut self, tokens: usize) -> Result<(), Error> {
        match self {
            // Its sequences lie one behind the other.
            Theirs::File(_) => Ok(()),
            Theirs::Backend(forced) => forced.begin(tokens),
        }
    }

    fn read(&mut self, tokens: &[u32]) -> Result<(), Error> {
        match self {
            Theirs::File(reader) => reader.read(tokens.len()),
            Theirs::Backend(forced) => forced.read(tokens),
        }
    }

    fn row(&self, index: usize) -> &[f32] {
        match self {
            Theirs::File(reader) => reader.row(index),
            Theirs::Backend(forced) => forced.row(index),
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        match self {
            Theirs::File(_) => Ok(()),
            Theirs::Backend(forced) => forced.end(),
        }
    }
}
