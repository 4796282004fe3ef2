// delta_net: everything between in_proj and out_proj of a Gated DeltaNet layer.
//
//   kernel        grid                                        block
//   conv_gates    (rows / CONV_ROWS rounded up, KEY_HEADS)    HEAD_THREADS
//   delta_step    (VALUE_HEADS * VALUE_DIM / 32, sequences)   128
//   gated_norm    rows                                        GATED_THREADS
//   delta_decode  (VALUE_HEADS, rows)                         DECODE_THREADS, dynamic shared DECODE_BYTES
//
// The others have no dynamic shared memory. Any rows run conv_gates, the recurrence, gated_norm in turn. The
// recurrence is delta_step for sequences with fewer than CHUNK_MIN rows, and chunked.cu's kernels for
// the others. Where no sequence has more than one row and VALUE_DIM is a multiple of GROUP,
// delta_decode does the same alone, with the bits of delta_step: what could be fused into a
// multiply-add in one kernel and not in the other is written out.
//
// Dimensions beside the prelude's: CONV_CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS *
// VALUE_DIM, and the columns of in_proj's output: COLUMN_QKV, COLUMN_Z (multiples of 4), COLUMN_B,
// COLUMN_A. Its row length `ld` is a multiple of 4 as well. KEY_DIM and VALUE_DIM are 32, 64 or 128.
//
// A sequence's memory of a layer, in floats, from `state_at` on in its state block:
//
//   state  [VALUE_HEADS, VALUE_DIM, KEY_DIM]
//   ring   [CONV_TAPS, CONV_CHANNELS]: raw outputs of in_proj; position p's stand in row
//          p % CONV_TAPS
//
// All zeros before position 0. The ring has one row more than the convolution looks back, so that
// the rows that a token reads are not the one in which it leaves its own: blocks that share a
// channel need no order.
//
// q and k enter delta_step unnormalised: their lengths are folded into the factors of a token (see
// Factors), which costs nothing there and saves a pass.

#define HEAD_THREADS (KEY_DIM > VALUE_DIM ? KEY_DIM : VALUE_DIM)
#define CONV_ROWS 8
#define SHARING (VALUE_HEADS / KEY_HEADS) // value heads that use a key head
#define VALUE_WIDTH (VALUE_HEADS * VALUE_DIM)
#define KEY_WARPS (KEY_DIM / WARP)
#define LAYER_STATE ((u64)VALUE_HEADS * VALUE_DIM * KEY_DIM)
#define CHUNK_MIN 16 // rows of a sequence from which on chunked.cu is faster
#define LENGTH_EPS 1e-6f // of the length of q and k, whatever the model's own

// ---- a token's convolution and factors -------------------------------------------------------

// First channel of a head's q, k or v.
DEVICE u32 query_channel(u32 key_head) { return key_head * KEY_DIM; }
DEVICE u32 key_channel(u32 key_head) { return (KEY_HEADS + key_head) * KEY_DIM; }
DEVICE u32 value_channel(u32 head) { return 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM; }

// The convolution's row of the ring for the token `back` before `position`; back <= CONV_TAPS.
DEVICE u64 ring_at(u32 position, u32 back, u32 channel) {
    return LAYER_STATE + (u64)((position + CONV_TAPS - back) % CONV_TAPS) * CONV_CHANNELS + channel;
}

// A channel's taps, oldest first.
struct Taps {
    float weight[CONV_TAPS];
};

DEVICE Taps load_taps(const float* conv, u32 channel) {
    Taps taps;
    #pragma unroll
    for (int i = 0; i < CONV_TAPS; i++) taps.weight[i] = conv[(u64)channel * CONV_TAPS + i];
    return taps;
}

// Convolution and SiLU; `raw` has the channel's last CONV_TAPS values, oldest first. The quotient is
// right to 2 units in the last place: the exact one takes as long as all the rest.
DEVICE float convolve(const Taps& taps, const float* raw) {
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < CONV_TAPS; i++) sum = fmaf(taps.weight[i], raw[i], sum);
    return __fdividef(sum, 1.0f + expf(-sum));
}

// What a token does to a value head, with q and k as the convolution left them:
//   w = write * (v - keep_key * (S k)),  S = keep * S + w (x) k,  o = keep_query * (S q) + w * match
// with the S before the token in both products. For q' = q / |q| / sqrt(KEY_DIM) and k' = k / |k|
// this is S = keep * S, delta = beta * (v - S k'), S += delta (x) k', o = S q'.
struct Factors {
    float keep, keep_key, write, beta; // decay, decay / |k|, beta / |k|, beta
    float keep_query, match, query, key; // decay / |q|, (q k) / |q|, 1 / |q|, 1 / |k|
};

// Sums of a head's q q, k k and q k, of which each warp of the KEY_DIM channels has a part.
struct Lengths {
    float qq, kk, qk, pad;
};

DEVICE Lengths warp_lengths(float query, float key) {
    Lengths sums;
    sums.qq = lanes_sum(__fmul_rn(query, query));
    sums.kk = lanes_sum(__fmul_rn(key, key));
    sums.qk = lanes_sum(__fmul_rn(query, key));
    sums.pad = 0.0f;
    return sums;
}

DEVICE Factors factors_of(const Lengths* parts, float decay, float beta) {
    float qq = 0.0f, kk = 0.0f, qk = 0.0f;
    #pragma unroll
    for (int warp = 0; warp < KEY_WARPS; warp++) {
        qq += parts[warp].qq;
        kk += parts[warp].kk;
        qk += parts[warp].qk;
    }
    float query = rsqrtf(qq + LENGTH_EPS) * rsqrtf((float)KEY_DIM);
    float key = rsqrtf(kk + LENGTH_EPS);
    Factors f;
    f.keep = decay;
    f.keep_key = decay * key;
    f.write = beta * key;
    f.keep_query = decay * query;
    f.match = query * qk;
    f.beta = beta;
    f.query = query;
    f.key = key;
    return f;
}

// exp(-exp(a_log) * softplus(a + dt_bias))
DEVICE float decay_of(float a, float a_log, float dt_bias) {
    float x = a + dt_bias;
    float softplus = __fadd_rn(fmaxf(x, 0.0f), log1pf(expf(-fabsf(x))));
    return expf(-expf(a_log) * softplus);
}

// Sums over a warp of CONV_ROWS numbers a lane, with the bits of lanes_sum: a lane gets that of row
// lane / 4. Each step halves what is left to sum.
DEVICE float row_sum(const float (&x)[CONV_ROWS]) {
    static_assert(CONV_ROWS == 8, "lane / 4 is a row");
    bool upper = threadIdx.x & 16, odd = threadIdx.x & 8, last = threadIdx.x & 4;
    float four[4], two[2];
    #pragma unroll
    for (int i = 0; i < 4; i++)
        four[i] = (upper ? x[i + 4] : x[i]) +
                  __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + 4], 16);
    #pragma unroll
    for (int i = 0; i < 2; i++)
        two[i] = (odd ? four[i + 2] : four[i]) +
                 __shfl_xor_sync(0xffffffffu, odd ? four[i] : four[i + 2], 8);
    float sum = (last ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, last ? two[0] : two[1], 4);
    return lanes_sum<4>(sum);
}

// A warp's part of the lengths of CONV_ROWS rows, from its channels of q and k.
DEVICE void store_lengths(Lengths (&parts)[CONV_ROWS][KEY_WARPS], const float (&query)[CONV_ROWS],
                          const float (&key)[CONV_ROWS]) {
    float qq[CONV_ROWS], kk[CONV_ROWS], qk[CONV_ROWS];
    #pragma unroll
    for (int i = 0; i < CONV_ROWS; i++) {
        qq[i] = __fmul_rn(query[i], query[i]);
        kk[i] = __fmul_rn(key[i], key[i]);
        qk[i] = __fmul_rn(query[i], key[i]);
    }
    Lengths sums;
    sums.qq = row_sum(qq), sums.kk = row_sum(kk), sums.qk = row_sum(qk), sums.pad = 0.0f;
    u32 thread = threadIdx.x;
    if (thread % 4 == 0) parts[thread % WARP / 4][thread / WARP] = sums;
}

// Convolution of CONV_ROWS rows for one key head and the value heads that use it.
KERNEL void __launch_bounds__(HEAD_THREADS, 1) conv_gates(
    const float* proj, u32 ld,  // [rows, ld]
    const u32* row_sequence,    // [rows]
    const u32* row_position,    // [rows]
    const u32* first_row,       // [sequences + 1]
    const u64* states,          // [sequences]
    u64 state_at,
    const float* conv,          // [CONV_CHANNELS, CONV_TAPS]
    const float* a_log,         // [VALUE_HEADS]
    const float* dt_bias,       // [VALUE_HEADS]
    u32 rows,
    float* qkv,                 // [rows, CONV_CHANNELS] after convolution and SiLU
    Factors* factors            // [rows, VALUE_HEADS]
) {
    SHARED Lengths parts[CONV_ROWS][KEY_WARPS];
    // No early start_next: delta_step's few long blocks would share what multiprocessors are free first.
    u32 thread = threadIdx.x, key_head = blockIdx.y, start = blockIdx.x * CONV_ROWS;
    wait_for_inputs();

    // rows of this step that their sequence has before them, as far as the convolution looks back
    u32 sequences[CONV_ROWS], seen[CONV_ROWS];
    bool inner = true; // no row of the block needs the ring, and none is padding
    #pragma unroll
    for (int i = 0; i < CONV_ROWS; i++) {
        sequences[i] = start + i < rows ? row_sequence[start + i] : NONE;
        seen[i] = sequences[i] == NONE ? 0 : min(start + i - first_row[sequences[i]], CONV_TAPS - 1u);
        inner = inner && seen[i] == CONV_TAPS - 1;
    }

    // one channel of q, of k and of each v a thread
    float query[CONV_ROWS];
    #pragma unroll 1
    for (u32 part = 0; part < 2 + SHARING; part++) {
        // whole warps
        if (KEY_DIM != VALUE_DIM && thread >= (part < 2 ? KEY_DIM : VALUE_DIM)) continue;
        u32 channel = (part == 0   ? query_channel(key_head)
                       : part == 1 ? key_channel(key_head)
                                   : value_channel(key_head * SHARING + part - 2)) + thread;
        Taps taps = load_taps(conv, channel);
        const float* from = proj + COLUMN_QKV + channel;
        float* to = qkv + (u64)start * CONV_CHANNELS + channel;
        float raw[CONV_ROWS + CONV_TAPS - 1]; // of the rows before `start` too
        #pragma unroll
        for (int i = 0; i < CONV_ROWS + CONV_TAPS - 1; i++) {
            u32 row = start + i - (CONV_TAPS - 1); // wraps below row 0
            raw[i] = inner || row < rows ? from[(u64)row * ld] : 0.0f;
        }
        float y[CONV_ROWS];
        if (inner) {
            #pragma unroll
            for (int i = 0; i < CONV_ROWS; i++) {
                y[i] = convolve(taps, raw + i);
                to[(u64)i * CONV_CHANNELS] = y[i];
            }
        } else {
            #pragma unroll
            for (int i = 0; i < CONV_ROWS; i++) {
                y[i] = 0.0f;
                if (sequences[i] == NONE) continue;
                const float* state = (const float*)states[sequences[i]] + state_at;
                u32 position = row_position[start + i];
                float window[CONV_TAPS];
                #pragma unroll
                for (int tap = 0; tap < CONV_TAPS; tap++) {
                    u32 back = CONV_TAPS - 1 - tap;
                    bool ring = back > seen[i];
                    window[tap] = ring ? state[ring_at(position, back, channel)] : raw[i + tap];
                }
                y[i] = convolve(taps, window);
                to[(u64)i * CONV_CHANNELS] = y[i];
            }
        }
        if (part == 1) store_lengths(parts, query, y);
        #pragma unroll
        for (int i = 0; i < CONV_ROWS; i++) query[i] = y[i];
    }
    __syncthreads();

    for (u32 item = thread; item < CONV_ROWS * SHARING; item += HEAD_THREADS) {
        u32 i = item / SHARING, row = start + i, head = key_head * SHARING + item % SHARING;
        if (row >= rows || row_sequence[row] == NONE) continue;
        const float* from = proj + (u64)row * ld;
        float decay = decay_of(from[COLUMN_A + head], a_log[head], dt_bias[head]);
        factors[(u64)row * VALUE_HEADS + head] =
            factors_of(parts[i], decay, sigmoid(from[COLUMN_B + head]));
    }
}

// ---- the recurrence --------------------------------------------------------------------------

// A warp holds 8 rows (value dimensions) of a head's state: 16 lanes share four neighbouring rows,
// and lane l of them has keys 4l..4l+4 and 64+4l..64+4l+4 (2l..2l+2 where KEY_DIM is 32) of each.
// More lanes a row would mean more steps to sum over them, fewer would read every key and query
// from shared memory more often.
#define ROW_LANES 16
#define LANE_ROWS 4
#define LANE_KEYS (KEY_DIM / ROW_LANES)
#define VECTOR (LANE_KEYS < 4 ? LANE_KEYS : 4) // keys that lie together

struct Keys {
    float at[LANE_KEYS];
};

DEVICE Keys load_keys(const float* from /* [KEY_DIM], shared or global */) {
    Keys keys;
    u32 l = threadIdx.x % ROW_LANES;
#if KEY_DIM == 32
    float2 x = *(const float2*)(from + 2 * l);
    keys.at[0] = x.x, keys.at[1] = x.y;
#else
    #pragma unroll
    for (int i = 0; i < LANE_KEYS; i += 4) {
        float4 x = *(const float4*)(from + 16 * i + 4 * l);
        keys.at[i] = x.x, keys.at[i + 1] = x.y, keys.at[i + 2] = x.z, keys.at[i + 3] = x.w;
    }
#endif
    return keys;
}

DEVICE void store_keys(float* to, const Keys& keys) {
    u32 l = threadIdx.x % ROW_LANES;
#if KEY_DIM == 32
    *(float2*)(to + 2 * l) = make_float2(keys.at[0], keys.at[1]);
#else
    #pragma unroll
    for (int i = 0; i < LANE_KEYS; i += 4)
        *(float4*)(to + 16 * i + 4 * l) =
            make_float4(keys.at[i], keys.at[i + 1], keys.at[i + 2], keys.at[i + 3]);
#endif
}

// Product of a lane's part of a row with its part of a vector.
DEVICE float lane_product(const Keys& a, const Keys& b) {
    float sum[VECTOR];
    #pragma unroll
    for (int i = 0; i < LANE_KEYS; i++)
        sum[i % VECTOR] = i < VECTOR ? __fmul_rn(a.at[i], b.at[i])
                                     : fmaf(a.at[i], b.at[i], sum[i % VECTOR]);
    #pragma unroll
    for (int step = VECTOR / 2; step > 0; step /= 2)
        #pragma unroll
        for (int i = 0; i < step; i++) sum[i] = __fadd_rn(sum[i], sum[i + step]);
    return sum[0];
}

// Sums of four rows' products with a vector over the lanes that share them: a lane gets that of its
// own row, row l / 4. Each step halves what is left to sum.
DEVICE float own_product(const Keys (&state)[LANE_ROWS], const Keys& vector) {
    u32 l = threadIdx.x % ROW_LANES;
    float a = lane_product(state[0], vector), b = lane_product(state[1], vector);
    float c = lane_product(state[2], vector), d = lane_product(state[3], vector);
    bool upper = l & 8, odd = l & 4;
    float keep0 = upper ? c : a, keep1 = upper ? d : b;
    keep0 += __shfl_xor_sync(0xffffffffu, upper ? a : c, 8);
    keep1 += __shfl_xor_sync(0xffffffffu, upper ? b : d, 8);
    float own = odd ? keep1 : keep0;
    own += __shfl_xor_sync(0xffffffffu, odd ? keep0 : keep1, 4);
    return lanes_sum<4>(own);
}

// One token on a warp's 8 rows; `value` and the result are those of the lane's own row.
DEVICE float delta_token(Keys (&state)[LANE_ROWS], const Keys& query, const Keys& key, float value,
                         float4 f0, float2 f1) {
    float keep = f0.x, keep_key = f0.y, write = f0.z, keep_query = f1.x, match = f1.y;
    float held = own_product(state, key);
    float read = own_product(state, query);
    float own = write * fmaf(-keep_key, held, value);
    #pragma unroll
    for (int row = 0; row < LANE_ROWS; row++) {
        float w = __shfl_sync(0xffffffffu, own, 4 * row, ROW_LANES);
        #pragma unroll
        for (int i = 0; i < LANE_KEYS; i++)
            state[row].at[i] = fmaf(w, key.at[i], keep * state[row].at[i]);
    }
    return fmaf(keep_query, read, match * own);
}

// A token's inputs in shared memory: q, k, 32 values, factors.
#define TOKEN_FLOATS (2 * KEY_DIM + 32 + 8)
#define STAGE_TOKENS 8 // the inputs' 16-byte parts are at most as many as a block's threads
#define STAGES 3

// The last raw inputs of a sequence's new rows, by blocks of 128 threads that share them out.
DEVICE void update_ring(float* memory, const float* proj, u32 ld, const u32* row_position, u32 first,
                        u32 count) {
    u32 last = first + count - 1;
    for (u32 back = 0; back < min(count, (u32)CONV_TAPS); back++)
        for (u32 channel = blockIdx.x * 128 + threadIdx.x; channel < CONV_CHANNELS;
             channel += gridDim.x * 128)
            memory[ring_at(row_position[last], back, channel)] =
                proj[(u64)(last - back) * ld + COLUMN_QKV + channel];
}

// The recurrence over the few new tokens of a sequence for 32 rows of a value head, the state in
// registers throughout; also brings the ring of raw inputs up to date. The tokens' inputs are
// copied to shared memory up to two stages ahead.
KERNEL void __launch_bounds__(128) delta_step(
    const float* qkv,          // [rows, CONV_CHANNELS]
    const Factors* factors,    // [rows, VALUE_HEADS]
    const float* proj, u32 ld, // [rows, ld]
    const u32* row_position,   // [rows]
    const u32* first_row,      // [sequences + 1]
    const u64* states,         // [sequences]
    u64 state_at,
    float* out                 // [rows, VALUE_WIDTH]
) {
    SHARED float4 stages[STAGES][STAGE_TOKENS][TOKEN_FLOATS / 4];
    start_next();
    wait_for_inputs();
    u32 first = first_row[blockIdx.y], count = first_row[blockIdx.y + 1] - first;
    if (count == 0 || count >= CHUNK_MIN) return;

    u32 thread = threadIdx.x, lane = thread % WARP;
    u32 head = blockIdx.x / (VALUE_DIM / 32), value_start = blockIdx.x % (VALUE_DIM / 32) * 32;
    u32 rows_at = thread / WARP * 8 + lane / ROW_LANES * LANE_ROWS; // of the lane's rows in the block
    u32 own_at = rows_at + lane % ROW_LANES / 4;
    u32 block_row = head * VALUE_DIM + value_start;
    float* memory = (float*)states[blockIdx.y] + state_at;

    // a thread copies the same 16 bytes of every token's inputs
    u32 at = thread * 4;
    const float* from = 0;
    u32 apart = CONV_CHANNELS; // from one token's to the next
    if (at < KEY_DIM) {
        from = qkv + (u64)first * CONV_CHANNELS + query_channel(head / SHARING) + at;
    } else if (at < 2 * KEY_DIM) {
        from = qkv + (u64)first * CONV_CHANNELS + key_channel(head / SHARING) + at - KEY_DIM;
    } else if (at < 2 * KEY_DIM + 32) {
        from = qkv + (u64)first * CONV_CHANNELS + value_channel(head) + value_start + at - 2 * KEY_DIM;
    } else if (at < TOKEN_FLOATS) {
        from = (const float*)(factors + (u64)first * VALUE_HEADS + head) + at - 2 * KEY_DIM - 32;
        apart = VALUE_HEADS * (u32)(sizeof(Factors) / sizeof(float));
    }
    u32 fetched = 0;
    float4* slots = (float4*)stages + thread; // of the first token of the first stage
    float4* slot = slots;
    auto fetch = [&]() { // one more stage
        if (at < TOKEN_FLOATS) {
            #pragma unroll
            for (u32 token = 0; token < STAGE_TOKENS; token++) {
                if (fetched + token < count) copy_async(slot + token * (TOKEN_FLOATS / 4), from);
                from += apart;
            }
        }
        copy_commit();
        fetched += STAGE_TOKENS;
        slot += STAGE_TOKENS * (TOKEN_FLOATS / 4);
        if (slot == slots + STAGES * STAGE_TOKENS * (TOKEN_FLOATS / 4)) slot = slots;
    };
    fetch();
    fetch();

    Keys state[LANE_ROWS];
    float* held = memory + (u64)(block_row + rows_at) * KEY_DIM;
    #pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) state[i] = load_keys(held + i * KEY_DIM);

    float* to = out + (u64)first * VALUE_WIDTH + block_row + own_at;
    for (u32 stage = 0; stage * STAGE_TOKENS < count; stage++) {
        copy_wait<1>();
        __syncthreads(); // the stage is there, and the one before the last is free
        fetch();
        u32 tokens = min(count - stage * STAGE_TOKENS, (u32)STAGE_TOKENS);
        const float* inputs = (const float*)stages[stage % STAGES];
        #pragma unroll 4
        for (u32 token = 0; token < tokens; token++, inputs += TOKEN_FLOATS, to += VALUE_WIDTH) {
            Keys query = load_keys(inputs), key = load_keys(inputs + KEY_DIM);
            float value = inputs[2 * KEY_DIM + own_at];
            float4 f0 = *(const float4*)(inputs + 2 * KEY_DIM + 32);
            float2 f1 = *(const float2*)(inputs + 2 * KEY_DIM + 36);
            float y = delta_token(state, query, key, value, f0, f1);
            if (lane % 4 == 0) *to = y;
        }
    }

    #pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) store_keys(held + i * KEY_DIM, state[i]);
    update_ring(memory, proj, ld, row_position, first, count);
}

// ---- gated norm ------------------------------------------------------------------------------

// RMSNorm of a head times gain times gate: 8 elements a lane, aligned runs of VALUE_DIM / 8 lanes
// hold a head. All lanes of a warp call it.
DEVICE void norm_octet(float (&y)[8], const float (&gain)[8], const float (&gate)[8]) {
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(y[i], y[i], sum);
    float scale = rsqrtf(lanes_sum<VALUE_DIM / 8>(sum) * (1.0f / VALUE_DIM) + NORM_EPS);
    #pragma unroll
    for (int i = 0; i < 8; i++) y[i] *= scale * gain[i] * gate[i];
}

#define GATED_THREADS (VALUE_WIDTH / 8 >= 1024 ? 1024 : (VALUE_WIDTH / 8 + WARP - 1) / WARP * WARP)

KERNEL void __launch_bounds__(GATED_THREADS) gated_norm(
    const float* read,         // [rows, VALUE_WIDTH] what delta_step gave
    const float* proj, u32 ld, // [rows, ld]
    const u32* row_sequence,   // [rows]; a padding row gets zeros
    const float* gain,         // [VALUE_DIM]
    Activations out            // [rows, VALUE_WIDTH]
) {
    start_next();
    wait_for_inputs();
    u32 row = blockIdx.x;
    bool padding = row_sequence[row] == NONE;
    for (u32 start = 0; start < VALUE_WIDTH; start += GATED_THREADS * 8) {
        u32 at = start + threadIdx.x * 8;
        bool valid = at < VALUE_WIDTH;
        float y[8], gains[8], gate[8];
        load_octet(gains, gain + at % VALUE_DIM, true);
        load_octet(gate, proj + (u64)row * ld + COLUMN_Z + at, valid && !padding);
        load_octet(y, read + (u64)row * VALUE_WIDTH + at, valid && !padding);
        #pragma unroll
        for (int i = 0; i < 8; i++) gate[i] = silu(gate[i]);
        norm_octet(y, gains, gate);
        write_octet(out, row, VALUE_WIDTH, at, y, valid);
    }
}

// ---- all of it for one token a sequence -------------------------------------------------------

#define DECODE_THREADS (VALUE_DIM * 2)
#define DECODE_PASSES 2 // of a warp, 8 rows of the state each
#define DECODE_CHANNELS (2 * KEY_DIM + VALUE_DIM) // q, k, v
#define DECODE_OWN ((DECODE_CHANNELS + DECODE_THREADS - 1) / DECODE_THREADS)
#define DECODE_BYTES (VALUE_DIM * KEY_DIM * 4)

// Where a thread's own part of the state lies in shared memory: nobody else reads it.
DEVICE float* decode_slot(u8* shared, int pass, int row, int vector) {
    int slot = (pass * LANE_ROWS + row) * (LANE_KEYS / VECTOR) + vector;
    return (float*)shared + (slot * DECODE_THREADS + threadIdx.x) * VECTOR;
}

// Asks for the part of a row of the state that load_keys reads.
DEVICE void decode_fetch(u8* shared, const float* from /* [KEY_DIM] */, int pass, int row) {
    u32 l = threadIdx.x % ROW_LANES;
#if KEY_DIM == 32
    copy_async_8(decode_slot(shared, pass, row, 0), from + 2 * l);
#else
    #pragma unroll
    for (int i = 0; i < LANE_KEYS; i += 4)
        copy_async(decode_slot(shared, pass, row, i / 4), from + 16 * i + 4 * l);
#endif
}

DEVICE Keys decode_keys(u8* shared, int pass, int row) {
    Keys keys;
    #pragma unroll
    for (int i = 0; i < LANE_KEYS; i += VECTOR) {
        const float* slot = decode_slot(shared, pass, row, i / VECTOR);
#if KEY_DIM == 32
        float2 x = *(const float2*)slot;
        keys.at[i] = x.x, keys.at[i + 1] = x.y;
#else
        float4 x = *(const float4*)slot;
        keys.at[i] = x.x, keys.at[i + 1] = x.y, keys.at[i + 2] = x.z, keys.at[i + 3] = x.w;
#endif
    }
    return keys;
}

// A value head of a sequence's only new token: convolution, factors, recurrence and gated norm.
// Blocks that share a key head each compute its q and k. The state comes through shared memory, so that a
// multiprocessor has room for several blocks: one is read while others are worked on and written.
//
// Fetched before the wait: the state, the ring and what tells where they are. Kernels before this
// one in the chain do not write them if the chain's first kernel does not start before the step
// before has ended (no programmatic launch) and finds the batch's arrays written.
KERNEL void __launch_bounds__(DECODE_THREADS, 3) delta_decode(
    const float* proj, u32 ld, // [rows, ld]
    const u32* row_sequence,   // [rows]; a padding row gets zeros
    const u32* row_position,   // [rows]
    const u64* states,         // [sequences]
    u64 state_at,
    const float* conv,         // [CONV_CHANNELS, CONV_TAPS]
    const float* a_log,        // [VALUE_HEADS]
    const float* dt_bias,      // [VALUE_HEADS]
    const float* gain,         // [VALUE_DIM]
    Activations out            // [rows, VALUE_WIDTH]
) {
    SHARED_DYNAMIC(shared);
    SHARED float4 inputs[DECODE_CHANNELS / 4]; // q, k, v
    SHARED Lengths parts[KEY_WARPS];
    SHARED float gates[2]; // decay, beta
    SHARED float4 norm[3][VALUE_DIM / 4]; // what the gated norm takes: what was read, gains, gates
    start_next();
    u32 head = blockIdx.x, key_head = head / SHARING, row = blockIdx.y;
    u32 thread = threadIdx.x, lane = thread % WARP;
    u32 sequence = row_sequence[row], position = row_position[row];
    bool padding = sequence == NONE;
    float* memory = padding ? 0 : (float*)states[sequence] + state_at;

    // the lane's rows of the state in the first pass; the next's are the block's next ones
    constexpr u32 PASS_ROWS = DECODE_THREADS / WARP * 8;
    u32 rows_at = thread / WARP * 8 + lane / ROW_LANES * LANE_ROWS;
    float* held = memory + ((u64)head * VALUE_DIM + rows_at) * KEY_DIM;
    #pragma unroll
    for (int pass = 0; pass < DECODE_PASSES; pass++) {
        if (!padding) {
            #pragma unroll
            for (int i = 0; i < LANE_ROWS; i++)
                decode_fetch(shared, held + (pass * PASS_ROWS + i) * KEY_DIM, pass, i);
        }
        copy_commit();
    }
    // channels of a thread
    u32 channel[DECODE_OWN];
    Taps taps[DECODE_OWN];
    float raw[DECODE_OWN][CONV_TAPS];
    #pragma unroll
    for (int i = 0; i < DECODE_OWN; i++) {
        u32 at = i * DECODE_THREADS + thread;
        channel[i] = at < KEY_DIM       ? query_channel(key_head) + at
                     : at < 2 * KEY_DIM ? key_channel(key_head) + at - KEY_DIM
                                        : value_channel(head) + at - 2 * KEY_DIM;
        if (at >= DECODE_CHANNELS || padding) continue;
        taps[i] = load_taps(conv, channel[i]);
        #pragma unroll
        for (u32 back = CONV_TAPS - 1; back > 0; back--)
            raw[i][CONV_TAPS - 1 - back] = memory[ring_at(position, back, channel[i])];
    }
    bool gating = thread == DECODE_THREADS - 1;
    float head_a_log = a_log[head], head_dt_bias = dt_bias[head];
    if (thread < VALUE_DIM) ((float*)norm[1])[thread] = gain[thread];
    wait_for_inputs();

    const float* from = proj + (u64)row * ld;
    if (!padding) {
        #pragma unroll
        for (int i = 0; i < DECODE_OWN; i++) {
            u32 at = i * DECODE_THREADS + thread;
            if (at >= DECODE_CHANNELS) continue;
            raw[i][CONV_TAPS - 1] = from[COLUMN_QKV + channel[i]];
            ((float*)inputs)[at] = convolve(taps[i], raw[i]);
            // those of q and k by one of the blocks that share them
            if (at >= 2 * KEY_DIM || head % SHARING == 0)
                memory[ring_at(position, 0, channel[i])] = raw[i][CONV_TAPS - 1];
        }
        if (thread < VALUE_DIM)
            ((float*)norm[2])[thread] = silu(from[COLUMN_Z + head * VALUE_DIM + thread]);
        if (gating) {
            gates[0] = decay_of(from[COLUMN_A + head], head_a_log, head_dt_bias);
            gates[1] = sigmoid(from[COLUMN_B + head]);
        }
    }
    const float* query_in = (const float*)inputs;
    const float* key_in = query_in + KEY_DIM;
    const float* value_in = key_in + KEY_DIM;
    __syncthreads();
    if (!padding) {
        for (u32 part = thread / WARP; part < KEY_WARPS; part += DECODE_THREADS / WARP) {
            Lengths sums = warp_lengths(query_in[part * WARP + lane], key_in[part * WARP + lane]);
            if (lane == 0) parts[part] = sums;
        }
    }
    __syncthreads();
    if (!padding) {
        Factors f = factors_of(parts, gates[0], gates[1]);
        float4 f0 = make_float4(f.keep, f.keep_key, f.write, 0.0f);
        float2 f1 = make_float2(f.keep_query, f.match);
        Keys query = load_keys(query_in), key = load_keys(key_in);
        #pragma unroll
        for (int pass = 0; pass < DECODE_PASSES; pass++) {
            if (pass == 0) copy_wait<DECODE_PASSES - 1>();
            else copy_wait<0>();
            Keys state[LANE_ROWS];
            #pragma unroll
            for (int i = 0; i < LANE_ROWS; i++) state[i] = decode_keys(shared, pass, i);
            u32 own_at = pass * PASS_ROWS + rows_at + lane % ROW_LANES / 4;
            float o = delta_token(state, query, key, value_in[own_at], f0, f1);
            if (lane % 4 == 0) ((float*)norm[0])[own_at] = o;
            #pragma unroll
            for (int i = 0; i < LANE_ROWS; i++)
                store_keys(held + (pass * PASS_ROWS + i) * KEY_DIM, state[i]);
        }
    }
    __syncthreads();
    if (thread >= WARP) return;
    bool norming = thread < VALUE_DIM / 8;
    float gains[8], gate[8], y[8];
    load_octet(y, (const float*)norm[0] + thread * 8, norming && !padding);
    load_octet(gains, (const float*)norm[1] + thread * 8, norming);
    load_octet(gate, (const float*)norm[2] + thread * 8, norming && !padding);
    norm_octet(y, gains, gate);
#if VALUE_DIM % GROUP == 0
    write_octet(out, row, VALUE_WIDTH, head * VALUE_DIM + thread * 8, y, norming);
#endif
}
