//! Whether a model fits in the machine's memory, and with how long a context: known before it is
//! loaded.

use std::fmt;

use calla_engine::{
    EngineConfig,
    backend::{
        BackendOptions, SequenceBytes,
        select::{self, Choice},
    },
    checkpoint::Checkpoint,
    model::Shape,
};
use serde::Serialize;

use crate::{args::DeviceArgs, error::Error, machine::Memory, output::size};

/// A model on the device that would run it.
pub(crate) struct Fit<'a> {
    pub(crate) choice: Choice,
    shape: &'a Shape,
    options: BackendOptions,
    weights_bytes: u64,
}

/// Memory that a model takes with one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Need {
    pub(crate) weights_bytes: u64,
    /// Keys and values of the sequence's tokens.
    pub(crate) kv_bytes: u64,
    /// DeltaNet and convolution states of the sequence.
    pub(crate) state_bytes: u64,
    /// Intermediate results of forward passes.
    pub(crate) scratch_bytes: u64,
}

/// What is asked of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tokens that must fit, and the flag that asks for them; `None` takes as many as fit.
    pub(crate) tokens: Option<(usize, &'static str)>,
    /// Sequences of so many tokens at a time.
    pub(crate) sequences: usize,
    /// What kept states may take besides, if there is room.
    pub(crate) cache_bytes: u64,
}

/// What the memory has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Tokens of a sequence.
    pub(crate) context: usize,
    pub(crate) cache_bytes: u64,
}

impl Demand {
    /// What an engine will ask for.
    pub(crate) fn of(config: &EngineConfig) -> Self {
        Self {
            tokens: config.context_tokens.map(|tokens| (tokens, "max-context")),
            sequences: 1,
            cache_bytes: config.cache_bytes as u64,
        }
    }
}

impl<'a> Fit<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, device: &DeviceArgs) -> Result<Self, Error> {
        let Checkpoint { shape, weights, .. } = checkpoint;
        Ok(Self {
            choice: select::choose(device.backend.as_deref(), shape, weights)?,
            shape,
            options: device.options(),
            weights_bytes: checkpoint.figures().bytes,
        })
    }

    /// What the model takes with a sequence of so many tokens.
    pub(crate) fn need(&self, tokens: usize) -> Need {
        self.need_of(1, tokens)
    }

    /// The same with several sequences of that length.
    fn need_of(&self, sequences: usize, tokens: usize) -> Need {
        let footprint = self.choice.footprint(self.shape, &self.options, tokens);
        let all = |bytes: usize| (bytes as u64).saturating_mul(sequences as u64);
        Need {
            weights_bytes: self.weights_bytes,
            kv_bytes: all(footprint.sequence.kv),
            state_bytes: all(footprint.sequence.state),
            scratch_bytes: footprint.scratch as u64,
        }
    }

    /// What the model may fill: of the device's own memory where it has some, else of the machine's.
    pub(crate) fn room_bytes(&self, memory: &Memory) -> Option<u64> {
        let own = self.choice.room().map(|bytes| bytes as u64);
        own.or_else(|| memory.room_bytes())
    }

    /// What a sequence of so many tokens takes.
    pub(crate) fn sequence(&self, tokens: usize) -> SequenceBytes {
        self.choice.footprint(self.shape, &self.options, tokens).sequence
    }

    /// Type of a cached key or value.
    pub(crate) fn kv_dtype(&self) -> &'static str {
        self.choice.footprint(self.shape, &self.options, 0).kv_dtype
    }

    /// Bytes of keys and values that a token adds.
    pub(crate) fn kv_token_bytes(&self) -> u64 {
        // Far enough apart that pages of any size come out even.
        const TOKENS: u64 = 1 << 16;
        (self.need(2 * TOKENS as usize).kv_bytes - self.need(TOKENS as usize).kv_bytes) / TOKENS
    }

    /// The longest sequence that fits, as far as the model goes; `None` when not even a first
    /// token does.
    pub(crate) fn longest(&self, room_bytes: u64) -> Option<usize> {
        self.longest_of(1, room_bytes)
    }

    /// The same of several sequences as long as each other.
    fn longest_of(&self, sequences: usize, room_bytes: u64) -> Option<usize> {
        let fits = |tokens: usize| self.need_of(sequences, tokens).total_bytes() <= room_bytes;
        if !fits(1) {
            return None;
        }
        // `fits(low)` holds, `fits(high)` does not.
        let (mut low, mut high) = (1, self.shape.context_max + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match fits(middle) {
                true => low = middle,
                false => high = middle,
            }
        }
        Some(low)
    }

    /// What of the demand there is room for; without a number, all of it.
    ///
    /// # Errors
    /// [`Error::Memory`] when the tokens do not fit, or not even the model does.
    pub(crate) fn grant(&self, room_bytes: Option<u64>, demand: Demand) -> Result<Grant, Error> {
        let asked = demand.tokens.map(|(tokens, _)| tokens.min(self.shape.context_max));
        let Some(room) = room_bytes else {
            let context = asked.unwrap_or(self.shape.context_max);
            return Ok(Grant { context, cache_bytes: demand.cache_bytes });
        };
        let need = |tokens| self.need_of(demand.sequences, tokens);
        let longest_in = |room| self.longest_of(demand.sequences, room);
        let Some(longest) = longest_in(room) else {
            return Err(Self::model_refused(need(1), room));
        };
        let context = match (asked, demand.tokens) {
            (Some(asked), Some((_, flag))) if asked > longest => {
                return Err(Self::context_refused(asked, flag, need(asked), longest, room));
            }
            (Some(asked), _) => asked,
            (None, _) => {
                // The cache goes on as far as half of what is left: a context comes first.
                let left = room - need(1).total_bytes();
                let cache = demand.cache_bytes.min(left / 2);
                longest_in(room - cache).expect("one token and the cache fit")
            }
        };
        let left = room - need(context).total_bytes();
        Ok(Grant { context, cache_bytes: demand.cache_bytes.min(left) })
    }

    fn model_refused(need: Need, room: u64) -> Error {
        Error::Memory {
            subject: "the model".into(),
            need: format!("{} ({need})", size(need.total_bytes())),
            room: size(room),
            way_out: "take a smaller one, or free memory".into(),
        }
    }

    fn context_refused(
        tokens: usize,
        flag: &'static str,
        need: Need,
        longest: usize,
        room: u64,
    ) -> Error {
        Error::Memory {
            subject: format!("--{flag}: a context of {tokens} tokens"),
            need: format!("{} ({need})", size(need.total_bytes())),
            room: size(room),
            way_out: format!("at most {longest} tokens fit"),
        }
    }
}

impl Need {
    pub(crate) fn total_bytes(&self) -> u64 {
        let parts = [self.weights_bytes, self.kv_bytes, self.state_bytes, self.scratch_bytes];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "weights {}, KV cache {}, states {}, intermediate results {}",
            size(self.weights_bytes),
            size(self.kv_bytes),
            size(self.state_bytes),
            size(self.scratch_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use calla_engine::checkpoint::Source;

    use super::*;
    use crate::model::EMBEDDED;

    const CACHE: u64 = 1 << 30;
    const LONGEST: Demand = Demand { tokens: None, sequences: 1, cache_bytes: CACHE };

    fn with_seedling(test: impl Fn(&Fit<'_>, usize)) {
        let checkpoint = Checkpoint::open(&Source::embedded(EMBEDDED)).expect("it is embedded");
        let fit = Fit::new(&checkpoint, &DeviceArgs::default()).expect("every device takes it");
        test(&fit, checkpoint.shape.context_max);
    }

    fn tokens(tokens: usize) -> Demand {
        Demand { tokens: Some((tokens, "max-context")), ..LONGEST }
    }

    #[test]
    fn all_fits_where_there_is_room_or_nobody_knows() {
        with_seedling(|fit, context_max| {
            let all = Grant { context: context_max, cache_bytes: CACHE };
            for room in [Some(1 << 40), None] {
                assert_eq!(fit.grant(room, LONGEST).expect("it fits"), all);
                let asked = fit.grant(room, tokens(100)).expect("it fits");
                assert_eq!(asked, Grant { context: 100, ..all });
            }
        });
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_the_longest_that_does() {
        with_seedling(|fit, context_max| {
            let room = fit.need(300).total_bytes();
            let error = fit.grant(Some(room), tokens(context_max)).expect_err("it is too long");
            let message = error.to_string();
            // Pages are taken whole: 320 tokens need no more than 300.
            assert!(
                message.contains("--max-context") && message.contains("320 tokens"),
                "{message}"
            );
            let grant = fit.grant(Some(room), tokens(320)).expect("that fits");
            assert_eq!(grant, Grant { context: 320, cache_bytes: 0 });
        });
    }

    #[test]
    fn every_sequence_needs_its_own_states_and_pages() {
        with_seedling(|fit, _| {
            let one = fit.need(300);
            let room = one.total_bytes() + 3 * (one.kv_bytes + one.state_bytes);
            let four = Demand { sequences: 4, ..tokens(300) };
            assert_eq!(fit.grant(Some(room), four).expect("they fit").context, 300);
            let message = fit.grant(Some(room - 1), four).expect_err("one too many").to_string();
            assert!(message.contains("256 tokens"), "{message}");
        });
    }

    #[test]
    fn without_a_context_the_longest_is_taken_that_leaves_half_to_the_cache() {
        with_seedling(|fit, context_max| {
            let room = fit.need(1).total_bytes() + 2 * fit.need(512).kv_bytes;
            let grant = fit.grant(Some(room), LONGEST).expect("the model fits");
            assert!(grant.context >= 512 && grant.context < context_max, "{grant:?}");
            let taken = fit.need(grant.context).total_bytes() + grant.cache_bytes;
            assert!(taken <= room && grant.cache_bytes >= fit.need(448).kv_bytes, "{grant:?}");
        });
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused() {
        with_seedling(|fit, _| {
            let room = fit.need(1).total_bytes() - 1;
            for demand in [LONGEST, tokens(1)] {
                let message = fit.grant(Some(room), demand).expect_err("too little").to_string();
                assert!(message.contains("the model") && message.contains("weights"), "{message}");
            }
            assert_eq!(fit.longest(room), None);
            assert_eq!(fit.longest(room + 1), Some(64));
        });
    }

    #[test]
    fn a_token_adds_a_page_s_share() {
        with_seedling(|fit, _| {
            assert_eq!(64 * fit.kv_token_bytes(), fit.need(64).kv_bytes);
            assert_eq!(fit.kv_dtype(), "float16");
        });
    }
}
