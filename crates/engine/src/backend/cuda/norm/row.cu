// RMSNorm of one row of HIDDEN floats by a block; norm.cu and the products of a single row use it.

// Threads of a block that has a row to itself, eight neighbouring elements each a round.
#define NORM_THREADS (HIDDEN / 8 >= 1024 ? 1024 : (HIDDEN / 8 + WARP - 1) / WARP * WARP)

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

// y / sqrt(mean(y^2) + eps) * gain of a row of which each thread has its octets, zeros beyond the row:
// `write(at, y)` gets the eight elements from `at` on, in whole warps, also where `at` lies beyond the
// row. All threads of the block call it.
template <int THREADS, class Write>
DEVICE void norm_octets(const NormRow<THREADS>& norm, float (&y)[NormRow<THREADS>::ROUNDS][8], Write write) {
    float sum = 0.0f;
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++)
        #pragma unroll
        for (int i = 0; i < 8; i++) sum += y[round][i] * y[round][i];
    float scale = rsqrtf(block_sum<THREADS>(sum) * (1.0f / HIDDEN) + NORM_EPS);
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        #pragma unroll
        for (int i = 0; i < 8; i++) y[round][i] *= scale * norm.gain[round][i];
        write((round * THREADS + threadIdx.x) * 8, y[round]);
    }
}

// The same of a row in memory.
template <int THREADS, class Write>
DEVICE void norm_row(const NormRow<THREADS>& norm, const float* x /* [HIDDEN] */, Write write) {
    float y[NormRow<THREADS>::ROUNDS][8];
    #pragma unroll
    for (int round = 0; round < NormRow<THREADS>::ROUNDS; round++) {
        u32 at = (round * THREADS + threadIdx.x) * 8;
        load_octet(y[round], x + at, at < HIDDEN);
    }
    norm_octets(norm, y, write);
}
