//! `calla eval`: one module a way to judge.

mod agree;
mod exam;
mod forced;
mod perplexity;
mod text;

use crate::{
    args::{EvalArgs, EvalCommand},
    error::Error,
};

pub(crate) fn run(args: &EvalArgs, verbose: u8) -> Result<(), Error> {
    match &args.command {
        EvalCommand::Exam(args) => exam::run(args, verbose),
        EvalCommand::Perplexity(args) => perplexity::run(args, verbose),
        EvalCommand::Agree(args) => agree::run(args, verbose),
    }
}
