//! docs/env.md: every setting, from the definition of the flags.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::schema::{self, Kind};

const HEAD: &str = "\
# Settings

Generated from the flags by `calla config --reference`; a test compares. [commands.md](commands.md)
says where the config file is and how flags, variables and file go together.

A key is the long flag without its dashes: `port = 8080` in the file is `--port 8080`. Values in the
file are written as TOML: text in quotes, numbers and `true` and `false` bare.
";

/// Variables that no flag stands for, and what they do.
const OTHER_VARIABLES: [(&str, &str); 17] = [
    (
        "CALLA_SIMD",
        "Instruction set of the CPU backend, when not the fastest that the processor has: \
         `portable`, `avx2`, `avx512`, `avx512_amd` or `neon`",
    ),
    (
        "CALLA_NVRTC",
        "Path of NVRTC (`libnvrtc.so`), which compiles the CUDA backend's kernels, when it is not \
         where it is usually installed",
    ),
    (
        "CALLA_KERNEL_CACHE",
        "Folder of compiled CUDA kernels; `calla/kernels` in the cache folder by default, empty: \
         compile at every start",
    ),
    ("NO_COLOR", "Not empty: no colour on the terminal"),
    ("TERM", "`dumb`: the terminal knows no colour and no line editing"),
    ("HF_HOME", "Folder of the hub's programs; `huggingface` in the cache folder by default"),
    ("HF_HUB_CACHE", "Where pulled models are kept; `hub` in the folder above by default"),
    ("HF_HUB_OFFLINE", "`1`: the hub is not asked"),
    ("HF_ENDPOINT", "Address of a mirror of the hub"),
    ("HF_TOKEN", "Key for models that the hub does not give to everyone; never shown"),
    ("HTTPS_PROXY", "Proxy on the way to the hub; `ALL_PROXY` too"),
    ("NO_PROXY", "Hosts that are asked without a proxy"),
    ("SSL_CERT_FILE", "Certificates to trust in place of the machine's"),
    ("XDG_CACHE_HOME", "The cache folder; `~/.cache` by default"),
    ("XDG_CONFIG_HOME", "Where `calla/config.toml` is looked for; `~/.config` by default"),
    ("XDG_STATE_HOME", "Where `calla/history` is kept; `~/.local/state` by default"),
    ("HOME", "What `~` stands for"),
];

/// The names of all variables that the program reads.
pub(super) fn variables(root: &Command) -> impl Iterator<Item = String> {
    let mut names: Vec<String> = OTHER_VARIABLES.iter().map(|(name, _)| (*name).into()).collect();
    let mut open = vec![root];
    while let Some(command) = open.pop() {
        names.extend(command.get_arguments().filter_map(schema::variable).map(str::to_owned));
        open.extend(command.get_subcommands());
    }
    names.into_iter()
}

/// The page.
pub(crate) fn markdown(root: &Command) -> String {
    let mut page = HEAD.to_owned();
    for (commands, rows) in groups(root) {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {}\n\n{TABLE_HEAD}", heading(&commands));
        for row in rows {
            page.push_str(&row.0);
        }
    }
    page.push_str("\n## Variables without a key\n\n| variable | meaning |\n|---|---|\n");
    for arg in root.get_arguments().filter(|arg| arg.get_id() == super::CONFIG) {
        let (meaning, default) = schema::help(arg);
        let variable = schema::variable(arg).unwrap_or_default();
        let flag = arg.get_long().unwrap_or_default();
        let default = default.unwrap_or_default();
        let _ = writeln!(page, "| `{variable}` | As `--{flag}`: {meaning}; by default {default} |");
    }
    for (name, meaning) in OTHER_VARIABLES {
        let _ = writeln!(page, "| `{name}` | {meaning} |");
    }
    page
}

const TABLE_HEAD: &str = "\
| key | value | variable | default | meaning |
|---|---|---|---|---|
";

/// A line of the table.
#[derive(PartialEq, Eq)]
struct Row(String);

fn heading(commands: &[String]) -> String {
    match commands {
        [only] if only.is_empty() => "Every command".into(),
        commands => format!("calla {}", commands.join(", ")),
    }
}

/// Settings with the commands that take them: what many share comes first.
fn groups(root: &Command) -> Vec<(Vec<String>, Vec<Row>)> {
    let mut rows: Vec<(Row, Vec<String>)> = Vec::new();
    let mut open = vec![(String::new(), root)];
    while let Some((path, command)) = open.pop() {
        for (key, arg) in schema::keys(command) {
            let row = row(key, command, arg);
            match rows.iter_mut().find(|(known, _)| *known == row) {
                Some((_, commands)) => commands.push(path.clone()),
                None => rows.push((row, vec![path.clone()])),
            }
        }
        let subs: Vec<&Command> = command.get_subcommands().collect();
        let below = |sub: &Command| format!("{path} {}", sub.get_name()).trim_start().to_owned();
        open.extend(subs.into_iter().rev().map(|sub| (below(sub), sub)));
    }
    let mut groups: Vec<(Vec<String>, Vec<Row>)> = Vec::new();
    for (row, commands) in rows {
        match groups.iter_mut().find(|(known, _)| *known == commands) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((commands, vec![row])),
        }
    }
    groups.sort_by_key(|(commands, _)| {
        let everywhere = commands.iter().any(String::is_empty);
        (!everywhere, std::cmp::Reverse(commands.len()))
    });
    groups
}

fn row(key: &str, command: &Command, arg: &Arg) -> Row {
    let (mut meaning, written) = schema::help(arg);
    let negation = schema::negation(command, arg);
    if let Some(negation) = negation {
        let _ = write!(meaning, "; `false`: {}", schema::help(negation).0);
    }
    let variable = schema::variable(arg).map(|name| format!("`{name}`")).unwrap_or_default();
    let default = match (arg.get_default_values(), written, Kind::of(arg)) {
        ([], Some(written), _) => written,
        ([], None, Kind::Switch) if negation.is_none() => "`false`".into(),
        ([], None, Kind::Count) => "`0`".into(),
        ([], None, _) => String::new(),
        (values, ..) => {
            let values = values.iter().map(|value| value.to_string_lossy());
            format!("`{}`", values.collect::<Vec<_>>().join(","))
        }
    };
    let cells = [format!("`{key}`"), value(arg), variable, default, meaning];
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    Row(format!("| {} |\n", cells.join(" | ").replace("  ", " ")))
}

/// What a setting can be: its choices, or its kind and name.
fn value(arg: &Arg) -> String {
    let choices = arg.get_possible_values();
    if !choices.is_empty() {
        let quote = if Kind::of(arg) == Kind::Text { "\"" } else { "" };
        let choices = choices.iter().map(|choice| format!("`{quote}{}{quote}`", choice.get_name()));
        return choices.collect::<Vec<_>>().join(" or ");
    }
    let name = arg.get_value_names().and_then(|names| names.first());
    match (Kind::of(arg), name) {
        (Kind::Switch, _) => "`true` or `false`".into(),
        (kind @ Kind::Count, _) | (kind, None) => kind.expected().into(),
        (kind, Some(name)) => format!("{} `{name}`", kind.expected()),
    }
}
