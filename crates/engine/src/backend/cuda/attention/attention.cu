// attention: everything between the projections of an attention layer and o_proj.
//
//   kernel         grid                                                       block
//   queries_keys   ((HEADS + 2 * KV_HEADS) / 4 rounded up, rows)              128
//   attend         (splits, KV_HEADS * HEAD_TILES, rows)                      128
//   attend_decode  (splits, KV_HEADS * HEAD_TILES, rows)                      128
//   attend_merge   (HEADS * HEAD_DIM / 64 rounded up, rows)                   256
//   attend_tiles   (KV_HEADS, tiles)                                          ATTEND_WARPS * 32
//
// queries_keys, attend and attend_merge run in this order: what attend
// needs of a row's own key and value, and of those of earlier rows of its step, queries_keys has
// put into the pages. Where no sequence has more than one row and KV_FLOAT is 0, attend_decode does
// what the first two do, with the same bits.
//
// attend_tiles does what attend and attend_merge do, faster where sequences have many rows, with
// queries and weights rounded to half. It exists where KV_FLOAT is 0, HEAD_DIM a multiple of 64 and
// of GROUP, and HEADS / KV_HEADS at most TILE_ROWS = 16 * ATTEND_WARPS. `tiles` is at least the sum
// over the sequences of their rows / (TILE_ROWS / (HEADS / KV_HEADS)), each rounded up. It takes
// (TILE_ROWS + 2 * PAGE_TOKENS) * (HEAD_DIM + 8) * 2 bytes of dynamic shared memory; ATTEND_WARPS
// is 8, or 4 where a block cannot have that much. It leaves padding rows alone. The other kernels
// take no dynamic shared memory.
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

#ifndef ATTEND_WARPS
#define ATTEND_WARPS 8
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

// By how much RoPE turns the elements l, l + 32 and so on of a head that lane l has: (cos, sin).
struct Turns {
    float2 at[LANE_DIMS];
};

DEVICE Turns load_turns(const float2* table /* [ROTARY_DIMS / 2] */) {
    Turns turns;
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        u32 dim = threadIdx.x % WARP + WARP * i;
        turns.at[i] = make_float2(1.0f, 0.0f);
        if (dim < ROTARY_DIMS) turns.at[i] = table[dim < ROTARY_DIMS / 2 ? dim : dim - ROTARY_DIMS / 2];
    }
    return turns;
}

// RMSNorm and RoPE of a head by a warp, elements as in Turns.
DEVICE void norm_rope(float (&x)[LANE_DIMS], const float (&gain)[LANE_DIMS], const Turns& turns,
                      float* scratch /* [HEAD_DIM], the warp's own */) {
    u32 lane = threadIdx.x % WARP;
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) sum = fmaf(x[i], x[i], sum);
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
        if (dim >= ROTARY_DIMS) continue;
        bool first = dim < ROTARY_DIMS / 2;
        float other = scratch[first ? dim + ROTARY_DIMS / 2 : dim - ROTARY_DIMS / 2];
        float turned = __fmul_rn(other, turns.at[i].y);
        x[i] = fmaf(x[i], turns.at[i].x, first ? -turned : turned);
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
        norm_rope(x, gain, load_turns(table + (u64)row * (ROTARY_DIMS / 2)), scratch[warp]);
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

// What the four warps of a block found over their tokens, for each head: the sum of the values
// weighted by exp2(score - largest), the largest score (times log2 e) and the sum of the weights.
struct Found {
    float sum[4][TILE_HEADS][HEAD_DIM + 4]; // rows apart by four banks
    float2 stats[4][TILE_HEADS];            // (largest, sum of weights)
};

// Merges the warps' findings in order, for one split. All threads call it.
DEVICE void merge_warps(const Found& found, u32 heads, u64 split_at /* of head 0, in splits */,
                        u32 splits, float* partial, float2* stats) {
    __syncthreads();
    u32 lane = threadIdx.x % WARP;
    for (u32 h = threadIdx.x / WARP; h < heads; h += 4) {
        float largest = MINUS_INFINITY, total = 0.0f, fade[4];
        #pragma unroll
        for (int w = 0; w < 4; w++) largest = fmaxf(largest, found.stats[w][h].x);
        #pragma unroll
        for (int w = 0; w < 4; w++) { // warp 0 has a token, so `largest` is a number
            fade[w] = exp2_fast(found.stats[w][h].x - largest);
            total = fmaf(found.stats[w][h].y, fade[w], total);
        }
        u64 at = split_at + (u64)h * splits;
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            float y = 0.0f;
            #pragma unroll
            for (int w = 0; w < 4; w++) y = fmaf(fade[w], found.sum[w][h][lane + WARP * i], y);
            partial[at * HEAD_DIM + lane + WARP * i] = y;
        }
        if (lane == 0) stats[at] = make_float2(largest, total);
    }
}

#if KV_FLOAT

// softmax(q k / sqrt(HEAD_DIM)) v over one split for the heads of a tile, in float throughout. Each
// warp takes every fourth token.
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
    SHARED Found found;
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
            float fade = exp2_fast(largest[h] - larger), weight = exp2_fast(score - larger);
            largest[h] = larger;
            total[h] = total[h] * fade + weight;
            #pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) sum[h][i] = sum[h][i] * fade + weight * v[i];
        }
    }

    #pragma unroll
    for (int h = 0; h < TILE_HEADS; h++) {
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) found.sum[warp][h][lane + WARP * i] = sum[h][i];
        if (lane == 0) found.stats[warp][h] = make_float2(largest[h], total[h]);
    }
    merge_warps(found, heads, ((u64)row * HEADS + head) * splits + split, splits, partial, stats);
}

#else // keys and values are halves

// A tile is 16 tokens for a warp. Scores are queries [16, HEAD_DIM] times keys: rows g and g + 8 of
// the left matrix are a query rounded to half and what that left, times 2^11, so that queries count
// in full. The result lies in the registers just as the right matrix of the second product needs
// its weights: values [HEAD_DIM, 16 tokens] times weights [16 tokens, 8 heads], where a weight too
// is two halves, one product each.
//
// Keys and values come straight from the pages into registers, 16 bytes a lane and load, whatever
// dimensions these are: the order of the dimensions within a product is free as long as both sides
// share it. With g = lane / 4 and t = lane % 4:
//   keys    run r, tokens g and g + 8: dimensions 32r + 8t .. +8, for k-steps 2r and 2r + 1
//   values  chunk c, tokens 2t, 2t + 1, 2t + 8, 2t + 9: dimensions 64c + 8g .. +8, of which each
//           pair of neighbours is rows g and g + 8 of a tile of the output
// A last chunk of 32 dimensions has 4 a lane.
#define RUNS (HEAD_DIM / 32)
#define CHUNKS (HEAD_DIM / 64)
#define LAST_CHUNK (HEAD_DIM % 64 != 0)

struct KeyTile {
    uint4 at[RUNS][2];
};
struct ValueTile {
    uint4 at[CHUNKS + 1][4];
    uint2 last[4];
};

// The lane's part of a tile; tokens from `end` on read as zeros (what stands there may be anything,
// and zero times anything must be zero).
DEVICE void load_keys(KeyTile& tile, const Kv* keys /* [16, HEAD_DIM] */, u32 start, u32 end) {
    u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        bool valid = start + g + 8 * i < end;
        #pragma unroll
        for (int run = 0; run < RUNS; run++)
            tile.at[run][i] = valid ? *(const uint4*)(keys + (g + 8 * i) * HEAD_DIM + 32 * run + 8 * t)
                                    : make_uint4(0, 0, 0, 0);
    }
}

DEVICE void load_values(ValueTile& tile, const Kv* values, u32 start, u32 end) {
    u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 token = 2 * t + i % 2 + i / 2 * 8;
        bool valid = start + token < end;
        #pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            tile.at[chunk][i] = valid ? *(const uint4*)(values + token * HEAD_DIM + 64 * chunk + 8 * g)
                                      : make_uint4(0, 0, 0, 0);
        if (LAST_CHUNK)
            tile.last[i] = valid ? *(const uint2*)(values + token * HEAD_DIM + 64 * CHUNKS + 4 * g)
                                 : make_uint2(0, 0);
    }
}

// Puts one token into its place in a tile that was loaded without it.
DEVICE void patch_keys(KeyTile& tile, const Kv* key /* [HEAD_DIM] */, u32 start, u32 token) {
    u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < 2; i++)
        if (start + g + 8 * i == token) {
            #pragma unroll
            for (int run = 0; run < RUNS; run++) tile.at[run][i] = *(const uint4*)(key + 32 * run + 8 * t);
        }
}

DEVICE void patch_values(ValueTile& tile, const Kv* value, u32 start, u32 token) {
    u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < 4; i++)
        if (start + 2 * t + i % 2 + i / 2 * 8 == token) {
            #pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++)
                tile.at[chunk][i] = *(const uint4*)(value + 64 * chunk + 8 * g);
            if (LAST_CHUNK) tile.last[i] = *(const uint2*)(value + 64 * CHUNKS + 4 * g);
        }
}

// Queries as left matrices [k-step][lane] (a0, a1, a2, a3), in shared memory.
typedef uint4 QueryFragments[HEAD_DIM / 16][WARP];

// Puts dimensions dim..dim+4 (dim a multiple of 4) of a tile's query `h` there.
DEVICE void put_query(QueryFragments& to, u32 h, u32 dim, float4 q) {
    const float scale = LOG2_E * rsqrtf((float)HEAD_DIM);
    q.x *= scale, q.y *= scale, q.z *= scale, q.w *= scale;
    u32 a0, a1, a2, a3;
    split_halves(a0, a1, q.x, q.y);
    split_halves(a2, a3, q.z, q.w);
    to[dim / 32 * 2 + dim / 4 % 2][h * 4 + dim % 32 / 8] = make_uint4(a0, a1, a2, a3);
}

// A warp's running softmax over its tiles. Lanes of head g = lane / 4 share `largest`; `total` is
// the lane's own part. `sum` has dimensions by rows (see above) and heads 2t, 2t + 1 by columns.
struct Running {
    float largest, total;
    float sum[HEAD_DIM / 16][4];
};

DEVICE void scores(float (&s)[2][4], const KeyTile& keys, const QueryFragments& queries) {
    u32 lane = threadIdx.x % WARP;
    float odd[2][4]; // every other product, so that fewer wait for each other
    #pragma unroll
    for (int i = 0; i < 2; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] = odd[i][j] = 0.0f;
    #pragma unroll
    for (int run = 0; run < RUNS; run++) {
        uint4 a = queries[2 * run][lane], b = queries[2 * run + 1][lane];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            mma_f16(s[i], a.x, a.y, a.z, a.w, keys.at[run][i].x, keys.at[run][i].y);
            mma_f16(odd[i], b.x, b.y, b.z, b.w, keys.at[run][i].z, keys.at[run][i].w);
        }
    }
    #pragma unroll
    for (int i = 0; i < 2; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] += odd[i][j];
}

// Two dimensions of the output: `v0` and so on are the words with these of tokens 2t, 2t + 1,
// 2t + 8, 2t + 9.
DEVICE void add_values(float (&sum)[4], u32 v0, u32 v1, u32 v8, u32 v9, const u32 (&weights)[2],
                       const u32 (&rests)[2]) {
    u32 a0 = pick_bytes(v0, v1, 0x5410), a1 = pick_bytes(v0, v1, 0x7632);
    u32 a2 = pick_bytes(v8, v9, 0x5410), a3 = pick_bytes(v8, v9, 0x7632);
    mma_f16(sum, a0, a1, a2, a3, weights[0], weights[1]);
    mma_f16(sum, a0, a1, a2, a3, rests[0], rests[1]);
}

// Takes a tile's scores and values in.
DEVICE void add_tile(Running& running, const float (&s)[2][4], const ValueTile& values, u32 start,
                     u32 end) {
    u32 t = threadIdx.x % 4;
    float score[2][2], tile_largest = MINUS_INFINITY;
    #pragma unroll
    for (int i = 0; i < 2; i++)
        #pragma unroll
        for (int j = 0; j < 2; j++) {
            bool valid = start + 8 * i + 2 * t + j < end;
            score[i][j] = valid ? fmaf(s[i][2 + j], 1.0f / 2048.0f, s[i][j]) : MINUS_INFINITY;
            tile_largest = fmaxf(tile_largest, score[i][j]);
        }
    float largest = fmaxf(running.largest, lanes_max<4>(tile_largest)); // a tile has a valid token
    float fade = exp2_fast(running.largest - largest);
    running.largest = largest;
    u32 weights[2], rests[2];
    float total = 0.0f;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        float low = exp2_fast(score[i][0] - largest), high = exp2_fast(score[i][1] - largest);
        total += low + high;
        weights[i] = half2_from(low, high);
        rests[i] = half2_from(low - half_to((u16)weights[i]), high - half_to((u16)(weights[i] >> 16)));
    }
    running.total = fmaf(running.total, fade, total);
    if (__any_sync(0xffffffffu, fade != 1.0f)) {
        float fade0 = __shfl_sync(0xffffffffu, fade, 8 * t); // of heads 2t and 2t + 1
        float fade1 = __shfl_sync(0xffffffffu, fade, 8 * t + 4);
        #pragma unroll
        for (int m = 0; m < HEAD_DIM / 16; m++) {
            running.sum[m][0] *= fade0, running.sum[m][1] *= fade1;
            running.sum[m][2] *= fade0, running.sum[m][3] *= fade1;
        }
    }
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const uint4(&v)[4] = values.at[chunk];
        add_values(running.sum[4 * chunk], v[0].x, v[1].x, v[2].x, v[3].x, weights, rests);
        add_values(running.sum[4 * chunk + 1], v[0].y, v[1].y, v[2].y, v[3].y, weights, rests);
        add_values(running.sum[4 * chunk + 2], v[0].z, v[1].z, v[2].z, v[3].z, weights, rests);
        add_values(running.sum[4 * chunk + 3], v[0].w, v[1].w, v[2].w, v[3].w, weights, rests);
    }
    if (LAST_CHUNK) {
        const uint2(&v)[4] = values.last;
        add_values(running.sum[4 * CHUNKS], v[0].x, v[1].x, v[2].x, v[3].x, weights, rests);
        add_values(running.sum[4 * CHUNKS + 1], v[0].y, v[1].y, v[2].y, v[3].y, weights, rests);
    }
}

// Hands a warp's result to merge_warps.
DEVICE void put_found(Found& found, const Running& running) {
    u32 warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    float total = lanes_sum<4>(running.total);
    if (t == 0 && g < TILE_HEADS) found.stats[warp][g] = make_float2(running.largest, total);
    #pragma unroll
    for (int m = 0; m < HEAD_DIM / 16; m++) {
        bool last = m >= 4 * CHUNKS;
        u32 dim = last ? 64 * CHUNKS + 4 * g + m % 4 * 2 : m / 4 * 64 + 8 * g + m % 4 * 2;
        #pragma unroll
        for (int j = 0; j < 2; j++)
            if (2 * t + j < TILE_HEADS)
                *(float2*)&found.sum[warp][2 * t + j][dim] =
                    make_float2(running.sum[m][j], running.sum[m][2 + j]);
    }
}

// What a block of attend works on.
struct Span {
    u32 kv_head, head, heads; // of KV head kv_head, `heads` query heads from `head` on
    u32 start, end;           // positions
    u32 tile;                 // first position of the warp's first tile; the others are 64 apart
    u64 offset;               // of the KV head's keys in a page, in elements; values follow
    u64 at;                   // of the first head's split among a step's, see `partial`
};

DEVICE Span span_of(u32 position, u32 layer) {
    u32 first = blockIdx.y % HEAD_TILES * TILE_HEADS; // of the KV head's query heads
    Span span;
    span.kv_head = blockIdx.y / HEAD_TILES;
    span.head = span.kv_head * SHARED_BY + first;
    span.heads = min((u32)TILE_HEADS, SHARED_BY - first);
    span.start = blockIdx.x * split_tokens(position);
    span.end = min(span.start + split_tokens(position), position + 1);
    span.tile = span.start + threadIdx.x / WARP * 16;
    span.offset = (u64)(layer * KV_HEADS + span.kv_head) * 2 * PAGE_TOKENS * HEAD_DIM;
    span.at = ((u64)blockIdx.z * HEADS + span.head) * gridDim.x + blockIdx.x;
    return span;
}

// A tile's keys; its values are PAGE_TOKENS * HEAD_DIM further on.
DEVICE const Kv* tile_at(const u64* pages, const Span& span, u32 tile) {
    return (const Kv*)pages[tile / PAGE_TOKENS] + span.offset + tile % PAGE_TOKENS * HEAD_DIM;
}

// A warp's way through its tiles, of which the first one's keys are loaded. With FRESH its values
// are loaded too, and the token at `known` is not in the pages yet: its key and value are `fresh`.
// Otherwise `known` is the span's end.
template <bool FRESH>
DEVICE void attend_span(Running& running, KeyTile& keys, ValueTile& values, const Span& span,
                        const u64* pages, const QueryFragments& queries, u32 known,
                        const Kv (*fresh)[HEAD_DIM]) {
    running.largest = MINUS_INFINITY;
    running.total = 0.0f;
    #pragma unroll
    for (int m = 0; m < HEAD_DIM / 16; m++)
        running.sum[m][0] = running.sum[m][1] = running.sum[m][2] = running.sum[m][3] = 0.0f;
    const Kv* here = span.tile < span.end ? tile_at(pages, span, span.tile) : 0;
    #pragma unroll 1
    for (u32 tile = span.tile; tile < span.end; tile += 64) {
        __syncwarp(); // or the compiler reads the queries once, before the loop, and runs out of registers
        if (!FRESH || tile != span.tile) load_values(values, here + PAGE_TOKENS * HEAD_DIM, tile, known);
        if (FRESH && tile + 16 > known) {
            patch_keys(keys, fresh[0], tile, known);
            patch_values(values, fresh[1], tile, known);
        }
        u32 next = tile + 64;
        here = next < span.end ? tile_at(pages, span, next) : 0;
        float s[2][4];
        scores(s, keys, queries);
        if (here) load_keys(keys, here, next, known);
        add_tile(running, s, values, tile, span.end);
    }
}

// softmax(q k / sqrt(HEAD_DIM)) v over one split for the heads of a tile.
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
    SHARED Found found;
    SHARED QueryFragments fragments;
    start_next();
    u32 row = blockIdx.z, sequence = row_sequence[row], position = row_position[row];
    wait_for_inputs();
    if (sequence == NONE || blockIdx.x >= split_count(position)) return;
    pages += (u64)sequence * pages_max;
    Span span = span_of(position, layer);

    KeyTile keys;
    ValueTile values;
    if (span.tile < span.end) load_keys(keys, tile_at(pages, span, span.tile), span.tile, span.end);
    for (u32 i = threadIdx.x; i < 8 * HEAD_DIM / 4; i += 128) {
        u32 h = i / (HEAD_DIM / 4), dim = i % (HEAD_DIM / 4) * 4;
        const float* query = queries + ((u64)row * HEADS + span.head + h) * HEAD_DIM + dim;
        put_query(fragments, h, dim, h < span.heads ? *(const float4*)query : make_float4(0, 0, 0, 0));
    }
    __syncthreads();
    Running running;
    attend_span<false>(running, keys, values, span, pages, fragments, span.end, 0);
    put_found(found, running);
    merge_warps(found, span.heads, span.at, gridDim.x, partial, stats);
}

// queries_keys and attend in one, where no sequence has more than one row. Every block norms and
// turns the queries it needs; those that see the row's own position also its key and value, and the
// first of them puts these into the page.
//
// Fetched before the wait: what tells where the pages are, and the keys and values of earlier
// steps. Kernels before this one in the chain do not write them if the chain's first kernel does
// not start before the step before has ended (no programmatic launch) and finds the batch's arrays
// written.
KERNEL void __launch_bounds__(128) attend_decode(
    const float* proj, u32 ld, // [rows, ld]
    const float* query_gain,   // [HEAD_DIM]
    const float* key_gain,     // [HEAD_DIM]
    const float2* table,       // [rows, ROTARY_DIMS / 2] (cos, sin)
    const u32* row_sequence,   // [rows]
    const u32* row_position,   // [rows]
    const u64* pages,          // [sequences, pages_max]
    u32 pages_max,
    u32 layer,
    float* partial,            // [rows, HEADS, splits, HEAD_DIM]
    float2* stats              // [rows, HEADS, splits] (largest, sum)
) {
    SHARED Found found;
    SHARED QueryFragments fragments;
    SHARED uint4 fresh[2][HEAD_DIM / 8];
    SHARED float4 scratch[4][HEAD_DIM / 4];
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 row = blockIdx.z, sequence = row_sequence[row], position = row_position[row];
    if (sequence == NONE || blockIdx.x >= split_count(position)) {
        wait_for_inputs();
        return;
    }
    pages += (u64)sequence * pages_max;
    Span span = span_of(position, layer);
    KeyTile keys;
    ValueTile values;
    if (span.tile < span.end) {
        const Kv* first = tile_at(pages, span, span.tile);
        load_keys(keys, first, span.tile, position);
        load_values(values, first + PAGE_TOKENS * HEAD_DIM, span.tile, position);
    }
    // a warp takes every fourth query; the last two warps take the key and the value besides
    bool takes_fresh = warp >= 2 && position < span.end, is_key = warp == 2;
    float gain[LANE_DIMS], fresh_gain[LANE_DIMS];
    #pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        gain[i] = query_gain[lane + WARP * i];
        fresh_gain[i] = takes_fresh ? key_gain[lane + WARP * i] : 0.0f;
    }
    wait_for_inputs();
    start_next(); // before the wait it measured slower

    proj += (u64)row * ld;
    Turns turns = load_turns(table + (u64)row * (ROTARY_DIMS / 2));
    float* own = (float*)scratch[warp];
    constexpr int MINE = (TILE_HEADS + 3) / 4;
    float x[MINE][LANE_DIMS], y[LANE_DIMS];
    #pragma unroll
    for (int j = 0; j < MINE; j++) {
        u32 h = min(warp + 4 * j, span.heads - 1);
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            x[j][i] = proj[COLUMN_Q + (span.head + h) * 2 * HEAD_DIM + lane + WARP * i];
    }
    if (takes_fresh) {
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            y[i] = proj[(is_key ? COLUMN_K : COLUMN_V) + span.kv_head * HEAD_DIM + lane + WARP * i];
    }
    #pragma unroll
    for (int j = 0; j < MINE; j++) {
        norm_rope(x[j], gain, turns, own);
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) own[lane + WARP * i] = x[j][i];
        __syncwarp();
        u32 h = warp + 4 * j;
        for (u32 dim = lane * 4; dim < HEAD_DIM; dim += WARP * 4)
            if (h < 8) put_query(fragments, h, dim, h < span.heads ? scratch[warp][dim / 4]
                                                                   : make_float4(0, 0, 0, 0));
        __syncwarp();
    }
    for (u32 h = MINE * 4 + warp; h < 8; h += 4) // columns that no head has
        for (u32 dim = lane * 4; dim < HEAD_DIM; dim += WARP * 4)
            put_query(fragments, h, dim, make_float4(0, 0, 0, 0));
    if (takes_fresh) {
        if (is_key) norm_rope(y, fresh_gain, turns, own);
        Kv* page = (Kv*)tile_at(pages, span, position) + (is_key ? 0 : PAGE_TOKENS * HEAD_DIM);
        #pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            Kv element = kv_from(y[i]);
            ((Kv*)fresh[is_key ? 0 : 1])[lane + WARP * i] = element;
            if (blockIdx.y % HEAD_TILES == 0) page[lane + WARP * i] = element;
        }
    }
    __syncthreads();
    Running running;
    attend_span<true>(running, keys, values, span, pages, fragments, position,
                      (const Kv(*)[HEAD_DIM])fresh);
    put_found(found, running);
    merge_warps(found, span.heads, span.at, gridDim.x, partial, stats);
}

#endif // KV_FLOAT

// ---- attend, many rows -----------------------------------------------------------------------

#if !KV_FLOAT && HEAD_DIM % 64 == 0 && HEAD_DIM % GROUP == 0 && HEADS / KV_HEADS <= ATTEND_WARPS * 16

#define TILE_ROWS (ATTEND_WARPS * 16)          // query heads times tokens in a block
#define TILE_TOKENS (TILE_ROWS / SHARED_BY)    // new tokens in a block
#define HELD_DIM (HEAD_DIM + 8)                // a vector in shared memory: apart by four banks
#define READ_DIM (HEAD_DIM + 4)                // the same for floats
#define KEY_COUNT PAGE_TOKENS                  // keys or values in shared memory at a time: a page

// A warp's part of the output and its softmax, for rows g and g + 8 of its 16.
struct TileRunning {
    float largest[2], total[2]; // `total` is the lane's own part
    float sum[HEAD_DIM / 8][4];
};

// scores = queries keysT for 16 rows of queries and a page of keys.
DEVICE void tile_scores(float (&s)[KEY_COUNT / 8][4], const Kv* queries, const Kv* keys) {
    u32 lane = threadIdx.x % WARP;
    queries += (lane / 8 % 2 * 8 + lane % 8) * HELD_DIM + lane / 16 * 8;
    keys += (lane / 16 * 8 + lane % 8) * HELD_DIM + lane / 8 % 2 * 8;
    #pragma unroll
    for (int n = 0; n < KEY_COUNT / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    #pragma unroll
    for (int k = 0; k < HEAD_DIM; k += 16) {
        u32 a[4];
        load_matrices<false>(a, queries + k);
        #pragma unroll
        for (int n = 0; n < KEY_COUNT / 8; n += 2) {
            u32 b[4];
            load_matrices<false>(b, keys + n * 8 * HELD_DIM + k);
            mma_f16(s[n], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma_f16(s[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
}

// sum += weights values.
DEVICE void tile_values(TileRunning& running, const u32 (&weights)[KEY_COUNT / 16][4], const Kv* values) {
    u32 lane = threadIdx.x % WARP;
    values += (lane / 8 % 2 * 8 + lane % 8) * HELD_DIM + lane / 16 * 8;
    #pragma unroll
    for (int k = 0; k < KEY_COUNT / 16; k++) {
        const u32(&a)[4] = weights[k];
        #pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n += 2) {
            u32 b[4];
            load_matrices<true>(b, values + k * 16 * HELD_DIM + n * 8);
            mma_f16(running.sum[n], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma_f16(running.sum[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
}

// Turns scores into weights against the largest score so far. `seen` counts the page's keys that
// rows g and g + 8 see.
DEVICE void tile_softmax(TileRunning& running, float (&s)[KEY_COUNT / 8][4],
                         u32 (&weights)[KEY_COUNT / 16][4], const int (&seen)[2]) {
    int t = threadIdx.x % 4;
    if (__any_sync(0xffffffffu, min(seen[0], seen[1]) < KEY_COUNT)) {
        #pragma unroll
        for (int n = 0; n < KEY_COUNT / 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++)
                if (8 * n + 2 * t + i % 2 >= seen[i / 2]) s[n][i] = MINUS_INFINITY;
    }
    float fade[2];
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = running.largest[r];
        #pragma unroll
        for (int n = 0; n < KEY_COUNT / 8; n++) largest = fmaxf(largest, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        largest = lanes_max<4>(largest); // a number: every row sees the first page's first key
        fade[r] = exp2_fast(running.largest[r] - largest);
        running.largest[r] = largest;
        float total = 0.0f;
        #pragma unroll
        for (int n = 0; n < KEY_COUNT / 8; n++) {
            s[n][2 * r] = exp2_fast(s[n][2 * r] - largest);
            s[n][2 * r + 1] = exp2_fast(s[n][2 * r + 1] - largest);
            total += s[n][2 * r] + s[n][2 * r + 1];
        }
        running.total[r] = fmaf(running.total[r], fade[r], total);
    }
    if (__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f)) {
        #pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) running.sum[n][i] *= fade[i / 2];
    }
    #pragma unroll
    for (int k = 0; k < KEY_COUNT / 16; k++)
        #pragma unroll
        for (int i = 0; i < 4; i++) // the layout of the products' results is that of a left matrix
            weights[k][i] = half2_from(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

// Brings a page's keys or values on their way to shared memory; zeros from `count` on.
DEVICE void fetch_page(Kv* to /* [KEY_COUNT, HELD_DIM] */, const Kv* from, u32 count) {
    constexpr u32 PARTS = HEAD_DIM / 8, THREADS = ATTEND_WARPS * WARP; // 16 bytes each
    #pragma unroll
    for (u32 i = 0; i < KEY_COUNT * PARTS / THREADS; i++) {
        u32 token, at;
        if (THREADS % PARTS == 0) {
            token = threadIdx.x / PARTS + i * (THREADS / PARTS);
            at = threadIdx.x % PARTS * 8;
        } else {
            token = (threadIdx.x + i * THREADS) / PARTS;
            at = (threadIdx.x + i * THREADS) % PARTS * 8;
        }
        copy_async(to + token * HELD_DIM + at, from + token * HEAD_DIM + at, token < count);
    }
    copy_commit();
}

// Causal attention of TILE_TOKENS new tokens of a sequence, for all query heads of a KV head, page
// by page of keys and values, times the sigmoid of the output gates. Row i of a tile is query head
// i % SHARED_BY of token i / SHARED_BY; a warp has 16 rows.
//
// A row's result depends on its own query and the pages' bounds only.
KERNEL void __launch_bounds__(ATTEND_WARPS * WARP) attend_tiles(
    const float* queries,      // [rows, HEADS, HEAD_DIM]
    const float* proj, u32 ld, // [rows, ld]
    const u32* row_position,   // [rows]
    const u32* first_row,      // [sequences + 1]
    u32 sequences,
    const u64* pages,          // [sequences, pages_max]
    u32 pages_max,
    u32 layer,
    Activations out            // [rows, HEADS * HEAD_DIM]
) {
    SHARED_DYNAMIC(dynamic);
    Kv* held_queries = (Kv*)dynamic;                       // [TILE_ROWS, HELD_DIM]
    Kv* held_keys = held_queries + TILE_ROWS * HELD_DIM;   // [KEY_COUNT, HELD_DIM]
    Kv* held_values = held_keys + KEY_COUNT * HELD_DIM;    // [KEY_COUNT, HELD_DIM]
    start_next();
    u32 kv_head = blockIdx.x, tile = gridDim.y - 1 - blockIdx.y; // those with most keys start first
    u32 sequence = 0, row = 0, rows = 0; // the tile's first row, and its rows
    for (; sequence < sequences; sequence++) {
        row = first_row[sequence];
        u32 count = first_row[sequence + 1] - row, tiles = (count + TILE_TOKENS - 1) / TILE_TOKENS;
        if (tile < tiles) {
            row += tile * TILE_TOKENS;
            rows = min(count - tile * TILE_TOKENS, (u32)TILE_TOKENS);
            break;
        }
        tile -= tiles;
    }
    wait_for_inputs();
    if (rows == 0) return;
    pages += (u64)sequence * pages_max;
    u32 position = row_position[row], end = position + rows; // keys of the last row
    u64 offset = (u64)(layer * KV_HEADS + kv_head) * 2 * PAGE_TOKENS * HEAD_DIM;
    const Kv* page = (const Kv*)pages[0] + offset;
    fetch_page(held_keys, page, end);

    const float scale = LOG2_E * rsqrtf((float)HEAD_DIM);
    for (u32 i = threadIdx.x; i < TILE_ROWS * (HEAD_DIM / 4); i += ATTEND_WARPS * WARP) {
        u32 tile_row = i / (HEAD_DIM / 4), dim = i % (HEAD_DIM / 4) * 4;
        u32 token = tile_row / SHARED_BY, head = kv_head * SHARED_BY + tile_row % SHARED_BY;
        float4 q = make_float4(0, 0, 0, 0);
        if (token < rows) q = *(const float4*)(queries + ((u64)(row + token) * HEADS + head) * HEAD_DIM + dim);
        *(uint2*)(held_queries + tile_row * HELD_DIM + dim) =
            make_uint2(half2_from(q.x * scale, q.y * scale), half2_from(q.z * scale, q.w * scale));
    }

    u32 warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    u32 sees[2]; // keys that the lane's two rows see
    #pragma unroll
    for (int r = 0; r < 2; r++)
        sees[r] = position + 1 + min((warp * 16 + g + 8 * r) / SHARED_BY, rows - 1);
    TileRunning running;
    #pragma unroll
    for (int r = 0; r < 2; r++) running.largest[r] = MINUS_INFINITY, running.total[r] = 0.0f;
    #pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++)
        running.sum[n][0] = running.sum[n][1] = running.sum[n][2] = running.sum[n][3] = 0.0f;

    #pragma unroll 1
    for (u32 start = 0; start < end; start += KEY_COUNT) {
        u32 next = start + KEY_COUNT;
        const Kv* next_page = next < end ? (const Kv*)pages[next / KEY_COUNT] + offset : 0;
        copy_wait<0>();
        __syncthreads(); // the keys are there (and the queries), and the values' place is free
        fetch_page(held_values, page + PAGE_TOKENS * HEAD_DIM, end - start);
        float s[KEY_COUNT / 8][4];
        tile_scores(s, held_queries + warp * 16 * HELD_DIM, held_keys);
        u32 weights[KEY_COUNT / 16][4];
        const int seen[2] = {(int)(sees[0] - start), (int)(sees[1] - start)};
        tile_softmax(running, s, weights, seen);
        copy_wait<0>();
        __syncthreads(); // the values are there, and the keys' place is free
        if (next_page) fetch_page(held_keys, next_page, end - next);
        tile_values(running, weights, held_values);
        page = next_page;
    }

    __syncthreads();
    float* read = (float*)dynamic + warp * 16 * READ_DIM; // [16, READ_DIM]
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        float share = 1.0f / lanes_sum<4>(running.total[r]);
        #pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(float2*)(read + (g + 8 * r) * READ_DIM + 8 * n + 2 * t) =
                make_float2(running.sum[n][2 * r] * share, running.sum[n][2 * r + 1] * share);
    }
    __syncwarp();
    for (u32 i = threadIdx.x % WARP; i < 16 * (HEAD_DIM / 8); i += WARP) {
        u32 warp_row = i / (HEAD_DIM / 8), dim = i % (HEAD_DIM / 8) * 8, tile_row = warp * 16 + warp_row;
        u32 token = tile_row / SHARED_BY, head = kv_head * SHARED_BY + tile_row % SHARED_BY;
        bool valid = token < rows;
        const float* from = read + warp_row * READ_DIM + dim;
        const float* gate = proj + (u64)(row + token) * ld + COLUMN_Q + (2 * head + 1) * HEAD_DIM + dim;
        float y[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) y[j] = valid ? from[j] * sigmoid(gate[j]) : 0.0f;
        write_octet(out, row + token, HEADS * HEAD_DIM, head * HEAD_DIM + dim, y, valid);
    }
}

#endif // attend_tiles

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
    u32 count = row_sequence[row] == NONE ? 0 : split_count(row_position[row]); // no kernel writes these
    wait_for_inputs();

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
            own[i].x = exp2_fast(own[i].x - largest);
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
