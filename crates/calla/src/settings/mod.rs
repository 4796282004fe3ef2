//! Settings: from where a flag's value comes when the flag is not given.
//!
//! A flag wins over its environment variable, the variable over the config file, the file over the
//! default. Every flag is defined once, in `args`: `schema` reads that definition, `file` checks a
//! config file against it, `layers` puts the file's values where the defaults stand, and
//! `reference` writes docs/env.md from it. A new flag needs nothing here.

mod file;
mod layers;
mod reference;
mod report;
mod schema;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{
    ArgMatches, Command, CommandFactory as _, FromArgMatches as _,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};

use self::file::ConfigFile;
use crate::args::Cli;

pub(crate) use reference::markdown;
pub(crate) use report::{Report, Setting, Source, report, unknown_variables};

/// Identity of the flag that names the file.
const CONFIG: &str = "config";

/// A command line, a variable or a config file that cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A flag or its variable; also what is asked of the parser itself: help and version.
    #[error(transparent)]
    Flags(#[from] clap::Error),
    /// The config file: its path, the line and the key.
    #[error("{0}")]
    File(String),
}

/// Reads a command line, and for flags that it leaves out the environment and the config file.
///
/// # Errors
/// For what cannot be taken; it names the flag, the variable or the file's line, and what is
/// allowed.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, Error> {
    let definition = definition();
    let given = given(&definition, arguments)?;
    let file = config_file(&definition, &given, None)?;
    let mut command = layers::apply(definition, &given, file.as_ref())?.command;
    let mut matches = command
        .try_get_matches_from_mut(arguments)
        .map_err(|error| with_variables(error, &command, &given))?;
    Ok(Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?)
}

/// Who chose the model, in brackets to go behind an error, when it was not the command line.
pub(crate) fn model_origin(arguments: &[OsString]) -> Option<String> {
    let report = report(arguments, None).ok()?;
    let settings = report.commands.into_iter().flat_map(|(_, settings)| settings);
    let model = settings.into_iter().find(|setting| setting.key == "model")?;
    let by = match (model.source, report.file) {
        (Source::Environment(variable), _) => format!("the environment variable {variable}"),
        (Source::File(line), Some(file)) => format!("`model` in {}, line {line}", file.display()),
        _ => return None,
    };
    Some(format!(" (the model is {}, by {by})", model.values.concat()))
}

/// The commands as a command line is read against them.
fn definition() -> Command {
    layers::with_negative_numbers(Cli::command())
}

/// What the command line alone says. Whether anything is missing cannot be known yet.
fn given(definition: &Command, arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let bare = layers::without_variables(layers::relaxed(definition.clone()));
    bare.try_get_matches_from(arguments).map_err(|error| {
        // The definition as it is words its usage as the user knows it.
        definition.clone().try_get_matches_from(arguments).err().unwrap_or(error)
    })
}

/// The config file: the one that is named, else the one in its usual place.
fn config_file(
    definition: &Command,
    given: &ArgMatches,
    otherwise: Option<&Path>,
) -> Result<Option<ConfigFile>, Error> {
    let named = given.get_one::<PathBuf>(CONFIG).cloned();
    let named = named.or_else(|| otherwise.map(Path::to_owned)).or_else(config_variable);
    match named {
        Some(path) => ConfigFile::named(&path, definition).map(Some),
        None => ConfigFile::usual(definition),
    }
}

/// What the variable of `--config` says; an empty one is refused with the flags.
fn config_variable() -> Option<PathBuf> {
    let definition = Cli::command();
    let flag = definition.get_arguments().find(|arg| arg.get_id() == CONFIG);
    let name = flag.and_then(|arg| arg.get_env()).expect("the flag is defined with a variable");
    std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Says of a refused value that it was a variable's: the command line shows no such flag.
fn with_variables(mut error: clap::Error, command: &Command, given: &ArgMatches) -> clap::Error {
    let mut command = command.clone();
    // Flags cannot be written as the error writes them before they are built.
    command.build();
    let mut tips = Vec::new();
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        let Some(ContextValue::String(shown)) = error.get(kind) else { continue };
        tips.extend(variable_behind(shown, &command, given).map(|variable| {
            format!("{shown} was set by the environment variable {variable}").into()
        }));
    }
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// The variable that set this flag, if the command line did not.
fn variable_behind<'a>(shown: &str, command: &'a Command, given: &ArgMatches) -> Option<&'a str> {
    let flag = command.get_arguments().find(|arg| arg.to_string() == shown);
    if let Some(arg) = flag {
        let on_line = given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        return schema::variable(arg).filter(|_| !on_line && schema::variable_is_set(arg));
    }
    let (name, inner) = given.subcommand()?;
    variable_behind(shown, command.find_subcommand(name)?, inner)
}
