//! A conversation: what was said, how to answer, and the loop that alternates the two.

use calla_chat::{ChatRequest, GenerationOptions, Message, Model, SamplingOverrides, Usage};
use tokio::runtime::{Builder, Runtime};

use crate::{args::ChatArgs, error::Error};

use super::{
    answer::{self, Answer, Ended},
    commands::{self, Command},
    editor::{Editor, Line},
    show::Screen,
};

/// One conversation with one model.
pub(super) struct Session {
    model: Model,
    runtime: Runtime,
    screen: Screen,
    options: GenerationOptions,
    /// Whether to think; `None` leaves it to the model.
    thinking: Option<bool>,
    system: Option<String>,
    turns: Vec<Message>,
    last_usage: Option<Usage>,
}

impl Session {
    pub(super) fn new(model: Model, args: &ChatArgs, screen: Screen) -> Result<Self, Error> {
        // A worker of its own hears signals also while the main thread reads the terminal.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Ok(Self {
            model,
            runtime: runtime.map_err(Error::Runtime)?,
            screen,
            options: GenerationOptions {
                sampling: SamplingOverrides { seed: args.seed, ..SamplingOverrides::default() },
                tokens_max: args.max_tokens.map(|tokens| tokens.get()),
                ..GenerationOptions::default()
            },
            thinking: args.thinking(),
            system: args.system.clone(),
            turns: Vec::new(),
            last_usage: None,
        })
    }

    /// Answers one prompt. Ctrl-C ends the program, as it ends any.
    pub(super) fn answer_once(&mut self, prompt: String) -> Result<(), Error> {
        match self.answer(prompt, false)?.ended {
            Ended::Failed(problem) => Err(Error::Answer { problem }),
            Ended::Early(note) => Ok(self.screen.note(&note)?),
            Ended::Whole => Ok(()),
        }
    }

    /// Asks and answers until the user leaves.
    pub(super) fn converse(&mut self) -> Result<(), Error> {
        let mut editor = Editor::new()?;
        self.screen.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")?;
        loop {
            let line = match editor.read()? {
                Line::Text(line) if line.trim().is_empty() => continue,
                Line::Text(line) => line,
                Line::Cleared => continue,
                Line::NotText => {
                    let note =
                        "that line is not UTF-8: set the terminal to it, and type the line again";
                    self.screen.note(note)?;
                    continue;
                }
                Line::End => return Ok(()),
            };
            match commands::parse(&line) {
                Ok(Some(command)) => {
                    let reply = self.obey(command);
                    self.screen.note(&reply)?;
                }
                Ok(None) => self.take_turn(line)?,
                Err(problem) => self.screen.note(&problem)?,
            }
        }
    }

    /// One question and its answer. A failure is shown, and the conversation goes on as if the
    /// question had not been asked.
    fn take_turn(&mut self, question: String) -> Result<(), Error> {
        let answer = match self.answer(question, true) {
            Ok(answer) => answer,
            Err(Error::Chat(error)) => {
                self.turns.pop();
                return Ok(self.screen.note(&error.to_string())?);
            }
            Err(error) => return Err(error),
        };
        match answer.ended {
            Ended::Failed(problem) => {
                self.turns.pop();
                return Ok(self.screen.note(&problem)?);
            }
            Ended::Early(note) => self.screen.note(&note)?,
            Ended::Whole => {}
        }
        let reasoning = (!answer.reasoning.is_empty()).then_some(answer.reasoning);
        self.turns.push(Message { reasoning, ..Message::assistant(answer.content) });
        self.last_usage = answer.usage;
        Ok(())
    }

    /// Adds the question to the conversation and shows what the model says to it.
    fn answer(&mut self, question: String, stoppable: bool) -> Result<Answer, Error> {
        self.turns.push(Message::user(question));
        let system = self.system.iter().map(Message::system);
        let stream = self.model.chat(ChatRequest {
            messages: system.chain(self.turns.iter().cloned()).collect(),
            thinking: self.thinking,
            options: self.options.clone(),
            ..ChatRequest::default()
        })?;
        let shown = answer::show(stream, &mut self.screen, stoppable);
        Ok(self.runtime.block_on(shown)?)
    }

    /// Does what a command asks and says what holds now.
    fn obey(&mut self, command: Command) -> String {
        match command {
            Command::Help => return commands::HELP.into(),
            Command::Stats => return self.stats(),
            Command::Reset => {
                self.turns.clear();
                self.last_usage = None;
                return "the conversation is forgotten".into();
            }
            Command::Think(choice) => {
                self.thinking = choice.or(self.thinking);
                let on = self.thinking.unwrap_or(self.model.thinks_by_default());
                return format!("thinking is {}", if on { "on" } else { "off" });
            }
            Command::System(Some(text)) => self.system = Some(text),
            Command::System(None) => {}
            Command::NoSystem => self.system = None,
        }
        match &self.system {
            Some(text) => format!("system message: {text}"),
            None => "no system message".into(),
        }
    }

    /// What the last answer took.
    fn stats(&self) -> String {
        let Some(usage) = &self.last_usage else {
            return "no whole answer yet".into();
        };
        let per_second = |tokens: usize, time: std::time::Duration| match time.as_secs_f64() {
            0.0 => "-".to_owned(),
            seconds => format!("{:.1} tok/s", tokens as f64 / seconds),
        };
        let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        format!(
            "prompt   {} tokens, {} of them reused, {}\n\
             answer   {} tokens, {} of them thinking, {}\n\
             context  {} of {} tokens",
            usage.prompt_tokens,
            usage.cached_tokens,
            per_second(computed, usage.prefill),
            usage.completion_tokens,
            usage.reasoning_tokens,
            per_second(usage.completion_tokens, usage.decode),
            usage.prompt_tokens + usage.completion_tokens,
            self.model.context_tokens(),
        )
    }
}
