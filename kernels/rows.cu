// Kernels that move rows: copies between strided rows, permutations of axes, table rows by id and the gradient of the table.
//
//     copy_rows, add_rows   out[r * out_stride + c] (+)= x[offset(r) + c], offset(r) from the indices of r along up to five axes
//     transpose             out[.., m, .., l] (+)= x[.., l, .., m]: the last axes of input and output differ
//     embedding_forward     out[r] (+)= table[ids[r]]
//     embedding_backward    table[i] (+)= sum of dy[r] over the rows r with ids[r] = i, by sorting and then sums over runs
//
// Launch: kRowsThreads threads a block. Copies: blockDim.x of them along a row, blockDim.y rows; blocks take pieces in turn.
// transpose: 32 x 8 threads for a tile in shared memory. The stages of embedding_backward say theirs.
// Numerics: copies move bits. Sums are f32, rounded once when stored, in an order that depends on the ids alone.
// Bytes moved for each element: read once and written once; read once more where it is added.
// Ids outside the table are reported and their rows count as zeros.

constexpr int kRowsThreads = 256;
constexpr int kMostAxes = 5;

// Numbers of the host for reports.
enum { kEmbeddingForward = 1, kEmbeddingBackward = 2 };

// 64-bit quotients take a long sequence of instructions that small numbers do not need.
__device__ __forceinline__ long long quotient(long long number, long long divisor) {
    if (((number | divisor) >> 32) == 0) {
        return static_cast<unsigned>(number) / static_cast<unsigned>(divisor);
    }
    return number / divisor;
}

// Axes in front of a row, outermost first.
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

// For each row, `begin(row)` once, then `load(begun, unit)` for kTogether units, then `store(begun, unit, loaded)` for them.
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
__device__ __forceinline__ unsigned short stored<unsigned short>(const Out& out, unsigned short old, unsigned short value) {
    if (!out.add) {
        return value;
    }
    return out.type == kF16 ? narrow<f16>(widen(f16{old}) + widen(f16{value})).bits
                            : narrow<bf16>(widen(bf16{old}) + widen(bf16{value})).bits;
}

// Tiles of kSide x kSide pass through shared memory, so that reads and writes are both along contiguous memory. Lines of the
// tile are an odd number of 4-byte banks (of pairs of banks for 8 bytes) long, so that columns do not meet in one bank.
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

// ---- table rows by id

struct EmbeddingForwardArguments {
    In table;
    Out out;
    const long long* ids;
    Fault* fault;
    long long rows;
    long long columns;
    long long entries;
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void embedding_forward_body(const EmbeddingForwardArguments& a) {
    struct Row {
        long long row;
        long long id;
    };
    const bool whole = a.whole != 0;
    each_unit<2>(
        a.rows, (a.columns + kPack - 1) / kPack,
        [&](long long row) {
            const long long id = a.ids[row];
            return Row{row, id >= 0 && id < a.entries ? id : -1};
        },
        [&](const Row& at, long long unit) {
            if (at.id < 0) {
                if (unit == 0) {
                    report(a.fault, kEmbeddingForward, at.row, a.ids[at.row], a.entries);
                }
                return typename Types::Loaded{};
            }
            const long long column = unit * kPack;
            return Types::load_pack(a.table, at.id * a.columns + column, pack_count_at(a.columns, column), whole);
        },
        [&](const Row& at, long long unit, const Pack& pack) {
            const long long column = unit * kPack;
            Types::store_pack(a.out, at.row * a.columns + column, pack, pack_count_at(a.columns, column), whole);
        });
}

TYPED_KERNEL(embedding_forward, EmbeddingForwardArguments, kRowsThreads)

// ---- the gradient of the table: rows in the order of their ids
//
// A stable sort by digits of eight bits, the lowest first, of row numbers alone: keys are read through them. Each pass is two
// launches of the same blocks, each of which has a range of positions: embedding_count counts the digits of every range,
// embedding_place puts each row behind all rows of smaller digits, of its digit in earlier ranges, and of its digit earlier in
// its range. Rows that give no gradient have a key above all ids and so come last.

constexpr int kDigits = 256;
constexpr int kSortWarps = kDigits / kWarpThreads;

struct EmbeddingSortArguments {
    const long long* ids;
    // Rows in the order so far; null for their own.
    const unsigned* from;
    unsigned* to;
    // [blocks][kDigits]
    unsigned* counts;
    // Null but for the first pass.
    Fault* fault;
    long long rows;
    long long entries;
    // -1 where there is none.
    long long padding;
    // Positions of a block, a multiple of kDigits.
    long long range;
    int shift;
    int unused;
};

__device__ __forceinline__ long long sort_key(long long id, long long entries, long long padding) {
    return id < 0 || id >= entries || id == padding ? entries : id;
}

__device__ __forceinline__ unsigned sort_digit(const EmbeddingSortArguments& a, long long row) {
    return static_cast<unsigned>(sort_key(a.ids[row], a.entries, a.padding) >> a.shift) & (kDigits - 1);
}

// The end of a block's range, which starts at blockIdx.x * range.
__device__ __forceinline__ long long range_end(const EmbeddingSortArguments& a) {
    const long long end = (blockIdx.x + 1LL) * a.range;
    return end < a.rows ? end : a.rows;
}

extern "C" __global__ void __launch_bounds__(kDigits) embedding_count(const EmbeddingSortArguments a) {
    SHARED(unsigned, counts, [kDigits]);
    counts[threadIdx.x] = 0;
    __syncthreads();
    const long long end = range_end(a);
    for (long long position = blockIdx.x * a.range + threadIdx.x; position < end; position += kDigits) {
        const long long row = a.from != nullptr ? a.from[position] : position;
        if (a.fault != nullptr) {
            const long long id = a.ids[row];
            if (id < 0 || id >= a.entries) {
                report(a.fault, kEmbeddingBackward, row, id, a.entries);
            }
        }
        atomicAdd(&counts[sort_digit(a, row)], 1u);
    }
    __syncthreads();
    a.counts[static_cast<long long>(blockIdx.x) * kDigits + threadIdx.x] = counts[threadIdx.x];
}
BMTRAIN_KERNEL(embedding_count)

// Sum of the values of all threads before this one, in a block of kDigits threads.
__device__ __forceinline__ unsigned sum_before(unsigned value, unsigned* warp_totals) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    unsigned sum = value;
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
        const unsigned other = __shfl_up_sync(kAllLanes, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    if (lane == kWarpThreads - 1) {
        warp_totals[warp] = sum;
    }
    __syncthreads();
    unsigned before = sum - value;
    for (int other = 0; other < warp; ++other) {
        before += warp_totals[other];
    }
    return before;
}

extern "C" __global__ void __launch_bounds__(kDigits) embedding_place(const EmbeddingSortArguments a) {
    // Where the next row of each digit goes; the same for each warp of the rows at hand.
    SHARED(unsigned, next, [kDigits]);
    SHARED(unsigned, of_warp, [kSortWarps][kDigits]);
    SHARED(unsigned, warp_totals, [kSortWarps]);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads, warp = thread / kWarpThreads;
    unsigned total = 0, earlier = 0;
#pragma unroll 8
    for (unsigned block = 0; block < gridDim.x; ++block) {
        const unsigned count = a.counts[static_cast<long long>(block) * kDigits + thread];
        total += count;
        earlier += block < blockIdx.x ? count : 0;
    }
    next[thread] = sum_before(total, warp_totals) + earlier;

    const long long end = range_end(a);
    for (long long start = blockIdx.x * a.range; start < end; start += kDigits) {
        const long long position = start + thread;
        const bool valid = position < end;
        const long long row = !valid ? 0 : a.from != nullptr ? a.from[position] : position;
        const unsigned digit = valid ? sort_digit(a, row) : 0;
        // The lanes of this warp with the same digit.
        unsigned peers = __ballot_sync(kAllLanes, valid);
        for (int bit = 0; bit < 8; ++bit) {
            const bool set = (digit >> bit & 1) != 0;
            const unsigned others = __ballot_sync(kAllLanes, set);
            peers &= set ? others : ~others;
        }
        const unsigned rank = static_cast<unsigned>(__popc(peers & ((1u << lane) - 1)));
        for (int other = lane; other < kDigits; other += kWarpThreads) {
            of_warp[warp][other] = 0;
        }
        __syncwarp();
        if (valid && rank == 0) {
            of_warp[warp][digit] = static_cast<unsigned>(__popc(peers));
        }
        __syncthreads();
        unsigned place = next[thread];
        for (int w = 0; w < kSortWarps; ++w) {
            const unsigned count = of_warp[w][thread];
            of_warp[w][thread] = place;
            place += count;
        }
        next[thread] = place;
        __syncthreads();
        if (valid) {
            a.to[of_warp[warp][digit] + rank] = static_cast<unsigned>(row);
        }
        // A warp clears its own line next.
        __syncwarp();
    }
}
BMTRAIN_KERNEL(embedding_place)

// ---- the gradient of the table: sums
//
// The sorted rows are divided into pieces of one length. embedding_sum adds up the runs of equal ids of a piece, in order; a
// run within the piece goes to the table, one that began earlier or goes on later to a partial sum. embedding_join, for each
// run that goes on, adds its partial sums in order. Launch: blockIdx.x a piece, blockIdx.y columns, a thread for each pack.
// Bytes moved: dy once, each table row that is met once (and once for what it held), partial sums for runs across pieces.

struct EmbeddingSumArguments {
    In dy;
    Out table;
    const long long* ids;
    const unsigned* order;
    // f32 [pieces][2][columns]: the run that began earlier, the run that begins here and goes on.
    float* partials;
    long long rows;
    long long columns;
    long long entries;
    long long padding;
    // Rows of a piece.
    long long piece;
    int whole;
    int unused;
};

constexpr int kSumThreads = 256;
// Rows whose numbers are fetched at once, and of those the rows whose packs are.
constexpr int kRowsFetched = 32;
constexpr int kRowsLoaded = 4;

__device__ __forceinline__ long long key_at(const EmbeddingSumArguments& a, long long position) {
    return sort_key(a.ids[a.order[position]], a.entries, a.padding);
}

__device__ __forceinline__ void add_pack(Pack& sum, const Pack& pack) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        sum.at[i] += pack.at[i];
    }
}

template <class Types>
__device__ __forceinline__ void embedding_sum_body(const EmbeddingSumArguments& a) {
    SHARED(unsigned, row_numbers, [kRowsFetched]);
    SHARED(long long, keys, [kRowsFetched]);
    const bool whole = a.whole != 0;
    const long long column = (static_cast<long long>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
    const int count = column < a.columns ? pack_count_at(a.columns, column) : 0;
    const long long start = blockIdx.x * a.piece;
    const long long end = start + a.piece < a.rows ? start + a.piece : a.rows;
    const long long before = start > 0 ? key_at(a, start - 1) : -1;
    const long long after = end < a.rows ? key_at(a, end) : -1;

    long long key = -1;
    Pack sum = {};
    bool first = true;
    const auto finish = [&](bool last) {
        // What gives no gradient is behind everything else.
        if (key >= 0 && key < a.entries && count > 0) {
            const bool began_earlier = first && key == before, goes_on = last && key == after;
            if (began_earlier || goes_on) {
                const long long place = (blockIdx.x * 2LL + (began_earlier ? 0 : 1)) * a.columns + column;
                store_pack_of<float>(a.partials, 0, place, sum, count, whole);
            } else {
                Types::store_pack(a.table, key * a.columns + column, sum, count, whole);
            }
        }
        first = first && key < 0;
    };
    for (long long fetched = start; fetched < end; fetched += kRowsFetched) {
        __syncthreads();
        const int many = end - fetched < kRowsFetched ? static_cast<int>(end - fetched) : kRowsFetched;
        if (threadIdx.x < static_cast<unsigned>(many)) {
            row_numbers[threadIdx.x] = a.order[fetched + threadIdx.x];
            keys[threadIdx.x] = key_at(a, fetched + threadIdx.x);
        }
        __syncthreads();
        for (int i = 0; i < many; i += kRowsLoaded) {
            Pack packs[kRowsLoaded];
#pragma unroll
            for (int j = 0; j < kRowsLoaded; ++j) {
                if (i + j < many && keys[i + j] < a.entries && count > 0) {
                    packs[j] = Types::load_pack(a.dy, row_numbers[i + j] * a.columns + column, count, whole);
                }
            }
#pragma unroll
            for (int j = 0; j < kRowsLoaded; ++j) {
                if (i + j < many && keys[i + j] < a.entries) {
                    if (keys[i + j] != key) {
                        finish(false);
                        key = keys[i + j];
                        sum = packs[j];
                    } else {
                        add_pack(sum, packs[j]);
                    }
                }
            }
        }
    }
    finish(true);
}

TYPED_KERNEL(embedding_sum, EmbeddingSumArguments, kSumThreads)

template <class Types>
__device__ __forceinline__ void embedding_join_body(const EmbeddingSumArguments& a) {
    SHARED(float, partial_counts, [kMostWarps]);
    const long long start = blockIdx.x * a.piece, end = start + a.piece;
    if (end >= a.rows) {
        return;
    }
    const long long key = key_at(a, end);
    if (key == a.entries || key_at(a, end - 1) != key) {
        return;
    }
    if (start > 0 && key_at(a, start) == key && key_at(a, start - 1) == key) {
        // It began earlier.
        return;
    }
    // The pieces behind this one that begin with the same id: there are few enough pieces for f32 to count them.
    float mine = 0.0f;
    for (long long piece = blockIdx.x + 1LL + threadIdx.x; piece < gridDim.x; piece += blockDim.x) {
        mine += key_at(a, piece * a.piece) == key ? 1.0f : 0.0f;
    }
    const int following = static_cast<int>(block_sum(mine, partial_counts));

    const bool whole = a.whole != 0;
    const long long column = (static_cast<long long>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
    if (column >= a.columns) {
        return;
    }
    const int count = pack_count_at(a.columns, column);
    Pack sum = load_pack_of<float>(a.partials, (blockIdx.x * 2LL + 1) * a.columns + column, count, whole);
#pragma unroll 4
    for (int i = 1; i <= following; ++i) {
        const long long place = (blockIdx.x + static_cast<long long>(i)) * 2 * a.columns + column;
        add_pack(sum, load_pack_of<float>(a.partials, place, count, whole));
    }
    Types::store_pack(a.table, key * a.columns + column, sum, count, whole);
}

TYPED_KERNEL(embedding_join, EmbeddingSumArguments, kSumThreads)
