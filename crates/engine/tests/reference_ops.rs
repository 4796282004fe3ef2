//! The reference's ops against values worked out by hand or in f64. Whole models are compared with
//! mlx-lm in `parity.rs`; these tests say which op is at fault.

mod common;

use std::sync::Arc;

use calla_engine::{
    backend::reference::ops::{
        CHUNK_TOKENS, DeltaInputs, attend, conv_silu, decay_log, delta_chunked, delta_recurrent,
        expand_row, head_gate, l2norm, linear, rmsnorm, rope, route, sigmoid, silu, split_gate,
        split_qkv, swiglu,
    },
    model::{AttentionShape, Bytes, DeltaNetShape, Linear, Swiglu},
};
use common::{
    assert_bits,
    random::{self, Random},
    relative_error,
};

#[track_caller]
fn assert_near(ours: &[f32], expected: &[f32], tolerance: f64) {
    let error = relative_error(ours, expected);
    println!("line {}: {error:.1e}", std::panic::Location::caller().line());
    assert!(error <= tolerance, "off by {error:.1e}\n{ours:?}\nexpected\n{expected:?}");
}

#[test]
fn packed_elements_stand_low_bits_first() {
    let words: Vec<u8> =
        [0x7654_3210u32, 0xfedc_ba98].iter().flat_map(|w| w.to_le_bytes()).collect();
    let bf16 = |values: &[f32]| -> Bytes {
        let bytes = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes());
        Bytes::new(Arc::new(bytes.collect::<Vec<u8>>()))
    };
    let mut matrix = Linear {
        outputs: 2,
        inputs: 8,
        bits: 4,
        group: 4,
        weight: Bytes::new(Arc::new(words)),
        scales: bf16(&[1.0, 2.0, 0.5, -1.0]),
        biases: bf16(&[0.0, 10.0, 0.0, 3.0]),
    };
    let mut row = [0.0; 8];
    expand_row(&matrix, 0, &mut row);
    assert_eq!(row, [0.0, 1.0, 2.0, 3.0, 18.0, 20.0, 22.0, 24.0]);
    expand_row(&matrix, 1, &mut row);
    assert_eq!(row, [4.0, 4.5, 5.0, 5.5, -9.0, -10.0, -11.0, -12.0]);

    (matrix.outputs, matrix.bits) = (1, 8);
    expand_row(&matrix, 0, &mut row);
    let (low, high) = ([0x10, 0x32, 0x54, 0x76], [0x98, 0xba, 0xdc, 0xfe]);
    let expected = low.map(|q: u8| f32::from(q)).into_iter();
    let expected: Vec<f32> = expected.chain(high.map(|q: u8| 2.0 * f32::from(q) + 10.0)).collect();
    assert_eq!(row[..], expected);
}

#[test]
fn linear_is_the_product_with_the_expanded_matrix() {
    for (bits, group) in [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)] {
        let mut random = Random(1);
        let (outputs, inputs, tokens) = (5, 384, 3);
        let matrix = random::linear(&mut random, (outputs, inputs), bits, group, 1.0);
        let x = random.vector(tokens * inputs, -1.0, 1.0);
        let mut expected = Vec::new();
        for x in x.chunks(inputs) {
            let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            expected.extend(linear_in_f64(&matrix, &x).iter().map(|y| *y as f32));
        }
        assert_near(&linear(&matrix, &x), &expected, 1e-6);
    }
}

/// The product of the expanded matrix with one token [inputs].
fn linear_in_f64(matrix: &Linear, x: &[f64]) -> Vec<f64> {
    let mut row = vec![0.0; matrix.inputs];
    let one = |output| {
        expand_row(matrix, output, &mut row);
        row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
    };
    (0..matrix.outputs).map(one).collect()
}

#[test]
fn norms_divide_each_row_by_its_own_size() {
    // root mean squares 5 / sqrt(2) and 2
    let x = [3.0, 4.0, 2.0, -2.0];
    let root = 2f32.sqrt() / 5.0;
    let expected = [3.0 * root, 4.0 * root * 10.0, 1.0, -10.0];
    assert_near(&rmsnorm(&x, &[1.0, 10.0], 0.0), &expected, 5e-7);
    assert_near(&rmsnorm(&[1.0, 1.0], &[1.0, 1.0], 3.0), &[0.5, 0.5], 5e-7);
    assert_near(&l2norm(&x, 2, 2.0), &[1.2, 1.6, 2f32.sqrt(), -(2f32.sqrt())], 1e-6);
    // the epsilon counts once, whatever the width
    assert_near(&l2norm(&[1e-3; 4], 4, 1.0), &[1e-3 / 5e-6f32.sqrt(); 4], 1e-6);
    assert_eq!(l2norm(&[0.0; 3], 3, 1.0), [0.0; 3]);
}

#[test]
fn the_last_tap_weighs_the_current_token() {
    let weights = [1.0, 10.0, 100.0, -1.0, 0.0, 2.0]; // 2 channels, 3 taps
    let mut state = [7.0, 8.0, 1.0, 2.0]; // 2 tokens, oldest first
    let x = [3.0, 5.0, 0.5, 0.25];
    let sums = [7.0 + 10.0 + 300.0, -8.0 + 2.0 * 5.0, 1.0 + 30.0 + 50.0, -2.0 + 2.0 * 0.25];
    let expected = sums.map(|x: f64| (x / (1.0 + (-x).exp())) as f32);
    assert_near(&conv_silu(&x, &weights, &mut state, 3), &expected, 5e-7);
    assert_eq!(state, x);
    // one token: the older half of the state moves up
    conv_silu(&[9.0, 9.0], &weights, &mut state, 3);
    assert_eq!(state, [0.5, 0.25, 9.0, 9.0]);
}

#[test]
fn decay_is_a_softplus_scaled_by_the_rate() {
    let ln2 = 2f32.ln();
    let found = decay_log(&[0.0, 1.0, 100.0, -100.0], &[0.0, ln2], &[0.0, -1.0]);
    assert_near(&found, &[-ln2, -2.0 * ln2, -100.0, 0.0], 5e-7);
    assert!(found[3] <= 0.0);
}

const DELTA: DeltaNetShape =
    DeltaNetShape { key_heads: 2, value_heads: 4, key_dim: 48, value_dim: 32, conv_taps: 4 };

/// Inputs as a model makes them; with `repeated`, all tokens are nearly the same one, are written
/// almost fully and hardly fade.
fn delta_inputs(random: &mut Random, tokens: usize, repeated: bool) -> DeltaInputs {
    let mut one = |width: usize| {
        let first = random.vector(width, -1.0, 1.0);
        let mut rows = Vec::new();
        for _ in 0..tokens {
            let noise = random.vector(width, -1.0, 1.0);
            let mix = if repeated { 1e-4 } else { 1.0 };
            rows.extend(first.iter().zip(noise).map(|(x, noise)| x * (1.0 - mix) + noise * mix));
        }
        rows
    };
    let (queries, keys) = (one(DELTA.key_width()), one(DELTA.key_width()));
    let values = one(DELTA.value_width());
    let gates = tokens * DELTA.value_heads;
    let (slowest, weakest) = if repeated { (-1e-4, 0.98) } else { (-2.0, 0.05) };
    DeltaInputs {
        queries: l2norm(&queries, DELTA.key_dim, (DELTA.key_dim as f32).sqrt().recip()),
        keys: l2norm(&keys, DELTA.key_dim, 1.0),
        values,
        decay_log: random.vector(gates, slowest, 0.0),
        beta: random.vector(gates, weakest, 1.0),
    }
}

/// The recurrence in f64, written down anew: outputs and the last state.
fn delta_in_f64(inputs: &DeltaInputs, state: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
    let (queries, keys, values) = (wide(&inputs.queries), wide(&inputs.keys), wide(&inputs.values));
    let (decay, beta, mut state) = (wide(&inputs.decay_log), wide(&inputs.beta), wide(state));
    let (dk, dv, heads) = (DELTA.key_dim, DELTA.value_dim, DELTA.value_heads);
    let mut out = Vec::new();
    for token in 0..beta.len() / heads {
        for head in 0..heads {
            let gate = token * heads + head;
            let key_at = token * DELTA.key_width() + head * DELTA.key_heads / heads * dk;
            for v in 0..dv {
                let row = &mut state[(head * dv + v) * dk..][..dk];
                let held: f64 =
                    (0..dk).map(|i| decay[gate].exp() * row[i] * keys[key_at + i]).sum();
                let delta = beta[gate] * (values[gate * dv + v] - held);
                let mut read = 0.0;
                for i in 0..dk {
                    row[i] = decay[gate].exp() * row[i] + delta * keys[key_at + i];
                    read += row[i] * queries[key_at + i];
                }
                out.push(read as f32);
            }
        }
    }
    (out, state.iter().map(|s| *s as f32).collect())
}

#[test]
fn both_forms_of_the_delta_rule_agree_with_f64() {
    for repeated in [false, true] {
        for tokens in [1, CHUNK_TOKENS - 1, CHUNK_TOKENS, 3 * CHUNK_TOKENS + 5] {
            let mut random = Random(tokens as u64);
            let inputs = delta_inputs(&mut random, tokens, repeated);
            let start = random.vector(DELTA.state_len(), -0.3, 0.3);
            let (expected, expected_state) = delta_in_f64(&inputs, &start);
            for (name, form, tolerance) in [
                ("recurrent", delta_recurrent as fn(&_, &_, &mut [f32]) -> Vec<f32>, 1e-6),
                ("chunked", delta_chunked, 5e-6),
            ] {
                let mut state = start.clone();
                let out = form(&DELTA, &inputs, &mut state);
                let (error, state_error) =
                    (relative_error(&out, &expected), relative_error(&state, &expected_state));
                let line = format!(
                    "{name}, {tokens} tokens, repeated {repeated}: {error:.1e} {state_error:.1e}"
                );
                println!("{line}");
                assert!(error < tolerance && state_error < tolerance, "{line}");
            }
        }
    }
}

#[test]
fn the_recurrence_carries_its_state_over_calls() {
    let inputs = delta_inputs(&mut Random(3), 10, false);
    let mut whole_state = vec![0.0; DELTA.state_len()];
    let whole = delta_recurrent(&DELTA, &inputs, &mut whole_state);
    let mut state = vec![0.0; DELTA.state_len()];
    let mut found = Vec::new();
    for range in [0..4, 4..10] {
        let cut =
            |values: &[f32], width: usize| values[range.start * width..range.end * width].to_vec();
        let part = DeltaInputs {
            queries: cut(&inputs.queries, DELTA.key_width()),
            keys: cut(&inputs.keys, DELTA.key_width()),
            values: cut(&inputs.values, DELTA.value_width()),
            decay_log: cut(&inputs.decay_log, DELTA.value_heads),
            beta: cut(&inputs.beta, DELTA.value_heads),
        };
        found.extend(delta_recurrent(&DELTA, &part, &mut state));
    }
    assert_bits("outputs", &found, &whole);
    assert_bits("state", &state, &whole_state);
}

const ATTENTION: AttentionShape =
    AttentionShape { heads: 4, kv_heads: 2, head_dim: 8, rotary_dims: 4, rope_theta: 1e4 };

#[test]
fn rope_turns_the_leading_pairs_by_position() {
    let first: Vec<f32> = (1..=8).map(|x| x as f32).collect();
    let mut x = first.clone();
    rope(&ATTENTION, &mut x, 1, 0);
    assert_eq!(x, first, "position 0");

    // pairs (0, 2) and (1, 3) turn by 3 and 3 / 100 radians
    rope(&ATTENTION, &mut x, 1, 3);
    let turn = |a: f32, b: f32, angle: f32| {
        (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
    };
    let ((a, c), (b, d)) = (turn(1.0, 3.0, 3.0), turn(2.0, 4.0, 0.03));
    assert_near(&x, &[a, b, c, d, 5.0, 6.0, 7.0, 8.0], 1e-6);

    // the second token of a run stands one position further
    let mut run = [first.clone(), first].concat();
    rope(&ATTENTION, &mut run, 1, 2);
    assert_bits("second token", &run[8..], &x);
}

#[test]
fn rope_stays_exact_at_far_positions() {
    let position = 250_000;
    let mut x = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    rope(&ATTENTION, &mut x, 1, position);
    let [fast, slow] = [position as f64, position as f64 / 100.0];
    let expected = [fast.cos(), slow.cos(), fast.sin(), slow.sin()].map(|x| x as f32);
    assert_near(&x[..4], &expected, 5e-7);
}

#[test]
fn attention_is_a_causal_average_of_the_right_heads_values() {
    // equal keys: an even average of what each token may see
    let keys = [1.0; 3 * 16];
    let values: Vec<f32> = (0..3 * 16).map(|i| (i / 8) as f32).collect(); // 2 * token + kv head
    let queries = [1.0; 2 * 32];
    let out = attend(&ATTENTION, &queries, &keys, &values, 1);
    let expected = [[1.0; 16], [2.0; 16], [2.0; 16], [3.0; 16]].concat();
    assert_near(&out, &expected, 1e-6);
}

#[test]
fn attention_weights_are_the_softmax_of_scaled_products() {
    let mut random = Random(4);
    let (keys, values) = (random.vector(6 * 16, -2.0, 2.0), random.vector(6 * 16, -1.0, 1.0));
    let queries = random.vector(2 * 32, -2.0, 2.0);
    let mut expected = Vec::new();
    for (index, query) in queries.chunks(8).enumerate() {
        let (seen, kv_head) = (4 + index / 4 + 1, index % 4 / 2);
        let part = |all: &[f32], position: usize| -> Vec<f64> {
            let at = position * 16 + kv_head * 8;
            all[at..at + 8].iter().map(|x| f64::from(*x)).collect()
        };
        let weight = |position: usize| -> f64 {
            let products = part(&keys, position);
            let products = products.iter().zip(query).map(|(k, q)| k * f64::from(*q));
            (products.sum::<f64>() / 8f64.sqrt()).exp()
        };
        let sum: f64 = (0..seen).map(weight).sum();
        for dim in 0..8 {
            let read: f64 = (0..seen).map(|p| weight(p) / sum * part(&values, p)[dim]).sum();
            expected.push(read as f32);
        }
    }
    assert_near(&attend(&ATTENTION, &queries, &keys, &values, 4), &expected, 1e-6);

    // scores in the thousands do not overflow
    let loud: Vec<f32> = queries.iter().map(|q| q * 1e4).collect();
    assert!(attend(&ATTENTION, &loud, &keys, &values, 4).iter().all(|x| x.is_finite()));
}

#[test]
fn projections_are_taken_apart_head_by_head() {
    let projected: Vec<f32> = (0..64).map(|x| x as f32).collect();
    let (queries, gates) = split_gate(&ATTENTION, &projected);
    assert_eq!((queries[8], gates[0], gates[8]), (16.0, 8.0, 24.0));

    let mut read = [2.0, 2.0];
    head_gate(&mut read, &[0.0, 100.0]);
    assert_eq!(read, [1.0, 2.0]);

    let shape =
        DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 2, value_dim: 1, conv_taps: 4 };
    let (queries, keys, values) = split_qkv(&shape, &projected[..12]);
    assert_eq!(queries, [0.0, 1.0, 6.0, 7.0]);
    assert_eq!(keys, [2.0, 3.0, 8.0, 9.0]);
    assert_eq!(values, [4.0, 5.0, 10.0, 11.0]);
}

#[test]
fn routes_go_to_the_most_probable_experts() {
    let logits = [1.0, 3.0, 2.0, 3.0, 0.0];
    let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let probability = |logit: f64| (logit.exp() / sum) as f32;

    let found = route(&logits, 3, false);
    let experts: Vec<usize> = found.iter().map(|(expert, _)| *expert).collect();
    assert_eq!(experts, [3, 1, 2], "the higher index first on a tie");
    let scores: Vec<f32> = found.iter().map(|(_, score)| *score).collect();
    assert_near(&scores, &[3.0, 3.0, 2.0].map(probability), 1e-6);

    let one = route(&logits, 1, true);
    assert_eq!(one, [(3, 1.0)]);
    let total: f32 = route(&logits, 3, true).iter().map(|(_, score)| score).sum();
    assert!((total - 1.0).abs() < 1e-6);
    assert!(route(&[1e5, -1e5], 2, true).iter().all(|(_, score)| score.is_finite()));
}

#[test]
fn swiglu_gates_what_goes_up() {
    let mut random = Random(5);
    let weights = Swiglu {
        gate: random::linear(&mut random, (64, 32), 4, 32, 1.0),
        up: random::linear(&mut random, (64, 32), 4, 32, 1.0),
        down: random::linear(&mut random, (32, 64), 8, 64, 1.0),
    };
    let x = random.vector(2 * 32, -1.0, 1.0);
    let mut expected = Vec::new();
    for x in x.chunks(32) {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let gate = linear_in_f64(&weights.gate, &x);
        let up = linear_in_f64(&weights.up, &x);
        let inner: Vec<f64> =
            gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        expected.extend(linear_in_f64(&weights.down, &inner).iter().map(|y| *y as f32));
    }
    assert_near(&swiglu(&weights, &x), &expected, 1e-6);
    assert_eq!((silu(0.0), sigmoid(0.0)), (0.0, 0.5));
}
