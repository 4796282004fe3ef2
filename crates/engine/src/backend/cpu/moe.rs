//! Stage `moe`: route, experts, shared expert, combine.
//!
//! All tokens are routed first. Their visits to experts are then sorted by expert, so that each
//! chosen expert's matrices are read once for all its tokens. Each visit's result is kept apart
//! and a token adds up its own in the order of their scores: what other tokens do changes no bit.

use std::ops::Range;

use super::{
    kernels::Activations,
    math::sigmoid,
    mlp::SwigluScratch,
    pass::{Pass, Product},
    scratch::{Residual, zeros},
    shared::Shared,
};
use crate::{
    backend::{Precision, profile::Op},
    model::{MlpShape, Moe, Shape},
};

/// Intermediate results of the stage. A *visit* is one token at one of its experts; visits
/// are numbered expert by expert.
pub(super) struct MoeScratch {
    experts_per_token: usize,
    renormalise: bool,
    router: Vec<f32>,      // [tokens, experts] logits, then probabilities
    shared_gate: Vec<f32>, // [tokens, 1]
    shared: SwigluScratch,
    shared_out: Vec<f32>, // [tokens, hidden]
    chosen: Vec<Choice>,  // [tokens, experts_per_token]
    plan: Plan,
    gate: Vec<f32>, // [visits, expert_width], then silu(gate) * up
    up: Vec<f32>,   // [visits, expert_width]
    inner: Activations,
    out: Vec<f32>, // [visits, hidden]
}

/// One of a token's experts.
#[derive(Debug, Clone, Copy, Default)]
struct Choice {
    expert: u32,
    score: f32,
    visit: u32,
}

impl MoeScratch {
    pub(super) fn new(shape: &Shape, tokens: usize, precision: Precision) -> Self {
        let MlpShape::Moe { experts, experts_per_token, expert_width, shared_width, renormalise } =
            shape.mlp
        else {
            unreachable!("made for models with experts")
        };
        let visits = tokens * experts_per_token;
        Self {
            experts_per_token,
            renormalise,
            router: zeros(tokens * experts),
            shared_gate: zeros(tokens),
            shared: SwigluScratch::new(shared_width, tokens, precision),
            shared_out: zeros(tokens * shape.hidden),
            chosen: vec![Choice::default(); visits],
            plan: Plan::new(experts, visits),
            gate: zeros(visits * expert_width),
            up: zeros(visits * expert_width),
            inner: Activations::with_capacity(visits, expert_width, precision),
            out: zeros(visits * shape.hidden),
        }
    }
}

/// Runs the stage on the normed activations `x`; the result is the residual's update.
pub(super) fn moe(
    pass: &mut Pass<'_>,
    weights: &Moe,
    x: &Activations,
    scratch: &mut MoeScratch,
    residual: &mut Residual,
) {
    // route, and the first half of the shared expert
    let all = pass.tokens;
    pass.products(
        [
            Product::new(Op::Router, &weights.router, &mut scratch.router),
            Product::new(Op::Router, &weights.shared_gate, &mut scratch.shared_gate),
            Product::new(Op::SharedExpert, &weights.shared.gate, &mut scratch.shared.gate),
            Product::new(Op::SharedExpert, &weights.shared.up, &mut scratch.shared.up),
        ],
        x,
        all,
    );
    scratch.shared.activate(pass);
    choose(pass, scratch);
    let visits = all.len() * scratch.experts_per_token;
    scratch.plan.sort(&mut scratch.chosen[..visits], scratch.experts_per_token);

    // experts and the second half of the shared one
    gate_and_up(pass, weights, x, scratch);
    let width = weights.experts.down[0].inputs;
    pass.prepare(&scratch.gate[..visits * width], width, &mut scratch.inner);
    down(pass, weights, scratch);

    // combine
    combine(pass, scratch, residual);
}

/// Each token's experts by falling score.
fn choose(pass: &mut Pass<'_>, scratch: &mut MoeScratch) {
    let (kernels, count, renormalise) =
        (pass.kernels, scratch.experts_per_token, scratch.renormalise);
    let experts = scratch.plan.experts();
    let (router, chosen) = (Shared::new(&mut scratch.router), Shared::new(&mut scratch.chosen));
    pass.each_token(Op::Choose, |token, _| {
        // SAFETY: each task has a token of its own.
        let (probabilities, chosen) =
            unsafe { (router.part(token * experts, experts), chosen.part(token * count, count)) };
        kernels.softmax(probabilities);
        take_best(probabilities, chosen);
        if renormalise {
            let sum: f32 = chosen.iter().map(|choice| choice.score).sum();
            chosen.iter_mut().for_each(|choice| choice.score /= sum);
        }
    });
}

/// The highest probabilities, highest first; of equal ones the higher index first, as in mlx-lm
/// on a CPU.
fn take_best(probabilities: &[f32], best: &mut [Choice]) {
    let mut found = 0;
    for (expert, &score) in probabilities.iter().enumerate() {
        // Later experts win ties, so they go before all that are not greater.
        let place = best[..found].partition_point(|choice| choice.score > score);
        if place == best.len() {
            continue;
        }
        found = best.len().min(found + 1);
        best[place..found].rotate_right(1);
        best[place] = Choice { expert: expert as u32, score, visit: 0 };
    }
}

/// `gate = silu(gate_e(x)) * up_e(x)` for every visit.
fn gate_and_up(pass: &mut Pass<'_>, weights: &Moe, x: &Activations, scratch: &mut MoeScratch) {
    let (kernels, plan) = (pass.kernels, &scratch.plan);
    let (gate, up) = (Shared::new(&mut scratch.gate), Shared::new(&mut scratch.up));
    let blocks = Product::blocks(&weights.experts.gate[0]);
    pass.runs(Op::ExpertsGateUp, plan.busy.len() * blocks, |run, worker| {
        for (place, blocks) in pieces(run, blocks) {
            let expert = plan.busy[place];
            let (visits, tokens) = plan.visits(expert);
            let op = Op::ExpertsGateUp;
            let product = |matrix, y| Product { op, matrix, y, stride: matrix.outputs };
            let gates = product(&weights.experts.gate[expert], gate);
            let ups = product(&weights.experts.up[expert], up);
            // SAFETY: each task has outputs and visits of its own, in both products.
            unsafe {
                gates.run(worker, kernels, x, tokens, visits.start, blocks.clone());
                ups.run(worker, kernels, x, tokens, visits.start, blocks.clone());
            }
            worker.at(Op::Activate);
            let outputs = Product::outputs(gates.matrix, blocks);
            for visit in visits {
                let at = visit * gates.matrix.outputs + outputs.start;
                // SAFETY: the same outputs and visits, which nobody writes any more.
                let (gate, up) =
                    unsafe { (gate.part(at, outputs.len()), up.part(at, outputs.len())) };
                kernels.silu_mul(gate, up);
            }
        }
    });
}

/// `out = down_e(inner)` for every visit, and the shared expert's for every token.
fn down(pass: &mut Pass<'_>, weights: &Moe, scratch: &mut MoeScratch) {
    let (kernels, plan, tokens) = (pass.kernels, &scratch.plan, pass.tokens);
    let (inner, shared_inner) = (&scratch.inner, &scratch.shared.inner);
    let out = Shared::new(&mut scratch.out);
    let shared = Product::new(Op::SharedExpert, &weights.shared.down, &mut scratch.shared_out);
    let blocks = Product::blocks(&weights.shared.down);
    pass.runs(Op::ExpertsDown, (plan.busy.len() + 1) * blocks, |run, worker| {
        for (place, blocks) in pieces(run, blocks) {
            let Some(&expert) = plan.busy.get(place) else {
                // SAFETY: each task has outputs of its own.
                unsafe { shared.run(worker, kernels, shared_inner, tokens, 0, blocks) };
                continue;
            };
            let (visits, _) = plan.visits(expert);
            let matrix = &weights.experts.down[expert];
            let product = Product { op: Op::ExpertsDown, matrix, y: out, stride: matrix.outputs };
            let rows = &plan.numbers[visits.clone()];
            // SAFETY: each task has outputs and visits of its own.
            unsafe { product.run(worker, kernels, inner, rows, visits.start, blocks) };
        }
    });
}

/// A run of the blocks of many matrices, `blocks` each: which matrices, and which of their blocks.
fn pieces(run: Range<usize>, blocks: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    (run.start / blocks..run.end.div_ceil(blocks)).map(move |place| {
        let first = place * blocks;
        (place, run.start.max(first) - first..run.end.min(first + blocks) - first)
    })
}

/// Each token's update: its visits in the order of their scores, then the shared expert.
fn combine(pass: &mut Pass<'_>, scratch: &mut MoeScratch, residual: &mut Residual) {
    let (hidden, kernels, count) = (pass.shape.hidden, pass.kernels, scratch.experts_per_token);
    let update = Shared::new(&mut residual.update);
    let scratch = &*scratch;
    pass.each_token(Op::Combine, |token, _| {
        // SAFETY: each task has a token of its own.
        let y = unsafe { update.part(token * hidden, hidden) };
        y.fill(0.0);
        for choice in &scratch.chosen[token * count..][..count] {
            let out = &scratch.out[choice.visit as usize * hidden..][..hidden];
            kernels.add_scaled(y, choice.score, out);
        }
        let gate = sigmoid(scratch.shared_gate[token]);
        kernels.add_scaled(y, gate, &scratch.shared_out[token * hidden..][..hidden]);
    });
}

/// Which expert works on which tokens.
struct Plan {
    /// Visits before each expert's, and all of them at the end [experts + 1].
    starts: Vec<usize>,
    /// The token of each visit [visits].
    tokens: Vec<u32>,
    /// Experts with visits, in order.
    busy: Vec<usize>,
    /// 0, 1, 2, … [visits]
    numbers: Vec<u32>,
}

impl Plan {
    fn new(experts: usize, visits: usize) -> Self {
        Self {
            starts: vec![0; experts + 1],
            tokens: vec![0; visits],
            busy: Vec::with_capacity(experts),
            numbers: (0..visits as u32).collect(),
        }
    }

    fn experts(&self) -> usize {
        self.starts.len() - 1
    }

    /// A counting sort of the tokens' choices by expert; within an expert tokens keep their order.
    fn sort(&mut self, chosen: &mut [Choice], per_token: usize) {
        self.starts.fill(0);
        for choice in &*chosen {
            self.starts[choice.expert as usize] += 1;
        }
        self.busy.clear();
        let mut before = 0;
        for (expert, start) in self.starts.iter_mut().enumerate() {
            if *start > 0 {
                self.busy.push(expert);
            }
            (*start, before) = (before, before + *start);
        }
        for (index, choice) in chosen.iter_mut().enumerate() {
            let next = &mut self.starts[choice.expert as usize];
            choice.visit = *next as u32;
            self.tokens[*next] = (index / per_token) as u32;
            *next += 1;
        }
        // Each start has moved to its expert's end, which is the next one's start.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// An expert's visits and their tokens.
    fn visits(&self, expert: usize) -> (Range<usize>, &[u32]) {
        let visits = self.starts[expert]..self.starts[expert + 1];
        (visits.clone(), &self.tokens[visits])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_in_order_and_ties_go_to_the_higher_index() {
        let mut best = [Choice::default(); 4];
        take_best(&[0.1, 0.3, 0.2, 0.3, 0.05, 0.2], &mut best);
        assert_eq!(best.map(|choice| choice.expert), [3, 1, 5, 2]);
        take_best(&[0.0; 6], &mut best);
        assert_eq!(best.map(|choice| choice.expert), [5, 4, 3, 2]);
    }

    #[test]
    fn visits_are_sorted_by_expert_and_lead_back_to_their_tokens() {
        let experts = [[4, 1], [1, 3], [4, 3], [1, 0]];
        let mut chosen: Vec<Choice> = experts
            .as_flattened()
            .iter()
            .map(|&expert| Choice { expert, ..Choice::default() })
            .collect();
        let mut plan = Plan::new(6, 12);
        for _ in 0..2 {
            plan.sort(&mut chosen, 2);
            assert_eq!(plan.busy, [0, 1, 3, 4]);
            assert_eq!(plan.visits(1), (1..4, &[0, 1, 3][..]));
            assert_eq!(plan.visits(2), (4..4, &[][..]));
            assert_eq!(plan.visits(4), (6..8, &[0, 2][..]));
            for (index, choice) in chosen.iter().enumerate() {
                let (visits, _) = plan.visits(choice.expert as usize);
                assert!(visits.contains(&(choice.visit as usize)));
                assert_eq!(plan.tokens[choice.visit as usize] as usize, index / 2);
            }
        }
    }
}
