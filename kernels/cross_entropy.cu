// Cross-entropy of rows of logits against class ids, fused over a whole vocabulary or over shards of its classes, on
// ranks or in chunks of rows. For a row with target t, smoothing s and class weights w over V classes:
//
//     lse      = log sum_c exp x[c]
//     loss     = (1 - s) w[t] (lse - x[t]) + s / V sum_c w[c] (lse - x[c])
//     dlogits  = factor (p ((1 - s) w[t] + s / V sum w) - s / V w[c] - [c = t] (1 - s) w[t])      p = exp(x - lse)
//
//     statistics of a shard:  m = max x, sum exp(x - m), x[t], sum w x
//     loss from shards:       lse = M + log(sum over shards of sum exp(m - M))
//
//     in place:               losses of a whole vocabulary, then dlogits of their sum where the logits were
//
//     soft cap:               x = cap tanh(logits / cap), and dlogits times its slope, 1 - (x / cap)^2
//
// Launch: forward, statistics, backward and in place take one block per row, of whole warps, a thread per pack of the
// row but at most kLossThreads, in place kInPlaceThreads; the loss of shards one thread per row.
// Numerics: f32; the largest logit and the sum of exponentials relative to it are kept together, so that the logits are
// read once. The fused forward pass takes fast exponentials, statistics accurate ones, and the backward pass the same
// as the forward pass before it. A row whose logits are all minus infinity, or with an infinite or NaN logit, has a NaN
// loss. Differences of large numbers and sums over shards are in f64. Fixed order of summation for given sizes.
// Targets: an ignored row has loss and gradient 0 and is not read; so has one whose target is out of range, which is
// reported. Bytes moved per logit: read once forward, read and written once backward, in packs of 16 bytes for rows of
// any length and alignment.

// ---- fused forward

// Elements of a row before the first address that is a multiple of 16 bytes, at most `count`.
__device__ __forceinline__ int elements_before(const void* data, int type, long long index, long long count) {
    const int size = type == kF32 ? 4 : 2;
    const unsigned long long address = reinterpret_cast<unsigned long long>(data) + index * size;
    const int before = static_cast<int>((0 - address) % 16) / size;
    return before < count ? before : static_cast<int>(count);
}

// A row as packs: the elements before the first whole pack, if there are some, are pack 0.
struct RowPacks {
    long long columns;
    int before;

    __device__ __forceinline__ long long packs() const {
        return (before > 0 ? 1 : 0) + (columns - before + kPack - 1) / kPack;
    }
    __device__ __forceinline__ long long column(long long pack) const {
        return before == 0 ? pack * kPack : pack == 0 ? 0 : before + (pack - 1) * kPack;
    }
    __device__ __forceinline__ int count(long long pack) const {
        if (before > 0 && pack == 0) {
            return before;
        }
        const long long left = columns - column(pack);
        return left < kPack ? static_cast<int>(left) : kPack;
    }
};

__device__ __forceinline__ Pack load_weights(const Criterion& c, long long column, int count) {
    const bool whole = c.weights_whole && column % 4 == 0 && count == kPack;
    return load_pack_of<float>(c.weights, column, count, whole);
}

struct CrossEntropyForwardArguments {
    In logits;
    Criterion criterion;
    float* losses;
    float* lse;
    long long columns;
};

__device__ __forceinline__ void add_exponentials(Exponentials& e, const Pack& pack, int count) {
    float largest = e.largest;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        largest = i < count ? fmaxf(largest, pack.at[i]) : largest;
    }
    const float origin = shift_of(largest);
    float sum = e.sum * __expf(e.largest - origin);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        sum += i < count ? __expf(pack.at[i] - origin) : 0.0f;
    }
    e = {largest, sum};
}

template <class Types>
__device__ __forceinline__ void cross_entropy_forward_body(const CrossEntropyForwardArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const Criterion& c = a.criterion;
    const long long row = blockIdx.x, begin = row * a.columns;
    const long long target = target_of(c, row, kCrossEntropyForward);
    if (target < 0) {
        if (threadIdx.x == 0) {
            a.losses[row] = a.lse[row] = 0.0f;
        }
        return;
    }
    const bool smooth = c.smoothing > 0.0f, weighted = c.weights != nullptr;
    const RowPacks packs = {c.count, elements_before(a.logits.data, a.logits.type, begin, c.count)};
    const long long many = packs.packs();
    Exponentials exponentials = {-BMTRAIN_INFINITY, 0.0f};
    // Sums of the weights and of weight times logit.
    float weights = 0.0f, weighted_logits = 0.0f;
    for (long long pack = threadIdx.x; pack < many; pack += static_cast<long long>(blockDim.x) * kLogitsTogether) {
        typename Types::Loaded loaded[kLogitsTogether];
        // 0 after the end of the row.
        int counts[kLogitsTogether];
#pragma unroll
        for (int i = 0; i < kLogitsTogether; ++i) {
            const long long here = pack + static_cast<long long>(i) * blockDim.x;
            counts[i] = here < many ? packs.count(here) : 0;
            if (counts[i] > 0) {
                loaded[i] = Types::load_pack(a.logits, begin + packs.column(here), counts[i], counts[i] == kPack);
            }
        }
#pragma unroll
        for (int i = 0; i < kLogitsTogether; ++i) {
            if (counts[i] == 0) {
                continue;
            }
            Pack logits = loaded[i];
            cap(c, logits);
            add_exponentials(exponentials, logits, counts[i]);
            if (!smooth) {
                continue;
            }
            Pack weight;
            if (weighted) {
                weight = load_weights(c, packs.column(pack + static_cast<long long>(i) * blockDim.x), counts[i]);
            }
#pragma unroll
            for (int j = 0; j < kPack; ++j) {
                if (j < counts[i]) {
                    const float factor = weighted ? weight.at[j] : 1.0f;
                    weights += factor;
                    weighted_logits = fmaf(factor, logits.at[j], weighted_logits);
                }
            }
        }
    }
    const float largest = block_max(exponentials.largest, partials), origin = shift_of(largest);
    const float sum = block_sum(exponentials.sum * __expf(exponentials.largest - origin), partials);
    if (smooth) {
        weights = block_sum(weights, partials);
        weighted_logits = block_sum(weighted_logits, partials);
    }
    if (threadIdx.x == 0) {
        const float lse = origin + logf(sum);
        const float at_target = capped(c, Types::load(a.logits, begin + target));
        float loss = (1.0f - c.smoothing) * weight_of(c, target) * (lse - at_target);
        if (smooth) {
            const double spread = static_cast<double>(weights) * lse - weighted_logits;
            loss += c.smoothing / static_cast<float>(c.count) * static_cast<float>(spread);
        }
        a.losses[row] = loss;
        a.lse[row] = lse;
    }
}

TYPED_KERNEL(cross_entropy_forward, CrossEntropyForwardArguments, kLossThreads)

// ---- statistics of a shard

struct CrossEntropyStatisticsArguments {
    In logits;
    Criterion criterion;
    // Four numbers per row.
    float* statistics;
    long long columns;
    // The address of the logits is a multiple of 16 bytes.
    int aligned;
    int unused;
};

__device__ __forceinline__ void take(Exponentials& so_far, float x) {
    const float largest = fmaxf(so_far.largest, x), shift = shift_of(largest);
    so_far.sum = so_far.sum * expf(so_far.largest - shift) + expf(x - shift);
    so_far.largest = largest;
}

__device__ __forceinline__ void take(Exponentials& so_far, const Pack& pack) {
    float largest = so_far.largest;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        largest = fmaxf(largest, pack.at[i]);
    }
    const float shift = shift_of(largest);
    float sums[kPack / 2];
#pragma unroll
    for (int i = 0; i < kPack / 2; ++i) {
        sums[i] = expf(pack.at[2 * i] - shift) + expf(pack.at[2 * i + 1] - shift);
    }
    so_far.sum = so_far.sum * expf(so_far.largest - shift) + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    so_far.largest = largest;
}

// What a shard knows of a row.
struct RowStatistics {
    Exponentials exponentials;
    // Sum of weight times logit; 0 without smoothing.
    float spread;
};

// The statistics of the row that starts at `begin`. Every thread of the block calls this and gets them.
template <class Types>
__device__ __forceinline__ RowStatistics statistics_of(const In& logits, const Criterion& c, long long begin,
                                                       bool aligned, float* partials) {
    const bool smooth = c.smoothing > 0.0f;
    const auto weight_at = [&](long long place) { return weight_of(c, c.first + (place - begin)); };
    Exponentials so_far = {-BMTRAIN_INFINITY, 0.0f};
    float spread = 0.0f;
    const auto one = [&](long long place) {
        const float x = capped(c, Types::load(logits, place));
        take(so_far, x);
        if (smooth) {
            spread += weight_at(place) * x;
        }
    };
    const Span span = span_of(begin, c.count, aligned);
    const auto packs = [&](long long place, long long stride) {
        Pack held[kLogitsTogether];
        load_packs<Types>(held, logits, place, stride, span.tail);
#pragma unroll
        for (int h = 0; h < kLogitsTogether; ++h) {
            if (place + h * stride >= span.tail) {
                break;
            }
            cap(c, held[h]);
            take(so_far, held[h]);
            if (smooth) {
#pragma unroll
                for (int i = 0; i < kPack; ++i) {
                    spread += weight_at(place + h * stride + i) * held[h].at[i];
                }
            }
        }
    };
    walk(span, one, packs);

    const float largest = block_max(so_far.largest, partials);
    const float sum = block_sum(so_far.sum * expf(so_far.largest - shift_of(largest)), partials);
    return {{largest, sum}, smooth ? block_sum(spread, partials) : 0.0f};
}

// The logit of the target; 0 if it is in another shard.
template <class Types>
__device__ __forceinline__ float target_logit(const In& logits, const Criterion& c, long long begin,
                                              long long target) {
    const long long column = target - c.first;
    return column >= 0 && column < c.count ? capped(c, Types::load(logits, begin + column)) : 0.0f;
}

template <class Types>
__device__ __forceinline__ void cross_entropy_statistics_body(const CrossEntropyStatisticsArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const Criterion& c = a.criterion;
    const long long row = blockIdx.x, target = target_of(c, row, kCrossEntropyStatistics);
    float* const out = a.statistics + 4 * row;
    if (target < 0) {
        if (threadIdx.x == 0) {
            out[0] = -BMTRAIN_INFINITY;
            out[1] = out[2] = out[3] = 0.0f;
        }
        return;
    }
    const long long begin = row * a.columns;
    const RowStatistics known = statistics_of<Types>(a.logits, c, begin, a.aligned != 0, partials);
    if (threadIdx.x == 0) {
        out[0] = known.exponentials.largest;
        out[1] = known.exponentials.sum;
        out[2] = target_logit<Types>(a.logits, c, begin, target);
        out[3] = known.spread;
    }
}

TYPED_KERNEL(cross_entropy_statistics, CrossEntropyStatisticsArguments, kLossThreads)

// ---- losses from the statistics of shards

struct CrossEntropyLossArguments {
    Criterion criterion;
    // Of all shards, one after the other.
    const float* statistics;
    float* losses;
    float* lse;
    long long rows;
    long long shards;
};

// The loss of a row over the classes of all shards.
__device__ __forceinline__ float loss_of(const Criterion& c, long long target, double lse, float at_target,
                                         double spread) {
    const float hit = (1.0f - c.smoothing) * weight_of(c, target);
    double loss = static_cast<double>(hit) * (lse - static_cast<double>(at_target));
    if (c.smoothing > 0.0f) {
        const double share = static_cast<double>(c.smoothing) / static_cast<double>(c.total);
        const float weights = c.weights != nullptr ? *c.weight_sum : static_cast<float>(c.total);
        loss += share * (static_cast<double>(weights) * lse - spread);
    }
    return static_cast<float>(loss);
}

extern "C" __global__ void __launch_bounds__(kLossRowThreads) cross_entropy_loss(const CrossEntropyLossArguments a) {
    const Criterion& c = a.criterion;
    for (long long row = global_thread(); row < a.rows; row += global_threads()) {
        const long long target = c.targets[row];
        if (!counts(c, target)) {
            a.losses[row] = a.lse[row] = 0.0f;
            continue;
        }
        float largest = -BMTRAIN_INFINITY;
        for (long long shard = 0; shard < a.shards; ++shard) {
            largest = fmaxf(largest, a.statistics[4 * (shard * a.rows + row)]);
        }
        float sum = 0.0f, at_target = 0.0f;
        double spread = 0.0;
        for (long long shard = 0; shard < a.shards; ++shard) {
            const float* const part = a.statistics + 4 * (shard * a.rows + row);
            // A shard whose logits are all minus infinity adds nothing, whatever the largest logit is.
            sum += part[1] == 0.0f ? 0.0f : part[1] * expf(part[0] - largest);
            at_target += part[2];
            spread += static_cast<double>(part[3]);
        }
        const double lse = static_cast<double>(largest) + static_cast<double>(logf(sum));
        a.losses[row] = loss_of(c, target, lse, at_target, spread);
        a.lse[row] = static_cast<float>(lse);
    }
}
BMTRAIN_KERNEL(cross_entropy_loss)

// ---- backward

struct CrossEntropyBackwardArguments {
    // The memory of `dlogits` if it is overwritten.
    In logits;
    Out dlogits;
    Criterion criterion;
    const float* lse;
    const float* dloss;
    // Null if there is none.
    const float* divisor;
    long long columns;
    // One gradient per row instead of one for all.
    int each;
    // Both addresses are multiples of 16 bytes.
    int aligned;
    // The fused forward pass was run: take exponentials like it.
    int fused;
    int unused;
};

// The sum of all class weights; every thread of the block calls this.
__device__ __forceinline__ float weight_sum_of(const Criterion& c, float* partials) {
    if (c.weights == nullptr) {
        return static_cast<float>(c.total);
    }
    if (c.weight_sum != nullptr) {
        return *c.weight_sum;
    }
    float sum = 0.0f;
    for (long long column = threadIdx.x; column < c.total; column += blockDim.x) {
        sum += c.weights[column];
    }
    return block_sum(sum, partials);
}

// Zeros from element `begin` on.
template <class Types>
__device__ __forceinline__ void write_zeros(const Out& out, long long begin, long long count, bool aligned) {
    const Span span = span_of(begin, count, aligned);
    const auto zero = [&](long long place) { Types::store(out, place, 0.0f); };
    const auto zeros = [&](long long place, long long stride) {
        for (int h = 0; h < kLogitsTogether && place + h * stride < span.tail; ++h) {
            Types::store_pack(out, place + h * stride, Pack{}, kPack, true);
        }
    };
    walk(span, zero, zeros);
}

// Writes the gradient of `factor` times the loss of the row that starts at `begin`. Every thread of the block
// calls this; an element is written by the thread that read its logit.
template <class Types>
__device__ __forceinline__ void write_gradient(const In& logits, const Out& dlogits, const Criterion& c,
                                               long long begin, long long target, bool aligned, bool fused,
                                               float factor, float lse, float* partials) {
    const float spread = factor * c.smoothing / static_cast<float>(c.total);
    const float hit = factor * (1.0f - c.smoothing) * weight_of(c, target);
    const float probability = c.smoothing > 0.0f ? hit + spread * weight_sum_of(c, partials) : hit;
    // The place of the target, -1 if it is in another shard.
    const long long column = target - c.first;
    const long long marked = column >= 0 && column < c.count ? begin + column : -1;
    const float* const weights = spread != 0.0f && c.weights != nullptr ? c.weights + c.first : nullptr;
    const bool is_capped = c.soft_cap != 0.0f;

    const auto gradient = [&](float x, long long place) {
        const float weight = weights != nullptr ? weights[place - begin] : 1.0f;
        const float change = spread != 0.0f ? spread * weight : 0.0f;
        return probability * (fused ? __expf(x - lse) : expf(x - lse)) - change;
    };
    const auto slope = [&](float x) {
        const float ratio = is_capped ? x / c.soft_cap : 0.0f;
        return 1.0f - ratio * ratio;
    };
    const auto one = [&](long long place) {
        const float x = capped(c, Types::load(logits, place)), value = gradient(x, place);
        Types::store(dlogits, place, slope(x) * (place == marked ? value - hit : value));
    };
    const Span span = span_of(begin, c.count, aligned);
    const auto packs = [&](long long place, long long stride) {
        Pack held[kLogitsTogether];
        load_packs<Types>(held, logits, place, stride, span.tail);
#pragma unroll
        for (int h = 0; h < kLogitsTogether; ++h) {
            const long long start = place + h * stride;
            if (start >= span.tail) {
                break;
            }
            Pack slopes;
            if (is_capped) {
                cap(c, held[h]);
#pragma unroll
                for (int i = 0; i < kPack; ++i) {
                    slopes.at[i] = slope(held[h].at[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                held[h].at[i] = gradient(held[h].at[i], start + i);
            }
            if (marked >= start && marked < start + kPack) {
#pragma unroll
                for (int i = 0; i < kPack; ++i) {
                    held[h].at[i] -= start + i == marked ? hit : 0.0f;
                }
            }
            if (is_capped) {
#pragma unroll
                for (int i = 0; i < kPack; ++i) {
                    held[h].at[i] *= slopes.at[i];
                }
            }
            Types::store_pack(dlogits, start, held[h], kPack, true);
        }
    };
    walk(span, one, packs);
}

template <class Types>
__device__ __forceinline__ void cross_entropy_backward_body(const CrossEntropyBackwardArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const Criterion& c = a.criterion;
    const long long row = blockIdx.x, begin = row * a.columns, target = target_of(c, row, kCrossEntropyBackward);
    const bool aligned = a.aligned != 0;
    // Padding, and all of an ignored row.
    const long long used = target >= 0 ? c.count : 0;
    write_zeros<Types>(a.dlogits, begin + used, a.columns - used, aligned);
    if (target < 0) {
        return;
    }
    const float factor = a.dloss[a.each != 0 ? row : 0] / (a.divisor != nullptr ? *a.divisor : 1.0f);
    write_gradient<Types>(a.logits, a.dlogits, c, begin, target, aligned, a.fused != 0, factor, a.lse[row], partials);
}

TYPED_KERNEL(cross_entropy_backward, CrossEntropyBackwardArguments, kLossThreads)

// ---- losses and the gradient of their sum in one kernel

struct CrossEntropyInPlaceArguments {
    // Logits, then their gradient.
    Out dlogits;
    // The classes are a whole vocabulary.
    Criterion criterion;
    float* losses;
    long long columns;
    // The address of the logits is a multiple of 16 bytes.
    int aligned;
    int unused;
};

template <class Types>
__device__ __forceinline__ void cross_entropy_in_place_body(const CrossEntropyInPlaceArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    SHARED(float, shared_lse, [1]);
    const Criterion& c = a.criterion;
    const long long row = blockIdx.x, begin = row * a.columns, target = target_of(c, row, kCrossEntropyInPlace);
    const bool aligned = a.aligned != 0;
    const long long used = target >= 0 ? c.count : 0;
    write_zeros<Types>(a.dlogits, begin + used, a.columns - used, aligned);
    if (target < 0) {
        if (threadIdx.x == 0) {
            a.losses[row] = 0.0f;
        }
        return;
    }
    const In logits = {a.dlogits.data, a.dlogits.type, 0};
    const RowStatistics known = statistics_of<Types>(logits, c, begin, aligned, partials);
    if (threadIdx.x == 0) {
        const double lse = static_cast<double>(known.exponentials.largest) +
                           static_cast<double>(logf(known.exponentials.sum));
        const float at_target = target_logit<Types>(logits, c, begin, target);
        a.losses[row] = loss_of(c, target, lse, at_target, static_cast<double>(known.spread));
        shared_lse[0] = static_cast<float>(lse);
    }
    // The logit of the target has been read.
    __syncthreads();
    write_gradient<Types>(logits, a.dlogits, c, begin, target, aligned, false, 1.0f, shared_lse[0], partials);
}

TYPED_KERNEL(cross_entropy_in_place, CrossEntropyInPlaceArguments, kInPlaceThreads)
