// RMSNorm of one row of HIDDEN floats by a block; norm.cu and the products of a single row use it.

template <int THREADS>
struct NormRow {
    static constexpr int ROUNDS = (HIDDEN / 8 + THREADS - 1) / THREADS;
    float4 gain[ROUNDS][2]; // of eight neighbours a round
};

// Asks for the gains, which no kernel writes.
template <int THREADS>
DEVICE void norm_start(NormRow<THREADS>& norm, const float* gain /* [HIDDEN] */) {
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        u32 at = (round * THREADS + threadIdx.x) * 8;
        const float4* from = (const float4*)(gain + (at < HIDDEN ? at : 0));
        norm.gain[round][0] = from[0];
        norm.gain[round][1] = from[1];
    }
}

// x / sqrt(mean(x^2) + eps) * gain: `write(at, y)` gets the eight elements from `at` on, in whole warps,
// also where `at` lies beyond the row. All threads of the block call it.
template <int THREADS, class Write>
DEVICE void norm_row(const NormRow<THREADS>& norm, const float* x /* [HIDDEN] */, Write write) {
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
        const float4 a = norm.gain[round][0], b = norm.gain[round][1];
        const float g[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        #pragma unroll
        for (int i = 0; i < 8; i++) y[round][i] *= scale * g[i];
        write((round * THREADS + threadIdx.x) * 8, y[round]);
    }
}
