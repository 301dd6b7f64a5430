// Rows in units: how a grid goes through rows whose elements are moved in units of one size, with several loads on
// their way.

constexpr int kRowsThreads = 256;

// 64-bit quotients take a long sequence of instructions that small numbers do not need.
__device__ __forceinline__ long long quotient(long long number, long long divisor) {
    if (((number | divisor) >> 32) == 0) {
        return static_cast<unsigned>(number) / static_cast<unsigned>(divisor);
    }
    return number / divisor;
}

// Launch: kRowsThreads threads a block, blockDim.x of them along a row, blockDim.y rows; blocks take pieces in turn.
// For each row, `begin(row)` once, then `load(begun, unit)` for kTogether units, then `store(begun, unit, loaded)` for
// them.
template <int kTogether, class Begin, class Load, class Store>
__device__ __forceinline__ void each_unit(long long rows, long long units, Begin begin, Load load, Store store) {
    const long long across = static_cast<long long>(blockDim.x) * kTogether;
    const long long pieces = quotient(units + across - 1, across);
    const long long groups = quotient(rows + blockDim.y - 1, blockDim.y);
    for (long long item = blockIdx.x; item < groups * pieces; item += gridDim.x) {
        const long long group = quotient(item, pieces);
        const long long row = group * blockDim.y + threadIdx.y;
        const long long first = (item - group * pieces) * across + threadIdx.x;
        if (row >= rows) {
            continue;
        }
        const auto begun = begin(row);
        decltype(load(begun, 0LL)) loaded[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const long long unit = first + static_cast<long long>(i) * blockDim.x;
            if (unit < units) {
                loaded[i] = load(begun, unit);
            }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const long long unit = first + static_cast<long long>(i) * blockDim.x;
            if (unit < units) {
                store(begun, unit, loaded[i]);
            }
        }
    }
}

__device__ __forceinline__ int pack_count_at(long long columns, long long column) {
    const long long left = columns - column;
    return left >= kPack ? kPack : static_cast<int>(left);
}
