// Streaming attention on the products of warpgroups, for one head size and one 16-bit type: the forward pass of
// attention.cu without mask, documents, soft cap, bias and dropout, and with a scale above 0.
//
// Left open: ATTENTION_HEAD, 64 or 128; ATTENTION_NUMBER, f16 or bf16. For compute capability 9.0 alone.
//
// A block has three warpgroups. One thread of the first has the copy engine bring the queries of the block and, tile
// after tile, keys and values, each into one of two places. The other two warpgroups have 64 queries each, 16 rows a
// warp as in attention_mma.cu, and the order of every sum is fixed. A tile's scores are products of queries and keys
// in shared memory; its probabilities stay in registers as the left operand of the product with the values. That
// product is under way while the scores of the next tile become probabilities. Barriers: a place is full when the
// bytes of its copy are there, and empty when all eight warps have waited for the products that read it.
//
// Launch: blocks of 384 threads, in a line: tiles of 128 queries, then heads, then sequences. Dynamic shared memory:
// 1280 Head bytes for 128 queries, 256 keys and 256 values, and 1024 to begin at a multiple of that. A tile whose head
// is wider than a row of an operand, 64 numbers, has its columns in blocks, one after the other.
// Numerics: as in attention_mma.cu, whose tiles have 64 keys and not 128: other sums, the same order from run to run.
// Operations and bytes: 4 flops for each query, key seen and element of the head; a block reads each tile of keys and
// values once, 128 flops a byte. Registers: 168 a thread at launch; then 24 for who copies, and 240 for who computes,
// Head / 2 for results, 64 for scores and 32 for probabilities.
// Occupancy: one block a multiprocessor for 128 and for 64: 384 threads with 168 registers each are the whole file.

// Rows of every tile: the queries of a block, keys, values.
constexpr int kTileRows = 128;
constexpr int kWarpgroupQueries = kTileRows / 2;
constexpr int kWarpgroupBlock = 3 * kWarpgroupThreads;

struct WarpgroupArguments {
    // [batch, tokens, heads, Head], as boxes of 128 tokens of 64 columns of a head.
    TensorMap q;
    TensorMap k;
    TensorMap v;
    AttentionArguments attention;
};

// A block's places in shared memory, and what it works on.
template <int Head, class Number> struct Work {
    static constexpr int kTile = kTileRows * Head;

    Number* queries;
    Number* keys;
    Number* values;
    PhaseBarrier* has_queries;
    PhaseBarrier* has_keys;
    PhaseBarrier* has_values;
    PhaseBarrier* keys_read;
    PhaseBarrier* values_read;
    int b;
    int n;
    int kv;
    int row;
    int start;
    int tiles;
};

// The parity of the phase in which place `tile % 2` has tile `tile`.
__device__ __forceinline__ unsigned parity_of(int tile) { return static_cast<unsigned>(tile / 2 % 2); }

// A tile of a head.
template <int Head, class Number>
__device__ __forceinline__ void copy_tile(Number* to, const TensorMap& from, int head, int row, int b,
                                          PhaseBarrier* full) {
    announce(full, kTileRows * Head * sizeof(Number));
#pragma unroll
    for (int column = 0; column < Head; column += kOperandColumns) {
        copy_box(to + kTileRows * column, from, column, head, row, b, full);
    }
}

// What one thread does: all copies of the block.
template <int Head, class Number>
__device__ __forceinline__ void copy_all(const WarpgroupArguments& a, const Work<Head, Number>& work) {
    copy_tile<Head>(work.queries, a.q, work.n, work.row, work.b, work.has_queries);
#pragma unroll 1
    for (int tile = 0; tile < work.tiles; ++tile) {
        const int place = tile % 2, row = work.start + tile * kTileRows;
        wait_for_phase(work.keys_read + place, parity_of(tile) ^ 1u);
        copy_tile<Head>(work.keys + place * work.kTile, a.k, work.kv, row, work.b, work.has_keys + place);
        wait_for_phase(work.values_read + place, parity_of(tile) ^ 1u);
        copy_tile<Head>(work.values + place * work.kTile, a.v, work.kv, row, work.b, work.has_values + place);
    }
}

// Gives scores of a warpgroup's queries and a tile of keys: a group of products.
template <int Head, class Number>
__device__ __forceinline__ void begin_scores(const Number* queries, const Number* keys, float (&scores)[16][4]) {
    hold(scores);
    begin_products();
#pragma unroll
    for (int column = 0; column < Head; column += 16) {
        const int at = column / kOperandColumns * kOperandColumns * kTileRows + column % kOperandColumns;
        multiply_rows<Number>(scores, operand_at(queries + at, 0), operand_at(keys + at, 0), column > 0);
    }
    end_products();
}

// Gives the product of a tile's probabilities and its values, which is added to results: a group of products.
template <int Head, class Number>
__device__ __forceinline__ void begin_results(unsigned (&probabilities)[8][4], const Number* values,
                                              float (&out)[Head / 8][4]) {
    hold(out);
    hold(probabilities);
    begin_products();
#pragma unroll
    for (int step = 0; step < kTileRows / 16; ++step) {
        multiply_columns<Number>(out, probabilities[step],
                                 operand_at(values + step * 16 * kOperandColumns, kTileRows * kOperandColumns * 2));
    }
    end_products();
}

// Probabilities rounded to the left operand of the next product.
template <class Number>
__device__ __forceinline__ void round_scores(const float (&scores)[16][4], unsigned (&probabilities)[8][4]) {
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        round_tiles<Number>(probabilities[step], scores[2 * step], scores[2 * step + 1]);
    }
}

// A warp needs a place no more.
__device__ __forceinline__ void is_read(PhaseBarrier* place) {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) {
        arrive(place);
    }
}

// Waits for all but the `Left` newest groups of products: these sums are made, and what was multiplied is read.
template <int Left, int Tiles>
__device__ __forceinline__ void finish(float (&sums)[Tiles][4], PhaseBarrier* read) {
    wait_products<Left>();
    hold(sums);
    is_read(read);
}

// Results and sums of exponentials of a warp's 16 rows, straight from registers: small beside what is read.
template <int Head, class Number>
__device__ __forceinline__ void put_rows(const AttentionArguments& a, const Corner& corner, const float (&largest)[2],
                                         const float (&sum)[2], const float (&out)[Head / 8][4]) {
    Number* const data =
        static_cast<Number*>(a.out.data) + head_row(a.out, Head, corner.b, corner.n, 0) + 2 * mma_t();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int l = corner.row + half * 8 + mma_g();
        float total = sum[half];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        if (l >= a.queries) {
            continue;
        }
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;
        if (mma_t() == 0) {
            a.lse[query_row(a, corner.b, corner.n, l)] = log_sum<false>(a, largest[half], total);
        }
        const long long at = l * a.out.row_stride;
#pragma unroll
        for (int j = 0; j < Head / 8; ++j) {
            const float low = out[j][2 * half] * factor, high = out[j][2 * half + 1] * factor;
            if (a.out.add) {
                store_one<Number>(data, 1, at + j * 8, low);
                store_one<Number>(data, 1, at + j * 8 + 1, high);
            } else {
                *reinterpret_cast<unsigned*>(data + at + j * 8) = join_pair<Number>(low, high);
            }
        }
    }
}

// What the other two warpgroups do, number 0 and 1.
template <int Head, class Number>
__device__ __forceinline__ void compute(const AttentionArguments& a, const Work<Head, Number>& work, int group) {
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroupThreads / kWarpThreads;
    const int row = work.row + group * kWarpgroupQueries + warp * 16;
    const Number* const queries = work.queries + group * kWarpgroupQueries * kOperandColumns;
    float out[1][Head / 8][4] = {};
    float largest[1][2] = {{-BMTRAIN_INFINITY, -BMTRAIN_INFINITY}}, sum[1][2] = {};
    float scores[1][16][4], corrections[1][2];
    unsigned probabilities[8][4];
    if (work.tiles > 0) {
        wait_for_phase(work.has_queries, 0);
        wait_for_phase(work.has_keys, 0);
        begin_scores<Head>(queries, work.keys, scores[0]);
        finish<0>(scores[0], work.keys_read);
        apply_rules<false, false>(a, Corner{work.b, work.n, row, work.start}, scores);
        soften<false>(a, scores, largest, sum, corrections);
        round_scores<Number>(scores[0], probabilities);
#pragma unroll 1
        for (int tile = 1; tile < work.tiles; ++tile) {
            const int place = tile % 2, last = 1 - place;
            wait_for_phase(work.has_keys + place, parity_of(tile));
            begin_scores<Head>(queries, work.keys + place * work.kTile, scores[0]);
            wait_for_phase(work.has_values + last, parity_of(tile - 1));
            begin_results<Head>(probabilities, work.values + last * work.kTile, out[0]);
            finish<1>(scores[0], work.keys_read + place);
            apply_rules<false, false>(a, Corner{work.b, work.n, row, work.start + tile * kTileRows}, scores);
            // Both ways wait by themselves: a wait before the branch is moved up to the maximum of the scores by the
            // assembler, and then nothing runs beside the product.
            if (soften<false>(a, scores, largest, sum, corrections)) {
                finish<0>(out[0], work.values_read + last);
                correct(out, corrections);
            } else {
                finish<0>(out[0], work.values_read + last);
            }
            round_scores<Number>(scores[0], probabilities);
        }
        const int last = work.tiles - 1;
        wait_for_phase(work.has_values + last % 2, parity_of(last));
        begin_results<Head>(probabilities, work.values + last % 2 * work.kTile, out[0]);
        wait_products<0>();
        hold(out[0]);
    }
    put_rows<Head, Number>(a, Corner{work.b, work.n, row, 0}, largest[0], sum[0], out[0]);
}

template <int Head, class Number>
__device__ __forceinline__ void wgmma_forward(const WarpgroupArguments& all) {
    const AttentionArguments& a = all.attention;
    SHARED_AT_LAUNCH(memory);
    SHARED(PhaseBarrier, barriers, [9]);
    const Share share = share_of(a, a.queries, kTileRows, a.heads, a.ahead == 0);
    const int everything[2] = {0, a.keys};
    const KeyRange seen = keys_of_tile<false>(a, share.b, share.row, kTileRows, everything);
    const int start = seen.first / kTileRows * kTileRows;
    const int tiles = start < seen.end ? (seen.end - start + kTileRows - 1) / kTileRows : 0;
    Number* const queries = reinterpret_cast<Number*>(memory + (1024 - shared_place(memory) % 1024) % 1024);
    Work<Head, Number> work;
    work.queries = queries;
    work.keys = queries + work.kTile;
    work.values = queries + 3 * work.kTile;
    work.has_queries = barriers;
    work.has_keys = barriers + 1;
    work.has_values = barriers + 3;
    work.keys_read = barriers + 5;
    work.values_read = barriers + 7;
    work.b = share.b;
    work.n = share.n;
    work.kv = share.n / (a.heads / a.kv_heads);
    work.row = share.row;
    work.start = start;
    work.tiles = tiles;
    if (threadIdx.x == 0) {
        for (int barrier = 0; barrier < 5; ++barrier) {
            make_barrier(barriers + barrier, 1);
        }
        for (int barrier = 5; barrier < 9; ++barrier) {
            make_barrier(barriers + barrier, 2 * kWarpgroupThreads / kWarpThreads);
        }
        show_barriers();
    }
    __syncthreads();
    const int group = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
    if (group == 0) {
        give_registers<24>();
        if (threadIdx.x == 0 && tiles > 0) {
            copy_all(all, work);
        }
    } else {
        take_registers<240>();
        compute(a, work, group - 1);
    }
}

#define ATTENTION_JOINED(stem, head, number) stem##_##head##_##number
#define ATTENTION_NAME(stem, head, number) ATTENTION_JOINED(stem, head, number)
#define ATTENTION_WGMMA_KERNEL(name)                                                \
    extern "C" __global__ void __launch_bounds__(kWarpgroupBlock, 1)                \
        name(const __grid_constant__ WarpgroupArguments a) {                        \
        wgmma_forward<ATTENTION_HEAD, ATTENTION_NUMBER>(a);                         \
    }                                                                               \
    BMTRAIN_KERNEL(name)

ATTENTION_WGMMA_KERNEL(ATTENTION_NAME(attention_wgmma_forward, ATTENTION_HEAD, ATTENTION_NUMBER))
