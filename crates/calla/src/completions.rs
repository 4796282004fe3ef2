//! `calla completions`.

use clap::CommandFactory as _;

use crate::{
    args::{Cli, CompletionsArgs},
    error::Error,
    output,
};

pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "calla", &mut script);
    output::bytes(&script)
}
