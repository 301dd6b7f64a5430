// Cross-entropy of rows of logits against class numbers, and the mean of squared differences.
//
//     lse[r]     = log sum_c exp x[r][c]
//     losses[r]  = (1 - s) w[t] (lse - x[t]) + s / classes * sum_c w[c] (lse - x[c])           t the row's target
//     totals     = sum of losses, sum of w[t], the first by the second
//     dlogits    = factor[r] ((1 - s) w[t] (p - [c = t]) + s / classes (p sum w - w[c]))       p = exp(x - lse)
//
// Launch: cross_entropy_* one block for each row, a thread for each pack but at most kLossThreads. Totals are one block
// behind it. squared_error_*: see there.
// Numerics: f32; the largest logit and the sum of exponentials relative to it are kept together, so that the logits are
// read once. A row whose logits are all minus infinity, or one of them infinity or not a number, has a loss that is not
// a number. The smoothing's sum over classes and all totals are put together in f64. Fixed order of summation for given
// sizes. Targets: a row with the ignored number has loss, weight and gradient 0 and is not read. One with another
// number outside the classes is reported and counts as ignored.
// Bytes moved for each element: logits once forward; logits and their gradient once backward. Rows of any length are
// read by 16 bytes: a row begins with the elements up to the first such address, taken as a pack of their own.

constexpr int kLossThreads = 512;
// Packs of a row that a thread has on their way at once.
constexpr int kLogitsTogether = 2;

// Numbers of the host for reports.
enum { kCrossEntropyForward = 3, kCrossEntropyBackward = 4 };

// What forward and backward pass share.
struct Classes {
    const long long* targets;
    // Null where all weights are 1.
    const float* weights;
    Fault* fault;
    long long rows;
    long long count;
    long long ignored;
    float smoothing;
    // The address of the weights is a multiple of 16 bytes.
    int weights_whole;
};

// The target of a row; -1 where it counts as ignored. Every thread of the block calls this, the first reports.
__device__ __forceinline__ long long target_of(const Classes& classes, long long row, int kernel) {
    const long long target = classes.targets[row];
    if (target == classes.ignored) {
        return -1;
    }
    if (target < 0 || target >= classes.count) {
        if (threadIdx.x == 0) {
            report(classes.fault, kernel, row, target, classes.count);
        }
        return -1;
    }
    return target;
}

__device__ __forceinline__ float weight_of(const Classes& classes, long long target) {
    return classes.weights != nullptr ? classes.weights[target] : 1.0f;
}

// Elements of a row in front of the first address that is a multiple of 16 bytes, at most `count`.
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

__device__ __forceinline__ Pack load_weights(const Classes& classes, long long column, int count) {
    const bool whole = classes.weights_whole && column % 4 == 0 && count == kPack;
    return load_pack_of<float>(classes.weights, column, count, whole);
}

// Sum over a block in f64, as block_sum; `partials` has kMostWarps numbers.
__device__ __forceinline__ double block_sum_f64(double value, double* partials) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const int warps = blockDim.x / kWarpThreads;
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    __syncthreads();
    if (lane == 0) {
        partials[warp] = value;
    }
    __syncthreads();
    value = lane < warps ? partials[lane] : 0.0;
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

// ---- cross-entropy, forward

struct CrossEntropyForwardArguments {
    In logits;
    Classes classes;
    float* losses;
    float* lse;
};

// The largest of some numbers and the sum of the exponentials of their distances to it.
struct Exponentials {
    float largest;
    float sum;
};

__device__ __forceinline__ void add_exponentials(Exponentials& e, const Pack& pack, int count) {
    float largest = e.largest;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        largest = i < count ? fmaxf(largest, pack.at[i]) : largest;
    }
    // Nothing but minus infinity so far: exponentials of differences of infinities are not numbers.
    const float origin = largest == -BMTRAIN_INFINITY ? 0.0f : largest;
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
    const Classes& classes = a.classes;
    const long long row = blockIdx.x, begin = row * classes.count;
    const long long target = target_of(classes, row, kCrossEntropyForward);
    if (target < 0) {
        if (threadIdx.x == 0) {
            a.losses[row] = 0.0f;
            a.lse[row] = 0.0f;
        }
        return;
    }
    const bool smooth = classes.smoothing > 0.0f, weighted = classes.weights != nullptr;
    const RowPacks packs = {classes.count, elements_before(a.logits.data, a.logits.type, begin, classes.count)};
    const long long many = packs.packs();
    Exponentials exponentials = {-BMTRAIN_INFINITY, 0.0f};
    // Sums of the weights and of weight times logit.
    float weights = 0.0f, weighted_logits = 0.0f;
    for (long long pack = threadIdx.x; pack < many; pack += static_cast<long long>(blockDim.x) * kLogitsTogether) {
        typename Types::Loaded loaded[kLogitsTogether];
        // 0 for what is behind the row.
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
            const Pack logits = loaded[i];
            add_exponentials(exponentials, logits, counts[i]);
            if (!smooth) {
                continue;
            }
            Pack weight;
            if (weighted) {
                weight = load_weights(classes, packs.column(pack + static_cast<long long>(i) * blockDim.x), counts[i]);
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
    const float largest = block_max(exponentials.largest, partials);
    const float origin = largest == -BMTRAIN_INFINITY ? 0.0f : largest;
    const float sum = block_sum(exponentials.sum * __expf(exponentials.largest - origin), partials);
    if (smooth) {
        weights = block_sum(weights, partials);
        weighted_logits = block_sum(weighted_logits, partials);
    }
    if (threadIdx.x == 0) {
        const float lse = origin + logf(sum);
        const float at_target = Types::load(a.logits, begin + target);
        float loss = (1.0f - classes.smoothing) * weight_of(classes, target) * (lse - at_target);
        if (smooth) {
            const double spread = static_cast<double>(weights) * lse - weighted_logits;
            loss += classes.smoothing / static_cast<float>(classes.count) * static_cast<float>(spread);
        }
        a.losses[row] = loss;
        a.lse[row] = lse;
    }
}

TYPED_KERNEL(cross_entropy_forward, CrossEntropyForwardArguments, kLossThreads)

struct CrossEntropyTotalsArguments {
    Classes classes;
    const float* losses;
    float* totals;
};

constexpr int kTotalsThreads = 1024;

// One block for all rows, after the rows. A target outside the classes was reported there.
extern "C" __global__ void __launch_bounds__(kTotalsThreads) cross_entropy_totals(const CrossEntropyTotalsArguments a) {
    SHARED(double, partials, [kMostWarps]);
    const Classes& classes = a.classes;
    double loss = 0.0, weight = 0.0;
#pragma unroll 4
    for (long long row = threadIdx.x; row < classes.rows; row += blockDim.x) {
        const long long target = classes.targets[row];
        loss += a.losses[row];
        if (target != classes.ignored && target >= 0 && target < classes.count) {
            weight += weight_of(classes, target);
        }
    }
    loss = block_sum_f64(loss, partials);
    weight = block_sum_f64(weight, partials);
    if (threadIdx.x == 0) {
        a.totals[0] = static_cast<float>(loss);
        a.totals[1] = static_cast<float>(weight);
        a.totals[2] = static_cast<float>(loss / weight);
    }
}
BMTRAIN_KERNEL(cross_entropy_totals)

// ---- cross-entropy, backward

struct CrossEntropyBackwardArguments {
    // What dlogits holds where it is replaced.
    In logits;
    Out dlogits;
    Classes classes;
    const float* lse;
    const float* totals;
    const float* dloss;
    // One gradient for each row; otherwise one for all.
    int each;
    int mean;
    // Logits and gradient can be moved by 16 bytes at the same places of a row.
    int whole;
    int unused;
};

// Sum of all class weights.
__device__ __forceinline__ float weight_sum(const Classes& classes, float* partials) {
    float sum = 0.0f;
    for (long long column = threadIdx.x; column < classes.count; column += blockDim.x) {
        sum += classes.weights[column];
    }
    return block_sum(sum, partials);
}

template <class Types>
__device__ __forceinline__ void cross_entropy_backward_body(const CrossEntropyBackwardArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const Classes& classes = a.classes;
    const long long row = blockIdx.x, begin = row * classes.count;
    const long long target = target_of(classes, row, kCrossEntropyBackward);
    const int before = a.whole ? elements_before(a.logits.data, a.logits.type, begin, classes.count) : 0;
    const RowPacks packs = {classes.count, before};
    const long long many = packs.packs();
    const bool whole = a.whole != 0;
    if (target < 0) {
        for (long long pack = threadIdx.x; pack < many; pack += blockDim.x) {
            const int count = packs.count(pack);
            Types::store_pack(a.dlogits, begin + packs.column(pack), Pack{}, count, whole && count == kPack);
        }
        return;
    }
    const float factor = a.dloss[a.each ? row : 0] / (a.mean ? a.totals[1] : 1.0f);
    const float spread = factor * classes.smoothing / static_cast<float>(classes.count);
    const float hit = factor * (1.0f - classes.smoothing) * weight_of(classes, target);
    const bool smooth = classes.smoothing > 0.0f, weighted = smooth && classes.weights != nullptr;
    float probability = hit;
    if (smooth) {
        probability += spread * (weighted ? weight_sum(classes, partials) : static_cast<float>(classes.count));
    }
    const float lse = a.lse[row];
    for (long long pack = threadIdx.x; pack < many; pack += static_cast<long long>(blockDim.x) * kLogitsTogether) {
        Pack loaded[kLogitsTogether];
#pragma unroll
        for (int i = 0; i < kLogitsTogether; ++i) {
            const long long here = pack + static_cast<long long>(i) * blockDim.x;
            if (here < many) {
                const int count = packs.count(here);
                loaded[i] = Types::load_pack(a.logits, begin + packs.column(here), count, whole && count == kPack);
            }
        }
#pragma unroll
        for (int i = 0; i < kLogitsTogether; ++i) {
            const long long here = pack + static_cast<long long>(i) * blockDim.x;
            if (here >= many) {
                continue;
            }
            const long long column = packs.column(here);
            const int count = packs.count(here);
            Pack weight;
            if (weighted) {
                weight = load_weights(classes, column, count);
            }
            const long long at_target = target - column;
#pragma unroll
            for (int j = 0; j < kPack; ++j) {
                const float share = weighted ? spread * weight.at[j] : spread;
                const float value = fmaf(probability, __expf(loaded[i].at[j] - lse), -share);
                loaded[i].at[j] = at_target == j ? value - hit : value;
            }
            Types::store_pack(a.dlogits, begin + column, loaded[i], count, whole && count == kPack);
        }
    }
}

TYPED_KERNEL(cross_entropy_backward, CrossEntropyBackwardArguments, kLossThreads)

// ---- squared error
//
// Forward: kLossThreads threads a block, each block a range of its own, whose sum in f64 goes to scratch memory; one
// more block adds those. Backward: blocks take packs in turn.

struct SquaredErrorForwardArguments {
    In x;
    const float* targets;
    // [blocks]
    double* partials;
    long long count;
    // Elements of a block, a multiple of kPack.
    long long range;
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void squared_error_forward_body(const SquaredErrorForwardArguments& a) {
    SHARED(double, partials, [kMostWarps]);
    const long long start = blockIdx.x * a.range;
    const long long end = start + a.range < a.count ? start + a.range : a.count;
    double sum = 0.0;
    const auto load = [&](long long index, int count) {
        const bool whole = a.whole && count == kPack;
        return Packs<2>{{Types::load_pack(a.x, index, count, whole), load_pack_of<float>(a.targets, index, count, whole)}};
    };
    each_pack(start + threadIdx.x * kPack, static_cast<long long>(blockDim.x) * kPack, end, load,
              [&](const Packs<2>& packs, long long, int count) {
#pragma unroll
                  for (int i = 0; i < kPack; ++i) {
                      const double difference = i < count ? static_cast<double>(packs.of[0].at[i]) - packs.of[1].at[i] : 0.0;
                      sum += difference * difference;
                  }
              });
    sum = block_sum_f64(sum, partials);
    if (threadIdx.x == 0) {
        a.partials[blockIdx.x] = sum;
    }
}

TYPED_KERNEL(squared_error_forward, SquaredErrorForwardArguments, kLossThreads)

struct SquaredErrorMeanArguments {
    const double* partials;
    float* loss;
    long long count;
    int blocks;
    int unused;
};

extern "C" __global__ void __launch_bounds__(kLossThreads) squared_error_mean(const SquaredErrorMeanArguments a) {
    SHARED(double, partials, [kMostWarps]);
    double sum = 0.0;
    for (int block = static_cast<int>(threadIdx.x); block < a.blocks; block += static_cast<int>(blockDim.x)) {
        sum += a.partials[block];
    }
    sum = block_sum_f64(sum, partials);
    if (threadIdx.x == 0) {
        *a.loss = static_cast<float>(sum / static_cast<double>(a.count));
    }
}
BMTRAIN_KERNEL(squared_error_mean)

struct SquaredErrorBackwardArguments {
    In x;
    Out dx;
    const float* targets;
    const float* dloss;
    long long count;
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void squared_error_backward_body(const SquaredErrorBackwardArguments& a) {
    const float factor = 2.0f * *a.dloss / static_cast<float>(a.count);
    const auto load = [&](long long index, int count) {
        const bool whole = a.whole && count == kPack;
        return Packs<2>{{Types::load_pack(a.x, index, count, whole), load_pack_of<float>(a.targets, index, count, whole)}};
    };
    each_pack_of_grid(a.count, load, [&](const Packs<2>& packs, long long index, int count) {
        const Pack dx = each_element([&](int i) { return factor * (packs.of[0].at[i] - packs.of[1].at[i]); });
        Types::store_pack(a.dx, index, dx, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(squared_error_backward, SquaredErrorBackwardArguments, kLossThreads)
