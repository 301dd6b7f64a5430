// Factors of matrix products in 8 bits, E4M3 and E5M2 of the OCP specification, with one scale for each matrix:
//
//     fp8_largest     *largest = max(*largest, |x[r, c]|), as bits, so that NaN is the largest
//     fp8_round       out[r, c] = code(x[r, c] scale), or what the code stands for over the scale, in f32
//     fp8_transpose   out[c, r] = code(x[r, c] scale)
//
// where scale is the largest number of the format over *largest, and *inverse = 1 / scale is what a product of the
// codes is multiplied by. Rows of codes are of whole units of 16 bytes: what is beyond the matrix is zero.
//
// Launch: kRowsThreads threads a block. fp8_largest and fp8_round: as `each_unit`. fp8_transpose: tiles of kFp8Side x
// kFp8Side in shared memory, in turn.
// Numerics: x scale is rounded to f32, then to nearest, ties to even; what is beyond the range is its end. Division is
// rounded as IEEE requires.
// Bytes moved for each element: read once by fp8_largest; read once and one byte written by the others.

constexpr int kFp8Side = 64;
// A line of a tile: an odd number of banks, so that bytes of a column of the tile are in different ones.
constexpr int kFp8Line = kFp8Side + 4;
constexpr int kFp8Piece = 16;

__device__ __forceinline__ uint2 fp8_codes(int format, float scale, const Pack& pack) {
    unsigned pairs[kPack / 2];
#pragma unroll
    for (int i = 0; i < kPack / 2; ++i) {
        pairs[i] = fp8_pair(format, pack.at[2 * i] * scale, pack.at[2 * i + 1] * scale);
    }
    return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// ---- the largest magnitude

struct Fp8LargestArguments {
    In x;
    unsigned* largest;
    long long rows;
    long long columns;
    // Elements from one row to the next.
    long long stride;
    // The address is a multiple of 16 bytes; rows, and their distance, are of whole packs.
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void fp8_largest_body(const Fp8LargestArguments& a) {
    const bool whole = a.whole != 0;
    unsigned largest = 0;
    each_unit<4>(
        a.rows, (a.columns + kPack - 1) / kPack, [&](long long row) { return row * a.stride; },
        [&](long long at, long long unit) {
            return Types::load_pack(a.x, at + unit * kPack, pack_count_at(a.columns, unit * kPack), whole);
        },
        [&](long long, long long, const Pack& pack) {
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                const unsigned bits = __float_as_uint(pack.at[i]) & 0x7fffffffu;
                largest = bits > largest ? bits : largest;
            }
        });
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        const unsigned other = __shfl_xor_sync(kAllLanes, largest, distance);
        largest = other > largest ? other : largest;
    }
    if ((threadIdx.y * blockDim.x + threadIdx.x) % kWarpThreads == 0) {
        atomicMax(a.largest, largest);
    }
}

TYPED_KERNEL(fp8_largest, Fp8LargestArguments, kRowsThreads)

// ---- codes

struct Fp8RoundArguments {
    In x;
    // Codes, or f32.
    void* out;
    const unsigned* largest;
    float* inverse;
    long long rows;
    long long columns;
    // Elements from one row to the next.
    long long stride;
    long long out_stride;
    int format;
    // Whether f32 is written.
    int wide;
    int whole;
    int unused;
};

__device__ __forceinline__ float fp8_begin(const Fp8RoundArguments& a) {
    const float scale = fp8_scale(fp8_format(a.format), *a.largest);
    if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0) {
        *a.inverse = 1.0f / scale;
    }
    return scale;
}

template <class Types>
__device__ __forceinline__ void fp8_round_body(const Fp8RoundArguments& a) {
    const bool whole = a.whole != 0;
    const float scale = fp8_begin(a), inverse = 1.0f / scale;
    const long long units = ((a.wide ? a.columns : a.out_stride) + kPack - 1) / kPack;
    each_unit<2>(
        a.rows, units, [](long long row) { return row; },
        [&](long long row, long long unit) {
            const int count = pack_count_at(a.columns, unit * kPack);
            return Types::load_pack(a.x, row * a.stride + unit * kPack, count, whole && count == kPack);
        },
        [&](long long row, long long unit, const Pack& pack) {
            const uint2 codes = fp8_codes(a.format, scale, pack);
            const long long at = row * a.out_stride + unit * kPack;
            if (!a.wide) {
                *reinterpret_cast<uint2*>(static_cast<unsigned char*>(a.out) + at) = codes;
                return;
            }
            const Fp8Format format = fp8_format(a.format);
            const int count = pack_count_at(a.columns, unit * kPack);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                const unsigned code = (i < kPack / 2 ? codes.x : codes.y) >> 8 * (i % (kPack / 2)) & 0xffu;
                if (i < count) {
                    static_cast<float*>(a.out)[at + i] = fp8_value(format, code) * inverse;
                }
            }
        });
}

TYPED_KERNEL(fp8_round, Fp8RoundArguments, kRowsThreads)

template <class Types>
__device__ __forceinline__ void fp8_transpose_body(const Fp8RoundArguments& a) {
    SHARED(unsigned, words, [kFp8Side * kFp8Line / 4]);
    auto* const tile = reinterpret_cast<unsigned char*>(words);
    constexpr int kPacksAcross = kFp8Side / kPack, kPiecesAcross = kFp8Side / kFp8Piece;
    const bool whole = a.whole != 0;
    const float scale = fp8_begin(a);
    const int thread = static_cast<int>(threadIdx.x);
    const long long across = (a.columns + kFp8Side - 1) / kFp8Side;
    const long long tiles = across * ((a.out_stride + kFp8Side - 1) / kFp8Side);
    for (long long item = blockIdx.x; item < tiles; item += gridDim.x) {
        const long long down = quotient(item, across);
        const long long first_row = down * kFp8Side, first_column = (item - down * across) * kFp8Side;
        const int column = thread % kPacksAcross * kPack;
#pragma unroll
        for (int row = thread / kPacksAcross; row < kFp8Side; row += kRowsThreads / kPacksAcross) {
            const int left = pack_count_at(a.columns, first_column + column);
            const int count = first_row + row < a.rows ? left : 0;
            const Pack pack = Types::load_pack(a.x, (first_row + row) * a.stride + first_column + column, count,
                                               whole && count == kPack);
            const uint2 codes = fp8_codes(a.format, scale, pack);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                const unsigned code = (i < kPack / 2 ? codes.x : codes.y) >> 8 * (i % (kPack / 2)) & 0xffu;
                tile[(column + i) * kFp8Line + row] = static_cast<unsigned char>(code);
            }
        }
        __syncthreads();
        const int line = thread / kPiecesAcross, piece = thread % kPiecesAcross * kFp8Piece;
        if (first_column + line < a.columns && first_row + piece < a.out_stride) {
            const unsigned* from = words + (line * kFp8Line + piece) / 4;
            store_16(static_cast<unsigned char*>(a.out) + (first_column + line) * a.out_stride + first_row + piece,
                     make_uint4(from[0], from[1], from[2], from[3]));
        }
        // The next tile takes the same memory.
        __syncthreads();
    }
}

TYPED_KERNEL(fp8_transpose, Fp8RoundArguments, kRowsThreads)
