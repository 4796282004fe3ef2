// norm: RMSNorm of the residual stream, as input of the next matrices.
//
//   kernel    grid   block
//   rms_norm rows   NORM_THREADS
//
// No dynamic shared memory. HIDDEN is a multiple of GROUP. Compiled behind row.cu.

KERNEL void __launch_bounds__(NORM_THREADS) rms_norm(
    const float* x,    // [any, HIDDEN]
    const u32* pick,   // [rows] which rows of x, or null: all in order
    const float* gain, // [HIDDEN]
    Activations out    // [rows, HIDDEN]
) {
    start_next();
    NormRow<NORM_THREADS> norm;
    norm_start(norm, gain);
    wait_for_inputs();

    u32 row = blockIdx.x;
    norm_row(norm, x + (u64)(pick ? pick[row] : row) * HIDDEN, [&](u32 at, const float (&y)[8]) {
        write_octet(out, row, HIDDEN, at, y, at < HIDDEN);
    });
}
