//! The kernels of a model: what is compiled, and the handles that come of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
};

use super::{
    attention::{self, AttentionKernels, Tiles},
    delta_net::{self, DeltaNetKernels},
    device::{Address, Device, Kernel, Unit},
    dimensions::{Dimensions, TILE_OUTPUTS},
    embed,
    head::{self, HeadKernels},
    matmul::{self, Key, MatmulKernels, SwigluKey},
    moe::{self, MoeDimensions, MoeKernels},
    norm, profile,
};
use crate::{
    Error,
    backend::Precision,
    model::{Linear, Mixer, MixerKind, Mlp, Shape, Weights},
};

/// Handles of everything that a pass launches.
pub(super) struct Kernels {
    pub(super) embed: EmbedKernels,
    pub(super) norm: Kernel,
    pub(super) matmul: MatmulKernels,
    pub(super) head: HeadKernels,
    pub(super) delta_net: Option<DeltaNetKernels>,
    pub(super) attention: Option<AttentionKernels>,
    pub(super) moe: Option<MoeKernels>,
    /// Notes its time and does nothing; compiled with stamps.
    pub(super) end: Option<Kernel>,
}

/// Of stage `embed`.
pub(super) struct EmbedKernels {
    pub(super) embed: Kernel,
    pub(super) rope_table: Kernel,
}

/// What is compiled for a model, in the order in which [`Kernels::compile`] takes it apart.
pub(super) struct KernelPlan {
    units: Vec<Unit>,
    linear: Vec<Key>,
    swiglu: BTreeMap<SwigluKey, bool>,
    tiles: Option<Tiles>,
    moe: Option<MoeDimensions>,
}

/// The compilation units of a model: for tools that look at kernels without a device.
///
/// `shared_per_block` is what a block of the device may ask for ([`Device::shared_per_block`]);
/// `stamped` kernels are those that a profile is taken with.
pub fn units(
    shape: &Shape,
    weights: &Weights,
    precision: Precision,
    shared_per_block: usize,
    stamped: bool,
) -> Vec<Unit> {
    let dimensions = Dimensions::new(shape, weights, precision, shared_per_block);
    let plan = KernelPlan::new(shape, weights, &dimensions, shared_per_block);
    if stamped { plan.stamped(&dimensions, Address::default()) } else { plan.units }
}

impl KernelPlan {
    pub(super) fn new(
        shape: &Shape,
        weights: &Weights,
        dimensions: &Dimensions,
        shared_per_block: usize,
    ) -> Self {
        let tiles = Tiles::new(shape, dimensions.precision, dimensions.group, shared_per_block);
        let moe = weights.layers.iter().find_map(|layer| match &layer.mlp {
            Mlp::Moe(moe) => MoeDimensions::new(shape, moe, dimensions),
            Mlp::Dense(_) => None,
        });
        let shared_apart = moe.as_ref().is_some_and(|moe| moe.shared_apart());
        let (linear, swiglu) = keys(shape, weights, shared_apart);
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let (lines, products) = matmul::instances(&linear, &swiglu, dimensions);
        let mut units = vec![
            dimensions.unit("embed", embed::SOURCE, "", names(&["embed", "rope_table"])),
            dimensions.unit("norm", norm::SOURCE, "", names(&["rms_norm"])),
            dimensions.unit("matmul", matmul::SOURCE, &lines, products),
            dimensions.unit("head", head::SOURCE, "", names(&head::KERNELS)),
        ];
        if shape.layers_of(MixerKind::DeltaNet) > 0 {
            let kernels = names(&delta_net::NAMES);
            units.push(dimensions.unit("delta_net", delta_net::SOURCE, "", kernels));
        }
        if shape.layers_of(MixerKind::Attention) > 0 {
            let (source, kernels) = attention::instances(dimensions.precision, tiles);
            units.push(dimensions.unit("attention", &source, "", kernels));
        }
        if let Some(moe) = &moe {
            let (lines, kernels) = moe.instances();
            let source = [matmul::SOURCE, moe::SOURCE].join("\n");
            units.push(dimensions.unit("moe", &source, &lines, kernels));
        }
        Self { units, linear, swiglu, tiles, moe }
    }

    /// The units, and one behind them for the end of a pass, as they are measured.
    fn stamped(&self, dimensions: &Dimensions, stamps: Address) -> Vec<Unit> {
        let end = dimensions.unit("end", profile::SOURCE, "", vec!["end_of_pass".to_owned()]);
        let units = self.units.iter().chain([&end]);
        units.map(|unit| profile::stamped(unit, stamps)).collect()
    }
}

impl Kernels {
    /// Compiles all units, side by side, or finds them compiled; with `stamps` those that note their
    /// times there.
    ///
    /// # Errors
    /// When the compiler refuses a unit, which is a bug, or the device fails.
    pub(super) fn compile(
        device: &dyn Device,
        plan: &KernelPlan,
        shape: &Shape,
        dimensions: &Dimensions,
        stamps: Option<Address>,
    ) -> Result<Self, Error> {
        let stamped = stamps.map(|stamps| plan.stamped(dimensions, stamps));
        let units = stamped.as_ref().unwrap_or(&plan.units);
        let compiled: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> =
                units.iter().map(|unit| scope.spawn(move || device.compile(unit))).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        let mut compiled = compiled.into_iter();
        let mut next = || compiled.next().expect("as many results as units");
        let embed = next()?;
        let norm = next()?;
        let products = next()?;
        let head = next()?;
        let delta_net = match shape.layers_of(MixerKind::DeltaNet) {
            0 => None,
            _ => Some(next()?),
        };
        let attention = match shape.layers_of(MixerKind::Attention) {
            0 => None,
            _ => Some(next()?),
        };
        Ok(Self {
            embed: EmbedKernels { embed: embed[0], rope_table: embed[1] },
            norm: norm[0],
            matmul: MatmulKernels::new(&plan.linear, &plan.swiglu, dimensions, &products),
            head: HeadKernels::new(&head),
            delta_net: delta_net.map(|kernels| DeltaNetKernels::new(&kernels)),
            attention: attention
                .map(|kernels| AttentionKernels::new(dimensions.precision, plan.tiles, &kernels)),
            moe: match plan.moe {
                None => None,
                Some(dimensions) => Some(MoeKernels::new(dimensions, &next()?)),
            },
            end: match stamps {
                None => None,
                Some(_) => Some(next()?[0]),
            },
        })
    }
}

/// What products a model needs kernels for.
/// Rows of a shared expert that stands apart from the routed ones may be few, like those of a dense model.
fn keys(
    shape: &Shape,
    weights: &Weights,
    shared_apart: bool,
) -> (Vec<Key>, BTreeMap<SwigluKey, bool>) {
    let (mut linear, mut swiglu) = (BTreeSet::new(), BTreeMap::new());
    // As in weights.rs: neighbours of the same bits are one matrix.
    let mut projection = |matrices: &[&Linear]| {
        for run in matrices.chunk_by(|a, b| a.bits == b.bits) {
            let outputs =
                run.iter().map(|linear| linear.outputs.next_multiple_of(TILE_OUTPUTS)).sum();
            linear.insert(Key::new(run[0].inputs, run[0].bits, outputs));
        }
    };
    let mut pair = |gate: &Linear, few: bool| {
        *swiglu.entry(SwigluKey::new(shape.hidden, gate.bits, gate.outputs)).or_default() |= few;
    };
    for layer in &weights.layers {
        match &layer.mixer {
            Mixer::DeltaNet(mixer) => {
                projection(&[
                    &mixer.in_proj_qkv,
                    &mixer.in_proj_z,
                    &mixer.in_proj_b,
                    &mixer.in_proj_a,
                ]);
                projection(&[&mixer.out_proj]);
            }
            Mixer::Attention(mixer) => {
                projection(&[&mixer.q_proj, &mixer.k_proj, &mixer.v_proj]);
                projection(&[&mixer.o_proj]);
            }
        }
        match &layer.mlp {
            Mlp::Dense(mlp) => {
                pair(&mlp.gate, true);
                projection(&[&mlp.down]);
            }
            Mlp::Moe(moe) => {
                projection(&[&moe.router, &moe.shared_gate]);
                pair(&moe.shared.gate, shared_apart);
                projection(&[&moe.shared.down]);
            }
        }
    }
    projection(&[&weights.head]);
    (linear.into_iter().collect(), swiglu)
}
