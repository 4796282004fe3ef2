//! Stage `attention`: qkv, qk-norm, RoPE, KV write, attend, gate, o_proj.
//!
//! A token attends in *spans* of [`SPAN_TOKENS`] positions that start at multiples of it. Each
//! span's softmax is taken alone and the spans are merged in order, so that a few tokens over a
//! long history can be spread over all threads (one task a span) and many tokens need not be
//! (one task a token): the order of the sums is the same.

use super::{
    Sequences,
    clock::Worker,
    kernels::{Activations, AttendBlock, Kernels, Running},
    kv::KvHead,
    pass::{Pass, Product, RowPlan},
    rope::Rope,
    scratch::{Residual, zeros},
    shared::Shared,
};
use crate::{
    backend::{histories::PAGE_TOKENS, profile::Op},
    model::{ATTEND_FLOP, Attention, AttentionShape},
};

/// Positions whose softmax is taken together: several pages.
const SPAN_TOKENS: usize = 8 * PAGE_TOKENS;

/// Most spans of a pass that are spread over the threads: bounds the memory for their results.
const SPREAD_MAX: usize = 512;

/// Intermediate results of the stage.
pub(super) struct AttentionScratch {
    projected: Vec<f32>,   // [tokens, heads, 2, head_dim] queries and output gates
    keys: Vec<f32>,        // [tokens, kv_heads, head_dim] raw
    turned_keys: Vec<f32>, // [tokens, kv_heads, head_dim] normed and turned
    values: Vec<f32>,      // [tokens, kv_heads, head_dim]
    queries: Vec<f32>,     // [tokens, heads, head_dim] normed and turned
    read: Vec<f32>,        // [tokens, heads, head_dim]
    softmax: Vec<f32>,     // two slots a worker, then [SPREAD_MAX, kv_heads] slots
    rope: Rope,
    turns: Vec<f32>, // [tokens, 2, rotary_dims / 2]
    places: Vec<Place>,
    spans: Vec<Span>,
}

/// Where a token of the batch stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    row: usize,
    position: usize,
    /// The first of its [`AttentionScratch::spans`].
    first_span: usize,
}

/// One span of one token.
#[derive(Debug, Clone, Copy)]
struct Span {
    token: usize,
    start: usize,
}

impl AttentionScratch {
    pub(super) fn new(shape: &AttentionShape, tokens: usize, workers: usize) -> Self {
        let rope = Rope::new(shape);
        Self {
            projected: zeros(tokens * 2 * shape.query_width()),
            keys: zeros(tokens * shape.kv_width()),
            turned_keys: zeros(tokens * shape.kv_width()),
            values: zeros(tokens * shape.kv_width()),
            queries: zeros(tokens * shape.query_width()),
            read: zeros(tokens * shape.query_width()),
            softmax: zeros(softmax_len(shape, workers)),
            turns: zeros(tokens * rope.turn_len()),
            rope,
            places: Vec::with_capacity(tokens),
            spans: Vec::with_capacity(SPREAD_MAX),
        }
    }

    /// What all layers of a pass have in common: angles, and who attends to what.
    pub(super) fn plan(&mut self, rows: &[RowPlan]) {
        self.places.clear();
        self.spans.clear();
        let mut spans_total = 0;
        let turn_len = self.rope.turn_len();
        let tokens = rows.iter().enumerate().flat_map(|(row, plan)| {
            (plan.position..plan.position + plan.len).map(move |position| (row, position))
        });
        for (token, (row, position)) in tokens.enumerate() {
            self.rope.fill_turn(position, &mut self.turns[token * turn_len..][..turn_len]);
            self.places.push(Place { row, position, first_span: spans_total });
            spans_total += (position + 1).div_ceil(SPAN_TOKENS);
            if spans_total <= SPREAD_MAX {
                let starts = (0..=position).step_by(SPAN_TOKENS);
                self.spans.extend(starts.map(|start| Span { token, start }));
            }
        }
        if spans_total > SPREAD_MAX {
            self.spans.clear();
        }
    }
}

/// Runs the stage on the normed activations `x`; the result is the residual's update.
pub(super) fn attention(
    pass: &mut Pass<'_>,
    weights: &Attention,
    layer: usize, // among the attention layers
    x: &Activations,
    scratch: &mut AttentionScratch,
    read: &mut Activations,
    residual: &mut Residual,
) {
    // qkv
    let all = pass.tokens;
    pass.products(
        [
            Product::new(Op::Qkv, &weights.q_proj, &mut scratch.projected),
            Product::new(Op::Qkv, &weights.k_proj, &mut scratch.keys),
            Product::new(Op::Qkv, &weights.v_proj, &mut scratch.values),
        ],
        x,
        all,
    );

    // qk-norm, RoPE, KV write
    place_heads(pass, weights, layer, scratch);

    // attend, gate
    if scratch.spans.is_empty() {
        attend_by_token(pass, layer, scratch);
    } else {
        attend_by_span(pass, layer, scratch);
    }

    // o_proj
    let width = pass.shape.attention.query_width();
    pass.prepare(&scratch.read[..all.len() * width], width, read);
    pass.products([Product::new(Op::OProj, &weights.o_proj, &mut residual.update)], read, all);
}

/// Norms and turns queries and keys; keys and values go to their pages.
fn place_heads(
    pass: &mut Pass<'_>,
    weights: &Attention,
    layer: usize,
    scratch: &mut AttentionScratch,
) {
    let (shape, eps, kernels) = (&pass.shape.attention, pass.shape.norm_eps, pass.kernels);
    let (dim, width, kv_width) = (shape.head_dim, shape.query_width(), shape.kv_width());
    let (rows, sequences) = (pass.rows, pass.sequences);
    let queries = Shared::new(&mut scratch.queries);
    let turned = Shared::new(&mut scratch.turned_keys);
    let (projected, keys, values) = (&scratch.projected, &scratch.keys, &scratch.values);
    let (turns, turn_len, places) = (&scratch.turns, scratch.rope.turn_len(), &scratch.places);
    pass.each_token(Op::KvWrite, |token, _| {
        let (cos, sin) = turns[token * turn_len..][..turn_len].split_at(turn_len / 2);
        // SAFETY: each task has a token of its own.
        let (queries, turned) = unsafe {
            (queries.part(token * width, width), turned.part(token * kv_width, kv_width))
        };
        let projected = projected[token * 2 * width..][..2 * width].chunks_exact(2 * dim);
        for (query, projected) in queries.chunks_exact_mut(dim).zip(projected) {
            kernels.rms_norm(&projected[..dim], &weights.q_norm, eps, query);
            kernels.rope(query, cos, sin);
        }
        let place = places[token];
        let pages = &sequences.history(rows[place.row].sequence).pages;
        for (kv_head, turned) in turned.chunks_exact_mut(dim).enumerate() {
            let at = token * kv_width + kv_head * dim;
            kernels.rms_norm(&keys[at..][..dim], &weights.k_norm, eps, turned);
            kernels.rope(turned, cos, sin);
            let head = KvHead::new(sequences.pages(), pages, layer, kv_head);
            // SAFETY: the page is the sequence's own from its old end on, and the position is
            // this task's.
            unsafe { head.write(kernels, place.position, turned, &values[at..][..dim]) };
        }
    });
}

/// One task a token and KV head: its spans one after the other.
fn attend_by_token(pass: &mut Pass<'_>, layer: usize, scratch: &mut AttentionScratch) {
    let attend = Attend::new(pass, layer, &scratch.queries, &scratch.projected, &scratch.places);
    let (read, softmax) = (Shared::new(&mut scratch.read), Shared::new(&mut scratch.softmax));
    let kv_heads = attend.shape.kv_heads;
    pass.pool.run(Op::Attend, scratch.places.len() * kv_heads, |task, worker| {
        let (token, kv_head) = (task / kv_heads, task % kv_heads);
        let own = 2 * worker.index;
        // SAFETY: each worker has two slots of its own.
        let (span, total) = unsafe { (attend.slot(softmax, own), attend.slot(softmax, own + 1)) };
        let mut total = attend.running(total);
        total.clear();
        for start in (0..=attend.places[token].position).step_by(SPAN_TOKENS) {
            attend.span(worker, token, kv_head, start, span);
            merge(&mut total, &attend.running(span));
        }
        worker.at(Op::Merge);
        // SAFETY: each task has a token and a KV head of its own.
        unsafe { attend.finish(token, kv_head, total, read) };
    });
}

/// One task a span and KV head, then one a token and KV head that merges its spans.
fn attend_by_span(pass: &mut Pass<'_>, layer: usize, scratch: &mut AttentionScratch) {
    let attend = Attend::new(pass, layer, &scratch.queries, &scratch.projected, &scratch.places);
    let (read, softmax) = (Shared::new(&mut scratch.read), Shared::new(&mut scratch.softmax));
    let (kv_heads, workers, spans) = (attend.shape.kv_heads, pass.pool.workers(), &scratch.spans);
    pass.pool.run(Op::Attend, spans.len() * kv_heads, |task, worker| {
        let Span { token, start } = spans[task / kv_heads];
        // SAFETY: each task has a slot of its own.
        let slot = unsafe { attend.slot(softmax, 2 * workers + task) };
        attend.span(worker, token, task % kv_heads, start, slot);
    });
    pass.pool.run(Op::Merge, scratch.places.len() * kv_heads, |task, worker| {
        let (token, kv_head) = (task / kv_heads, task % kv_heads);
        // SAFETY: each worker has a slot of its own.
        let mut total = attend.running(unsafe { attend.slot(softmax, worker.index) });
        total.clear();
        let Place { position, first_span, .. } = attend.places[token];
        for span in first_span..=first_span + position / SPAN_TOKENS {
            // SAFETY: filled by the job before; only this task reads it.
            let slot = unsafe { attend.slot(softmax, 2 * workers + span * kv_heads + kv_head) };
            merge(&mut total, &attend.running(slot));
        }
        // SAFETY: each task has a token and a KV head of its own.
        unsafe { attend.finish(token, kv_head, total, read) };
    });
}

/// What the tasks of one layer share.
struct Attend<'a> {
    kernels: &'a Kernels,
    shape: &'a AttentionShape,
    sequences: &'a Sequences,
    rows: &'a [RowPlan],
    places: &'a [Place],
    queries: &'a [f32],   // [tokens, heads, head_dim]
    projected: &'a [f32], // [tokens, heads, 2, head_dim]
    layer: usize,
}

impl<'a> Attend<'a> {
    fn new(
        pass: &Pass<'a>,
        layer: usize,
        queries: &'a [f32],
        projected: &'a [f32],
        places: &'a [Place],
    ) -> Self {
        let (kernels, sequences, rows) = (pass.kernels, pass.sequences, pass.rows);
        let shape = &pass.shape.attention;
        Self { kernels, shape, sequences, rows, places, queries, projected, layer }
    }

    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// Memory of one softmax in progress.
    ///
    /// # Safety
    /// Nobody else has the same slot.
    unsafe fn slot(&self, softmax: Shared<'a, f32>, index: usize) -> &'a mut [f32] {
        let len = slot_len(self.shape);
        // SAFETY: passed on from the caller.
        unsafe { softmax.part(index * len, len) }
    }

    fn running<'s>(&self, slot: &'s mut [f32]) -> Running<'s> {
        let (max, rest) = slot.split_at_mut(self.group());
        let (sum, acc) = rest.split_at_mut(self.group());
        Running { max, sum, acc }
    }

    /// The softmax of a token's query heads over one span, as far as the token sees it. For a
    /// row's first token, before which none has just read them, each page is asked for while the one
    /// before is read.
    fn span(
        &self,
        worker: Worker<'_>,
        token: usize,
        kv_head: usize,
        start: usize,
        slot: &mut [f32],
    ) {
        let (dim, group) = (self.shape.head_dim, self.group());
        let Place { row, position, .. } = self.places[token];
        let pages = &self.sequences.history(self.rows[row].sequence).pages;
        let head = KvHead::new(self.sequences.pages(), pages, self.layer, kv_head);
        let queries = &self.queries[(token * self.shape.heads + kv_head * group) * dim..];
        let mut running = self.running(slot);
        running.clear();
        let end = (start + SPAN_TOKENS).min(position + 1);
        let elements = (end - start) * dim;
        let element_bytes = self.sequences.pages().layout().element_bytes;
        worker.moves(2 * elements * element_bytes, ATTEND_FLOP * elements * group);
        let tokens_of = |first: usize| PAGE_TOKENS.min(end - first);
        // SAFETY: positions up to the token's own are written, by this pass or earlier ones, and all
        // writes of this layer are done.
        let page = |first: usize| unsafe { head.read(first / PAGE_TOKENS, tokens_of(first)) };
        let ahead = position == self.rows[row].position;
        for first in (start..end).step_by(PAGE_TOKENS) {
            let [keys, values] = page(first);
            let next = first + PAGE_TOKENS;
            let block = AttendBlock {
                queries: &queries[..group * dim],
                head_dim: dim,
                scale: (dim as f32).sqrt().recip(),
                keys,
                values,
                stride: dim,
                tokens: tokens_of(first),
                next: (ahead && next < end).then(|| page(next)),
            };
            self.kernels.attend(&block, &mut running);
        }
    }

    /// The attention's result times the sigmoid of the output gate.
    ///
    /// # Safety
    /// Nobody else touches these heads of the token.
    unsafe fn finish(
        &self,
        token: usize,
        kv_head: usize,
        mut total: Running<'_>,
        read: Shared<'_, f32>, // [tokens, heads, head_dim]
    ) {
        let (dim, group) = (self.shape.head_dim, self.group());
        let head = token * self.shape.heads + kv_head * group;
        total.finish();
        // SAFETY: passed on from the caller.
        let read = unsafe { read.part(head * dim, group * dim) };
        read.copy_from_slice(total.acc);
        let projected = self.projected[head * 2 * dim..].chunks_exact(2 * dim);
        for (read, projected) in read.chunks_exact_mut(dim).zip(projected) {
            self.kernels.mul_sigmoid(read, &projected[dim..]);
        }
    }
}

/// Floats of [`AttentionScratch::softmax`].
pub(super) fn softmax_len(shape: &AttentionShape, workers: usize) -> usize {
    (2 * workers + SPREAD_MAX * shape.kv_heads) * slot_len(shape)
}

/// Floats of one softmax in progress: largest scores, sums and values of a KV head's query heads.
fn slot_len(shape: &AttentionShape) -> usize {
    shape.heads / shape.kv_heads * (shape.head_dim + 2)
}

/// Adds a span's softmax to that of the spans before it.
fn merge(total: &mut Running<'_>, span: &Running<'_>) {
    let dim = total.acc.len() / total.max.len();
    for head in 0..total.max.len() {
        let max = total.max[head].max(span.max[head]);
        let (old, new) = ((total.max[head] - max).exp(), (span.max[head] - max).exp());
        total.max[head] = max;
        total.sum[head] = total.sum[head] * old + span.sum[head] * new;
        let values = &span.acc[head * dim..][..dim];
        for (acc, value) in total.acc[head * dim..][..dim].iter_mut().zip(values) {
            *acc = *acc * old + value * new;
        }
    }
}
