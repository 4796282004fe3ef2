//! `calla chat`: one answer, or a conversation on a terminal.

mod answer;
mod commands;
mod editor;
mod session;
mod show;

use std::io::{self, IsTerminal as _};

use crate::{args::ChatArgs, error::Error, input, model};

use self::{session::Session, show::Screen};

pub(crate) fn run(args: &ChatArgs, verbose: u8) -> Result<(), Error> {
    let interactive =
        args.prompt.is_none() && io::stdin().is_terminal() && io::stdout().is_terminal();
    // Before the model is loaded: a mistake here should not cost the wait.
    let prompt = if interactive { None } else { Some(one_prompt(args.prompt.as_deref())?) };
    let sampling = args.sampling.overrides();
    let engine = args.engine.config(None);
    let model = model::load_chat(&args.model, &args.backend, engine, sampling, verbose)?;
    let mut session = Session::new(model, args, Screen::of_stdout())?;
    match prompt {
        Some(prompt) => session.answer_once(prompt),
        None => session.converse(),
    }
}

/// The argument, then what is piped in.
fn one_prompt(argument: Option<&str>) -> Result<String, Error> {
    let mut prompt = argument.unwrap_or_default().to_owned();
    if !io::stdin().is_terminal() {
        let piped = input::stdin()?;
        if !prompt.is_empty() && !piped.trim().is_empty() {
            prompt.push_str("\n\n");
        }
        prompt.push_str(&piped);
    }
    if prompt.trim().is_empty() {
        let problem = "is empty: give it as an argument or through a pipe".into();
        return Err(Error::Prompt { problem });
    }
    Ok(prompt)
}
