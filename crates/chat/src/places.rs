//! Places in a prompt from which later prompts are likely to continue.

use calla_text::{TextError, Tokenizer};

/// The openers of ChatML frames, as token ids. Each starts with `<|im_start|>`, which no other
/// token can merge with: whatever follows, a prompt cut there is a true prefix of its tokens.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    frame: Option<u32>,
    system: Vec<u32>,
    assistant: Vec<u32>,
}

impl Places {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        Ok(Self {
            frame: tokenizer.id("<|im_start|>"),
            system: tokenizer.encode("<|im_start|>system\n")?,
            assistant: tokenizer.encode("<|im_start|>assistant\n")?,
        })
    }

    /// Prompt lengths worth a snapshot: the end of the system block, which other conversations
    /// share, and the end of the last assistant opener, up to where the next turn of this
    /// conversation is the same even when its reasoning is dropped.
    pub(crate) fn of(&self, prompt: &[u32]) -> Vec<usize> {
        let Some(frame) = self.frame else { return Vec::new() };
        let mut places = Vec::new();
        if prompt.starts_with(&self.system) {
            let next = prompt.iter().skip(1).position(|&id| id == frame);
            places.extend(next.map(|index| index + 1));
        }
        let opener = prompt.windows(self.assistant.len()).rposition(|ids| ids == self.assistant);
        places.extend(opener.map(|index| index + self.assistant.len()));
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u32 = 100;

    fn places() -> Places {
        Places { frame: Some(FRAME), system: vec![FRAME, 1, 9], assistant: vec![FRAME, 3, 9] }
    }

    #[test]
    fn the_system_block_ends_where_the_next_frame_opens() {
        let prompt = [FRAME, 1, 9, 50, 51, FRAME, 2, 9, 52, FRAME, 3, 9, 60];
        assert_eq!(places().of(&prompt), [5, 12]);
    }

    #[test]
    fn of_several_openers_the_last_counts() {
        let prompt = [FRAME, 2, 9, FRAME, 3, 9, 53, FRAME, 2, 9, FRAME, 3, 9];
        assert_eq!(places().of(&prompt), [13]);
    }

    #[test]
    fn without_frames_there_is_no_place() {
        assert!(places().of(&[7, 8]).is_empty());
        assert!(Places { frame: None, ..places() }.of(&[FRAME, 3, 9]).is_empty());
    }
}
