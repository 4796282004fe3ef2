//! What holds for a command line: the value of every setting and where it comes from.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, Id, parser::ValueSource};

use super::{Error, config_file, definition, given, layers, reference, schema, with_variables};
use crate::args::Cli;

/// Every setting of some commands.
pub(crate) struct Report {
    pub(crate) file: Option<PathBuf>,
    /// What every command takes.
    pub(crate) everywhere: Vec<Setting>,
    /// The commands that were asked for, under their names behind `calla`.
    pub(crate) commands: Vec<(String, Vec<Setting>)>,
}

/// One flag's value.
pub(crate) struct Setting {
    /// The long flag.
    pub(crate) key: String,
    pub(crate) values: Vec<String>,
    /// What holds when there is no value.
    pub(crate) otherwise: Option<String>,
    pub(crate) is_secret: bool,
    pub(crate) source: Source,
}

/// Where a value comes from.
pub(crate) enum Source {
    Flag,
    /// The variable's name.
    Environment(String),
    /// The line of the config file.
    File(usize),
    Default,
}

/// Reads a command line as [`super::parse`] does, and tells what each setting would be. A line that
/// names no command asks for all of them; `config` is the config file when the line names none.
///
/// # Errors
/// As for [`super::parse`], but nothing need be there that a command requires.
pub(crate) fn report(arguments: &[OsString], config: Option<&Path>) -> Result<Report, Error> {
    let definition = definition();
    let from_line = given(&definition, arguments)?;
    let file = config_file(&definition, &from_line, config)?;
    let path = layers::path_of(&from_line);
    let mut report = Report { file: None, everywhere: Vec::new(), commands: Vec::new() };
    for leaf in schema::leaves(&definition, &path) {
        let rest = leaf[path.len()..].iter().map(OsString::from);
        let arguments: Vec<OsString> = arguments.iter().cloned().chain(rest).collect();
        let given = given(&definition, &arguments)?;
        let relaxed = layers::relaxed(definition.clone());
        let mut layered = layers::apply(relaxed, &given, file.as_ref())?;
        let matches = layered.command.try_get_matches_from_mut(&arguments);
        let matches = matches.map_err(|error| with_variables(error, &layered.command, &given))?;
        let mut levels = levels(&definition, &matches, &layered.lines);
        let own = levels.split_off(1);
        report.everywhere = levels.into_iter().flatten().collect();
        report.commands.push((leaf.join(" "), own.into_iter().flatten().collect()));
    }
    report.file = file.map(|file| file.path);
    Ok(report)
}

/// Variables that are named as if they were calla's, and that nothing reads.
pub(crate) fn unknown_variables() -> Vec<String> {
    let known: BTreeSet<String> = reference::variables(&Cli::command()).collect();
    let mut unknown: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("CALLA_") && !known.contains(name))
        .collect();
    unknown.sort();
    unknown
}

/// The settings of the program and of each command on the line.
fn levels(
    command: &Command,
    matches: &ArgMatches,
    lines: &[HashMap<Id, usize>],
) -> Vec<Vec<Setting>> {
    let Some((own, below)) = lines.split_first() else { return Vec::new() };
    let settings = schema::keys(command).map(|(key, arg)| setting(key, command, arg, matches, own));
    let mut levels = vec![settings.collect()];
    if let Some((name, inner)) = matches.subcommand() {
        let sub = command.find_subcommand(name).expect("it was just parsed");
        levels.extend(self::levels(sub, inner, below));
    }
    levels
}

fn setting(
    key: &str,
    command: &Command,
    arg: &Arg,
    matches: &ArgMatches,
    lines: &HashMap<Id, usize>,
) -> Setting {
    // Of `--think` and `--no-think` the one that was given speaks; neither is a third way.
    let negation = schema::negation(command, arg);
    let speaks = negation.filter(|other| matches.get_flag(other.get_id().as_str())).unwrap_or(arg);
    let source = source(speaks, matches, lines);
    let values = match (negation, &source) {
        (Some(_), Source::Default) => Vec::new(),
        _ => values(arg, matches),
    };
    Setting {
        key: key.to_owned(),
        values,
        otherwise: schema::help(arg).1,
        is_secret: schema::is_secret(arg),
        source,
    }
}

fn values(arg: &Arg, matches: &ArgMatches) -> Vec<String> {
    let id = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::Count) {
        return vec![matches.get_count(id).to_string()];
    }
    let raw = matches.get_raw(id).into_iter().flatten();
    raw.map(|value| value.to_string_lossy().into_owned()).collect()
}

fn source(arg: &Arg, matches: &ArgMatches, lines: &HashMap<Id, usize>) -> Source {
    match matches.value_source(arg.get_id().as_str()) {
        Some(ValueSource::CommandLine) => Source::Flag,
        Some(ValueSource::EnvVariable) => {
            Source::Environment(schema::variable(arg).unwrap_or_default().to_owned())
        }
        _ => lines.get(arg.get_id()).map_or(Source::Default, |line| Source::File(*line)),
    }
}
