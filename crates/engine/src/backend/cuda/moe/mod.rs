//! Stage `moe`: route, experts, shared expert, combine, residual.

use std::fmt::Write;

use super::{
    device::{Address, Kernel},
    matmul::many_bytes,
    pass::Pass,
    profile::Amount,
    scratch::{MoeScratch, router_width},
    weights::DeviceMoe,
};
use crate::{
    Error,
    backend::profile::Op,
    model::{MlpShape, Moe, Shape},
};

/// The kernel file; it is compiled behind [`super::matmul::SOURCE`].
pub(super) const SOURCE: &str = include_str!("moe.cu");

/// Most rows for which each visit reads its expert for itself.
const FEW_ROWS_MAX: usize = 4;

/// Visits of a block where many rows are sorted by expert; the last only where an activation is a
/// single half.
const TILES: [usize; 4] = [8, 32, 64, 128];

/// Warps of a block of a product with few rows, at most.
const FEW_WARPS: usize = 8;

/// Dimensions that the stage is compiled and launched with.
#[derive(Debug, Clone, Copy)]
pub(super) struct MoeDimensions {
    experts: usize,
    top_k: usize,
    width: usize,
    hidden: usize,
    bits: usize,
    down_bits: usize,
    pieces: usize,
    /// Routed and shared experts are alike, so that one kernel takes them together.
    alike: bool,
}

/// The stage's kernels.
pub(super) struct MoeKernels {
    dimensions: MoeDimensions,
    route: Kernel,
    sort_visits: Kernel,
    combine: Kernel,
    /// gate and up, down
    many: Vec<[Kernel; 2]>,
    /// The same for few rows, when the experts are alike.
    few: Option<[Kernel; 2]>,
}

impl MoeDimensions {
    /// Of a model with experts.
    pub(super) fn new(shape: &Shape, layer: &Moe, pieces: usize) -> Option<Self> {
        let MlpShape::Moe { experts, experts_per_token, expert_width, shared_width, .. } =
            shape.mlp
        else {
            return None;
        };
        let (gate, down) = (&layer.experts.gate[0], &layer.experts.down[0]);
        let alike = expert_width == shared_width
            && gate.bits == layer.shared.gate.bits
            && down.bits == layer.shared.down.bits
            && (experts_per_token + 1) * expert_width * pieces <= 20_480;
        Some(Self {
            experts,
            top_k: experts_per_token,
            width: expert_width,
            hidden: shape.hidden,
            bits: gate.bits,
            down_bits: down.bits,
            pieces,
            alike,
        })
    }

    /// Visits of a block for many rows.
    fn tiles(&self) -> &'static [usize] {
        &TILES[..=TILES.len() - self.pieces]
    }

    /// Warps of a block for few rows.
    fn few_warps(&self) -> usize {
        (self.hidden / 256).clamp(1, FEW_WARPS)
    }

    /// Warps of a block for many rows, of gate and up.
    fn many_warps(&self) -> usize {
        if self.width.is_multiple_of(128) { 8 } else { 4 }
    }

    /// Lines that make the kernels, and their names as [`MoeKernels::new`] wants them.
    pub(super) fn instances(&self) -> (String, Vec<String>) {
        let mut lines = String::new();
        let mut names: Vec<String> = ["route", "sort_visits", "combine"].map(str::to_owned).into();
        let (bits, down_bits, warps) = (self.bits, self.down_bits, self.many_warps());
        let mut add = |name: String, what: &str, parameters: &str| {
            writeln!(lines, "{what}({name}, {parameters})").expect("into a string");
            names.push(name);
        };
        for tile in self.tiles() {
            add(format!("moe_{tile}"), "EXPERTS_MANY", &format!("{bits}, {tile}, {warps}"));
            let parameters = format!("{down_bits}, {tile}, 8");
            add(format!("moe_down_{tile}"), "EXPERTS_MANY_DOWN", &parameters);
        }
        if self.alike {
            let parameters = format!("{bits}, {}, 1", self.few_warps());
            add("moe_few".into(), "EXPERTS_FEW", &parameters);
            add("moe_few_down".into(), "EXPERTS_FEW_DOWN", &format!("{down_bits}"));
        }
        (lines, names)
    }
}

impl MoeKernels {
    /// From the kernels that [`MoeDimensions::instances`] has named.
    pub(super) fn new(dimensions: MoeDimensions, kernels: &[Kernel]) -> Self {
        let mut kernels = kernels.iter().copied();
        let mut next = || kernels.next().expect("as many kernels as names");
        Self {
            dimensions,
            route: next(),
            sort_visits: next(),
            combine: next(),
            many: dimensions.tiles().iter().map(|_| [next(), next()]).collect(),
            few: dimensions.alike.then(|| [next(), next()]),
        }
    }
}

/// Numbers in the tables of visits by expert: their order, then the tiles.
pub(super) fn table_words(experts: usize, visits: usize) -> usize {
    visits.next_multiple_of(4) + 4 * (visits / TILES[0] + experts)
}

impl Pass<'_> {
    /// Adds what the experts say of the rows, normed with `gain`, to the residual stream.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn moe(&self, weights: &DeviceMoe, gain: Address) -> Result<(), Error> {
        let kernels = self.kernels.moe.as_ref().expect("made for this shape");
        let scratch = self.scratch.mlp.moe.as_ref().expect("made for this shape");
        let rows = self.plan.rows;

        // route
        let width = router_width(kernels.dimensions.experts);
        self.norm_project(Op::Router, gain, &weights.router, scratch.logits, width)?;

        match kernels.few {
            Some(few) if rows <= FEW_ROWS_MAX => self.moe_few(weights, kernels, scratch, few),
            _ => self.moe_many(weights, kernels, scratch),
        }
    }

    /// Each visit by itself: routing and all experts in one launch, their sum in another.
    fn moe_few(
        &self,
        weights: &DeviceMoe,
        kernels: &MoeKernels,
        scratch: &MoeScratch,
        [gate_up, down]: [Kernel; 2],
    ) -> Result<(), Error> {
        let MoeDimensions { experts, top_k, width, hidden, .. } = kernels.dimensions;
        let rows = self.plan.rows;
        let all = |expert: Amount, shared: Amount| expert.times(top_k).and(shared).times(rows);
        let amount = all(weights.experts.gate_up_amount, weights.shared.gate_up_amount);
        self.launch(
            (Op::ExpertsGateUp, amount),
            gate_up,
            [width / 16, top_k + 1, rows],
            32 * kernels.dimensions.few_warps(),
            0,
            &[
                weights.experts.gate.into(),
                weights.experts.up.into(),
                weights.shared.gate.into(),
                weights.shared.up.into(),
                self.scratch.normed.into(),
                scratch.logits.into(),
                (router_width(experts) as u32).into(),
                shared_column(experts).into(),
                self.plan.row_sequence.into(),
                scratch.experts.into(),
                scratch.scores.into(),
                scratch.down.into(),
            ],
        )?;
        let amount = all(weights.experts.down_amount, weights.shared.down_amount);
        self.launch(
            (Op::ExpertsDown, amount),
            down,
            [hidden / 16, rows, 1],
            32 * (top_k + 1),
            0,
            &[
                weights.experts.down.into(),
                weights.shared.down.into(),
                scratch.down.into(),
                scratch.experts.into(),
                scratch.scores.into(),
                self.plan.row_sequence.into(),
                self.scratch.x.into(),
            ],
        )
    }

    /// Visits sorted by expert, so that each expert is read once for many.
    fn moe_many(
        &self,
        weights: &DeviceMoe,
        kernels: &MoeKernels,
        scratch: &MoeScratch,
    ) -> Result<(), Error> {
        let dimensions = &kernels.dimensions;
        let &MoeDimensions { experts, top_k, width, hidden, .. } = dimensions;
        let rows = self.plan.rows;
        let visits = rows * top_k;
        self.launch(
            Op::Choose,
            kernels.route,
            [rows.div_ceil(4), 1, 1],
            128,
            0,
            &[
                scratch.logits.into(),
                (router_width(experts) as u32).into(),
                shared_column(experts).into(),
                self.plan.row_sequence.into(),
                self.rows(),
                scratch.experts.into(),
                scratch.scores.into(),
            ],
        )?;

        // experts
        let size = self.tile_size(dimensions, visits);
        let tile = TILES[size];
        let order = scratch.visits;
        let tiles = order.plus(4 * visits.next_multiple_of(4));
        self.launch(
            Op::SortVisits,
            kernels.sort_visits,
            [experts, 1, 1],
            256,
            0,
            &[
                scratch.experts.into(),
                (visits as u32).into(),
                (tile as u32).into(),
                order.into(),
                tiles.into(),
            ],
        )?;
        let [gate_up, down] = kernels.many[size];
        let tile_count = visits / tile + experts;
        let warps = dimensions.many_warps();
        // How many experts several rows have in common, they decide on the device.
        let amount = |expert: Amount| match expert.times(visits) {
            amount if rows == 1 => amount,
            amount => Amount { bytes: 0, ..amount },
        };
        self.launch(
            (Op::ExpertsGateUp, amount(weights.experts.gate_up_amount)),
            gate_up,
            [width / (16 * warps), tile_count, 1],
            32 * warps,
            many_bytes(self.dimensions, dimensions.bits, tile, warps),
            &[
                weights.experts.gate.into(),
                weights.experts.up.into(),
                self.scratch.normed.into(),
                order.into(),
                tiles.into(),
                scratch.inner.into(),
            ],
        )?;
        self.launch(
            (Op::ExpertsDown, amount(weights.experts.down_amount)),
            down,
            [hidden.div_ceil(32 * 8), tile_count, 1],
            32 * 8,
            many_bytes(self.dimensions, dimensions.down_bits, tile, 8),
            &[
                weights.experts.down.into(),
                scratch.inner.into(),
                order.into(),
                tiles.into(),
                scratch.down.into(),
            ],
        )?;

        // shared expert
        let inner = self.scratch.mlp.inner;
        self.swiglu(Op::SharedExpert, &weights.shared, self.scratch.normed, inner)?;
        self.project_down(Op::SharedExpert, &weights.shared, inner, scratch.shared, false)?;

        // combine
        self.launch(
            Op::Combine,
            kernels.combine,
            [rows, 1, 1],
            256,
            0,
            &[
                scratch.down.into(),
                scratch.shared.into(),
                scratch.scores.into(),
                scratch.experts.into(),
                self.rows(),
                self.scratch.x.into(),
            ],
        )
    }

    /// Index of the tile that suits so many visits: about as many as an expert gets, where a block has
    /// room for it.
    fn tile_size(&self, dimensions: &MoeDimensions, visits: usize) -> usize {
        let each = visits / dimensions.experts;
        let bits = dimensions.bits.max(dimensions.down_bits);
        let fits = |tile: usize| {
            let bytes = many_bytes(self.dimensions, bits, tile, 8);
            bytes <= self.device.shared_per_block()
        };
        let tiles = dimensions.tiles();
        let last = tiles.iter().rposition(|&tile| fits(tile)).unwrap_or(0);
        tiles.iter().position(|&tile| 3 * each <= 2 * tile).map_or(last, |size| size.min(last))
    }
}

/// Where the shared expert's gate stands among the router's results.
fn shared_column(experts: usize) -> u32 {
    experts.next_multiple_of(super::dimensions::TILE_OUTPUTS) as u32
}
