//! The examples at the end of a command's help.

use clap::Command;

/// The lines under `Examples:`, without the space in front.
pub(crate) fn examples(command: &Command) -> Vec<String> {
    let Some(text) = command.get_after_help() else { return Vec::new() };
    let text = text.to_string();
    let Some((_, lines)) = text.split_once("Examples:\n") else { return Vec::new() };
    lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, error::ErrorKind};

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_command_ends_its_help_with_two_to_four_examples_that_can_be_parsed() {
        let mut open = vec![(String::from("calla"), Cli::command())];
        while let Some((name, command)) = open.pop() {
            let examples = joined(&examples(&command));
            assert!(
                (2..=4).contains(&examples.len()),
                "{name}: after_help holds {} lines under `Examples:`, expected 2 to 4",
                examples.len()
            );
            let calls: Vec<_> = examples.iter().flat_map(|example| calls(example)).collect();
            assert!(!calls.is_empty(), "{name}: no example calls calla");
            for call in calls {
                if let Err(error) = Cli::command().try_get_matches_from(&call) {
                    assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{name}: {call:?}: {error}");
                }
            }
            open.extend(
                command
                    .get_subcommands()
                    .map(|sub| (format!("{name} {}", sub.get_name()), sub.clone())),
            );
        }
    }

    /// Whole examples: a backslash at the end of a line continues it.
    fn joined(lines: &[String]) -> Vec<String> {
        let text = lines.join("\n").replace("\\\n", " ");
        text.lines().map(str::to_owned).collect()
    }

    /// The calls of calla in a line of shell, without its pipes and redirections.
    fn calls(example: &str) -> Vec<Vec<String>> {
        let words = shlex::split(example).expect("quotes are closed");
        let calls = words.split(|word| ["|", "&&", ";", "&"].contains(&word.as_str()));
        let plain = |call: &[String]| -> Vec<String> {
            call.iter().take_while(|word| !word.starts_with(['<', '>'])).cloned().collect()
        };
        calls.map(plain).filter(|call| call.first().is_some_and(|word| word == "calla")).collect()
    }
}
