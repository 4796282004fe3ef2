// ---- few rows: the matrix is read once, and nothing else counts --------------------------------
//
// The warps of a block split the inputs of the same outputs. A warp asks for its tiles before the
// activations exist, and holds as many as registers allow. STAGED: as a ring in shared memory holds;
// the blocks leave registers to each other and to the next kernel.

template <int INPUTS_, int BITS_, int TOKENS_, int TILES_, int SPLIT_, int FLIGHT_ = TOKENS_ <= 8 ? 8 : 4,
          bool STAGED_ = false>
struct FewRows {
    static constexpr int INPUTS = INPUTS_, BITS = BITS_, TOKENS = TOKENS_, TILES = TILES_;
    static constexpr int STEPS = INPUTS / TILE, SPLIT = SPLIT_;
    static constexpr int SHARE = (STEPS + SPLIT_ - 1) / SPLIT_; // steps of a warp, at most
    static constexpr bool EVEN = STEPS % SPLIT_ == 0;           // exactly
    static constexpr int FLIGHT = FLIGHT_ * 4 / BITS / TILES;   // steps that are under way
    static constexpr int DEPTH = FLIGHT < 1 ? 1 : FLIGHT < SHARE ? FLIGHT : SHARE;
    static constexpr int BLOCKS = (TOKENS + 7) / 8;             // of columns of the matrix units
    static constexpr int COLUMNS = TOKENS == 1 ? 1 : 2;         // of them in a lane that count
    // The offset costs matrix steps for a block of columns instead of subtractions for a tile, and
    // rounds sums at 2^-24 of some ten times their size: for a single block, and the default mode.
    static constexpr bool OFFSET = PIECES == 1 && BLOCKS == 1;
    static constexpr bool STAGED = STAGED_;
    static constexpr bool BULK = STAGED && TOKENS == 1 && SHARE == DEPTH && BULK_COPIES; // the ring holds all
    // A single row's offsets come from sums of its elements (few_parity), not from the matrix units.
    static constexpr bool PARITY = BULK && EVEN && PIECES == 1;
    // With them so many steps go side by side: a chain of products alone, or two of a multiprocessor's few
    // warps, keep the matrix units waiting.
    static constexpr int WANTED = TILES > 1 ? 1 : SPLIT == 8 ? 4 : 2;
    static constexpr int ABREAST = PARITY && SHARE % WANTED == 0 ? WANTED : 1;
    static constexpr int WORDS = BITS / 4 * WARP;               // of a tile, uint4s
    static constexpr int SLOT = TILES * (WORDS + 4 * TILE_GROUPS); // of the ring, likewise
    static constexpr int RING = DEPTH * SLOT;                   // of a warp

    Tile<BITS> tile[STAGED ? ABREAST : DEPTH][TILES];
    uint4* ring;    // shared
    u64* arrival;   // shared: of the ring, with BULK
    float2* parity; // shared [INPUTS / GROUP]: of the only row, see few_parity
    const uint4* words[TILES];
    const uint2* affine[TILES];
    int first, count; // steps of this warp
    float total[TILES][BLOCKS][2 * COLUMNS]; // (g, 2t), [(g, 2t+1),] (g+8, 2t)[, (g+8, 2t+1)]
};

template <class F>
DEVICE void few_load(F& f, int slot, int step) {
    if constexpr (F::STAGED) {
        int lane = threadIdx.x % WARP;
        uint4* to = f.ring + slot * F::SLOT + lane;
        #pragma unroll
        for (int o = 0; o < F::TILES; o++) {
            #pragma unroll
            for (int i = 0; i < F::BITS / 4; i++)
                copy_async(to + o * F::WORDS + i * WARP, f.words[o] + (step * (F::BITS / 4) + i) * WARP);
            if (lane < 4 * TILE_GROUPS)
                copy_async(to + F::TILES * F::WORDS + o * (4 * TILE_GROUPS),
                           (const uint4*)f.affine[o] + step * (4 * TILE_GROUPS));
        }
    } else {
        #pragma unroll
        for (int o = 0; o < F::TILES; o++) {
            #pragma unroll
            for (int i = 0; i < F::BITS / 4; i++)
                f.tile[slot][o].words[i] = load_once(f.words[o] + (step * (F::BITS / 4) + i) * WARP);
            #pragma unroll
            for (int q = 0; q < TILE_GROUPS; q++)
                f.tile[slot][o].affine[q] = load_once(f.affine[o] + (step * TILE_GROUPS + q) * 8);
        }
    }
}

// Of a ring, this lane's part of a step's tiles. All lanes of the warp call it, step by step.
template <class F>
DEVICE void few_staged(F& f, int slot, int step, int to = 0) {
    int lane = threadIdx.x % WARP;
    // Where tile o has its words and affine, and how far those of the next tile are.
    const uint4* from = f.ring + slot * F::SLOT;
    const uint4* affine = from + F::TILES * F::WORDS;
    int words_apart = F::WORDS, affine_apart = 4 * TILE_GROUPS;
    if constexpr (F::BULK) {
        if (step == 0) arrival_wait(f.arrival);
        from = f.ring + step * F::WORDS;
        affine = f.ring + F::TILES * F::SHARE * F::WORDS + step * (4 * TILE_GROUPS);
        words_apart *= F::SHARE, affine_apart *= F::SHARE;
    } else {
        copy_wait<F::DEPTH - 1>();
        __syncwarp();
    }
    #pragma unroll
    for (int o = 0; o < F::TILES; o++) {
        #pragma unroll
        for (int i = 0; i < F::BITS / 4; i++)
            f.tile[to][o].words[i] = from[o * words_apart + i * WARP + lane];
        #pragma unroll
        for (int q = 0; q < TILE_GROUPS; q++)
            f.tile[to][o].affine[q] = ((const uint2*)(affine + o * affine_apart))[q * 8 + lane / 4];
    }
}

// What fits beside the only row's activations in 48 KB: tiles of 4 bits that a warp of a ring has under
// way, FewRows's FLIGHT_. 0: there is no room for a ring.
DEVICE constexpr int few_flight(int inputs, int bits, int tiles, int warps) {
    int room = 48 * 1024 - 256 - inputs * 2 * PIECES - inputs / GROUP * 12 - warps * tiles * 80;
    for (int flight = 8; flight > 0; flight /= 2) {
        int depth = flight * 4 / bits / tiles;
        if (warps * (depth < 1 ? 1 : depth) * tiles * (bits * 128 + 64 * TILE_GROUPS) <= room)
            return flight;
    }
    return 0;
}

// Where the warp with this share of the inputs works; what is shared is set before.
template <class F>
DEVICE void few_share(F& f, int share) {
    f.first = share * F::SHARE;
    f.count = F::EVEN ? F::SHARE : min(F::SHARE, F::STEPS - f.first);
    if constexpr (F::BULK) {
        if (threadIdx.x % WARP == 0) arrival_init(f.arrival);
        __syncwarp();
    }
}

template <class F>
DEVICE void few_tile_row(F& f, int o, Matrix w, u32 tile_row) {
    int lane = threadIdx.x % WARP;
    f.words[o] = tile_words<F::INPUTS, F::BITS>(w, tile_row, f.first) + (F::BULK ? 0 : lane);
    f.affine[o] = tile_affine<F::INPUTS>(w, tile_row, f.first) +
                  (F::BULK ? 0 : F::STAGED ? lane * 2 : lane / 4);
}

// Asks for the first weights.
template <class F>
DEVICE void few_start(F& f) {
    if constexpr (F::BULK) {
        if (f.count > 0 && threadIdx.x % WARP == 0) {
            u32 words = f.count * F::WORDS * 16, affine = f.count * TILE_GROUPS * 64;
            arrival_start(f.arrival, F::TILES * (words + affine));
            #pragma unroll
            for (int o = 0; o < F::TILES; o++) {
                uint4* to = f.ring + F::SHARE * (o * F::WORDS);
                uint4* affine_to = f.ring + F::SHARE * (F::TILES * F::WORDS + o * 4 * TILE_GROUPS);
                copy_bulk(to, f.words[o], words, f.arrival);
                copy_bulk(affine_to, f.affine[o], affine, f.arrival);
            }
        }
        __syncwarp();
    } else {
        #pragma unroll
        for (int d = 0; d < F::DEPTH; d++) {
            if (F::EVEN || d < f.count) few_load(f, d, d);
            if (F::STAGED) copy_commit();
        }
    }
}

// Before a block ends that has asked for weights and does not use them.
template <class F>
DEVICE void few_leave(F& f) {
    if (F::BULK && f.count > 0) arrival_wait(f.arrival);
}

// Activations of up to TOKENS rows, as one lane reads them. Rows that are not there repeat the last.
template <int BLOCKS, int COLUMNS>
struct FewInputs {
    const uint4* halves;
    const float* sums;
    u64 piece; // uint4s to the second piece
    u32 halves_at[BLOCKS];
    u32 sums_at[BLOCKS][COLUMNS];
};

template <class F>
DEVICE FewInputs<F::BLOCKS, F::COLUMNS> few_inputs(const F& f, Activations x, u32 first_row, u32 rows) {
    FewInputs<F::BLOCKS, F::COLUMNS> in;
    int lane = threadIdx.x % WARP;
    in.halves = (const uint4*)x.halves;
    in.sums = x.sums;
    in.piece = (u64)x.rows * (F::INPUTS / 8);
    #pragma unroll
    for (int n = 0; n < F::BLOCKS; n++) {
        u32 row = F::TOKENS == 1 ? first_row : min(first_row + n * 8 + lane / 4, rows - 1);
        in.halves_at[n] = row * (F::INPUTS / 8) + f.first * (TILE / 8) + lane % 4;
        #pragma unroll
        for (int c = 0; c < F::COLUMNS; c++) {
            row = F::TOKENS == 1 ? first_row : min(first_row + n * 8 + lane % 4 * 2 + c, rows - 1);
            in.sums_at[n][c] = row * (F::INPUTS / GROUP) + f.first * TILE_GROUPS;
        }
    }
    return in;
}

// Eight halves as Activations have them: the sums of those at even and of those at odd elements, which
// conversion leaves different offsets in.
DEVICE float2 parity_of(uint4 halves) {
    float even = half_to((u16)halves.x) + half_to((u16)(halves.x >> 16));
    float odd = half_to((u16)halves.y) + half_to((u16)(halves.y >> 16));
    even += half_to((u16)halves.z) + half_to((u16)(halves.z >> 16));
    odd += half_to((u16)halves.w) + half_to((u16)(halves.w >> 16));
    return make_float2(even, odd);
}

// The same of the groups in this warp's share of the only row, which all lanes call with their octets.
template <class F>
DEVICE void few_parity(F& f, int octet, uint4 halves) {
    float2 sums = parity_of(halves);
    sums.x = lanes_sum<GROUP / 8>(sums.x);
    sums.y = lanes_sum<GROUP / 8>(sums.y);
    if (octet % (GROUP / 8) == 0 && octet < f.count * (TILE / 8))
        f.parity[f.first * TILE_GROUPS + octet / (GROUP / 8)] = sums;
}

// The only row's activations of this warp's share, to shared memory, where no step waits for them.
template <class F>
DEVICE void few_own(F& f, Activations x, u32 row, Activations own) {
    int lane = threadIdx.x % WARP, count = f.count * (TILE / 8);
    const float* sums = x.sums + (u64)row * (F::INPUTS / GROUP);
    for (int i = lane; i < f.count * TILE_GROUPS; i += WARP)
        own.sums[f.first * TILE_GROUPS + i] = sums[f.first * TILE_GROUPS + i];
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const uint4* from = (const uint4*)x.halves + ((u64)p * x.rows + row) * (F::INPUTS / 8);
        uint4* to = (uint4*)own.halves + p * (F::INPUTS / 8);
        for (int i = lane; i - lane < count; i += WARP) {
            uint4 halves = make_uint4(0, 0, 0, 0);
            if (i < count) to[f.first * (TILE / 8) + i] = halves = from[f.first * (TILE / 8) + i];
            if (F::PARITY) few_parity(f, i, halves);
        }
    }
    __syncwarp();
}

// What few_own does beside copying, for a row that lies there already.
template <class F>
DEVICE void few_owned(F& f, Activations own) {
    int lane = threadIdx.x % WARP, count = f.count * (TILE / 8);
    if (!F::PARITY) return;
    const uint4* from = (const uint4*)own.halves + f.first * (TILE / 8);
    for (int i = lane; i - lane < count; i += WARP)
        few_parity(f, i, i < count ? from[i] : make_uint4(0, 0, 0, 0));
    __syncwarp();
}

// What a step takes of 8 rows.
template <class F>
struct FewOperands {
    uint4 b[PIECES][2];
    float sum[TILE_GROUPS][F::COLUMNS];
};

template <class F>
DEVICE void few_operands(FewOperands<F>& rows, const FewInputs<F::BLOCKS, F::COLUMNS>& in, int n, int step) {
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const uint4* from = in.halves + p * in.piece + in.halves_at[n] + step * (TILE / 8);
        rows.b[p][0] = from[0];
        rows.b[p][1] = from[4];
    }
    #pragma unroll
    for (int c = 0; c < F::COLUMNS; c++)
        #pragma unroll
        for (int q = 0; q < TILE_GROUPS; q++)
            rows.sum[q][c] = in.sums[in.sums_at[n][c] + step * TILE_GROUPS + q];
}

// What OFFSET left in the products of group `q`.
template <class F>
DEVICE void few_offset(float (&start)[4], const FewOperands<F>& rows, int q) {
    #pragma unroll
    for (int i = 0; i < 4; i++) start[i] = 0.0f;
    if (F::OFFSET)
        #pragma unroll
        for (int s = q * GROUP_STEPS; s < (q + 1) * GROUP_STEPS; s++)
            mma_offset<F::BITS>(start, rows.b[0][s / 2], s);
}

// Group `q` of a tile times 8 rows, into their totals.
template <class F>
DEVICE void few_group(float (&total)[2 * F::COLUMNS], const u32 (&a)[GROUP_STEPS][4], uint2 affine,
                      const FewOperands<F>& rows, const float (&start)[4], int q) {
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f}; // does not wait for `start`
    #pragma unroll
    for (int s = 0; s < GROUP_STEPS; s++) mma_step(d, a[s], rows.b[0][(q * GROUP_STEPS + s) / 2], s);
    #pragma unroll
    for (int i = 0; i < 4; i++) d[i] += start[i];
#if PIECES == 2
    float e[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    #pragma unroll
    for (int s = 0; s < GROUP_STEPS; s++) mma_step(e, a[s], rows.b[1][(q * GROUP_STEPS + s) / 2], s);
    #pragma unroll
    for (int i = 0; i < 4; i++) d[i] = fmaf(e[i], 1.0f / 2048.0f, d[i]);
#endif
    #pragma unroll
    for (int c = 0; c < F::COLUMNS; c++) {
        add_group<F::BITS>(total[c], d[c], affine.x, rows.sum[q][c]);
        add_group<F::BITS>(total[F::COLUMNS + c], d[2 + c], affine.y, rows.sum[q][c]);
    }
}

// One step: TILES tiles times the activations of TILE inputs.
template <class F>
DEVICE void few_step(F& f, const FewInputs<F::BLOCKS, F::COLUMNS>& in, int slot, int step) {
    if constexpr (F::BLOCKS == 1) {
        FewOperands<F> rows;
        few_operands<F>(rows, in, 0, step);
        #pragma unroll
        for (int q = 0; q < TILE_GROUPS; q++) {
            float start[4];
            few_offset(start, rows, q);
            #pragma unroll
            for (int o = 0; o < F::TILES; o++) {
                u32 a[GROUP_STEPS][4];
                #pragma unroll
                for (int s = 0; s < GROUP_STEPS; s++)
                    fragment<F::BITS, F::OFFSET>(a[s], f.tile[slot][o], q * GROUP_STEPS + s);
                few_group<F>(f.total[o][0], a, f.tile[slot][o].affine[q], rows, start, q);
            }
        }
    } else {
        // the weights stay converted, and rows come and go
        u32 a[F::TILES][TILE_GROUPS][GROUP_STEPS][4];
        #pragma unroll
        for (int o = 0; o < F::TILES; o++)
            #pragma unroll
            for (int s = 0; s < TILE / 16; s++)
                fragment<F::BITS, F::OFFSET>(a[o][s / GROUP_STEPS][s % GROUP_STEPS], f.tile[slot][o], s);
        #pragma unroll
        for (int n = 0; n < F::BLOCKS; n++) {
            FewOperands<F> rows;
            few_operands<F>(rows, in, n, step);
            #pragma unroll
            for (int q = 0; q < TILE_GROUPS; q++) {
                float start[4];
                few_offset(start, rows, q);
                #pragma unroll
                for (int o = 0; o < F::TILES; o++)
                    few_group<F>(f.total[o][n], a[o][q], f.tile[slot][o].affine[q], rows, start, q);
            }
        }
    }
}

// ABREAST steps of a single row, all chains of products side by side.
template <class F>
DEVICE void few_abreast(F& f, const FewInputs<F::BLOCKS, F::COLUMNS>& in, int step) {
    constexpr int U = F::ABREAST;
    uint4 b[U][2];
    #pragma unroll
    for (int u = 0; u < U; u++) {
        const uint4* from = in.halves + in.halves_at[0] + (step + u) * (TILE / 8);
        b[u][0] = from[0];
        b[u][1] = from[4];
        few_staged(f, step + u, step + u, u);
    }
    #pragma unroll
    for (int q = 0; q < TILE_GROUPS; q++) {
        float d[U][F::TILES][4];
        #pragma unroll
        for (int u = 0; u < U; u++)
            #pragma unroll
            for (int o = 0; o < F::TILES; o++)
                #pragma unroll
                for (int i = 0; i < 4; i++) d[u][o][i] = 0.0f;
        #pragma unroll
        for (int s = q * GROUP_STEPS; s < (q + 1) * GROUP_STEPS; s++)
            #pragma unroll
            for (int u = 0; u < U; u++)
                #pragma unroll
                for (int o = 0; o < F::TILES; o++) {
                    u32 a[4];
                    fragment<F::BITS, true>(a, f.tile[u][o], s);
                    mma_step(d[u][o], a, b[u][s / 2], s);
                }
        #pragma unroll
        for (int u = 0; u < U; u++) {
            int group = (step + u) * TILE_GROUPS + q;
            float sum = in.sums[in.sums_at[0][0] + group];
            float2 parity = f.parity[f.first * TILE_GROUPS + group];
            // what conversion left: 264 and 24, or 1160
            float offset = F::BITS == 4 ? fmaf(264.0f, parity.x, 24.0f * parity.y)
                                        : 1160.0f * (parity.x + parity.y);
            #pragma unroll
            for (int o = 0; o < F::TILES; o++) {
                uint2 affine = f.tile[u][o].affine[q];
                add_group<F::BITS>(f.total[o][0][0], d[u][o][0] - offset, affine.x, sum);
                add_group<F::BITS>(f.total[o][0][1], d[u][o][2] - offset, affine.y, sum);
            }
        }
    }
}

// All of the warp's steps; afterwards f.total holds its part of the sums.
template <class F>
DEVICE void few_run(F& f, const FewInputs<F::BLOCKS, F::COLUMNS>& in) {
    #pragma unroll
    for (int o = 0; o < F::TILES; o++)
        #pragma unroll
        for (int n = 0; n < F::BLOCKS; n++)
            #pragma unroll
            for (int i = 0; i < 2 * F::COLUMNS; i++) f.total[o][n][i] = 0.0f;
    if constexpr (F::PARITY) {
        #pragma unroll
        for (int step = 0; step < F::SHARE; step += F::ABREAST) few_abreast(f, in, step);
    } else {
        #pragma unroll 1
        for (int base = 0; base < F::SHARE; base += F::DEPTH)
            #pragma unroll
            for (int d = 0; d < F::DEPTH; d++) {
                const bool whole = F::EVEN && F::SHARE % F::DEPTH == 0;
                if (whole || base + d < f.count) {
                    if (F::STAGED) few_staged(f, d, base + d);
                    few_step(f, in, F::STAGED ? 0 : d, base + d);
                    if (F::SHARE > F::DEPTH && base + d + F::DEPTH < f.count) {
                        if (F::STAGED) __syncwarp(); // the slot has been read
                        few_load(f, d, base + d + F::DEPTH);
                    }
                }
                if (F::STAGED && !F::BULK) copy_commit();
            }
    }
}

// A tile's part of the sums in shared memory: 16 outputs for each row. The stride keeps the lanes of
// a store in different banks.
#define PART_STRIDE 20

template <class F>
DEVICE void few_part(const F& f, int o, float (*part)[PART_STRIDE]) { // [TOKENS][PART_STRIDE]
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    if (F::TOKENS == 1 && t != 0) return; // all columns are the same
    #pragma unroll
    for (int n = 0; n < F::BLOCKS; n++)
        #pragma unroll
        for (int c = 0; c < F::COLUMNS; c++) {
            part[n * 8 + t * 2 + c][g] = f.total[o][n][c] * ACTIVATION_SCALE;
            part[n * 8 + t * 2 + c][g + 8] = f.total[o][n][F::COLUMNS + c] * ACTIVATION_SCALE;
        }
}

// With NORM the only row is the RMSNorm of `residual`, which also goes to x: a launch less.
template <int INPUTS, int BITS, int TOKENS, int WARPS, int TILES, bool NORM>
DEVICE void linear_few(Matrix w, const float* residual, const float* gain, Activations x, u32 rows,
                       float* out, u32 ld, u32 column, u32 outputs, u32 add) {
    // blocks of few warps are those of matrices that fill the device anyhow
    constexpr int RING = few_flight(INPUTS, BITS, TILES, WARPS);
    constexpr bool STAGED = TOKENS == 1 && WARPS > 4 && RING > 0 && (NORM || INPUTS * PIECES <= 4096);
    constexpr bool HELD = STAGED || NORM;
    constexpr int FLIGHT = STAGED ? RING : TOKENS > 8 ? 4 : 8;
    typedef FewRows<INPUTS, BITS, TOKENS, TILES, WARPS, FLIGHT, STAGED> F;
    SHARED float part[WARPS][TILES][TOKENS][PART_STRIDE];
    SHARED __align__(16) uint4 ring[STAGED ? WARPS : 1][STAGED ? F::RING : 1];
    SHARED __align__(16) u16 halves[HELD ? PIECES * INPUTS : 8];
    SHARED float sums[HELD ? INPUTS / GROUP : 1];
    SHARED float2 parity[STAGED ? INPUTS / GROUP : 1];
    SHARED u64 arrival[WARPS];
    int warp = threadIdx.x / WARP;
    F f;
    f.ring = ring[STAGED ? warp : 0];
    f.arrival = arrival + warp;
    f.parity = parity;
    few_share(f, warp);
    u32 tile_rows = (outputs + 15) / 16;
    #pragma unroll
    for (int o = 0; o < TILES; o++)
        few_tile_row(f, o, w, min(blockIdx.x * TILES + o, tile_rows - 1));
    few_start(f);
    NormRow<NORM ? WARPS * WARP : HIDDEN> norm;
    if constexpr (NORM) norm_start(norm, gain);
    start_next();
    wait_for_inputs();

    // the results of this thread, and what they are added to
    constexpr int THREADS = WARPS * WARP, RESULTS = TILES * TOKENS * 16;
    constexpr int OWN = (RESULTS + THREADS - 1) / THREADS;
    u32 first_row = blockIdx.y * TOKENS;
    float* place[OWN];
    float before[OWN];
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
        u32 at = i * THREADS + threadIdx.x;
        u32 output = blockIdx.x * (TILES * 16) + at % (TILES * 16), row = first_row + at / (TILES * 16);
        bool wanted = at < RESULTS && output < outputs && row < rows;
        place[i] = wanted ? out + (u64)row * ld + column + output : nullptr;
        before[i] = wanted && add ? *place[i] : 0.0f;
    }

    Activations own = {halves, sums, 1};
    if constexpr (NORM) {
        norm_row(norm, residual, [&](u32 at, const float (&y)[8]) {
            write_octet(own, 0, HIDDEN, at, y, at < HIDDEN);
            if (blockIdx.x == 0) write_octet(x, 0, HIDDEN, at, y, at < HIDDEN);
        });
        __syncthreads();
        if constexpr (STAGED) few_owned(f, own);
    } else if constexpr (STAGED) {
        few_own(f, x, first_row, own);
    }
    few_run(f, HELD ? few_inputs(f, own, 0, 1) : few_inputs(f, x, first_row, rows));
    #pragma unroll
    for (int o = 0; o < TILES; o++) few_part(f, o, part[warp][o]);
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
        u32 at = i * THREADS + threadIdx.x;
        if (!place[i]) continue;
        float sum = 0.0f;
        #pragma unroll
        for (int k = 0; k < WARPS; k++) sum += part[k][at % (TILES * 16) / 16][at / (TILES * 16)][at % 16];
        *place[i] = before[i] + sum;
    }
}

// Blocks that a multiprocessor is to have room for; 0: as it comes.
DEVICE constexpr int few_resident(int bits, int tokens, int warps) { return bits == 4 && tokens > 16 && warps == 8 ? 2 : 0; }

#define LINEAR_FEW(NAME, INPUTS, BITS, TOKENS, WARPS, TILES)                                     \
    KERNEL void __launch_bounds__(WARPS * WARP, few_resident(BITS, TOKENS, WARPS)) NAME(               \
        Matrix w,          /* [outputs, INPUTS] */                                               \
        Activations x,     /* [rows, INPUTS] */                                                  \
        u32 rows,                                                                                \
        float* out,        /* [rows, ld]: columns from `column` on */                            \
        u32 ld, u32 column, u32 outputs,                                                         \
        u32 add) {         /* 0: out = ; 1: out += */                                            \
        linear_few<INPUTS, BITS, TOKENS, WARPS, TILES, false>(w, nullptr, nullptr, x, rows, out, \
                                                              ld, column, outputs, add);         \
    }

#define LINEAR_FEW_NORM(NAME, BITS, WARPS, TILES)                                                \
    KERNEL void __launch_bounds__(WARPS * WARP) NAME(                                            \
        Matrix w,              /* [outputs, HIDDEN] */                                           \
        const float* residual, /* [1, HIDDEN] */                                                 \
        const float* gain,     /* [HIDDEN] */                                                    \
        Activations x,         /* [1, HIDDEN]: written */                                        \
        float* out,            /* [1, ld]: columns from `column` on */                           \
        u32 ld, u32 column, u32 outputs) {                                                       \
        linear_few<HIDDEN, BITS, 1, WARPS, TILES, true>(w, residual, gain, x, 1, out, ld,        \
                                                        column, outputs, 0);                     \
    }

// ---- few rows, held ----------------------------------------------------------------------------
//
// A large matrix has more tiles of outputs than a multiprocessor takes at once: what its blocks read of the
// activations of many rows then counts more than the weights. A block holds them all in shared memory.

// Of ROWS rows in shared memory: halves [PIECES][ROWS][ROW] uint4, then sums [ROWS][SUMS] float. Rows that
// meet in a read lie in different banks.
template <int INPUTS, int ROWS>
struct HeldRows {
    static constexpr int CHUNKS = INPUTS / 8, ROW = CHUNKS + 4, GROUPS = INPUTS / GROUP, SUMS = GROUPS + 1;
    static constexpr int HALVES = PIECES * ROWS * ROW * 16;
    static constexpr int BYTES = HALVES + ROWS * SUMS * 4;
};

// Starts copies of COUNT runs of RUN inputs, each APART after the one before, from input `first` on; a block of
// THREADS. Row r is row(r) of x, zeros where r >= count.
template <int INPUTS, int ROWS, int THREADS, int RUN, int COUNT, int APART, class Row>
DEVICE void held_fetch(u8* shared, Activations x, u32 first, u32 count, Row row) {
    typedef HeldRows<INPUTS, ROWS> H;
    constexpr int CHUNKS = RUN / 8 * COUNT;
    #pragma unroll 4
    for (int i = threadIdx.x; i < PIECES * ROWS * CHUNKS; i += THREADS) {
        u32 at = i % CHUNKS, r = i / CHUNKS % ROWS, piece = i / (CHUNKS * ROWS);
        u32 chunk = first / 8 + at / (RUN / 8) * (APART / 8) + at % (RUN / 8);
        bool valid = r < count;
        copy_async(shared + ((piece * ROWS + r) * H::ROW + chunk) * 16,
                   (const uint4*)x.halves + ((u64)piece * x.rows + row(valid ? r : 0)) * H::CHUNKS + chunk, valid);
    }
    copy_commit();
}

// The same of the sums, which are there after a barrier.
template <int INPUTS, int ROWS, int THREADS, class Row>
DEVICE void held_sums(u8* shared, Activations x, u32 count, Row row) {
    typedef HeldRows<INPUTS, ROWS> H;
    float* sums = (float*)(shared + H::HALVES);
    #pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * H::GROUPS; i += THREADS) {
        u32 group = i % H::GROUPS, r = i / H::GROUPS;
        sums[r * H::SUMS + group] = r < count ? x.sums[(u64)row(r) * H::GROUPS + group] : 0.0f;
    }
}

// As few_step wants them.
template <class F>
DEVICE FewInputs<F::BLOCKS, F::COLUMNS> held_inputs(const F& f, const u8* shared) {
    typedef HeldRows<F::INPUTS, F::TOKENS> H;
    FewInputs<F::BLOCKS, F::COLUMNS> in;
    int lane = threadIdx.x % WARP;
    in.halves = (const uint4*)shared;
    in.sums = (const float*)(shared + H::HALVES);
    in.piece = F::TOKENS * H::ROW;
    #pragma unroll
    for (int n = 0; n < F::BLOCKS; n++) {
        in.halves_at[n] = (n * 8 + lane / 4) * H::ROW + f.first * (TILE / 8) + lane % 4;
        #pragma unroll
        for (int c = 0; c < F::COLUMNS; c++)
            in.sums_at[n][c] = (n * 8 + lane % 4 * 2 + c) * H::SUMS + f.first * TILE_GROUPS;
    }
    return in;
}

// PAIRS pairs of tiles of outputs, each pair's inputs split SPLIT ways.
template <int INPUTS, int BITS, int TOKENS, int SPLIT, int PAIRS>
DEVICE void linear_held(Matrix w, Activations x, u32 rows, float* out, u32 ld, u32 column, u32 outputs,
                        u32 add, u8* shared) {
    typedef FewRows<INPUTS, BITS, TOKENS, 2, SPLIT, 8, true> F;
    typedef HeldRows<INPUTS, TOKENS> H;
    constexpr int THREADS = SPLIT * PAIRS * WARP, TILES = 2 * PAIRS, HALF = F::SHARE / 2;
    static_assert(F::EVEN && F::SHARE % 2 == 0, "halves of a share");
    static_assert(SPLIT * TILES * TOKENS * PART_STRIDE * 4 <= H::BYTES, "parts lie where activations have");
    int warp = threadIdx.x / WARP, pair = warp % PAIRS, share = warp / PAIRS;
    F f;
    f.ring = (uint4*)(shared + H::BYTES) + warp * F::RING;
    few_share(f, share);
    u32 tile_rows = (outputs + 15) / 16;
    #pragma unroll
    for (int o = 0; o < 2; o++) few_tile_row(f, o, w, min(blockIdx.x * TILES + 2 * pair + o, tile_rows - 1));
    few_start(f);
    start_next();
    wait_for_inputs();
    u32 first_row = blockIdx.y * TOKENS, count = min(rows - first_row, (u32)TOKENS);
    auto row = [&](u32 r) { return first_row + r; };
    // the first half of every share, then the second
    held_fetch<INPUTS, TOKENS, THREADS, HALF * TILE, SPLIT, F::SHARE * TILE>(shared, x, 0, count, row);
    held_fetch<INPUTS, TOKENS, THREADS, HALF * TILE, SPLIT, F::SHARE * TILE>(shared, x, HALF * TILE, count, row);
    held_sums<INPUTS, TOKENS, THREADS>(shared, x, count, row);
    FewInputs<F::BLOCKS, F::COLUMNS> in = held_inputs(f, shared);
    #pragma unroll
    for (int o = 0; o < 2; o++)
        #pragma unroll
        for (int n = 0; n < F::BLOCKS; n++)
            #pragma unroll
            for (int i = 0; i < 2 * F::COLUMNS; i++) f.total[o][n][i] = 0.0f;
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {
        if (half == 0) copy_wait<1>();
        else copy_wait<HALF>(); // steps of weights asked for since
        __syncthreads();
        #pragma unroll 1
        for (int step = half * HALF; step < (half + 1) * HALF; step++) {
            few_staged(f, step % F::DEPTH, step);
            few_step(f, in, 0, step);
            __syncwarp(); // the slot has been read
            if (step + F::DEPTH < F::SHARE) few_load(f, step % F::DEPTH, step + F::DEPTH);
            copy_commit();
        }
    }
    __syncthreads(); // nobody needs the activations
    auto part = (float(*)[TILES][TOKENS][PART_STRIDE])shared; // [SPLIT]
    few_part(f, 0, part[share][2 * pair]);
    few_part(f, 1, part[share][2 * pair + 1]);
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * TILES * 16; i += THREADS) {
        u32 at = i % (TILES * 16), r = i / (TILES * 16), output = blockIdx.x * (TILES * 16) + at;
        if (r >= count || output >= outputs) continue;
        float* to = out + (u64)(first_row + r) * ld + column + output;
        float sum = 0.0f;
        #pragma unroll
        for (int k = 0; k < SPLIT; k++) sum += part[k][at / 16][r][at % 16];
        *to = (add ? *to : 0.0f) + sum;
    }
}

#define LINEAR_HELD(NAME, INPUTS, BITS, TOKENS, SPLIT, PAIRS)                                    \
    KERNEL void __launch_bounds__(SPLIT * PAIRS * WARP, 1) NAME(                                 \
        Matrix w,          /* [outputs, INPUTS] */                                               \
        Activations x,     /* [rows, INPUTS] */                                                  \
        u32 rows,                                                                                \
        float* out,        /* [rows, ld]: columns from `column` on */                            \
        u32 ld, u32 column, u32 outputs,                                                         \
        u32 add) {         /* 0: out = ; 1: out += */                                            \
        SHARED_DYNAMIC(shared);                                                                  \
        linear_held<INPUTS, BITS, TOKENS, SPLIT, PAIRS>(w, x, rows, out, ld, column, outputs,    \
                                                        add, shared);                            \
    }

// ---- few rows, SwiGLU --------------------------------------------------------------------------

// A block has 64 elements of the width: 4 pairs of tiles, each pair's inputs split SPLIT ways.
template <int INPUTS, int BITS, int TOKENS, int SPLIT>
DEVICE void swiglu_few(Matrix gate, Matrix up, Activations x, u32 rows, u32 width, Activations inner) {
    constexpr int FLIGHT = TOKENS > 8 && PIECES == 2 ? 2 : SPLIT <= 2 && TOKENS <= 8 ? 8 : 4;
    typedef FewRows<INPUTS, BITS, TOKENS, 2, SPLIT, FLIGHT> F;
    SHARED float part[SPLIT][4][2][TOKENS][PART_STRIDE];
    SHARED __align__(16) float product[TOKENS][64 + 4];
    int warp = threadIdx.x / WARP, pair = warp % 4;
    F f;
    few_share(f, warp / 4);
    few_tile_row(f, 0, gate, blockIdx.x * 4 + pair);
    few_tile_row(f, 1, up, blockIdx.x * 4 + pair);
    few_start(f);
    start_next();
    wait_for_inputs();

    u32 first_row = blockIdx.y * TOKENS;
    few_run(f, few_inputs(f, x, first_row, rows));
    few_part(f, 0, part[warp / 4][pair][0]);
    few_part(f, 1, part[warp / 4][pair][1]);
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * 64; i += SPLIT * 128) {
        int row = i / 64, column = i % 64;
        float g = 0.0f, u = 0.0f;
        #pragma unroll
        for (int k = 0; k < SPLIT; k++) {
            g += part[k][column / 16][0][row][column % 16];
            u += part[k][column / 16][1][row][column % 16];
        }
        product[row][column] = silu(g) * u;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (TOKENS * 8 + WARP - 1) / WARP * WARP; i += SPLIT * 128) {
        int row = i / 8;
        float run[8];
        load_octet(run, &product[min(row, TOKENS - 1)][i % 8 * 8]);
        write_octet(inner, first_row + row, width, blockIdx.x * 64 + i % 8 * 8, run,
                  row < TOKENS && first_row + row < rows);
    }
}

#define SWIGLU_FEW(NAME, INPUTS, BITS, TOKENS, SPLIT)                                            \
    KERNEL void __launch_bounds__(SPLIT * 128) NAME(                                             \
        Matrix gate,         /* [width, INPUTS] */                                               \
        Matrix up,           /* [width, INPUTS] */                                               \
        Activations x,       /* [rows, INPUTS] */                                                \
        u32 rows, u32 width,                                                                     \
        Activations inner) { /* [rows, width] */                                                 \
        swiglu_few<INPUTS, BITS, TOKENS, SPLIT>(gate, up, x, rows, width, inner);                \
    }
