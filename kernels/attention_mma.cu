// Streaming attention on tensor cores, for one head size and one 16-bit type: the formulas of attention.cu.
//
// Left open: ATTENTION_HEAD, 32, 64, 80, 96 or 128; ATTENTION_NUMBER, f16 or bf16. Where ATTENTION_WIDE is defined,
// there are other plain kernels of the backward passes alone, whose warps have two bands where these have one; the
// order of every sum is the same.
//
// A block has four warps; each has bands of 16 rows of its own, whose scores stay in its registers, where they become
// the left operand of the next product. Forward and dq: rows are queries, with a loop over tiles of keys and values; dk
// and dv: rows are keys, with a loop over tiles of queries and of gradients of the result, and transposed scores: s^T =
// k q^T. Tiles come by asynchronous copies of 16 bytes into one of two buffers while the other is worked on, one
// barrier a tile. dk and dv take the query heads of a key head in turn, and dq with a bias shared by sequences takes
// the sequences of a group in turn, as in attention.cu: the order of every sum is fixed. Making the scores twice in the
// backward pass, seven products instead of five, is the price.
//
// Each pass is there twice: plain (the causal rule and the window alone, scale above 0) and general (masks, documents,
// soft cap, bias, dropout besides).
//
// Launch: blocks of 128 threads, in a line: tiles of rows, then heads, then sequences. Dynamic shared memory: see
// `Plan`, which the host repeats. Rows are Head + 8 elements apart, an odd number of 16 bytes, so that the eight rows
// of a matrix load are in eight different banks.
// Numerics: products of 16-bit numbers summed in f32; probabilities, at most 1 times dropout's scale, and gradients of
// scores are rounded to the 16-bit type as operands of the second product. In f16 a gradient of a score above 65504
// becomes infinite, as gradients of activations do at such a loss scale. Softmax in powers of two, scale and log2(e)
// folded into one factor. Operations: a tile of R rows by C columns takes 2 R C H flops a product; two products
// forward, three for dq, four for dk and dv. Bytes: each tile of the loop is read from the second level of the cache
// once a block, 4 C H bytes for two operands: R flops a byte forward, 1.5 R for dq and 2 R for dk and dv, R being 64
// times the bands. In shared memory a matrix load of 512 bytes for the right operand serves 2 * bands instructions of
// 4096 flops. A band's rows of the left operand are read again for each tile of the loop: forward has two bands for
// every head, so that what they multiply is read half as often, which is more than the left operand is.
// Occupancy of the plain kind, as compiled for 9.0a: blocks of a multiprocessor with 64 Ki registers, which allow two
// blocks of up to 255 registers a thread and three of up to 168; in brackets the KiB of shared memory of a block, of
// which a multiprocessor has 228, and 164 on 8.0.
//     H             32        64        80        96       128
//     forward     3 (30)    2 (54)    2 (66)    2 (52)    2 (68)
//     dq          2 (30)    2 (36)    2 (44)    2 (52)    2 (68)
//     dk, dv      2 (30)    3 (36)    2 (44)    2 (52)    2 (68)
// Wide, H 64: dq 2 (54), 223 registers; dk, dv 2 (54), 255.

// Leaves out what dropout drops, and scales what it keeps.
template <int Head, int Bands, int Tiles>
__device__ __forceinline__ void drop(const AttentionArguments& a, const Corner& corner,
                                     float (&scores)[Bands][Tiles][4]) {
    KeptKeys<Bands, Tiles, Head == 80 || !kHasRoom ? 1 : 2> kept;
    kept.make(a, corner);
#pragma unroll
    for (int band = 0; band < Bands; ++band) {
#pragma unroll
        for (int j = 0; j < Tiles; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float factors[2];
                kept.factors(a, band, half, j, factors);
                scores[band][j][2 * half] *= factors[0];
                scores[band][j][2 * half + 1] *= factors[1];
            }
        }
    }
}

template <int Head, class Number, bool General>
__device__ __forceinline__ void mma_forward(const AttentionArguments& a) {
    constexpr int kBands = Plan<Head>::kForwardBands, kKeys = Plan<Head>::kForwardKeys, kRow = Plan<Head>::kRow;
    constexpr int kRows = kMmaWarps * 16 * kBands;
    SHARED_AT_LAUNCH(memory);
    SHARED(int, range, [2]);
    Number* const queries = reinterpret_cast<Number*>(memory);
    Number* const keys = queries + kRows * kRow;
    Number* const values = keys + 2 * kKeys * kRow;

    const Share share = share_of(a, a.queries, kRows, a.heads, a.ahead == 0);
    const int b = share.b, n = share.n, kv = n / (a.heads / a.kv_heads);
    const int row = share.row + mma_warp() * 16 * kBands;
    seen_keys(a, b, range);
    const KeyRange seen = keys_of_tile<General>(a, b, share.row, kRows, range);
    const int start = seen.first / kKeys * kKeys, end = seen.end;
    const auto copy = [&](int s) {
        const int buffer = (s - start) / kKeys % 2 * kKeys * kRow;
        copy_rows<Head, Number, kKeys>(a.k, b, kv, s, a.keys, keys + buffer);
        copy_rows<Head, Number, kKeys>(a.v, b, kv, s, a.keys, values + buffer);
        end_copies();
    };
    if (start < end) {
        copy_rows<Head, Number, kRows>(a.q, b, n, share.row, a.queries, queries);
        copy(start);
    }
    Number* const mine = queries + mma_warp() * 16 * kBands * kRow;
    float out[kBands][Head / 8][4] = {};
    float largest[kBands][2], sum[kBands][2] = {};
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
        largest[band][0] = largest[band][1] = -BMTRAIN_INFINITY;
    }
#pragma unroll 1
    for (int s = start; s < end; s += kKeys) {
        wait_copies<0>();
        // After it the tile is there for all threads, and all have left the other buffer.
        __syncthreads();
        if (s + kKeys < end) {
            copy(s + kKeys);
        }
        const int buffer = (s - start) / kKeys % 2 * kKeys * kRow;
        float scores[kBands][kKeys / 8][4] = {};
        multiply_turned<Head, Number>(mine, keys + buffer, scores);
        const Corner corner = {b, n, row, s};
        apply_rules<General, false>(a, corner, scores);
        float corrections[kBands][2];
        if (soften<General>(a, scores, largest, sum, corrections)) {
            correct(out, corrections);
        }
        if (General && a.dropout.threshold != 0) {
            drop<Head>(a, corner, scores);
        }
        multiply_scores<Head, Number>(scores, values + buffer, out);
    }
    float factors[kBands][2];
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float total = sum[band][half];
            total += __shfl_xor_sync(kAllLanes, total, 1);
            total += __shfl_xor_sync(kAllLanes, total, 2);
            factors[band][half] = total == 0.0f ? 0.0f : 1.0f / total;
            const int l = row + band * 16 + half * 8 + mma_g();
            if (mma_t() == 0 && l < a.queries) {
                a.lse[query_row(a, b, n, l)] = log_sum<General>(a, largest[band][half], total);
            }
        }
    }
    put_bands<Head>(a.out, b, n, row, a.queries, mine, out, factors);
}

// From scores and gradients of dropped probabilities to dropped probabilities and gradients of scores: one of each.
// `capped` is 1 / (soft cap * log2(e)), which the general kind divides by.
template <bool General>
__device__ __forceinline__ void differentiate(float shift, float delta, float factor, float unit, float capped,
                                              float& score, float& dscore) {
    const float probability = power_of_two(fmaf(score, unit, -shift));
    dscore = probability * (dscore * factor - delta);
    if (General && capped != 0.0f) {
        dscore = soft_cap_gradient(score * capped, dscore);
    }
    score = probability * factor;
}

// What `differentiate` takes for a soft cap; 0 without one.
template <bool General>
__device__ __forceinline__ float capped_of(const AttentionArguments& a) {
    return General && a.soft_cap != 0.0f ? 1.0f / (a.soft_cap * kLog2E) : 0.0f;
}

// The logarithm to base two that is taken from a query's scores. Queries that see no key: everything minus infinity is
// nothing.
__device__ __forceinline__ float shift_of(float lse) {
    return lse == -BMTRAIN_INFINITY ? BMTRAIN_INFINITY : lse * kLog2E;
}

// The gradients of a tile of queries of sequence `b`, and of their bias.
template <int Head, class Number, bool General, bool Wide>
__device__ __forceinline__ void mma_query_gradients(const AttentionArguments& a, const Share& share, int b,
                                                    unsigned char* memory, float* deltas_of_block, int* range) {
    constexpr int kBands = kBackwardBands<Head, Wide>, kKeys = Plan<Head>::kQueryKeys, kRow = Plan<Head>::kRow;
    constexpr int kRows = kMmaWarps * 16 * kBands;
    Number* const queries = reinterpret_cast<Number*>(memory);
    Number* const douts = queries + kRows * kRow;
    Number* const keys = douts + kRows * kRow;
    Number* const values = keys + 2 * kKeys * kRow;
    const int n = share.n, kv = n / (a.heads / a.kv_heads);
    const int first = mma_warp() * 16 * kBands, row = share.row + first;
    // Starts with a barrier: all have left the tiles of the sequence before.
    seen_keys(a, b, range);
    const KeyRange seen = keys_of_tile<General>(a, b, share.row, kRows, range);
    const int start = seen.first / kKeys * kKeys, end = seen.end;
    const auto copy = [&](int s) {
        const int buffer = (s - start) / kKeys % 2 * kKeys * kRow;
        copy_rows<Head, Number, kKeys>(a.k, b, kv, s, a.keys, keys + buffer);
        copy_rows<Head, Number, kKeys>(a.v, b, kv, s, a.keys, values + buffer);
        end_copies();
    };
    if (start < end) {
        copy_rows<Head, Number, kRows>(a.q, b, n, share.row, a.queries, queries);
        copy_rows<Head, Number, kRows>(a.dout, b, n, share.row, a.queries, douts);
        copy(start);
    }
    // A warp's own rows alone: while the first tiles are on their way, as many lanes as a row has packs share it.
    constexpr int kLanes = Head <= 32 ? 4 : Head <= 64 ? 8 : 16, kAtOnce = kWarpThreads / kLanes;
    const int lane_group = static_cast<int>(threadIdx.x) % kWarpThreads / kLanes;
    make_deltas<Only<Number>, kLanes, 16 * kBands / kAtOnce, true>(a, b, n, row, lane_group, kAtOnce, true,
                                                             deltas_of_block + first);
    __syncwarp();
    float shifts[kBands][2], deltas[kBands][2], factors[kBands][2];
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int l = row + band * 16 + half * 8 + mma_g();
            const long long place = query_row(a, b, n, l);
            shifts[band][half] = l < a.queries ? shift_of(a.lse[place]) : BMTRAIN_INFINITY;
            deltas[band][half] = deltas_of_block[first + band * 16 + half * 8 + mma_g()];
            factors[band][half] = a.scale;
        }
    }
    float dq[kBands][Head / 8][4] = {};
#pragma unroll 1
    for (int s = start; s < end; s += kKeys) {
        wait_copies<0>();
        __syncthreads();
        if (s + kKeys < end) {
            copy(s + kKeys);
        }
        const int buffer = (s - start) / kKeys % 2 * kKeys * kRow;
        float scores[kBands][kKeys / 8][4] = {}, dscores[kBands][kKeys / 8][4] = {};
        multiply_turned<Head, Number>(queries + first * kRow, keys + buffer, scores);
        multiply_turned<Head, Number>(douts + first * kRow, values + buffer, dscores);
        const Corner corner = {b, n, row, s};
        apply_rules<General, false>(a, corner, scores);
        const bool drops = General && a.dropout.threshold != 0;
        KeptKeys<kBands, kKeys / 8, 2> kept;
        if (drops) {
            kept.make(a, corner);
        }
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int l = row + band * 16 + half * 8 + mma_g();
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j) {
                    const int column = s + j * 8 + 2 * mma_t();
                    float dropped[2] = {1.0f, 1.0f};
                    if (drops) {
                        kept.factors(a, band, half, j, dropped);
                    }
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float& dscore = dscores[band][j][2 * half + i];
                        differentiate<General>(shifts[band][half], deltas[band][half], dropped[i], unit_of<General>(a),
                                               capped_of<General>(a), scores[band][j][2 * half + i], dscore);
                        if (General && a.dbias != nullptr && l < a.queries && column + i < a.keys) {
                            a.dbias[dbias_row(a, share.b, n, l) + column + i] += dscore;
                        }
                    }
                }
            }
        }
        multiply_scores<Head, Number>(dscores, keys + buffer, dq);
    }
    put_bands<Head>(a.dq, b, n, row, a.queries, queries + first * kRow, dq, factors);
}

template <int Head, class Number, bool General, bool Wide = false>
__device__ __forceinline__ void mma_backward_queries(const AttentionArguments& a) {
    constexpr int kRows = kMmaWarps * 16 * kBackwardBands<Head, Wide>;
    SHARED_AT_LAUNCH(memory);
    SHARED(float, deltas, [kRows]);
    SHARED(int, range, [2]);
    const Share share = share_of(a, a.queries, kRows, a.heads, a.ahead == 0);
    // The plain kind has no bias, and so a block for each sequence.
    const int last = General ? group_end(a, share.b) : share.b + 1;
    for (int b = General ? share.b * a.in_turn : share.b; b < last; ++b) {
        mma_query_gradients<Head, Number, General, Wide>(a, share, b, memory, deltas, range);
    }
}

template <int Head, class Number, bool General, bool Wide = false>
__device__ __forceinline__ void mma_backward_keys(const AttentionArguments& a) {
    constexpr int kBands = kBackwardBands<Head, Wide>, kQueries = Plan<Head>::kKeyQueries, kRow = Plan<Head>::kRow;
    constexpr int kRows = kMmaWarps * 16 * kBands;
    SHARED_AT_LAUNCH(memory);
    SHARED(int, range, [2]);
    // Of every query of a tile, its shift and delta, in two buffers.
    SHARED(float2, statistics, [2 * kQueries]);
    Number* const keys = reinterpret_cast<Number*>(memory);
    Number* const values = keys + kRows * kRow;
    Number* const queries = values + kRows * kRow;
    Number* const douts = queries + 2 * kQueries * kRow;

    const Share share = share_of(a, a.keys, kRows, a.kv_heads, false);
    const int b = share.b, kv = share.n, group = a.heads / a.kv_heads;
    const int first = mma_warp() * 16 * kBands, row = share.row + first;
    seen_keys(a, b, range);
    const bool hidden = share.row >= range[1] || share.row + kRows <= range[0];
    const int last = min(share.row + kRows, a.keys) - 1;
    const int own_start = General ? document_start(a, b, share.row) : 0;
    const int own_end = General ? document_end(a, b, last, a.queries) : a.queries;
    const int start = max(seen_start(a, share.row), own_start) / kQueries * kQueries;
    const int end = min(window_end(a, last), own_end);
    const int tiles = hidden || start >= end ? 0 : (end - start + kQueries - 1) / kQueries;
    const auto copy = [&](int turn) {
        const int n = kv * group + turn / tiles, l = start + turn % tiles * kQueries;
        const int buffer = turn % 2 * kQueries * kRow;
        copy_rows<Head, Number, kQueries>(a.q, b, n, l, a.queries, queries + buffer);
        copy_rows<Head, Number, kQueries>(a.dout, b, n, l, a.queries, douts + buffer);
        end_copies();
    };
    const auto statistic = [&](int turn) -> float2 {
        const int l = start + turn % tiles * kQueries + static_cast<int>(threadIdx.x);
        if (threadIdx.x >= kQueries || l >= a.queries) {
            return make_float2(BMTRAIN_INFINITY, 0.0f);
        }
        const long long place = query_row(a, b, kv * group + turn / tiles, l);
        return make_float2(shift_of(a.lse[place]), a.delta[place]);
    };
    if (tiles > 0) {
        copy_rows<Head, Number, kRows>(a.k, b, kv, share.row, a.keys, keys);
        copy_rows<Head, Number, kRows>(a.v, b, kv, share.row, a.keys, values);
        copy(0);
        if (threadIdx.x < kQueries) {
            statistics[threadIdx.x] = statistic(0);
        }
    }
    float dk[kBands][Head / 8][4] = {}, dv[kBands][Head / 8][4] = {};
    const int turns = group * tiles;
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
        wait_copies<0>();
        __syncthreads();
        const bool more = turn + 1 < turns;
        float2 next = make_float2(0.0f, 0.0f);
        if (more) {
            copy(turn + 1);
            next = statistic(turn + 1);
        }
        const int buffer = turn % 2 * kQueries;
        const int n = kv * group + turn / tiles, l = start + turn % tiles * kQueries;
        float scores[kBands][kQueries / 8][4] = {}, dscores[kBands][kQueries / 8][4] = {};
        multiply_turned<Head, Number>(keys + first * kRow, queries + buffer * kRow, scores);
        multiply_turned<Head, Number>(values + first * kRow, douts + buffer * kRow, dscores);
        apply_rules<General, true>(a, {b, n, row, l}, scores);
        // The eight lanes that share queries, a query for each, make the bits of the keys that dropout leaves.
        static_assert(kQueries == 32, "a lane has scores of eight queries");
        const bool drops = General && a.dropout.threshold != 0;
        unsigned kept = 0;
        if (drops) {
            const long long query = query_row(a, b, n, l + score_column(mma_g() / 2, mma_g() % 2));
            kept = dropout_kept<16 * kBands, 2>(a.dropout, dropout_element(a.dropout, query, row));
        }
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = score_column(j, i);
                const float2 known = statistics[buffer + column];
                const unsigned keys_kept =
                    drops ? __shfl_sync(kAllLanes, kept, (2 * j + i) * 4 + mma_t()) >> mma_g() : 0;
#pragma unroll
                for (int part = 0; part < 2 * kBands; ++part) {
                    float dropped = 1.0f;
                    if (drops) {
                        dropped = (keys_kept >> part * 8 & 1u) != 0 ? a.dropout.scale : 0.0f;
                    }
                    const int at = part % 2 * 2 + i;
                    differentiate<General>(known.x, known.y, dropped, unit_of<General>(a), capped_of<General>(a),
                                           scores[part / 2][j][at], dscores[part / 2][j][at]);
                }
            }
        }
        multiply_scores<Head, Number>(scores, douts + buffer * kRow, dv);
        multiply_scores<Head, Number>(dscores, queries + buffer * kRow, dk);
        if (more && threadIdx.x < kQueries) {
            // Read after the next barrier; the old content was read before the last one.
            statistics[(turn + 1) % 2 * kQueries + threadIdx.x] = next;
        }
    }
    float ones[kBands][2], factors[kBands][2];
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
        ones[band][0] = ones[band][1] = 1.0f;
        factors[band][0] = factors[band][1] = a.scale;
    }
    put_bands<Head>(a.dk, b, kv, row, a.keys, keys + first * kRow, dk, factors);
    put_bands<Head>(a.dv, b, kv, row, a.keys, values + first * kRow, dv, ones);
}

#define ATTENTION_JOINED(stem, head, number) stem##_##head##_##number
#define ATTENTION_NAME(stem, head, number) ATTENTION_JOINED(stem, head, number)
#define ATTENTION_MMA_KERNEL(name, body)                                                                  \
    extern "C" __global__ void __launch_bounds__(kMmaThreads, 2) name(const AttentionArguments a) { body(a); } \
    BMTRAIN_KERNEL(name)
#define ATTENTION_MMA_ONE(stem, body, general)                                   \
    ATTENTION_MMA_KERNEL(ATTENTION_NAME(stem, ATTENTION_HEAD, ATTENTION_NUMBER), \
                         (body<ATTENTION_HEAD, ATTENTION_NUMBER, general>))
#define ATTENTION_MMA_PAIR(stem, body)            \
    ATTENTION_MMA_ONE(stem##_plain, body, false)  \
    ATTENTION_MMA_ONE(stem##_general, body, true)

#ifdef ATTENTION_WIDE
template <int Head, class Number, bool General>
__device__ __forceinline__ void mma_wide_queries(const AttentionArguments& a) {
    mma_backward_queries<Head, Number, General, true>(a);
}

template <int Head, class Number, bool General>
__device__ __forceinline__ void mma_wide_keys(const AttentionArguments& a) {
    mma_backward_keys<Head, Number, General, true>(a);
}

// The general kind has not the registers for two bands.
ATTENTION_MMA_ONE(attention_mma_wide_queries_plain, mma_wide_queries, false)
ATTENTION_MMA_ONE(attention_mma_wide_keys_plain, mma_wide_keys, false)
#else
ATTENTION_MMA_PAIR(attention_mma_forward, mma_forward)
ATTENTION_MMA_PAIR(attention_mma_backward_queries, mma_backward_queries)
ATTENTION_MMA_PAIR(attention_mma_backward_keys, mma_backward_keys)
#endif
