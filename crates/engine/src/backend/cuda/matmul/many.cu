#if !defined(CALLA_EMULATOR) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

// ---- many rows: the matrix units count ---------------------------------------------------------
//
// A warp has 2 tiles of outputs and all ROWS rows of its block, so that a weight is converted once a
// block. Activations and weights of the next steps are on their way to shared memory meanwhile.

template <int INPUTS_, int BITS_, int ROWS_, int WARPS_>
struct ManyRows {
    static constexpr int INPUTS = INPUTS_, BITS = BITS_, ROWS = ROWS_, WARPS = WARPS_;
    static constexpr int THREADS = WARPS * WARP;
    static constexpr int STEPS = INPUTS / TILE, GROUPS = INPUTS / GROUP;
    static constexpr int NIBBLES = BITS / 4; // of a weight
    // A stage of shared memory, in bytes: halves [PIECES][ROWS][TILE], then for each warp words and
    // affine of its two tiles.
    static constexpr int HALVES = PIECES * ROWS * TILE * 2;
    static constexpr int WORDS = WARP * 16 * NIBBLES;
    static constexpr int AFFINE = 64 * TILE_GROUPS;
    static constexpr int STAGE = (HALVES + WARPS * 2 * (WORDS + AFFINE) + 1023) / 1024 * 1024;
    static constexpr int STAGES = ROWS <= 32 ? 4 : ROWS <= 64 ? 3 : WIDE_STAGES;
    static constexpr bool GROUPED = HOPPER && BITS == 4 && PIECES == 1; // by grouped_steps
    // With two groups of warps the second copies for both, see grouped_steps.
    static constexpr bool APART = GROUPED && WARPS == 8;
    static constexpr int COPIERS = APART ? THREADS / 2 : THREADS;
    // Of 16 bytes each, a copier:
    static constexpr int COPIES = (PIECES * ROWS * 8 + COPIERS - 1) / COPIERS;
    static constexpr int WORD_COPIES = WARPS * 2 * NIBBLES * WARP / COPIERS;
    static constexpr int AFFINE_COPIES = WARPS * 2 * AFFINE / 16; // by as many of them
};

#define MANY_BYTES(BITS, ROWS, WARPS)                                                            \
    ((ROWS <= 32 ? 4 : ROWS <= 64 ? 3 : WIDE_STAGES) *                                           \
     ((ROWS * 128 * PIECES + WARPS * (1024 * (BITS / 4) + 8192 / GROUP) + 1023) / 1024 * 1024))

// Powers of two that bring a matrix into the range of halves and its products back.
struct Scaling {
    float scale;       // of scales: the largest comes to lie in [2^11, 2^12), for nibbles of 8 bits 2^-4 of it
    float correction;  // of corrections: the largest in [2^14, 2^15)
    float corrections; // from their products with sums / 64 to those with `scale`
    float total;       // from there to the result
};

DEVICE float power_of_two(int exponent) { return __uint_as_float((u32)(exponent + 127) << 23); }

template <int BITS>
DEVICE Scaling scaling_of(const u32* range) {
    // apart by at most 2^60: what is smaller than that beside the other does not count
    int scale = range[0], correction = range[1];
    scale = max(max(scale, correction - 60), 12);
    correction = max(max(correction, scale - 60), 15);
    const int top = BITS == 4 ? 138 : 134;
    Scaling s;
    s.scale = power_of_two(top - scale);
    s.correction = power_of_two(141 - correction);
    s.corrections = power_of_two(top - scale - (141 - correction) + 6);
    s.total = power_of_two(scale - top) * ACTIVATION_SCALE;
    return s;
}

// Which tiles the warps of a block have: two neighbours of one matrix each, the last again where there
// are no more, or one each of two matrices.
struct TilesBeside {
    Matrix w;
    u32 first, last;
};
struct TilesPaired {
    Matrix w0, w1;
    u32 first;
};
DEVICE Matrix tile_matrix(const TilesBeside& tiles, int) { return tiles.w; }
DEVICE Matrix tile_matrix(const TilesPaired& tiles, int o) {
    Matrix w;
    w.words = o == 0 ? tiles.w0.words : tiles.w1.words;
    w.affine = o == 0 ? tiles.w0.affine : tiles.w1.affine;
    w.range = o == 0 ? tiles.w0.range : tiles.w1.range;
    return w;
}
DEVICE u32 tile_row(const TilesBeside& tiles, int warp, int o) {
    return min(tiles.first + 2 * warp + o, tiles.last);
}
DEVICE u32 tile_row(const TilesPaired& tiles, int warp, int) { return tiles.first + warp; }

// What a thread copies to shared memory in each step, and what its totals start from.
template <class M>
struct ManyInputs {
    const uint4* halves;
    u32 halves_at[M::COPIES];
    const uint4* words;
    u32 words_at[M::WORD_COPIES];
    const uint4* affine;
    const uint2* pairs[2]; // scales and biases of the warp's tiles
    const float* sums;
    const u32* source;
    Scaling scaling[2];
    int copier; // negative: the thread copies nothing
};

template <class M, class Tiles>
DEVICE ManyInputs<M> many_inputs(
    Activations x,
    const u32* source, // [ROWS] shared: the rows of x
    const Tiles& tiles) {
    constexpr int UNITS = 2 * M::NIBBLES; // of words, for each warp
    constexpr int CHUNKS = M::AFFINE / 16;
    static_assert(M::COPIERS / WARP % UNITS == 0, "a copier's words are of one matrix");
    ManyInputs<M> in;
    in.copier = (int)threadIdx.x - (M::THREADS - M::COPIERS);
    int copier = max(in.copier, 0), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    in.halves = (const uint4*)x.halves;
    #pragma unroll
    for (int i = 0; i < M::COPIES; i++) {
        int copy = i * M::COPIERS + copier, row = copy / 8 % M::ROWS, piece = copy / (8 * M::ROWS);
        in.halves_at[i] = (piece * x.rows + source[row]) * (M::INPUTS / 8) + copy % 8;
    }
    int unit = copier / WARP, tile = unit % UNITS / M::NIBBLES;
    in.words = tile_matrix(tiles, tile).words + unit % M::NIBBLES * WARP + lane;
    #pragma unroll
    for (int i = 0; i < M::WORD_COPIES; i++)
        in.words_at[i] = tile_row(tiles, (unit + i * (M::COPIERS / WARP)) / UNITS, tile)
            * (M::STEPS * WARP * M::NIBBLES);
    int of = copier % M::AFFINE_COPIES / CHUNKS;
    in.affine = (const uint4*)tile_affine<M::INPUTS>(tile_matrix(tiles, of % 2), tile_row(tiles, of / 2, of % 2), 0)
        + copier % CHUNKS;
    #pragma unroll
    for (int o = 0; o < 2; o++) {
        in.pairs[o] = tile_affine<M::INPUTS>(tile_matrix(tiles, o), tile_row(tiles, warp, o), 0);
        in.scaling[o] = scaling_of<M::BITS>(tile_matrix(tiles, o).range);
    }
    in.sums = x.sums;
    in.source = source;
    return in;
}

// Starts the copies of a step.
template <class M>
DEVICE void many_fetch(const ManyInputs<M>& in, u8* stage, int step) {
    if (in.copier < 0) return;
    #pragma unroll
    for (int i = 0; i < M::COPIES; i++) {
        int copy = i * M::COPIERS + in.copier, row = copy / 8, chunk = copy % 8;
        // Rows that meet in a read lie in different banks: two of them in one of 8 lanes, eight in what
        // a group of warps reads.
        int place = chunk ^ (M::GROUPED ? row % 8 : row % 2 * 4);
        if (M::COPIES * M::COPIERS == PIECES * M::ROWS * 8 || copy < PIECES * M::ROWS * 8)
            copy_async(stage + (row * 8 + place) * 16, in.halves + in.halves_at[i] + step * (TILE / 8));
    }
    // for each warp the words of its two tiles, then their affine
    constexpr int UNITS = 2 * M::NIBBLES, EACH = 2 * (M::WORDS + M::AFFINE), CHUNKS = M::AFFINE / 16;
    u8* weights = stage + M::HALVES;
    int unit = in.copier / WARP, lane = in.copier % WARP;
    int place = M::GROUPED ? lane % 4 * 8 + lane / 4 : lane;
    #pragma unroll
    for (int i = 0; i < M::WORD_COPIES; i++) {
        int warp = (unit + i * (M::COPIERS / WARP)) / UNITS;
        copy_async(weights + warp * EACH + (unit % UNITS * WARP + place) * 16,
                   in.words + in.words_at[i] + step * (M::NIBBLES * WARP));
    }
    int of = in.copier / CHUNKS;
    if (in.copier < M::AFFINE_COPIES)
        copy_async(weights + of / 2 * EACH + 2 * M::WORDS + (of % 2 * CHUNKS + in.copier % CHUNKS) * 16,
                   in.affine + step * CHUNKS);
}

// scale * (q - middle) of one step of 16 inputs, a left matrix for each nibble; `scales` of outputs g
// and g + 8, twice each.
template <int BITS>
DEVICE void scaled_fragments(u32 (&a)[BITS / 4][4], const Tile<BITS>& tile, int step,
                             const u32 (&scales)[2]) {
    if constexpr (BITS == 4) {
        fragment<4, false>(a[0], tile, step);
    } else {
        const uint4& words = tile.words[step / 2 % 2];
        u32 low = step % 2 == 0 ? words.x : words.z, high = step % 2 == 0 ? words.y : words.w;
        const u32 bytes[4] = {pick_bytes(low, 0, 0x4140), pick_bytes(high, 0, 0x4140),
                              pick_bytes(low, 0, 0x4342), pick_bytes(high, 0, 0x4342)};
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            a[0][i] = half2_sub(and_or<0x000f000f, 0x64006400>(bytes[i]), 0x64086408); // 1024 + 8
            a[1][i] = half2_sub(and_or<0x00f000f0, 0x64006400>(bytes[i]), 0x64806480); // 1024 + 128
        }
    }
    #pragma unroll
    for (int nibble = 0; nibble < BITS / 4; nibble++)
        #pragma unroll
        for (int i = 0; i < 4; i++) a[nibble][i] = half2_mul(a[nibble][i], scales[i % 2]);
}

// Scales of outputs g and g + 8 of the warp's tile `o` in its group `q` of a step, twice each; `weights` are
// the warp's part of the stage.
template <class M>
DEVICE void many_scales(u32 (&scales)[2], const ManyInputs<M>& in, const u8* weights, int o, int q) {
    uint2 pair = ((const uint2*)(weights + 2 * M::WORDS + o * M::AFFINE))[q * 8 + threadIdx.x % WARP / 4];
    float low = affine_scale(pair.x) * in.scaling[o].scale;
    float high = affine_scale(pair.y) * in.scaling[o].scale;
    scales[0] = half2_from(low, low);
    scales[1] = half2_from(high, high);
}

// Products of a block: of the first and the second pieces of its rows, times 2^11.
template <class M>
struct ManyTotals {
    float at[PIECES][2][M::ROWS / 8][4]; // [piece][tile][8 rows]
};

template <class M>
DEVICE void many_step(ManyTotals<M>& totals, const ManyInputs<M>& in, const u8* stage, int count) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const u8* weights = stage + M::HALVES + threadIdx.x / WARP * 2 * (M::WORDS + M::AFFINE);
    u32 a[2][4][M::NIBBLES][4];
    #pragma unroll
    for (int o = 0; o < 2; o++) {
        Tile<M::BITS> tile;
        #pragma unroll
        for (int i = 0; i < M::NIBBLES; i++)
            tile.words[i] = ((const uint4*)(weights + o * M::WORDS))[i * WARP + lane];
        #pragma unroll
        for (int q = 0; q < TILE_GROUPS; q++) {
            u32 scales[2];
            many_scales(scales, in, weights, o, q);
            #pragma unroll
            for (int s = q * GROUP_STEPS; s < (q + 1) * GROUP_STEPS; s++)
                scaled_fragments<M::BITS>(a[o][s], tile, s, scales);
        }
    }

    // 32 rows at a time: enough products that wait for none of each other
    constexpr int WIDE = M::ROWS < 32 ? M::ROWS / 8 : 4;
    #pragma unroll
    for (int first = 0; first < M::ROWS / 8; first += WIDE) {
        if (first * 8 >= count) continue;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 b[PIECES][WIDE];
            #pragma unroll
            for (int p = 0; p < PIECES; p++)
                #pragma unroll
                for (int n = 0; n < WIDE; n++)
                    b[p][n] = ((const uint4*)stage)[(p * M::ROWS + (first + n) * 8 + g) * 8
                                                    + ((half * 4 + t) ^ g % 2 * 4)];
            #pragma unroll
            for (int s = 0; s < 2; s++)
                #pragma unroll
                for (int nibble = 0; nibble < M::NIBBLES; nibble++)
                    #pragma unroll
                    for (int p = 0; p < PIECES; p++)
                        #pragma unroll
                        for (int n = 0; n < WIDE; n++)
                            #pragma unroll
                            for (int o = 0; o < 2; o++)
                                mma_step(totals.at[p][o][first + n], a[o][half * 2 + s][nibble], b[p][n], s);
        }
    }
}

#define HELD_SUMS 32                       // groups whose sums are held at a time
#define SUMS_STRIDE (HELD_SUMS / 2 + 4)    // words of a row: rows in different banks

// Starts the totals: the corrections' products with the sums. `shared` has room for a stage.
template <class M>
DEVICE void many_corrections(ManyTotals<M>& totals, const ManyInputs<M>& in, u8* shared, int count) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    u32* firsts = (u32*)shared;                     // [ROWS][SUMS_STRIDE] pairs
    u32* rests = firsts + M::ROWS * SUMS_STRIDE;
    static_assert(2 * M::ROWS * SUMS_STRIDE * 4 <= M::STAGE, "sums lie in a stage");
    #pragma unroll 1
    for (int start = 0; start < M::GROUPS; start += HELD_SUMS) {
        if (start > 0) __syncthreads();
        constexpr int PAIRS = M::ROWS * (HELD_SUMS / 2), OWN = (PAIRS + M::THREADS - 1) / M::THREADS;
        float low[OWN], high[OWN]; // all on their way at once
        #pragma unroll
        for (int i = 0; i < OWN; i++) {
            int item = i * M::THREADS + threadIdx.x, row = item / (HELD_SUMS / 2);
            int group = start + item % (HELD_SUMS / 2) * 2;
            const float* from = in.sums + (u64)in.source[min(row, M::ROWS - 1)] * M::GROUPS + group;
            low[i] = group < M::GROUPS ? from[0] : 0.0f;
            high[i] = group + 1 < M::GROUPS ? from[1] : 0.0f;
        }
        #pragma unroll
        for (int i = 0; i < OWN; i++) {
            int item = i * M::THREADS + threadIdx.x;
            int at = item / (HELD_SUMS / 2) * SUMS_STRIDE + item % (HELD_SUMS / 2);
            if (item < PAIRS)
                split_halves(firsts[at], rests[at], low[i] * (1.0f / 64.0f), high[i] * (1.0f / 64.0f));
        }
        __syncthreads();
        #pragma unroll 1
        for (int k = 0; k < HELD_SUMS / 16 && start + k * 16 < M::GROUPS; k++) {
            u32 first[2][4], rest[2][4]; // corrections
            #pragma unroll
            for (int o = 0; o < 2; o++)
                #pragma unroll
                for (int j = 0; j < 2; j++) {
                    int group = start + k * 16 + 2 * t + 8 * j;
                    const uint2 none = make_uint2(0, 0);
                    uint2 e = group < M::GROUPS ? in.pairs[o][group * 8 + g] : none;
                    uint2 f = group + 1 < M::GROUPS ? in.pairs[o][group * 8 + 8 + g] : none;
                    const float scale = in.scaling[o].correction, by = middle(M::BITS);
                    split_halves(first[o][2 * j], rest[o][2 * j],
                                 correction(e.x, by) * scale, correction(f.x, by) * scale);
                    split_halves(first[o][2 * j + 1], rest[o][2 * j + 1],
                                 correction(e.y, by) * scale, correction(f.y, by) * scale);
                }
            #pragma unroll
            for (int n = 0; n < M::ROWS / 8; n++) {
                if (n % 4 == 0 && n * 8 >= count) break;
                int at = (n * 8 + g) * SUMS_STRIDE + k * 8 + t;
                u32 b0 = firsts[at], b1 = firsts[at + 4], r0 = rests[at], r1 = rests[at + 4];
                #pragma unroll
                for (int o = 0; o < 2; o++) {
                    float (&total)[4] = totals.at[0][o][n];
                    float small[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    mma_f16(total, first[o][0], first[o][1], first[o][2], first[o][3], b0, b1);
                    mma_f16(small, first[o][0], first[o][1], first[o][2], first[o][3], r0, r1);
                    mma_f16(small, rest[o][0], rest[o][1], rest[o][2], rest[o][3], b0, b1);
                    #pragma unroll
                    for (int i = 0; i < 4; i++) total[i] = fmaf(small[i], 1.0f / 2048.0f, total[i]);
                }
            }
        }
    }
    #pragma unroll
    for (int o = 0; o < 2; o++)
        #pragma unroll
        for (int n = 0; n < M::ROWS / 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) totals.at[0][o][n][i] *= in.scaling[o].corrections;
}

// All steps by groups of four warps, see hopper.cu.
template <int N, class M>
DEVICE void grouped_steps(ManyTotals<M>& totals, const ManyInputs<M>& in, u8* shared, int count);

// All steps. Afterwards total[o][n] has of tile o and rows n*8.. what mma_f16 calls d, and shared
// memory is free.
template <class M>
DEVICE void many_run(float (&total)[2][M::ROWS / 8][4], const ManyInputs<M>& in, u8* shared, int count) {
    #pragma unroll
    for (int s = 0; s < M::STAGES - 1; s++) {
        if (s < M::STEPS) many_fetch(in, shared + s * M::STAGE, s);
        copy_commit();
    }
    ManyTotals<M> totals;
    #pragma unroll
    for (int p = 0; p < PIECES; p++)
        #pragma unroll
        for (int o = 0; o < 2; o++)
            #pragma unroll
            for (int n = 0; n < M::ROWS / 8; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++) totals.at[p][o][n][i] = 0.0f;
    many_corrections(totals, in, shared + (M::STAGES - 1) * M::STAGE, count);
    if constexpr (M::GROUPED) {
        if (M::ROWS > 64 && count > 64) grouped_steps<M::ROWS>(totals, in, shared, count);
        else if (M::ROWS > 32 && count > 32) grouped_steps<(M::ROWS < 64 ? M::ROWS : 64)>(totals, in, shared, count);
        else grouped_steps<(M::ROWS < 32 ? M::ROWS : 32)>(totals, in, shared, count);
    } else {
        int now = 0, next = M::STAGES - 1;
        #pragma unroll 1
        for (int step = 0; step < M::STEPS; step++) {
            copy_wait<M::STAGES - 2>();
            __syncthreads(); // everybody's copies have come, and the stage to be overwritten is done with
            if (step + M::STAGES - 1 < M::STEPS) many_fetch(in, shared + next * M::STAGE, step + M::STAGES - 1);
            copy_commit();
            many_step(totals, in, shared + now * M::STAGE, count);
            now = now + 1 == M::STAGES ? 0 : now + 1;
            next = next + 1 == M::STAGES ? 0 : next + 1;
        }
    }
    copy_wait<0>();
    __syncthreads();
    #pragma unroll
    for (int o = 0; o < 2; o++)
        #pragma unroll
        for (int n = 0; n < M::ROWS / 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                float sum = totals.at[0][o][n][i];
                if (PIECES == 2) sum = fmaf(totals.at[PIECES - 1][o][n][i], 1.0f / 2048.0f, sum);
                total[o][n][i] = sum * in.scaling[o].total;
            }
}

#define WRITE_ROWS 32 // at a time
#define WRITE_STRIDE 36 // floats of a row: 32 outputs, and rows in different banks

// Writes the tiles to rows `target` of out, by way of shared memory, so that what lies together is written
// together; with `add`, adds them.
template <class M>
DEVICE void many_write(
    const float (&total)[2][M::ROWS / 8][4],
    const u32* target, // [ROWS] shared
    int count, u32 tile_row, u32 outputs, float* out, u32 ld, u32 add, u8* shared) {
    constexpr int ROWS = M::ROWS < WRITE_ROWS ? M::ROWS : WRITE_ROWS;
    static_assert(M::WARPS * ROWS * WRITE_STRIDE * 4 <= M::STAGES * M::STAGE, "rows lie in the stages");
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float* held = (float*)shared + threadIdx.x / WARP * (ROWS * WRITE_STRIDE); // the warp's own
    u32 first = tile_row * 16;
    #pragma unroll
    for (int start = 0; start < M::ROWS; start += ROWS) {
        if (start >= count) break;
        __syncwarp();
        #pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
            #pragma unroll
            for (int o = 0; o < 2; o++)
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    held[(n * 8 + t * 2 + i % 2) * WRITE_STRIDE + o * 16 + i / 2 * 8 + g] =
                        total[o][start / 8 + n][i];
        __syncwarp();
        if ((ld | outputs) % 4 == 0) { // four outputs a lane
            u32 output = first + lane % 8 * 4;
            float4 value[ROWS / 4], before[ROWS / 4];
            #pragma unroll
            for (int i = 0; i < ROWS / 4; i++) {
                int row = i * 4 + lane / 8;
                bool valid = start + row < count && output < outputs;
                value[i] = *(const float4*)(held + row * WRITE_STRIDE + lane % 8 * 4);
                before[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (valid && add) before[i] = *(const float4*)(out + (u64)target[start + row] * ld + output);
            }
            #pragma unroll
            for (int i = 0; i < ROWS / 4; i++) {
                int row = i * 4 + lane / 8;
                if (start + row < count && output < outputs)
                    *(float4*)(out + (u64)target[start + row] * ld + output) =
                        make_float4(before[i].x + value[i].x, before[i].y + value[i].y,
                                    before[i].z + value[i].z, before[i].w + value[i].w);
            }
        } else {
            #pragma unroll 1
            for (int row = 0; row < min(ROWS, count - start); row++) {
                float* to = out + (u64)target[start + row] * ld + first + lane;
                if (first + lane < outputs)
                    *to = (add ? *to : 0.0f) + held[row * WRITE_STRIDE + lane];
            }
        }
    }
}

// The rows of a block, the last again where there are no more, and how many there are. All threads call it.
template <class M>
DEVICE int many_rows(u32* source /* [ROWS] shared */, u32 rows) {
    u32 first_row = blockIdx.y * M::ROWS;
    int count = min((u32)M::ROWS, rows - first_row);
    for (int i = threadIdx.x; i < M::ROWS; i += M::THREADS) source[i] = first_row + min(i, count - 1);
    __syncthreads();
    return count;
}

template <int INPUTS, int BITS, int ROWS, int WARPS>
DEVICE void linear_many(Matrix w, Activations x, u32 rows, float* out, u32 ld, u32 column, u32 outputs,
                        u32 add, u8* shared) {
    typedef ManyRows<INPUTS, BITS, ROWS, WARPS> M;
    SHARED u32 source[ROWS];
    start_next();
    wait_for_inputs();
    int count = many_rows<M>(source, rows);
    u32 first_tile = blockIdx.x * (2 * WARPS);
    TilesBeside tiles = {w, first_tile, (outputs + 15) / 16 - 1};
    ManyInputs<M> in = many_inputs<M>(x, source, tiles);
    float total[2][ROWS / 8][4];
    many_run(total, in, shared, count);
    many_write<M>(total, source, count, first_tile + threadIdx.x / WARP * 2, outputs, out + column, ld, add,
                  shared);
}

#define LINEAR_MANY(NAME, INPUTS, BITS, ROWS, WARPS)                                             \
    KERNEL void __launch_bounds__(WARPS * WARP) NAME(                                            \
        Matrix w,          /* [outputs, INPUTS] */                                               \
        Activations x,     /* [rows, INPUTS] */                                                  \
        u32 rows,                                                                                \
        float* out,        /* [rows, ld]: columns from `column` on */                            \
        u32 ld, u32 column, u32 outputs,                                                         \
        u32 add) {         /* 0: out = ; 1: out += */                                            \
        SHARED_DYNAMIC(shared);                                                                  \
        linear_many<INPUTS, BITS, ROWS, WARPS>(w, x, rows, out, ld, column, outputs, add, shared); \
    }

// ---- many rows, SwiGLU -------------------------------------------------------------------------

// Warp i of a block has tile i of gate and of up; what they make together goes to rows `target` of
// inner by way of shared memory, where whole groups meet.
template <class M>
DEVICE void many_swiglu(
    const float (&total)[2][M::ROWS / 8][4],
    const u32* target, // [ROWS] shared
    int count, u32 width, Activations inner, u8* shared) {
    constexpr int WIDTH = M::WARPS * 16, STRIDE = WIDTH + 4, RUNS = WIDTH / 8;
    float* product = (float*)shared; // [ROWS][STRIDE]
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, warp = threadIdx.x / WARP;
    #pragma unroll
    for (int n = 0; n < M::ROWS / 8; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++)
            product[(n * 8 + t * 2 + i % 2) * STRIDE + warp * 16 + i / 2 * 8 + g] =
                silu(total[0][n][i]) * total[1][n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < (M::ROWS * RUNS + WARP - 1) / WARP * WARP; i += M::THREADS) {
        int row = min(i / RUNS, M::ROWS - 1), at = i % RUNS * 8;
        float run[8];
        load_octet(run, product + row * STRIDE + at);
        write_octet(inner, target[row], width, blockIdx.x * WIDTH + at, run, i / RUNS < count);
    }
}

template <int INPUTS, int BITS, int ROWS, int WARPS>
DEVICE void swiglu_many(Matrix gate, Matrix up, Activations x, u32 rows, u32 width, Activations inner,
                        u8* shared) {
    typedef ManyRows<INPUTS, BITS, ROWS, WARPS> M;
    SHARED u32 source[ROWS];
    start_next();
    wait_for_inputs();
    int count = many_rows<M>(source, rows);
    TilesPaired tiles = {gate, up, blockIdx.x * WARPS};
    ManyInputs<M> in = many_inputs<M>(x, source, tiles);
    float total[2][ROWS / 8][4];
    many_run(total, in, shared, count);
    many_swiglu<M>(total, source, count, width, inner, shared);
}

#define SWIGLU_MANY(NAME, INPUTS, BITS, ROWS, WARPS)                                             \
    KERNEL void __launch_bounds__(WARPS * WARP) NAME(                                            \
        Matrix gate,         /* [width, INPUTS] */                                               \
        Matrix up,           /* [width, INPUTS] */                                               \
        Activations x,       /* [rows, INPUTS] */                                                \
        u32 rows, u32 width,                                                                     \
        Activations inner) { /* [rows, width] */                                                 \
        SHARED_DYNAMIC(shared);                                                                  \
        swiglu_many<INPUTS, BITS, ROWS, WARPS>(gate, up, x, rows, width, inner, shared);         \
    }
