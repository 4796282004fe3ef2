// Mixture of experts: which experts a row visits, their SwiGLU, and the sum of what they say.
// Compiled after the files of matmul, whose parts it uses.
//
// A visit is one row at one expert: number row * TOPK + slot, slots by falling score.
//
// ---- kernels, and how to launch them -----------------------------------------------------------
//
// Few rows (each visit reads its expert for itself; needs EXPERT_WIDTH == SHARED_WIDTH, equal bits for
// the routed and the shared matrices, and (TOPK + 1) * EXPERT_WIDTH * PIECES <= 20,480):
//
//   EXPERTS_FEW(name, BITS, WARPS): routes from the logits; gate and up of all visits and of the shared
//       expert. grid (EXPERT_WIDTH / 16, TOPK + 1, rows), block 32 * WARPS, dynamic shared 0
//   EXPERTS_FEW_DOWN(name, BITS): down, the weighted sum, and the residual. Behind EXPERTS_FEW: it reads
//       the experts while that is at work.
//       grid (HIDDEN / 16, rows), block 32 * (TOPK + 1), dynamic shared 0
//
// Any number of rows:
//
//   route: grid ceil(rows / 4), block 128
//   route_visits: grid 1, block 1024: both for up to ROUTE_ROWS rows and 1,024 experts
//   sort_visits: grid EXPERTS, block a multiple of 32 up to 1024 (visits / 64 is good); `tile` is the ROWS
//       of the two kernels after it
//   EXPERTS_TILE(name, BITS, WARPS): gate and up of the sorted visits, at most TILE_VISITS each: reads
//       weights as fast as they come. The shared expert's first, where it is like the routed ones.
//       grid (EXPERT_WIDTH / (16 * WARPS), shared tiles + tiles), shared tiles = ceil(rows / TILE_VISITS)
//       or 0; block 32 * WARPS, dynamic shared the larger of HeldRows<HIDDEN, TILE_VISITS>::BYTES and
//       TILE_VISITS * (16 * WARPS + 4) * 4
//   EXPERTS_TILE_DOWN(name, BITS, WARPS): down of the same.
//       grid (ceil(HIDDEN / (16 * WARPS * TILE_DOWN_ROWS)), shared tiles + tiles), block 32 * WARPS,
//       dynamic shared HeldRows<EXPERT_WIDTH, TILE_VISITS>::BYTES
//   EXPERTS_MANY(name, BITS, ROWS, WARPS): gate and up of the sorted visits.
//       grid (EXPERT_WIDTH / (16 * WARPS), tiles), tiles = visits / ROWS + EXPERTS, visits = rows * TOPK;
//       block 32 * WARPS, dynamic shared MANY_BYTES(BITS, ROWS, WARPS)
//       WARPS 4, or 8 when EXPERT_WIDTH is a multiple of 128
//   EXPERTS_MANY_DOWN(name, BITS, ROWS, WARPS): down of the sorted visits.
//       grid (ceil(HIDDEN / (32 * WARPS)), tiles), block 32 * WARPS, dynamic shared MANY_BYTES
//   combine: grid rows, block NORM_THREADS

// ---- routing -----------------------------------------------------------------------------------

// A row's logits, of which a lane has those of experts lane, lane + 32, ..
struct RowLogits {
    static constexpr int OWN = (EXPERTS + WARP - 1) / WARP;
    float at[OWN];
};

DEVICE RowLogits load_logits(const float* logits) {
    RowLogits x;
    int lane = threadIdx.x % WARP;
    #pragma unroll
    for (int i = 0; i < RowLogits::OWN; i++) {
        bool there = EXPERTS % WARP == 0 || i * WARP + lane < EXPERTS;
        x.at[i] = there ? logits[i * WARP + lane] : __uint_as_float(0xff800000);
    }
    return x;
}

// Routes a row by a warp: lane s < slots <= TOPK gets the expert of slot s and its logit. Of equal
// logits the higher index comes first.
DEVICE void route_row(const RowLogits& x, u32 slots, u32& expert, float& logit) {
    int lane = threadIdx.x % WARP;
    // Numbers in the order of the logits; 0: not there, or taken.
    u32 key[RowLogits::OWN];
    #pragma unroll
    for (int i = 0; i < RowLogits::OWN; i++) {
        u32 bits = __float_as_uint(x.at[i] + 0.0f); // one zero
        bool there = EXPERTS % WARP == 0 || i * WARP + lane < EXPERTS;
        key[i] = !there ? 0 : max(bits >> 31 ? ~bits : bits | 0x80000000u, 1u);
    }
    expert = NONE;
    logit = 0.0f;
    #pragma unroll 1
    for (u32 slot = 0; slot < slots; slot++) {
        u32 best = key[0];
        #pragma unroll
        for (int i = 1; i < RowLogits::OWN; i++) best = max(best, key[i]);
        best = __reduce_max_sync(0xffffffff, best);
        u32 index = 0;
        #pragma unroll
        for (int i = 0; i < RowLogits::OWN; i++)
            if (key[i] == best) index = i * WARP + lane;
        index = __reduce_max_sync(0xffffffff, index);
        #pragma unroll
        for (int i = 0; i < RowLogits::OWN; i++)
            if (index == i * WARP + lane) key[i] = 0;
        if (lane == slot) {
            expert = index;
            logit = __uint_as_float(best >> 31 ? best & 0x7fffffff : ~best);
        }
    }
}

// Scores of a row's experts by the warp that routed it with TOPK slots: of the softmax over all
// experts, or with RENORMALISE over the chosen. 0 beyond them.
DEVICE float route_scores(const RowLogits& x, float logit) {
    int lane = threadIdx.x % WARP;
    float largest = __shfl_sync(0xffffffff, logit, 0);
    float own = lane < TOPK ? expf(logit - largest) : 0.0f, sum = own;
    if (!RENORMALISE) {
        sum = 0.0f;
        #pragma unroll
        for (int i = 0; i < RowLogits::OWN; i++) sum += expf(x.at[i] - largest);
    }
    return own / lanes_sum(sum);
}

// A row's experts and scores to memory, by the warp that routed it.
DEVICE void write_route(u32 row, u32 expert, float score, float shared, u32* experts, float* scores) {
    int lane = threadIdx.x % WARP;
    if (lane < TOPK) {
        experts[row * TOPK + lane] = expert;
        scores[row * (TOPK + 1) + lane] = score;
    }
    if (lane == 0) scores[row * (TOPK + 1) + TOPK] = shared;
}

// Both by a warp, for a row that is padding where not `there`: a lane gets the expert of its slot.
DEVICE u32 route_all(u32 row, bool there, const float* logits, u32 shared_column, u32* experts,
                     float* scores) {
    u32 expert = NONE;
    float score = 0.0f, shared = 0.0f;
    if (there) {
        RowLogits own = load_logits(logits);
        route_row(own, TOPK, expert, score);
        score = route_scores(own, score);
        shared = sigmoid(logits[shared_column]);
    }
    write_route(row, expert, score, shared, experts, scores);
    return expert;
}

KERNEL void __launch_bounds__(128) route(
    const float* logits,      // [rows, ld]: of the experts from column 0 on
    u32 ld, u32 shared_column, // column of the shared expert's gate
    const u32* row_sequence,  // [rows]
    u32 rows,
    u32* expert,              // [rows, TOPK]; NONE in padding rows
    float* score) {           // [rows, TOPK + 1]; the last is the shared expert's
    start_next();
    wait_for_inputs();
    u32 row = blockIdx.x * 4 + threadIdx.x / WARP;
    if (row >= rows) return;
    route_all(row, row_sequence[row] != NONE, logits + (u64)row * ld, shared_column, expert, score);
}

// ---- few rows ----------------------------------------------------------------------------------

// A block has 16 elements of one visit's width.
template <int BITS, int WARPS>
DEVICE void experts_few(
    Matrix gate, Matrix up, Matrix shared_gate, Matrix shared_up, Activations x, const float* logits, u32 ld,
    u32 shared_column, const u32* row_sequence, u32* expert, float* score, float* inner, u32* routed,
    u32 layer) {
    constexpr int RING = few_flight(HIDDEN, BITS, 2, WARPS);
    typedef FewRows<HIDDEN, BITS, 1, 2, WARPS, (RING > 0 ? RING : 8), (RING > 0)> F;
    SHARED float part[WARPS][2][1][PART_STRIDE];
    SHARED __align__(16) uint4 ring[WARPS][F::STAGED ? F::RING : 1];
    SHARED __align__(16) u16 halves[F::STAGED ? PIECES * HIDDEN : 8];
    SHARED float sums[F::STAGED ? HIDDEN / GROUP : 1];
    SHARED float2 parity[F::STAGED ? HIDDEN / GROUP : 1];
    SHARED u64 arrival[WARPS];
    SHARED u32 chosen;
    u32 slot = blockIdx.y, row = blockIdx.z;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    bool there = row_sequence[row] != NONE, writes = blockIdx.x == 0 && slot == 0; // no kernel writes it
    bool routes = warp == 0 && slot < TOPK && there;
    F f;
    f.ring = ring[warp];
    f.arrival = arrival + warp;
    f.parity = parity;
    few_share(f, warp);
    if (slot == TOPK) {
        few_tile_row(f, 0, shared_gate, blockIdx.x);
        few_tile_row(f, 1, shared_up, blockIdx.x);
        few_start(f);
    }
    start_next();
    wait_for_inputs();

    RowLogits own_logits;
    float shared = 0.0f;
    if (routes) {
        own_logits = load_logits(logits + (u64)row * ld);
        if (writes) shared = logits[(u64)row * ld + shared_column];
    }
    Activations own = {halves, sums, 1};
    if (F::STAGED && !routes) few_own(f, x, row, own);
    if (slot == TOPK) {
        if (!there) {
            few_leave(f);
            return;
        }
    } else {
        u32 mine = NONE;
        float logit;
        if (routes) route_row(own_logits, writes ? TOPK : slot + 1, mine, logit);
        if (warp == 0 && lane == slot) chosen = mine;
        __syncthreads();
        if (chosen != NONE) {
            few_tile_row(f, 0, gate, chosen * (EXPERT_WIDTH / 16) + blockIdx.x);
            few_tile_row(f, 1, up, chosen * (EXPERT_WIDTH / 16) + blockIdx.x);
            few_start(f);
        }
        if (F::STAGED && routes) few_own(f, x, row, own); // behind the weights: routing needs none of these
        if (writes && warp == 0) {
            float weight = routes ? route_scores(own_logits, logit) : 0.0f;
            write_route(row, mine, weight, routes ? sigmoid(shared) : 0.0f, expert, score);
            __syncwarp();
            if (lane == 0) hand_on(routed + row, layer);
        }
        if (chosen == NONE) return;
    }
    few_run(f, F::STAGED ? few_inputs(f, own, 0, 1) : few_inputs(f, x, row, row + 1));
    few_part(f, 0, part[warp][0]);
    few_part(f, 1, part[warp][1]);
    __syncthreads();
    if (warp == 0) {
        float sum = 0.0f;
        #pragma unroll
        for (int k = 0; k < WARPS; k++) sum += part[k][lane / 16][0][lane % 16];
        float other = __shfl_xor_sync(0xffffffff, sum, 16);
        u64 visit = (u64)row * (TOPK + 1) + slot;
        if (lane < 16) inner[visit * EXPERT_WIDTH + blockIdx.x * 16 + lane] = silu(sum) * other;
    }
}

#define EXPERTS_FEW(NAME, BITS, WARPS)                                                           \
    KERNEL void __launch_bounds__(WARPS * WARP) NAME(                                            \
        Matrix gate,             /* [EXPERTS * EXPERT_WIDTH, HIDDEN] */                          \
        Matrix up,               /* [EXPERTS * EXPERT_WIDTH, HIDDEN] */                          \
        Matrix shared_gate,      /* [SHARED_WIDTH, HIDDEN] */                                    \
        Matrix shared_up,        /* [SHARED_WIDTH, HIDDEN] */                                    \
        Activations x,           /* [rows, HIDDEN] */                                            \
        const float* logits,     /* [rows, ld]: of the experts from column 0 on */               \
        u32 ld, u32 shared_column,                                                               \
        const u32* row_sequence, /* [rows] */                                                    \
        u32* expert,             /* [rows, TOPK]: written */                                     \
        float* score,            /* [rows, TOPK + 1]: written */                                 \
        float* inner,            /* [rows, TOPK + 1, EXPERT_WIDTH]; padding rows are left */     \
        u32* routed,             /* [rows]: becomes `layer` when experts and scores are there */ \
        u32 layer) {                                                                             \
        experts_few<BITS, WARPS>(gate, up, shared_gate, shared_up, x, logits, ld, shared_column, \
                                 row_sequence, expert, score, inner, routed, layer);             \
    }

// A block has 16 elements of one row; each warp one of the row's experts, the last the shared one.
template <int BITS>
DEVICE void experts_few_down(
    Matrix down, Matrix shared_down, const float* inner, const u32* expert, const float* score,
    const u32* row_sequence, float* x, const u32* routed, u32 layer) {
    typedef FewRows<EXPERT_WIDTH, BITS, 1, 1, 1> F;
    SHARED __align__(16) u16 halves[TOPK + 1][PIECES * EXPERT_WIDTH];
    SHARED float sums[TOPK + 1][EXPERT_WIDTH / GROUP];
    SHARED float part[TOPK + 1][1][PART_STRIDE];
    u32 slot = threadIdx.x / WARP, row = blockIdx.y;
    int lane = threadIdx.x % WARP;
    F f;
    few_share(f, 0);
    bool there = row_sequence[row] != NONE;
    if (slot == TOPK) {
        few_tile_row(f, 0, shared_down, blockIdx.x);
        few_start(f);
    } else if (there) {
        // the experts are known long before what they say of the row
        await_hand_on(routed + row, layer);
        u32 chosen = *(volatile const u32*)(expert + row * TOPK + slot);
        few_tile_row(f, 0, down, chosen * (HIDDEN / 16) + blockIdx.x);
        few_start(f);
    }
    wait_for_inputs();
    start_next(); // before the wait it measured slower, as in attend_decode

    if (!there) return;
    // the visit's row, which becomes this warp's activations
    constexpr int ROUNDS = (EXPERT_WIDTH / 8 + WARP - 1) / WARP;
    const float* from = inner + ((u64)row * (TOPK + 1) + slot) * EXPERT_WIDTH;
    float run[ROUNDS][8];
    #pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        u32 at = (i * WARP + lane) * 8;
        load_octet(run[i], from + at, at < EXPERT_WIDTH);
    }
    float* place = x + (u64)row * HIDDEN + blockIdx.x * 16 + lane % 16;
    float before = *place, weight = score[row * (TOPK + 1) + min(lane, TOPK)];
    Activations own = {halves[slot], sums[slot], 1};
    #pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        u32 at = (i * WARP + lane) * 8;
        write_octet(own, 0, EXPERT_WIDTH, at, run[i], at < EXPERT_WIDTH);
    }
    __syncwarp();
    few_run(f, few_inputs(f, own, 0, 1));
    few_part(f, 0, part[slot]);
    __syncthreads();
    if (slot == 0) {
        float sum = 0.0f;
        #pragma unroll
        for (int k = 0; k <= TOPK; k++)
            sum = fmaf(__shfl_sync(0xffffffff, weight, k), part[k][0][lane % 16], sum);
        if (lane < 16) *place = before + sum;
    }
}

#define EXPERTS_FEW_DOWN(NAME, BITS)                                                             \
    KERNEL void __launch_bounds__((TOPK + 1) * WARP) NAME(                                       \
        Matrix down,             /* [EXPERTS * HIDDEN, EXPERT_WIDTH] */                          \
        Matrix shared_down,      /* [HIDDEN, SHARED_WIDTH] */                                    \
        const float* inner,      /* [rows, TOPK + 1, EXPERT_WIDTH] */                            \
        const u32* expert,       /* [rows, TOPK] */                                              \
        const float* score,      /* [rows, TOPK + 1] */                                          \
        const u32* row_sequence, /* [rows] */                                                    \
        float* x,                /* [rows, HIDDEN] += */                                         \
        const u32* routed,       /* [rows]: `layer` when experts and scores are there */         \
        u32 layer) {                                                                             \
        experts_few_down<BITS>(down, shared_down, inner, expert, score, row_sequence, x, routed, \
                               layer);                                                           \
    }

// ---- many rows ---------------------------------------------------------------------------------

// Sorts the visits by expert, in the order of visits for each, and cuts each expert's into tiles of
// at most `tile`. A block has one expert; it counts for itself how many visits come before, so that
// blocks need not wait for each other. The tiles of expert e stand from first(e) / tile + e on, where
// its visits start at first(e): there is always room, and what is left over is marked.
KERNEL void __launch_bounds__(1024) sort_visits(
    const u32* expert, // [visits]
    u32 visits, u32 tile,
    u32* order,        // [visits] visits by expert; padding is left out
    uint4* tiles) {    // [visits / tile + EXPERTS] (expert or NONE, first place in order, count, -)
    SHARED u32 warp_equal[32], warp_less[32];
    start_next();
    wait_for_inputs();
    u32 e = blockIdx.x;
    int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // a warp has one run of visits, a lane 4 neighbours in every 128
    u32 share = (visits + warps * 128 - 1) / (warps * 128) * 128;
    u32 begin = min(warp * share, visits), end = min(begin + share, visits);

    u32 equal = 0, less = 0, at = begin + lane * 4;
    #pragma unroll 4
    for (; at + 4 <= end; at += 128) {
        uint4 v = *(const uint4*)(expert + at);
        equal += (v.x == e) + (v.y == e) + (v.z == e) + (v.w == e);
        less += (v.x < e) + (v.y < e) + (v.z < e) + (v.w < e);
    }
    for (; at < end; at++) {
        equal += expert[at] == e;
        less += expert[at] < e;
    }
    equal = __reduce_add_sync(0xffffffff, equal);
    less = __reduce_add_sync(0xffffffff, less);
    if (lane == 0) {
        warp_equal[warp] = equal;
        warp_less[warp] = less;
    }
    __syncthreads();
    u32 first = 0, count = 0, place = 0;
    for (int k = 0; k < warps; k++) {
        first += warp_less[k];
        if (k < warp) place += warp_equal[k];
        count += warp_equal[k];
    }
    place += first;

    if (equal > 0) {
        #pragma unroll 4
        for (u32 step = begin; step < end; step += 128) {
            at = step + lane * 4;
            uint4 v = make_uint4(NONE, NONE, NONE, NONE);
            if (at + 4 <= end) {
                v = *(const uint4*)(expert + at);
            } else {
                if (at < end) v.x = expert[at];
                if (at + 1 < end) v.y = expert[at + 1];
                if (at + 2 < end) v.z = expert[at + 2];
            }
            u32 earlier = (1u << lane) - 1;
            u32 x = __ballot_sync(0xffffffff, v.x == e), y = __ballot_sync(0xffffffff, v.y == e);
            u32 z = __ballot_sync(0xffffffff, v.z == e), w = __ballot_sync(0xffffffff, v.w == e);
            u32 to = place + __popc(x & earlier) + __popc(y & earlier) + __popc(z & earlier)
                + __popc(w & earlier);
            if (v.x == e) order[to++] = at;
            if (v.y == e) order[to++] = at + 1;
            if (v.z == e) order[to++] = at + 2;
            if (v.w == e) order[to++] = at + 3;
            place += __popc(x) + __popc(y) + __popc(z) + __popc(w);
        }
    }

    u32 slot = first / tile + e, next = (first + count) / tile + e + 1;
    if (e == EXPERTS - 1) next = visits / tile + EXPERTS;
    for (u32 i = threadIdx.x; slot + i < next; i += blockDim.x)
        tiles[slot + i] = i * tile < count
            ? make_uint4(e, first + i * tile, min(tile, count - i * tile), 0)
            : make_uint4(NONE, 0, 0, 0);
}

// Both for up to ROUTE_ROWS rows and 1,024 experts, by one block: routes, and sorts the visits. The tiles
// stand side by side, in no order that counts; those of an expert with more than `tile` visits have them in
// any order.
#define ROUTE_ROWS 64

KERNEL void __launch_bounds__(1024) route_visits(
    const float* logits,      // [rows, ld]: of the experts from column 0 on
    u32 ld, u32 shared_column, // column of the shared expert's gate
    const u32* row_sequence,  // [rows]
    u32 rows,
    u32* expert,              // [rows, TOPK]; NONE in padding rows
    float* score,             // [rows, TOPK + 1]; the last is the shared expert's
    u32 tile, u32 tile_count, // as many as there can be
    u32* order,               // [rows * TOPK] visits by expert; padding is left out
    uint4* tiles) {           // [tile_count] (expert or NONE, first place in order, count, -)
    SHARED u32 visits[EXPERTS < 1024 ? EXPERTS : 1024], first[EXPERTS < 1024 ? EXPERTS : 1024]; // of an expert
    SHARED u32 before[32]; // warps: visits, and tiles from bit 16 on
    constexpr int OWN = ROUTE_ROWS / 32;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 e = threadIdx.x;
    if (e < EXPERTS) visits[e] = 0;
    __syncthreads();
    start_next();
    wait_for_inputs();
    u32 mine[OWN], place[OWN] = {};
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
        u32 row = i * 32 + warp;
        mine[i] = NONE;
        if (row >= rows) continue;
        bool there = row_sequence[row] != NONE;
        mine[i] = route_all(row, there, logits + (u64)row * ld, shared_column, expert, score);
        if (lane < TOPK && mine[i] != NONE) place[i] = atomicAdd(visits + mine[i], 1u);
    }
    __syncthreads();

    u32 count = e < EXPERTS ? visits[e] : 0, own_tiles = (count + tile - 1) / tile;
    u32 own = count | own_tiles << 16, sum = own;
    #pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        u32 other = __shfl_up_sync(0xffffffff, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == WARP - 1) before[warp] = sum;
    __syncthreads();
    u32 start = sum - own, all = 0;
    #pragma unroll
    for (int k = 0; k < 32; k++) {
        if (k < warp) start += before[k];
        all += before[k];
    }
    u32 at = start & 0xffff, slot = start >> 16;
    if (e < EXPERTS) first[e] = at;
    for (u32 i = 0; i < own_tiles; i++)
        tiles[slot + i] = make_uint4(e, at + i * tile, min(tile, count - i * tile), 0);
    for (u32 i = (all >> 16) + e; i < tile_count; i += 1024) tiles[i] = make_uint4(NONE, 0, 0, 0);
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < OWN; i++)
        if (lane < TOPK && mine[i] != NONE) order[first[mine[i]] + place[i]] = (i * 32 + warp) * TOPK + lane;
}

// ---- a few visits an expert ----------------------------------------------------------------------
//
// Most experts have less than a handful of visits, and nothing counts but the bytes of their weights. A
// warp has its own outputs and all inputs, and waits for nobody: only the visits' activations are held in
// common.

#define TILE_VISITS 8
#define TILE_DOWN_ROWS 4 // tiles of outputs of a warp of the down product, one after the other

// Largest number of steps up to `most` that divides them all.
DEVICE constexpr int even_depth(int steps, int most) {
    int depth = most < steps ? most : steps;
    while (steps % depth != 0) depth--;
    return depth;
}

// Which visits a block has.
struct VisitTile {
    u32 expert; // NONE: nothing to do
    u32 first, count;
    bool shared; // `first` is a row, and all go to the shared expert
};

// The block's tile: those of the shared expert come first.
DEVICE VisitTile visit_tile(const uint4* tiles, u32 rows, u32 shared_tiles) {
    VisitTile tile;
    tile.shared = blockIdx.y < shared_tiles;
    if (tile.shared) {
        tile.expert = 0;
        tile.first = blockIdx.y * TILE_VISITS;
        tile.count = min(rows - tile.first, (u32)TILE_VISITS);
    } else {
        uint4 entry = tiles[blockIdx.y - shared_tiles];
        tile.expert = entry.x;
        tile.first = entry.y;
        tile.count = entry.z;
    }
    return tile;
}

// Fetches the rows `source` of x, which are there afterwards for the whole block.
template <int INPUTS, int THREADS>
DEVICE void tile_fetch(u8* shared, Activations x, const u32* source /* [TILE_VISITS] shared */, u32 count) {
    auto row = [&](u32 r) { return source[r]; };
    held_fetch<INPUTS, TILE_VISITS, THREADS, INPUTS, 1, INPUTS>(shared, x, 0, count, row);
    held_sums<INPUTS, TILE_VISITS, THREADS>(shared, x, count, row);
    copy_wait<0>();
    __syncthreads();
}

template <int BITS, int WARPS>
DEVICE void experts_tile(Matrix gate, Matrix up, Matrix shared_gate, Matrix shared_up, Activations x,
                         const u32* order, const uint4* tiles, u32 rows, u32 shared_tiles,
                         Activations inner, u8* shared) {
    typedef FewRows<HIDDEN, BITS, TILE_VISITS, 2, 1> F;
    constexpr int THREADS = WARPS * WARP, WIDTH = WARPS * 16, STRIDE = WIDTH + 4, RUNS = WIDTH / 8;
    SHARED u32 source[TILE_VISITS], target[TILE_VISITS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    start_next();
    wait_for_inputs();
    VisitTile tile = visit_tile(tiles, rows, shared_tiles);
    if (tile.expert == NONE) return;
    F f;
    few_share(f, 0);
    u32 tile_row = tile.expert * (EXPERT_WIDTH / 16) + blockIdx.x * WARPS + warp;
    few_tile_row(f, 0, tile.shared ? shared_gate : gate, tile_row);
    few_tile_row(f, 1, tile.shared ? shared_up : up, tile_row);
    few_start(f);
    if (threadIdx.x < TILE_VISITS) {
        u32 at = tile.first + min(threadIdx.x, tile.count - 1);
        u32 visit = tile.shared ? rows * TOPK + at : order[at];
        target[threadIdx.x] = visit;
        source[threadIdx.x] = tile.shared ? at : visit / TOPK;
    }
    __syncthreads();
    tile_fetch<HIDDEN, THREADS>(shared, x, source, tile.count);
    few_run(f, held_inputs(f, shared));
    __syncthreads(); // nobody needs the activations
    float* product = (float*)shared; // [TILE_VISITS][STRIDE]
    #pragma unroll
    for (int c = 0; c < 2; c++)
        #pragma unroll
        for (int half = 0; half < 2; half++)
            product[(lane % 4 * 2 + c) * STRIDE + warp * 16 + half * 8 + lane / 4] =
                silu(f.total[0][0][half * 2 + c] * ACTIVATION_SCALE) * (f.total[1][0][half * 2 + c] * ACTIVATION_SCALE);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_VISITS * RUNS; i += THREADS) {
        u32 row = i / RUNS, at = i % RUNS * 8;
        float run[8];
        load_octet(run, product + row * STRIDE + at);
        write_octet(inner, target[row], EXPERT_WIDTH, blockIdx.x * WIDTH + at, run, row < tile.count);
    }
}

#define EXPERTS_TILE(NAME, BITS, WARPS)                                                          \
    KERNEL void __launch_bounds__(WARPS * WARP, 2) NAME(                                         \
        Matrix gate,         /* [EXPERTS * EXPERT_WIDTH, HIDDEN] */                              \
        Matrix up,           /* [EXPERTS * EXPERT_WIDTH, HIDDEN] */                              \
        Matrix shared_gate,  /* [SHARED_WIDTH, HIDDEN] */                                        \
        Matrix shared_up,    /* [SHARED_WIDTH, HIDDEN] */                                        \
        Activations x,       /* [rows, HIDDEN] */                                                \
        const u32* order,    /* [visits] */                                                      \
        const uint4* tiles,  /* [gridDim.y - shared_tiles] */                                    \
        u32 rows, u32 shared_tiles,                                                              \
        Activations inner) { /* [visits + rows, EXPERT_WIDTH]; padding visits are left */        \
        SHARED_DYNAMIC(shared);                                                                  \
        experts_tile<BITS, WARPS>(gate, up, shared_gate, shared_up, x, order, tiles, rows,       \
                                  shared_tiles, inner, shared);                                  \
    }

template <int BITS, int WARPS>
DEVICE void experts_tile_down(Matrix down, Matrix shared_down, Activations inner, const u32* order,
                              const uint4* tiles, u32 rows, u32 shared_tiles, float* out, u8* shared) {
    constexpr int STEPS = EXPERT_WIDTH / TILE, DEPTH = even_depth(STEPS, 8 * 4 / BITS);
    typedef FewRows<EXPERT_WIDTH, BITS, TILE_VISITS, 1, 1, DEPTH * BITS / 4> F;
    static_assert(F::DEPTH == DEPTH, "a ring of tiles goes through all rows");
    constexpr int THREADS = WARPS * WARP;
    SHARED u32 visit[TILE_VISITS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    start_next();
    wait_for_inputs();
    VisitTile tile = visit_tile(tiles, rows, shared_tiles);
    if (tile.expert == NONE) return;
    // the warp's rows of tiles lie one behind the other
    int first = (blockIdx.x * WARPS + warp) * TILE_DOWN_ROWS;
    int own = min(TILE_DOWN_ROWS, HIDDEN / 16 - first);
    F f;
    few_share(f, 0);
    few_tile_row(f, 0, tile.shared ? shared_down : down,
                 tile.expert * (HIDDEN / 16) + min(first, HIDDEN / 16 - 1));
    few_start(f);
    if (threadIdx.x < TILE_VISITS) {
        u32 at = tile.first + min(threadIdx.x, tile.count - 1);
        visit[threadIdx.x] = tile.shared ? rows * TOPK + at : order[at];
    }
    __syncthreads();
    tile_fetch<EXPERT_WIDTH, THREADS>(shared, inner, visit, tile.count);
    FewInputs<F::BLOCKS, F::COLUMNS> in = held_inputs(f, shared);
    #pragma unroll 1
    for (int row = 0; row < own; row++) {
        #pragma unroll
        for (int i = 0; i < 4; i++) f.total[0][0][i] = 0.0f;
        #pragma unroll 1
        for (int base = 0; base < STEPS; base += DEPTH)
            #pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                few_step(f, in, d, base + d);
                int next = row * STEPS + base + d + DEPTH;
                if (next < own * STEPS) few_load(f, d, next);
            }
        #pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 of = lane % 4 * 2 + c;
            if (of >= tile.count) continue;
            float* to = out + (u64)visit[of] * HIDDEN + (first + row) * 16 + lane / 4;
            to[0] = f.total[0][0][c] * ACTIVATION_SCALE;
            to[8] = f.total[0][0][2 + c] * ACTIVATION_SCALE;
        }
    }
}

#define EXPERTS_TILE_DOWN(NAME, BITS, WARPS)                                                     \
    KERNEL void __launch_bounds__(WARPS * WARP, 2) NAME(                                         \
        Matrix down,        /* [EXPERTS * HIDDEN, EXPERT_WIDTH] */                               \
        Matrix shared_down, /* [HIDDEN, SHARED_WIDTH] */                                         \
        Activations inner,  /* [visits + rows, EXPERT_WIDTH] */                                  \
        const u32* order,   /* [visits] */                                                       \
        const uint4* tiles, /* [gridDim.y - shared_tiles] */                                     \
        u32 rows, u32 shared_tiles,                                                              \
        float* out) {       /* [visits + rows, HIDDEN]; padding visits are left */               \
        SHARED_DYNAMIC(shared);                                                                  \
        experts_tile_down<BITS, WARPS>(down, shared_down, inner, order, tiles, rows,             \
                                       shared_tiles, out, shared);                               \
    }

// ---- many visits an expert ----------------------------------------------------------------------

template <int BITS, int ROWS, int WARPS>
DEVICE void experts_many(Matrix gate, Matrix up, Activations x, const u32* order, const uint4* tiles,
                         Activations inner, u8* shared) {
    typedef ManyRows<HIDDEN, BITS, ROWS, WARPS> M;
    SHARED u32 source[ROWS], target[ROWS];
    start_next();
    wait_for_inputs();
    uint4 tile = tiles[blockIdx.y];
    if (tile.x == NONE) return;
    int count = tile.z;
    for (int i = threadIdx.x; i < ROWS; i += M::THREADS) {
        target[i] = order[tile.y + min(i, count - 1)];
        source[i] = target[i] / TOPK;
    }
    __syncthreads();
    TilesPaired tiles_of = {gate, up, tile.x * (EXPERT_WIDTH / 16) + blockIdx.x * WARPS};
    ManyInputs<M> in = many_inputs<M>(x, source, tiles_of);
    float total[2][ROWS / 8][4];
    many_run(total, in, shared, count);
    many_swiglu<M>(total, target, count, EXPERT_WIDTH, inner, shared);
}

#define EXPERTS_MANY(NAME, BITS, ROWS, WARPS)                                                    \
    KERNEL void __launch_bounds__(WARPS * WARP) NAME(                                            \
        Matrix gate,         /* [EXPERTS * EXPERT_WIDTH, HIDDEN] */                              \
        Matrix up,           /* [EXPERTS * EXPERT_WIDTH, HIDDEN] */                              \
        Activations x,       /* [rows, HIDDEN] */                                                \
        const u32* order,    /* [visits] */                                                      \
        const uint4* tiles,  /* [gridDim.y] */                                                   \
        Activations inner) { /* [visits, EXPERT_WIDTH]; padding visits are left */               \
        SHARED_DYNAMIC(shared);                                                                  \
        experts_many<BITS, ROWS, WARPS>(gate, up, x, order, tiles, inner, shared);               \
    }

template <int BITS, int ROWS, int WARPS>
DEVICE void experts_many_down(Matrix down, Activations inner, const u32* order, const uint4* tiles,
                              float* out, u8* shared) {
    typedef ManyRows<EXPERT_WIDTH, BITS, ROWS, WARPS> M;
    SHARED u32 visit[ROWS];
    start_next();
    wait_for_inputs();
    uint4 tile = tiles[blockIdx.y];
    if (tile.x == NONE) return;
    int count = tile.z;
    for (int i = threadIdx.x; i < ROWS; i += M::THREADS) visit[i] = order[tile.y + min(i, count - 1)];
    __syncthreads();
    u32 first_tile = blockIdx.x * (2 * WARPS), base = tile.x * (HIDDEN / 16);
    TilesBeside tiles_of = {down, base + first_tile, base + HIDDEN / 16 - 1};
    ManyInputs<M> in = many_inputs<M>(inner, visit, tiles_of);
    float total[2][ROWS / 8][4];
    many_run(total, in, shared, count);
    many_write<M>(total, visit, count, first_tile + threadIdx.x / WARP * 2, HIDDEN, out, HIDDEN, 0, shared);
}

#define EXPERTS_MANY_DOWN(NAME, BITS, ROWS, WARPS)                                               \
    KERNEL void __launch_bounds__(WARPS * WARP) NAME(                                            \
        Matrix down,        /* [EXPERTS * HIDDEN, EXPERT_WIDTH] */                               \
        Activations inner,  /* [visits, EXPERT_WIDTH] */                                         \
        const u32* order,   /* [visits] */                                                       \
        const uint4* tiles, /* [gridDim.y] */                                                    \
        float* out) {       /* [visits, HIDDEN]; padding visits are left */                      \
        SHARED_DYNAMIC(shared);                                                                  \
        experts_many_down<BITS, ROWS, WARPS>(down, inner, order, tiles, out, shared);            \
    }

// x += sum of score * down over the slots in their order, then the shared expert; and the norm of that,
// which the next layer starts with.
KERNEL void __launch_bounds__(NORM_THREADS) combine(
    const float* down,   // [rows, TOPK, HIDDEN]
    const float* shared, // [rows, HIDDEN]
    const float* score,  // [rows, TOPK + 1]
    const u32* expert,   // [rows, TOPK]; NONE: the row is padding
    float* x,            // [rows, HIDDEN] +=
    const float* gain,   // [HIDDEN], or null: no norm
    Activations normed) { // [rows, HIDDEN]; padding rows are left
    start_next();
    NormRow<NORM_THREADS> norm;
    if (gain) norm_start(norm, gain);
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (expert[row * TOPK] == NONE) return;
    float weight[TOPK + 1];
    #pragma unroll
    for (int k = 0; k <= TOPK; k++) weight[k] = score[row * (TOPK + 1) + k];
    float y[NormRow<NORM_THREADS>::ROUNDS][8];
    #pragma unroll
    for (int round = 0; round < NormRow<NORM_THREADS>::ROUNDS; round++) {
        u32 at = (round * NORM_THREADS + threadIdx.x) * 8;
        bool valid = at < HIDDEN;
        float* to = x + (u64)row * HIDDEN + at;
        float part[TOPK + 2][8], sum[8];
        #pragma unroll
        for (int k = 0; k <= TOPK; k++) {
            const float* from = k < TOPK ? down + ((u64)row * TOPK + k) * HIDDEN : shared + (u64)row * HIDDEN;
            load_octet(part[k], from + at, valid);
        }
        load_octet(part[TOPK + 1], to, valid);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = 0.0f;
            #pragma unroll
            for (int k = 0; k <= TOPK; k++) sum[i] = fmaf(weight[k], part[k][i], sum[i]);
            y[round][i] = part[TOPK + 1][i] + sum[i];
        }
        if (valid) {
            ((float4*)to)[0] = make_float4(y[round][0], y[round][1], y[round][2], y[round][3]);
            ((float4*)to)[1] = make_float4(y[round][4], y[round][5], y[round][6], y[round][7]);
        }
    }
    if (!gain) return;
    norm_octets(norm, y, [&](u32 at, const float (&z)[8]) {
        write_octet(normed, row, HIDDEN, at, z, at < HIDDEN);
    });
}
