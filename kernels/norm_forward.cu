// Layer norm along rows, behind an optional residual:
//
//     sum = x + residual
//     y   = (sum - mean) * rstd * weight + bias
//
// Launch: one block for each row, of whole warps, at most 1024 threads; no dynamic shared memory.
// Numerics: f32 statistics, the variance from centred values. What is normalised is the sum as stored, so that the backward
// pass, which reads it from memory, sees the same numbers. Fixed order of summation for a given number of threads.
// Bytes moved for each element: x is read and y written, with a residual that one is read and the sum written too. The row
// is read three times, but after the first time from the cache: a block's row of up to some ten thousand elements fits the
// first level, and each thread reads again only what it read or wrote before, which is why no barrier stands between the
// passes. Weight and bias are shared by all rows and stay in the second level.

// Numbers are stored as `Number` and computed as f32. Other number types add a specialisation of each, and a kernel below.
template <class Number> __device__ __forceinline__ float widen(Number value);
template <class Number> __device__ __forceinline__ Number narrow(float value);
template <> __device__ __forceinline__ float widen<float>(float value) { return value; }
template <> __device__ __forceinline__ float narrow<float>(float value) { return value; }

// `residual` and `sum` are both null or both not; `bias` may be null.
template <class Number>
__device__ __forceinline__ void norm_forward_row(const Number* x, const Number* residual, Number* sum,
                                                 const Number* weight, const Number* bias, Number* y, float* mean,
                                                 float* rstd, int columns, float epsilon) {
    __shared__ float partials[kMostWarps];
    // Rows times columns may pass what 32 bits hold.
    const long long row_start = static_cast<long long>(blockIdx.x) * columns;
    const Number* row = x + row_start;

    float total = 0.0f;
    if (residual != nullptr) {
        Number* row_sum = sum + row_start;
        for (int column = threadIdx.x; column < columns; column += blockDim.x) {
            const float added = widen(x[row_start + column]) + widen(residual[row_start + column]);
            row_sum[column] = narrow<Number>(added);
            total += widen(row_sum[column]);
        }
        row = row_sum;
    } else {
        for (int column = threadIdx.x; column < columns; column += blockDim.x) {
            total += widen(row[column]);
        }
    }
    const float row_mean = block_sum(total, partials) / columns;

    float squares = 0.0f;
    for (int column = threadIdx.x; column < columns; column += blockDim.x) {
        const float centred = widen(row[column]) - row_mean;
        squares += centred * centred;
    }
    // Not rsqrtf, which is wrong in its last bits; once a row it costs nothing.
    const float row_rstd = 1.0f / sqrtf(block_sum(squares, partials) / columns + epsilon);

    for (int column = threadIdx.x; column < columns; column += blockDim.x) {
        const float normalised = (widen(row[column]) - row_mean) * row_rstd;
        const float shift = bias != nullptr ? widen(bias[column]) : 0.0f;
        y[row_start + column] = narrow<Number>(normalised * widen(weight[column]) + shift);
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = row_mean;
        rstd[blockIdx.x] = row_rstd;
    }
}

#define NORM_FORWARD(name, Number)                                                                                    \
    extern "C" __global__ void name(const Number* x, const Number* residual, Number* sum, const Number* weight,       \
                                    const Number* bias, Number* y, float* mean, float* rstd, int columns,             \
                                    float epsilon) {                                                                  \
        norm_forward_row<Number>(x, residual, sum, weight, bias, y, mean, rstd, columns, epsilon);                    \
    }                                                                                                                 \
    BMTRAIN_KERNEL(name)

NORM_FORWARD(norm_forward_f32, float)
