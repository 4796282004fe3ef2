//! The config file: TOML whose keys are the long flags. It is read against the definition of the
//! commands, so that a flag that is added there can be set here.

use std::{
    collections::BTreeMap,
    error::Error as _,
    io,
    path::{Path, PathBuf},
};

use clap::{Arg, Command, ValueHint, error::ErrorKind};
use toml::de::{DeTable, DeValue};

use super::{
    Error,
    schema::{self, Kind},
};
use crate::{folders, small_file};

/// Longest file that is read: far more than all settings take.
const BYTES_MAX: u64 = 1 << 20;

/// What stands for no file; it is a device, which is not read.
const NO_FILE: &str = "/dev/null";

/// A config file in which every key and value was found good.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    entries: Vec<Entry>,
}

/// One line of it.
#[derive(Debug)]
pub(super) struct Entry {
    /// The command whose table it stands in; empty at the top.
    table: Vec<String>,
    key: String,
    /// As they would be written behind the flag.
    pub(super) values: Vec<String>,
    pub(super) line: usize,
}

/// What a file says for one command, by key.
pub(super) type Values<'a> = BTreeMap<&'a str, &'a Entry>;

impl ConfigFile {
    /// The file that the user named.
    ///
    /// # Errors
    /// When it cannot be read, or holds a key or a value that the commands do not know.
    pub(super) fn named(path: &Path, root: &Command) -> Result<Self, Error> {
        let text = match path == Path::new(NO_FILE) {
            true => String::new(),
            false => read(path).map_err(|error| failed(path, &error.to_string()))?,
        };
        Self::parse(path, &text, root)
    }

    /// The file in its usual place, if there is one.
    ///
    /// # Errors
    /// As for [`ConfigFile::named`].
    pub(super) fn usual(root: &Command) -> Result<Option<Self>, Error> {
        let Some(path) = usual_path() else { return Ok(None) };
        match read(&path) {
            Ok(text) => Self::parse(&path, &text, root).map(Some),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(failed(&path, &error.to_string())),
        }
    }

    fn parse(path: &Path, text: &str, root: &Command) -> Result<Self, Error> {
        let entries = parse(text, root).map_err(|problem| problem.in_file(path))?;
        let file = ConfigFile { path: path.to_owned(), entries };
        // What contradicts itself is told now, whatever command runs.
        for leaf in schema::leaves(root, &[]) {
            file.values(root, &leaf)?;
        }
        Ok(file)
    }

    /// What it says for one command: the table of a command wins over what stands above it.
    ///
    /// # Errors
    /// When two settings of one table exclude each other.
    pub(super) fn values(&self, root: &Command, path: &[String]) -> Result<Values<'_>, Error> {
        let commands = schema::line(root, path);
        let mut values = Values::new();
        for depth in 0..=path.len() {
            for entry in self.entries.iter().filter(|entry| entry.table == path[..depth]) {
                let found = commands.iter().find_map(|command| {
                    schema::key(command, &entry.key).map(|arg| (*command, arg))
                });
                let Some((command, arg)) = found else { continue };
                for rival in schema::rivals(command, arg) {
                    let removed = rival.get_long().and_then(|long| values.remove(long));
                    if let Some(other) = removed.filter(|other| other.table == entry.table) {
                        return Err(contradiction(other, entry).in_file(&self.path));
                    }
                }
                values.insert(&entry.key, entry);
            }
        }
        Ok(values)
    }
}

/// Where the file is looked for when nobody names one.
pub(super) fn usual_path() -> Option<PathBuf> {
    Some(folders::config()?.join("config.toml"))
}

fn read(path: &Path) -> io::Result<String> {
    small_file::read(path, BYTES_MAX)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What is wrong, and in which line.
struct Problem {
    line: Option<usize>,
    text: String,
}

impl Problem {
    fn at(line: usize, text: String) -> Self {
        Problem { line: Some(line), text }
    }

    fn in_file(self, path: &Path) -> Error {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        Error::File(format!("{}{line}: {}", path.display(), self.text))
    }
}

fn failed(path: &Path, problem: &str) -> Error {
    Problem { line: None, text: problem.to_owned() }.in_file(path)
}

fn contradiction(one: &Entry, other: &Entry) -> Problem {
    let (first, last) = if one.line < other.line { (one, other) } else { (other, one) };
    let text = format!(
        "{} cannot stand beside `{}` of line {}: remove one",
        name(&last.table, &last.key),
        first.key,
        first.line
    );
    Problem::at(last.line, text)
}

/// A key or a table as the file has it, not yet looked at.
struct Found<'a> {
    table: Vec<String>,
    key: &'a str,
    start: usize,
    value: &'a DeValue<'a>,
}

fn parse(text: &str, root: &Command) -> Result<Vec<Entry>, Problem> {
    let line_of =
        |start: usize| 1 + text.as_bytes()[..start].iter().filter(|&&b| b == b'\n').count();
    let document = DeTable::parse(text).map_err(|error| Problem {
        line: error.span().map(|span| line_of(span.start)),
        text: error.message().to_owned(),
    })?;
    let mut found = Vec::new();
    collect(document.get_ref(), root, &[], &mut found);
    found.sort_by_key(|found| found.start);
    let mut entries = Vec::new();
    for found in &found {
        let line = line_of(found.start);
        let values = check(found, root).map_err(|text| Problem::at(line, text))?;
        if let Some(values) = values {
            entries.push(Entry {
                table: found.table.clone(),
                key: found.key.to_owned(),
                values,
                line,
            });
        }
    }
    Ok(entries)
}

/// Lists what a table holds, and what the tables of commands in it hold.
fn collect<'a>(
    table: &'a DeTable<'a>,
    command: &Command,
    path: &[String],
    found: &mut Vec<Found<'a>>,
) {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let value = value.get_ref();
        found.push(Found { table: path.to_vec(), key: name, start: key.span().start, value });
        let sub = command.get_subcommands().find(|sub| sub.get_name() == name);
        if let (Some(inner), Some(sub)) = (value.as_table(), sub) {
            let path: Vec<String> = path.iter().cloned().chain([name.to_owned()]).collect();
            collect(inner, sub, &path, found);
        }
    }
}

/// The values of a setting; `None` for the table of a command. The error says what is allowed.
fn check(found: &Found<'_>, root: &Command) -> Result<Option<Vec<String>>, String> {
    let commands = schema::line(root, &found.table);
    let command = commands[commands.len() - 1];
    let is_command = command.get_subcommands().any(|sub| sub.get_name() == found.key);
    if is_command && found.value.is_table() {
        return Ok(None);
    }
    let takers = takers(&commands, found.key);
    if takers.is_empty() {
        return Err(unknown(found, command, is_command));
    }
    let mut values = Vec::new();
    for arg in takers {
        values = convert(arg, found.value)
            .map_err(|problem| format!("{}: {problem}", name(&found.table, found.key)))?;
    }
    Ok(Some(values))
}

/// The flags that a key sets: the command's own, those of the commands beneath it, and above it
/// those that hold everywhere.
fn takers<'a>(commands: &[&'a Command], key: &str) -> Vec<&'a Arg> {
    let (command, above) = commands.split_last().expect("the program itself is there");
    let everywhere = above.iter().filter_map(|command| schema::key(command, key));
    let mut takers: Vec<&Arg> = everywhere.filter(|arg| arg.is_global_set()).collect();
    let mut open = vec![*command];
    while let Some(command) = open.pop() {
        takers.extend(schema::key(command, key));
        open.extend(command.get_subcommands());
    }
    takers
}

fn unknown(found: &Found<'_>, command: &Command, is_command: bool) -> String {
    let tables: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    if is_command {
        let table = found.table.iter().map(String::as_str).chain([found.key]);
        let table = table.collect::<Vec<_>>().join(".");
        return format!("`{}`: expected a table, [{table}]", found.key);
    }
    let mut keys = Vec::new();
    let mut open = vec![command];
    while let Some(command) = open.pop() {
        keys.extend(schema::keys(command).map(|(key, _)| key));
        open.extend(command.get_subcommands());
    }
    keys.sort_unstable();
    keys.dedup();
    let mut text = format!("unknown key {}", name(&found.table, found.key));
    if let Some(positive) = found.key.strip_prefix("no-").filter(|key| keys.contains(key)) {
        text.push_str(&format!(": write `{positive} = false`"));
        return text;
    }
    text.push_str(&format!(": keys are {}", keys.join(", ")));
    if !tables.is_empty() {
        text.push_str(&format!("; tables are {}", tables.join(", ")));
    }
    text
}

/// A key and where it stands.
fn name(table: &[String], key: &str) -> String {
    match table {
        [] => format!("`{key}`"),
        table => format!("`{key}` in [{}]", table.join(".")),
    }
}

/// A value of the file as it would be written behind the flag, found good.
fn convert(arg: &Arg, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::Array(items) if schema::is_list(arg) => {
            items.iter().map(|item| convert_one(arg, item.get_ref())).collect()
        }
        value => Ok(vec![convert_one(arg, value)?]),
    }
}

fn convert_one(arg: &Arg, value: &DeValue<'_>) -> Result<String, String> {
    let kind = Kind::of(arg);
    let text = match (kind, value) {
        (Kind::Switch, DeValue::Boolean(on)) => return Ok(on.to_string()),
        (Kind::Count | Kind::Integer | Kind::Number, DeValue::Integer(integer)) => {
            let parsed = i128::from_str_radix(integer.as_str(), integer.radix());
            parsed.map_err(|error| error.to_string())?.to_string()
        }
        (Kind::Number, DeValue::Float(float)) => float.as_str().to_owned(),
        (Kind::Text, DeValue::String(text)) => at_home(arg, text),
        (kind, other) => {
            let list = if schema::is_list(arg) { ", or a list of them" } else { "" };
            let expected = kind.expected();
            return Err(format!("expected {expected}{list}, found {}", article(other.type_str())));
        }
    };
    if kind == Kind::Count {
        let count = text.parse::<u8>().map_err(|_| format!("{text} is not in 0..=255"))?;
        return Ok(count.to_string());
    }
    try_behind_flag(arg, &text)?;
    Ok(text)
}

fn article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {noun}")
}

/// A path with `~/` in front, as the shell would give it.
fn at_home(arg: &Arg, text: &str) -> String {
    let is_path = matches!(
        arg.get_value_hint(),
        ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath | ValueHint::ExecutablePath
    );
    let home = is_path.then(|| text.strip_prefix("~/")).flatten().zip(folders::home());
    match home.and_then(|(rest, home)| home.join(rest).into_os_string().into_string().ok()) {
        Some(path) => path,
        None => text.to_owned(),
    }
}

/// Lets the flag's own check see the value. The error is what it says is allowed.
fn try_behind_flag(arg: &Arg, text: &str) -> Result<(), String> {
    let probe = Arg::new("value")
        .long("value")
        .action(arg.get_action().clone())
        .value_parser(arg.get_value_parser().clone());
    let command = Command::new("probe").disable_help_flag(true).arg(probe);
    let Err(error) = command.try_get_matches_from(["probe", &format!("--value={text}")]) else {
        return Ok(());
    };
    if schema::is_secret(arg) {
        // What the check says may repeat the value.
        let problem = if text.is_empty() { "must not be empty" } else { "is not allowed" };
        return Err(problem.into());
    }
    let shown = if Kind::of(arg) == Kind::Text { format!("{text:?}") } else { text.to_owned() };
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let names: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
        return Err(format!("{shown} is none of {}", names.join(", ")));
    }
    Err(match (error.source(), error.kind()) {
        (Some(source), _) if source.to_string().starts_with(text) => source.to_string(),
        (Some(source), _) => format!("{shown}: {source}"),
        (None, ErrorKind::InvalidValue) if text.is_empty() => "must not be empty".into(),
        (None, _) => format!("{shown} is not allowed"),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;

    /// A flag whose type is not known as a number would want its default in quotes.
    #[test]
    fn every_default_and_choice_may_stand_in_the_file() {
        let root = Cli::command();
        let mut checked = 0;
        for path in schema::leaves(&root, &[]) {
            let commands = schema::line(&root, &path);
            for (key, arg) in schema::keys(commands[commands.len() - 1]) {
                let defaults = arg.get_default_values().iter().filter_map(|value| value.to_str());
                let choices = arg.get_possible_values();
                let choices = choices.iter().map(|choice| choice.get_name());
                for value in defaults.chain(choices) {
                    let bare = value.parse::<f64>().is_ok() || ["true", "false"].contains(&value);
                    let value = if bare { value.to_owned() } else { format!("'{value}'") };
                    let text = format!("[{}]\n{key} = {value}\n", path.join("."));
                    let read = parse(&text, &root).map_err(|problem| problem.text);
                    assert!(
                        read.is_ok(),
                        "{text}{}: its type must stand in schema.rs",
                        read.unwrap_err()
                    );
                    checked += 1;
                }
            }
        }
        assert!(checked > 20, "only {checked} values");
    }
}
