//! Reading what the user types: editing, history, messages of several lines.

use std::{fs, io, path::PathBuf};

use rustyline::{
    Config, Editor as Rustyline, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::DefaultHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use crate::{error::Error, folders};

const PROMPT: &str = "> ";
/// Opens and closes a block of lines.
const FENCE: &str = "\"\"\"";
const HISTORY_LINES_MAX: usize = 1000;

/// A line editor with a history that outlives the program.
pub(super) struct Editor {
    lines: Rustyline<Continuation, DefaultHistory>,
    history: Option<PathBuf>,
}

/// What the user did at the prompt.
pub(super) enum Line {
    /// A message or a command, without what joined its lines.
    Text(String),
    /// Ctrl-C: the line is thrown away.
    Cleared,
    /// Bytes that are no UTF-8: the line is thrown away.
    NotText,
    /// Ctrl-D.
    End,
}

impl Editor {
    pub(super) fn new() -> Result<Self, Error> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES_MAX)
            .map(|builder| builder.auto_add_history(false).build())
            .map_err(terminal)?;
        let mut lines = Rustyline::with_config(config).map_err(terminal)?;
        lines.set_helper(Some(Continuation));
        let history = history_file();
        if let Some(path) = &history {
            // A first run has none; an unreadable one is no reason not to talk.
            if let Err(error) = lines.load_history(path) {
                tracing::debug!("{}: {error}", path.display());
            }
        }
        Ok(Self { lines, history })
    }

    pub(super) fn read(&mut self) -> Result<Line, Error> {
        let line = match self.lines.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => return Ok(Line::Cleared),
            Err(ReadlineError::Eof) => return Ok(Line::End),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Ok(Line::NotText);
            }
            Err(error) => return Err(terminal(error)),
        };
        if !line.trim().is_empty() {
            self.remember(&line);
        }
        Ok(Line::Text(joined(&line)))
    }

    /// Adds to the history, and to its file at once: a killed program forgets nothing.
    fn remember(&mut self, line: &str) {
        let added = self.lines.add_history_entry(line).unwrap_or(false);
        let Some(path) = self.history.as_ref().filter(|_| added) else { return };
        if let Err(error) = self.lines.append_history(path) {
            tracing::warn!("{}: {error}: the history is not kept", path.display());
            self.history = None;
        }
    }
}

/// The history's file under the XDG state folder; `None` where no such folder can be had.
fn history_file() -> Option<PathBuf> {
    let folder = folders::state()?;
    if let Err(error) = fs::create_dir_all(&folder) {
        tracing::warn!("{}: {error}: the history is not kept", folder.display());
        return None;
    }
    Some(folder.join("history"))
}

/// What the typed lines say: joining backslashes and fences are taken away.
fn joined(line: &str) -> String {
    let trimmed = line.trim();
    if let Some(block) = trimmed.strip_prefix(FENCE) {
        let block = block.strip_suffix(FENCE).unwrap_or(block);
        return block.trim_matches('\n').to_owned();
    }
    line.replace("\\\n", "\n")
}

/// Whether more lines belong to the message.
fn is_open(line: &str) -> bool {
    match line.trim_start().strip_prefix(FENCE) {
        Some(block) => !block.trim_end().ends_with(FENCE),
        None => line.ends_with('\\'),
    }
}

/// Tells the editor when Enter ends the message.
struct Continuation;

impl Validator for Continuation {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_open(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Continuation {
    type Candidate = String;
}

impl Hinter for Continuation {
    type Hint = String;
}

impl Highlighter for Continuation {}

impl Helper for Continuation {}

fn terminal(error: ReadlineError) -> Error {
    Error::Input { input: "terminal", problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_or_a_fence_keeps_the_message_open() {
        for open in ["a\\", "a\\\nb\\", "\"\"\"", "\"\"\"a\nb", "  \"\"\"a\n\n"] {
            assert!(is_open(open), "{open:?}");
        }
        for closed in ["", "a", "a\\\nb", "\"\"\"a\nb\"\"\"", "\"\"\"\"\"\"", "say \"\"\""] {
            assert!(!is_open(closed), "{closed:?}");
        }
    }

    #[test]
    fn what_joined_the_lines_is_not_part_of_the_message() {
        assert_eq!(joined("a\\\nb"), "a\nb");
        assert_eq!(joined("\"\"\"\na \\ b\n\nc\n\"\"\""), "a \\ b\n\nc");
        assert_eq!(joined("a\\b"), "a\\b");
    }
}
