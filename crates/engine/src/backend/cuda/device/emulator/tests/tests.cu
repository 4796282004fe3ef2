// Kernels that the emulator's own tests launch: one for each thing that it must get right, and one
// for each mistake that it must report.

// ---- what works ------------------------------------------------------------------------------

// Every thread's coordinates.
KERNEL void coordinates(uint4* out /*[blocks, threads]*/) {
    wait_for_inputs();
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[block * blockDim.x + threadIdx.x] = make_uint4(blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
}

// Arguments of every kind.
struct Matrix {
    const uint4* words;
    const u32* affine;
    const u32* range;
};
KERNEL void arguments(Matrix w, Activations x, const u32 count, const float* none, u64* out /*[6]*/) {
    wait_for_inputs();
    out[0] = (u64)w.words + (u64)w.affine + (u64)w.range;
    out[1] = (u64)x.halves;
    out[2] = (u64)x.sums;
    out[3] = x.rows;
    out[4] = count;
    out[5] = (u64)none;
}

KERNEL void row_sums(const float* x /*[rows, width]*/, u32 width, float* out /*[rows]*/) {
    wait_for_inputs();
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += 128) sum += x[blockIdx.x * width + i];
    sum = block_sum<128>(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Each round, each thread takes its neighbour's number: wrong as soon as a barrier leaks. Threads
// from the middle on leave half way; they count as arrived.
KERNEL void turns(u32 rounds, u32* out /*[threads]*/) {
    SHARED u32 number[1024];
    wait_for_inputs();
    u32 live = blockDim.x, mine = threadIdx.x;
    for (u32 round = 0; round < rounds; round++) {
        if (round == rounds / 2) {
            live = blockDim.x / 2;
            if (threadIdx.x >= live) break;
        }
        number[threadIdx.x] = mine;
        __syncthreads();
        mine = number[(threadIdx.x + 1) % live] + 1;
        __syncthreads();
    }
    out[threadIdx.x] = mine;
}

// Warps that do different numbers of warp operations, and halves of a warp with a mask each.
KERNEL void divergent(u32* out /*[threads]*/) {
    wait_for_inputs();
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, sum = 0;
    for (u32 i = 0; i < warp; i++) sum += __shfl_sync(0xffffffffu, lane * 10, i);
    if (lane < 16)
        for (int i = 0; i < 5; i++) sum += __shfl_xor_sync(0xffffu, lane, 8);
    else
        sum += __shfl_xor_sync(0xffff0000u, lane, 8);
    if (lane % 2) {
        out[threadIdx.x] = sum;
        return; // the others' operations no longer wait for these lanes
    }
    sum += __popc(__ballot_sync(0xffffffffu, lane >= 8)) * 1000;
    out[threadIdx.x] = sum;
}

// Results of every warp operation, lane by lane.
KERNEL void lanes(const u32* x /*[32]*/, u32* out /*[16, 32]*/) {
    wait_for_inputs();
    u32 lane = threadIdx.x, v = x[lane], all = 0xffffffffu;
    out[0 * 32 + lane] = __shfl_sync(all, v, (lane * 7 + 3) % 32);
    out[1 * 32 + lane] = __shfl_sync(all, v, lane + 5, 8);
    out[2 * 32 + lane] = __shfl_xor_sync(all, v, 5);
    out[3 * 32 + lane] = __shfl_xor_sync(all, v, 12, 8);
    out[4 * 32 + lane] = __shfl_up_sync(all, v, 3);
    out[5 * 32 + lane] = __shfl_up_sync(all, v, 3, 16);
    out[6 * 32 + lane] = __shfl_down_sync(all, v, 3);
    out[7 * 32 + lane] = __shfl_down_sync(all, v, 3, 16);
    out[8 * 32 + lane] = __ballot_sync(all, v & 1);
    out[9 * 32 + lane] = __any_sync(all, v == x[9]) * 4 + __any_sync(all, 0) * 2 + __all_sync(all, v == x[9]);
    out[10 * 32 + lane] = __all_sync(all, 1);
    out[11 * 32 + lane] = __match_any_sync(all, v & 3);
    out[12 * 32 + lane] = __reduce_add_sync(all, v);
    out[13 * 32 + lane] = __reduce_max_sync(all, v);
    out[14 * 32 + lane] = __reduce_min_sync(all, (int)v - 1000);
    out[15 * 32 + lane] = __reduce_xor_sync(all, v);
}

// Halves, and the bit tricks of weights.
KERNEL void conversions(const float* x /*[n]*/, u32 n, u16* half /*[n]*/, float* back /*[n]*/,
                        const u32* word /*[n]*/, u32* bits /*[7, n]*/) {
    wait_for_inputs();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    half[i] = half_from(x[i]);
    back[i] = half_to((u16)word[i]);
    bits[0 * n + i] = half2_sub(word[i], word[(i + 1) % n]);
    bits[1 * n + i] = and_or<0x000f000fu, 0x64006400u>(word[i]);
    bits[2 * n + i] = pick_bytes(word[i], word[(i + 1) % n], 0x7250u);
    bits[3 * n + i] = __brev(word[i]);
    bits[4 * n + i] = __clz(word[i]) * 10000 + __ffs(word[i]) * 100 + __popc(word[i]);
    bits[5 * n + i] = half2_from(x[i], x[(i + 1) % n]);
    bits[6 * n + i] = __float_as_uint(__uint_as_float(word[i]));
}

// d += a·b of fragments, d [16, 8] where it stands.
DEVICE void add_product(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    float sum[4] = {d[g * 8 + t], d[g * 8 + t + 1], d[(g + 8) * 8 + t], d[(g + 8) * 8 + t + 1]};
    mma_f16(sum, a0, a1, a2, a3, b0, b1);
    d[g * 8 + t] = sum[0];
    d[g * 8 + t + 1] = sum[1];
    d[(g + 8) * 8 + t] = sum[2];
    d[(g + 8) * 8 + t + 1] = sum[3];
}

// d += a·b of row-major a [16, 16] and b [16, 8], fragments by hand.
KERNEL void product(const u16* a, const u16* b, float* d /*[16, 8]*/) {
    wait_for_inputs();
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    auto pair = [](u16 low, u16 high) { return low | (u32)high << 16; };
    auto of_a = [&](u32 r, u32 c) { return pair(a[r * 16 + c], a[r * 16 + c + 1]); };
    auto of_b = [&](u32 r) { return pair(b[r * 8 + g], b[(r + 1) * 8 + g]); };
    add_product(d, of_a(g, t), of_a(g + 8, t), of_a(g, t + 8), of_a(g + 8, t + 8), of_b(t), of_b(t + 8));
}

// The same with fragments from load_matrices: of a as it is, of b transposed; all by copy_async.
KERNEL void product_loaded(const u16* a, const u16* b, float* d /*[16, 8]*/) {
    SHARED_DYNAMIC(tiles); // a [16, 16], b [16, 8]
    wait_for_inputs();
    u32 lane = threadIdx.x;
    copy_async(tiles + lane * 16, a + lane * 8);
    if (lane < 16) copy_async(tiles + 512 + lane * 16, b + lane * 8);
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    u32 fa[4], fb[4];
    load_matrices<false>(fa, tiles + (lane % 16 * 16 + lane / 16 * 8) * 2);
    load_matrices<true>(fb, tiles + 512 + lane % 16 * 16);
    add_product(d, fa[0], fa[1], fa[2], fa[3], fb[0], fb[1]);
}

// The same with b's fragments transposed in registers.
KERNEL void product_transposed(const u16* a, const u16* b, float* d /*[16, 8]*/) {
    SHARED_DYNAMIC(tiles); // a [16, 16], b [16, 8]
    wait_for_inputs();
    u32 lane = threadIdx.x;
    ((uint4*)tiles)[lane] = ((const uint4*)a)[lane];
    if (lane < 16) ((uint4*)tiles)[32 + lane] = ((const uint4*)b)[lane];
    __syncwarp();
    u32 fa[4], fb[4];
    load_matrices<false>(fa, tiles + (lane % 16 * 16 + lane / 16 * 8) * 2);
    load_matrices<false>(fb, tiles + 512 + lane % 16 * 16);
    add_product(d, fa[0], fa[1], fa[2], fa[3], transpose_matrix(fb[0]), transpose_matrix(fb[1]));
}

// What a thread finds in the target of three copies before and after each wait.
KERNEL void copies(const uint4* x /*[3]*/, u32* out /*[4, 3]*/) {
    SHARED uint4 target[3];
    wait_for_inputs();
    for (int i = 0; i < 3; i++) target[i] = make_uint4(1, 1, 1, 1);
    auto look = [&](int row) {
        for (int i = 0; i < 3; i++) out[row * 3 + i] = target[i].w;
    };
    for (int i = 0; i < 3; i++) {
        copy_async(&target[i], &x[i], i != 1);
        if (i < 2) copy_commit(); // the third belongs to no group yet
    }
    look(0);
    copy_wait<1>();
    look(1);
    copy_wait<0>();
    look(2);
    copy_commit();
    copy_wait<0>();
    look(3);
}

// What a warp finds in the targets of two runs that its first lane asks for, before and after they arrive.
KERNEL void bulk_copies(const uint4* x /*[3]*/, u32* out /*[2, 3]*/) {
    SHARED uint4 target[3];
    SHARED u64 arrival;
    wait_for_inputs();
    if (threadIdx.x == 0) {
        arrival_init(&arrival);
        arrival_start(&arrival, 48);
        copy_bulk(target, x, 32, &arrival);
        copy_bulk(target + 2, x + 2, 16, &arrival);
    }
    __syncwarp();
    if (threadIdx.x < 3) out[threadIdx.x] = target[threadIdx.x].w;
    __syncwarp();
    arrival_wait(&arrival);
    if (threadIdx.x < 3) out[3 + threadIdx.x] = target[threadIdx.x].w;
}

// A word that the kernel before has written.
KERNEL void hands_on(u32* word, u32 value) {
    wait_for_inputs();
    hand_on(word, value);
}
KERNEL void awaits(const u32* word, u32 value) {
    await_hand_on(word, value);
    wait_for_inputs();
}

// What shared memory holds before anybody writes it; then it is written, for the next block.
KERNEL void unwritten(u32* out /*[blocks, 2, 32]*/) {
    SHARED_DYNAMIC(dynamic);
    SHARED u32 fixed[32];
    wait_for_inputs();
    u32* words = (u32*)dynamic;
    out[(blockIdx.x * 2 + 0) * 32 + threadIdx.x] = words[threadIdx.x];
    out[(blockIdx.x * 2 + 1) * 32 + threadIdx.x] = fixed[threadIdx.x];
    words[threadIdx.x] = fixed[threadIdx.x] = 7;
}

// Atomics of all threads on global and on shared memory; the last block, by count, hands out both.
KERNEL void atomics(u32* total /*[4]*/, u32* out /*[5]*/) {
    SHARED u32 sum;
    wait_for_inputs();
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, 1u);
    atomicAdd(&total[0], threadIdx.x);
    atomicMax(&total[1], blockIdx.x * 100 + threadIdx.x);
    atomicCAS(&total[2], 0u, 5u);
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicInc(&total[3], gridDim.x - 1) != gridDim.x - 1) return;
    for (int i = 0; i < 4; i++) out[i] = total[i];
    out[4] = atomicExch(&sum, 0u);
}

// Who came when: the order of threads, and of blocks, that the seed gives.
KERNEL void order(u32* count /*[1]*/, u32* out /*[blocks * threads]*/) {
    wait_for_inputs();
    out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(count, 1u);
}

// A race: reads what a neighbour writes with no barrier in between. Right in one order only.
KERNEL void race(u32* out /*[threads]*/) {
    SHARED u32 number[1024];
    wait_for_inputs();
    number[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = threadIdx.x ? number[threadIdx.x - 1] : 0;
}

KERNEL void mathematics(const float* x /*[n]*/, u32 n, double* out /*[12, n]*/) {
    wait_for_inputs();
    u32 i = threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    out[0 * n + i] = expf(v);
    out[1 * n + i] = exp2f(v);
    out[2 * n + i] = logf(v);
    out[3 * n + i] = log1pf(v);
    out[4 * n + i] = rsqrtf(v);
    out[5 * n + i] = fmaxf(v, 1.0f) + fminf(v, 1.0f) + fabsf(-v);
    out[6 * n + i] = __fmaf_rn(v, v, -1.0f);
    out[7 * n + i] = __expf(v) - expf(v) + __frcp_rn(v);
    out[8 * n + i] = cos((double)v * 1e4);
    out[9 * n + i] = sin((double)v * 1e4);
    out[10 * n + i] = min((int)v, 2) + max((u32)v, 3u);
    out[11 * n + i] = sigmoid(v) + silu(v);
}

// ---- mistakes --------------------------------------------------------------------------------

// Half of the threads wait for the others, which wait for lanes that have gone to the barrier.
KERNEL void deadlock() {
    wait_for_inputs();
    if (threadIdx.x % 2) __syncthreads();
    else __shfl_sync(0xffffffffu, 1, 0);
}

KERNEL void two_barriers() {
    wait_for_inputs();
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

KERNEL void two_operations(u32* out) {
    wait_for_inputs();
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
    else out[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
}

KERNEL void foreign_mask() {
    wait_for_inputs();
    __syncwarp(0xffu);
}

KERNEL void half_a_product(float* out) {
    wait_for_inputs();
    float d[4] = {};
    if (threadIdx.x >= 16) return;
    mma_f16(d, 0, 0, 0, 0, 0, 0);
    out[0] = d[0];
}

// A lane that has ended hands over poison.
KERNEL void from_nobody(u32* out /*[32]*/) {
    wait_for_inputs();
    if (threadIdx.x == 3) return;
    u32 value = __shfl_sync(0xffffffffu, 1u, 3);
    out[threadIdx.x] = value;
    if (threadIdx.x == 4) out[3] = value;
}

KERNEL void no_wait(u32 odd) {
    if (threadIdx.x == odd) return;
    wait_for_inputs();
}
KERNEL void waits_twice() {
    wait_for_inputs();
    wait_for_inputs();
}

KERNEL void past_the_end() {
    SHARED_DYNAMIC(bytes);
    wait_for_inputs();
    bytes[threadIdx.x] = 1;
}

KERNEL void copy_unaligned(const u8* x) {
    SHARED_DYNAMIC(bytes);
    wait_for_inputs();
    copy_async(bytes, x + 8);
}
KERNEL void copy_to_global(const u8* x, u8* out) {
    wait_for_inputs();
    copy_async(out, x);
}
KERNEL void bulk_unaligned(const u8* x) {
    SHARED uint4 target;
    SHARED u64 arrival;
    wait_for_inputs();
    arrival_init(&arrival);
    arrival_start(&arrival, 16);
    copy_bulk(&target, x + 8, 16, &arrival);
}
KERNEL void bulk_unexpected(const u8* x) {
    SHARED uint4 target[2];
    SHARED u64 arrival;
    wait_for_inputs();
    arrival_init(&arrival);
    arrival_start(&arrival, 16);
    copy_bulk(target, x, 32, &arrival);
}
KERNEL void bulk_not_started() {
    SHARED u64 arrival;
    wait_for_inputs();
    arrival_init(&arrival);
    arrival_wait(&arrival);
}
KERNEL void bulk_left(const u8* x) {
    SHARED uint4 target;
    SHARED u64 arrival;
    wait_for_inputs();
    arrival_init(&arrival);
    arrival_start(&arrival, 16);
    copy_bulk(&target, x, 16, &arrival);
}
KERNEL void load_unaligned(const u8* x, uint2* out) {
    wait_for_inputs();
    out[0].x = ((const uint2*)(x + 4))->x;
}
KERNEL void outside_array(u32 at, u32* out) {
    SHARED u32 number[8];
    wait_for_inputs();
    number[at] = 1;
    out[0] = number[0];
}
KERNEL void shift_too_far(u32 by, u32* out) {
    wait_for_inputs();
    out[0] = 1u << by;
}

// Past the end of its memory, after a barrier.
KERNEL void wild(u32* x, u32 by) {
    wait_for_inputs();
    __syncthreads();
    if (threadIdx.x == 5) x[by] = 1;
}
// Through a pointer that nobody has written.
KERNEL void poisoned_pointer() {
    SHARED_DYNAMIC(bytes);
    wait_for_inputs();
    **(u8**)bytes = 1;
}
