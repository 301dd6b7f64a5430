// Cross-entropy over a vocabulary whose classes lie in parts, on ranks or in chunks of rows:
//
//     statistics of a part:  m = max x,  s = sum exp(x - m),  x[target],  sum w x
//     loss of a row:         lse = M + log(sum over parts of s exp(m - M))
//                            (1 - smoothing) w[target] (lse - x[target]) + smoothing / V (sum w lse - sum w x)
//     gradient of a part:    factor (p exp(x - lse) - smoothing / V w - [target] (1 - smoothing) w[target])
//
// and, around it, the sum and the mean of the losses, and a scaling by numbers that are on the device.
//
// Launch: statistics and gradient take one block for each row, of whole warps, one thread for each pack of the row but
// at most 512; the loss one thread for each row; the totals one block; the scaling 256 threads that take packs in turn.
// Numerics: f32, the largest value of a thread, a warp and a block subtracted before each exponential; the loss is put
// together in double precision, where it is a difference of large numbers, and so are the totals. Fixed order of
// summation for a given number of threads.
// Bytes moved for each logit: statistics read it, the gradient reads and writes it; rows that are ignored are only
// written. Rows of any length and place are moved in packs: what lies before the first and behind the last whole pack
// is moved one by one. Two packs of a thread are under way at a time.

constexpr int kVocabularyThreads = 512;
constexpr int kVocabularyRowThreads = 256;
constexpr int kTotalsThreads = 1024;
constexpr int kScaleThreads = 256;
// Packs that a thread has under way.
constexpr int kUnderWay = 2;
// Who reports targets that are no classes.
constexpr int kReportsStatistics = 5;
constexpr int kReportsTotals = 6;

struct CriterionArguments {
    const long long* targets;
    long long ignore_index;
    // The class of the first column, the classes that are here, all classes.
    long long first;
    long long count;
    long long total;
    // Of each of all classes; null where all are 1.
    const float* weights;
    const float* weight_sum;
    float smoothing;
    int unused;
};

// A target that counts: neither ignored nor outside.
__device__ __forceinline__ bool counts(const CriterionArguments& c, long long target) {
    return target != c.ignore_index && target >= 0 && target < c.total;
}

__device__ __forceinline__ float weight_of(const CriterionArguments& c, long long class_number) {
    return c.weights != nullptr ? c.weights[class_number] : 1.0f;
}

__device__ __forceinline__ float weight_sum_of(const CriterionArguments& c) {
    return c.weights != nullptr ? *c.weight_sum : static_cast<float>(c.total);
}

// Elements of a row by their places in the matrix: whole packs from `head` to `tail`, single ones before and behind.
struct Span {
    long long begin;
    long long head;
    long long tail;
    long long end;
};

__device__ __forceinline__ Span span_of(long long begin, long long count, bool aligned) {
    const long long end = begin + count;
    if (!aligned) {
        return {begin, end, end, end};
    }
    const long long head = min(end, (begin + kPack - 1) / kPack * kPack);
    return {begin, head, max(head, end / kPack * kPack), end};
}

// Run `one(place)` for the single elements of a span, and `packs(places)` for whole packs, some at a time.
template <class One, class Packs>
__device__ __forceinline__ void walk(const Span& span, const One& one, const Packs& packs) {
    for (long long place = span.begin + threadIdx.x; place < span.head; place += blockDim.x) {
        one(place);
    }
    for (long long place = span.tail + threadIdx.x; place < span.end; place += blockDim.x) {
        one(place);
    }
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    for (long long place = span.head + static_cast<long long>(threadIdx.x) * kPack; place < span.tail;
         place += kUnderWay * stride) {
        packs(place, stride);
    }
}

// ---- statistics

struct VocabularyStatisticsArguments {
    In logits;
    CriterionArguments criterion;
    // Four numbers for each row.
    float* statistics;
    Fault* fault;
    long long columns;
    // The address of the logits is a multiple of 16 bytes.
    int aligned;
    int unused;
};

// The largest number so far, and the sum of exponentials of the differences to it. What is not a number is passed over
// by the first and makes the second so.
struct Exponentials {
    float largest;
    float sum;
};

// Subtracted before an exponential; minus infinity would make its own exponential not a number.
__device__ __forceinline__ float shift_of(float largest) { return largest == -BMTRAIN_INFINITY ? 0.0f : largest; }

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

template <class Types>
__device__ __forceinline__ void vocabulary_statistics_body(const VocabularyStatisticsArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const CriterionArguments& c = a.criterion;
    const long long row = blockIdx.x, target = c.targets[row];
    float* const out = a.statistics + 4 * row;
    if (target == c.ignore_index) {
        if (threadIdx.x == 0) {
            out[0] = -BMTRAIN_INFINITY;
            out[1] = out[2] = out[3] = 0.0f;
        }
        return;
    }
    if (threadIdx.x == 0 && !counts(c, target)) {
        report(a.fault, kReportsStatistics, row, target, c.total);
    }
    const long long begin = row * a.columns;
    const bool smooth = c.smoothing > 0.0f;
    // Weight of what stands at a place.
    const auto weight_at = [&](long long place) { return weight_of(c, c.first + (place - begin)); };
    Exponentials so_far = {-BMTRAIN_INFINITY, 0.0f};
    float spread = 0.0f;
    const auto one = [&](long long place) {
        const float x = Types::load(a.logits, place);
        take(so_far, x);
        if (smooth) {
            spread += weight_at(place) * x;
        }
    };
    const Span span = span_of(begin, c.count, a.aligned != 0);
    const auto packs = [&](long long place, long long stride) {
        Pack held[kUnderWay];
#pragma unroll
        for (int h = 0; h < kUnderWay; ++h) {
            if (place + h * stride < span.tail) {
                held[h] = Types::load_pack(a.logits, place + h * stride, kPack, true);
            }
        }
#pragma unroll
        for (int h = 0; h < kUnderWay; ++h) {
            if (place + h * stride >= span.tail) {
                break;
            }
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
    if (smooth) {
        spread = block_sum(spread, partials);
    }
    if (threadIdx.x == 0) {
        const long long column = target - c.first;
        out[0] = largest;
        out[1] = sum;
        out[2] = column >= 0 && column < c.count ? Types::load(a.logits, begin + column) : 0.0f;
        out[3] = spread;
    }
}

TYPED_KERNEL(vocabulary_statistics, VocabularyStatisticsArguments, kVocabularyThreads)

// ---- losses

struct VocabularyLossArguments {
    CriterionArguments criterion;
    // Of one part behind the other.
    const float* statistics;
    float* losses;
    float* lse;
    long long rows;
    long long shards;
};

extern "C" __global__ void __launch_bounds__(kVocabularyRowThreads) vocabulary_loss(const VocabularyLossArguments a) {
    const CriterionArguments& c = a.criterion;
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
            // A part without any number above minus infinity adds nothing, whatever the largest one is.
            sum += part[1] == 0.0f ? 0.0f : part[1] * expf(part[0] - largest);
            at_target += part[2];
            spread += static_cast<double>(part[3]);
        }
        const double lse = static_cast<double>(largest) + static_cast<double>(logf(sum));
        const float hit = (1.0f - c.smoothing) * weight_of(c, target);
        double loss = static_cast<double>(hit) * (lse - static_cast<double>(at_target));
        if (c.smoothing > 0.0f) {
            const double share = static_cast<double>(c.smoothing) / static_cast<double>(c.total);
            loss += share * (static_cast<double>(weight_sum_of(c)) * lse - spread);
        }
        a.losses[row] = static_cast<float>(loss);
        a.lse[row] = static_cast<float>(lse);
    }
}
BMTRAIN_KERNEL(vocabulary_loss)

// ---- gradient

struct VocabularyGradientArguments {
    // Where they are replaced, what `dlogits` points to.
    In logits;
    Out dlogits;
    CriterionArguments criterion;
    const float* lse;
    const float* dloss;
    // Null where there is none.
    const float* divisor;
    long long columns;
    // There is a gradient for each row, not one for all.
    int each;
    // Both addresses are multiples of 16 bytes.
    int aligned;
};

template <class Types>
__device__ __forceinline__ void vocabulary_gradient_body(const VocabularyGradientArguments& a) {
    const CriterionArguments& c = a.criterion;
    const long long row = blockIdx.x, begin = row * a.columns, target = c.targets[row];
    const bool counted = counts(c, target), aligned = a.aligned != 0;

    // Filling, and all of a row that does not count.
    const long long used = counted ? c.count : 0;
    const Span unused = span_of(begin + used, a.columns - used, aligned);
    const auto zero = [&](long long place) { Types::store(a.dlogits, place, 0.0f); };
    const auto zeros = [&](long long place, long long stride) {
        const Pack nothing = {{0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
        for (int h = 0; h < kUnderWay && place + h * stride < unused.tail; ++h) {
            Types::store_pack(a.dlogits, place + h * stride, nothing, kPack, true);
        }
    };
    walk(unused, zero, zeros);
    if (!counted) {
        return;
    }

    const float factor = a.dloss[a.each != 0 ? row : 0] / (a.divisor != nullptr ? *a.divisor : 1.0f);
    const float spread = factor * c.smoothing / static_cast<float>(c.total);
    const float hit = factor * (1.0f - c.smoothing) * weight_of(c, target);
    const float probability = c.smoothing > 0.0f ? hit + spread * weight_sum_of(c) : hit;
    const float lse = a.lse[row];
    // Where the target stands, if it is here.
    const long long column = target - c.first;
    const long long marked = column >= 0 && column < c.count ? begin + column : -1;
    const float* const weights = c.weights != nullptr ? c.weights + c.first : nullptr;

    const auto gradient = [&](float x, long long place) {
        const float weight = spread != 0.0f && weights != nullptr ? weights[place - begin] : 1.0f;
        const float change = spread != 0.0f ? spread * weight : 0.0f;
        return probability * expf(x - lse) - change;
    };
    const auto one = [&](long long place) {
        const float value = gradient(Types::load(a.logits, place), place);
        Types::store(a.dlogits, place, place == marked ? value - hit : value);
    };
    const Span span = span_of(begin, c.count, aligned);
    const auto packs = [&](long long place, long long stride) {
        Pack held[kUnderWay];
#pragma unroll
        for (int h = 0; h < kUnderWay; ++h) {
            if (place + h * stride < span.tail) {
                held[h] = Types::load_pack(a.logits, place + h * stride, kPack, true);
            }
        }
#pragma unroll
        for (int h = 0; h < kUnderWay; ++h) {
            const long long start = place + h * stride;
            if (start >= span.tail) {
                break;
            }
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                held[h].at[i] = gradient(held[h].at[i], start + i);
            }
            // One pack of a row.
            if (marked >= start && marked < start + kPack) {
#pragma unroll
                for (int i = 0; i < kPack; ++i) {
                    held[h].at[i] -= start + i == marked ? hit : 0.0f;
                }
            }
            Types::store_pack(a.dlogits, start, held[h], kPack, true);
        }
    };
    walk(span, one, packs);
}

TYPED_KERNEL(vocabulary_gradient, VocabularyGradientArguments, kVocabularyThreads)

// ---- totals

struct LossTotalsArguments {
    const float* losses;
    const long long* targets;
    // Null where all are 1.
    const float* weights;
    float* totals;
    Fault* fault;
    long long ignore_index;
    long long rows;
    long long classes;
};

__device__ __forceinline__ double warp_sum_in_doubles(double value) {
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(kTotalsThreads) loss_totals(const LossTotalsArguments a) {
    SHARED(double, partials, [2 * kMostWarps]);
    double loss = 0.0, weight = 0.0;
    for (long long row = threadIdx.x; row < a.rows; row += blockDim.x) {
        const long long target = a.targets[row];
        loss += static_cast<double>(a.losses[row]);
        if (target == a.ignore_index) {
            continue;
        }
        if (a.weights == nullptr) {
            weight += 1.0;
        } else if (target >= 0 && target < a.classes) {
            weight += static_cast<double>(a.weights[target]);
        } else {
            report(a.fault, kReportsTotals, row, target, a.classes);
        }
    }
    loss = warp_sum_in_doubles(loss);
    weight = warp_sum_in_doubles(weight);
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const int warps = blockDim.x / kWarpThreads;
    if (lane == 0) {
        partials[warp] = loss;
        partials[kMostWarps + warp] = weight;
    }
    __syncthreads();
    if (warp > 0) {
        return;
    }
    loss = warp_sum_in_doubles(lane < warps ? partials[lane] : 0.0);
    weight = warp_sum_in_doubles(lane < warps ? partials[kMostWarps + lane] : 0.0);
    if (lane == 0) {
        a.totals[0] = static_cast<float>(loss);
        a.totals[1] = static_cast<float>(weight);
        a.totals[2] = static_cast<float>(loss / weight);
    }
}
BMTRAIN_KERNEL(loss_totals)

// ---- scaling

struct ScaleByArguments {
    // Where it is scaled in place, what `out` points to.
    In x;
    Out out;
    const float* factor;
    // Null where there is none.
    const float* divisor;
    long long count;
    // Both addresses are multiples of 16 bytes.
    int aligned;
    int unused;
};

template <class Types>
__device__ __forceinline__ void scale_by_body(const ScaleByArguments& a) {
    const float divisor = a.divisor != nullptr ? *a.divisor : 1.0f;
    const float factor = divisor == 0.0f ? 0.0f : *a.factor / divisor;
    const bool aligned = a.aligned != 0;
    const auto load = [&](long long place, int count) {
        return Types::load_pack(a.x, place, count, aligned && count == kPack);
    };
    const auto scale = [&](Pack pack, long long place, int count) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] *= factor;
        }
        Types::store_pack(a.out, place, pack, count, aligned && count == kPack);
    };
    each_pack_of_grid(a.count, load, scale);
}

TYPED_KERNEL(scale_by, ScaleByArguments, kScaleThreads)
