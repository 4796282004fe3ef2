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
        for (int q = 0; q < TILE_GROUPS; q++) many_scales(scales[q], in, weights, o, q);
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
