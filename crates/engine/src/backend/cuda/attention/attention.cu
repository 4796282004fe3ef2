// attention: everything between the projections of an attention layer and o_proj.
//
//   kernel         grid                                                       block
//   queries_keys   ((HEADS + 2 * KV_HEADS) / 4 rounded up, rows)              128
//   attend         (splits, KV_HEADS * HEAD_TILES, rows)                      128
//   attend_merge   (HEADS * HEAD_DIM / 64 rounded up, rows)                   256
//
// No dynamic shared memory. They run in this order; what attend needs of a row's own key and value,
// and of those of earlier rows of its step, queries_keys has put into the pages.
//
// A row's keys are cut into splits of split_tokens(position) tokens, one a block of attend: a rule
// of the row's own position, so that its bits do not depend on the batch. `splits` is at least what
// the furthest row needs, split_count(position) <= SPLITS_MAX; blocks in excess return at once. All
// of `partial` and `stats` beyond a row's own splits stays unwritten and unread.
//
// Dimensions beside the prelude's: the columns of the projections' output, COLUMN_Q (for each head
// its query, then its gate), COLUMN_K, COLUMN_V, and its row length `ld`: multiples of 4. HEAD_DIM
// is a multiple of 32 and at most 256, HEADS a multiple of KV_HEADS, HEADS * HEAD_DIM of GROUP.
//
// A page of keys and values: [ATTENTION_LAYERS][KV_HEADS][keys, values][PAGE_TOKENS][HEAD_DIM].

#if KV_FLOAT
typedef float Kv;
DEVICE Kv kv_from(float x) { return x; }
DEVICE float kv_to(Kv x) { return x; }
#else
typedef u16 Kv;
DEVICE Kv kv_from(float x) { return half_from(x); }
DEVICE float kv_to(Kv x) { return half_to(x); }
#endif

#define SHARED_BY (HEADS / KV_HEADS)                       // query heads that read a KV head
#define TILE_HEADS (SHARED_BY < 8 ? SHARED_BY : 8)         // of them in a block of attend
#define HEAD_TILES ((SHARED_BY + TILE_HEADS - 1) / TILE_HEADS)
#define SPLITS_MAX (KV_HEADS <= 2 ? 128 : KV_HEADS <= 4 ? 64 : 32)
#define LANE_DIMS (HEAD_DIM / WARP)
#define LOG2_E 1.4426950408889634f
#define MINUS_INFINITY __uint_as_float(0xff800000u)

// A position's key (what = 0) or value (1) [HEAD_DIM].
DEVICE Kv* kv_at(const u64* pages, u32 layer, u32 kv_head, u32 what, u32 position) {
    u64 vector = ((layer * KV_HEADS + kv_head) * 2 + what) * PAGE_TOKENS + position % PAGE_TOKENS;
    return (Kv*)pages[position / PAGE_TOKENS] + vector * HEAD_DIM;
}

DEVICE u32 split_tokens(u32 position) {
    u32 even = position / SPLITS_MAX + 1; // enough that SPLITS_MAX of them hold position + 1
    return even <= 64 ? 64 : (even + 15) / 16 * 16;
}
DEVICE u32 split_count(u32 position) { return position / split_tokens(position) + 1; }

// ---- queries, keys, values ------------------------------------------------------------------

// RMSNorm and RoPE of a head by a warp: lane l gets and gives elements l, l + 32 and so on.
DEVICE void norm_rope(float (&x)[LANE_DIMS], const float (&gain)[LANE_DIMS],
                      const float2* turn /* [ROTARY_DIMS / 2] */, float* scratch /* [HEAD_DIM] */) {
    u32 lane = threadIdx.x % WARP;
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) sum += x[i] * x[i];
    float scale = rsqrtf(lanes_sum(sum) * (1.0f / HEAD_DIM) + NORM_EPS);
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        x[i] *= scale * gain[i];
        scratch[lane + WARP * i] = x[i];
    }
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        u32 dim = lane + WARP * i;
        if (dim < ROTARY_DIMS / 2) {
            float2 t = turn[dim];
            x[i] = x[i] * t.x - scratch[dim + ROTARY_DIMS / 2] * t.y;
        } else if (dim < ROTARY_DIMS) {
            float2 t = turn[dim - ROTARY_DIMS / 2];
            x[i] = scratch[dim - ROTARY_DIMS / 2] * t.y + x[i] * t.x;
        }
    }
    __syncwarp();
}

// A warp a head: queries and keys are normalised and turned, keys and values go to their page.
KERNEL void __launch_bounds__(128) queries_keys(
    const float* proj, u32 ld,  // [rows, ld]
    const float* query_gain,    // [HEAD_DIM]
    const float* key_gain,      // [HEAD_DIM]
    const float2* table,        // [rows, ROTARY_DIMS / 2] (cos, sin)
    const u32* row_sequence,    // [rows]
    const u32* row_position,    // [rows]
    const u64* pages,           // [sequences, pages_max]
    u32 pages_max,
    u32 layer,
    float* queries              // [rows, HEADS, HEAD_DIM]
) {
    SHARED float scratch[4][HEAD_DIM];
    start_next();
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 item = blockIdx.x * 4 + warp, row = blockIdx.y;
    bool is_query = item < HEADS, is_key = !is_query && item < HEADS + KV_HEADS;
    float gain[LANE_DIMS];
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
        gain[i] = (is_query ? query_gain : key_gain)[lane + WARP * i];
    wait_for_inputs();
    u32 sequence = row_sequence[row], position = row_position[row];
    if (sequence == NONE || item >= HEADS + 2 * KV_HEADS) return;

    u32 kv_head = (item - HEADS) % KV_HEADS; // of a key or value
    u32 column = is_query ? COLUMN_Q + item * 2 * HEAD_DIM
                          : (is_key ? COLUMN_K : COLUMN_V) + kv_head * HEAD_DIM;
    float x[LANE_DIMS];
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) x[i] = proj[(u64)row * ld + column + lane + WARP * i];
    if (is_query || is_key)
        norm_rope(x, gain, table + (u64)row * (ROTARY_DIMS / 2), scratch[warp]);
    if (is_query) {
        float* to = queries + ((u64)row * HEADS + item) * HEAD_DIM;
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) to[lane + WARP * i] = x[i];
    } else {
        Kv* to = kv_at(pages + (u64)sequence * pages_max, layer, kv_head, is_key ? 0 : 1, position);
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) to[lane + WARP * i] = kv_from(x[i]);
    }
}

// ---- attend ----------------------------------------------------------------------------------

// softmax(q k / sqrt(HEAD_DIM)) v over one split, for the heads of a tile: unnormalised sums, the
// largest score (times log2 e) and the sum of exp2(score - largest).
//
// Each warp takes every fourth token; the four results are merged in order.
KERNEL void __launch_bounds__(128) attend(
    const float* queries,    // [rows, HEADS, HEAD_DIM]
    const u32* row_sequence, // [rows]
    const u32* row_position, // [rows]
    const u64* pages,        // [sequences, pages_max]
    u32 pages_max,
    u32 layer,
    float* partial,          // [rows, HEADS, splits, HEAD_DIM]
    float2* stats            // [rows, HEADS, splits] (largest, sum)
) {
    SHARED float merged[4][TILE_HEADS][HEAD_DIM];
    SHARED float2 merged_stats[4][TILE_HEADS];
    start_next();
    u32 split = blockIdx.x, splits = gridDim.x, row = blockIdx.z;
    u32 kv_head = blockIdx.y / HEAD_TILES;
    u32 head_in_group = blockIdx.y % HEAD_TILES * TILE_HEADS; // first of the tile
    u32 heads = min((u32)TILE_HEADS, SHARED_BY - head_in_group);
    u32 head = kv_head * SHARED_BY + head_in_group;
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    wait_for_inputs();
    u32 sequence = row_sequence[row], position = row_position[row];
    if (sequence == NONE || split >= split_count(position)) return;
    pages += (u64)sequence * pages_max;

    u32 start = split * split_tokens(position);
    u32 end = min(start + split_tokens(position), position + 1);
    float query[TILE_HEADS][LANE_DIMS], sum[TILE_HEADS][LANE_DIMS];
    float largest[TILE_HEADS], total[TILE_HEADS];
    #pragma unroll
    for (int h = 0; h < TILE_HEADS; h++) {
        largest[h] = MINUS_INFINITY;
        total[h] = 0.0f;
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            float q = h < heads ? queries[((u64)row * HEADS + head + h) * HEAD_DIM + lane + WARP * i] : 0.0f;
            query[h][i] = q * (LOG2_E * rsqrtf((float)HEAD_DIM));
            sum[h][i] = 0.0f;
        }
    }
    for (u32 token = start + warp; token < end; token += 4) {
        const Kv* key = kv_at(pages, layer, kv_head, 0, token);
        const Kv* value = kv_at(pages, layer, kv_head, 1, token);
        float k[LANE_DIMS], v[LANE_DIMS];
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            k[i] = kv_to(key[lane + WARP * i]);
            v[i] = kv_to(value[lane + WARP * i]);
        }
        #pragma unroll
        for (int h = 0; h < TILE_HEADS; h++) {
            float score = 0.0f;
            #pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) score += query[h][i] * k[i];
            score = lanes_sum(score);
            float larger = fmaxf(largest[h], score);
            float fade = exp2f(largest[h] - larger), weight = exp2f(score - larger);
            largest[h] = larger;
            total[h] = total[h] * fade + weight;
            #pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) sum[h][i] = sum[h][i] * fade + weight * v[i];
        }
    }

    #pragma unroll
    for (int h = 0; h < TILE_HEADS; h++) {
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) merged[warp][h][lane + WARP * i] = sum[h][i];
        if (lane == 0) merged_stats[warp][h] = make_float2(largest[h], total[h]);
    }
    __syncthreads();
    for (u32 h = warp; h < heads; h += 4) {
        float all_largest = MINUS_INFINITY, all_total = 0.0f, fade[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) all_largest = fmaxf(all_largest, merged_stats[i][h].x);
        #pragma unroll
        for (int i = 0; i < 4; i++) { // warp 0 has a token, so all_largest is a number
            fade[i] = exp2f(merged_stats[i][h].x - all_largest);
            all_total += merged_stats[i][h].y * fade[i];
        }
        u64 at = ((u64)row * HEADS + head + h) * splits + split;
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            float y = 0.0f;
            #pragma unroll
            for (int w = 0; w < 4; w++) y += fade[w] * merged[w][h][lane + WARP * i];
            partial[at * HEAD_DIM + lane + WARP * i] = y;
        }
        if (lane == 0) stats[at] = make_float2(all_largest, all_total);
    }
}

// ---- merge -----------------------------------------------------------------------------------

#define WIDTH (HEADS * HEAD_DIM)
#define STRANDS 16 // threads that share the splits of 4 columns

// Merges the splits of 64 columns, times the sigmoid of the output gate. The columns may belong to
// two heads.
KERNEL void __launch_bounds__(256) attend_merge(
    const float* partial,      // [rows, HEADS, splits, HEAD_DIM]
    const float2* stats,       // [rows, HEADS, splits]
    u32 splits,
    const float* proj, u32 ld, // [rows, ld]
    const u32* row_sequence,   // [rows]; a padding row gets zeros
    const u32* row_position,   // [rows]
    Activations out            // [rows, WIDTH]
) {
    SHARED float weights[2][SPLITS_MAX]; // of a split, for the first and the last head
    SHARED float4 sums[STRANDS][16];
    start_next();
    u32 row = blockIdx.y, thread = threadIdx.x, start = blockIdx.x * 64;
    u32 strand = thread / 16, column = start + thread % 16 * 4;
    u32 head_first = start / HEAD_DIM;
    wait_for_inputs();
    u32 count = row_sequence[row] == NONE ? 0 : split_count(row_position[row]);

    // this thread's parts, all on their way at once
    constexpr int MINE = SPLITS_MAX / STRANDS;
    float4 mine[MINE];
    u32 head = min(column, WIDTH - 1u) / HEAD_DIM;
    const float* from = partial + ((u64)row * HEADS + head) * splits * HEAD_DIM + column % HEAD_DIM;
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        u32 split = strand + STRANDS * i;
        mine[i] = make_float4(0, 0, 0, 0);
        if (split < count && column < WIDTH) mine[i] = *(const float4*)(from + (u64)split * HEAD_DIM);
    }
    // the first 8 threads will write 8 columns each
    float gate[8];
    u32 at = start + thread * 8;
    bool writes = thread < 8 && at < WIDTH;
    if (writes && count) {
        const float* gates = proj + (u64)row * ld + COLUMN_Q + (at / HEAD_DIM * 2 + 1) * HEAD_DIM + at % HEAD_DIM;
        #pragma unroll
        for (int i = 0; i < 8; i++) gate[i] = gates[i];
    }
    // the last two warps find how much each split weighs
    u32 which = thread / WARP - 6, lane = thread % WARP;
    if (thread / WARP >= 6 && count) {
        u32 of = min(head_first + which, HEADS - 1u);
        const float2* s = stats + ((u64)row * HEADS + of) * splits;
        constexpr int LANE_SPLITS = SPLITS_MAX / WARP;
        float2 own[LANE_SPLITS];
        float largest = MINUS_INFINITY, total = 0.0f;
        #pragma unroll
        for (int i = 0; i < LANE_SPLITS; i++) {
            u32 split = lane + WARP * i;
            own[i] = split < count ? s[split] : make_float2(MINUS_INFINITY, 0.0f);
            largest = fmaxf(largest, own[i].x);
        }
        largest = lanes_max(largest);
        #pragma unroll
        for (int i = 0; i < LANE_SPLITS; i++) {
            own[i].x = exp2f(own[i].x - largest);
            total += own[i].x * own[i].y;
        }
        total = 1.0f / lanes_sum(total);
        #pragma unroll
        for (int i = 0; i < LANE_SPLITS; i++) weights[which][lane + WARP * i] = own[i].x * total;
    }
    __syncthreads();
    float4 sum = make_float4(0, 0, 0, 0);
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        u32 split = strand + STRANDS * i;
        if (split >= count) break;
        float w = weights[head - head_first][split];
        sum.x += w * mine[i].x, sum.y += w * mine[i].y;
        sum.z += w * mine[i].z, sum.w += w * mine[i].w;
    }
    sums[strand][thread % 16] = sum;
    __syncthreads();
    if (thread >= WARP) return;
    float y[8];
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        y[i] = 0.0f;
        if (!writes || !count) continue;
        #pragma unroll
        for (int s = 0; s < STRANDS; s++) y[i] += ((const float*)sums[s])[thread * 8 + i];
        y[i] *= sigmoid(gate[i]);
    }
    write_octet(out, row, WIDTH, at, y, writes);
}
