// Runs a CUDA kernel file on the CPU: what a C++ compiler needs in front of prelude.cu.
//
//   #define CALLA_EMULATOR + dimensions + this file + prelude.cu + kernel file + CALLA_KERNEL(name)...
//
// compiled with -std=c++20 -fno-strict-aliasing -ffp-contract=off by g++ or clang++ on Linux
// (x86-64, aarch64) gives a shared library with one `calla_launch_NAME` and one
// `calla_parameters_NAME` a kernel.
//
// The threads of a block are fibers of the calling thread; the blocks of a grid run one after the
// other. What a card leaves undefined is made to show:
//   - shared memory, and what a lane that is not there hands over, is poison: a NaN in any float
//     format, a wild index or address as an integer;
//   - a copy under way has destroyed its target, and arrives in copy_wait or arrival_wait, not before;
//   - a seed shuffles the order of threads between barriers, and of blocks: races show;
//   - barriers and warp operations that can never complete, that threads reach at different places,
//     or that lack lanes they need, and a thread that ends without wait_for_inputs, are errors that
//     say who waits where.
#if !defined(__linux__) || !(defined(__x86_64__) || defined(__aarch64__))
#error "the emulator of CUDA kernels runs on Linux, x86-64 or aarch64"
#endif

#include <link.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__F16C__)
#include <immintrin.h>
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---- words of the language -------------------------------------------------------------------

#define KERNEL extern "C" __attribute__((visibility("hidden")))
#define DEVICE static inline __attribute__((always_inline))
// All of a library's SHARED variables, and nothing else that is kept, make up its thread-local
// block, so that they can be poisoned together.
#define SHARED static thread_local
#define SHARED_DYNAMIC(name) u8* const name = emulator::self()->block->dynamic

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ SHARED
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#if !defined(__clang__)
#define __builtin_assume(condition) ((void)0)
#endif

#define EMULATOR_VECTOR2(NAME, T, ALIGN)                                                           \
    struct alignas(ALIGN) NAME {                                                                   \
        T x, y;                                                                                    \
    };                                                                                             \
    static inline NAME make_##NAME(T x, T y) { return NAME{x, y}; }
#define EMULATOR_VECTOR4(NAME, T, ALIGN)                                                           \
    struct alignas(ALIGN) NAME {                                                                   \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline NAME make_##NAME(T x, T y, T z, T w) { return NAME{x, y, z, w}; }
EMULATOR_VECTOR2(uchar2, u8, 2)
EMULATOR_VECTOR4(uchar4, u8, 4)
EMULATOR_VECTOR2(ushort2, u16, 4)
EMULATOR_VECTOR4(ushort4, u16, 8)
EMULATOR_VECTOR2(int2, int, 8)
EMULATOR_VECTOR4(int4, int, 16)
EMULATOR_VECTOR2(uint2, u32, 8)
EMULATOR_VECTOR4(uint4, u32, 16)
EMULATOR_VECTOR2(ulonglong2, u64, 16)
EMULATOR_VECTOR2(float2, float, 8)
EMULATOR_VECTOR4(float4, float, 16)
EMULATOR_VECTOR2(double2, double, 16)
struct uint3 {
    u32 x, y, z;
};
typedef uint3 dim3;

// ---- fibers ----------------------------------------------------------------------------------

// Saves the registers that a call must keep on the running stack, its pointer in *from, and goes on
// where the stack `to` was left.
extern "C" __attribute__((visibility("hidden"))) void calla_emulator_switch(void** from, void* to);

#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden calla_emulator_switch\n"
        ".globl calla_emulator_switch\n"
        ".type calla_emulator_switch, @function\n"
        "calla_emulator_switch:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  popq %rcx\n"
        "  jmpq *%rcx\n" // not `ret`: the processor's guess of where it goes would always be wrong
        ".size calla_emulator_switch, .-calla_emulator_switch\n");
#else
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden calla_emulator_switch\n"
        ".globl calla_emulator_switch\n"
        ".type calla_emulator_switch, %function\n"
        "calla_emulator_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  br x30\n"
        ".size calla_emulator_switch, .-calla_emulator_switch\n");
#endif

namespace emulator {

constexpr u32 LANES = 32;
constexpr u32 THREADS_MAX = 1024;
constexpr u32 DYNAMIC_MAX = 227 * 1024; // what sm_90 gives a block at most
constexpr u32 DYNAMIC_TAIL = 1024;      // behind it: must stay untouched
// Of a fiber: address space, of which few pages are touched. Three quarters are its own; a function
// whose variables take half of it is an error of the compiler, given -Wframe-larger-than=65536.
constexpr size_t STACK = 128 * 1024;

// Two bytes that make a NaN of a half, a bf16, a float and a double, a large u32 and no address.
constexpr u16 POISON = 0x7ff7;

static inline u8 poison_byte(const void* at) { return u8(size_t(at) & 1 ? POISON >> 8 : POISON); }
static inline void poison(void* at, size_t bytes) {
    u8 *to = (u8*)at, *end = to + bytes;
    for (; to < end && size_t(to) % 8; to++) *to = poison_byte(to);
    const u64 eight = POISON * 0x0001000100010001u;
    for (; end - to >= 8; to += 8) memcpy(to, &eight, 8);
    for (; to < end; to++) *to = poison_byte(to);
}

// Where in a kernel file a thread stands.
struct Place {
    const char* file;
    int line;
};

enum class Kind : u8 {
    None, Shuffle, ShuffleXor, ShuffleUp, ShuffleDown, Vote, Reduce, Match, SyncWarp, Mma,
    LoadMatrices,
    TransposeMatrix, Barrier
};
static inline const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::None: return "nothing";
        case Kind::Shuffle: return "__shfl_sync";
        case Kind::ShuffleXor: return "__shfl_xor_sync";
        case Kind::ShuffleUp: return "__shfl_up_sync";
        case Kind::ShuffleDown: return "__shfl_down_sync";
        case Kind::Vote: return "a vote (__ballot_sync, __any_sync, __all_sync)";
        case Kind::Reduce: return "__reduce_*_sync";
        case Kind::Match: return "__match_any_sync";
        case Kind::SyncWarp: return "__syncwarp";
        case Kind::Mma: return "mma_f16";
        case Kind::LoadMatrices: return "load_matrices";
        case Kind::TransposeMatrix: return "transpose_matrix";
        case Kind::Barrier: return "__syncthreads";
    }
    return "?";
}

// Computes what the lanes of `lanes` get, from what each gave; by the lane that came last.
typedef void (*Combine)(void* const (&operands)[LANES], u32 lanes);

// Lanes of a warp that wait for each other.
struct Meeting {
    u32 mask, arrived;
    Kind kind;
    bool whole; // needs all 32 lanes
    Combine combine;
    void* operands[LANES];
};

struct Warp {
    u32 live;
    u32 open; // meetings under way; each has a mask of its own
    Meeting meetings[LANES];
};

struct Copy {
    u8* to;
    u32 group, size;
    u8 bytes[16];
};

// What copy_bulk has under way for an arrival.
struct Arrival {
    const u64* word;
    u32 expected, asked; // bytes
    std::vector<std::pair<u8*, std::vector<u8>>> copies;
};

struct Block;

struct Thread {
    void* stack;
    Block* block;
    uint3 index;
    Kind waits_for;
    bool inputs_awaited;
    Place place;
    u32 mask;                  // of the warp operation it waits in
    int vote, result;          // of a barrier
    u32 committed, arrived;    // groups of copies
    std::vector<Copy>* copies; // under way
};

struct Block {
    const char* kernel;
    void (*entry)(void*);
    void* arguments;
    uint3 index, size, grid;
    u8* dynamic;
    u32 dynamic_bytes;
    u8* fixed; // the SHARED variables
    size_t fixed_bytes;
    u64* stamps; // of prelude.cu
    std::vector<Arrival> arrivals;

    u32 live;
    Thread* threads[THREADS_MAX];
    Warp warps[THREADS_MAX / LANES];
    u32 at_barrier;

    // A ring of the threads that can go on.
    u16 ready[THREADS_MAX];
    u32 first_ready, ready_count;

    u64 random; // state of the shuffle, 0 without
    void* launcher; // the stack of who called launch
    std::string error;
};

// The thread whose stack this is. Stacks lie at multiples of STACK; the offset at which a thread
// keeps its own data differs from stack to stack, or they would all compete for the same few lines
// of the cache.
static inline size_t thread_offset(size_t slot) {
    return STACK - 256 - (slot / STACK % 32) * 1088;
}
static inline __attribute__((always_inline)) Thread* self() {
    size_t pointer;
#if defined(__x86_64__)
    __asm__("movq %%rsp, %0" : "=r"(pointer));
#else
    __asm__("mov %0, sp" : "=r"(pointer));
#endif
    size_t slot = pointer & ~(STACK - 1);
    return (Thread*)(slot + thread_offset(slot));
}
static_assert(sizeof(Thread) <= 256);

static inline std::string text(const char* format, ...) {
    char buffer[512];
    va_list list;
    va_start(list, format);
    vsnprintf(buffer, sizeof buffer, format, list);
    va_end(list);
    return buffer;
}

static inline std::string text(Place place) {
    const char* name = strrchr(place.file, '/');
    return text("%s:%d", name ? name + 1 : place.file, place.line);
}

static inline std::string text_of_block(const Block& block) {
    return text("kernel `%s`, block (%u, %u, %u)", block.kernel, block.index.x, block.index.y,
                block.index.z);
}

// Ends the launch with an error of the running thread.
[[noreturn]] static __attribute__((noinline)) void fail(const std::string& what) {
    Thread* thread = self();
    Block* block = thread->block;
    block->error = text_of_block(*block) + text(", thread %u: ", thread->index.x) + what;
    calla_emulator_switch(&thread->stack, block->launcher);
    abort(); // nobody switches back
}

static inline u64 next_random(Block* block) {
    u64 x = block->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return block->random = x;
}

static inline void push_ready(Block* block, u32 thread) {
    block->ready[(block->first_ready + block->ready_count++) % THREADS_MAX] = u16(thread);
}

// Goes on with another thread, or with the launcher when none can.
static inline void yield_from(Thread* thread) {
    Block* block = thread->block;
    void* to = block->launcher;
    if (block->ready_count) {
        u32 first = block->first_ready;
        if (block->random) {
            u32 pick = (first + next_random(block) % block->ready_count) % THREADS_MAX;
            std::swap(block->ready[first], block->ready[pick]);
        }
        Thread* next = block->threads[block->ready[first]];
        block->first_ready = (first + 1) % THREADS_MAX;
        block->ready_count--;
        if (next == thread) return;
        to = next->stack;
    }
    calla_emulator_switch(&thread->stack, to);
}

// Lets the others of a completed meeting or barrier go on; with a shuffled order, perhaps before the
// thread that completed it.
static inline void release(Block* block, u32 thread) {
    block->threads[thread]->waits_for = Kind::None;
    push_ready(block, thread);
}
static inline void go_on(Thread* thread) {
    thread->waits_for = Kind::None;
    if (!thread->block->random) return;
    push_ready(thread->block, thread->index.x);
    yield_from(thread);
}

// ---- warp operations -------------------------------------------------------------------------

// Completes a meeting if all its lanes are there; `thread` is the one that came, or that ended.
static inline bool complete(Thread* thread, Warp* warp, Meeting* meeting) {
    u32 needed = meeting->mask & warp->live;
    if ((meeting->arrived & needed) != needed) return false;
    if (meeting->whole && meeting->arrived != 0xffffffffu) {
        const Thread* first =
            thread->block->threads[thread->index.x / LANES * LANES + __builtin_ctz(meeting->arrived)];
        fail(text("%s at %s needs all 32 lanes of the warp: it has those of mask 0x%08x",
                  name_of(meeting->kind), text(first->place).c_str(), meeting->arrived));
    }
    meeting->combine(meeting->operands, meeting->arrived);
    Block* block = thread->block;
    u32 first = thread->index.x / LANES * LANES;
    for (u32 lanes = meeting->arrived; lanes; lanes &= lanes - 1) {
        u32 other = first + __builtin_ctz(lanes);
        if (other != thread->index.x) release(block, other);
    }
    Meeting* last = &warp->meetings[--warp->open];
    if (last != meeting) *meeting = *last;
    return true;
}

static __attribute__((noinline)) void meet(Kind kind, u32 mask, bool whole, Combine combine,
                                           void* operand, Place place) {
    Thread* thread = self();
    u32 lane = thread->index.x % LANES;
    Warp* warp = &thread->block->warps[thread->index.x / LANES];
    if (!(mask >> lane & 1))
        fail(text("%s at %s: the mask 0x%08x lacks lane %u, which calls it", name_of(kind),
                  text(place).c_str(), mask, lane));
    Meeting* meeting = warp->meetings;
    while (meeting < warp->meetings + warp->open && meeting->mask != mask) meeting++;
    if (meeting == warp->meetings + warp->open) {
        warp->open++;
        meeting->mask = mask;
        meeting->arrived = 0;
        meeting->kind = kind;
        meeting->whole = whole;
        meeting->combine = combine;
    }
    if (meeting->kind != kind || meeting->combine != combine) {
        u32 other = thread->index.x / LANES * LANES + __builtin_ctz(meeting->arrived);
        fail(text("%s at %s, while thread %u of the same warp waits with the same mask 0x%08x in %s "
                  "at %s",
                  name_of(kind), text(place).c_str(), other, mask, name_of(meeting->kind),
                  text(thread->block->threads[other]->place).c_str()));
    }
    meeting->operands[lane] = operand;
    meeting->arrived |= 1u << lane;
    thread->place = place;
    thread->mask = mask;
    thread->waits_for = kind;
    if (complete(thread, warp, meeting))
        go_on(thread);
    else
        yield_from(thread);
}

struct Shuffled {
    u64 value, result;
    u32 from; // lane
};
static inline void combine_shuffle(void* const (&operands)[LANES], u32 lanes) {
    for (u32 left = lanes; left; left &= left - 1) {
        Shuffled* mine = (Shuffled*)operands[__builtin_ctz(left)];
        if (lanes >> mine->from & 1)
            mine->result = ((Shuffled*)operands[mine->from])->value;
        else
            poison(&mine->result, sizeof mine->result);
    }
}
template <class T>
static inline T shuffle(Kind kind, u32 mask, T value, u32 from, Place place) {
    static_assert(sizeof(T) <= 8 && std::is_arithmetic_v<T>);
    Shuffled operand = {0, 0, from};
    memcpy(&operand.value, &value, sizeof value);
    meet(kind, mask, false, combine_shuffle, &operand, place);
    memcpy(&value, &operand.result, sizeof value);
    return value;
}

struct Voted {
    u32 value, result;
};
static inline void combine_vote(void* const (&operands)[LANES], u32 lanes) {
    u32 votes = 0;
    for (u32 left = lanes; left; left &= left - 1) {
        u32 lane = __builtin_ctz(left);
        votes |= u32(((Voted*)operands[lane])->value != 0) << lane;
    }
    for (u32 left = lanes; left; left &= left - 1)
        ((Voted*)operands[__builtin_ctz(left)])->result = votes;
}
static inline u32 vote(u32 mask, int predicate, Place place) {
    Voted operand = {u32(predicate != 0), 0};
    meet(Kind::Vote, mask, false, combine_vote, &operand, place);
    return operand.result;
}

static inline void combine_match(void* const (&operands)[LANES], u32 lanes) {
    for (u32 left = lanes; left; left &= left - 1) {
        Shuffled* mine = (Shuffled*)operands[__builtin_ctz(left)];
        mine->result = 0;
        for (u32 others = lanes; others; others &= others - 1) {
            u32 lane = __builtin_ctz(others);
            if (((Shuffled*)operands[lane])->value == mine->value) mine->result |= 1u << lane;
        }
    }
}

template <class T, T (*OPERATE)(T, T)>
static void combine_reduce(void* const (&operands)[LANES], u32 lanes) {
    T total = *(T*)operands[__builtin_ctz(lanes)];
    for (u32 left = lanes & (lanes - 1); left; left &= left - 1)
        total = OPERATE(total, *(T*)operands[__builtin_ctz(left)]);
    for (u32 left = lanes; left; left &= left - 1) *(T*)operands[__builtin_ctz(left)] = total;
}
template <class T, T (*OPERATE)(T, T)>
static inline T reduce(u32 mask, T value, Place place) {
    meet(Kind::Reduce, mask, false, combine_reduce<T, OPERATE>, &value, place);
    return value;
}

static inline void combine_nothing(void* const (&)[LANES], u32) {}

// ---- barriers --------------------------------------------------------------------------------

static inline bool complete_barrier(Thread* thread) {
    Block* block = thread->block;
    if (block->at_barrier != block->live) return false;
    Thread* first = nullptr;
    int votes = 0;
    for (u32 i = 0; i < block->size.x; i++) {
        Thread* other = block->threads[i];
        if (other->waits_for != Kind::Barrier) continue;
        if (!first) first = other;
        if (other->place.line != first->place.line || strcmp(other->place.file, first->place.file))
            fail(text("a barrier that threads reach at different places: thread %u at %s, thread %u "
                      "at %s",
                      first->index.x, text(first->place).c_str(), other->index.x,
                      text(other->place).c_str()));
        votes += other->vote;
    }
    block->at_barrier = 0;
    for (u32 i = 0; i < block->size.x; i++) {
        Thread* other = block->threads[i];
        if (other->waits_for != Kind::Barrier) continue;
        other->result = votes;
        if (other != thread) release(block, i);
    }
    return true;
}

// Waits for all threads of the block; the number of those with a true predicate.
static __attribute__((noinline)) int barrier(int predicate, Place place) {
    Thread* thread = self();
    thread->place = place;
    thread->vote = predicate != 0;
    thread->mask = 0;
    thread->waits_for = Kind::Barrier;
    thread->block->at_barrier++;
    if (complete_barrier(thread))
        go_on(thread);
    else
        yield_from(thread);
    return thread->result;
}

// ---- a launch --------------------------------------------------------------------------------

// What a fiber runs.
[[noreturn]] static void thread_main() {
    Thread* thread = self();
    Block* block = thread->block;
    block->entry(block->arguments);
    if (!thread->inputs_awaited)
        fail("ended without wait_for_inputs(): the next kernel may start before this one's inputs "
             "are there");
    u32 lane = thread->index.x % LANES;
    Warp* warp = &block->warps[thread->index.x / LANES];
    warp->live &= ~(1u << lane);
    block->live--;
    for (u32 i = 0; i < warp->open;)
        if (!(warp->meetings[i].mask >> lane & 1) || !complete(thread, warp, &warp->meetings[i])) i++;
    if (block->live) complete_barrier(thread);
    yield_from(thread);
    abort(); // an ended thread is never ready
}

// Threads that all wait, in words: how many wait for the same at the same place, and the first.
static inline std::string waiting(const Block& block) {
    std::vector<std::pair<const Thread*, u32>> groups;
    for (u32 i = 0; i < block.size.x; i++) {
        const Thread* thread = block.threads[i];
        if (thread->waits_for == Kind::None) continue; // ended
        auto same = [&](const std::pair<const Thread*, u32>& group) {
            const Thread* other = group.first;
            return other->waits_for == thread->waits_for && other->mask == thread->mask &&
                   other->place.line == thread->place.line;
        };
        auto group = std::find_if(groups.begin(), groups.end(), same);
        if (group == groups.end())
            groups.push_back({thread, 1});
        else
            group->second++;
    }
    std::string said;
    for (size_t i = 0; i < groups.size() && i < 8; i++) {
        const Thread* thread = groups[i].first;
        said += text("; %u of them (thread %u first) in %s at %s", groups[i].second, thread->index.x,
                     name_of(thread->waits_for), text(thread->place).c_str());
        if (thread->waits_for != Kind::Barrier) said += text(", mask 0x%08x", thread->mask);
    }
    return said;
}

// What a launch needs and the next one can have again.
struct Machine {
    Block block;
    u8* stacks = nullptr;
    u8* mapping = nullptr;
    std::vector<Copy> copies[THREADS_MAX];
    std::unique_ptr<u8[]> dynamic{new u8[DYNAMIC_MAX + DYNAMIC_TAIL + 32]};

    static constexpr size_t MAPPED = (THREADS_MAX + 2) * STACK; // one below, one to align

    bool start() {
        void* at = mmap(nullptr, MAPPED, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return false;
        madvise(at, MAPPED, MADV_NOHUGEPAGE);
        mapping = (u8*)at;
        stacks = (u8*)((size_t(at) + STACK - 1) & ~(STACK - 1)) + STACK;
        return true;
    }
    ~Machine() {
        if (mapping) munmap(mapping, MAPPED);
    }

    void start_thread(u32 i) {
        size_t slot = size_t(stacks + i * STACK);
        Thread* thread = (Thread*)(slot + thread_offset(slot));
        memset((void*)thread, 0, sizeof *thread);
        thread->block = &block;
        thread->index = {i, 0, 0};
        copies[i].clear();
        thread->copies = &copies[i];
        // As calla_emulator_switch leaves a stack, with thread_main as the place to go on.
        void** top = (void**)(size_t(thread) & ~size_t(63));
#if defined(__x86_64__)
        *--top = nullptr; // the return address that a called function finds
        *--top = (void*)thread_main;
        top -= 6;
        memset(top, 0, 6 * sizeof *top);
#else
        top -= 20;
        memset(top, 0, 20 * sizeof *top);
        top[11] = (void*)thread_main;
#endif
        thread->stack = top;
        block.threads[i] = thread;
    }

    void run_block() {
        u32 threads = block.size.x;
        poison(block.fixed, block.fixed_bytes);
        poison(block.dynamic, block.dynamic_bytes + DYNAMIC_TAIL);
        block.live = threads;
        block.at_barrier = 0;
        block.first_ready = block.ready_count = 0;
        block.arrivals.clear();
        for (u32 warp = 0; warp * LANES < threads; warp++) {
            u32 lanes = std::min(threads - warp * LANES, LANES);
            block.warps[warp].live = lanes == LANES ? 0xffffffffu : (1u << lanes) - 1;
            block.warps[warp].open = 0;
        }
        for (u32 i = 0; i < threads; i++) {
            start_thread(i);
            push_ready(&block, i);
        }
        u32 first = block.random ? u32(next_random(&block) % threads) : 0;
        std::swap(block.ready[0], block.ready[first]);
        block.first_ready = 1;
        block.ready_count--;
        calla_emulator_switch(&block.launcher, block.threads[block.ready[0]]->stack);
        if (!block.error.empty()) return;
        if (block.live) {
            block.error = text_of_block(block) +
                          text(": %u threads wait for ever", block.live) + waiting(block);
            return;
        }
        for (const Arrival& arrival : block.arrivals)
            if (!arrival.copies.empty()) {
                block.error = text_of_block(block) + ": ends before what copy_bulk has under way";
                return;
            }
        const u8* tail = block.dynamic + block.dynamic_bytes;
        for (u32 i = 0; i < DYNAMIC_TAIL; i++)
            if (tail[i] != poison_byte(tail + i)) {
                block.error = text_of_block(block) +
                              text(": writes behind the %u bytes of dynamic shared memory of the "
                                   "launch, at %u",
                                   block.dynamic_bytes, block.dynamic_bytes + i);
                return;
            }
    }
};

// Machines nobody uses at the moment.
static std::mutex idle_lock;
static std::vector<std::unique_ptr<Machine>> idle;

// Also makes sure that there is a thread-local block: an error text, until this thread's next launch.
static thread_local char last_error[2048];

// Finds this library's thread-local block.
static inline int find_fixed(struct dl_phdr_info* info, size_t, void* data) {
    Block* block = (Block*)data;
    const ElfW(Phdr)* tls = nullptr;
    bool here = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& part = info->dlpi_phdr[i];
        if (part.p_type == PT_TLS) tls = &part;
        if (part.p_type == PT_LOAD)
            here |= size_t(thread_main) - (info->dlpi_addr + part.p_vaddr) < part.p_memsz;
    }
    if (!here) return 0;
    if (tls && info->dlpi_tls_data) {
        block->fixed = (u8*)info->dlpi_tls_data;
        block->fixed_bytes = tls->p_memsz;
    }
    return 1;
}

static inline const char* answer(const std::string& error) {
    if (error.empty()) return nullptr;
    snprintf(last_error, sizeof last_error, "%s", error.c_str());
    return last_error;
}

static const char* launch_entry(const char* kernel, void (*entry)(void*), void* arguments,
                                const u32* grid, u32 threads, u32 shared, u64 seed, u64* stamps) {
    auto wrong = [&](const std::string& what) {
        return answer(text("kernel `%s`: ", kernel) + what);
    };
    if (threads < 1 || threads > THREADS_MAX)
        return wrong(text("%u threads a block: 1 to %u are possible", threads, THREADS_MAX));
    if (shared > DYNAMIC_MAX)
        return wrong(text("%u bytes of dynamic shared memory: at most %u are possible", shared,
                          DYNAMIC_MAX));
    if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[0] > 0x7fffffffu || grid[1] > 0xffffu ||
        grid[2] > 0xffffu)
        return wrong(text("a grid of (%u, %u, %u): at least 1 each, and at most (2147483647, 65535, "
                          "65535)",
                          grid[0], grid[1], grid[2]));

    std::unique_ptr<Machine> machine;
    {
        std::lock_guard<std::mutex> lock(idle_lock);
        if (!idle.empty()) {
            machine = std::move(idle.back());
            idle.pop_back();
        }
    }
    if (!machine) {
        machine.reset(new Machine);
        if (!machine->start()) return wrong("no address space for the threads' stacks");
    }
    *(volatile char*)last_error = 0;
    Block& block = machine->block;
    block.kernel = kernel;
    block.entry = entry;
    block.arguments = arguments;
    block.size = {threads, 1, 1};
    block.grid = {grid[0], grid[1], grid[2]};
    block.dynamic = (u8*)((size_t(machine->dynamic.get()) + 15) & ~size_t(15));
    block.dynamic_bytes = shared;
    block.fixed = nullptr;
    block.fixed_bytes = 0;
    block.stamps = stamps;
    block.error.clear();
    block.random = seed ? seed * 0x9e3779b97f4a7c15u | 1 : 0;
    dl_iterate_phdr(find_fixed, &block);
    if (!block.fixed) return wrong("the emulator cannot find its own thread-local block");

    u64 blocks = u64(grid[0]) * grid[1] * grid[2];
    u64 at = block.random ? next_random(&block) % blocks : 0;
    u64 step = 1; // a step without a common divisor visits every block once
    if (block.random) {
        step = next_random(&block) % blocks + 1;
        auto divisor = [](u64 a, u64 b) {
            while (b) std::swap(a %= b, b);
            return a;
        };
        while (divisor(step, blocks) != 1) step++;
    }
    for (u64 i = 0; i < blocks && block.error.empty(); i++, at = (at + step) % blocks) {
        block.index = {u32(at % grid[0]), u32(at / grid[0] % grid[1]), u32(at / grid[0] / grid[1])};
        machine->run_block();
    }
    const char* error = answer(block.error);
    std::lock_guard<std::mutex> lock(idle_lock);
    idle.push_back(std::move(machine));
    return error;
}

template <class... P>
static const char* launch(const char* name, void (*kernel)(P...), void** values, const u32* grid,
                          u32 threads, u32 shared, u64 seed, u64* stamps) {
    typedef std::tuple<std::remove_cv_t<P>...> Arguments;
    struct Call {
        void (*kernel)(P...);
        Arguments arguments;
    } call;
    call.kernel = kernel;
    std::apply(
        [&](auto&... argument) {
            size_t i = 0;
            (memcpy((void*)&argument, values[i++], sizeof argument), ...);
            (void)i;
        },
        call.arguments);
    auto entry = [](void* data) {
        Call* call = (Call*)data;
        std::apply(call->kernel, call->arguments);
    };
    return launch_entry(name, entry, &call, grid, threads, shared, seed, stamps);
}

static inline bool in_shared(const void* at, size_t bytes) {
    const Block* block = self()->block;
    auto within = [&](const u8* start, size_t length) {
        size_t offset = size_t(at) - size_t(start);
        return offset < length && length - offset >= bytes;
    };
    return within(block->dynamic, block->dynamic_bytes) || within(block->fixed, block->fixed_bytes);
}

static inline void need_shared(const char* who, const void* at, Place place, u32 bytes = 16) {
    if (!in_shared(at, bytes) || size_t(at) % bytes)
        fail(text("%s at %s: %p is no %u-byte aligned place in shared memory", who,
                  text(place).c_str(), at, bytes));
}
static inline void need_aligned(const char* who, const void* at, Place place, u32 bytes = 16) {
    if (size_t(at) % bytes)
        fail(text("%s at %s: the address %p is not %u-byte aligned", who, text(place).c_str(), at,
                  bytes));
}

} // namespace emulator

#if defined(EMULATOR_CHECKS)
// What code compiled with -fsanitize=alignment,bounds,shift,integer-divide-by-zero calls: a vector
// access that is not aligned to its size, which a card traps on, an index outside of an array whose
// size the kernel states, a shift by a word's width or more, a division by zero.
namespace emulator {
struct Check {
    const char* file;
    u32 line, column;
};
[[noreturn]] static inline void fail_check(const void* data, const char* what, u64 value) {
    const Check* check = (const Check*)data;
    fail(text("%s (0x%llx) at ", what, value) + text(Place{check->file, int(check->line)}));
}
} // namespace emulator
#define EMULATOR_HANDLER extern "C" __attribute__((visibility("hidden"))) void
EMULATOR_HANDLER __ubsan_handle_type_mismatch_v1(void* data, void* address) {
    emulator::fail_check(data, "an address that is not aligned", size_t(address));
}
EMULATOR_HANDLER __ubsan_handle_out_of_bounds(void* data, void* index) {
    emulator::fail_check(data, "an index outside of its array", size_t(index));
}
EMULATOR_HANDLER __ubsan_handle_shift_out_of_bounds(void* data, void*, void* by) {
    emulator::fail_check(data, "a shift by too much", size_t(by));
}
EMULATOR_HANDLER __ubsan_handle_divrem_overflow(void* data, void* dividend, void*) {
    emulator::fail_check(data, "a division by zero", size_t(dividend));
}
#endif

namespace emulator {

// Sizes of a kernel's parameters.
template <class... P>
static const u32* parameters(void (*)(P...), u32* count) {
    static const u32 sizes[] = {u32(sizeof(P))..., 0};
    *count = sizeof...(P);
    return sizes;
}

} // namespace emulator

// Where a thread that touched memory that is not there goes on: a signal handler sends it here, with
// the address, or ~0 where the processor gave none.
extern "C" __attribute__((visibility("default"), noreturn)) void calla_fault(size_t address) {
    using namespace emulator;
    const Place& place = self()->place;
    std::string what = address + 1 ? text("reads or writes 0x%zx, where no memory is", address)
                                   : text("reads or writes where no address can be: perhaps poison");
    fail(what + (place.file ? "; it has passed " + text(place) : ""));
}

#define CALLA_KERNEL(NAME)                                                                         \
    extern "C" __attribute__((visibility("default"))) const unsigned* calla_parameters_##NAME(     \
        unsigned* count) {                                                                         \
        return emulator::parameters(NAME, count);                                                  \
    }                                                                                              \
    extern "C" __attribute__((visibility("default"))) const char* calla_launch_##NAME(             \
        void** values, const unsigned grid[3], unsigned threads, unsigned shared,                  \
        unsigned long long seed, unsigned long long* stamps) {                                     \
        return emulator::launch(#NAME, NAME, values, grid, threads, shared, seed, stamps);         \
    }

// The place of the call that has this as its last argument's default.
#define EMULATOR_HERE emulator::Place place = {__builtin_FILE(), __builtin_LINE()}

#define threadIdx (emulator::self()->index)
#define blockIdx (emulator::self()->block->index)
#define blockDim (emulator::self()->block->size)
#define gridDim (emulator::self()->block->grid)
#define warpSize 32

// ---- synchronisation and lanes ---------------------------------------------------------------

static inline void __syncthreads(EMULATOR_HERE) { emulator::barrier(0, place); }
static inline int __syncthreads_count(int p, EMULATOR_HERE) { return emulator::barrier(p, place); }
static inline int __syncthreads_or(int p, EMULATOR_HERE) { return emulator::barrier(p, place) != 0; }
static inline int __syncthreads_and(int p, EMULATOR_HERE) { return emulator::barrier(!p, place) == 0; }
static inline void __syncwarp(u32 mask = 0xffffffffu, EMULATOR_HERE) {
    emulator::meet(emulator::Kind::SyncWarp, mask, false, emulator::combine_nothing, nullptr, place);
}

template <class T>
static inline T __shfl_sync(u32 mask, T value, int from, int width = 32, EMULATOR_HERE) {
    u32 lane = threadIdx.x % 32, inner = width - 1;
    return emulator::shuffle(emulator::Kind::Shuffle, mask, value, (lane & ~inner) | (from & inner),
                             place);
}
template <class T>
static inline T __shfl_xor_sync(u32 mask, T value, int bits, int width = 32, EMULATOR_HERE) {
    u32 lane = threadIdx.x % 32, from = lane ^ bits;
    if (from > (lane | u32(width - 1))) from = lane;
    return emulator::shuffle(emulator::Kind::ShuffleXor, mask, value, from, place);
}
template <class T>
static inline T __shfl_up_sync(u32 mask, T value, u32 step, int width = 32, EMULATOR_HERE) {
    u32 lane = threadIdx.x % 32, first = lane & ~u32(width - 1);
    return emulator::shuffle(emulator::Kind::ShuffleUp, mask, value,
                             lane - first >= step ? lane - step : lane, place);
}
template <class T>
static inline T __shfl_down_sync(u32 mask, T value, u32 step, int width = 32, EMULATOR_HERE) {
    u32 lane = threadIdx.x % 32, last = lane | u32(width - 1);
    return emulator::shuffle(emulator::Kind::ShuffleDown, mask, value,
                             last - lane >= step ? lane + step : lane, place);
}

static inline u32 __ballot_sync(u32 mask, int predicate, EMULATOR_HERE) {
    return emulator::vote(mask, predicate, place);
}
static inline int __any_sync(u32 mask, int predicate, EMULATOR_HERE) {
    return emulator::vote(mask, predicate, place) != 0;
}
static inline int __all_sync(u32 mask, int predicate, EMULATOR_HERE) {
    return emulator::vote(mask, !predicate, place) == 0;
}
template <class T>
static inline u32 __match_any_sync(u32 mask, T value, EMULATOR_HERE) {
    static_assert(sizeof(T) <= 8);
    emulator::Shuffled operand = {0, 0, 0};
    memcpy(&operand.value, &value, sizeof value);
    emulator::meet(emulator::Kind::Match, mask, false, emulator::combine_match, &operand, place);
    return u32(operand.result);
}

namespace emulator {
template <class T> static inline T sum_of(T a, T b) { return a + b; }
template <class T> static inline T least_of(T a, T b) { return a < b ? a : b; }
template <class T> static inline T largest_of(T a, T b) { return a > b ? a : b; }
static inline u32 and_of(u32 a, u32 b) { return a & b; }
static inline u32 or_of(u32 a, u32 b) { return a | b; }
static inline u32 xor_of(u32 a, u32 b) { return a ^ b; }
} // namespace emulator
#define EMULATOR_REDUCE(NAME, T, OPERATE)                                                          \
    static inline T NAME(u32 mask, T value, EMULATOR_HERE) {                                       \
        return emulator::reduce<T, emulator::OPERATE>(mask, value, place);                         \
    }
EMULATOR_REDUCE(__reduce_add_sync, u32, sum_of<u32>)
EMULATOR_REDUCE(__reduce_add_sync, int, sum_of<int>)
EMULATOR_REDUCE(__reduce_min_sync, u32, least_of<u32>)
EMULATOR_REDUCE(__reduce_min_sync, int, least_of<int>)
EMULATOR_REDUCE(__reduce_max_sync, u32, largest_of<u32>)
EMULATOR_REDUCE(__reduce_max_sync, int, largest_of<int>)
EMULATOR_REDUCE(__reduce_and_sync, u32, and_of)
EMULATOR_REDUCE(__reduce_or_sync, u32, or_of)
EMULATOR_REDUCE(__reduce_xor_sync, u32, xor_of)

// ---- atomics, memory, bits -------------------------------------------------------------------

#define EMULATOR_ATOMIC(NAME, EXPRESSION)                                                          \
    template <class T>                                                                             \
    static inline T NAME(T* at, std::type_identity_t<T> value) {                                   \
        static_assert(std::is_integral_v<T> && sizeof(T) >= 4, "integers: floats have no one order"); \
        T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                             \
        while (!__atomic_compare_exchange_n(at, &old, T(EXPRESSION), false, __ATOMIC_SEQ_CST,      \
                                            __ATOMIC_SEQ_CST)) {                                   \
        }                                                                                          \
        return old;                                                                                \
    }
EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicMax, old > value ? old : value)
EMULATOR_ATOMIC(atomicMin, old < value ? old : value)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicExch, value)
EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
template <class T>
static inline T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T> static inline T __ldg(const T* at) { return *at; }
template <class T> static inline T __ldcg(const T* at) { return *at; }
template <class T> static inline T __ldcs(const T* at) { return *at; }
template <class T> static inline void __stcg(T* at, std::type_identity_t<T> value) { *at = value; }
template <class T> static inline void __stcs(T* at, std::type_identity_t<T> value) { *at = value; }

static inline int __popc(u32 x) { return __builtin_popcount(x); }
static inline int __popcll(u64 x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline u32 __brev(u32 x) {
    u32 y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
static inline u32 __byte_perm(u32 low, u32 high, u32 selector) {
    u64 bytes = u64(high) << 32 | low;
    u32 picked = 0;
    for (int i = 0; i < 4; i++) {
        u32 nibble = selector >> (4 * i) & 15, byte = u32(bytes >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0; // its sign, eight times
        picked |= byte << (8 * i);
    }
    return picked;
}
static inline u32 __umulhi(u32 a, u32 b) { return u32(u64(a) * b >> 32); }
static inline u32 __funnelshift_l(u32 low, u32 high, u32 shift) {
    return u32((u64(high) << 32 | low) << (shift & 31) >> 32);
}
static inline u32 __funnelshift_r(u32 low, u32 high, u32 shift) {
    return u32((u64(high) << 32 | low) >> (shift & 31));
}

#define EMULATOR_BITS(NAME, TO, FROM)                                                              \
    static inline TO NAME(FROM x) {                                                                \
        TO y;                                                                                      \
        static_assert(sizeof x == sizeof y);                                                       \
        memcpy(&y, &x, sizeof y);                                                                  \
        return y;                                                                                  \
    }
EMULATOR_BITS(__float_as_uint, u32, float)
EMULATOR_BITS(__float_as_int, int, float)
EMULATOR_BITS(__uint_as_float, float, u32)
EMULATOR_BITS(__int_as_float, float, int)
EMULATOR_BITS(__double_as_longlong, long long, double)
EMULATOR_BITS(__longlong_as_double, double, long long)

// ---- arithmetic ------------------------------------------------------------------------------

#define EMULATOR_MIN_MAX(RESULT, A, B)                                                             \
    static inline RESULT min(A a, B b) { return (RESULT)a < (RESULT)b ? (RESULT)a : (RESULT)b; }   \
    static inline RESULT max(A a, B b) { return (RESULT)a > (RESULT)b ? (RESULT)a : (RESULT)b; }
EMULATOR_MIN_MAX(int, int, int)
EMULATOR_MIN_MAX(u32, u32, u32)
EMULATOR_MIN_MAX(u32, int, u32)
EMULATOR_MIN_MAX(u32, u32, int)
EMULATOR_MIN_MAX(ptrdiff_t, ptrdiff_t, ptrdiff_t)
EMULATOR_MIN_MAX(size_t, size_t, size_t)
EMULATOR_MIN_MAX(long long, long long, long long)
EMULATOR_MIN_MAX(u64, u64, u64)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
static inline int __float2int_rn(float x) { return int(rintf(x)); }
static inline int __float2int_rd(float x) { return int(floorf(x)); }
static inline int __float2int_ru(float x) { return int(ceilf(x)); }
static inline int __float2int_rz(float x) { return int(x); }
static inline u32 __float2uint_rn(float x) { return u32(rintf(x)); }
static inline u32 __float2uint_rz(float x) { return u32(x); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(u32 x) { return float(x); }
static inline float __double2float_rn(double x) { return float(x); }
// Names that the C library has declared for itself.
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

// ---- what prelude.cu says for a card ---------------------------------------------------------

// Rounds to the nearest half, ties to even; any NaN becomes 0x7fff, as on a card.
static inline u16 half_from(float x) {
#if defined(__F16C__)
    return x != x ? 0x7fff : u16(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    if (x != x) return 0x7fff;
    __fp16 half = (__fp16)x;
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
#else
    u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x47800000) return u16(sign | 0x7c00); // 65536 and more
    if (size < 0x38800000) {                           // less than 2^-14: the step is 2^-24
        // A sum in [0.5, 1) has that very step, and the addition rounds to it.
        return u16(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000));
    }
    u32 odd = size >> 13 & 1;
    return u16(sign | ((size - 0x38000000 + 0xfff + odd) >> 13));
#endif
}

static inline float half_to(u16 h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#elif defined(__aarch64__)
    __fp16 half;
    memcpy(&half, &h, 2);
    return float(half);
#else
    u32 exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    float size = exponent == 31 ? __uint_as_float(0x7f800000 | mantissa << 13)
                 : exponent     ? __uint_as_float((exponent + 112) << 23 | mantissa << 13)
                                : float(mantissa) * 0x1p-24f;
    return h >> 15 ? -size : size;
#endif
}

static inline u32 half2_from(float low, float high) {
    return half_from(low) | u32(half_from(high)) << 16;
}

// A float holds twice a half's digits and more: rounding twice gives what rounding once does.
static inline u32 half2_sub(u32 a, u32 b) {
    return half2_from(half_to(u16(a)) - half_to(u16(b)), half_to(u16(a >> 16)) - half_to(u16(b >> 16)));
}

static inline u32 half2_mul(u32 a, u32 b) {
    return half2_from(half_to(u16(a)) * half_to(u16(b)), half_to(u16(a >> 16)) * half_to(u16(b >> 16)));
}

template <u32 MASK, u32 BITS>
static inline u32 and_or(u32 a) {
    return (a & MASK) | BITS;
}

static inline u32 pick_bytes(u32 low, u32 high, u32 selector) {
    return __byte_perm(low, high, selector);
}

namespace emulator {

struct MmaOperand {
    float* d;
    u32 a[4], b[2];
};
static inline void combine_mma(void* const (&operands)[LANES], u32) {
    float a[16][16], b[16][8], d[16][8];
    auto pair = [](u32 word, float* first, float* second) {
        *first = half_to(u16(word));
        *second = half_to(u16(word >> 16));
    };
    for (u32 lane = 0; lane < LANES; lane++) {
        const MmaOperand* mine = (const MmaOperand*)operands[lane];
        u32 g = lane / 4, t = lane % 4 * 2;
        for (u32 i = 0; i < 4; i++) {
            float* row = &a[g + i % 2 * 8][t + i / 2 * 8];
            pair(mine->a[i], row, row + 1);
        }
        for (u32 i = 0; i < 2; i++) pair(mine->b[i], &b[t + 8 * i][g], &b[t + 8 * i + 1][g]);
        for (u32 i = 0; i < 4; i++) d[g + i / 2 * 8][t + i % 2] = mine->d[i];
    }
    for (u32 i = 0; i < 16; i++)
        for (u32 k = 0; k < 16; k++)
            for (u32 j = 0; j < 8; j++) d[i][j] += a[i][k] * b[k][j];
    for (u32 lane = 0; lane < LANES; lane++) {
        float* mine = ((MmaOperand*)operands[lane])->d;
        u32 g = lane / 4, t = lane % 4 * 2;
        for (u32 i = 0; i < 4; i++) mine[i] = d[g + i / 2 * 8][t + i % 2];
    }
}

struct MatricesOperand {
    u32* d;
    const void* row;
};
template <bool TRANSPOSED>
static void combine_matrices(void* const (&operands)[LANES], u32) {
    u16 rows[4][8][8];
    for (u32 lane = 0; lane < LANES; lane++)
        memcpy(rows[lane / 8][lane % 8], ((const MatricesOperand*)operands[lane])->row, 16);
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < 4; i++) {
            u32 r = lane / 4, c = lane % 4 * 2;
            u16 first = TRANSPOSED ? rows[i][c][r] : rows[i][r][c];
            u16 second = TRANSPOSED ? rows[i][c + 1][r] : rows[i][r][c + 1];
            ((MatricesOperand*)operands[lane])->d[i] = first | u32(second) << 16;
        }
}

struct TransposeOperand {
    u32 value;
};
static inline void combine_transpose(void* const (&operands)[LANES], u32) {
    u16 rows[8][8];
    auto word = [&](u32 lane) { return &((TransposeOperand*)operands[lane])->value; };
    for (u32 lane = 0; lane < LANES; lane++) memcpy(&rows[lane / 4][lane % 4 * 2], word(lane), 4);
    for (u32 lane = 0; lane < LANES; lane++) {
        u32 r = lane / 4, c = lane % 4 * 2;
        *word(lane) = rows[c][r] | u32(rows[c + 1][r]) << 16;
    }
}

} // namespace emulator

static inline float exp2_fast(float x) {
    float y = exp2f(x);
    return isnormal(y) ? y : isnan(y) || y > 1.0f ? y : 0.0f;
}

static inline void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1,
                           EMULATOR_HERE) {
    emulator::MmaOperand operand = {d, {a0, a1, a2, a3}, {b0, b1}};
    emulator::meet(emulator::Kind::Mma, 0xffffffffu, true, emulator::combine_mma, &operand, place);
}

template <bool TRANSPOSED>
static inline void load_matrices(u32 (&d)[4], const void* row, EMULATOR_HERE) {
    emulator::need_shared("load_matrices", row, place);
    emulator::MatricesOperand operand = {d, row};
    emulator::meet(emulator::Kind::LoadMatrices, 0xffffffffu, true,
                   emulator::combine_matrices<TRANSPOSED>, &operand, place);
}

static inline u32 transpose_matrix(u32 a, EMULATOR_HERE) {
    emulator::TransposeOperand operand = {a};
    emulator::meet(emulator::Kind::TransposeMatrix, 0xffffffffu, true, emulator::combine_transpose,
                   &operand, place);
    return operand.value;
}

// The target is lost at once, and has the copy after copy_wait: on a card it changes in between.
namespace emulator {
static inline void start_copy(const char* who, void* shared, const void* global, u32 size, bool valid,
                              Place place) {
    need_shared(who, shared, place, size);
    need_aligned(who, global, place, size);
    Thread* thread = self();
    Copy copy = {(u8*)shared, thread->committed, size, {}};
    if (valid) memcpy(copy.bytes, global, size);
    thread->copies->push_back(copy);
    poison(shared, size);
}
} // namespace emulator

static inline void copy_async(void* shared, const void* global, bool valid = true, EMULATOR_HERE) {
    emulator::start_copy("copy_async", shared, global, 16, valid, place);
}
static inline void copy_async_8(void* shared, const void* global, EMULATOR_HERE) {
    emulator::start_copy("copy_async_8", shared, global, 8, true, place);
}
static inline void copy_commit() { emulator::self()->committed++; }
template <int PENDING>
static inline void copy_wait() {
    emulator::Thread* thread = emulator::self();
    std::vector<emulator::Copy>& copies = *thread->copies;
    size_t kept = 0;
    for (const emulator::Copy& copy : copies) {
        if (copy.group + PENDING < thread->committed)
            memcpy(copy.to, copy.bytes, copy.size);
        else
            copies[kept++] = copy;
    }
    copies.resize(kept);
}

#define BULK_COPIES 1

namespace emulator {
static inline Arrival* arrival_of(const u64* word) {
    for (Arrival& arrival : self()->block->arrivals)
        if (arrival.word == word) return &arrival;
    return nullptr;
}
} // namespace emulator

static inline void arrival_init(u64* arrival, EMULATOR_HERE) {
    emulator::need_shared("arrival_init", arrival, place, sizeof *arrival);
    if (emulator::arrival_of(arrival))
        emulator::fail("arrival_init of one that was made, at " + emulator::text(place));
    emulator::self()->block->arrivals.push_back({arrival, 0, 0, {}});
}
static inline void arrival_start(u64* arrival, u32 bytes, EMULATOR_HERE) {
    emulator::Arrival* of = emulator::arrival_of(arrival);
    if (!of || of->expected || bytes == 0)
        emulator::fail("arrival_start, not once after arrival_init, at " + emulator::text(place));
    of->expected = bytes;
}
static inline void copy_bulk(void* shared, const void* global, u32 bytes, u64* arrival, EMULATOR_HERE) {
    emulator::need_shared("copy_bulk", shared, place);
    emulator::need_aligned("copy_bulk", global, place);
    emulator::Arrival* to = emulator::arrival_of(arrival);
    if (!to || !emulator::in_shared(shared, bytes) || bytes % 16 != 0 || bytes > to->expected - to->asked)
        emulator::fail("copy_bulk of bytes that its arrival does not expect, or past shared memory, at " + emulator::text(place));
    to->asked += bytes;
    to->copies.push_back({(u8*)shared, std::vector<u8>((const u8*)global, (const u8*)global + bytes)});
    emulator::poison(shared, bytes);
}
static inline void arrival_wait(u64* arrival, EMULATOR_HERE) {
    emulator::Arrival* of = emulator::arrival_of(arrival);
    if (!of || of->expected == 0 || of->asked != of->expected)
        emulator::fail("arrival_wait for copies that nobody has started, at " + emulator::text(place));
    for (const auto& [to, bytes] : of->copies) memcpy(to, bytes.data(), bytes.size());
    of->copies.clear();
}
static inline uint4 load_once(const uint4* p, EMULATOR_HERE) {
    emulator::need_aligned("load_once", p, place);
    return *p;
}

static inline uint2 load_once(const uint2* p, EMULATOR_HERE) {
    emulator::need_aligned("load_once", p, place, 8);
    return *p;
}

static inline void wait_for_inputs(EMULATOR_HERE) {
    if (emulator::self()->inputs_awaited)
        emulator::fail("wait_for_inputs() a second time, at " + emulator::text(place));
    emulator::self()->inputs_awaited = true;
}
static inline void start_next() {}
static inline void hand_on(u32* word, u32 value) { *word = value; }
static inline void await_hand_on(const u32* word, u32 value, EMULATOR_HERE) {
    if (*word != value)
        emulator::fail("await_hand_on for what no kernel has written, at " + emulator::text(place));
}

static inline u64* stamps() { return emulator::self()->block->stamps; }
static inline u64 time_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return u64(now.tv_sec) * 1000000000 + u64(now.tv_nsec);
}
