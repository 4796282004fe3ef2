//! The commands of a conversation: lines that begin with a slash and a word.

/// What `/help` prints.
pub(super) const HELP: &str = "\
/think [on|off]   think before answering, or not; alone: tell
/system [TEXT]    set the system message; `none` removes it; alone: tell
/reset            forget the conversation
/stats            what the last answer took
/help             this list
A backslash at the end of a line, or \"\"\" around a block, continues the message.
Ctrl-C stops an answer. Ctrl-D leaves.";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    /// Switch thinking, or tell.
    Think(Option<bool>),
    /// Set the system message, or tell.
    System(Option<String>),
    NoSystem,
    Reset,
    Stats,
}

/// The command in a line; `Ok(None)` when it is a message to the model.
///
/// # Errors
/// What to tell the user about a command that does not exist or is misused.
pub(super) fn parse(line: &str) -> Result<Option<Command>, String> {
    let line = line.trim();
    let Some(rest) = line.strip_prefix('/') else { return Ok(None) };
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    // A path such as /etc/hosts is the start of a question.
    if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphabetic()) {
        return Ok(None);
    }
    let argument = argument.trim();
    let command = match (word, argument) {
        ("help", "") => Command::Help,
        ("think", "") => Command::Think(None),
        ("think", "on") => Command::Think(Some(true)),
        ("think", "off") => Command::Think(Some(false)),
        ("think", other) => return Err(format!("/think {other}: expected on or off")),
        ("system", "") => Command::System(None),
        ("system", "none") => Command::NoSystem,
        ("system", text) => Command::System(Some(text.to_owned())),
        ("reset", "") => Command::Reset,
        ("stats", "") => Command::Stats,
        ("help" | "reset" | "stats", _) => return Err(format!("/{word} takes nothing after it")),
        _ => return Err(format!("/{word}: no such command; /help lists them")),
    };
    Ok(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_messages() {
        assert_eq!(parse(" /think off "), Ok(Some(Command::Think(Some(false)))));
        assert_eq!(parse("/system be brief"), Ok(Some(Command::System(Some("be brief".into())))));
        assert_eq!(parse("/system none"), Ok(Some(Command::NoSystem)));
        assert_eq!(parse("/reset"), Ok(Some(Command::Reset)));
        for message in ["hello", "what is /help?", "/etc/hosts: what is it?", "/ 2", ""] {
            assert_eq!(parse(message), Ok(None), "{message}");
        }
    }

    #[test]
    fn mistakes_are_told_and_not_sent_to_the_model() {
        for mistake in ["/thinks", "/think maybe", "/reset all"] {
            assert!(parse(mistake).is_err(), "{mistake}");
        }
    }
}
