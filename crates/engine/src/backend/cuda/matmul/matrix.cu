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
// LINEAR_HELD(name, INPUTS, BITS, TOKENS, SPLIT, PAIRS): the same for matrices of many outputs, rows held.
//     grid (ceil(ceil(outputs / 16) / (2 * PAIRS)), ceil(rows / TOKENS)), block 32 * SPLIT * PAIRS, dynamic
//     shared HeldRows<INPUTS, TOKENS>::BYTES and 16 * FewRows::RING for each warp
//     INPUTS a multiple of 128 * SPLIT. The order of sums depends on SPLIT alone.
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
