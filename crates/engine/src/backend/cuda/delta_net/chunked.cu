// The recurrence of delta_net.cu for many rows: CHUNK tokens at a time, on the matrix units.
//
//   kernel        grid                                           block   dynamic shared memory
//   chunk_solve   (rows / CHUNK + sequences, KEY_HEADS)          128
//   delta_chunk   (VALUE_HEADS * VALUE_DIM / 32, sequences)      128     2 * STAGE_BYTES
//
// They take the sequences with CHUNK_MIN rows and more, delta_step the others.
//
// Let S be the state before a chunk, k_i and q_i the normalised key and query of its token i, g_i its
// decay, G_i = g_0..g_i, and D_ij = g_(j+1)..g_i. Token i adds delta_i (x) k_i to the state, with
//
//   delta_i = beta_i (v_i - G_i S k_i - sum over j < i of D_ij (k_i k_j) delta_j)
//
// which is linear in x_i = v_i - G_i S k_i: delta = M x, with a lower triangular M that depends on
// keys, decays and betas alone. With P_ij = D_ij (q_i k_j), j <= i:
//
//   o_i = G_i S q_i + sum over j of P_ij delta_j
//   S  <- G S + sum over j of D_(last, j) delta_j (x) k_j
//
// chunk_solve finds M and P of all chunks side by side, delta_chunk goes through a sequence's chunks.
// No decay is ever divided by: D_ij are products.
//
// Matrix products keep what float32 keeps, but for a bit or two: each factor is a sum of two halves, of
// which the product of the two small ones is left out, and sums are float32. Keys, queries, M and P are
// at most 1 and stand multiplied by ONE; a value dimension's state and x have a power of two of their
// own as scale. So the small half loses nothing that matters to its being subnormal, 2^-25.

#define CHUNK 32
#define ONE 256.0f
#define KEY_TILES (KEY_DIM / 16)

// ---- halves ----------------------------------------------------------------------------------

// Two numbers, each the sum of two halves.
struct Pieces {
    u32 high, low;
};

DEVICE Pieces pieces_of(float a, float b) {
    Pieces p;
    p.high = half2_from(a, b);
    p.low = half2_from(a - half_to((u16)p.high), b - half_to((u16)(p.high >> 16)));
    return p;
}

// b of mma_f16: [16, 8].
struct Right {
    u32 high[2], low[2];
};

// From a [16, 8] tile as mma_f16 leaves it, the columns multiplied.
DEVICE Right right_of(const float (&d)[4], float2 factor) {
    Right b;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        Pieces p = pieces_of(d[2 * i] * factor.x, d[2 * i + 1] * factor.y);
        b.high[i] = transpose_matrix(p.high);
        b.low[i] = transpose_matrix(p.low);
    }
    return b;
}

// a of mma_f16: [16, 16].
struct Left {
    u32 high[4], low[4];
};

// A product's parts: of the large halves, and of a large and a small one.
struct Sum {
    float main[4], cross[4];
};

DEVICE void clear(Sum& sum) {
    #pragma unroll
    for (int i = 0; i < 4; i++) sum.main[i] = sum.cross[i] = 0.0f;
}

DEVICE void add_product(Sum& sum, const Left& a, const Right& b) {
    mma_f16(sum.main, a.high[0], a.high[1], a.high[2], a.high[3], b.high[0], b.high[1]);
    mma_f16(sum.cross, a.high[0], a.high[1], a.high[2], a.high[3], b.low[0], b.low[1]);
    mma_f16(sum.cross, a.low[0], a.low[1], a.low[2], a.low[3], b.high[0], b.high[1]);
}

// ---- tiles in shared memory ------------------------------------------------------------------

// A row of a matrix in shared memory has its large halves and then its small ones, in units of 16
// bytes, a multiple of 8 of them. Within each 8 the units are permuted by the row, so that 8 rows'
// units of one column lie in different banks.
DEVICE u32 unit_at(u32 row, u32 unit) { return (unit & ~7u) | ((unit ^ row) & 7); }

// Where a lane's row of a tile of [16 rows, 2 units] lies, by the tile's first unit.
struct TilePlace {
    u32 at[4];
};

DEVICE TilePlace place_of(u32 row, u32 second, u32 row_bytes) {
    TilePlace place;
    #pragma unroll
    for (u32 i = 0; i < 4; i++) place.at[i] = row * row_bytes + unit_at(row, 2 * i + second) * 16;
    return place;
}

// For matrices in the order (rows 0..8, unit 0), (rows 8..16, unit 0), (0..8, 1), (8..16, 1).
DEVICE TilePlace down_first(u32 row_bytes) {
    u32 lane = threadIdx.x % WARP;
    return place_of(lane % 16, lane / 16, row_bytes);
}

// For matrices in the order (rows 0..8, unit 0), (rows 0..8, unit 1), (8..16, 0), (8..16, 1).
DEVICE TilePlace across_first(u32 row_bytes) {
    u32 lane = threadIdx.x % WARP;
    return place_of(lane % 8 + lane / 16 * 8, lane / 8 % 2, row_bytes);
}

// The tile that starts at an even unit of the rows from `rows` on.
template <bool TRANSPOSED>
DEVICE void load_tile(u32 (&d)[4], const u8* rows, const TilePlace& place, u32 unit) {
    load_matrices<TRANSPOSED>(d, rows + place.at[unit / 2 % 4] + unit / 8 * 128);
}

// Large and small halves, which lie `apart` units from each other. With a `place` down_first the
// [16, 16] tile as it is; with one across_first and TRANSPOSED its transpose.
template <bool TRANSPOSED>
DEVICE Left load_left(const u8* rows, const TilePlace& place, u32 unit, u32 apart) {
    Left a;
    load_tile<TRANSPOSED>(a.high, rows, place, unit);
    load_tile<TRANSPOSED>(a.low, rows, place, unit + apart);
    return a;
}

#define KEY_UNITS (KEY_DIM / 4)     // of a row: KEY_DIM large halves and as many small ones
#define KEY_APART (KEY_DIM / 8)     // from the large halves to the small ones
#define SOLVED_HALVES (4 * CHUNK)   // of a token and value head: its rows of M and of P
#define SOLVED_UNITS (SOLVED_HALVES / 8)
#define SOLVED_APART (CHUNK / 8)
#define P_UNIT (2 * SOLVED_APART)

// ---- what a chunk's keys and queries determine -----------------------------------------------

// A number of each lane as the lane's element of a row of CHUNK numbers: large halves, small halves.
DEVICE void store_element(u16* row, float x, bool valid) {
    u32 lane = threadIdx.x % WARP;
    u16 high = half_from(x), low = half_from(x - half_to(high));
    bool odd = lane % 2; // even lanes write two large halves, odd ones two small ones
    u32 other = __shfl_xor_sync(0xffffffffu, (u32)(odd ? high : low), 1);
    u32 pair = odd ? other | (u32)low << 16 : (u32)high | other << 16;
    if (valid) ((u32*)row)[lane / 2 + lane % 2 * (CHUNK / 2)] = pair;
}

// Product of the lanes up to this one.
DEVICE float lanes_product_up_to(float x) {
    u32 lane = threadIdx.x % WARP;
    #pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        float before = __shfl_up_sync(0xffffffffu, x, step);
        if (lane >= step) x *= before;
    }
    return x;
}

// Product of the lanes after this one.
DEVICE float lanes_product_after(float x) {
    u32 lane = threadIdx.x % WARP;
    float next = __shfl_down_sync(0xffffffffu, x, 1);
    x = lane < WARP - 1 ? next : 1.0f;
    #pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        float after = __shfl_down_sync(0xffffffffu, x, step);
        if (lane + step < WARP) x *= after;
    }
    return x;
}

#define SOLVE_WARPS 4
#define PRODUCT_LD (CHUNK + 4)
#define KEYS_FLOATS (2 * CHUNK * KEY_DIM)
#define SOLVE_FLOATS (SOLVE_WARPS * CHUNK * CHUNK)

// A chunk of a key head: normalises keys and queries, in place and as halves, then M, P and decays of
// the value heads that use it.
KERNEL void __launch_bounds__(SOLVE_WARPS * WARP) chunk_solve(
    const u32* first_row,   // [sequences + 1]
    u32 sequences,
    const Factors* factors, // [rows, VALUE_HEADS]
    float* qkv,             // [rows, CONV_CHANNELS]: q and k become KEY_DIM large halves, then small
    u16* solved,            // [rows, VALUE_HEADS, SOLVED_HALVES]: of M large, small, of P large, small
    float2* decays          // [rows, VALUE_HEADS]: G_i, and D of the chunk's last token and this one
) {
    // keys, queries: [2][CHUNK][KEY_DIM]; later A of each warp's value head: [CHUNK][CHUNK]
    SHARED float4 memory[(KEYS_FLOATS > SOLVE_FLOATS ? KEYS_FLOATS : SOLVE_FLOATS) / 4];
    SHARED float products[2][CHUNK][PRODUCT_LD]; // k_i k_j, q_i k_j
    // No early start_next: delta_chunk's few long blocks would share what multiprocessors are free first.
    wait_for_inputs();

    // sequence s has the blocks from first_row[s] / CHUNK + s on
    u32 low = 0, high = sequences;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (first_row[middle] / CHUNK + middle <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    u32 count = first_row[low + 1] - first_row[low];
    u32 start = (blockIdx.x - first_row[low] / CHUNK - low) * CHUNK;
    if (count < CHUNK_MIN || start >= count) return;
    u32 row = first_row[low] + start, tokens = min(count - start, (u32)CHUNK);
    u32 thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    u32 key_head = blockIdx.y, head = key_head * SHARING;
    float* channels[2] = {qkv + (u64)row * CONV_CHANNELS + key_channel(key_head),
                          qkv + (u64)row * CONV_CHANNELS + query_channel(key_head)};
    u8* tiles[2] = {(u8*)memory, (u8*)memory + CHUNK * KEY_UNITS * 16};

    #pragma unroll
    for (u32 i = thread; i < CHUNK * KEY_DIM / 4; i += SOLVE_WARPS * WARP) {
        u32 token = i / (KEY_DIM / 4), at = i % (KEY_DIM / 4);
        bool valid = token < tokens;
        #pragma unroll
        for (int matrix = 0; matrix < 2; matrix++) {
            float4 x = make_float4(0, 0, 0, 0);
            float scale = 0.0f;
            if (valid) {
                x = *(const float4*)(channels[matrix] + (u64)token * CONV_CHANNELS + 4 * at);
                const Factors& f = factors[(u64)(row + token) * VALUE_HEADS + head];
                scale = ONE * (matrix ? f.query : f.key);
            }
            Pieces a = pieces_of(x.x * scale, x.y * scale), b = pieces_of(x.z * scale, x.w * scale);
            u8* to = tiles[matrix] + token * KEY_UNITS * 16 + at % 2 * 8;
            *(uint2*)(to + unit_at(token, at / 2) * 16) = make_uint2(a.high, b.high);
            *(uint2*)(to + unit_at(token, KEY_APART + at / 2) * 16) = make_uint2(a.low, b.low);
        }
    }
    __syncthreads(); // all rows are read
    #pragma unroll
    for (u32 i = thread; i < CHUNK * KEY_UNITS; i += SOLVE_WARPS * WARP) {
        u32 token = i / KEY_UNITS, unit = i % KEY_UNITS;
        #pragma unroll
        for (int matrix = 0; matrix < 2; matrix++)
            if (token < tokens)
                ((uint4*)(channels[matrix] + (u64)token * CONV_CHANNELS))[unit] =
                    *(const uint4*)(tiles[matrix] + (token * KEY_UNITS + unit_at(token, unit)) * 16);
    }

    // products: three warps have one of the [16, 16] tiles on and below the diagonal each
    if (warp < 3) {
        u32 down = (warp + 1) / 2 * 16, right = warp / 2 * 16, row_bytes = KEY_UNITS * 16;
        TilePlace rows = down_first(row_bytes), columns = across_first(row_bytes);
        Sum sum[2][2]; // by matrix and half of the tile
        #pragma unroll
        for (int i = 0; i < 4; i++) clear(sum[i / 2][i % 2]);
        #pragma unroll
        for (u32 tile = 0; tile < KEY_TILES; tile++) {
            u32 large[4], small[4];
            load_tile<false>(large, tiles[0] + right * row_bytes, columns, 2 * tile);
            load_tile<false>(small, tiles[0] + right * row_bytes, columns, KEY_APART + 2 * tile);
            #pragma unroll
            for (int matrix = 0; matrix < 2; matrix++) {
                Left a = load_left<false>(tiles[matrix] + down * row_bytes, rows, 2 * tile, KEY_APART);
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    Right b = {{large[2 * i], large[2 * i + 1]}, {small[2 * i], small[2 * i + 1]}};
                    add_product(sum[matrix][i], a, b);
                }
            }
        }
        #pragma unroll
        for (int i = 0; i < 16; i++) {
            const Sum& part = sum[i / 8][i / 4 % 2];
            products[i / 8][down + lane / 4 + i / 2 % 2 * 8]
                    [right + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2] =
                        (part.main[i % 4] + part.cross[i % 4]) * (1.0f / (ONE * ONE));
        }
    }
    __syncthreads();

    // a value head a warp, a column a lane
    float* a = (float*)memory + warp * CHUNK * CHUNK;
    #pragma unroll 1
    for (u32 sharing = warp; sharing < SHARING; sharing += SOLVE_WARPS) {
        u64 first = (u64)row * VALUE_HEADS + head + sharing; // the next token's is VALUE_HEADS on
        float decay = 1.0f, beta = 0.0f;
        if (lane < tokens) {
            const Factors& f = factors[first + (u64)lane * VALUE_HEADS];
            decay = f.keep, beta = f.beta;
        }
        float since = lanes_product_up_to(decay), until = lanes_product_after(decay);
        if (lane < tokens) decays[first + (u64)lane * VALUE_HEADS] = make_float2(since, until);
        __syncwarp(); // the head before is done with `a`
        float between = 0.0f; // D_ij
        #pragma unroll 4
        for (u32 i = 0; i < CHUNK; i++) {
            between *= __shfl_sync(0xffffffffu, decay, i);
            float row_beta = __shfl_sync(0xffffffffu, beta, i);
            if (lane == i) between = 1.0f;
            a[i * CHUNK + lane] = lane < i ? row_beta * between * products[0][i][lane] : 0.0f;
            float p = lane <= i ? between * products[1][i][lane] : 0.0f;
            u16* to = solved + (first + (u64)i * VALUE_HEADS) * SOLVED_HALVES;
            store_element(to + SOLVED_HALVES / 2, ONE * p, i < tokens);
        }
        __syncwarp();
        // M = (1 + A)^-1 diag(beta), by forward substitution
        float m[CHUNK];
        #pragma unroll
        for (u32 i = 0; i < CHUNK; i++) {
            float sum[4] = {lane == i ? beta : 0.0f, 0.0f, 0.0f, 0.0f};
            #pragma unroll
            for (u32 j = 0; j < i; j += 4) {
                float4 x = *(const float4*)(a + i * CHUNK + j);
                sum[0] = fmaf(-x.x, m[j], sum[0]);
                if (j + 1 < i) sum[1] = fmaf(-x.y, m[j + 1], sum[1]);
                if (j + 2 < i) sum[2] = fmaf(-x.z, m[j + 2], sum[2]);
                if (j + 3 < i) sum[3] = fmaf(-x.w, m[j + 3], sum[3]);
            }
            m[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            u16* to = solved + (first + (u64)i * VALUE_HEADS) * SOLVED_HALVES;
            store_element(to, ONE * m[i], i < tokens);
        }
    }
}

// ---- the recurrence --------------------------------------------------------------------------

// A chunk's inputs in shared memory: keys, queries, M and P, 32 values, decays.
#define QUERIES_AT (CHUNK * KEY_UNITS * 16)
#define SOLVED_AT (2 * QUERIES_AT)
#define VALUES_AT (SOLVED_AT + CHUNK * SOLVED_UNITS * 16)
#define DECAYS_AT (VALUES_AT + CHUNK * 32 * 4)
#define STAGE_BYTES (DECAYS_AT + CHUNK * 8)

// Copies the first `rows` rows, which lie `apart` bytes from each other; the others become zeros.
template <u32 UNITS>
DEVICE void copy_rows(u8* to, const u8* from, u32 apart, u32 rows) {
    #pragma unroll
    for (u32 i = 0; i < CHUNK * UNITS / 128; i++) {
        u32 row = (threadIdx.x + i * 128) / UNITS, unit = threadIdx.x % UNITS;
        copy_async(to + (row * UNITS + unit_at(row, unit)) * 16, from + (u64)row * apart + unit * 16,
                   row < rows);
    }
}

// Largest magnitudes of the columns of mma_f16's tiles, from those of each lane.
DEVICE float2 columns_max(float2 x) {
    #pragma unroll
    for (u32 step = 4; step < WARP; step *= 2) {
        x.x = fmaxf(x.x, __shfl_xor_sync(0xffffffffu, x.x, step));
        x.y = fmaxf(x.y, __shfl_xor_sync(0xffffffffu, x.y, step));
    }
    return x;
}

// Power of two by which numbers up to this magnitude are divided, to lie within [1, 2) * 2^10: halves keep
// all of their bits, and their rests too. 1 for zero, and for what is not finite.
DEVICE float held_scale_of(float largest) {
    u32 exponent = __float_as_uint(largest) >> 23 & 0xff;
    if (exponent < 12 || exponent == 0xff) return 1.0f;
    return __uint_as_float((exponent - 10) << 23);
}

// Of a power of two that held_scale_of gives.
DEVICE float inverse_of(float scale) { return __uint_as_float(0x7f000000 - __float_as_uint(scale)); }

// Rows 16i.. of M (first_unit 0) or P (P_UNIT), which chunk_solve left in the stage, times x.
DEVICE Sum lower_rows(const u8* stage, const TilePlace& solved_rows, u32 first_unit, u32 i, const Right (&x)[2]) {
    Sum sum;
    clear(sum);
    #pragma unroll
    for (u32 j = 0; j <= i; j++)
        add_product(sum,
                    load_left<false>(stage + SOLVED_AT + i * 16 * SOLVED_UNITS * 16, solved_rows,
                                     first_unit + 2 * j, SOLVED_APART),
                    x[j]);
    return sum;
}

// The recurrence over all new tokens of a sequence for 32 value dimensions of a head, 8 a warp: the
// state, transposed, in registers throughout, and everything between the matrix products too. Also
// brings the ring up to date. A chunk's inputs are copied while the one before is worked on.
KERNEL void __launch_bounds__(128) delta_chunk(
    const float* qkv,          // [rows, CONV_CHANNELS] as chunk_solve leaves it
    const u16* solved,         // [rows, VALUE_HEADS, SOLVED_HALVES]
    const float2* decays,      // [rows, VALUE_HEADS]
    const float* proj, u32 ld, // [rows, ld]
    const u32* row_position,   // [rows]
    const u32* first_row,      // [sequences + 1]
    const u64* states,         // [sequences]
    u64 state_at,
    float* out                 // [rows, VALUE_WIDTH]
) {
    SHARED_DYNAMIC(stages); // [2][STAGE_BYTES]
    start_next();
    wait_for_inputs();
    u32 first = first_row[blockIdx.y], count = first_row[blockIdx.y + 1] - first;
    if (count < CHUNK_MIN) return;

    u32 thread = threadIdx.x, g = thread % WARP / 4, t = thread % 4;
    u32 head = blockIdx.x / (VALUE_DIM / 32), value_start = blockIdx.x % (VALUE_DIM / 32) * 32;
    u32 own = thread / WARP * 8 + 2 * t; // the lane's two value dimensions, of the block's
    u32 value_row = head * VALUE_DIM + value_start + own;
    float* memory = (float*)states[blockIdx.y] + state_at;

    auto fetch = [&](u32 start) {
        if (start < count) {
            u32 row = first + start, rows = min(count - start, (u32)CHUNK);
            u8* stage = stages + start / CHUNK % 2 * STAGE_BYTES;
            const float* from = qkv + (u64)row * CONV_CHANNELS;
            u64 item = (u64)row * VALUE_HEADS + head;
            copy_rows<KEY_UNITS>(stage, (const u8*)(from + key_channel(head / SHARING)),
                                 CONV_CHANNELS * 4, rows);
            copy_rows<KEY_UNITS>(stage + QUERIES_AT, (const u8*)(from + query_channel(head / SHARING)),
                                 CONV_CHANNELS * 4, rows);
            copy_rows<SOLVED_UNITS>(stage + SOLVED_AT, (const u8*)(solved + item * SOLVED_HALVES),
                                    VALUE_HEADS * SOLVED_UNITS * 16, rows);
            copy_rows<8>(stage + VALUES_AT, (const u8*)(from + value_channel(head) + value_start),
                         CONV_CHANNELS * 4, rows);
            if (thread < CHUNK) {
                float2* to = (float2*)(stage + DECAYS_AT) + thread;
                if (thread < rows)
                    copy_async_8(to, decays + item + (u64)thread * VALUE_HEADS);
                else
                    *to = make_float2(0.0f, 0.0f);
            }
        }
        copy_commit();
    };
    fetch(0);

    // the state as [16 keys, 8 values] tiles of sums, and its halves
    float state[KEY_TILES][4];
    #pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        #pragma unroll
        for (int i = 0; i < 4; i++)
            state[tile][i] = memory[(u64)(value_row + i % 2) * KEY_DIM + tile * 16 + g + i / 2 * 8];

    TilePlace key_rows = down_first(KEY_UNITS * 16), key_columns = across_first(KEY_UNITS * 16);
    TilePlace solved_rows = down_first(SOLVED_UNITS * 16);
    for (u32 start = 0; start < count; start += CHUNK) {
        copy_wait<0>();
        __syncthreads(); // the stage is there, and the other one free
        fetch(start + CHUNK);
        u32 tokens = min(count - start, (u32)CHUNK);
        const u8* stage = stages + start / CHUNK % 2 * STAGE_BYTES;

        // a scale for each value dimension's state, and one for what it adds to the state
        float2 largest = make_float2(0.0f, 0.0f), bound = largest;
        #pragma unroll
        for (int tile = 0; tile < KEY_TILES; tile++)
            #pragma unroll
            for (int i = 0; i < 4; i += 2) {
                largest.x = fmaxf(largest.x, fabsf(state[tile][i]));
                largest.y = fmaxf(largest.y, fabsf(state[tile][i + 1]));
            }
        largest = columns_max(largest);
        float2 held_scale = make_float2(held_scale_of(largest.x), held_scale_of(largest.y));
        float2 values[4], decay[4]; // of tokens g + 8i
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 token = g + 8 * i;
            values[i] = *(const float2*)(stage + VALUES_AT + token * 128 +
                                         unit_at(token, own / 4) * 16 + own % 4 * 4);
            decay[i] = ((const float2*)(stage + DECAYS_AT))[token];
            bound.x = fmaxf(bound.x, fabsf(values[i].x));
            bound.y = fmaxf(bound.y, fabsf(values[i].y));
        }
        float total = ((const float2*)(stage + DECAYS_AT))[tokens - 1].x;
        bound = columns_max(bound);
        // |x| <= |v| + |S|, with |S| <= 12 times its largest element of 128, and |delta| <= CHUNK
        // times that: neither gets near a half's 65504
        float2 scale = make_float2(held_scale_of(16.0f * (bound.x + 12.0f * largest.x)),
                                   held_scale_of(16.0f * (bound.y + 12.0f * largest.y)));

        // S k and S q of all tokens
        Sum by_key[2], by_query[2];
        #pragma unroll
        for (int i = 0; i < 2; i++) clear(by_key[i]), clear(by_query[i]);
        float2 inverse = make_float2(inverse_of(held_scale.x), inverse_of(held_scale.y));
        #pragma unroll
        for (u32 tile = 0; tile < KEY_TILES; tile++) {
            Right b = right_of(state[tile], inverse);
            #pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u8* rows = stage + i * 16 * KEY_UNITS * 16;
                add_product(by_key[i], load_left<false>(rows, key_rows, 2 * tile, KEY_APART), b);
                add_product(by_query[i],
                            load_left<false>(rows + QUERIES_AT, key_rows, 2 * tile, KEY_APART), b);
            }
        }

        // x, in units of `scale`
        float2 product_scale = make_float2(held_scale.x * (1.0f / ONE), held_scale.y * (1.0f / ONE));
        inverse = make_float2(inverse_of(scale.x), inverse_of(scale.y));
        Right x[2];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            float d[4];
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                float held = (by_key[i].main[j] + by_key[i].cross[j]) *
                             (j % 2 ? product_scale.y : product_scale.x);
                float2 value = values[2 * i + j / 2];
                d[j] = fmaf(-decay[2 * i + j / 2].x, held, j % 2 ? value.y : value.x);
            }
            x[i] = right_of(d, inverse);
        }

        // delta = M x, and D_(last, j) delta
        Right delta[2], late_delta[2];
        const float2 undo_one = make_float2(1.0f / ONE, 1.0f / ONE);
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            Sum sum = lower_rows(stage, solved_rows, 0, i, x);
            float d[4], late[4];
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                d[j] = sum.main[j] + sum.cross[j];
                late[j] = d[j] * decay[2 * i + j / 2].y;
            }
            delta[i] = right_of(d, undo_one);
            late_delta[i] = right_of(late, undo_one);
        }

        // o = G S q + P delta
        float2 added_scale = make_float2(scale.x * (1.0f / ONE), scale.y * (1.0f / ONE));
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            Sum sum = lower_rows(stage, solved_rows, P_UNIT, i, delta);
            #pragma unroll
            for (u32 j = 0; j < 2; j++) {
                u32 token = i * 16 + j * 8 + g;
                float keep = decay[2 * i + j].x;
                float2 y;
                y.x = keep * ((by_query[i].main[2 * j] + by_query[i].cross[2 * j]) * product_scale.x);
                y.y = keep *
                      ((by_query[i].main[2 * j + 1] + by_query[i].cross[2 * j + 1]) * product_scale.y);
                y.x = fmaf(added_scale.x, sum.main[2 * j] + sum.cross[2 * j], y.x);
                y.y = fmaf(added_scale.y, sum.main[2 * j + 1] + sum.cross[2 * j + 1], y.y);
                if (token < tokens)
                    *(float2*)(out + (u64)(first + start + token) * VALUE_WIDTH + value_row) = y;
            }
        }

        // the state, outside of the matrix units: they do not round to nearest
        #pragma unroll
        for (u32 tile = 0; tile < KEY_TILES; tile++) {
            Sum sum;
            clear(sum);
            #pragma unroll
            for (u32 i = 0; i < 2; i++)
                add_product(sum,
                            load_left<true>(stage + i * 16 * KEY_UNITS * 16, key_columns, 2 * tile,
                                            KEY_APART),
                            late_delta[i]);
            #pragma unroll
            for (int i = 0; i < 4; i++)
                state[tile][i] = fmaf(i % 2 ? added_scale.y : added_scale.x,
                                      sum.main[i] + sum.cross[i], total * state[tile][i]);
        }
    }

    #pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        #pragma unroll
        for (int i = 0; i < 4; i++)
            memory[(u64)(value_row + i % 2) * KEY_DIM + tile * 16 + g + i / 2 * 8] = state[tile][i];
    update_ring(memory, proj, ld, row_position, first, count);
}
