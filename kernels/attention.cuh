// What the kernels of attention have in common: their arguments, which keys a query sees, bias and dropout.
//
// Letters: B sequences, N query heads, K key heads, L queries, S keys, H elements of a head. Query head n reads key
// head n / (N / K). Element h of head n of row l of sequence b is at b * batch_stride + l * row_stride + n * H + h,
// so that heads are read and written where they are inside a wider matrix.

// Heads that are read or written.
struct Heads {
    void* data;
    int type;
    // Written heads: add to what is there.
    int add;
    long long batch_stride;
    long long row_stride;
};

enum { kMaskNone = 0, kMaskPadding = 1, kMaskFull = 2 };

// One structure for the forward and the backward pass; each leaves out what it does not need.
struct AttentionArguments {
    Heads q;
    Heads k;
    Heads v;
    Heads out;
    Heads dout;
    Heads dq;
    Heads dk;
    Heads dv;
    // [B, N, L].
    float* lse;
    float* delta;
    // [B, S] or [B, L, S], 1 for a key that may be seen; or null.
    const unsigned char* mask;
    // [B, 2, L], where L is S: of each token the first token of its document, then the end of its document; or null.
    const int* documents;
    // [B or 1, N, L or 1, S], or none; distances of sequences, heads and queries, 0 where they share.
    In bias;
    long long bias_strides[3];
    // [groups of sequences, N, L, S], already cleared where it is not to be added to; or null.
    float* dbias;
    Dropout dropout;
    int batch;
    int heads;
    int kv_heads;
    int queries;
    int keys;
    int head_size;
    int mask_kind;
    // Keys after its own that a query sees; less than 0 where it sees all of them.
    int ahead;
    // From the index of a query to the index of the first key in its window; the least number without a window.
    int window_shift;
    // All heads begin at multiples of 16 bytes.
    int whole;
    // Sequences of a group, which a block of dq goes through: 1 but where the gradient of the bias is a sum over
    // sequences.
    int in_turn;
    float scale;
    // Scaled scores become cap * tanh(score / cap); 0 where they stay as they are.
    float soft_cap;
    int unused;
};

// A dot product of attention is made for these: head n of sequence b, queries from l on, keys from s on.
struct Place {
    int b;
    int n;
    int l;
    int s;
};

// First element of a row of a head.
__device__ __forceinline__ long long head_row(const Heads& heads, int head_size, int b, int n, int row) {
    return b * heads.batch_stride + row * heads.row_stride + static_cast<long long>(n) * head_size;
}

__device__ __forceinline__ long long query_row(const AttentionArguments& a, int b, int n, int l) {
    return (static_cast<long long>(b) * a.heads + n) * a.queries + l;
}

// Start of a row of the bias.
__device__ __forceinline__ long long bias_row(const AttentionArguments& a, int b, int n, int l) {
    return b * a.bias_strides[0] + n * a.bias_strides[1] + l * a.bias_strides[2];
}

// Start of a row of the gradient of the bias, for a group of sequences.
__device__ __forceinline__ long long dbias_row(const AttentionArguments& a, int group, int n, int l) {
    return query_row(a, group, n, l) * a.keys;
}

// The end of the sequences of a group.
__device__ __forceinline__ int group_end(const AttentionArguments& a, int group) {
    return min((group + 1) * a.in_turn, a.batch);
}

// The end of the keys that query `l` sees by the causal rule and the window; 0 or less where it sees none.
__device__ __forceinline__ int seen_end(const AttentionArguments& a, int l) {
    if (a.ahead < 0) {
        return a.keys;
    }
    return min(l + (1 + a.keys - a.queries + a.ahead), a.keys);
}

// The first query that sees key `s` by the causal rule and the window; `queries` or more where there is none.
__device__ __forceinline__ int seen_start(const AttentionArguments& a, int s) {
    return a.ahead < 0 ? 0 : max(0, s + (a.queries - a.keys - a.ahead));
}

// The first key that query `l` sees by the rule of the window; 0 or less where it leaves none out.
__device__ __forceinline__ int window_start(const AttentionArguments& a, int l) { return l + a.window_shift; }

// The end of the queries that see key `s` by the rule of the window.
__device__ __forceinline__ int window_end(const AttentionArguments& a, int s) {
    const long long end = 1LL + s - a.window_shift;
    return end < a.queries ? static_cast<int>(end) : a.queries;
}

// The first token of a token's document: queries attend to no key before it, and keys are attended to by no query
// before it. 0 without documents.
__device__ __forceinline__ int document_start(const AttentionArguments& a, int b, int token) {
    return a.documents == nullptr ? 0 : max(a.documents[2LL * b * a.queries + token], 0);
}

// The end of a token's document; `none` without documents.
__device__ __forceinline__ int document_end(const AttentionArguments& a, int b, int token, int none) {
    return a.documents == nullptr ? none : min(a.documents[(2LL * b + 1) * a.queries + token], a.keys);
}

// Whether a key of `size` from `s` on is of another document than one of `count` queries from `l` on. What that hides
// is made minus infinity apart from the other rules, as what a window hides.
__device__ __forceinline__ bool documents_hide(const AttentionArguments& a, int b, int l, int count, int s, int size) {
    if (a.documents == nullptr || l >= a.queries) {
        return false;
    }
    const int last = min(l + count, a.queries) - 1;
    return document_start(a, b, last) > s || document_end(a, b, l, a.keys) < min(s + size, a.keys);
}

// Whether key `s` is of another document than query `l`. Where there is no such query, it is.
__device__ __forceinline__ bool is_of_another_document(const AttentionArguments& a, int b, int l, int s) {
    return l >= a.queries || s < document_start(a, b, l) || s >= document_end(a, b, l, a.keys);
}

// The mask of a query's keys; null where every key may be seen.
__device__ __forceinline__ const unsigned char* mask_row(const AttentionArguments& a, int b, int l) {
    if (a.mask_kind == kMaskNone) {
        return nullptr;
    }
    const long long row = a.mask_kind == kMaskPadding ? b : static_cast<long long>(b) * a.queries + l;
    return a.mask + row * a.keys;
}

// Whether all keys of `size` from `s` on are there and seen by all queries from `l` on, as far as no window hides them.
__device__ __forceinline__ bool all_seen(const AttentionArguments& a, int l, int s, int size) {
    return a.mask_kind == kMaskNone && s + size <= a.keys && s + size <= seen_end(a, l);
}

// Whether a window hides keys from `s` on from one of `count` queries from `l` on. What it hides is made minus infinity
// apart from the other rules, so that it takes no registers beside them and no time where there is none.
__device__ __forceinline__ bool window_hides(const AttentionArguments& a, int l, int count, int s) {
    return s < window_start(a, l + count - 1);
}

// The keys of a sequence from the first to the end that padding leaves: keys outside are not read. Ends
// with a barrier; `range` is shared memory for two numbers.
__device__ __forceinline__ void seen_keys(const AttentionArguments& a, int b, int* range) {
    __syncthreads();
    if (threadIdx.x == 0) {
        range[0] = a.mask_kind == kMaskPadding ? a.keys : 0;
        range[1] = a.mask_kind == kMaskPadding ? 0 : a.keys;
    }
    __syncthreads();
    if (a.mask_kind == kMaskPadding) {
        const unsigned char* mask = a.mask + static_cast<long long>(b) * a.keys;
        int first = a.keys, last = 0;
        for (int s = threadIdx.x; s < a.keys; s += blockDim.x) {
            if (mask[s] != 0) {
                first = min(first, s);
                last = s + 1;
            }
        }
        if (last > 0) {
            atomicMin(range, first);
            atomicMax(range + 1, last);
        }
        __syncthreads();
    }
}

struct KeyRange {
    int first;
    int end;
};

// The keys that some of `count` queries from `l` on see, of those in `range`, which `seen_keys` made. Without
// `Documents` there are none.
template <bool Documents>
__device__ __forceinline__ KeyRange keys_of_tile(const AttentionArguments& a, int b, int l, int count,
                                                 const int* range) {
    const int last = min(l + count, a.queries) - 1;
    KeyRange seen = {max(range[0], window_start(a, l)), min(range[1], seen_end(a, last))};
    if (Documents) {
        seen.first = max(seen.first, document_start(a, b, l));
        seen.end = min(seen.end, document_end(a, b, last, a.keys));
    }
    return seen;
}

// Delta of queries of a head, the sum of dout * out along the head: in shared memory, zero beyond the last query, and
// with `keeps` where the kernel for keys reads it. `Lanes` lanes share a query; this group of them takes every
// `groups`th of the queries from `l` on, from number `first` on, `Turns` of them. All that these read is on its way
// before the first is stored. `Reaches` where `Lanes` packs are a whole head.
template <class Types, int Lanes, int Turns, bool Reaches>
__device__ __forceinline__ void make_deltas(const AttentionArguments& a, int b, int n, int l, int first, int groups,
                                            bool keeps, float* deltas) {
    const int lane = static_cast<int>(threadIdx.x) % Lanes;
    const In out = {a.out.data, a.out.type, 0}, dout = {a.dout.data, a.dout.type, 0};
    float totals[Turns];
#pragma unroll
    for (int turn = 0; turn < Turns; ++turn) {
        const int query = l + first + turn * groups;
        float total = 0.0f;
        if (query < a.queries) {
            const long long x = head_row(a.out, a.head_size, b, n, query);
            const long long y = head_row(a.dout, a.head_size, b, n, query);
            for (int h = lane * kPack; h < a.head_size; h += Lanes * kPack) {
                const int left = min(kPack, a.head_size - h);
                const Pack o = Types::load_pack(out, x + h, left, a.whole != 0);
                const Pack d = Types::load_pack(dout, y + h, left, a.whole != 0);
#pragma unroll
                for (int j = 0; j < kPack; ++j) {
                    total = fmaf(o.at[j], d.at[j], total);
                }
                if (Reaches) {
                    break;
                }
            }
        }
        totals[turn] = total;
    }
#pragma unroll
    for (int turn = 0; turn < Turns; ++turn) {
        float total = totals[turn];
        for (int distance = Lanes / 2; distance > 0; distance /= 2) {
            total += __shfl_xor_sync(kAllLanes, total, distance);
        }
        const int i = first + turn * groups;
        if (lane == 0) {
            deltas[i] = total;
            if (l + i < a.queries && keeps) {
                a.delta[query_row(a, b, n, l + i)] = total;
            }
        }
    }
}

// The gradient of a score before the soft cap, from the one after it; `ratio` is the capped score over the cap. Nothing
// flows to a score that is hidden.
__device__ __forceinline__ float soft_cap_gradient(float ratio, float dscore) {
    return ratio == -BMTRAIN_INFINITY ? 0.0f : dscore * (1.0f - ratio * ratio);
}

// Four neighbouring elements; `count` of them where that is less. With `whole` there are four and the address is a
// multiple of their size.
__device__ __forceinline__ void store_four(const Heads& heads, long long index, const float (&values)[4], int count,
                                           bool whole) {
    const Out out = {heads.data, heads.type, heads.add};
    if (whole && !heads.add) {
        if (heads.type == kF32) {
            *reinterpret_cast<float4*>(static_cast<float*>(heads.data) + index) =
                make_float4(values[0], values[1], values[2], values[3]);
        } else if (heads.type == kF16) {
            *reinterpret_cast<uint2*>(static_cast<f16*>(heads.data) + index) =
                make_uint2(join<f16>(values[0], values[1]), join<f16>(values[2], values[3]));
        } else {
            *reinterpret_cast<uint2*>(static_cast<bf16*>(heads.data) + index) =
                make_uint2(join<bf16>(values[0], values[1]), join<bf16>(values[2], values[3]));
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < count) {
            Mixed::store(out, index + i, values[i]);
        }
    }
}
