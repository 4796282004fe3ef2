//! Attention over cached tokens in half floats, page by page.

use calla_engine::{
    backend::cpu::kernels::{AttendBlock, Cached, Running},
    model::ATTEND_FLOP,
};
use divan::Bencher;

use crate::{SHAPE, counted, kernels, memory::Turns};

/// Tokens of a page, and of a span, whose softmax is taken alone.
const PAGE_TOKENS: usize = 64;
const SPAN_TOKENS: usize = 8 * PAGE_TOKENS;

/// Tokens of a prompt that attend to the same span.
const TILE_TOKENS: usize = 64;

/// One token over all that came before it, all heads: the cache comes from memory.
#[divan::bench(args = [4096, 32_768])]
fn attend_decode(bencher: Bencher<'_, '_>, tokens: usize) {
    let mut heads = Heads::new(1);
    let elements = tokens * SHAPE.attention.head_dim; // of a KV head's keys, or values
    let bytes = 2 * elements * SHAPE.attention.kv_heads * size_of::<u16>();
    let mut turns = Turns::of(bytes);
    let cache = vec![TENTH; turns.count() * bytes / size_of::<u16>()];
    counted(bencher, bytes, ATTEND_FLOP * elements * SHAPE.attention.heads)
        .with_inputs(|| turns.next() * SHAPE.attention.kv_heads)
        .bench_local_values(|first| {
            for kv_head in 0..SHAPE.attention.kv_heads {
                let cache = &cache[(first + kv_head) * 2 * elements..][..2 * elements];
                heads.attend(0, cache, true);
            }
        });
}

/// Some tokens of a prompt over a span before them, the heads of one KV head: the span stays in a
/// cache.
#[divan::bench]
fn attend_prefill(bencher: Bencher<'_, '_>) {
    let mut heads = Heads::new(TILE_TOKENS);
    let elements = SPAN_TOKENS * SHAPE.attention.head_dim;
    let cache = vec![TENTH; 2 * elements];
    counted(bencher, size_of_val(&*cache), ATTEND_FLOP * elements * heads.group * TILE_TOKENS)
        .bench_local(|| (0..TILE_TOKENS).for_each(|token| heads.attend(token, &cache, false)));
}

/// 0.1 as a half float.
const TENTH: u16 = 0x2E66;

/// The query heads that share a KV head, of some tokens.
struct Heads {
    dim: usize,
    group: usize,
    queries: Vec<f32>, // [tokens, group, dim]
    max: Vec<f32>,     // [group]
    sum: Vec<f32>,     // [group]
    acc: Vec<f32>,     // [group, dim]
}

impl Heads {
    fn new(tokens: usize) -> Self {
        let (dim, group) =
            (SHAPE.attention.head_dim, SHAPE.attention.heads / SHAPE.attention.kv_heads);
        Self {
            dim,
            group,
            queries: (0..tokens * group * dim).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect(),
            max: vec![0.0; group],
            sum: vec![0.0; group],
            acc: vec![0.0; group * dim],
        }
    }

    fn attend(
        &mut self,
        token: usize,
        cache: &[u16], // [pages, 2, PAGE_TOKENS, dim] keys and values
        ahead: bool,   // whether each page is asked for while the one before is read
    ) {
        let queries = &self.queries[token * self.group * self.dim..][..self.group * self.dim];
        let mut running = Running { max: &mut self.max, sum: &mut self.sum, acc: &mut self.acc };
        running.clear();
        let elements = PAGE_TOKENS * self.dim;
        let mut pages = cache.chunks_exact(2 * elements).peekable();
        while let Some(page) = pages.next() {
            let (keys, values) = page.split_at(elements);
            let next = pages.peek().filter(|_| ahead).map(|page| page.split_at(elements));
            let block = AttendBlock {
                queries,
                head_dim: self.dim,
                scale: (self.dim as f32).sqrt().recip(),
                keys: Cached::F16(keys),
                values: Cached::F16(values),
                stride: self.dim,
                tokens: PAGE_TOKENS,
                next: next.map(|(keys, values)| [Cached::F16(keys), Cached::F16(values)]),
            };
            kernels().attend(&block, &mut running);
        }
        running.finish();
    }
}
