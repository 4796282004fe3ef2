//! What the definition of the commands says about settings. There is no other list of them.

use std::{
    any::TypeId,
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
};

use clap::{Arg, ArgAction, Command};

/// What a setting's value is made of, in a config file's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `true` or `false`.
    Switch,
    /// How often a flag is given.
    Count,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// Anything else is text, read as it would be behind the flag.
    Text,
}

impl Kind {
    pub(super) fn of(arg: &Arg) -> Self {
        match arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => return Kind::Switch,
            ArgAction::Count => return Kind::Count,
            _ => {}
        }
        let value = arg.get_value_parser().type_id();
        if value == TypeId::of::<bool>() {
            Kind::Switch
        } else if integers().iter().any(|integer| value == *integer) {
            Kind::Integer
        } else if value == TypeId::of::<f32>() || value == TypeId::of::<f64>() {
            Kind::Number
        } else {
            Kind::Text
        }
    }

    /// What a file must hold for it.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Kind::Switch => "true or false",
            Kind::Count | Kind::Integer => "an integer",
            Kind::Number => "a number",
            Kind::Text => "a string",
        }
    }
}

fn integers() -> [TypeId; 11] {
    [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<isize>(),
        TypeId::of::<NonZeroU32>(),
        TypeId::of::<NonZeroU64>(),
        TypeId::of::<NonZeroUsize>(),
    ]
}

/// The flags of a command that a file may set too: all but those that ask for help, and the one
/// that names the file.
pub(super) fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        let asks = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        arg.get_long().is_some() && !asks && arg.get_id() != super::CONFIG
    })
}

/// Settings under the names that a file knows: `no-think` is `think = false` there.
pub(super) fn keys(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    settings(command)
        .filter(|arg| negated(command, arg).is_none())
        .filter_map(|arg| Some((arg.get_long()?, arg)))
}

/// The setting of that key.
pub(super) fn key<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    keys(command).find(|(key, _)| *key == name).map(|(_, arg)| arg)
}

/// Whether a setting may have several values.
pub(super) fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// Whether a setting's value must not be shown.
pub(super) fn is_secret(arg: &Arg) -> bool {
    arg.is_hide_env_values_set()
}

/// The flag that `--no-…` takes back.
pub(super) fn negated<'a>(command: &'a Command, arg: &Arg) -> Option<&'a Arg> {
    let name = arg.get_long()?.strip_prefix("no-")?;
    command.get_arguments().find(|other| other.get_long() == Some(name))
}

/// The `--no-…` that takes a flag back.
pub(super) fn negation<'a>(command: &'a Command, arg: &Arg) -> Option<&'a Arg> {
    let name = format!("no-{}", arg.get_long()?);
    command.get_arguments().find(|other| other.get_long() == Some(&name))
}

/// Settings of which only one may be given: conflicts in either direction, and `--no-…` pairs.
pub(super) fn rivals<'a>(command: &'a Command, arg: &Arg) -> Vec<&'a Arg> {
    let is = |one: Option<&Arg>, other: &Arg| one.is_some_and(|one| one.get_id() == other.get_id());
    let refuses = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).into_iter().any(|refused| is(Some(refused), other))
    };
    let in_one_group = |one: &Arg, other: &Arg| {
        command.get_groups().any(|group| {
            let holds = |arg: &Arg| group.get_args().any(|id| id == arg.get_id());
            holds(one) && holds(other) && !group.clone().is_multiple()
        })
    };
    let excludes = |other: &&Arg| {
        refuses(arg, other)
            || refuses(other, arg)
            || is(negated(command, arg), other)
            || is(negation(command, arg), other)
            || in_one_group(arg, other)
    };
    let others = command.get_arguments().filter(|other| other.get_id() != arg.get_id());
    others.filter(excludes).collect()
}

/// A flag's help without what it says of the default, and that: `Threads [default: all]`.
pub(super) fn help(arg: &Arg) -> (String, Option<String>) {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let written = help.strip_suffix(']').and_then(|help| help.split_once(" [default: "));
    match written {
        Some((help, default)) => (help.to_owned(), Some(default.to_owned())),
        None => (help, None),
    }
}

/// The environment variable that stands in for a flag.
pub(super) fn variable(arg: &Arg) -> Option<&str> {
    arg.get_env().and_then(|name| name.to_str())
}

/// Whether that variable is there now.
pub(super) fn variable_is_set(arg: &Arg) -> bool {
    arg.get_env().is_some_and(|name| std::env::var_os(name).is_some())
}

/// The commands from the program to the one that these names lead to, both included.
pub(super) fn line<'a>(root: &'a Command, path: &[impl AsRef<str>]) -> Vec<&'a Command> {
    let mut commands = vec![root];
    for name in path {
        let last = commands[commands.len() - 1];
        commands.extend(last.get_subcommands().find(|sub| sub.get_name() == name.as_ref()));
    }
    commands
}

/// The names that lead to each command that runs, from this one down; its own when it runs itself.
pub(super) fn leaves(root: &Command, path: &[String]) -> Vec<Vec<String>> {
    let commands = line(root, path);
    let command = commands[commands.len() - 1];
    let mut found = Vec::new();
    for sub in command.get_subcommands() {
        let inner: Vec<String> = path.iter().cloned().chain([sub.get_name().to_owned()]).collect();
        found.extend(leaves(root, &inner));
    }
    if found.is_empty() {
        found.push(path.to_vec());
    }
    found
}
