// What every kernel file starts with: types, and the few instructions that CUDA C++ has no word for.
//
// Kernels include nothing: NVRTC's package ships no headers. A kernel file is compiled as
//   dimensions of the model (#define) + this file + the kernel file + its instances,
// by NVRTC for a card, and by a C++ compiler for the emulator, which then puts its own definitions
// in place of those under `#ifndef CALLA_EMULATOR`.
//
// Dimensions (all positive integers unless said otherwise): HIDDEN, VOCAB, CANDIDATES, HEADS, KV_HEADS,
// HEAD_DIM, ROTARY_DIMS, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, CONV_TAPS, EXPERTS, TOPK,
// EXPERT_WIDTH, SHARED_WIDTH, RENORMALISE (0 or 1), NORM_EPS (float), PAGE_TOKENS, ATTENTION_LAYERS,
// DELTA_LAYERS, GROUP (inputs that share a scale and a bias: 32 or 64), PIECES (halves that
// make up an activation: 1 by default, 2 in exact mode), KV_FLOAT (0: keys and values are cached as
// half, 1: as float). A dense model has EXPERTS 0.
//
// STAMPS is defined where a profile is taken: so many kernels of a pass note when their inputs are
// there.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define NONE 0xffffffffu // no sequence, no expert: the row is padding
#define WARP 32

#ifndef CALLA_EMULATOR

#define KERNEL extern "C" __global__
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
// Shared memory whose size the launch gives, aligned for whatever lies there. One a kernel.
#define SHARED_DYNAMIC(name) extern __shared__ __align__(1024) u8 name[]

// ---- half ------------------------------------------------------------------------------------

DEVICE u16 half_from(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

DEVICE float half_to(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

// Two halves in a word, element by element; `low` stands in the low 16 bits.
DEVICE u32 half2_from(float low, float high) {
    u32 h;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
    return h;
}

DEVICE u32 half2_sub(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

DEVICE u32 half2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// a & mask | bits, in one instruction.
template <u32 MASK, u32 BITS>
DEVICE u32 and_or(u32 a) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "n"(MASK), "n"(BITS));
    return d;
}

// Bytes of the eight in (low, high), picked by the nibbles of `selector`, low first.
DEVICE u32 pick_bytes(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }

// ---- matrix units ----------------------------------------------------------------------------

// d += a·b for a warp: a is [16, 16] half, b [16, 8] half, d [16, 8] float. With g = lane / 4 and
// t = lane % 4 a lane holds
//   a[0]: a[g, 2t..2t+2]    a[1]: a[g+8, 2t..2t+2]    a[2]: a[g, 2t+8..2t+10]    a[3]: a[g+8, 2t+8..]
//   b[0]: b[2t..2t+2, g]    b[1]: b[2t+8..2t+10, g]
//   d[0], d[1]: d[g, 2t..2t+2]    d[2], d[3]: d[g+8, 2t..2t+2]
DEVICE void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of halves: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes), and
// gets of matrix i elements [l/4, 2*(l%4)..+2] in d[i] (of the transposed matrix with TRANSPOSED).
template <bool TRANSPOSED>
DEVICE void load_matrices(u32 (&d)[4], const void* row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(address) : "memory");
}

// Transpose of an 8x8 matrix of halves of which lane l has elements [l/4, 2*(l%4)..+2].
DEVICE u32 transpose_matrix(u32 a) {
    u32 d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// 2^x to about 2 units in the last place; what is not a normal float is zero.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- memory ----------------------------------------------------------------------------------

// Starts a copy of 16 bytes from global to shared memory; both aligned. Zeros instead when !valid.
DEVICE void copy_async(void* shared, const void* global, bool valid = true) {
    u32 address = (u32)__cvta_generic_to_shared(shared);
    u32 bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(global), "r"(bytes) : "memory");
}
// The same for 8 bytes.
DEVICE void copy_async_8(void* shared, const void* global) {
    u32 address = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(address), "l"(global) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of this thread's committed groups are under way.
template <int PENDING>
DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

// A run of memory on its way to shared memory by the copy engine: one thread asks for it, and loads do
// not queue behind it as they do behind copy_async. An arrival is a word in shared memory that says when
// all that was asked for under it is there; it serves once.
#if __CUDA_ARCH__ >= 900
#define BULK_COPIES 1
#else
#define BULK_COPIES 0
#endif

// Makes one, by the thread that then starts it; this takes longer than all the rest.
DEVICE void arrival_init(u64* arrival) {
#if BULK_COPIES
    u32 address = (u32)__cvta_generic_to_shared(arrival);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Expects `bytes` of copies; by the thread that then asks for them.
DEVICE void arrival_start(u64* arrival, u32 bytes) {
#if BULK_COPIES
    u32 address = (u32)__cvta_generic_to_shared(arrival);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(address), "r"(bytes)
                 : "memory");
#endif
}
// `bytes` is a multiple of 16, both addresses are aligned so.
DEVICE void copy_bulk(void* shared, const void* global, u32 bytes, u64* arrival) {
#if BULK_COPIES
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"((u32)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes),
                    "r"((u32)__cvta_generic_to_shared(arrival)) : "memory");
#endif
}
// In any thread that knows it to be made (by a barrier). A block must not end before its copies.
DEVICE void arrival_wait(u64* arrival) {
#if BULK_COPIES
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], 0;\n"
                 "@there bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" :: "r"((u32)__cvta_generic_to_shared(arrival)) : "memory");
#endif
}

// 16 bytes that are read once: weights. They do not push others out of the L1 cache.
DEVICE uint4 load_once(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

DEVICE uint2 load_once(const uint2* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

// ---- the chain of kernels --------------------------------------------------------------------

// Waits for the kernels before this one: nothing that they write may be read (but by
// await_hand_on), and nothing that they read or write may be written, before. Every kernel calls it once,
// in every thread. What no kernel of a pass writes may be read before: weights, the plan, and what earlier
// passes left in states and KV pages. Kernels far ahead may still be running then.
DEVICE void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel start up; it still waits for this one's end in wait_for_inputs.
DEVICE void start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A word by which a kernel hands on what it has written, before it ends, to the kernel behind it. Who
// awaits it cannot keep the writer from running: a kernel starts when all blocks of the one before have
// started, and called start_next or ended.
DEVICE void hand_on(u32* word, u32 value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(word), "r"(value) : "memory");
}
DEVICE void await_hand_on(const u32* word, u32 value) {
    u32 is;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is) : "l"(word) : "memory");
    while (is != value);
}

// ---- time ------------------------------------------------------------------------------------

#ifdef STAMPS
__device__ u64* stamps_at; // written by the host when the module is loaded
DEVICE u64* stamps() { return stamps_at; }

// Nanoseconds, the same on all multiprocessors.
DEVICE u64 time_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time) :: "memory");
    return time;
}
#endif

#endif // CALLA_EMULATOR

// ---- both ------------------------------------------------------------------------------------

#ifdef STAMPS
// Where the launch notes its time, for the grid's first thread:
//
//   stamps() [1 + STAMPS] u64: launches so far, then a time each, in any order
//
// Times tell the order of launches, since each waits for the one before it; so a place can be taken
// beforehand, and nothing is waited for between the end of the last kernel and this one's work.
DEVICE u64* take_stamp() {
    if (threadIdx.x != 0 || blockIdx.x != 0 || blockIdx.y != 0 || blockIdx.z != 0) return nullptr;
    u64 place = atomicAdd(stamps(), 1ull);
    return place < STAMPS ? stamps() + 1 + place : nullptr;
}
DEVICE void stamp(u64* place) {
    if (place) *place = time_ns();
}
#define wait_for_inputs()             \
    do {                              \
        u64* place_ = take_stamp();   \
        wait_for_inputs();            \
        stamp(place_);                \
    } while (0)
#endif

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
DEVICE float float_from_bf16(u16 b) { return __uint_as_float((u32)b << 16); }

// Two numbers as halves and, times 2^11, what those rounded away.
DEVICE void split_halves(u32& first, u32& rest, float low, float high) {
    first = half2_from(low, high);
    rest = half2_from((low - half_to((u16)first)) * 2048.0f, (high - half_to((u16)(first >> 16))) * 2048.0f);
}

// 8 neighbouring floats, 16-byte aligned; zeros where not `valid`.
DEVICE void load_octet(float (&y)[8], const float* from, bool valid = true) {
    float4 a = make_float4(0, 0, 0, 0), b = a;
    if (valid) a = ((const float4*)from)[0], b = ((const float4*)from)[1];
    y[0] = a.x, y[1] = a.y, y[2] = a.z, y[3] = a.w;
    y[4] = b.x, y[5] = b.y, y[6] = b.z, y[7] = b.w;
}

// Sum over the aligned runs of WIDTH lanes; every lane gets it.
template <int WIDTH = WARP>
DEVICE float lanes_sum(float x) {
    #pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <int WIDTH = WARP>
DEVICE float lanes_max(float x) {
    #pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// Sum over a block of THREADS; every thread gets it. All threads call it.
template <int THREADS>
DEVICE float block_sum(float x) {
    SHARED float partial[THREADS / WARP];
    x = lanes_sum(x);
    __syncthreads(); // an earlier call's readers are done
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < THREADS / WARP; i++) sum += partial[i];
    return sum;
}

// ---- activations -----------------------------------------------------------------------------

// How the input of a quantised matrix is held: as halves of a sixteenth, so that a million still
// fits, with the sums that the matrix's biases are multiplied with.
//
//   halves [PIECES][rows][width] u16   the second piece holds what the first rounded away, * 2^11
//   sums   [rows][width / GROUP] float of a group's elements, unrounded, a sixteenth as well
//
//   element = ACTIVATION_SCALE * (first + second * 2^-11)
//
// A half keeps its 11 bits down to 2^-10 here and ends at 2^-20. What does not fit is held at the
// largest half; what is not a number stays so.
//
// Within each run of 8, element i stands at place 2i for i < 4 and at 2(i - 4) + 1 otherwise: the
// order in which a word of eight 4-bit weights comes apart.
struct Activations {
    u16* halves;
    float* sums;
    u32 rows; // distance between pieces: the rows that the buffer has room for
};

#define ACTIVATION_SCALE 16.0f
#define HALF_MAX 65504.0f

DEVICE float held_half(float x) { return x > HALF_MAX ? HALF_MAX : x < -HALF_MAX ? -HALF_MAX : x; }

// Writes groups that lie in registers: each lane of a warp holds the 8 neighbouring elements from
// column `at` (a multiple of 8) on, and aligned runs of GROUP / 8 lanes hold one group. All lanes
// call it; those that are not `valid` write nothing, and a group is valid as a whole or not at all.
DEVICE void write_octet(Activations out, u32 row, u32 width, u32 at, const float (&x)[8],
                        bool valid) {
    float y[8], sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        y[i] = held_half(x[i] * (1.0f / ACTIVATION_SCALE));
        sum = __fadd_rn(sum, y[i]); // of y as it is, never fused with the product that made it
    }
    sum = lanes_sum<GROUP / 8>(sum);
    if (!valid) return;
    u32 first[4], second[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) // elements i and i + 4 are neighbours
        split_halves(first[i], second[i], y[i], y[i + 4]);
    u64 place = (u64)row * width + at;
    *(uint4*)(out.halves + place) = make_uint4(first[0], first[1], first[2], first[3]);
    if (PIECES == 2)
        *(uint4*)(out.halves + (u64)out.rows * width + place) =
            make_uint4(second[0], second[1], second[2], second[3]);
    if (at % GROUP == 0) out.sums[(u64)row * (width / GROUP) + at / GROUP] = sum;
}
