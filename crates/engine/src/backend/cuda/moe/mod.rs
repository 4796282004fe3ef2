//! Stage `moe`: route, experts, shared expert, combine, residual.

use std::fmt::Write;

use super::{
    device::{Address, Argument, Kernel},
    dimensions::Dimensions,
    matmul::{held_bytes, many_bytes},
    pass::{Pass, row_threads},
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

/// Visits of a block where rows are sorted by expert; the last only where an activation is a single
/// half. The first has kernels of its own.
const TILES: [usize; 4] = [TILE_VISITS, 32, 64, 128];

/// `TILE_VISITS` of the kernel file.
const TILE_VISITS: usize = 8;

/// `ROUTE_ROWS` of the kernel file, and the threads of the block that routes and sorts so many.
const ROUTE_ROWS: usize = 64;
const ROUTE_THREADS: usize = 1024;

/// `TILE_DOWN_ROWS` of the kernel file.
const TILE_DOWN_ROWS: usize = 4;

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
    /// Inputs that share a scale and a bias.
    group: usize,
    /// Shared memory that a block may ask for.
    shared_per_block: usize,
    /// Routed and shared experts are alike, so that one kernel takes them together.
    alike: bool,
}

/// The stage's kernels.
pub(super) struct MoeKernels {
    dimensions: MoeDimensions,
    route: Kernel,
    sort_visits: Kernel,
    /// Both, of few rows.
    route_visits: Kernel,
    combine: Kernel,
    /// gate and up, down
    many: Vec<[Kernel; 2]>,
    /// The same for few rows, when the experts are alike.
    few: Option<[Kernel; 2]>,
}

impl MoeDimensions {
    /// Of a model with experts.
    pub(super) fn new(shape: &Shape, layer: &Moe, dimensions: &Dimensions) -> Option<Self> {
        let MlpShape::Moe { experts, experts_per_token, expert_width, shared_width, .. } =
            shape.mlp
        else {
            return None;
        };
        let (gate, down) = (&layer.experts.gate[0], &layer.experts.down[0]);
        let alike = expert_width == shared_width
            && gate.bits == layer.shared.gate.bits
            && down.bits == layer.shared.down.bits;
        Some(Self {
            experts,
            top_k: experts_per_token,
            width: expert_width,
            hidden: shape.hidden,
            bits: gate.bits,
            down_bits: down.bits,
            pieces: dimensions.pieces,
            group: dimensions.group,
            shared_per_block: dimensions.shared_per_block,
            alike,
        })
    }

    /// Visits of a block for many rows.
    fn tiles(&self) -> &'static [usize] {
        &TILES[..=TILES.len() - self.pieces]
    }

    /// Whether there are kernels for which each visit reads its expert for itself.
    fn few(&self) -> bool {
        self.alike && (self.top_k + 1) * self.width * self.pieces <= 20_480
    }

    /// Whether few rows go to the shared expert apart from the routed ones.
    pub(super) fn shared_apart(&self) -> bool {
        !self.alike || !self.tiles_fit()
    }

    /// Whether the device has the shared memory for few visits an expert, and for the visits' numbers.
    fn tiles_fit(&self) -> bool {
        self.tile_bytes(self.hidden.max(self.width)) + 2 * 4 * TILE_VISITS <= self.shared_per_block
    }

    /// Shared memory of a block for few visits, of a matrix with so many inputs: for its activations,
    /// then for the products of gate and up.
    fn tile_bytes(&self, inputs: usize) -> usize {
        let products = 4 * TILE_VISITS * (16 * self.many_warps() + 4);
        held_bytes(inputs, TILE_VISITS, self.group, self.pieces).max(products)
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
        let mut names: Vec<String> =
            ["route", "sort_visits", "route_visits", "combine"].map(str::to_owned).into();
        let (bits, down_bits, warps) = (self.bits, self.down_bits, self.many_warps());
        let mut add = |name: String, what: &str, parameters: &str| {
            writeln!(lines, "{what}({name}, {parameters})").expect("into a string");
            names.push(name);
        };
        add(format!("moe_{TILE_VISITS}"), "EXPERTS_TILE", &format!("{bits}, {warps}"));
        add(format!("moe_down_{TILE_VISITS}"), "EXPERTS_TILE_DOWN", &format!("{down_bits}, 8"));
        for tile in &self.tiles()[1..] {
            add(format!("moe_{tile}"), "EXPERTS_MANY", &format!("{bits}, {tile}, {warps}"));
            let parameters = format!("{down_bits}, {tile}, 8");
            add(format!("moe_down_{tile}"), "EXPERTS_MANY_DOWN", &parameters);
        }
        if self.few() {
            let parameters = format!("{bits}, {}", self.few_warps());
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
            route_visits: next(),
            combine: next(),
            many: dimensions.tiles().iter().map(|_| [next(), next()]).collect(),
            few: dimensions.few().then(|| [next(), next()]),
        }
    }
}

/// Numbers in the tables of visits by expert: their order, then the tiles.
pub(super) fn table_words(experts: usize, visits: usize) -> usize {
    visits.next_multiple_of(4) + 4 * (visits / TILES[0] + experts)
}

impl Pass<'_> {
    /// Adds what the experts say of the rows, normed with `gain`, to the residual stream. Whether the
    /// result was also normed with `next_gain`. `layer` is a number that no other layer has, above 0.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn moe(
        &self,
        weights: &DeviceMoe,
        gain: Address,
        next_gain: Option<Address>,
        layer: u32,
    ) -> Result<bool, Error> {
        let kernels = self.kernels.moe.as_ref().expect("made for this shape");
        let scratch = self.scratch.mlp.moe.as_ref().expect("made for this shape");
        let rows = self.plan.rows;

        // route
        let width = router_width(kernels.dimensions.experts);
        self.norm_project(Op::Router, Some(gain), &weights.router, scratch.logits, width)?;

        match kernels.few {
            Some(few) if rows <= FEW_ROWS_MAX => {
                self.moe_few(weights, kernels, scratch, few, layer)?;
                Ok(false)
            }
            _ => {
                self.moe_many(weights, kernels, scratch, next_gain)?;
                Ok(next_gain.is_some())
            }
        }
    }

    /// Each visit by itself: routing and all experts in one launch, their sum in another.
    fn moe_few(
        &self,
        weights: &DeviceMoe,
        kernels: &MoeKernels,
        scratch: &MoeScratch,
        [gate_up, down]: [Kernel; 2],
        layer: u32,
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
                self.plan.routed.into(),
                layer.into(),
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
                self.plan.routed.into(),
                layer.into(),
            ],
        )
    }

    /// Visits sorted by expert, so that each expert is read once for many.
    fn moe_many(
        &self,
        weights: &DeviceMoe,
        kernels: &MoeKernels,
        scratch: &MoeScratch,
        next_gain: Option<Address>,
    ) -> Result<(), Error> {
        let dimensions = &kernels.dimensions;
        let &MoeDimensions { experts, top_k, hidden, .. } = dimensions;
        let rows = self.plan.rows;
        let visits = rows * top_k;
        let size = self.tile_size(dimensions, visits);
        let tile = TILES[size];
        let order = scratch.visits;
        let tiles = order.plus(4 * visits.next_multiple_of(4));
        let at_once = rows <= ROUTE_ROWS && experts <= ROUTE_THREADS;
        let tile_count = match visits / tile + experts {
            most if at_once => most.min(visits), // they stand side by side
            most => most,
        };
        let arguments = [
            scratch.logits.into(),
            (router_width(experts) as u32).into(),
            shared_column(experts).into(),
            self.plan.row_sequence.into(),
            self.rows(),
            scratch.experts.into(),
            scratch.scores.into(),
            (tile as u32).into(),
            (tile_count as u32).into(),
            order.into(),
            tiles.into(),
        ];
        if at_once {
            let kernel = kernels.route_visits;
            self.launch(Op::Choose, kernel, [1, 1, 1], ROUTE_THREADS, 0, &arguments)?;
        } else {
            let (grid, arguments) = ([rows.div_ceil(4), 1, 1], &arguments[..7]);
            self.launch(Op::Choose, kernels.route, grid, 128, 0, arguments)?;
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
        }

        // experts
        let tables = (order, tiles, tile_count);
        if size == 0 {
            self.experts_tile(weights, kernels, scratch, tables)?;
        } else {
            self.experts_many(weights, kernels, scratch, tables, size)?;
        }
        let shared = scratch.down.plus(4 * visits * hidden);
        if size > 0 || !dimensions.alike {
            let inner = self.scratch.mlp.inner;
            self.swiglu(Op::SharedExpert, &weights.shared, self.scratch.normed, inner)?;
            self.project_down(Op::SharedExpert, &weights.shared, inner, shared, false)?;
        }

        // combine
        self.launch(
            Op::Combine,
            kernels.combine,
            [rows, 1, 1],
            row_threads(hidden),
            0,
            &[
                scratch.down.into(),
                shared.into(),
                scratch.scores.into(),
                scratch.experts.into(),
                self.scratch.x.into(),
                next_gain.map_or(Argument::NULL, Argument::from),
                self.scratch.normed.into(),
            ],
        )
    }

    /// Few visits an expert; the shared expert with them where it is like the others.
    fn experts_tile(
        &self,
        weights: &DeviceMoe,
        kernels: &MoeKernels,
        scratch: &MoeScratch,
        (order, tiles, tile_count): (Address, Address, usize),
    ) -> Result<(), Error> {
        let dimensions = &kernels.dimensions;
        let &MoeDimensions { top_k, width, hidden, alike, .. } = dimensions;
        let rows = self.plan.rows;
        let [gate_up, down] = kernels.many[0];
        let shared_tiles = if alike { rows.div_ceil(TILE_VISITS) } else { 0 };
        let tile_count = shared_tiles + tile_count;
        let warps = dimensions.many_warps();
        self.launch(
            (Op::ExpertsGateUp, self.visits_amount(weights.experts.gate_up_amount, top_k)),
            gate_up,
            [width / (16 * warps), tile_count, 1],
            32 * warps,
            dimensions.tile_bytes(hidden),
            &[
                weights.experts.gate.into(),
                weights.experts.up.into(),
                weights.shared.gate.into(),
                weights.shared.up.into(),
                self.scratch.normed.into(),
                order.into(),
                tiles.into(),
                self.rows(),
                (shared_tiles as u32).into(),
                scratch.inner.into(),
            ],
        )?;
        self.launch(
            (Op::ExpertsDown, self.visits_amount(weights.experts.down_amount, top_k)),
            down,
            [hidden.div_ceil(16 * 8 * TILE_DOWN_ROWS), tile_count, 1],
            32 * 8,
            dimensions.tile_bytes(width),
            &[
                weights.experts.down.into(),
                weights.shared.down.into(),
                scratch.inner.into(),
                order.into(),
                tiles.into(),
                self.rows(),
                (shared_tiles as u32).into(),
                scratch.down.into(),
            ],
        )
    }

    /// Many visits an expert, in tiles of index `size`.
    fn experts_many(
        &self,
        weights: &DeviceMoe,
        kernels: &MoeKernels,
        scratch: &MoeScratch,
        (order, tiles, tile_count): (Address, Address, usize),
        size: usize,
    ) -> Result<(), Error> {
        let dimensions = &kernels.dimensions;
        let &MoeDimensions { top_k, width, hidden, .. } = dimensions;
        let [gate_up, down] = kernels.many[size];
        let tile = TILES[size];
        let warps = dimensions.many_warps();
        self.launch(
            (Op::ExpertsGateUp, self.visits_amount(weights.experts.gate_up_amount, top_k)),
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
            (Op::ExpertsDown, self.visits_amount(weights.experts.down_amount, top_k)),
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
        )
    }

    /// Of the visits of all rows. How many experts several rows have in common, they decide on the device.
    fn visits_amount(&self, expert: Amount, top_k: usize) -> Amount {
        match expert.times(self.plan.rows * top_k) {
            amount if self.plan.rows == 1 => amount,
            amount => Amount { bytes: 0, ..amount },
        }
    }

    /// Index of the tile that suits so many visits: about as many as an expert gets, where a block has
    /// room for it.
    fn tile_size(&self, dimensions: &MoeDimensions, visits: usize) -> usize {
        let each = visits / dimensions.experts;
        let bits = dimensions.bits.max(dimensions.down_bits);
        let fits = |&tile: &usize| match tile {
            TILE_VISITS => dimensions.tiles_fit(),
            _ => many_bytes(self.dimensions, bits, tile, 8) <= dimensions.shared_per_block,
        };
        let tiles = dimensions.tiles();
        let sizes = || (0..tiles.len()).filter(|&size| fits(&tiles[size]));
        let last = sizes().next_back().unwrap_or(0);
        sizes().find(|&size| 3 * each <= 2 * tiles[size]).unwrap_or(last)
    }
}

/// Where the shared expert's gate stands among the router's results.
fn shared_column(experts: usize) -> u32 {
    experts.next_multiple_of(super::dimensions::TILE_OUTPUTS) as u32
}
