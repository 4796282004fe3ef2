//! `calla config`.

use std::{ffi::OsString, path::Path};

use clap::CommandFactory as _;
use serde_json::{Map, Value, json};

use crate::{
    args::{Cli, ConfigArgs},
    error::Error,
    output,
    settings::{self, Report, Setting, Source},
};

pub(crate) fn run(args: &ConfigArgs, file: Option<&Path>) -> Result<(), Error> {
    if args.reference {
        return output::text(&settings::markdown(&Cli::command()));
    }
    for name in settings::unknown_variables() {
        output::warn(&format!("{name} is set, and no such variable is read: see docs/env.md"));
    }
    let line: Vec<OsString> =
        [OsString::from("calla")].into_iter().chain(args.line.iter().cloned()).collect();
    let report = settings::report(&line, file)?;
    if args.output.json { output::json(&to_json(&report)) } else { output::text(&to_text(&report)) }
}

fn to_json(report: &Report) -> Value {
    let settings = |settings: &[Setting]| -> Value {
        let entry = |setting: &Setting| (setting.key.clone(), setting_json(setting));
        Value::Object(settings.iter().map(entry).collect())
    };
    let commands: Map<String, Value> =
        (report.commands.iter()).map(|(name, own)| (name.clone(), settings(own))).collect();
    json!({
        "file": report.file,
        "everywhere": settings(&report.everywhere),
        "commands": commands,
    })
}

fn setting_json(setting: &Setting) -> Value {
    let value = match &setting.values[..] {
        [] => Value::Null,
        _ if setting.is_secret => Value::from(HIDDEN),
        [one] => Value::from(one.as_str()),
        several => Value::from(several),
    };
    match &setting.source {
        Source::Flag => json!({"value": value, "source": "flag"}),
        Source::Environment(name) => {
            json!({"value": value, "source": "environment", "variable": name})
        }
        Source::File(line) => json!({"value": value, "source": "file", "line": line}),
        Source::Default => json!({"value": value, "source": "default"}),
    }
}

const HIDDEN: &str = "(hidden)";

fn to_text(report: &Report) -> String {
    let file = report.file.as_deref().map(Path::display);
    let mut text = match file {
        Some(path) => format!("config file: {path}\n"),
        None => "config file: none\n".to_owned(),
    };
    let everywhere = [(String::from("every command"), &report.everywhere)];
    let commands = report.commands.iter().map(|(name, own)| (format!("calla {name}"), own));
    for (title, settings) in everywhere.into_iter().chain(commands) {
        if settings.is_empty() {
            continue;
        }
        text.push_str(&format!("\n{title}\n"));
        let rows: Vec<[String; 3]> = settings.iter().map(columns).collect();
        let width = |column: usize| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0).min(WIDTH_MAX)
        };
        let (first, second) = (width(0), width(1));
        for [key, value, source] in &rows {
            text.push_str(&format!("  {key:first$}  {value:second$}  {source}\n"));
        }
    }
    text
}

/// Longest value that others are aligned with.
const WIDTH_MAX: usize = 48;

fn columns(setting: &Setting) -> [String; 3] {
    let value = match (&setting.values[..], &setting.otherwise) {
        ([], Some(words)) => words.clone(),
        ([], None) => "-".into(),
        _ if setting.is_secret => HIDDEN.into(),
        (values, _) => values.join(","),
    };
    let source = match &setting.source {
        Source::Flag => "flag".into(),
        Source::Environment(name) => format!("environment, {name}"),
        Source::File(line) => format!("file, line {line}"),
        Source::Default => "default".into(),
    };
    let value = value.chars().flat_map(|c| match c {
        c if c.is_control() => c.escape_default().collect::<Vec<_>>(),
        c => vec![c],
    });
    [setting.key.clone(), value.collect(), source]
}
