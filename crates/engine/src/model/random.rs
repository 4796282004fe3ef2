//! Random models of any shape, in memory: what backends are tested on, in this project's tests and,
//! by `calla doctor`, on the machine that will run them.

use std::sync::Arc;

use super::{
    Attention, AttentionShape, Bytes, DeltaNet, DeltaNetShape, Experts, Layer, Linear, Mixer,
    MixerKind, Mlp, MlpShape, Moe, Shape, Swiglu, Weights,
};

/// A seeded stream of numbers (SplitMix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// All 64 bits are random.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from `low` to `high`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// As many of [`Random::uniform`].
    pub fn vector(&mut self, len: usize, low: f32, high: f32) -> Vec<f32> {
        (0..len).map(|_| self.uniform(low, high)).collect()
    }

    /// Ids below `vocab`.
    pub fn tokens(&mut self, len: usize, vocab: usize) -> Vec<u32> {
        (0..len).map(|_| (self.next_u64() % vocab as u64) as u32).collect()
    }
}

/// A mixture of experts with uneven head counts and widths: DeltaNet, attention, DeltaNet.
pub fn moe_shape() -> Shape {
    Shape {
        hidden: 128,
        vocab: 96,
        mixers: vec![MixerKind::DeltaNet, MixerKind::Attention, MixerKind::DeltaNet],
        attention: AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rotary_dims: 16,
            rope_theta: 1e6,
        },
        delta_net: DeltaNetShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 64,
            value_dim: 32,
            conv_taps: 4,
        },
        mlp: MlpShape::Moe {
            experts: 6,
            experts_per_token: 2,
            expert_width: 64,
            shared_width: 128,
            renormalise: true,
        },
        norm_eps: 1e-6,
        context_max: 2048,
        tied_embeddings: false,
        eos: vec![0],
    }
}

/// A dense, tied member: one attention layer between two of DeltaNet, as many key as value heads,
/// attention heads of another width that share one KV head.
pub fn dense_shape() -> Shape {
    Shape {
        hidden: 64,
        attention: AttentionShape { heads: 3, kv_heads: 1, head_dim: 64, ..moe_shape().attention },
        delta_net: DeltaNetShape {
            key_heads: 2,
            value_heads: 2,
            key_dim: 32,
            value_dim: 64,
            conv_taps: 4,
        },
        mlp: MlpShape::Dense { width: 192 },
        tied_embeddings: true,
        ..moe_shape()
    }
}

/// Both kinds of the family with their weights: 4 bits in groups of 64, and 8 bits in groups of
/// 32.
pub fn models() -> Vec<(&'static str, Shape, Weights)> {
    let (moe, dense) = (moe_shape(), dense_shape());
    let moe_weights = weights(&moe, 4, 64, 1);
    let dense_weights = weights(&dense, 8, 32, 2);
    vec![("moe", moe, moe_weights), ("dense", dense, dense_weights)]
}

/// Random weights of a scale that keeps activations near 1. The router has 8 bits, as published.
pub fn weights(shape: &Shape, bits: usize, group: usize, seed: u64) -> Weights {
    let mut make = Maker { random: Random(seed), bits, group };
    // a tied head would only repeat the last token if the embeddings outweighed the layers
    let embed =
        make.linear(shape.vocab, shape.hidden, if shape.tied_embeddings { 1.0 } else { 8.0 });
    let layers = shape.mixers.iter().map(|&mixer| Layer {
        input_norm: make.gain(shape.hidden),
        mixer: match mixer {
            MixerKind::DeltaNet => Mixer::DeltaNet(make.delta_net(shape)),
            MixerKind::Attention => Mixer::Attention(make.attention(shape)),
        },
        post_norm: make.gain(shape.hidden),
        mlp: make.mlp(shape),
    });
    let layers = layers.collect();
    let norm = make.gain(shape.hidden);
    let head = match shape.tied_embeddings {
        true => embed.clone(),
        false => make.linear(shape.vocab, shape.hidden, 1.0),
    };
    Weights { embed, layers, norm, head }
}

/// A quantised matrix whose values have a standard deviation near `gain / sqrt(inputs)`.
///
/// # Panics
/// When `group` does not divide the inputs.
pub fn linear(
    random: &mut Random,
    (outputs, inputs): (usize, usize),
    bits: usize,
    group: usize,
    gain: f32,
) -> Linear {
    assert_eq!(inputs % group, 0, "choose a width that the group divides");
    let weight: Vec<u8> =
        (0..outputs * inputs * bits / 8).map(|_| random.next_u64() as u8).collect();
    let top = ((1 << bits) - 1) as f32;
    let spread = 12f32.sqrt() * gain / (inputs as f32).sqrt();
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for _ in 0..outputs * inputs / group {
        let range = spread * random.uniform(0.7, 1.3);
        let middle = 0.1 * spread * random.uniform(-1.0, 1.0);
        scales.extend(half::bf16::from_f32(range / top).to_le_bytes());
        biases.extend(half::bf16::from_f32(middle - range / 2.0).to_le_bytes());
    }
    Linear {
        outputs,
        inputs,
        bits,
        group,
        weight: Bytes::new(Arc::new(weight)),
        scales: Bytes::new(Arc::new(scales)),
        biases: Bytes::new(Arc::new(biases)),
    }
}

struct Maker {
    random: Random,
    bits: usize,
    group: usize,
}

impl Maker {
    fn linear(&mut self, outputs: usize, inputs: usize, gain: f32) -> Linear {
        linear(&mut self.random, (outputs, inputs), self.bits, self.group, gain)
    }

    fn gain(&mut self, len: usize) -> Vec<f32> {
        self.random.vector(len, 0.7, 1.3)
    }

    fn delta_net(&mut self, shape: &Shape) -> DeltaNet {
        let (dims, hidden) = (&shape.delta_net, shape.hidden);
        DeltaNet {
            in_proj_qkv: self.linear(dims.conv_channels(), hidden, 1.0),
            in_proj_z: self.linear(dims.value_width(), hidden, 1.0),
            in_proj_b: self.linear(dims.value_heads, hidden, 1.0),
            in_proj_a: self.linear(dims.value_heads, hidden, 1.0),
            conv: self.random.vector(dims.conv_channels() * dims.conv_taps, -0.5, 0.5),
            a_log: self.random.vector(dims.value_heads, 0.0, 2.5),
            dt_bias: self.random.vector(dims.value_heads, -4.0, 1.0),
            norm: self.gain(dims.value_dim),
            out_proj: self.linear(hidden, dims.value_width(), 0.5),
        }
    }

    fn attention(&mut self, shape: &Shape) -> Attention {
        let (dims, hidden) = (&shape.attention, shape.hidden);
        Attention {
            q_proj: self.linear(2 * dims.query_width(), hidden, 1.0),
            k_proj: self.linear(dims.kv_width(), hidden, 1.0),
            v_proj: self.linear(dims.kv_width(), hidden, 1.0),
            q_norm: self.gain(dims.head_dim),
            k_norm: self.gain(dims.head_dim),
            o_proj: self.linear(hidden, dims.query_width(), 0.5),
        }
    }

    fn mlp(&mut self, shape: &Shape) -> Mlp {
        let hidden = shape.hidden;
        let (experts, expert_width, shared_width) = match shape.mlp {
            MlpShape::Dense { width } => return Mlp::Dense(self.swiglu(hidden, width)),
            MlpShape::Moe { experts, expert_width, shared_width, .. } => {
                (experts, expert_width, shared_width)
            }
        };
        let (mut gate, mut up, mut down) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..experts {
            let expert = self.swiglu(hidden, expert_width);
            gate.push(expert.gate);
            up.push(expert.up);
            down.push(expert.down);
        }
        Mlp::Moe(Moe {
            router: linear(&mut self.random, (experts, hidden), 8, self.group, 6.0),
            experts: Experts { gate, up, down },
            shared: self.swiglu(hidden, shared_width),
            shared_gate: linear(&mut self.random, (1, hidden), 8, self.group, 1.0),
        })
    }

    fn swiglu(&mut self, hidden: usize, width: usize) -> Swiglu {
        Swiglu {
            gate: self.linear(width, hidden, 1.0),
            up: self.linear(width, hidden, 1.0),
            down: self.linear(hidden, width, 0.5),
        }
    }
}
