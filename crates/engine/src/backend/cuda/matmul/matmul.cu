// Products with quantised matrices: the repacked form of a matrix, linear layers, and SwiGLU pairs.
//
// ---- kernels, and how to launch them (1-dimensional blocks; "tiles" are 16 outputs) ------------
//
// repack_words, repack_affine: once, at load.
//     grid ceil(n / 256), block 256, n = uint4s of `words` / u32s of `affine` that are written:
//       words:  ceil(outputs / 16) * (inputs / 64) * 32 * (bits / 4)
//       affine: ceil(outputs / 16) * (inputs / GROUP) * 16
//
// LINEAR_FEW(name, INPUTS, BITS, TOKENS, WARPS, TILES): reads the matrix once for TOKENS rows.
//     grid (ceil(ceil(outputs / 16) / TILES), ceil(rows / TOKENS)), block 32 * WARPS, dynamic shared 0
//     TOKENS 1, 8 or 16 (32 with at most 8 warps); WARPS 1 to 16, they share the inputs: best INPUTS / 256;
//     TILES 1 or 2; WARPS * TILES * TOKENS <= 512. The order of sums depends on WARPS alone.
//
// LINEAR_FEW_NORM(name, BITS, WARPS, TILES): the same for one row that it norms by itself.
//     grid ceil(ceil(outputs / 16) / TILES), block 32 * WARPS; HIDDEN are the inputs
//
// LINEAR_MANY(name, INPUTS, BITS, ROWS, WARPS): matrix products, ROWS rows and 32 * WARPS outputs a block.
//     grid (ceil(outputs / (32 * WARPS)), ceil(rows / ROWS)), block 32 * WARPS,
//     dynamic shared MANY_BYTES(BITS, ROWS, WARPS) (above 48 KB for 64 rows and 8 warps, or 128 rows:
//     the attribute must be raised)
//     ROWS 8, 16, 32, 64 or 128; WARPS 4 or 8.
//
// SWIGLU_FEW(name, INPUTS, BITS, TOKENS, SPLIT): silu(gate·x) * (up·x), as the next product's input.
//     grid (width / 64, ceil(rows / TOKENS)), block 128 * SPLIT, dynamic shared 0
//     TOKENS 1, 8 or 16; SPLIT 1 to 4. The order of sums depends on SPLIT alone.
//
// SWIGLU_MANY(name, INPUTS, BITS, ROWS, WARPS):
//     grid (width / (16 * WARPS), ceil(rows / ROWS)), block 32 * WARPS, dynamic shared MANY_BYTES;
//     WARPS 4, or 8 when width is a multiple of 128
//
// ---- a repacked matrix -------------------------------------------------------------------------
//
// 16 outputs by 64 inputs make a tile; a matrix is [outputs / 16, rounded up][inputs / 64] tiles, so
// that what a warp reads at a time is one run of memory. In a tile every lane has for itself what the
// matrix units want from it (prelude.cu, mma_f16), with g = lane / 4 and t = lane % 4:
//
//   4 bits: 512 bytes. Lane's uint4: inputs 8t..8t+8 of outputs g, g+8, then 32+8t.. of g, g+8.
//     A word holds elements 0 to 7 as MLX does, rotated left by 2: elements 0 and 4 stand at bits 2
//     of the two halves, 1 and 5 at bits 6, and rotating right by 8 brings 2, 6 and 3, 7 there. These
//     places lie inside a half's mantissa: with an exponent put before them they are 256 + q and
//     16 + q, at one instruction for two weights.
//   8 bits: 1,024 bytes. Two uint4 a lane, 32 lanes apart: inputs 8t.. of g, g+8 (elements 0, 4, 1, 5),
//     the same (elements 2, 6, 3, 7), then 32+8t... A byte becomes 1024 + q.
//
// Elements i and i + 4 make a pair because Activations keep them side by side: a lane's 16 bytes of
// activations serve two steps of 16 inputs.
//
// Weights are taken from the middle of their range, q - 8 (4 bits) or q - 136, and the matrix's bias
// makes up for it: with these, weight = scale * (q - middle) + (bias + middle * scale), and the second
// part, the correction, is small.
//
// Few rows: weights stay whole numbers up to the accumulator; after each GROUP inputs
//   total += products * scale + correction * sum of activations
//
// Many rows: scale * (q - 8) is a half without rounding, as q - 8 without its factors of two has 3 bits
// and a bfloat16 has 8; of 8 bits each nibble is taken for itself. `range` says by which power of two a
// matrix's largest scale is brought near the largest half: scales down to 2^-28 of it keep all bits. So
// products go straight into the totals, which start with the corrections' products with the sums, of
// which both are split into two halves.

struct Matrix {
    const uint4* words; // tiles
    const u32* affine;  // [outputs / 16][inputs / GROUP][16] bf16 scale low, bias high; outputs 0, 8, 1, 9..
    const u32* range;   // [2] exponents (as a float has them) of the largest scale and correction
};

#define TILE 64                     // inputs of a tile
#define TILE_GROUPS (TILE / GROUP)  // 1 or 2
#define GROUP_STEPS (GROUP / 16)    // steps of the matrix units for one scale

// What is taken from a weight of so many bits.
DEVICE constexpr float middle(int bits) { return bits == 4 ? 8.0f : 136.0f; }

DEVICE float affine_scale(u32 affine) { return __uint_as_float(affine << 16); }
DEVICE float affine_bias(u32 affine) { return __uint_as_float(affine & 0xffff0000); }
DEVICE float correction(u32 affine, float middle) {
    return fmaf(middle, affine_scale(affine), affine_bias(affine));
}

// ---- repacking ---------------------------------------------------------------------------------

KERNEL void repack_words(
    const u32* weight, // [outputs, inputs * bits / 32] as in the checkpoint
    u32 outputs, u32 inputs, u32 bits,
    uint4* words) {    // [outputs / 16, inputs / 64] tiles
    wait_for_inputs();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 lane = i % WARP, run = bits == 8 ? i / WARP % 2 : 0;
    u64 tile = i / (bits * 8);
    u32 steps = inputs / TILE, row_words = inputs * bits / 32;
    u32 step = tile % steps, output = tile / steps * 16 + lane / 4;
    if (tile / steps >= (outputs + 15) / 16) return;

    u32 out[2][2]; // [half of the uint4][output, output + 8]
    for (u32 half = 0; half < 2; half++)
        for (u32 upper = 0; upper < 2; upper++) {
            u32 row = output + upper * 8, value = 0;
            if (row < outputs) {
                const u32* from = weight + (u64)row * row_words + step * (TILE * bits / 32);
                if (bits == 4) {
                    u32 word = from[half * 4 + lane % 4];
                    value = word << 2 | word >> 30;
                } else {
                    from += run * 8 + lane % 4 * 2;
                    value = pick_bytes(from[0], from[1], half == 0 ? 0x5140 : 0x7362);
                }
            }
            out[half][upper] = value;
        }
    words[i] = make_uint4(out[0][0], out[0][1], out[1][0], out[1][1]);
}

KERNEL void repack_affine(
    const u16* scales, // [outputs, inputs / group] bf16
    const u16* biases, // [outputs, inputs / group] bf16
    u32 outputs, u32 inputs, u32 group, u32 bits,
    u32* affine,       // [outputs / 16, inputs / GROUP, 16]
    u32* range) {      // [2] raised to what is here
    wait_for_inputs();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 groups = inputs / GROUP;
    u32 place = i % 16, run = i / 16 % groups;
    u64 tile_row = i / 16 / groups;
    u32 output = tile_row * 16 + place / 2 + place % 2 * 8, pair = 0;
    if (output < outputs) {
        u64 at = (u64)output * (inputs / group) + run * GROUP / group;
        pair = scales[at] | (u32)biases[at] << 16;
    }
    if (tile_row < (outputs + 15) / 16) affine[i] = pair;
    u32 largest[2] = {pair >> 7 & 0xff, __float_as_uint(correction(pair, middle(bits))) >> 23 & 0xff};
    for (u32 of = 0; of < 2; of++) {
        u32 exponent = __reduce_max_sync(0xffffffff, largest[of]);
        if (threadIdx.x % WARP == 0 && exponent > range[of]) atomicMax(range + of, exponent);
    }
}

// ---- a tile in registers -----------------------------------------------------------------------

template <int BITS>
struct Tile {
    uint4 words[BITS / 4];
    uint2 affine[TILE_GROUPS]; // outputs g and g + 8
};

template <int INPUTS, int BITS>
DEVICE const uint4* tile_words(Matrix w, u32 tile_row, int step) {
    return w.words + ((u64)tile_row * (INPUTS / TILE) + step) * (WARP * (BITS / 4));
}
template <int INPUTS>
DEVICE const uint2* tile_affine(Matrix w, u32 tile_row, int step) {
    return (const uint2*)w.affine + ((u64)tile_row * (INPUTS / TILE) + step) * (8 * TILE_GROUPS);
}

// Half pairs of one step of 16 inputs, as mma_f16 takes them: q - middle. With OFFSET q and what the
// conversion added: 256 and 16 (4 bits) or 1024 (8 bits).
template <int BITS, bool OFFSET>
DEVICE void fragment(u32 (&a)[4], const Tile<BITS>& tile, int step) {
    if (BITS == 4) {
        u32 low = step < 2 ? tile.words[0].x : tile.words[0].z;
        u32 high = step < 2 ? tile.words[0].y : tile.words[0].w;
        if (step % 2 == 1) {
            low = pick_bytes(low, low, 0x0321);
            high = pick_bytes(high, high, 0x0321);
        }
        a[0] = and_or<0x003c003c, 0x5c005c00>(low);
        a[1] = and_or<0x003c003c, 0x5c005c00>(high);
        a[2] = and_or<0x03c003c0, 0x4c004c00>(low);
        a[3] = and_or<0x03c003c0, 0x4c004c00>(high);
        if (!OFFSET) {
            a[0] = half2_sub(a[0], 0x5c205c20); // 256 + 8
            a[1] = half2_sub(a[1], 0x5c205c20);
            a[2] = half2_sub(a[2], 0x4e004e00); // 16 + 8
            a[3] = half2_sub(a[3], 0x4e004e00);
        }
    } else {
        const uint4& words = tile.words[step / 2 % (BITS / 4)];
        u32 low = step % 2 == 0 ? words.x : words.z;
        u32 high = step % 2 == 0 ? words.y : words.w;
        a[0] = pick_bytes(low, 0x64646464, 0x4140);
        a[1] = pick_bytes(high, 0x64646464, 0x4140);
        a[2] = pick_bytes(low, 0x64646464, 0x4342);
        a[3] = pick_bytes(high, 0x64646464, 0x4342);
        if (!OFFSET)
            #pragma unroll
            for (int i = 0; i < 4; i++) a[i] = half2_sub(a[i], 0x64886488); // 1024 + 136
    }
}

DEVICE void mma_step(float (&d)[4], const u32 (&a)[4], const uint4& b, int step) {
    if (step % 2 == 0) mma_f16(d, a[0], a[1], a[2], a[3], b.x, b.y);
    else mma_f16(d, a[0], a[1], a[2], a[3], b.z, b.w);
}

// Takes back what OFFSET left in the weights, and their middle: d = -(offsets · b).
template <int BITS>
DEVICE void mma_offset(float (&d)[4], const uint4& b, int step) {
    const u32 upper = BITS == 4 ? 0xdc20dc20 : 0xe488e488; // -264, -1160
    const u32 lower = BITS == 4 ? 0xce00ce00 : 0xe488e488; // -24, -1160
    u32 a[4] = {upper, upper, lower, lower};
    mma_step(d, a, b, step);
}

// A group's products come into the totals, with the sum of its activations.
template <int BITS>
DEVICE void add_group(float& total, float products, u32 affine, float sum) {
    total = fmaf(products, affine_scale(affine), fmaf(correction(affine, middle(BITS)), sum, total));
}

// ---- few rows: the matrix is read once, and nothing else counts --------------------------------
//
// The warps of a block split the inputs of the same outputs. A warp asks for its tiles before the
// activations exist, and holds as many as registers allow. STAGED: as a ring in shared memory holds;
// the blocks leave registers to each other and to the next kernel.

template <int INPUTS_, int BITS_, int TOKENS_, int TILES_, int SPLIT_, int FLIGHT_ = TOKENS_ <= 8 ? 8 : 4,
          bool STAGED_ = false>
struct FewRows {
    static constexpr int INPUTS = INPUTS_, BITS = BITS_, TOKENS = TOKENS_, TILES = TILES_;
    static constexpr int STEPS = INPUTS / TILE;
    static constexpr int SHARE = (STEPS + SPLIT_ - 1) / SPLIT_; // steps of a warp, at most
    static constexpr bool EVEN = STEPS % SPLIT_ == 0;           // exactly
    static constexpr int FLIGHT = FLIGHT_ * 4 / BITS / TILES;   // steps that are under way
    static constexpr int DEPTH = FLIGHT < 1 ? 1 : FLIGHT < SHARE ? FLIGHT : SHARE;
    static constexpr int BLOCKS = (TOKENS + 7) / 8;             // of columns of the matrix units
    static constexpr int COLUMNS = TOKENS == 1 ? 1 : 2;         // of them in a lane that count
    // The offset costs matrix steps for a block of columns instead of subtractions for a tile, and
    // rounds sums at 2^-24 of some ten times their size: for the default mode.
    static constexpr bool OFFSET = PIECES == 1;
    static constexpr bool STAGED = STAGED_;
    static constexpr int WORDS = BITS / 4 * WARP;               // of a tile, uint4s
    static constexpr int SLOT = TILES * (WORDS + 4 * TILE_GROUPS); // of the ring, likewise
    static constexpr int RING = DEPTH * SLOT;                   // of a warp

    Tile<BITS> tile[STAGED ? 1 : DEPTH][TILES];
    uint4* ring; // shared
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

// Of a ring, this lane's part of what was asked for DEPTH steps ago. All lanes of the warp call it.
template <class F>
DEVICE void few_staged(F& f, int slot) {
    int lane = threadIdx.x % WARP;
    copy_wait<F::DEPTH - 1>();
    __syncwarp();
    const uint4* from = f.ring + slot * F::SLOT;
    #pragma unroll
    for (int o = 0; o < F::TILES; o++) {
        #pragma unroll
        for (int i = 0; i < F::BITS / 4; i++) f.tile[0][o].words[i] = from[o * F::WORDS + i * WARP + lane];
        #pragma unroll
        for (int q = 0; q < TILE_GROUPS; q++)
            f.tile[0][o].affine[q] =
                ((const uint2*)(from + F::TILES * F::WORDS))[(o * TILE_GROUPS + q) * 8 + lane / 4];
    }
}

// What fits beside the only row's activations in 48 KB: tiles of 4 bits that a warp of a ring has under
// way, FewRows's FLIGHT_. 0: there is no room for a ring.
DEVICE constexpr int few_flight(int inputs, int bits, int tiles, int warps) {
    int room = 48 * 1024 - 256 - inputs * 2 * PIECES - inputs / GROUP * 4 - warps * tiles * 80;
    for (int flight = 8; flight > 0; flight /= 2) {
        int depth = flight * 4 / bits / tiles;
        if (warps * (depth < 1 ? 1 : depth) * tiles * (bits * 128 + 64 * TILE_GROUPS) <= room)
            return flight;
    }
    return 0;
}

// Where the warp with this share of the inputs works.
template <class F>
DEVICE void few_share(F& f, int share) {
    f.first = share * F::SHARE;
    f.count = F::EVEN ? F::SHARE : min(F::SHARE, F::STEPS - f.first);
}

template <class F>
DEVICE void few_tile_row(F& f, int o, Matrix w, u32 tile_row) {
    int lane = threadIdx.x % WARP;
    f.words[o] = tile_words<F::INPUTS, F::BITS>(w, tile_row, f.first) + lane;
    f.affine[o] = tile_affine<F::INPUTS>(w, tile_row, f.first) + (F::STAGED ? lane * 2 : lane / 4);
}

// Asks for the first weights.
template <class F>
DEVICE void few_start(F& f) {
    #pragma unroll
    for (int d = 0; d < F::DEPTH; d++) {
        if (F::EVEN || d < f.count) few_load(f, d, d);
        if (F::STAGED) copy_commit();
    }
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

// The only row's activations of this warp's share, to shared memory, where no step waits for them.
template <class F>
DEVICE void few_own(const F& f, Activations x, u32 row, Activations own) {
    int lane = threadIdx.x % WARP;
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const uint4* from = (const uint4*)x.halves + ((u64)p * x.rows + row) * (F::INPUTS / 8);
        uint4* to = (uint4*)own.halves + p * (F::INPUTS / 8);
        for (int i = lane; i < f.count * (TILE / 8); i += WARP)
            to[f.first * (TILE / 8) + i] = from[f.first * (TILE / 8) + i];
    }
    const float* sums = x.sums + (u64)row * (F::INPUTS / GROUP);
    for (int i = lane; i < f.count * TILE_GROUPS; i += WARP)
        own.sums[f.first * TILE_GROUPS + i] = sums[f.first * TILE_GROUPS + i];
    __syncwarp();
}

// One step: TILES tiles times the activations of TILE inputs.
template <class F>
DEVICE void few_step(F& f, const FewInputs<F::BLOCKS, F::COLUMNS>& in, int slot, int step) {
    uint4 b[PIECES][F::BLOCKS][2];
    float sum[TILE_GROUPS][F::BLOCKS][F::COLUMNS];
    #pragma unroll
    for (int n = 0; n < F::BLOCKS; n++) {
        #pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const uint4* from = in.halves + p * in.piece + in.halves_at[n] + step * (TILE / 8);
            b[p][n][0] = from[0];
            b[p][n][1] = from[4];
        }
        #pragma unroll
        for (int c = 0; c < F::COLUMNS; c++)
            #pragma unroll
            for (int q = 0; q < TILE_GROUPS; q++)
                sum[q][n][c] = in.sums[in.sums_at[n][c] + step * TILE_GROUPS + q];
    }

    #pragma unroll
    for (int q = 0; q < TILE_GROUPS; q++) {
        float start[F::BLOCKS][4];
        #pragma unroll
        for (int n = 0; n < F::BLOCKS; n++) {
            #pragma unroll
            for (int i = 0; i < 4; i++) start[n][i] = 0.0f;
            if (F::OFFSET)
                #pragma unroll
                for (int s = q * GROUP_STEPS; s < (q + 1) * GROUP_STEPS; s++)
                    mma_offset<F::BITS>(start[n], b[0][n][s / 2], s);
        }
        #pragma unroll
        for (int o = 0; o < F::TILES; o++) {
            u32 a[GROUP_STEPS][4];
            #pragma unroll
            for (int s = 0; s < GROUP_STEPS; s++)
                fragment<F::BITS, F::OFFSET>(a[s], f.tile[slot][o], q * GROUP_STEPS + s);
            uint2 affine = f.tile[slot][o].affine[q];
            #pragma unroll
            for (int n = 0; n < F::BLOCKS; n++) {
                float d[4] = {0.0f, 0.0f, 0.0f, 0.0f}; // does not wait for `start`
                #pragma unroll
                for (int s = 0; s < GROUP_STEPS; s++)
                    mma_step(d, a[s], b[0][n][(q * GROUP_STEPS + s) / 2], s);
                #pragma unroll
                for (int i = 0; i < 4; i++) d[i] += start[n][i];
#if PIECES == 2
                float e[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                #pragma unroll
                for (int s = 0; s < GROUP_STEPS; s++)
                    mma_step(e, a[s], b[1][n][(q * GROUP_STEPS + s) / 2], s);
                #pragma unroll
                for (int i = 0; i < 4; i++) d[i] = fmaf(e[i], 1.0f / 2048.0f, d[i]);
#endif
                #pragma unroll
                for (int c = 0; c < F::COLUMNS; c++) {
                    add_group<F::BITS>(f.total[o][n][c], d[c], affine.x, sum[q][n][c]);
                    add_group<F::BITS>(f.total[o][n][F::COLUMNS + c], d[2 + c], affine.y, sum[q][n][c]);
                }
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
    #pragma unroll 1
    for (int base = 0; base < F::SHARE; base += F::DEPTH)
        #pragma unroll
        for (int d = 0; d < F::DEPTH; d++) {
            const bool whole = F::EVEN && F::SHARE % F::DEPTH == 0;
            if (whole || base + d < f.count) {
                if (F::STAGED) few_staged(f, d);
                few_step(f, in, F::STAGED ? 0 : d, base + d);
                if (F::SHARE > F::DEPTH && base + d + F::DEPTH < f.count) {
                    if (F::STAGED) __syncwarp(); // the slot has been read
                    few_load(f, d, base + d + F::DEPTH);
                }
            }
            if (F::STAGED) copy_commit();
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

// RMSNorm of a row of HIDDEN floats by a block: the arithmetic of norm.cu with as many threads.
template <int THREADS>
struct NormRow {
    static constexpr int ROUNDS = (HIDDEN / 8 + THREADS - 1) / THREADS;
    float4 gain[ROUNDS][2]; // of eight neighbours a round
};

template <int THREADS>
DEVICE void norm_start(NormRow<THREADS>& norm, const float* gain) {
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        u32 at = (round * THREADS + threadIdx.x) * 8;
        const float4* from = (const float4*)(gain + (at < HIDDEN ? at : 0));
        norm.gain[round][0] = from[0];
        norm.gain[round][1] = from[1];
    }
}

// Into `own`, in shared memory, and with `copy` also to `out`. All threads call it.
template <int THREADS>
DEVICE void norm_row(const NormRow<THREADS>& norm, const float* x, Activations own, bool copy,
                     Activations out) {
    float y[NormRow<THREADS>::ROUNDS][8], sum = 0.0f;
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        u32 at = (round * THREADS + threadIdx.x) * 8;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (at < HIDDEN) {
            a = *(const float4*)(x + at);
            b = *(const float4*)(x + at + 4);
        }
        y[round][0] = a.x, y[round][1] = a.y, y[round][2] = a.z, y[round][3] = a.w;
        y[round][4] = b.x, y[round][5] = b.y, y[round][6] = b.z, y[round][7] = b.w;
        #pragma unroll
        for (int i = 0; i < 8; i++) sum += y[round][i] * y[round][i];
    }
    float scale = rsqrtf(block_sum<THREADS>(sum) * (1.0f / HIDDEN) + NORM_EPS);
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        u32 at = (round * THREADS + threadIdx.x) * 8;
        const float4 a = norm.gain[round][0], b = norm.gain[round][1];
        const float g[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        #pragma unroll
        for (int i = 0; i < 8; i++) y[round][i] *= scale * g[i];
        write_octet(own, 0, HIDDEN, at, y[round], at < HIDDEN);
        if (copy) write_octet(out, 0, HIDDEN, at, y[round], at < HIDDEN);
    }
    __syncthreads();
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
    int warp = threadIdx.x / WARP;
    F f;
    f.ring = ring[STAGED ? warp : 0];
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
    if constexpr (NORM) norm_row(norm, residual, own, blockIdx.x == 0, x);
    else if constexpr (STAGED) few_own(f, x, first_row, own);
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

#define LINEAR_FEW(NAME, INPUTS, BITS, TOKENS, WARPS, TILES)                                     \
    KERNEL void __launch_bounds__(WARPS * WARP) NAME(                                            \
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

// Eight elements in a row of shared memory, 16-byte aligned.
DEVICE void load_run(float (&x)[8], const float* from) {
    float4 low = ((const float4*)from)[0], high = ((const float4*)from)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
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
        load_run(run, &product[min(row, TOKENS - 1)][i % 8 * 8]);
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
            uint2 pair = ((const uint2*)(weights + 2 * M::WORDS + o * M::AFFINE))[q * 8 + g];
            float low = affine_scale(pair.x) * in.scaling[o].scale;
            float high = affine_scale(pair.y) * in.scaling[o].scale;
            const u32 scales[2] = {half2_from(low, low), half2_from(high, high)};
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

// Two numbers as halves and, times 2^11, what those left.
DEVICE void split_halves(u32& first, u32& rest, float low, float high) {
    first = half2_from(low, high);
    rest = half2_from((low - half_to((u16)first)) * 2048.0f, (high - half_to((u16)(first >> 16))) * 2048.0f);
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

// ---- many rows on Hopper: four warps at a time --------------------------------------------------
//
// wgmma takes its right matrix from shared memory as it lies there and runs beside everything else: while
// it is at one step, the warps convert the weights of the next. Left and right matrix must agree on which
// input is which, so that a lane needs of each octet of inputs the pair (t, t + 4), not all of every
// fourth; it finds them in the words of the four lanes that share its outputs.

#if HOPPER

// Right matrix [N rows, 64 inputs]: rows of 128 bytes, whose 16-byte pieces stand at piece ^ row % 8.
DEVICE u64 right_matrix(const u8* stage) {
    u32 address = (u32)__cvta_generic_to_shared(stage);
    // start, and from 8 rows to the next, in 16 bytes; 128-byte swizzle
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// What other instructions wrote may be read by wgmma: registers, and shared memory.
DEVICE void group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void group_shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void group_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// d += a·b for four warps: each has 16 rows of a, as mma_f16 has them, and of d, whose blocks of 8 columns
// are as mma_f16's.
#define SUMS_OF(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])

DEVICE void group_mma(float (&d)[1][4], const u32 (&a)[4], u64 b) {
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
                 "%0,%1,%2,%3"
                 "}, {%4,%5,%6,%7}, %8, add, 1, 1, 0; }"
                 : SUMS_OF(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE void group_mma(float (&d)[4][4], const u32 (&a)[4], u64 b) {
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, {%16,%17,%18,%19}, %20, add, 1, 1, 0; }"
                 : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE void group_mma(float (&d)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 0; }"
                 : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4), SUMS_OF(5),
                   SUMS_OF(6), SUMS_OF(7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE void group_mma(float (&d)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, add, 1, 1, 0; }"
                 : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), SUMS_OF(3), SUMS_OF(4), SUMS_OF(5),
                   SUMS_OF(6), SUMS_OF(7), SUMS_OF(8), SUMS_OF(9), SUMS_OF(10), SUMS_OF(11),
                   SUMS_OF(12), SUMS_OF(13), SUMS_OF(14), SUMS_OF(15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SUMS_OF

// scale * (q - 8) of a step of 64 inputs.
template <class M>
DEVICE void grouped_weights(u32 (&a)[2][4][4], const ManyInputs<M>& in, const u8* stage) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const u8* weights = stage + M::HALVES + threadIdx.x / WARP * 2 * (M::WORDS + M::AFFINE);
    #pragma unroll
    for (int o = 0; o < 2; o++) {
        u32 scales[TILE_GROUPS][2];
        #pragma unroll
        for (int q = 0; q < TILE_GROUPS; q++) {
            uint2 pair = ((const uint2*)(weights + 2 * M::WORDS + o * M::AFFINE))[q * 8 + g];
            float low = affine_scale(pair.x) * in.scaling[o].scale;
            float high = affine_scale(pair.y) * in.scaling[o].scale;
            scales[q][0] = half2_from(low, low);
            scales[q][1] = half2_from(high, high);
        }
        // octets 0 to 3 of outputs g and g + 8, then 4 to 7
        #pragma unroll
        for (int octet = 0; octet < 4; octet++) {
            uint4 words = ((const uint4*)(weights + o * M::WORDS))[octet * 8 + g];
            const u32 word[4] = {words.x, words.y, words.z, words.w};
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 turned = __funnelshift_r(word[i], word[i], 4 * t);
                u32 q = half2_sub(and_or<0x003c003c, 0x5c005c00>(turned), 0x5c205c20); // 256 + 8
                int step = i / 2 * 2 + octet / 2;
                a[o][step][octet % 2 * 2 + i % 2] = half2_mul(q, scales[step * 16 / GROUP][i % 2]);
            }
        }
    }
}

template <int N, class M>
DEVICE void grouped_step(ManyTotals<M>& totals, const u32 (&a)[2][4][4], const u8* stage) {
    u64 b = right_matrix(stage);
    group_fence();
    #pragma unroll
    for (int s = 0; s < 4; s++)
        #pragma unroll
        for (int o = 0; o < 2; o++)
            group_mma((float (&)[N / 8][4])totals.at[0][o], a[o][s], b + s * 2);
    group_commit();
}

// What was copied for a step is there for all warps, wgmma included, afterwards; `PENDING` later ones
// may be under way. The fence waits for whatever its thread still copies. So that copies stay under way,
// those who copy do not fence for themselves, and the others, who do, copy nothing.
template <class M, int PENDING>
DEVICE void grouped_arrival(const ManyInputs<M>& in) {
    copy_wait<M::APART ? PENDING : 0>();
    if (!M::APART) group_shared_fence();
    __syncthreads();
    if (M::APART && in.copier < 0) group_shared_fence();
}

// All steps over the first N rows, of which `count` are there; the first STAGES - 1 stages are on their way.
template <int N, class M>
DEVICE void grouped_steps(ManyTotals<M>& totals, const ManyInputs<M>& in, u8* shared, int count) {
    u32 a[2][2][4][4];
    // A number that the compiler does not know: with a branch between, it does not move the conversion
    // behind the wait for the products.
    const int steps = count > 0 ? M::STEPS : 0;
    int now = 0, next = 1, last = M::STAGES - 1;
    grouped_arrival<M, M::STAGES - 2>(in);
    grouped_weights(a[0], in, shared);
    __syncthreads();
    #pragma unroll 1
    for (int pair = 0; pair < steps; pair += 2) {
        #pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            int step = pair + odd;
            if (step >= steps) break;
            grouped_step<N>(totals, a[odd], shared + now * M::STAGE);
            grouped_arrival<M, M::STAGES - 3>(in);
            if (step + M::STAGES - 1 < steps) many_fetch(in, shared + last * M::STAGE, step + M::STAGES - 1);
            copy_commit();
            if (step + 1 < steps) grouped_weights(a[1 - odd], in, shared + next * M::STAGE);
            group_wait();
            __syncthreads(); // nobody needs this step's stage
            last = now;
            now = next;
            next = next + 1 == M::STAGES ? 0 : next + 1;
        }
    }
}

#else

template <int N, class M>
DEVICE void grouped_steps(ManyTotals<M>&, const ManyInputs<M>&, u8*, int) {} // GROUPED is false

#endif // HOPPER

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

template <int INPUTS, int BITS, int ROWS, int WARPS>
DEVICE void linear_many(Matrix w, Activations x, u32 rows, float* out, u32 ld, u32 column, u32 outputs,
                        u32 add, u8* shared) {
    typedef ManyRows<INPUTS, BITS, ROWS, WARPS> M;
    SHARED u32 source[ROWS];
    start_next();
    wait_for_inputs();
    u32 first_row = blockIdx.y * ROWS;
    int count = min((u32)ROWS, rows - first_row);
    for (int i = threadIdx.x; i < ROWS; i += M::THREADS) source[i] = first_row + min(i, count - 1);
    __syncthreads();
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
        load_run(run, product + row * STRIDE + at);
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
    u32 first_row = blockIdx.y * ROWS;
    int count = min((u32)ROWS, rows - first_row);
    for (int i = threadIdx.x; i < ROWS; i += M::THREADS) source[i] = first_row + min(i, count - 1);
    __syncthreads();
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
