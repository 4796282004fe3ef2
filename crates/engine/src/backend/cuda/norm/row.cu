// RMSNorm of one row of HIDDEN floats by a block; norm.cu and the products of a single row use it.

template <int THREADS>
struct NormRow {
    static constexpr int ROUNDS = (HIDDEN / 8 + THREADS - 1) / THREADS;
    float gain[ROUNDS][8]; // of eight neighbours a round
};

// Asks for the gains, which no kernel writes.
template <int THREADS>
DEVICE void norm_start(NormRow<THREADS>& norm, const float* gain /* [HIDDEN] */) {
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        u32 at = (round * THREADS + threadIdx.x) * 8;
        load_octet(norm.gain[round], gain + at, at < HIDDEN);
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
        load_octet(y[round], x + at, at < HIDDEN);
        #pragma unroll
        for (int i = 0; i < 8; i++) sum += y[round][i] * y[round][i];
    }
    float scale = rsqrtf(block_sum<THREADS>(sum) * (1.0f / HIDDEN) + NORM_EPS);
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        #pragma unroll
        for (int i = 0; i < 8; i++) y[round][i] *= scale * norm.gain[round][i];
        write((round * THREADS + threadIdx.x) * 8, y[round]);
    }
}
