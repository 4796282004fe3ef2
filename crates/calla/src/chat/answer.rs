//! One answer from its first event to its end.

use std::{future, io};

use calla_chat::{ChatEvent, ChatStream, Finish, Usage};

use super::show::Screen;

/// What was said, and how it ended.
pub(super) struct Answer {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) ended: Ended,
    /// Not known when the user stopped the answer.
    pub(super) usage: Option<Usage>,
}

pub(super) enum Ended {
    /// By the model.
    Whole,
    /// Before the model was done; what to tell the user.
    Early(String),
    /// By an error; what to tell the user.
    Failed(String),
}

/// Shows the answer while it is made. With `stoppable`, Ctrl-C ends the answer and, from then on,
/// never the program.
///
/// # Errors
/// When stdout cannot be written: the answer is given up.
pub(super) async fn show(
    mut stream: ChatStream,
    screen: &mut Screen,
    stoppable: bool,
) -> io::Result<Answer> {
    let mut answer = Answer {
        reasoning: String::new(),
        content: String::new(),
        ended: Ended::Failed("the engine ended without finishing the answer".into()),
        usage: None,
    };
    let mut stop = std::pin::pin!(interrupted(stoppable));
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = &mut stop => {
                answer.ended = Ended::Early("stopped".into());
                None
            }
        };
        let Some(event) = event else { break };
        answer.take(event, screen)?;
    }
    screen.end()?;
    Ok(answer)
}

impl Answer {
    fn take(&mut self, event: ChatEvent, screen: &mut Screen) -> io::Result<()> {
        match event {
            ChatEvent::Started { .. } | ChatEvent::Queued { .. } | ChatEvent::Prefill { .. } => {}
            ChatEvent::Logprob(_) => {}
            ChatEvent::Reasoning(text) => {
                screen.thinking(&text)?;
                self.reasoning.push_str(&text);
            }
            ChatEvent::Content(text) => self.say(&text, screen)?,
            // No tools are offered here; a model that calls one all the same is shown as it is.
            ChatEvent::ToolCallStart { name, .. } => {
                self.say(&format!("\n[tool call: {name}] "), screen)?;
            }
            ChatEvent::ToolCallArguments { json, .. } => self.say(&json, screen)?,
            ChatEvent::End { finish, usage } => {
                self.ended = ended(finish);
                self.usage = Some(usage);
            }
        }
        Ok(())
    }

    fn say(&mut self, text: &str, screen: &mut Screen) -> io::Result<()> {
        self.content.push_str(text);
        screen.answer(text)
    }
}

fn ended(finish: Finish) -> Ended {
    match finish {
        Finish::Stop | Finish::ToolCalls => Ended::Whole,
        Finish::Length => {
            Ended::Early("cut off: --max-tokens is reached, or the context is full".into())
        }
        Finish::Cancelled => Ended::Early("stopped".into()),
        Finish::Deadline => Ended::Early("cut off: the time is over".into()),
        Finish::NotANumber => {
            Ended::Failed("the model gave values that are not numbers: is it damaged?".into())
        }
        Finish::Failed(error) => Ended::Failed(error.to_string()),
    }
}

/// Returns at the next Ctrl-C; never when it shall end the program as usual.
async fn interrupted(stoppable: bool) {
    if !stoppable || tokio::signal::ctrl_c().await.is_err() {
        future::pending::<()>().await;
    }
}
