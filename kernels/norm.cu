// Layer norm and RMS norm along rows, behind an optional dropout and residual:
//
//     sum = dropout(x) + residual
//     y   = (sum - mean) * rstd * weight + bias          (RMS norm: without mean)
//
// Launch: one block for each row, of whole warps, one thread for each pack of the row but at most 512; no dynamic shared
// memory.
// Numerics: f32 statistics, the variance from centred values. What is normalised is the sum as stored, so that the backward
// pass, which reads it from memory, sees the same numbers. Fixed order of summation for a given number of threads.
// Bytes moved for each element: x is read and y written; with a residual that one is read and the sum written too. A thread
// holds its first kHeld packs in registers between the passes, so that rows of up to 8192 elements are read once; the
// rest of a longer row is read again. Scale and shift are shared by all rows and stay in the second level of the cache.

constexpr int kNormThreads = 512;
// Packs of a row that a thread keeps.
constexpr int kHeld = 2;

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
    // Every address is a multiple of 16 bytes, every row of 8 elements.
    int whole;
};

// What is normalised: eight elements of a row, as they are stored.
template <class Types>
__device__ __forceinline__ Pack norm_input(const NormForwardArguments& a, long long row, long long column, int count,
                                           bool write) {
    const long long index = row * a.columns + column;
    const bool whole = a.whole != 0;
    if (a.sum.data == nullptr) {
        return Types::load_pack(a.x, index, count, whole);
    }
    if (!write) {
        const In sum = {a.sum.data, a.sum.type, 0};
        return Types::load_pack(sum, index, count, whole);
    }
    Pack pack = Types::load_pack(a.x, index, count, whole);
    if (a.dropout.threshold != 0) {
        const Pack factors = dropout_factors(a.dropout, dropout_element(a.dropout, row, column));
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] *= factors.at[i];
        }
    }
    if (a.residual.data != nullptr) {
        const Pack residual = Types::load_pack(a.residual, index, count, whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] += residual.at[i];
        }
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        pack.at[i] = Types::rounded(a.sum, pack.at[i]);
    }
    Types::store_pack(a.sum, index, pack, count, whole);
    return pack;
}

template <class Types>
__device__ __forceinline__ void norm_forward_body(const NormForwardArguments& a) {
    SHARED(float, partials, [kMostWarps]);
    const long long row = blockIdx.x;
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    const long long start = static_cast<long long>(threadIdx.x) * kPack;
    const auto count_at = [&](long long column) {
        const long long left = a.columns - column;
        return left >= kPack ? kPack : left > 0 ? static_cast<int>(left) : 0;
    };

    Pack held[kHeld];
    float total = 0.0f;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        const long long column = start + h * stride;
        const int count = count_at(column);
        if (count > 0) {
            held[h] = norm_input<Types>(a, row, column, count, true);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                total += held[h].at[i];
            }
        }
    }
    for (long long column = start + kHeld * stride; column < a.columns; column += stride) {
        const Pack pack = norm_input<Types>(a, row, column, count_at(column), true);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            total += pack.at[i];
        }
    }
    // What a thread wrote it reads itself, so that no barrier is needed for the rest of a long row.
    const float mean = a.mean != nullptr ? block_sum(total, partials) / static_cast<float>(a.columns) : 0.0f;

    float squares = 0.0f;
    const auto add_squares = [&](const Pack& pack, int count) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            const float centred = i < count ? pack.at[i] - mean : 0.0f;
            squares += centred * centred;
        }
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        const int count = count_at(start + h * stride);
        if (count > 0) {
            add_squares(held[h], count);
        }
    }
    for (long long column = start + kHeld * stride; column < a.columns; column += stride) {
        const int count = count_at(column);
        add_squares(norm_input<Types>(a, row, column, count, false), count);
    }
    // Not rsqrtf, which is wrong in its last bits; once a row it costs nothing.
    const float variance = block_sum(squares, partials) / static_cast<float>(a.columns);
    const float rstd = 1.0f / sqrtf(variance + a.epsilon);

    const auto write = [&](const Pack& pack, long long column, int count) {
        const bool whole = a.whole != 0;
        const Pack weight = Mixed::load_pack(a.weight, column, count, whole);
        Pack y;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            y.at[i] = (pack.at[i] - mean) * rstd * weight.at[i];
        }
        if (a.bias.data != nullptr) {
            const Pack bias = Mixed::load_pack(a.bias, column, count, whole);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                y.at[i] += bias.at[i];
            }
        }
        Types::store_pack(a.y, row * a.columns + column, y, count, whole);
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        const long long column = start + h * stride;
        const int count = count_at(column);
        if (count > 0) {
            write(held[h], column, count);
        }
    }
    for (long long column = start + kHeld * stride; column < a.columns; column += stride) {
        const int count = count_at(column);
        write(norm_input<Types>(a, row, column, count, false), column, count);
    }
    if (threadIdx.x == 0) {
        if (a.mean != nullptr) {
            a.mean[row] = mean;
        }
        a.rstd[row] = rstd;
    }
}

TYPED_KERNEL(norm_forward, NormForwardArguments, kNormThreads)
