// Streaming attention for every head size and every mix of dtypes, in f32 outside of the tensor cores:
//
//     score = soft_cap(scale * q k^T) + bias, -inf where a key is not seen
//     out   = dropout(softmax(score)) v,  lse = log of the sum of exponentials
//     backward, with p = exp(score - lse), f = dropout's factor, delta = sum(dout * out):
//     ds    = p * (f * dout v^T - delta),  dbias += ds,  with a soft cap times its slope
//     dq    = scale * ds k,  dk = scale * ds^T q,  dv = (f p)^T dout
//
// Scores exist as tiles of 64 queries by 64 keys, in registers and shared memory.
//
// Launch: blocks of 256 threads, 16 x 16, each with 4 x 4 scores of a tile; 34 KiB of static shared memory. One block
// for each tile of queries (forward, dq) or of keys (dk and dv), head, sequence and piece of Width columns of the
// result. The template has Width 64 and 128; a longer head has several pieces, and each recomputes the scores.
// Tiles of keys that are hidden by padding at an end of the sequence, by the causal rule or by its window are left out,
// and tiles of other documents where documents are packed into sequences.
// The kernel for dq makes delta, and keeps it for the one for dk and dv, which is launched after it.
// For dk and dv a block goes through the query heads of its key head; for dq with a bias shared by sequences, through
// the sequences of a group, and attention_bias_sum adds the groups up, which follow from the sizes alone: the order of
// every sum is fixed. Numerics: everything is f32 between reading and writing; online softmax. A query that sees no key
// gets zeros, lse -inf and gives no gradient.
// Operations and bytes of a tile: 64 * 64 * H multiply-adds a product; two in the forward pass, three for dq, four for
// dk and dv. Both operands go through shared memory once a tile: 512 * H bytes as f32, 16 flops a byte from L2.

constexpr int kTile = 64;
constexpr int kSide = 16;
constexpr int kAttentionThreads = kSide * kSide;
// Elements of a head that are staged at once for scores.
constexpr int kChunk = 32;
// Distance of rows of 64 numbers: a multiple of 4 for loads of 16 bytes, and of no other power of two.
constexpr int kStride = kTile + 4;
constexpr int kStage = 2 * kChunk * kStride;

// One row of 4 x 4 scores that a thread holds.
using Four = float[4];

__device__ __forceinline__ int side_x() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ __forceinline__ int side_y() { return static_cast<int>(threadIdx.x) / kSide; }

// Sum or maximum over the 16 threads that share rows of scores.
__device__ __forceinline__ float side_sum(float value) {
    for (int distance = kSide / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

__device__ __forceinline__ float side_max(float value) {
    for (int distance = kSide / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
    }
    return value;
}

// Up to 64 rows of a head.
struct Rows {
    In in;
    // First element of the first row, distance of rows, how many there are.
    long long start;
    long long stride;
    int count;
    float factor;
};

__device__ __forceinline__ Rows rows_of(const AttentionArguments& a, const Heads& heads, int b, int n, int row,
                                        int rows, float factor) {
    const In in = {heads.data, heads.type, 0};
    return {in, head_row(heads, a.head_size, b, n, row), heads.row_stride, min(kTile, rows - row), factor};
}

// Eight elements of a row from `column` on; zero past the head and past the rows.
__device__ __forceinline__ Pack row_pack(const AttentionArguments& a, const Rows& rows, int row, int column) {
    const int left = row < rows.count ? a.head_size - column : 0;
    if (left <= 0) {
        return {};
    }
    Pack pack = Mixed::load_pack(rows.in, rows.start + row * rows.stride + column, min(left, kPack), a.whole != 0);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        pack.at[i] *= rows.factor;
    }
    return pack;
}

// sums[i][j] += product of row 4 y + i of `left` with row 4 x + j of `right`, along the head.
__device__ __forceinline__ void multiply_rows(const AttentionArguments& a, const Rows& left, const Rows& right,
                                              float* stage, Four* sums) {
    // Threads of a warp write neighbouring rows of one column: no two of them the same bank.
    const int row = threadIdx.x % kTile, column = threadIdx.x / kTile * kPack;
    float* const other = stage + kChunk * kStride;
    for (int start = 0; start < a.head_size; start += kChunk) {
        const Pack x = row_pack(a, left, row, start + column), y = row_pack(a, right, row, start + column);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            stage[(column + i) * kStride + row] = x.at[i];
            other[(column + i) * kStride + row] = y.at[i];
        }
        __syncthreads();
        const int count = min(kChunk, a.head_size - start);
#pragma unroll 4
        for (int h = 0; h < count; ++h) {
            const float4 p = *reinterpret_cast<const float4*>(stage + h * kStride + 4 * side_y());
            const float4 q = *reinterpret_cast<const float4*>(other + h * kStride + 4 * side_x());
            const float ps[4] = {p.x, p.y, p.z, p.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sums[i][j] = fmaf(ps[i], qs[j], sums[i][j]);
                }
            }
        }
    }
}

// sums[i][4 g + j] += sum over r of tile[r][4 y + i] * rows[r][first + 64 g + 4 x + j]. Starts with a barrier, so that
// the tile may have been written just before.
template <int Width>
__device__ __forceinline__ void multiply_tile(const AttentionArguments& a, const float* tile, const Rows& rows,
                                              int first, float* stage, float (*sums)[Width / kSide]) {
    constexpr int kRows = 4096 / Width;
    constexpr int kPacks = Width / kPack;
    for (int start = 0; start < rows.count; start += kRows) {
        __syncthreads();
        for (int i = threadIdx.x; i < kRows * kPacks; i += kAttentionThreads) {
            const int row = i / kPacks, column = i % kPacks * kPack;
            const Pack pack = row_pack(a, rows, start + row, first + column);
            float4* place = reinterpret_cast<float4*>(stage + row * Width + column);
            place[0] = make_float4(pack.at[0], pack.at[1], pack.at[2], pack.at[3]);
            place[1] = make_float4(pack.at[4], pack.at[5], pack.at[6], pack.at[7]);
        }
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < kRows; ++r) {
            const float4 p = *reinterpret_cast<const float4*>(tile + (start + r) * kStride + 4 * side_y());
            const float ps[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
            for (int g = 0; g < Width / kTile; ++g) {
                const float4 q = *reinterpret_cast<const float4*>(stage + r * Width + g * kTile + 4 * side_x());
                const float qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        sums[i][4 * g + j] = fmaf(ps[i], qs[j], sums[i][4 * g + j]);
                    }
                }
            }
        }
    }
}

// The factors of four neighbouring probabilities: one Philox block, or two if they cross a boundary. The loop of
// `dropout_kept` would cost registers here.
__device__ __forceinline__ void probability_factors(const AttentionArguments& a, long long row, int s, Four& factors) {
    const unsigned long long element = dropout_element(a.dropout, row, s);
    const unsigned first = element % 4;
    const Words low = dropout_block<false>(a.dropout, element / 4);
    Words high = low;
    if (first > 0) {
        high = dropout_block<false>(a.dropout, element / 4 + 1);
    }
    const unsigned words[8] = {low.at[0],  low.at[1],  low.at[2],  low.at[3],
                               high.at[0], high.at[1], high.at[2], high.at[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        unsigned bits = words[i];
#pragma unroll
        for (int shift = 1; shift < 4; ++shift) {
            bits = first == shift ? words[i + shift] : bits;
        }
        factors[i] = bits < a.dropout.threshold ? 0.0f : a.dropout.scale;
    }
}

// Sets the scores of a thread to minus infinity where the key is before the window of the query.
__device__ __forceinline__ void hide_before_window(const AttentionArguments& a, const Place& place, Four* scores) {
    // Score i, j is the product of query 4 y + i with key 4 x + j.
    const int first = window_start(a, place.l + 4 * side_y()) - place.s - 4 * side_x();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            scores[i][j] = j - i < first ? -BMTRAIN_INFINITY : scores[i][j];
        }
    }
}

// Sets the scores of a thread to minus infinity where the key is of another document than the query.
__device__ __forceinline__ void hide_other_documents(const AttentionArguments& a, const Place& place, Four* scores) {
    const int s = place.s + 4 * side_x();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int l = place.l + 4 * side_y() + i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            scores[i][j] = is_of_another_document(a, place.b, l, s + j) ? -BMTRAIN_INFINITY : scores[i][j];
        }
    }
}

// Caps a thread's scores, adds the bias and sets the masked ones to minus infinity.
__device__ __forceinline__ void apply_rules(const AttentionArguments& a, const Place& place, Four* scores) {
    const int s = place.s + 4 * side_x();
    if (a.soft_cap != 0.0f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                scores[i][j] = a.soft_cap * tanhf(scores[i][j] / a.soft_cap);
            }
        }
    }
    const bool all = all_seen(a, place.l, place.s, kTile) && place.l + kTile <= a.queries;
    if (window_hides(a, place.l, kTile, place.s)) {
        hide_before_window(a, place, scores);
    }
    if (documents_hide(a, place.b, place.l, kTile, place.s, kTile)) {
        hide_other_documents(a, place, scores);
    }
    if (all && a.bias.data == nullptr) {
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int l = place.l + 4 * side_y() + i;
        const int end = l < a.queries ? seen_end(a, l) : 0;
        const unsigned char* mask = l < a.queries ? mask_row(a, place.b, l) : nullptr;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (s + j >= end || (mask != nullptr && mask[s + j] == 0)) {
                scores[i][j] = -BMTRAIN_INFINITY;
            } else if (a.bias.data != nullptr && scores[i][j] != -BMTRAIN_INFINITY) {
                scores[i][j] += Mixed::load(a.bias, bias_row(a, place.b, place.n, l) + s + j);
            }
        }
    }
}

// From a tile that a thread holds to shared memory: tile[query][key], or tile[key][query].
__device__ __forceinline__ void put_tile(const Four* values, float* tile, bool turned) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = turned ? 4 * side_x() + i : 4 * side_y() + i, column = turned ? 4 * side_y() : 4 * side_x();
        *reinterpret_cast<float4*>(tile + row * kStride + column) =
            turned ? make_float4(values[0][i], values[1][i], values[2][i], values[3][i])
                   : make_float4(values[i][0], values[i][1], values[i][2], values[i][3]);
    }
}

// Writes rows of results from `row` on, columns from `first` on, times the rows' factors.
template <int Width>
__device__ __forceinline__ void put_rows(const AttentionArguments& a, const Heads& heads, int b, int n, int row,
                                         int rows, int first, const float (*sums)[Width / kSide],
                                         const float (&factors)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int place = row + 4 * side_y() + i;
#pragma unroll
        for (int g = 0; g < Width / kTile; ++g) {
            const int column = first + g * kTile + 4 * side_x();
            if (place < rows && column < a.head_size) {
                const float* from = sums[i] + 4 * g;
                const float values[4] = {from[0] * factors[i], from[1] * factors[i], from[2] * factors[i],
                                         from[3] * factors[i]};
                store_four(heads, head_row(heads, a.head_size, b, n, place) + column, values, a.head_size - column,
                           a.whole != 0);
            }
        }
    }
}

// What a block works on: a tile of rows of a head of a sequence, and which columns of the result.
struct Piece {
    // For dq a group of sequences.
    int b;
    int n;
    int row;
    int first;
};

template <int Width>
__device__ __forceinline__ Piece piece_of(const AttentionArguments& a, int rows, int heads, bool last_first) {
    const unsigned tiles = (rows + kTile - 1) / kTile;
    const unsigned pieces = (a.head_size + Width - 1) / Width;
    unsigned block = blockIdx.x;
    const unsigned tile = block % tiles;
    block /= tiles;
    const unsigned piece = block % pieces;
    block /= pieces;
    // Under the causal rule the last queries see the most keys: the longest work goes first.
    const unsigned row = last_first ? tiles - 1 - tile : tile;
    return {static_cast<int>(block / heads), static_cast<int>(block % heads), static_cast<int>(row) * kTile,
            static_cast<int>(piece) * Width};
}

template <int Width>
__device__ __forceinline__ void attention_forward_body(const AttentionArguments& a) {
    SHARED(float, tile, [kTile * kStride]);
    SHARED(float, stage, [kStage]);
    SHARED(int, range, [2]);
    const Piece piece = piece_of<Width>(a, a.queries, a.heads, a.ahead == 0);
    const int b = piece.b, n = piece.n, l = piece.row, kv = n / (a.heads / a.kv_heads);
    const Rows q = rows_of(a, a.q, b, n, l, a.queries, a.scale);

    float out[4][Width / kSide] = {};
    float largest[4], sum[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        largest[i] = -BMTRAIN_INFINITY;
    }
    seen_keys(a, b, range);
    const KeyRange seen = keys_of_tile<true>(a, b, l, kTile, range);
    for (int s = seen.first / kTile * kTile; s < seen.end; s += kTile) {
        Four p[4] = {};
        multiply_rows(a, q, rows_of(a, a.k, b, kv, s, a.keys, 1.0f), stage, p);
        apply_rules(a, {b, n, l, s}, p);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float here = side_max(fmaxf(fmaxf(p[i][0], p[i][1]), fmaxf(p[i][2], p[i][3])));
            const float now = fmaxf(largest[i], here);
            // A row that has seen nothing yet has no largest score; any shift gives it zeros.
            const float shift = now == -BMTRAIN_INFINITY ? 0.0f : now;
            const float correction = largest[i] == now ? 1.0f : expf(largest[i] - shift);
            largest[i] = now;
            sum[i] *= correction;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                p[i][j] = expf(p[i][j] - shift);
                sum[i] += p[i][j];
            }
#pragma unroll
            for (int j = 0; j < Width / kSide; ++j) {
                out[i][j] *= correction;
            }
            if (a.dropout.threshold != 0) {
                Four factors;
                probability_factors(a, query_row(a, b, n, l + 4 * side_y() + i), s + 4 * side_x(), factors);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    p[i][j] *= factors[j];
                }
            }
        }
        // The barriers of the product above have let everybody finish with the tile before.
        put_tile(p, tile, true);
        multiply_tile<Width>(a, tile, rows_of(a, a.v, b, kv, s, a.keys, 1.0f), piece.first, stage, out);
    }
    float factors[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float total = side_sum(sum[i]);
        factors[i] = total == 0.0f ? 0.0f : 1.0f / total;
        const int row = l + 4 * side_y() + i;
        if (piece.first == 0 && side_x() == 0 && row < a.queries) {
            a.lse[query_row(a, b, n, row)] = (largest[i] == -BMTRAIN_INFINITY ? 0.0f : largest[i]) + logf(total);
        }
    }
    put_rows<Width>(a, a.out, b, n, l, a.queries, piece.first, out, factors);
}

// From raw scores and gradients of dropped probabilities to dropped probabilities and gradients of scores. `deltas` has
// one number for each query of the tile.
__device__ __forceinline__ void differentiate(const AttentionArguments& a, const Place& place, const float* deltas,
                                              Four* p, Four* ds) {
    apply_rules(a, place, p);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int l = place.l + 4 * side_y() + i;
        const long long row = query_row(a, place.b, place.n, l);
        const float lse = l < a.queries ? a.lse[row] : 0.0f;
        const float delta = l < a.queries ? deltas[4 * side_y() + i] : 0.0f;
        // Rows that see no key: everything minus infinity is nothing.
        const float shift = lse == -BMTRAIN_INFINITY ? BMTRAIN_INFINITY : lse;
        Four factors = {1.0f, 1.0f, 1.0f, 1.0f};
        if (a.dropout.threshold != 0) {
            probability_factors(a, row, place.s + 4 * side_x(), factors);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float probability = expf(p[i][j] - shift);
            ds[i][j] = probability * (ds[i][j] * factors[j] - delta);
            if (a.soft_cap != 0.0f) {
                ds[i][j] = soft_cap_gradient(p[i][j] / a.soft_cap, ds[i][j]);
            }
            p[i][j] = probability * factors[j];
        }
    }
}

// The gradients of a tile of queries of one sequence, and of their bias.
template <int Width>
__device__ __forceinline__ void query_gradients(const AttentionArguments& a, const Piece& piece, int b, float* tile,
                                                float* stage, float* deltas, int* range) {
    const int n = piece.n, l = piece.row, kv = n / (a.heads / a.kv_heads);
    const Rows q = rows_of(a, a.q, b, n, l, a.queries, a.scale);
    const Rows dout = rows_of(a, a.dout, b, n, l, a.queries, 1.0f);
    float dq[4][Width / kSide] = {};
    // Starts with a barrier: no thread reads the deltas of the sequence before any more. The products below have one
    // before the new ones are read.
    seen_keys(a, b, range);
    constexpr int kWarps = kAttentionThreads / kWarpThreads, kTurns = 2;
#pragma unroll 1
    for (int i = threadIdx.x / kWarpThreads; i < kTile; i += kTurns * kWarps) {
        make_deltas<Mixed, kWarpThreads, kTurns, false>(a, b, n, l, i, kWarps, piece.first == 0, deltas);
    }
    const KeyRange seen = keys_of_tile<true>(a, b, l, kTile, range);
    for (int s = seen.first / kTile * kTile; s < seen.end; s += kTile) {
        const Rows k = rows_of(a, a.k, b, kv, s, a.keys, 1.0f);
        Four p[4] = {}, ds[4] = {};
        multiply_rows(a, q, k, stage, p);
        multiply_rows(a, dout, rows_of(a, a.v, b, kv, s, a.keys, 1.0f), stage, ds);
        differentiate(a, {b, n, l, s}, deltas, p, ds);
        if (a.dbias != nullptr && piece.first == 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = l + 4 * side_y() + i, column = s + 4 * side_x();
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    if (row < a.queries && column + j < a.keys) {
                        a.dbias[dbias_row(a, piece.b, n, row) + column + j] += ds[i][j];
                    }
                }
            }
        }
        put_tile(ds, tile, true);
        multiply_tile<Width>(a, tile, k, piece.first, stage, dq);
    }
    const float factors[4] = {a.scale, a.scale, a.scale, a.scale};
    put_rows<Width>(a, a.dq, b, n, l, a.queries, piece.first, dq, factors);
}

template <int Width>
__device__ __forceinline__ void attention_backward_queries_body(const AttentionArguments& a) {
    SHARED(float, tile, [kTile * kStride]);
    SHARED(float, stage, [kStage]);
    SHARED(float, deltas, [kTile]);
    SHARED(int, range, [2]);
    const Piece piece = piece_of<Width>(a, a.queries, a.heads, a.ahead == 0);
    for (int b = piece.b * a.in_turn; b < group_end(a, piece.b); ++b) {
        query_gradients<Width>(a, piece, b, tile, stage, deltas, range);
    }
}

template <int Width>
__device__ __forceinline__ void attention_backward_keys_body(const AttentionArguments& a) {
    SHARED(float, tile, [kTile * kStride]);
    SHARED(float, stage, [kStage]);
    SHARED(int, range, [2]);
    const Piece piece = piece_of<Width>(a, a.keys, a.kv_heads, false);
    const int b = piece.b, kv = piece.n, s = piece.row, group = a.heads / a.kv_heads;
    const Rows k = rows_of(a, a.k, b, kv, s, a.keys, 1.0f), v = rows_of(a, a.v, b, kv, s, a.keys, 1.0f);
    float dk[4][Width / kSide] = {}, dv[4][Width / kSide] = {};
    seen_keys(a, b, range);
    const bool hidden = s >= range[1] || s + kTile <= range[0];
    const int start = hidden ? a.queries : max(seen_start(a, s), document_start(a, b, s)) / kTile * kTile;
    const int last = min(s + kTile, a.keys) - 1;
    const int end = min(window_end(a, last), document_end(a, b, last, a.queries));
    for (int n = kv * group; n < (kv + 1) * group; ++n) {
        for (int l = start; l < end; l += kTile) {
            const Rows q = rows_of(a, a.q, b, n, l, a.queries, a.scale);
            const Rows dout = rows_of(a, a.dout, b, n, l, a.queries, 1.0f);
            Four p[4] = {}, ds[4] = {};
            multiply_rows(a, q, k, stage, p);
            multiply_rows(a, dout, v, stage, ds);
            differentiate(a, {b, n, l, s}, a.delta + query_row(a, b, n, l), p, ds);
            put_tile(p, tile, false);
            multiply_tile<Width>(a, tile, dout, piece.first, stage, dv);
            __syncthreads();
            put_tile(ds, tile, false);
            multiply_tile<Width>(a, tile, q, piece.first, stage, dk);
        }
    }
    // The scale is in the queries already.
    const float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    put_rows<Width>(a, a.dk, b, kv, s, a.keys, piece.first, dk, ones);
    put_rows<Width>(a, a.dv, b, kv, s, a.keys, piece.first, dv, ones);
}

struct BiasSumArguments {
    // [groups, count].
    const float* partials;
    float* dbias;
    long long count;
    int groups;
    int add;
};

// The gradient of a bias from the gradients of groups of sequences, a thread per element.
extern "C" __global__ void __launch_bounds__(kAttentionThreads) attention_bias_sum(const BiasSumArguments a) {
    for (long long i = global_thread(); i < a.count; i += global_threads()) {
        float sum = a.add ? a.dbias[i] : 0.0f;
#pragma unroll 4
        for (int group = 0; group < a.groups; ++group) {
            sum += a.partials[group * a.count + i];
        }
        a.dbias[i] = sum;
    }
}
BMTRAIN_KERNEL(attention_bias_sum)

// Width 64 needs 128 registers a thread, two blocks on a multiprocessor; width 128 takes more and one block.
#define ATTENTION_KERNEL(name, body, blocks)                                                     \
    extern "C" __global__ void __launch_bounds__(kAttentionThreads, blocks)                     \
        name(const AttentionArguments a) { body(a); }                                           \
    BMTRAIN_KERNEL(name)

ATTENTION_KERNEL(attention_forward_64, attention_forward_body<64>, 2)
ATTENTION_KERNEL(attention_forward_128, attention_forward_body<128>, 1)
ATTENTION_KERNEL(attention_backward_queries_64, attention_backward_queries_body<64>, 2)
ATTENTION_KERNEL(attention_backward_queries_128, attention_backward_queries_body<128>, 1)
ATTENTION_KERNEL(attention_backward_keys_64, attention_backward_keys_body<64>, 2)
ATTENTION_KERNEL(attention_backward_keys_128, attention_backward_keys_body<128>, 1)
