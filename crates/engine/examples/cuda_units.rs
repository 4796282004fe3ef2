//! Writes what the CUDA backend compiles, for tools that look at kernels without a card:
//! `cargo run -p calla-engine --example cuda_units -- FOLDER [CHECKPOINT...]` makes a folder for each
//! model and mode, with one `.cu` file a unit. Models are the made-up ones, Qwen3.6-35B-A3B's
//! dimensions first, and the given checkpoint folders. Kernels as they are for a profile are there for
//! the first.
//!
//! A made-up model has no weights here: units depend on the dimensions alone.

use std::{error::Error, fs, path::Path, sync::Arc};

use calla_engine::{
    backend::{Precision, cuda},
    checkpoint::{Checkpoint, Source, synth::Preset},
    model::{
        Attention, Bytes, DeltaNet, Experts, Layer, Linear, Mixer, MixerKind, Mlp, MlpShape, Moe,
        Shape, Swiglu, Weights,
    },
};

/// Shared memory of a block on a data centre's cards, and on consumers' cards.
const SHARED_LARGE: usize = 227 << 10;
const SHARED_SMALL: usize = 99 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().ok_or("which folder to write to?")?;
    let preset = Preset::ALL[0];
    let shape = preset.shape(None).ok_or("a preset has layers")?;
    let weights_of_it = weights(&shape);
    let folder = Path::new(&out).join(format!("{}-stamped", preset.name()));
    fs::create_dir_all(&folder)?;
    for unit in cuda::units(&shape, &weights_of_it, Precision::Default, SHARED_LARGE, true) {
        fs::write(folder.join(format!("{}.cu", unit.name)), &unit.source)?;
    }
    for preset in Preset::ALL {
        let shape = preset.shape(None).ok_or("a preset has layers")?;
        write(Path::new(&out), preset.name(), &shape, &weights(&shape))?;
    }
    for folder in arguments {
        let checkpoint = Checkpoint::open(&Source::folder(&folder))?;
        let name = Path::new(&folder).file_name().ok_or("a checkpoint's folder has a name")?;
        write(Path::new(&out), &name.to_string_lossy(), &checkpoint.shape, &checkpoint.weights)?;
    }
    Ok(())
}

fn write(out: &Path, model: &str, shape: &Shape, weights: &Weights) -> Result<(), Box<dyn Error>> {
    for (mode, precision) in [("default", Precision::Default), ("exact", Precision::Exact)] {
        let folder = out.join(format!("{model}-{mode}"));
        fs::create_dir_all(&folder)?;
        let large = cuda::units(shape, weights, precision, SHARED_LARGE, false);
        for unit in &large {
            fs::write(folder.join(format!("{}.cu", unit.name)), &unit.source)?;
        }
        for unit in cuda::units(shape, weights, precision, SHARED_SMALL, false) {
            if !large.contains(&unit) {
                fs::write(folder.join(format!("{}_small.cu", unit.name)), &unit.source)?;
            }
        }
    }
    Ok(())
}

/// Weights of a shape, quantised as `synth` does it, without a byte in them.
fn weights(shape: &Shape) -> Weights {
    Weights {
        embed: linear(shape.vocab, shape.hidden, 4),
        layers: shape.mixers.iter().map(|&mixer| layer(shape, mixer)).collect(),
        norm: Vec::new(),
        head: linear(shape.vocab, shape.hidden, 4),
    }
}

fn layer(shape: &Shape, mixer: MixerKind) -> Layer {
    Layer {
        input_norm: Vec::new(),
        mixer: match mixer {
            MixerKind::DeltaNet => Mixer::DeltaNet(delta_net(shape)),
            MixerKind::Attention => Mixer::Attention(attention(shape)),
        },
        post_norm: Vec::new(),
        mlp: match shape.mlp {
            MlpShape::Dense { width } => Mlp::Dense(swiglu(shape, width)),
            MlpShape::Moe { experts, expert_width, shared_width, .. } => Mlp::Moe(Moe {
                router: linear(experts, shape.hidden, 8),
                experts: Experts {
                    gate: vec![linear(expert_width, shape.hidden, 4); experts],
                    up: vec![linear(expert_width, shape.hidden, 4); experts],
                    down: vec![linear(shape.hidden, expert_width, 4); experts],
                },
                shared: swiglu(shape, shared_width),
                shared_gate: linear(1, shape.hidden, 8),
            }),
        },
    }
}

fn delta_net(shape: &Shape) -> DeltaNet {
    let (dims, hidden) = (&shape.delta_net, shape.hidden);
    DeltaNet {
        in_proj_qkv: linear(dims.conv_channels(), hidden, 4),
        in_proj_z: linear(dims.value_width(), hidden, 4),
        in_proj_b: linear(dims.value_heads, hidden, 4),
        in_proj_a: linear(dims.value_heads, hidden, 4),
        conv: Vec::new(),
        a_log: Vec::new(),
        dt_bias: Vec::new(),
        norm: Vec::new(),
        out_proj: linear(hidden, dims.value_width(), 4),
    }
}

fn attention(shape: &Shape) -> Attention {
    let (dims, hidden) = (&shape.attention, shape.hidden);
    Attention {
        q_proj: linear(2 * dims.query_width(), hidden, 4),
        k_proj: linear(dims.kv_width(), hidden, 4),
        v_proj: linear(dims.kv_width(), hidden, 4),
        q_norm: Vec::new(),
        k_norm: Vec::new(),
        o_proj: linear(hidden, dims.query_width(), 4),
    }
}

fn swiglu(shape: &Shape, width: usize) -> Swiglu {
    Swiglu {
        gate: linear(width, shape.hidden, 4),
        up: linear(width, shape.hidden, 4),
        down: linear(shape.hidden, width, 4),
    }
}

fn linear(outputs: usize, inputs: usize, bits: usize) -> Linear {
    let none = Bytes::new(Arc::new(Vec::new()));
    let [weight, scales, biases] = [none.clone(), none.clone(), none];
    Linear { outputs, inputs, bits, group: 64, weight, scales, biases }
}
