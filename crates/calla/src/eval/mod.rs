//! `calla eval`: one module a way to judge.

mod agree;

use crate::{
    args::{EvalArgs, EvalCommand},
    error::Error,
};

pub(crate) fn run(args: &EvalArgs, verbose: u8) -> Result<(), Error> {
    match &args.command {
        EvalCommand::Agree(args) => agree::run(args, verbose),
    }
}
