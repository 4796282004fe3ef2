//! Step 7: from logits to the next token.

/// Most alternatives that [`crate::Request::logprobs`] may ask for.
pub const ALTERNATIVES_MAX: usize = 20;

/// How the next token is chosen. The order is fixed: logit bias, penalties, temperature, top-k,
/// top-p, min-p, then one draw from what is left. Temperature 0 takes the largest logit, the lower
/// id on a tie. Penalties count generated tokens only.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy. In [0, 2].
    pub temperature: f32,
    /// Keeps the k largest logits; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens with at least this probability together. In (0, 1].
    pub top_p: f32,
    /// Keeps tokens with at least this share of the largest probability. In [0, 1].
    pub min_p: f32,
    /// Subtracted once for each token that was generated before. In [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted for each time that a token was generated before. In [-2, 2].
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of generated tokens; 1 is off. Above 0.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens. In [-100, 100].
    pub logit_bias: Vec<(u32, f32)>,
    /// Start of the random stream: the same seed and request give the same tokens. Without it the
    /// engine takes one at random.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}
