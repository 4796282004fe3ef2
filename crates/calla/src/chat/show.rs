//! Step 9 on a terminal: thinking dim, the answer plain, nothing that could steer the terminal.

use std::{
    borrow::Cow,
    io::{self, IsTerminal as _, Stdout, Write as _},
};

use crate::output;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Where an answer appears.
pub(super) struct Screen {
    out: Stdout,
    is_terminal: bool,
    has_colour: bool,
    part: Part,
    at_line_start: bool,
}

/// What was written last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Thinking,
    Answer,
}

impl Screen {
    pub(super) fn of_stdout() -> Self {
        let out = io::stdout();
        let is_terminal = out.is_terminal();
        Screen {
            out,
            is_terminal,
            has_colour: is_terminal && !output::no_color(),
            part: Part::Nothing,
            at_line_start: true,
        }
    }

    /// A piece of thinking: dim, or between `<think>` and `</think>` where there is no colour.
    pub(super) fn thinking(&mut self, text: &str) -> io::Result<()> {
        if self.part != Part::Thinking {
            self.part = Part::Thinking;
            if !self.has_colour {
                self.write("<think>\n")?;
            }
        }
        if !self.has_colour {
            return self.write(text);
        }
        // Dim ends with each piece, so that an interrupted program leaves no dim terminal.
        self.out.write_all(DIM.as_bytes())?;
        self.write(text)?;
        self.out.write_all(PLAIN.as_bytes())?;
        self.out.flush()
    }

    /// A piece of the answer.
    pub(super) fn answer(&mut self, text: &str) -> io::Result<()> {
        self.end_thinking()?;
        self.part = Part::Answer;
        self.write(text)
    }

    /// The answer is over: the next thing stands on a line of its own.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.end_thinking()?;
        self.part = Part::Nothing;
        self.end_line()
    }

    /// Lines from the program and not from the model: to stderr, so that stdout holds the answer.
    pub(super) fn note(&mut self, lines: &str) -> io::Result<()> {
        let mut err = io::stderr().lock();
        if err.is_terminal() && !output::no_color() {
            writeln!(err, "{DIM}{lines}{PLAIN}")
        } else {
            writeln!(err, "{lines}")
        }
    }

    fn end_thinking(&mut self) -> io::Result<()> {
        if self.part != Part::Thinking {
            return Ok(());
        }
        self.part = Part::Nothing;
        self.end_line()?;
        self.write(if self.has_colour { "\n" } else { "</think>\n\n" })
    }

    fn end_line(&mut self) -> io::Result<()> {
        if self.at_line_start { Ok(()) } else { self.write("\n") }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let Some(last) = text.chars().next_back() else { return Ok(()) };
        self.at_line_start = last == '\n';
        let text = if self.is_terminal { harmless(text) } else { Cow::Borrowed(text) };
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

/// Without control characters, which a terminal would obey.
fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    match text.contains(obeyed) {
        true => Cow::Owned(text.replace(obeyed, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_cannot_steer_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\rc\u{9b}d"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d");
        assert_eq!(harmless("é\n\t🙂"), "é\n\t🙂");
    }
}
