// Layer norm and RMS norm along rows, after an optional dropout and residual, and their gradients:
//
//     sum = dropout(x) + residual
//     y   = (sum - mean) * rstd * (offset + weight) + bias          (RMS norm: without mean)
//
//     n       = (sum - mean) * rstd,  g = dy * (offset + weight)
//     dx      = rstd * (g - mean over the row of g - n * mean over the row of g * n)
//     branch  = dropout(dx)                              (the gradient before the dropout)
//     dweight = sum over rows of dy * n,  dbias = sum over rows of dy
//
// Launch: whole warps, one thread for each pack of a row but at most 1024. Forward: one block for each row. Backward:
// one block for each group of neighbouring rows, which it takes blockDim.y at a time: threads (x, y) have pack x of row
// y, to have many loads in flight where rows are short. Groups and rows at a time follow from the sizes alone.
// The group's sums for weight and bias, 64 bytes of dynamic shared memory a thread while they are added up if
// blockDim.y is above 1, go to scratch. The last block of a cluster of groups to get there adds up the sums of the
// cluster, in the order of the groups, and the last of those blocks the sums of the clusters, in their order: which
// block that is differs from run to run, what it computes does not.
// Numerics: f32 statistics, the variance from centred values. What is normalised is the sum as stored, so that the
// backward pass, which reads it from memory, sees the same numbers. Fixed order of summation for given sizes.
// Bytes moved for each element: forward, x is read and y written; with a residual that one is read and the sum written
// too. Backward, x and dy are read and what is wanted of dx and branch written. A thread holds its first pack in
// registers between the passes, so that rows of up to 8192 elements are read once; the rest of a longer row is read
// again. Scale and shift are shared by all rows and stay in the second level of the cache. The partial sums are 16
// bytes for each column and group, written and read there, too.

constexpr int kNormThreads = 1024;

__device__ __forceinline__ int norm_count(long long columns, long long column) {
    const long long left = columns - column;
    return left >= kPack ? kPack : static_cast<int>(left);
}

struct NormForwardArguments {
    In x;
    In residual;
    Out sum;
    In weight;
    In bias;
    Out y;
    // Null for RMS norm.
    float* mean;
    float* rstd;
    Dropout dropout;
    long long rows;
    long long columns;
    float epsilon;
    // Added to the weight.
    float offset;
    // Every address is a multiple of 16 bytes, every row of 8 elements.
    int whole;
    int unused;
};

// What is normalised: eight elements of a row, as they are stored. The sum is made and written.
template <class Types>
__device__ __forceinline__ Pack norm_sum(const NormForwardArguments& a, long long row, long long column, int count) {
    const long long index = row * a.columns + column;
    Pack pack = Types::load_pack(a.x, index, count, a.whole);
    if (a.sum.data == nullptr) {
        return pack;
    }
    if (a.dropout.threshold != 0) {
        const Pack factors = dropout_factors(a.dropout, dropout_element(a.dropout, row, column));
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] *= factors.at[i];
        }
    }
    if (a.residual.data != nullptr) {
        const Pack residual = Types::load_pack(a.residual, index, count, a.whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] += residual.at[i];
        }
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        pack.at[i] = Types::rounded(a.sum, pack.at[i]);
    }
    Types::store_pack(a.sum, index, pack, count, a.whole);
    return pack;
}

template <class Types>
__device__ __forceinline__ void norm_write(const NormForwardArguments& a, long long row, long long column, int count,
                                           const Pack& pack, float mean, float rstd) {
    const Pack weight = Mixed::load_pack(a.weight, column, count, a.whole);
    Pack y;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        y.at[i] = (pack.at[i] - mean) * rstd * (a.offset + weight.at[i]);
    }
    if (a.bias.data != nullptr) {
        const Pack bias = Mixed::load_pack(a.bias, column, count, a.whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            y.at[i] += bias.at[i];
        }
    }
    Types::store_pack(a.y, row * a.columns + column, y, count, a.whole);
}

__device__ __forceinline__ float norm_squares(const Pack& pack, int count, float mean) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        const float centred = i < count ? pack.at[i] - mean : 0.0f;
        squares += centred * centred;
    }
    return squares;
}

template <class Types>
__device__ __forceinline__ void norm_forward_body(const NormForwardArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const long long row = blockIdx.x;
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    const long long start = static_cast<long long>(threadIdx.x) * kPack;
    const bool any = start < a.columns;
    const int first = any ? norm_count(a.columns, start) : 0;

    Pack held;
    float total = 0.0f;
    if (any) {
        held = norm_sum<Types>(a, row, start, first);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            total += held.at[i];
        }
    }
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        const Pack pack = norm_sum<Types>(a, row, column, norm_count(a.columns, column));
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            total += pack.at[i];
        }
    }
    const float mean = a.mean != nullptr ? block_sum(total, partials) / static_cast<float>(a.columns) : 0.0f;

    // What is normalised, from memory: what a thread wrote it reads itself, so that no barrier is needed.
    const In again = a.sum.data == nullptr ? a.x : In{a.sum.data, a.sum.type, 0};
    const auto reread = [&](long long column) {
        return Types::load_pack(again, row * a.columns + column, norm_count(a.columns, column), a.whole);
    };
    float squares = any ? norm_squares(held, first, mean) : 0.0f;
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        squares += norm_squares(reread(column), norm_count(a.columns, column), mean);
    }
    // Not rsqrtf, which is wrong in its last bits; once a row it costs nothing.
    const float variance = block_sum(squares, partials) / static_cast<float>(a.columns);
    const float rstd = 1.0f / sqrtf(variance + a.epsilon);

    if (any) {
        norm_write<Types>(a, row, start, first, held, mean, rstd);
    }
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        norm_write<Types>(a, row, column, norm_count(a.columns, column), reread(column), mean, rstd);
    }
    if (threadIdx.x == 0) {
        if (a.mean != nullptr) {
            a.mean[row] = mean;
        }
        a.rstd[row] = rstd;
    }
}

TYPED_KERNEL(norm_forward, NormForwardArguments, kNormThreads, 1)

struct NormBackwardArguments {
    // What was normalised.
    In x;
    In weight;
    In dy;
    // Both may be absent.
    Out dx;
    Out branch;
    // Null for RMS norm.
    const float* mean;
    const float* rstd;
    // Of each group, the sums for the weight and then those for the bias; null if neither is wanted.
    float* partials;
    // Blocks that have got there: of each cluster of groups, and clusters. Zero before the launch and after it.
    unsigned* arrived;
    // Either may be absent.
    Out dweight;
    Out dbias;
    Dropout dropout;
    long long rows;
    long long columns;
    // Rows of a group.
    long long at_once;
    // Added to the weight.
    float offset;
    int whole;
};

// What the gradient of a row needs besides its elements.
struct NormRow {
    float mean;
    float rstd;
    // Means of g and of g * n.
    float plain;
    float weighted;
};

// The sums over a block's threads of this y of two values. `partials` is two arrays; successive rows take
// turns: a warp that is a row ahead writes to the other one, and it cannot be two ahead because of the barrier between.
__device__ __forceinline__ void norm_sums(float& plain, float& weighted, float* partials) {
    const int lane = threadIdx.x % kWarpThreads;
    const int warp = threadIdx.x / kWarpThreads;
    const int warps = blockDim.x / kWarpThreads;
    float* const mine = partials + threadIdx.y * warps;
    plain = warp_sum(plain);
    weighted = warp_sum(weighted);
    if (lane == 0) {
        mine[warp] = plain;
        mine[kMostWarps + warp] = weighted;
    }
    __syncthreads();
    plain = warp_sum(lane < warps ? mine[lane] : 0.0f);
    weighted = warp_sum(lane < warps ? mine[kMostWarps + lane] : 0.0f);
}

template <class Types>
__device__ __forceinline__ void norm_gradient(const NormBackwardArguments& a, long long row, long long column,
                                              int count, const Pack& normalised, const Pack& dy, const NormRow& of) {
    const Pack weight = Mixed::load_pack(a.weight, column, count, a.whole);
    Pack gradient;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        gradient.at[i] = of.rstd * (dy.at[i] * (a.offset + weight.at[i]) - of.plain - normalised.at[i] * of.weighted);
    }
    const long long index = row * a.columns + column;
    if (a.dx.data != nullptr) {
        Types::store_pack(a.dx, index, gradient, count, a.whole);
    }
    if (a.branch.data != nullptr) {
        const Pack factors = dropout_factors(a.dropout, dropout_element(a.dropout, row, column));
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            gradient.at[i] *= factors.at[i];
        }
        Types::store_pack(a.branch, index, gradient, count, a.whole);
    }
}

// Eight elements of a row: normalised, with their gradient.
template <class Types>
__device__ __forceinline__ void norm_load(const NormBackwardArguments& a, long long row, long long column, int count,
                                          const NormRow& of, Pack& normalised, Pack& dy) {
    const long long index = row * a.columns + column;
    // Both on their way before the first is used.
    const auto loaded_x = Types::load_pack(a.x, index, count, a.whole);
    const auto loaded_dy = Types::load_pack(a.dy, index, count, a.whole);
    normalised = loaded_x;
    dy = loaded_dy;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        normalised.at[i] = (normalised.at[i] - of.mean) * of.rstd;
    }
}

// Adds to the sums of g and g * n. Beyond `count` dy is zero.
__device__ __forceinline__ void norm_add(const NormBackwardArguments& a, long long column, int count,
                                         const Pack& normalised, const Pack& dy, NormRow& of) {
    const Pack weight = Mixed::load_pack(a.weight, column, count, a.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        const float g = dy.at[i] * (a.offset + weight.at[i]);
        of.plain += g;
        of.weighted += i < count ? g * normalised.at[i] : 0.0f;
    }
}

// The means of g and g * n over the row, from each thread's sums.
__device__ __forceinline__ void norm_means(const NormBackwardArguments& a, NormRow& of, float* partials) {
    norm_sums(of.plain, of.weighted, partials);
    of.plain = a.mean != nullptr ? of.plain / static_cast<float>(a.columns) : 0.0f;
    of.weighted = of.weighted / static_cast<float>(a.columns);
}

__device__ __forceinline__ NormRow norm_row(const NormBackwardArguments& a, long long row) {
    return {a.mean != nullptr ? a.mean[row] : 0.0f, a.rstd[row], 0.0f, 0.0f};
}

// The sums of this block's group.
__device__ __forceinline__ float* norm_partials(const NormBackwardArguments& a) {
    return a.partials + blockIdx.x * (2 * a.columns);
}

// The sums of a group for weight and bias, from the sums of the rows of each y: in the order of y.
__device__ __forceinline__ void norm_put_sums(const NormBackwardArguments& a, int start, int count, const Pack& dweight,
                                              const Pack& dbias, float* partials) {
    if (blockDim.y == 1) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            if (i < count) {
                partials[start + i] = dweight.at[i];
                partials[a.columns + start + i] = dbias.at[i];
            }
        }
        return;
    }
    SHARED_AT_LAUNCH(memory);
    const int width = blockDim.x * kPack, threads = blockDim.x * blockDim.y;
    float* const sums = reinterpret_cast<float*>(memory);
    store_pack_of<float>(sums, 0, (2 * threadIdx.y) * width + start, dweight, kPack, true);
    store_pack_of<float>(sums, 0, (2 * threadIdx.y + 1) * width + start, dbias, kPack, true);
    __syncthreads();
    for (int column = threadIdx.y * blockDim.x + threadIdx.x; column < a.columns; column += threads) {
        float first = 0.0f, second = 0.0f;
        for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
            first += sums[2 * y * width + column];
            second += sums[(2 * y + 1) * width + column];
        }
        partials[column] = first;
        partials[a.columns + column] = second;
    }
}

// The rows of a group where a pack for each thread is a whole row: the sums for weight and bias are held in registers.
template <class Types>
__device__ __forceinline__ void norm_backward_held(const NormBackwardArguments& a, long long begin, long long end,
                                                   float* sums) {
    const int start = threadIdx.x * kPack;
    const int count = start < a.columns ? norm_count(a.columns, start) : 0;
    Pack dweight = {}, dbias = {};
    // Rows that are left of the group from the row of y 0 on; a y without rows takes part in the sums.
    int left = static_cast<int>(end - begin), turn = 0;
#pragma unroll 1
    for (long long row = begin + threadIdx.y; left > 0; row += blockDim.y, left -= blockDim.y) {
        const bool here = count > 0 && static_cast<int>(threadIdx.y) < left;
        NormRow of = {};
        Pack normalised, dy;
        if (here) {
            of = norm_row(a, row);
            norm_load<Types>(a, row, start, count, of, normalised, dy);
            norm_add(a, start, count, normalised, dy, of);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                dweight.at[i] += dy.at[i] * normalised.at[i];
                dbias.at[i] += dy.at[i];
            }
        }
        if (a.dx.data == nullptr && a.branch.data == nullptr) {
            continue;
        }
        norm_means(a, of, sums + turn);
        turn = 2 * kMostWarps - turn;
        if (here) {
            norm_gradient<Types>(a, row, start, count, normalised, dy, of);
        }
    }
    if (a.partials != nullptr) {
        norm_put_sums(a, start, count, dweight, dbias, norm_partials(a));
    }
}

// The rows of a group where a thread has several packs of each: the sums grow in scratch, each thread's where no other
// has a share, and the elements are read twice.
template <class Types>
__device__ __forceinline__ void norm_backward_long(const NormBackwardArguments& a, long long begin, long long end,
                                                   float* partials, float* sums) {
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    const long long start = static_cast<long long>(threadIdx.x) * kPack;
#pragma unroll 1
    for (long long row = begin; row < end; ++row) {
        NormRow of = norm_row(a, row);
#pragma unroll 1
        for (long long column = start; column < a.columns; column += stride) {
            const int count = norm_count(a.columns, column);
            Pack normalised, dy;
            norm_load<Types>(a, row, column, count, of, normalised, dy);
            norm_add(a, column, count, normalised, dy, of);
            if (partials != nullptr) {
                const bool first = row == begin;
#pragma unroll
                for (int i = 0; i < kPack; ++i) {
                    if (i < count) {
                        float* const dweight = partials + column + i;
                        float* const dbias = dweight + a.columns;
                        *dweight = (first ? 0.0f : *dweight) + dy.at[i] * normalised.at[i];
                        *dbias = (first ? 0.0f : *dbias) + dy.at[i];
                    }
                }
            }
        }
        if (a.dx.data == nullptr && a.branch.data == nullptr) {
            continue;
        }
        norm_means(a, of, sums + (row - begin) % 2 * (2 * kMostWarps));
#pragma unroll 1
        for (long long column = start; column < a.columns; column += stride) {
            const int count = norm_count(a.columns, column);
            Pack normalised, dy;
            norm_load<Types>(a, row, column, count, of, normalised, dy);
            norm_gradient<Types>(a, row, column, count, normalised, dy, of);
        }
    }
}

// Groups of a cluster, and most clusters. The counter after theirs counts clusters.
constexpr unsigned kNormCluster = 16;
constexpr unsigned kNormClusters = 32;

// Whether this block is the last of `count` to come here. Then it sees what the others wrote before, and the counter is
// zero again. The barrier orders the writes of the block's threads before the fence of the one that counts, and that
// fence before what the block that comes last does after its own.
__device__ __forceinline__ bool norm_is_last(unsigned* counter, unsigned count, int* last) {
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        __threadfence();
        *last = atomicAdd(counter, 1u) == count - 1;
        if (*last) {
            atomicExch(counter, 0u);
            __threadfence();
        }
    }
    __syncthreads();
    return *last != 0;
}

// Runs `put(half, column, count, sum)` for the sum of `count` rows of partial sums, `apart` groups from each other, for
// packs of the weight's half and of the bias' half: the rows in order.
template <class Put>
__device__ __forceinline__ void norm_sum_rows(const NormBackwardArguments& a, const float* rows, unsigned count,
                                              unsigned apart, Put put) {
    const long long packs = (a.columns + kPack - 1) / kPack, stride = 2 * a.columns * apart;
    const int threads = blockDim.x * blockDim.y;
    for (long long pack = threadIdx.y * blockDim.x + threadIdx.x; pack < 2 * packs; pack += threads) {
        const int half = pack >= packs;
        const long long column = (half ? pack - packs : pack) * kPack;
        const int size = norm_count(a.columns, column);
        const float* const from = rows + half * a.columns + column;
        const bool whole = a.columns % kPack == 0;
        Pack sum = {};
#pragma unroll 4
        for (unsigned row = 0; row < count; ++row) {
            const Pack more = load_pack_of<float>(from, row * stride, size, whole);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                sum.at[i] += more.at[i];
            }
        }
        put(half, column, size, sum);
    }
}

// Adds up the sums of all groups, each block what it comes last to.
__device__ __forceinline__ void norm_finish(const NormBackwardArguments& a) {
    SHARED(int, last, [1]);
    const unsigned cluster = blockIdx.x / kNormCluster, first = cluster * kNormCluster;
    const unsigned clusters = (gridDim.x + kNormCluster - 1) / kNormCluster;
    const unsigned members = min(kNormCluster, gridDim.x - first);
    if (!norm_is_last(a.arrived + cluster, members, last)) {
        return;
    }
    float* const rows = a.partials + first * (2 * a.columns);
    const auto finish = [&](int half, long long column, int size, const Pack& sum) {
        const Out& out = half ? a.dbias : a.dweight;
        if (out.data != nullptr) {
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                if (i < size) {
                    Mixed::store(out, column + i, sum.at[i]);
                }
            }
        }
    };
    if (clusters == 1) {
        norm_sum_rows(a, rows, members, 1, finish);
        return;
    }
    // In place of the first group's: each thread where it has read them.
    norm_sum_rows(a, rows, members, 1, [&](int half, long long column, int size, const Pack& sum) {
        store_pack_of<float>(rows, 0, half * a.columns + column, sum, size, a.columns % kPack == 0);
    });
    if (norm_is_last(a.arrived + kNormClusters, clusters, last)) {
        norm_sum_rows(a, a.partials, clusters, kNormCluster, finish);
    }
}

template <class Types>
__device__ __forceinline__ void norm_backward_body(const NormBackwardArguments& a) {
    SHARED(float, sums, [4 * kMostWarps]);
    const long long begin = static_cast<long long>(blockIdx.x) * a.at_once;
    const long long end = begin + a.at_once < a.rows ? begin + a.at_once : a.rows;
    if (a.columns <= static_cast<long long>(blockDim.x) * kPack) {
        norm_backward_held<Types>(a, begin, end, sums);
    } else {
        norm_backward_long<Types>(a, begin, end, a.partials != nullptr ? norm_partials(a) : nullptr, sums);
    }
    if (a.partials != nullptr) {
        norm_finish(a);
    }
}

TYPED_KERNEL(norm_backward, NormBackwardArguments, kNormThreads, 1)
