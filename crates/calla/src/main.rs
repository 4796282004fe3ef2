//! The command line: step 1 of a request's way, and step 9 on a terminal.
//!
//! `args` declares every flag once, with name, help, default, environment variable and check; one
//! module a command holds what it does. A command prints its result to stdout and nothing else;
//! everything about the way there goes to stderr.

mod args;
mod bench;
mod chat;
mod error;
mod eval;
mod hub;
mod input;
mod list;
mod machine;
mod model;
mod output;
mod pull;
mod quantize;
mod remove;
mod serve;
mod synth;
mod tokens;
mod version;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;

use crate::{
    args::{Cli, Command},
    error::Error,
};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    output::start_log(cli.command.log_level(cli.verbose));
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough: `calla … | head` is no failure.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // With stderr closed there is nobody left to tell.
            let _ = writeln!(io::stderr(), "calla: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Error> {
    match cli.command {
        Command::Chat(args) => chat::run(&args, cli.verbose),
        Command::Serve(args) => serve::run(*args, cli.verbose),
        Command::Tokens(args) => tokens::run(&args),
        Command::Bench(args) => bench::run(&args, cli.verbose),
        Command::Eval(args) => eval::run(&args, cli.verbose),
        Command::Pull(args) => pull::run(&args, cli.verbose),
        Command::List(args) => list::run(&args, cli.verbose),
        Command::Remove(args) => remove::run(&args),
        Command::Quantize(args) => quantize::run(&args, cli.verbose),
        Command::Synth(args) => synth::run(&args),
    }
}

/// Prints help and version to stdout; a mistake to stderr, with exit code 2.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let _ = write!(io::stderr(), "calla: {text}");
    ExitCode::from(2)
}
