//! Where reasoning starts: the markers around it, and what the prompt has already written of it.

pub(crate) const OPEN: &str = "<think>";
pub(crate) const CLOSE: &str = "</think>";

/// Newlines that the template writes between `</think>` and the answer.
pub(crate) const NEWLINES_AFTER_CLOSE: usize = 2;
/// Newlines that the template writes after `<think>`.
pub(crate) const NEWLINES_AFTER_OPEN: usize = 1;

/// Where the model's text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) inside_reasoning: bool,
    /// Newlines of the frame that the prompt left for the model to write.
    pub(crate) newlines_due: usize,
}

impl Start {
    /// Reads the end of a rendered prompt. Only the assistant's open turn counts: earlier turns may
    /// quote the markers.
    pub(crate) fn from_prompt_tail(prompt_tail: &str) -> Self {
        const TURN: &str = "<|im_start|>";
        let nothing_open = Self { inside_reasoning: false, newlines_due: 0 };
        let turn = prompt_tail.rfind(TURN).map(|at| &prompt_tail[at + TURN.len()..]);
        if turn.is_some_and(|turn| !turn.starts_with("assistant")) {
            return nothing_open;
        }
        let turn = turn.unwrap_or(prompt_tail);
        let due = |after: &str, frame: usize| {
            let only_newlines = after.bytes().all(|b| b == b'\n');
            if only_newlines { frame.saturating_sub(after.len()) } else { 0 }
        };
        match (turn.rfind(OPEN), turn.rfind(CLOSE)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Self {
                inside_reasoning: true,
                newlines_due: due(&turn[open + OPEN.len()..], NEWLINES_AFTER_OPEN),
            },
            (_, Some(close)) => Self {
                inside_reasoning: false,
                newlines_due: due(&turn[close + CLOSE.len()..], NEWLINES_AFTER_CLOSE),
            },
            _ => nothing_open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_tail_decides() {
        let cases = [
            ("<|im_start|>assistant\n<think>\n", true, 0),
            ("<|im_start|>assistant\n<think>", true, 1),
            ("<|im_start|>assistant\n<think>\nSo far", true, 0),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", false, 0),
            ("<|im_start|>assistant\n<think>\n\n</think>", false, 2),
            ("<|im_start|>assistant\n<think>\na\n</think>\n\nThe answer", false, 0),
            ("<|im_start|>assistant\n", false, 0),
            ("<|im_start|>user\nwhat is <think>", false, 0),
            ("<|im_start|>user\n<think>\n<|im_end|>\n<|im_start|>assistant\n", false, 0),
            ("<think>\n", true, 0),
            ("", false, 0),
        ];
        for (tail, inside_reasoning, newlines_due) in cases {
            let want = Start { inside_reasoning, newlines_due };
            assert_eq!(Start::from_prompt_tail(tail), want, "{tail:?}");
        }
    }
}
