// Kernels that move rows: copies between strided rows, permutations of axes.
//
//     copy_rows, add_rows   out[r * out_stride + c] (+)= x[offset(r) + c], offset(r) from the indices of r along up to
//     five axes transpose             out[.., m, .., l] (+)= x[.., l, .., m]: the last axes of input and output differ
//
// Launch: kRowsThreads threads a block. Copies: as `each_unit`. transpose: 32 x 8 threads for a tile in shared
// memory. Numerics: copies move bits. Sums are f32, rounded once when stored.
// Bytes moved for each element: read once and written once; read once more where it is added.

constexpr int kMostAxes = 5;

// Axes before a row, outermost first.
struct Axes {
    long long length[kMostAxes];
    // Elements or units from one index to the next.
    long long from[kMostAxes];
    long long to[kMostAxes];
    int count;
    int unused;
};

struct Offsets {
    long long from;
    long long to;
};

__device__ __forceinline__ Offsets offsets_of(const Axes& axes, long long index) {
    Offsets offsets = {0, 0};
#pragma unroll
    for (int axis = kMostAxes - 1; axis > 0; --axis) {
        if (axis < axes.count) {
            const long long rest = quotient(index, axes.length[axis]);
            const long long here = index - rest * axes.length[axis];
            offsets.from += here * axes.from[axis];
            offsets.to += here * axes.to[axis];
            index = rest;
        }
    }
    offsets.from += index * axes.from[0];
    offsets.to += index * axes.to[0];
    return offsets;
}

// ---- rows from one place to another

struct CopyRowsArguments {
    const void* x;
    void* out;
    long long rows;
    // Units of a row; all distances are in units too.
    long long units;
    Axes axes;
    // Bytes of a unit: the most, up to 16, that divide every address and distance.
    int unit_bytes;
    int unused;
};

template <class Unit>
__device__ __forceinline__ void copy_units(const CopyRowsArguments& a) {
    const Unit* x = static_cast<const Unit*>(a.x);
    Unit* out = static_cast<Unit*>(a.out);
    each_unit<4>(
        a.rows, a.units, [&](long long row) { return offsets_of(a.axes, row); },
        [&](const Offsets& at, long long unit) { return x[at.from + unit]; },
        [&](const Offsets& at, long long unit, const Unit& value) { out[at.to + unit] = value; });
}

extern "C" __global__ void __launch_bounds__(kRowsThreads) copy_rows(const CopyRowsArguments a) {
    switch (a.unit_bytes) {
        case 16: copy_units<uint4>(a); return;
        case 8: copy_units<unsigned long long>(a); return;
        case 4: copy_units<unsigned>(a); return;
        case 2: copy_units<unsigned short>(a); return;
        default: copy_units<unsigned char>(a); return;
    }
}
BMTRAIN_KERNEL(copy_rows)

struct AddRowsArguments {
    In x;
    Out out;
    long long rows;
    long long columns;
    Axes axes;
    // Every address is a multiple of 16 bytes, every row and distance of 8 elements.
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void add_rows_body(const AddRowsArguments& a) {
    const bool whole = a.whole != 0;
    each_unit<2>(
        a.rows, (a.columns + kPack - 1) / kPack, [&](long long row) { return offsets_of(a.axes, row); },
        [&](const Offsets& at, long long unit) {
            return Types::load_pack(a.x, at.from + unit * kPack, pack_count_at(a.columns, unit * kPack), whole);
        },
        [&](const Offsets& at, long long unit, const Pack& pack) {
            Types::store_pack(a.out, at.to + unit * kPack, pack, pack_count_at(a.columns, unit * kPack), whole);
        });
}

TYPED_KERNEL(add_rows, AddRowsArguments, kRowsThreads)

// ---- the last axis moves

struct TransposeArguments {
    const void* x;
    Out out;
    // All axes but two.
    long long batches;
    Axes axes;
    // The axis along which the input is contiguous, and its distance in the output.
    long long moved;
    long long moved_to;
    // The axis along which the output is contiguous, and its distance in the input.
    long long last;
    long long last_from;
};

// What is stored: the new bits, or the sum with the old.
template <class Bits> __device__ __forceinline__ Bits stored(const Out&, Bits, Bits value) { return value; }
template <>
__device__ __forceinline__ unsigned stored<unsigned>(const Out& out, unsigned old, unsigned value) {
    return out.add ? __float_as_uint(__uint_as_float(old) + __uint_as_float(value)) : value;
}
template <>
__device__ __forceinline__ unsigned short stored<unsigned short>(const Out& out, unsigned short old,
                                                                 unsigned short value) {
    if (!out.add) {
        return value;
    }
    return out.type == kF16 ? narrow<f16>(widen(f16{old}) + widen(f16{value})).bits
                            : narrow<bf16>(widen(bf16{old}) + widen(bf16{value})).bits;
}

// Tiles of kSide x kSide pass through shared memory, so that reads and writes are both along contiguous memory. Lines
// of the tile are an odd number of 4-byte banks (of pairs of banks for 8 bytes) long, so that columns do not meet in
// one bank.
template <class Bits, int kSide>
__device__ __forceinline__ void transpose_body(const TransposeArguments& a) {
    constexpr int kLine = kSide + (sizeof(Bits) < 4 ? 4 / static_cast<int>(sizeof(Bits)) : 1);
    SHARED(Bits, tile, [kSide][kLine]);
    const Bits* x = static_cast<const Bits*>(a.x);
    Bits* out = static_cast<Bits*>(a.out.data);
    const long long across = (a.moved + kSide - 1) / kSide;
    const long long tiles = across * ((a.last + kSide - 1) / kSide);
    for (long long item = blockIdx.x; item < a.batches * tiles; item += gridDim.x) {
        const long long batch = quotient(item, tiles);
        const long long in_batch = item - batch * tiles;
        const long long moved = in_batch % across * kSide;
        const long long last = in_batch / across * kSide;
        const Offsets at = offsets_of(a.axes, batch);
#pragma unroll
        for (int i = 0; i < kSide; i += 8) {
#pragma unroll
            for (int j = 0; j < kSide; j += 32) {
                const int l = i + static_cast<int>(threadIdx.y), m = j + static_cast<int>(threadIdx.x);
                if (last + l < a.last && moved + m < a.moved) {
                    tile[l][m] = x[at.from + moved + m + (last + l) * a.last_from];
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kSide; i += 8) {
#pragma unroll
            for (int j = 0; j < kSide; j += 32) {
                const int m = i + static_cast<int>(threadIdx.y), l = j + static_cast<int>(threadIdx.x);
                if (last + l < a.last && moved + m < a.moved) {
                    Bits* place = out + at.to + (moved + m) * a.moved_to + last + l;
                    *place = stored<Bits>(a.out, a.out.add ? *place : Bits{}, tile[l][m]);
                }
            }
        }
        // The next tile takes the same memory.
        __syncthreads();
    }
}

#define TRANSPOSE_KERNEL(name, Bits, side)                                                                            \
    extern "C" __global__ void __launch_bounds__(kRowsThreads) name(const TransposeArguments a) {                     \
        transpose_body<Bits, side>(a);                                                                                \
    }                                                                                                                 \
    BMTRAIN_KERNEL(name)
TRANSPOSE_KERNEL(transpose_8, unsigned char, 64)
TRANSPOSE_KERNEL(transpose_16, unsigned short, 64)
TRANSPOSE_KERNEL(transpose_32, unsigned, 32)
TRANSPOSE_KERNEL(transpose_64, unsigned long long, 32)
