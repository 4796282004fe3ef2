//! The command line: step 1 of a request's way, and step 9 on a terminal.
//!
//! `args` declares every flag once, with name, help, default, environment variable and check;
//! `settings` gives it its value; one module a command holds what it does. A command prints its result to stdout and nothing else;
//! everything about the way there goes to stderr.

mod args;
mod bench;
mod chat;
mod completions;
mod config;
mod doctor;
mod error;
mod eval;
mod fit;
mod folders;
mod hub;
mod input;
mod inspect;
mod list;
mod machine;
mod man;
mod model;
mod output;
mod pull;
mod quantize;
mod remove;
mod serve;
mod settings;
mod small_file;
mod synth;
mod tokens;
mod version;

use std::{
    env,
    ffi::OsString,
    io::{self, Write as _},
    process::ExitCode,
};

use crate::{
    args::{Cli, Command},
    error::Error,
};

fn main() -> ExitCode {
    calla_engine::checkpoint::explain_lost_files();
    let line: Vec<OsString> = env::args_os().collect();
    let cli = match settings::parse(&line) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    output::start_log(cli.log.as_deref(), cli.command.log_level(cli.verbose));
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Settings(error)) => usage(&error),
        // The reader has seen enough: `calla … | head` is no failure.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let origin = error.concerns_files().then(|| settings::model_origin(&line)).flatten();
            output::warn(&format!("{error}{}", origin.unwrap_or_default()));
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
        Command::Inspect(args) => inspect::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Quantize(args) => quantize::run(&args, cli.verbose),
        Command::Synth(args) => synth::run(&args),
        Command::Config(args) => config::run(&args, cli.config.as_deref()),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Version(args) => version::run(&args, cli.verbose),
    }
}

/// Prints help and version to stdout; a mistake to stderr, with exit code 2.
fn usage(error: &settings::Error) -> ExitCode {
    let error = match error {
        settings::Error::Flags(error) => error,
        settings::Error::File(problem) => {
            output::warn(problem);
            return ExitCode::from(2);
        }
    };
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let _ = write!(io::stderr(), "calla: {text}");
    ExitCode::from(2)
}
