// Totals of the losses of rows, the scaling of their gradients, the mean squared error, and functions of single
// elements that losses are made of.
//
//     totals          = sum of losses, sum of w[t], the first by the second
//     scale_by        out (+)= factor / divisor x
//     squared error   loss = sum (x - target)^2 / n,   dx = dloss 2 (x - target) / n
//     pointwise       y = f(x, target),   dx (+)= dy f'(x, target)
//
// Launch: totals one block; scaling and pointwise kScaleThreads threads that take packs in turn. Squared error forward
// kLossThreads threads a block, each block a range of its own, whose f64 sum goes to scratch memory, and one more block
// that adds those; backward blocks take packs in turn.
// Numerics: f32, sums in f64 in a fixed order for given sizes.
// Bytes moved per element: operands read once, results written once.

constexpr int kLossThreads = 512;
constexpr int kTotalsThreads = 1024;
constexpr int kScaleThreads = 256;

// Number of the host for reports.
constexpr int kLossTotals = 6;

// ---- totals

struct LossTotalsArguments {
    const float* losses;
    const long long* targets;
    // Null if all are 1.
    const float* weights;
    float* totals;
    // Null if targets out of range were reported before.
    Fault* fault;
    long long ignore_index;
    long long rows;
    // Negative if targets are not checked.
    long long classes;
};

// Sum over a block in f64, as block_sum; `partials` has kMostWarps elements.
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

extern "C" __global__ void __launch_bounds__(kTotalsThreads) loss_totals(const LossTotalsArguments a) {
    SHARED(double, partials, [kMostWarps]);
    double loss = 0.0, weight = 0.0;
    for (long long row = threadIdx.x; row < a.rows; row += blockDim.x) {
        const long long target = a.targets[row];
        loss += static_cast<double>(a.losses[row]);
        if (target == a.ignore_index) {
            continue;
        }
        if (a.classes < 0 || (target >= 0 && target < a.classes)) {
            weight += a.weights != nullptr ? static_cast<double>(a.weights[target]) : 1.0;
        } else if (a.fault != nullptr) {
            report(a.fault, kLossTotals, row, target, a.classes);
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
BMTRAIN_KERNEL(loss_totals)

// ---- scaling

struct ScaleByArguments {
    // The memory of `out` if it is scaled in place.
    In x;
    Out out;
    const float* factor;
    // Null if there is none.
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

// ---- squared error

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
        const Pack targets = load_pack_of<float>(a.targets, index, count, whole);
        return Packs<2>{{Types::load_pack(a.x, index, count, whole), targets}};
    };
    each_pack(start + threadIdx.x * kPack, static_cast<long long>(blockDim.x) * kPack, end, load,
              [&](const Packs<2>& packs, long long, int count) {
#pragma unroll
                  for (int i = 0; i < kPack; ++i) {
                      const double x = packs.of[0].at[i], difference = i < count ? x - packs.of[1].at[i] : 0.0;
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
        const Pack targets = load_pack_of<float>(a.targets, index, count, whole);
        return Packs<2>{{Types::load_pack(a.x, index, count, whole), targets}};
    };
    each_pack_of_grid(a.count, load, [&](const Packs<2>& packs, long long index, int count) {
        const Pack dx = each_element([&](int i) { return factor * (packs.of[0].at[i] - packs.of[1].at[i]); });
        Types::store_pack(a.dx, index, dx, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(squared_error_backward, SquaredErrorBackwardArguments, kLossThreads)

// ---- functions of single elements

// `crate::kernel::Pointwise` in the core, by the number of the host. What is not a number stays so.
struct ElementFunction {
    int number;
    // The threshold of Huber's function.
    float parameter;

    // The probability of everything else, of a log-probability.
    static __device__ __forceinline__ float rest(float log_prob) {
        constexpr float kEpsilon = 1.1920929e-7f;
        const float rest = -expm1f(log_prob);
        return rest < kEpsilon ? kEpsilon : rest;
    }

    __device__ __forceinline__ float value(float x, float target) const {
        const float difference = x - target, size = fabsf(difference);
        switch (number) {
            case 0: return size;
            case 1: return size > parameter ? parameter * (size - 0.5f * parameter) : 0.5f * size * size;
            case 2: return (x < 0.0f ? 0.0f : x) - x * target + log1pf(expf(-fabsf(x)));
            case 3: return target == 0.0f ? 0.0f : target * (logf(target) - x);
            default: return x - logf(rest(x));
        }
    }

    __device__ __forceinline__ float slope(float x, float target) const {
        const float difference = x - target;
        switch (number) {
            case 0: return x == target ? 0.0f : difference / fabsf(difference);
            case 1: return fabsf(difference) > parameter ? copysignf(parameter, difference) : difference;
            case 2: {
                const float small = expf(-fabsf(x));
                return (x < 0.0f ? small : 1.0f) / (1.0f + small) - target;
            }
            case 3: return -target;
            default: return 1.0f / rest(x);
        }
    }
};

// What is read in both directions.
struct PointwiseOperands {
    In x;
    // Null of a function without.
    const float* targets;
    long long count;
    // Of an ElementFunction.
    int function;
    float parameter;

    // Packs of x and of the targets; x again where there are none.
    template <class Types> __device__ __forceinline__ Packs<2> load(long long index, int packed, bool whole) const {
        const Pack own = Types::load_pack(x, index, packed, whole);
        return {{own, targets != nullptr ? load_pack_of<float>(targets, index, packed, whole) : own}};
    }
};

struct PointwiseForwardArguments {
    PointwiseOperands operands;
    float* y;
    // Every address is a multiple of 16 bytes.
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void pointwise_forward_body(const PointwiseForwardArguments& a) {
    const ElementFunction function{a.operands.function, a.operands.parameter};
    const auto load = [&](long long index, int count) {
        return a.operands.template load<Types>(index, count, a.whole && count == kPack);
    };
    each_pack_of_grid(a.operands.count, load, [&](const Packs<2>& packs, long long index, int count) {
        const Pack y = each_element([&](int i) { return function.value(packs.of[0].at[i], packs.of[1].at[i]); });
        store_pack_of<float>(a.y, 0, index, y, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(pointwise_forward, PointwiseForwardArguments, kScaleThreads)

struct PointwiseBackwardArguments {
    PointwiseOperands operands;
    Out dx;
    const float* dy;
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void pointwise_backward_body(const PointwiseBackwardArguments& a) {
    const ElementFunction function{a.operands.function, a.operands.parameter};
    const auto load = [&](long long index, int count) {
        const bool whole = a.whole && count == kPack;
        const Packs<2> read = a.operands.template load<Types>(index, count, whole);
        return Packs<3>{{read.of[0], read.of[1], load_pack_of<float>(a.dy, index, count, whole)}};
    };
    each_pack_of_grid(a.operands.count, load, [&](const Packs<3>& packs, long long index, int count) {
        const Pack dx = each_element([&](int i) {
            return function.slope(packs.of[0].at[i], packs.of[1].at[i]) * packs.of[2].at[i];
        });
        Types::store_pack(a.dx, index, dx, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(pointwise_backward, PointwiseBackwardArguments, kScaleThreads)
