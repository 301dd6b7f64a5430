// Sums over rows, softmax along rows with its gradient, the norm of a gradient, and the search for what is not finite.
//
//     column_sum        out[c] = sum over r of x[r, c]
//     softmax           y = exp(x - largest) / sum of exp(x - largest), or the logarithm of that
//     softmax_backward  dx = y * (dy - sum of y * dy), or for logarithms dy - exp(y) * sum of dy
//     squares           sum of x^2;  largest: largest |x|
//
// Launch: see each kernel. Every sum is made in an order that follows from the sizes alone.
// Numerics: f32, but for the sum of squares, which is exact and has the bits of the CPU backend.
// Bytes moved for each element: what is read is read once, what is written written once, but for softmax of rows that
// are longer than a block holds, which is noted there. Partial sums go to scratch and are a small part of what is read.

// ---- sums over rows

// A block sums kSumThreads / width packs of columns at a time, `width` of them side by side.
constexpr int kSumThreads = 256;

struct ColumnPartsArguments {
    In x;
    // [groups, columns]
    float* partials;
    long long rows;
    long long columns;
    // Rows of a group; the groups are the blocks along y.
    long long at_once;
    // Packs side by side, a power of two up to 32; tiles of this width are the blocks along x.
    int width;
    // Every address is a multiple of 16 bytes, every row of 8 elements.
    int whole;
};

// Launch: blocks (tiles of columns, groups of rows), kSumThreads threads.
template <class Types>
__device__ __forceinline__ void column_parts_body(const ColumnPartsArguments& a) {
    SHARED(float, sums, [kPack * kSumThreads]);
    const int place = threadIdx.x % a.width;
    const int slot = threadIdx.x / a.width;
    const int slots = kSumThreads / a.width;
    const long long column = (static_cast<long long>(blockIdx.x) * a.width + place) * kPack;
    const long long left = a.columns - column;
    const int count = left >= kPack ? kPack : left > 0 ? static_cast<int>(left) : 0;
    const long long begin = blockIdx.y * a.at_once;
    const long long end = begin + a.at_once < a.rows ? begin + a.at_once : a.rows;

    Pack sum = {};
    if (count > 0) {
        // Loads in flight at once; after the last row the first of them is loaded again and not added.
        constexpr int kRows = 4;
        for (long long row = begin + slot; row < end; row += kRows * slots) {
            typename Types::Loaded loaded[kRows];
#pragma unroll
            for (int j = 0; j < kRows; ++j) {
                const long long here = row + j * slots < end ? row + j * slots : row;
                loaded[j] = Types::load_pack(a.x, here * a.columns + column, count, a.whole);
            }
#pragma unroll
            for (int j = 0; j < kRows; ++j) {
                const Pack pack = loaded[j];
                const bool is_there = row + j * slots < end;
#pragma unroll
                for (int i = 0; i < kPack; ++i) {
                    sum.at[i] += is_there ? pack.at[i] : 0.0f;
                }
            }
        }
    }
    // The slots in halves. Element i of all threads is together, so that a warp's accesses meet no bank twice.
#pragma unroll 1
    for (int half = slots / 2; half > 0; half /= 2) {
        if (slot >= half && slot < 2 * half) {
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                sums[i * kSumThreads + threadIdx.x] = sum.at[i];
            }
        }
        __syncthreads();
        if (slot < half) {
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                sum.at[i] += sums[i * kSumThreads + threadIdx.x + half * a.width];
            }
        }
        // The next half writes where no thread reads any more: below the places just read.
    }
    if (slot == 0 && count > 0) {
        float* const partial = a.partials + blockIdx.y * a.columns + column;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            if (i < count) {
                partial[i] = sum.at[i];
            }
        }
    }
}

TYPED_KERNEL(column_parts, ColumnPartsArguments, kSumThreads)

struct SumPartialsArguments {
    // [groups, columns of `first`, then columns of `second`]
    const float* partials;
    // Receive the sums over the groups; either may be absent, its columns are there all the same.
    Out first;
    Out second;
    long long groups;
    // Columns of each of the two.
    long long columns;
    // Columns of both: from one row of `partials` to the next.
    long long stride;
};

// Launch: one block of 32 warps for 32 columns. A warp sums every 32nd group, then one column over the warps.
extern "C" __global__ void __launch_bounds__(1024) sum_partials(const SumPartialsArguments a) {
    SHARED(float, sums, [kWarpThreads * (kWarpThreads + 1)]);
    const int lane = threadIdx.x % kWarpThreads;
    const int warp = threadIdx.x / kWarpThreads;
    const long long base = static_cast<long long>(blockIdx.x) * kWarpThreads;
    float sum = 0.0f;
    if (base + lane < a.stride) {
#pragma unroll 4
        for (long long group = warp; group < a.groups; group += kWarpThreads) {
            sum += a.partials[group * a.stride + base + lane];
        }
    }
    sums[warp * (kWarpThreads + 1) + lane] = sum;
    __syncthreads();
    sum = warp_sum(sums[lane * (kWarpThreads + 1) + warp]);
    const long long column = base + warp;
    if (lane == 0 && column < a.stride) {
        if (column < a.columns) {
            if (a.first.data != nullptr) {
                Mixed::store(a.first, column, sum);
            }
        } else if (a.second.data != nullptr) {
            Mixed::store(a.second, column - a.columns, sum);
        }
    }
}
BMTRAIN_KERNEL(sum_partials)

// ---- softmax

constexpr int kSoftmaxThreads = 1024;

struct SoftmaxArguments {
    In x;
    Out y;
    long long rows;
    long long columns;
    // Logarithms are written.
    int log;
    int whole;
};

__device__ __forceinline__ int row_count(long long columns, long long column) {
    const long long left = columns - column;
    return left >= kPack ? kPack : left > 0 ? static_cast<int>(left) : 0;
}

__device__ __forceinline__ float pack_max(const Pack& pack, int count) {
    float largest = -BMTRAIN_INFINITY;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        largest = i < count ? fmaxf(largest, pack.at[i]) : largest;
    }
    return largest;
}

__device__ __forceinline__ float pack_exponentials(const Pack& pack, int count, float largest) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        sum += i < count ? expf(pack.at[i] - largest) : 0.0f;
    }
    return sum;
}

// Launch: one block for each row, a thread for each pack but at most kSoftmaxThreads. A thread holds its first pack;
// the rest of a row beyond 8192 elements is read three times.
// A row without a number above minus infinity, or with one that is not a number, or with infinity, becomes NaN
// throughout.
template <class Types>
__device__ __forceinline__ void softmax_body(const SoftmaxArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const long long base = blockIdx.x * a.columns;
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    const long long start = static_cast<long long>(threadIdx.x) * kPack;
    const int first = row_count(a.columns, start);
    Pack held = {};
    if (first > 0) {
        held = Types::load_pack(a.x, base + start, first, a.whole);
    }
    float largest = pack_max(held, first);
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        const int count = row_count(a.columns, column);
        largest = fmaxf(largest, pack_max(Types::load_pack(a.x, base + column, count, a.whole), count));
    }
    largest = block_max(largest, partials);
    float sum = pack_exponentials(held, first, largest);
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        const int count = row_count(a.columns, column);
        sum += pack_exponentials(Types::load_pack(a.x, base + column, count, a.whole), count, largest);
    }
    sum = block_sum(sum, partials);
    const float last = a.log != 0 ? logf(sum) : 1.0f / sum;
    const auto write = [&](Pack pack, long long column, int count) {
        if (a.log != 0) {
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                pack.at[i] = (pack.at[i] - largest) - last;
            }
        } else {
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                pack.at[i] = expf(pack.at[i] - largest) * last;
            }
        }
        Types::store_pack(a.y, base + column, pack, count, a.whole);
    };
    if (first > 0) {
        write(held, start, first);
    }
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        const int count = row_count(a.columns, column);
        write(Types::load_pack(a.x, base + column, count, a.whole), column, count);
    }
}

// One block is enough: for two the compiler would spill.
TYPED_KERNEL(softmax, SoftmaxArguments, kSoftmaxThreads, 1)

struct SoftmaxBackwardArguments {
    In y;
    In dy;
    Out dx;
    long long rows;
    long long columns;
    int log;
    int whole;
};

// Launch: as softmax; the rest of a row beyond 8192 elements is read twice.
template <class Types>
__device__ __forceinline__ void softmax_backward_body(const SoftmaxBackwardArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const long long base = blockIdx.x * a.columns;
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    const long long start = static_cast<long long>(threadIdx.x) * kPack;
    // Beyond a row's end packs are zero.
    const auto share = [&](const Pack& y, const Pack& dy) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            sum += a.log != 0 ? dy.at[i] : y.at[i] * dy.at[i];
        }
        return sum;
    };
    const int first = row_count(a.columns, start);
    Pack y = {}, dy = {};
    if (first > 0) {
        y = Types::load_pack(a.y, base + start, first, a.whole);
        dy = Types::load_pack(a.dy, base + start, first, a.whole);
    }
    float sum = share(y, dy);
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        const int count = row_count(a.columns, column);
        sum += share(Types::load_pack(a.y, base + column, count, a.whole),
                     Types::load_pack(a.dy, base + column, count, a.whole));
    }
    sum = block_sum(sum, partials);
    const auto write = [&](const Pack& y, const Pack& dy, long long column, int count) {
        Pack dx;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            dx.at[i] = a.log != 0 ? dy.at[i] - expf(y.at[i]) * sum : y.at[i] * (dy.at[i] - sum);
        }
        Types::store_pack(a.dx, base + column, dx, count, a.whole);
    };
    if (first > 0) {
        write(y, dy, start, first);
    }
#pragma unroll 1
    for (long long column = start + stride; column < a.columns; column += stride) {
        const int count = row_count(a.columns, column);
        const auto load = [&](const In& from) { return Types::load_pack(from, base + column, count, a.whole); };
        write(load(a.y), load(a.dy), column, count);
    }
}

TYPED_KERNEL(softmax_backward, SoftmaxBackwardArguments, kSoftmaxThreads, 1)

// ---- the norm of a gradient

constexpr int kNormThreads = 256;
// Threads that sum the squares of one chunk.
constexpr int kChunkThreads = 16;
constexpr int kChunksAtOnce = kNormThreads / kChunkThreads;

// Runs of a launch; crate::cuda::runs::NORM_RUNS.
constexpr int kNormRuns = 128;

struct NormRun {
    const void* x;
    long long count;
    int first_block;
    int blocks;
};

struct NormPartsArguments {
    // For each block: the limbs of its sum, or the bits of its largest magnitude.
    long long* parts;
    int type;
    int count;
    NormRun runs[kNormRuns];
};

// Sum of squares of a chunk in the order of the CPU backend: sixteen sums, each over every sixteenth element;
// the first take what is left over after the last sixteen; then the sums in halves. Every thread of the sixteen gets
// it. A product of two f32 is exact in a double, so that fusing it with the addition changes nothing.
template <class Types>
__device__ __forceinline__ double chunk_squares(const In& x, long long start, int count, int place) {
    double sum = 0.0;
    if (count == kNormChunk) {
        float values[kNormChunk / kChunkThreads];
#pragma unroll
        for (int i = 0; i < kNormChunk / kChunkThreads; ++i) {
            values[i] = Types::load(x, start + i * kChunkThreads + place);
        }
#pragma unroll
        for (int i = 0; i < kNormChunk / kChunkThreads; ++i) {
            sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
        }
    } else {
        const int sixteens = count / kChunkThreads * kChunkThreads;
        if (sixteens + place < count) {
            const double value = Types::load(x, start + sixteens + place);
            sum = value * value;
        }
#pragma unroll 1
        for (int i = place; i < sixteens; i += kChunkThreads) {
            const double value = Types::load(x, start + i);
            sum += value * value;
        }
    }
#pragma unroll
    for (int width = kChunkThreads / 2; width > 0; width /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, width);
    }
    return sum;
}

// Launch: blocks of kNormThreads threads for each run, which take its chunks in turn. Sixteen threads read 64
// neighbouring bytes (f32) at a time, in eight loads that are on their way at once. Each sixteen add up limbs of their
// own: integers, so that the order is free. Limbs do not overflow below 2^38 elements.
template <class Types>
__device__ __forceinline__ void squares_parts_body(const NormPartsArguments& a) {
    SHARED(unsigned long long, words, [kChunksAtOnce * kSumWords]);
    const int own = threadIdx.x / kChunkThreads;
    const int place = threadIdx.x % kChunkThreads;
    for (int word = threadIdx.x; word < kChunksAtOnce * kSumWords; word += kNormThreads) {
        words[word] = 0;
    }
    __syncthreads();
    const NormRun& run = own_run(a.runs, a.count);
    const In x = {run.x, a.type, 0};
    const long long chunks = (run.count + kNormChunk - 1) / kNormChunk;
#pragma unroll 1
    for (long long first = static_cast<long long>(blockIdx.x - run.first_block) * kChunksAtOnce; first < chunks;
         first += static_cast<long long>(run.blocks) * kChunksAtOnce) {
        const long long start = (first + own) * kNormChunk;
        const long long left = run.count - start;
        const int count = left >= kNormChunk ? kNormChunk : left > 0 ? static_cast<int>(left) : 0;
        const double sum = chunk_squares<Types>(x, start, count, place);
        if (place < 3) {
            unsigned long long share = 0;
            const int word = sum_place(sum, place, share);
            if (share != 0) {
                words[own * kSumWords + word] += share;
            }
        }
        // The next chunk's shares may fall to other threads.
        __syncwarp();
    }
    __syncthreads();
    if (threadIdx.x < kSumWords) {
        unsigned long long sum = 0;
        for (int other = 0; other < kChunksAtOnce; ++other) {
            sum += words[other * kSumWords + threadIdx.x];
        }
        a.parts[static_cast<long long>(blockIdx.x) * kSumWords + threadIdx.x] = static_cast<long long>(sum);
    }
}

TYPED_KERNEL(squares_parts, NormPartsArguments, kNormThreads)

// Bits of the largest magnitude of a pack: as integers, NaN is above infinity and infinity above every number.
__device__ __forceinline__ unsigned pack_bits(const Pack& pack) {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        largest = max(largest, __float_as_uint(pack.at[i]) & 0x7fffffffu);
    }
    return largest;
}

// The largest bits among every `stride`-th pack from `first` on.
template <class Types>
__device__ __forceinline__ unsigned largest_bits(const In& x, long long elements, int whole, long long first,
                                                 long long stride) {
    unsigned largest = 0;
    const long long packs = (elements + kPack - 1) / kPack;
#pragma unroll 2
    for (long long pack = first; pack < packs; pack += stride) {
        const int count = row_count(elements, pack * kPack);
        largest = max(largest, pack_bits(Types::load_pack(x, pack * kPack, count, whole != 0 && count == kPack)));
    }
    return largest;
}

// Launch: blocks of kNormThreads threads for each run, which take its packs in turn.
template <class Types>
__device__ __forceinline__ void largest_parts_body(const NormPartsArguments& a) {
    SHARED(unsigned, warps, [kNormThreads / kWarpThreads]);
    const NormRun& run = own_run(a.runs, a.count);
    const long long first = static_cast<long long>(blockIdx.x - run.first_block) * kNormThreads + threadIdx.x;
    const long long stride = static_cast<long long>(run.blocks) * kNormThreads;
    const int whole = reinterpret_cast<unsigned long long>(run.x) % 16 == 0;
    unsigned largest = largest_bits<Types>({run.x, a.type, 0}, run.count, whole, first, stride);
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    if (threadIdx.x % kWarpThreads == 0) {
        warps[threadIdx.x / kWarpThreads] = largest;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 0; warp < kNormThreads / kWarpThreads; ++warp) {
            largest = max(largest, warps[warp]);
        }
        a.parts[blockIdx.x] = largest;
    }
}

TYPED_KERNEL(largest_parts, NormPartsArguments, kNormThreads)

struct NormTotalArguments {
    const long long* parts;
    // kSumWords limbs.
    long long* out;
    long long count;
    // The largest magnitude rather than the sum of squares.
    int largest;
    // What is there already counts too.
    int add;
};

// Launch: one block, a warp for each limb. Leaves the sum carried, as the CPU backend does.
extern "C" __global__ void __launch_bounds__(kSumWords * kWarpThreads) norm_total(const NormTotalArguments a) {
    SHARED(long long, words, [kSumWords]);
    const int lane = threadIdx.x % kWarpThreads;
    const int word = threadIdx.x / kWarpThreads;
    const long long old = a.add != 0 ? a.out[word] : 0;
    long long total = 0;
    if (a.largest == 0) {
        for (long long part = lane; part < a.count; part += kWarpThreads) {
            total += a.parts[part * kSumWords + word];
        }
    } else if (word == 0) {
        for (long long part = lane; part < a.count; part += kWarpThreads) {
            total = max(total, a.parts[part]);
        }
    }
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        const long long other = __shfl_xor_sync(kAllLanes, total, distance);
        total = a.largest == 0 ? total + other : max(total, other);
    }
    if (lane == 0) {
        words[word] = a.largest == 0 ? old + total : max(old, total);
    }
    __syncthreads();
    if (threadIdx.x == 0 && a.largest == 0) {
        sum_carry(words);
    }
    __syncthreads();
    if (lane == 0) {
        a.out[word] = words[word];
    }
}
BMTRAIN_KERNEL(norm_total)

struct NonFiniteArguments {
    In x;
    int* flag;
    long long count;
    int whole;
    int unused;
};

// Launch: blocks of kNormThreads threads, which take packs in turn. Every thread that finds something writes the same
// 1.
template <class Types>
__device__ __forceinline__ void non_finite_body(const NonFiniteArguments& a) {
    if (largest_bits<Types>(a.x, a.count, a.whole, global_thread(), global_threads()) >= 0x7f800000u) {
        *a.flag = 1;
    }
}

TYPED_KERNEL(non_finite, NonFiniteArguments, kNormThreads)
