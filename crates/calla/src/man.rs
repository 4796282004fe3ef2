//! `calla man`: one page a command, from the definition of the flags.

use std::{fs, io, path::Path};

use clap::{Command, CommandFactory as _};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use crate::{
    args::{Cli, ManArgs, examples},
    error::Error,
    output, version,
};

pub(crate) fn run(args: &ManArgs) -> Result<(), Error> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let Some(folder) = &args.out else {
        return output::bytes(&page(&program).map_err(Error::Output)?);
    };
    let failed = |path: &Path, error: io::Error| Error::File {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let mut pages = 0;
    let mut open = vec![&program];
    while let Some(command) = open.pop() {
        let path = folder.join(format!("{}.1", name(command)));
        let written = page(command).and_then(|page| fs::write(&path, page));
        written.map_err(|error| failed(&path, error))?;
        pages += 1;
        open.extend(command.get_subcommands());
    }
    output::text(&format!("{}: {pages} pages\n", folder.display()))
}

/// `calla-eval-agree` for `calla eval agree`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone())
        .title(name(command))
        .source(format!("calla {}", version::SHORT))
        .manual("calla");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    render_examples(command, &mut page)?;
    Ok(page)
}

/// The examples, whose lines stay as they are.
fn render_examples(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let mut section = Roff::default();
    section.control("SH", ["EXAMPLES"]);
    section.control("nf", []);
    for line in examples(command) {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    section.to_writer(page)
}
