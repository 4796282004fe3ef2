// head: what goes back to the host of a row of logits from which a token is chosen and no more: its
// CANDIDATES best tokens, and the sums that normalise the softmax.
//
//   kernel            grid                              block
//   candidate_chunks  [CHUNKS / CHUNK_WARPS up, rows]   CHUNK_WARPS * WARP
//   candidates        [rows]                            MERGE_THREADS
//
// A row falls into chunks of CHUNK logits, a warp each. The best tokens of the row lie in those
// CANDIDATES chunks whose largest logits are the largest, since each of these has a token that comes
// before all that is elsewhere. A block finds these chunks, takes from them what is not below the
// least of their largest, and ranks it. No dynamic shared memory.

#define CHUNK 256
#define CHUNKS ((VOCAB + CHUNK - 1) / CHUNK)
#define CHUNK_WARPS 8
#define PER_LANE (CHUNK / WARP)

// Candidates of a row, and chunks that they are taken from.
#define COUNT (VOCAB < CANDIDATES ? VOCAB : CANDIDATES)
#define CHOSEN (CHUNKS < CANDIDATES ? CHUNKS : CANDIDATES)

// Chunks that a warp looks through.
#define VISITS 2
#define MERGE_WARPS ((CHOSEN + VISITS - 1) / VISITS)
#define MERGE_THREADS (MERGE_WARPS * WARP)
// Chunks that a thread holds the largest logit of.
#define ROUNDS ((CHUNKS + MERGE_THREADS - 1) / MERGE_THREADS)
// Tokens that are ranked at most: more come of ties, and of chunks with many good ones.
#define KEYS_MAX 256
// Lanes that find a token's rank.
#define RANKERS 4

#define LEAST (-3.402823466e38f)

// `Candidates` of candidates.rs.
struct CandidateRow {
    u32 finite, len;
    float sum, sum_at_temperature;
    struct {
        u32 id;
        float logit;
    } best[CANDIDATES];
};

// What of a chunk: its largest logit, the sums of exp(logit - largest) and of
// exp((logit - largest) / temperature), and 1 when all its logits are finite.
typedef float4 ChunkSums;

// Numbers in the order of finite floats, all above 0; both zeros are one.
DEVICE u32 order_of(float x) {
    u32 bits = x == 0.0f ? 0 : __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Tokens in the order of the ranking: the larger logit first, the lower id on a tie.
DEVICE u64 key_of(u32 order, u32 id) { return (u64)order << 32 | (u32)~id; }

// 0 asks for no sum of its own.
DEVICE float divisor(float temperature) { return temperature > 0.0f ? temperature : 1.0f; }

KERNEL void __launch_bounds__(CHUNK_WARPS * WARP) candidate_chunks(
    const float* logits,       // [rows, VOCAB]
    const float* temperatures, // [rows]
    ChunkSums* chunks          // [rows, CHUNKS]
) {
    start_next();
    wait_for_inputs();
    u32 row = blockIdx.y, lane = threadIdx.x % WARP;
    u32 chunk = blockIdx.x * CHUNK_WARPS + threadIdx.x / WARP;
    if (chunk >= CHUNKS) return;
    const float* from = logits + (u64)row * VOCAB;
    float x[PER_LANE], largest = LEAST;
    bool finite = true;
    #pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        u32 id = chunk * CHUNK + i * WARP + lane;
        x[i] = id < VOCAB ? from[id] : LEAST;
        finite = finite && fabsf(x[i]) <= -LEAST;
        largest = fmaxf(largest, x[i]);
    }
    largest = lanes_max(largest);
    float temperature = divisor(temperatures[row]), sum = 0.0f, sum_at_temperature = 0.0f;
    #pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        if (chunk * CHUNK + i * WARP + lane >= VOCAB) continue;
        sum += expf(x[i] - largest);
        sum_at_temperature += expf((x[i] - largest) / temperature);
    }
    sum = lanes_sum(sum);
    sum_at_temperature = lanes_sum(sum_at_temperature);
    finite = __all_sync(0xffffffffu, finite);
    if (lane == 0)
        chunks[(u64)row * CHUNKS + chunk] =
            make_float4(largest, sum, sum_at_temperature, finite ? 1.0f : 0.0f);
}

// Sum over the block; every thread gets it. All threads call it.
DEVICE u32 block_count(u32 count) {
    SHARED u32 partial[MERGE_WARPS];
    u32 lane = threadIdx.x % WARP;
    count = __reduce_add_sync(0xffffffffu, count);
    __syncthreads(); // an earlier call's readers are done
    if (lane == 0) partial[threadIdx.x / WARP] = count;
    __syncthreads();
    return __reduce_add_sync(0xffffffffu, lane < MERGE_WARPS ? partial[lane] : 0);
}

// Of things with an order and an index: those whose order is above `floor`, and those at `floor` whose
// index is below `end`.
struct Cut {
    u32 floor, end;
};

DEVICE bool passes(Cut cut, u32 order, u32 index) {
    return order > cut.floor || (order == cut.floor && index < cut.end);
}

// Cut that `wanted` things pass: the largest, the lowest indices on a tie. `count` gives the number
// of things in the block that pass a cut; all threads call it.
template <class Count>
DEVICE Cut cut_after(u32 wanted, Count count) {
    Cut cut = {0, 0xffffffffu};
    u32 passing = 0xffffffffu;
    for (u32 bit = 1u << 31; bit > 0; bit >>= 1) {
        Cut trial = {cut.floor | bit, 0xffffffffu};
        u32 found = count(trial);
        if (found >= wanted) cut.floor = trial.floor, passing = found;
    }
    if (passing == wanted) return cut;
    cut.end = 0;
    for (u32 bit = 1u << 31; bit > 0; bit >>= 1) {
        Cut trial = {cut.floor, cut.end | bit};
        if (count(trial) <= wanted) cut.end = trial.end;
    }
    return cut;
}

KERNEL void __launch_bounds__(MERGE_THREADS) candidates(
    const float* logits,       // [rows, VOCAB]
    const float* temperatures, // [rows]
    const ChunkSums* chunks,   // [rows, CHUNKS]
    CandidateRow* out          // [rows]
) {
    SHARED float partial[MERGE_WARPS];
    SHARED u32 chosen[CHOSEN];
    SHARED u32 chosen_len, keys_len;
    SHARED u64 keys[KEYS_MAX];
    start_next();
    u32 row = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) chosen_len = keys_len = 0;
    wait_for_inputs();
    logits += (u64)row * VOCAB;
    out += row;

    // the sums
    ChunkSums part[ROUNDS];
    u32 order[ROUNDS]; // 0: no chunk
    float largest = LEAST;
    bool finite = true;
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u32 chunk = round * MERGE_THREADS + threadIdx.x;
        bool inside = chunk < CHUNKS;
        part[round] =
            inside ? chunks[(u64)row * CHUNKS + chunk] : make_float4(LEAST, 0.0f, 0.0f, 1.0f);
        order[round] = inside ? order_of(part[round].x) : 0;
        largest = fmaxf(largest, part[round].x);
        finite = finite && part[round].w == 1.0f;
    }
    if (!__syncthreads_and(finite)) {
        if (threadIdx.x == 0) out->finite = out->len = 0;
        return;
    }
    largest = lanes_max(largest);
    if (lane == 0) partial[warp] = largest;
    __syncthreads();
    largest = lanes_max(lane < MERGE_WARPS ? partial[lane] : LEAST);
    float temperature = divisor(temperatures[row]), sum = 0.0f, sum_at_temperature = 0.0f;
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        float below = part[round].x - largest;
        sum += part[round].y * expf(below);
        sum_at_temperature += part[round].z * expf(below / temperature);
    }
    sum = block_sum<MERGE_THREADS>(sum);
    sum_at_temperature = block_sum<MERGE_THREADS>(sum_at_temperature);
    if (threadIdx.x == 0) {
        out->finite = 1;
        out->len = COUNT;
        out->sum = sum;
        out->sum_at_temperature = sum_at_temperature;
    }

    // the chunks
    Cut cut = {0, 0xffffffffu};
    if (CHUNKS > CHOSEN)
        cut = cut_after(CHOSEN, [&](Cut trial) {
            u32 count = 0;
            #pragma unroll
            for (int round = 0; round < ROUNDS; round++)
                count += __syncthreads_count(
                    passes(trial, order[round], (u32)(round * MERGE_THREADS + threadIdx.x)));
            return count;
        });
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u32 chunk = round * MERGE_THREADS + threadIdx.x;
        if (chunk < CHUNKS && passes(cut, order[round], chunk))
            chosen[atomicAdd(&chosen_len, 1)] = chunk;
    }
    __syncthreads();

    // their tokens
    u32 first[VISITS], orders[VISITS][PER_LANE]; // 0: no token
    #pragma unroll
    for (int visit = 0; visit < VISITS; visit++) {
        u32 at = visit * MERGE_WARPS + warp;
        first[visit] = at < CHOSEN ? chosen[at] * CHUNK + lane : VOCAB;
        #pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            u32 id = first[visit] + i * WARP;
            orders[visit][i] = id < VOCAB ? order_of(logits[id]) : 0;
        }
    }
    cut.end = 0xffffffffu;
    u32 len;
    while (true) {
        #pragma unroll
        for (int visit = 0; visit < VISITS; visit++) {
            #pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                u32 id = first[visit] + i * WARP;
                if (orders[visit][i] == 0 || !passes(cut, orders[visit][i], id)) continue;
                u32 at = atomicAdd(&keys_len, 1);
                if (at < KEYS_MAX) keys[at] = key_of(orders[visit][i], id);
            }
        }
        __syncthreads();
        len = keys_len;
        if (len <= KEYS_MAX) break;
        // too many to rank: no more than are wanted
        cut = cut_after(COUNT, [&](Cut trial) {
            u32 count = 0;
            #pragma unroll
            for (int visit = 0; visit < VISITS; visit++) {
                #pragma unroll
                for (int i = 0; i < PER_LANE; i++)
                    count += passes(trial, orders[visit][i], first[visit] + i * WARP);
            }
            return block_count(count);
        });
        if (threadIdx.x == 0) keys_len = 0;
        __syncthreads();
    }

    // their ranks
    for (u32 at = threadIdx.x / RANKERS; at < (len + 7) / 8 * 8; at += MERGE_THREADS / RANKERS) {
        u64 key = at < len ? keys[at] : 0;
        u32 rank = 0;
        for (u32 other = threadIdx.x % RANKERS; other < len; other += RANKERS)
            rank += keys[other] > key;
        rank += __shfl_xor_sync(0xffffffffu, rank, 1);
        rank += __shfl_xor_sync(0xffffffffu, rank, 2);
        if (at < len && rank < COUNT && threadIdx.x % RANKERS == 0) {
            u32 id = ~(u32)key;
            out->best[rank].id = id;
            out->best[rank].logit = logits[id];
        }
    }
}
