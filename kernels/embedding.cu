// Rows of a table by their ids, and the gradient of the table.
//
//     embedding_forward     out[r] (+)= table[ids[r]]
//     embedding_backward    table[i] (+)= sum of dy[r] over the rows r with ids[r] = i, by sorting and then sums over
//     runs
//
// Launch: forward as `each_unit`; the stages of embedding_backward: see there.
// Numerics: sums are f32, rounded once when stored, in an order that depends on the ids alone.
// Bytes moved for each element: forward, read once and written once; read once more where it is added. Backward: see
// its sums. Ids outside the table are reported and their rows count as zeros.

// Numbers of the host for reports.
enum { kEmbeddingForward = 1, kEmbeddingBackward = 2 };

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
// A stable sort by digits of eight bits, the lowest first, of row numbers alone: keys are read through them. Each pass
// is two launches of the same blocks, each with a range of positions; few rows are sorted by one block and launch,
// embedding_sort. embedding_count counts the digits of
// every range, embedding_place puts each row after all rows of smaller digits, of its digit in earlier ranges, and of
// its digit earlier in its range. Rows that give no gradient have a key above all ids and so come last.

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

__device__ __forceinline__ unsigned sort_digit(const EmbeddingSortArguments& a, long long row, int shift) {
    return static_cast<unsigned>(sort_key(a.ids[row], a.entries, a.padding) >> shift) & (kDigits - 1);
}

// Reports an id outside of the table.
__device__ __forceinline__ void report_id(const EmbeddingSortArguments& a, long long row) {
    const long long id = a.ids[row];
    if (id < 0 || id >= a.entries) {
        report(a.fault, kEmbeddingBackward, row, id, a.entries);
    }
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
            report_id(a, row);
        }
        atomicAdd(&counts[sort_digit(a, row, a.shift)], 1u);
    }
    __syncthreads();
    a.counts[static_cast<long long>(blockIdx.x) * kDigits + threadIdx.x] = counts[threadIdx.x];
}
BMTRAIN_KERNEL(embedding_count)

// Sum of the values of all threads before this one in its block.
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

// Puts the rows at positions from `begin` to `end` where they go, a block of Warps warps. `next` is where the next row
// of each digit goes, `of_warp` the same for each warp of the rows at hand. Starts with a barrier.
template <int Warps>
__device__ __forceinline__ void place_rows(const EmbeddingSortArguments& a, const unsigned* from, unsigned* to,
                                           int shift, long long begin, long long end, unsigned* next,
                                           unsigned (*of_warp)[kDigits]) {
    constexpr int kThreads = Warps * kWarpThreads;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads, warp = thread / kWarpThreads;
    for (long long start = begin; start < end; start += kThreads) {
        const long long position = start + thread;
        const bool valid = position < end;
        const long long row = !valid ? 0 : from != nullptr ? from[position] : position;
        const unsigned digit = valid ? sort_digit(a, row, shift) : 0;
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
        if (thread < kDigits) {
            unsigned place = next[thread];
            for (int w = 0; w < Warps; ++w) {
                const unsigned count = of_warp[w][thread];
                of_warp[w][thread] = place;
                place += count;
            }
            next[thread] = place;
        }
        __syncthreads();
        if (valid) {
            to[of_warp[warp][digit] + rank] = static_cast<unsigned>(row);
        }
        // A warp clears its own line next.
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(kDigits) embedding_place(const EmbeddingSortArguments a) {
    SHARED(unsigned, next, [kDigits]);
    SHARED(unsigned, of_warp, [kSortWarps][kDigits]);
    SHARED(unsigned, warp_totals, [kSortWarps]);
    const int thread = static_cast<int>(threadIdx.x);
    unsigned total = 0, earlier = 0;
#pragma unroll 8
    for (unsigned block = 0; block < gridDim.x; ++block) {
        const unsigned count = a.counts[static_cast<long long>(block) * kDigits + thread];
        total += count;
        earlier += block < blockIdx.x ? count : 0;
    }
    next[thread] = sum_before(total, warp_totals) + earlier;
    place_rows<kSortWarps>(a, a.from, a.to, a.shift, blockIdx.x * a.range, range_end(a), next, of_warp);
}
BMTRAIN_KERNEL(embedding_place)

// All passes for few rows, by one block: `to` and `counts` are the orders that passes write in turn, `shift` is the end
// of the digits. A pass has three barriers for 1024 rows.
constexpr int kSortThreads = 1024;

extern "C" __global__ void __launch_bounds__(kSortThreads) embedding_sort(const EmbeddingSortArguments a) {
    constexpr int kWarps = kSortThreads / kWarpThreads;
    SHARED(unsigned, next, [kDigits]);
    SHARED(unsigned, of_warp, [kWarps][kDigits]);
    SHARED(unsigned, warp_totals, [kWarps]);
    const int thread = static_cast<int>(threadIdx.x);
    const unsigned* from = nullptr;
    unsigned *to = a.to, *other = a.counts;
    for (int shift = 0; shift < a.shift; shift += 8) {
        if (thread < kDigits) {
            next[thread] = 0;
        }
        // Also orders what the pass before wrote.
        __syncthreads();
        for (long long position = thread; position < a.rows; position += kSortThreads) {
            const long long row = from != nullptr ? from[position] : position;
            if (shift == 0) {
                report_id(a, row);
            }
            atomicAdd(&next[sort_digit(a, row, shift)], 1u);
        }
        __syncthreads();
        const unsigned before = sum_before(thread < kDigits ? next[thread] : 0, warp_totals);
        if (thread < kDigits) {
            next[thread] = before;
        }
        __syncthreads();
        place_rows<kWarps>(a, from, to, shift, 0, a.rows, next, of_warp);
        from = to;
        to = other;
        other = const_cast<unsigned*>(from);
    }
}
BMTRAIN_KERNEL(embedding_sort)

// ---- the gradient of the table: sums
//
// The sorted rows are divided into pieces of one length. embedding_sum adds up the runs of equal ids of a piece, in
// order; a run within the piece goes to the table, one that began earlier or goes on later to a partial sum.
// embedding_join, for each run that goes on, adds its partial sums in order. Launch: blockIdx.x a piece, blockIdx.y
// columns, a thread for each pack. Bytes moved: dy once, each table row that is met once (and once for what it held),
// partial sums for runs across pieces.

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
        // Rows without a gradient are after everything else.
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
    // The pieces after this one that begin with the same id: there are few enough pieces for f32 to count them.
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
