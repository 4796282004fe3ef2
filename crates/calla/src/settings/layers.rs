//! Puts the config file under the environment, and keeps what a stronger source rules out away.

use std::collections::HashMap;

use clap::{Arg, ArgMatches, Command, Id, parser::ValueSource};

use super::{
    Error,
    file::{ConfigFile, Values},
    schema::{self, Kind},
};

/// A definition whose defaults are the file's where neither the command line nor a variable speaks.
pub(super) struct Layered {
    pub(super) command: Command,
    /// Lines of the file that became defaults: one map for the program and each command below.
    pub(super) lines: Vec<HashMap<Id, usize>>,
}

/// The definition for one command line, `given` being what it alone says.
///
/// # Errors
/// When the file contradicts itself.
pub(super) fn apply(
    definition: Command,
    given: &ArgMatches,
    file: Option<&ConfigFile>,
) -> Result<Layered, Error> {
    let path = path_of(given);
    let values = match file {
        Some(file) => file.values(&definition, &path)?,
        None => Values::new(),
    };
    let mut lines = Vec::new();
    let command = apply_level(definition, given, &values, &mut lines);
    Ok(Layered { command, lines })
}

/// The names of the commands on a command line.
pub(super) fn path_of(given: &ArgMatches) -> Vec<String> {
    let mut path = Vec::new();
    let mut level = given;
    while let Some((name, inner)) = level.subcommand() {
        path.push(name.to_owned());
        level = inner;
    }
    path
}

/// The definition with nothing required.
pub(super) fn relaxed(command: Command) -> Command {
    let groups: Vec<Id> = command.get_groups().map(|group| group.get_id().clone()).collect();
    (groups.into_iter())
        .fold(command, |command, group| command.mut_group(group, |group| group.required(false)))
        .subcommand_required(false)
        .arg_required_else_help(false)
        .mut_args(|arg| arg.required(false))
        .mut_subcommands(relaxed)
}

/// The definition in which `-1` behind a flag for numbers is its value, for its range to refuse,
/// and not a flag.
pub(super) fn with_negative_numbers(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let is_number = matches!(Kind::of(&arg), Kind::Integer | Kind::Number);
            if is_number { arg.allow_negative_numbers(true) } else { arg }
        })
        .mut_subcommands(with_negative_numbers)
}

/// The definition with no environment.
pub(super) fn without_variables(command: Command) -> Command {
    command.mut_args(|arg| arg.env(None::<&'static str>)).mut_subcommands(without_variables)
}

/// What becomes of a flag.
enum Change {
    /// The command line gave something that excludes it.
    IgnoreVariable,
    /// The file gives its value.
    Default { values: Vec<String>, line: usize },
}

fn apply_level(
    command: Command,
    given: &ArgMatches,
    values: &Values<'_>,
    lines: &mut Vec<HashMap<Id, usize>>,
) -> Command {
    let changes = changes(&command, given, values);
    let line = |(id, change): (&Id, &Change)| match change {
        Change::Default { line, .. } => Some((id.clone(), *line)),
        Change::IgnoreVariable => None,
    };
    lines.push(changes.iter().filter_map(line).collect());
    // A default does not fill a group that wants one of its flags.
    let filled = |group: &&clap::ArgGroup| {
        group.get_args().any(|id| matches!(changes.get(id), Some(Change::Default { .. })))
    };
    let filled: Vec<Id> = command.get_groups().filter(filled).map(|g| g.get_id().clone()).collect();
    let command = (filled.into_iter())
        .fold(command, |command, group| command.mut_group(group, |group| group.required(false)))
        .mut_args(|arg| match changes.get(arg.get_id()) {
            Some(Change::IgnoreVariable) => arg.env(None::<&'static str>),
            Some(Change::Default { values, .. }) => {
                arg.default_values(values.clone()).required(false)
            }
            None => arg,
        });
    match given.subcommand() {
        Some((name, inner)) => {
            command.mut_subcommand(name, |sub| apply_level(sub, inner, values, lines))
        }
        None => command,
    }
}

fn changes(command: &Command, given: &ArgMatches, values: &Values<'_>) -> HashMap<Id, Change> {
    let on_line =
        |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut changes = HashMap::new();
    for arg in schema::settings(command) {
        let rivals = schema::rivals(command, arg);
        let change = if on_line(arg) {
            None
        } else if rivals.iter().any(|rival| on_line(rival)) {
            Some(Change::IgnoreVariable)
        } else if rivals.iter().any(|rival| schema::variable_is_set(rival)) {
            None
        } else {
            from_file(command, arg, values)
        };
        changes.extend(change.map(|change| (arg.get_id().clone(), change)));
    }
    changes
}

/// What the file says of a flag. `think = false` is what it says of `--no-think`.
fn from_file(command: &Command, arg: &Arg, values: &Values<'_>) -> Option<Change> {
    let switched_off = [String::from("false")];
    if let Some(positive) = schema::negated(command, arg) {
        let entry = values.get(positive.get_long()?)?;
        let takes_back = entry.values == switched_off;
        let values = vec!["true".to_owned()];
        return takes_back.then_some(Change::Default { values, line: entry.line });
    }
    let entry = values.get(arg.get_long()?)?;
    Some(Change::Default { values: entry.values.clone(), line: entry.line })
}
