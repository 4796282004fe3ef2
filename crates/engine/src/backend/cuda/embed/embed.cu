// embed: token ids to the first rows of the residual stream, and what RoPE needs once a step.
//
//   kernel       grid                                    block
//   embed        rows                                    EMBED_THREADS
//   rope_table   rows * ROTARY_DIMS/2 / 128, rounded up  128
//
// No dynamic shared memory. Dimensions beside the prelude's: EMBED_BITS (4 or 8), EMBED_GROUP (a
// multiple of 8). HIDDEN is a multiple of 8.

#define EMBED_THREADS (HIDDEN / 8 >= 1024 ? 1024 : (HIDDEN / 8 + WARP - 1) / WARP * WARP)

// A row of the embedding matrix, expanded: scale * q + bias. A padding row gets zeros.
KERNEL void __launch_bounds__(EMBED_THREADS) embed(
    const u32* tokens,       // [rows]
    const u32* row_sequence, // [rows]
    const u32* weight,       // [VOCAB, HIDDEN * EMBED_BITS / 32]
    const u16* scales,       // [VOCAB, HIDDEN / EMBED_GROUP] bf16
    const u16* biases,       // [VOCAB, HIDDEN / EMBED_GROUP] bf16
    float* x                 // [rows, HIDDEN]
) {
    start_next();
    wait_for_inputs();
    u32 row = blockIdx.x;
    bool padding = row_sequence[row] == NONE;
    u64 token = padding ? 0 : tokens[row];
    for (u32 octet = threadIdx.x; octet < HIDDEN / 8; octet += EMBED_THREADS) {
        float scale = 0.0f, bias = 0.0f;
        u32 words[EMBED_BITS / 4] = {};
        if (!padding) {
            u64 group = token * (HIDDEN / EMBED_GROUP) + octet * 8 / EMBED_GROUP;
            scale = float_from_bf16(scales[group]);
            bias = float_from_bf16(biases[group]);
            #pragma unroll
            for (int i = 0; i < EMBED_BITS / 4; i++)
                words[i] = weight[(token * (HIDDEN / 8) + octet) * (EMBED_BITS / 4) + i];
        }
        float y[8];
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            int bit = i * EMBED_BITS;
            u32 q = words[bit / 32] >> bit % 32 & ((1u << EMBED_BITS) - 1);
            y[i] = scale * (float)q + bias;
        }
        float4* out = (float4*)(x + (u64)row * HIDDEN + octet * 8);
        out[0] = make_float4(y[0], y[1], y[2], y[3]);
        out[1] = make_float4(y[4], y[5], y[6], y[7]);
    }
}

// Cosine and sine of each row's angles. The angle is taken in double: at position 200,000 a float
// product would be off by 0.01 radians.
KERNEL void __launch_bounds__(128) rope_table(
    const u32* row_position,   // [rows]
    const double* frequencies, // [ROTARY_DIMS / 2]
    u32 rows,
    float2* table // [rows, ROTARY_DIMS / 2] (cos, sin)
) {
    start_next();
    wait_for_inputs();
    u32 at = blockIdx.x * 128 + threadIdx.x;
    if (at >= rows * (ROTARY_DIMS / 2)) return;
    double angle = (double)row_position[at / (ROTARY_DIMS / 2)] * frequencies[at % (ROTARY_DIMS / 2)];
    double s, c;
    sincos(angle, &s, &c);
    table[at] = make_float2((float)c, (float)s);
}
