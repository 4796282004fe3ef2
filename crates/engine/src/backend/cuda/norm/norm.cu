// norm: RMSNorm of the residual stream, as input of the next matrices.
//
//   kernel    grid   block
//   rms_norm rows   NORM_THREADS
//
// No dynamic shared memory. HIDDEN is a multiple of GROUP.

#define NORM_THREADS (HIDDEN / 8 >= 1024 ? 1024 : (HIDDEN / 8 + WARP - 1) / WARP * WARP)
#define NORM_ROUNDS ((HIDDEN / 8 + NORM_THREADS - 1) / NORM_THREADS)

// x / sqrt(mean(x^2) + eps) * gain. A thread holds 8 neighbouring elements a round.
KERNEL void __launch_bounds__(NORM_THREADS) rms_norm(
    const float* x,    // [any, HIDDEN]
    const u32* pick,   // [rows] which rows of x, or null: all in order
    const float* gain, // [HIDDEN]
    Activations out    // [rows, HIDDEN]
) {
    SHARED float partial[NORM_THREADS / WARP];
    start_next();
    float4 gains[NORM_ROUNDS][2];
    #pragma unroll
    for (int round = 0; round < NORM_ROUNDS; round++) {
        u32 at = (round * NORM_THREADS + threadIdx.x) * 8;
        bool inside = at < HIDDEN;
        const float4* from = (const float4*)(gain + (inside ? at : 0));
        gains[round][0] = from[0];
        gains[round][1] = from[1];
    }
    wait_for_inputs();

    u32 row = blockIdx.x;
    const float* from = x + (u64)(pick ? pick[row] : row) * HIDDEN;
    float y[NORM_ROUNDS][8];
    float sum = 0.0f;
    #pragma unroll
    for (int round = 0; round < NORM_ROUNDS; round++) {
        u32 at = (round * NORM_THREADS + threadIdx.x) * 8;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (at < HIDDEN) {
            a = *(const float4*)(from + at);
            b = *(const float4*)(from + at + 4);
        }
        y[round][0] = a.x, y[round][1] = a.y, y[round][2] = a.z, y[round][3] = a.w;
        y[round][4] = b.x, y[round][5] = b.y, y[round][6] = b.z, y[round][7] = b.w;
        #pragma unroll
        for (int i = 0; i < 8; i++) sum += y[round][i] * y[round][i];
    }
    sum = lanes_sum(sum);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < NORM_THREADS / WARP; i++) sum += partial[i];
    float scale = rsqrtf(sum * (1.0f / HIDDEN) + NORM_EPS);

    #pragma unroll
    for (int round = 0; round < NORM_ROUNDS; round++) {
        u32 at = (round * NORM_THREADS + threadIdx.x) * 8;
        const float4 a = gains[round][0], b = gains[round][1];
        const float g[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        #pragma unroll
        for (int i = 0; i < 8; i++) y[round][i] *= scale * g[i];
        write_octet(out, row, HIDDEN, at, y[round], at < HIDDEN);
    }
}
