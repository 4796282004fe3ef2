use super::{dot, silu};
use crate::model::DeltaNetShape;

/// Tokens that [`delta_chunked`] handles at once.
pub const CHUNK_TOKENS: usize = 64;

/// What the new tokens bring to the recurrence.
#[derive(Debug, Clone)]
pub struct DeltaInputs {
    /// Of length 1 / sqrt(key_dim) each [tokens, key_heads, key_dim].
    pub queries: Vec<f32>,
    /// Of length 1 each [tokens, key_heads, key_dim].
    pub keys: Vec<f32>,
    /// [tokens, value_heads, value_dim]
    pub values: Vec<f32>,
    /// Logarithm of the decay g, at most 0 [tokens, value_heads].
    pub decay_log: Vec<f32>,
    /// Write strength β in (0, 1) [tokens, value_heads].
    pub beta: Vec<f32>,
}

/// Causal depthwise convolution over the tokens, then SiLU. The last tap weighs the current token.
/// `state` holds the raw inputs of the last tokens before and after.
pub fn conv_silu(
    x: &[f32],         // [tokens, channels]
    weights: &[f32],   // [channels, taps]
    state: &mut [f32], // [taps - 1, channels], oldest first
    taps: usize,
) -> Vec<f32> {
    let channels = weights.len() / taps;
    assert_eq!(state.len(), (taps - 1) * channels);
    assert!(x.len().is_multiple_of(channels));
    let history = [&*state, x].concat(); // [taps - 1 + tokens, channels]
    let mut y = vec![0.0; x.len()]; // [tokens, channels]
    for (token, y) in y.chunks_exact_mut(channels).enumerate() {
        for (channel, y) in y.iter_mut().enumerate() {
            let sum: f32 = (0..taps)
                .map(|tap| {
                    weights[channel * taps + tap] * history[(token + tap) * channels + channel]
                })
                .sum();
            *y = silu(sum);
        }
    }
    state.copy_from_slice(&history[x.len()..]);
    y
}

/// Takes apart the convolution's channels: queries and keys [tokens, key_heads, key_dim], values
/// [tokens, value_heads, value_dim].
pub fn split_qkv(
    shape: &DeltaNetShape,
    qkv: &[f32], // [tokens, conv_channels]
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    assert!(qkv.len().is_multiple_of(shape.conv_channels()));
    let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for row in qkv.chunks_exact(shape.conv_channels()) {
        let (query, rest) = row.split_at(shape.key_width());
        let (key, value) = rest.split_at(shape.key_width());
        queries.extend_from_slice(query);
        keys.extend_from_slice(key);
        values.extend_from_slice(value);
    }
    (queries, keys, values)
}

/// Logarithm of the decay: `-exp(a_log) * softplus(a + dt_bias)`.
pub fn decay_log(
    a: &[f32],       // [tokens, value_heads]
    a_log: &[f32],   // [value_heads]
    dt_bias: &[f32], // [value_heads]
) -> Vec<f32> {
    let heads = a_log.len();
    assert!(a.len().is_multiple_of(heads));
    let one = |(index, a): (usize, &f32)| {
        let head = index % heads;
        -a_log[head].exp() * softplus(a + dt_bias[head])
    };
    a.iter().enumerate().map(one).collect() // [tokens, value_heads]
}

/// The gated delta rule, token by token; for each value head, with its state S:
///
/// `S ← g·S`, `δ = β·(v − S·k)`, `S ← S + δ⊗k`, `o = S·q`
///
/// The definition, after Yang et al., "Gated Delta Networks" (2024).
pub fn delta_recurrent(
    shape: &DeltaNetShape,
    inputs: &DeltaInputs,
    state: &mut [f32], // [value_heads, value_dim, key_dim]
) -> Vec<f32> {
    let mut out = vec![0.0; inputs.values.len()]; // [tokens, value_heads, value_dim]
    for token in 0..inputs.tokens(shape) {
        for head in 0..shape.value_heads {
            let state = head_state(shape, state, head);
            let (query, key) = inputs.query_key(shape, token, head);
            let gate = token * shape.value_heads + head;
            let (decay, beta) = (inputs.decay_log[gate].exp(), inputs.beta[gate]);
            for (dim, state) in state.chunks_exact_mut(shape.key_dim).enumerate() {
                let at = gate * shape.value_dim + dim;
                state.iter_mut().for_each(|state| *state *= decay);
                let delta = beta * (inputs.values[at] - dot(state, key));
                state.iter_mut().zip(key).for_each(|(state, key)| *state += delta * key);
                out[at] = dot(state, query);
            }
        }
    }
    out
}

/// The same in chunks of [`CHUNK_TOKENS`], for hardware that likes matrix products; equal to
/// [`delta_recurrent`] up to rounding.
///
/// With `Γ(t, j)` the decay from token j to token t and S the state before the chunk, unrolling
/// the recurrence gives
///
/// `δ_t = β_t·(v_t − Γ(t, 0)·S·k_t − Σ_{j<t} Γ(t, j)·(k_j·k_t)·δ_j)`
///
/// `o_t = Γ(t, 0)·S·q_t + Σ_{j≤t} Γ(t, j)·(k_j·q_t)·δ_j`
///
/// The first line is a triangular system for δ, solved from the top down. Inverting its matrix by
/// a power series instead overflows where neighbouring keys are alike and the decay is slow.
pub fn delta_chunked(
    shape: &DeltaNetShape,
    inputs: &DeltaInputs,
    state: &mut [f32], // [value_heads, value_dim, key_dim]
) -> Vec<f32> {
    let tokens = inputs.tokens(shape);
    let mut out = vec![0.0; inputs.values.len()]; // [tokens, value_heads, value_dim]
    for start in (0..tokens).step_by(CHUNK_TOKENS) {
        let end = tokens.min(start + CHUNK_TOKENS);
        for head in 0..shape.value_heads {
            let state = head_state(shape, state, head);
            chunk(shape, inputs, start..end, head, state, &mut out);
        }
    }
    out
}

/// One chunk of one head.
fn chunk(
    shape: &DeltaNetShape,
    inputs: &DeltaInputs,
    tokens: std::ops::Range<usize>,
    head: usize,
    state: &mut [f32], // [value_dim, key_dim]
    out: &mut [f32],   // [all tokens, value_heads, value_dim]
) {
    let len = tokens.len();
    let at = |t: usize| (tokens.start + t) * shape.value_heads + head;
    let mut decay_sum = 0.0;
    let decay_sums: Vec<f32> = (0..len)
        .map(|t| {
            decay_sum += inputs.decay_log[at(t)];
            decay_sum
        })
        .collect(); // [len], logarithm of the decay from the chunk's start to after token t

    let mut deltas = vec![0.0; len * shape.value_dim]; // [len, value_dim]
    for t in 0..len {
        let (query, key) = inputs.query_key(shape, tokens.start + t, head);
        let carried = decay_sums[t].exp();
        let value = &inputs.values[at(t) * shape.value_dim..][..shape.value_dim];
        let out = &mut out[at(t) * shape.value_dim..][..shape.value_dim];
        let (solved, rest) = deltas.split_at_mut(t * shape.value_dim);
        let delta = &mut rest[..shape.value_dim];

        // what the state before the chunk gives
        for (dim, state) in state.chunks_exact(shape.key_dim).enumerate() {
            delta[dim] = value[dim] - carried * dot(state, key);
            out[dim] = carried * dot(state, query);
        }
        // what the chunk's earlier tokens give
        for (j, earlier) in solved.chunks_exact(shape.value_dim).enumerate() {
            let (_, key_j) = inputs.query_key(shape, tokens.start + j, head);
            let decay = (decay_sums[t] - decay_sums[j]).exp();
            let (by_key, by_query) = (decay * dot(key_j, key), decay * dot(key_j, query));
            for dim in 0..shape.value_dim {
                delta[dim] -= by_key * earlier[dim];
                out[dim] += by_query * earlier[dim];
            }
        }
        // what the token itself gives
        let by_query = dot(key, query);
        for (delta, out) in delta.iter_mut().zip(out) {
            *delta *= inputs.beta[at(t)];
            *out += by_query * *delta;
        }
    }

    let last = decay_sums[len - 1];
    for (dim, state) in state.chunks_exact_mut(shape.key_dim).enumerate() {
        state.iter_mut().for_each(|state| *state *= last.exp());
        for t in 0..len {
            let (_, key) = inputs.query_key(shape, tokens.start + t, head);
            let delta = (last - decay_sums[t]).exp() * deltas[t * shape.value_dim + dim];
            state.iter_mut().zip(key).for_each(|(state, key)| *state += delta * key);
        }
    }
}

impl DeltaInputs {
    /// Number of tokens.
    fn tokens(&self, shape: &DeltaNetShape) -> usize {
        let tokens = self.beta.len() / shape.value_heads;
        assert_eq!(self.queries.len(), tokens * shape.key_width());
        assert_eq!(self.keys.len(), tokens * shape.key_width());
        assert_eq!(self.values.len(), tokens * shape.value_width());
        assert_eq!(self.decay_log.len(), tokens * shape.value_heads);
        tokens
    }

    /// The query and the key [key_dim] that a value head uses.
    fn query_key(
        &self,
        shape: &DeltaNetShape,
        token: usize,
        value_head: usize,
    ) -> (&[f32], &[f32]) {
        let key_head = value_head / (shape.value_heads / shape.key_heads);
        let at = token * shape.key_width() + key_head * shape.key_dim;
        (&self.queries[at..][..shape.key_dim], &self.keys[at..][..shape.key_dim])
    }
}

/// The state [value_dim, key_dim] of one head.
fn head_state<'a>(shape: &DeltaNetShape, state: &'a mut [f32], head: usize) -> &'a mut [f32] {
    let len = shape.value_dim * shape.key_dim;
    &mut state[head * len..][..len]
}

/// `ln(1 + exp(x))`, exact for large `x` too.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
