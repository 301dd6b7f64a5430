// Tiles of attention on tensor cores: sizes, copies into shared memory, the two kinds of products, the positions of
// scores and which of them dropout leaves, results back to memory. See attention_mma.cu for their use.

template <int Head> struct Plan {
    // Elements from row to row in shared memory.
    static constexpr int kRow = Head + 8;
    // Bands of 16 rows of a warp, and the number of rows per step of the loop.
    static constexpr int kForwardBands = 2;
    static constexpr int kForwardKeys = Head <= 80 ? 64 : 32;
    static constexpr int kQueryKeys = 32;
    static constexpr int kKeyQueries = 32;
};

// Bands of a warp in the backward passes.
template <int Head, bool Wide> constexpr int kBackwardBands = Head <= 32 || Wide ? 2 : 1;

constexpr int kMmaThreads = 128;
constexpr int kMmaWarps = kMmaThreads / kWarpThreads;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Lane g of eight rows, and pair t of four of columns, of a fragment.
__device__ __forceinline__ int mma_g() { return static_cast<int>(threadIdx.x) % kWarpThreads / 4; }
__device__ __forceinline__ int mma_t() { return static_cast<int>(threadIdx.x) % 4; }
__device__ __forceinline__ int mma_warp() { return static_cast<int>(threadIdx.x) / kWarpThreads; }

// Gives copies of `Count` rows of a head from `row` on into a tile; rows past the end are zero. Up to eight
// neighbouring threads share a row, so that each keeps its column.
template <int Head, class Number, int Count>
__device__ __forceinline__ void copy_rows(const Heads& heads, int b, int n, int row, int rows, Number* tile) {
    constexpr int kPacks = Head / kPack, kSpan = kPacks < 8 ? kPacks : 8, kStep = kMmaThreads / kSpan;
    const int r = threadIdx.x / kSpan, column = threadIdx.x % kSpan * kPack;
    const Number* from = static_cast<const Number*>(heads.data) + head_row(heads, Head, b, n, row + r) + column;
    tile += r * Plan<Head>::kRow + column;
#pragma unroll
    for (int i = 0; i < Count; i += kStep) {
        const bool there = row + r + i < rows;
#pragma unroll
        for (int c = 0; c < Head; c += kSpan * kPack) {
            if (column + c < Head) {
                copy_later(tile + i * Plan<Head>::kRow + c, from + c, there);
            }
        }
        from += kStep * heads.row_stride;
    }
}

// sums[band][j] += rows of `left`, which is at the warp's bands, times rows 8 j of `right` turned, along the head.
template <int Head, class Number, int Bands, int Tiles>
__device__ __forceinline__ void multiply_turned(const Number* left, const Number* right,
                                                float (&sums)[Bands][Tiles][4]) {
    constexpr int kRow = Plan<Head>::kRow;
    const int lane = threadIdx.x % kWarpThreads;
    left += lane % 16 * kRow + lane / 16 * 8;
    right += (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8;
    // Two steps at a time: unrolled further, loads run ahead until registers spill.
#pragma unroll 2
    for (int k = 0; k < Head; k += 16) {
        unsigned a[Bands][4];
#pragma unroll
        for (int band = 0; band < Bands; ++band) {
            load_matrices(a[band], left + band * 16 * kRow + k);
        }
#pragma unroll
        for (int j = 0; j < Tiles; j += 2) {
            unsigned b[4];
            load_matrices(b, right + j * 8 * kRow + k);
#pragma unroll
            for (int band = 0; band < Bands; ++band) {
                mma<Number>(sums[band][j], a[band], b[0], b[1]);
                mma<Number>(sums[band][j + 1], a[band], b[2], b[3]);
            }
        }
    }
}

// Two neighbouring tiles of eight columns, rounded, as a left operand.
template <class Number>
__device__ __forceinline__ void round_tiles(unsigned (&left)[4], const float (&low)[4], const float (&high)[4]) {
    left[0] = join_pair<Number>(low[0], low[1]);
    left[1] = join_pair<Number>(low[2], low[3]);
    left[2] = join_pair<Number>(high[0], high[1]);
    left[3] = join_pair<Number>(high[2], high[3]);
}

// sums[band][j] += scores, rounded, times columns 8 j of the rows of `right`.
template <int Head, class Number, int Bands, int Tiles>
__device__ __forceinline__ void multiply_scores(const float (&scores)[Bands][Tiles][4], const Number* right,
                                                float (&sums)[Bands][Head / 8][4]) {
    constexpr int kRow = Plan<Head>::kRow;
    const int lane = threadIdx.x % kWarpThreads;
    right += lane % 16 * kRow + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < Tiles; k += 2) {
        unsigned a[Bands][4];
#pragma unroll
        for (int band = 0; band < Bands; ++band) {
            round_tiles<Number>(a[band], scores[band][k], scores[band][k + 1]);
        }
#pragma unroll
        for (int j = 0; j < Head / 8; j += 2) {
            unsigned b[4];
            load_matrices_turned(b, right + k * 8 * kRow + j * 8);
#pragma unroll
            for (int band = 0; band < Bands; ++band) {
                mma<Number>(sums[band][j], a[band], b[0], b[1]);
                mma<Number>(sums[band][j + 1], a[band], b[2], b[3]);
            }
        }
    }
}

// The positions of a warp's scores. `turned`: rows are keys.
struct Corner {
    int b;
    int n;
    // First row of the warp, first column of the tile.
    int row;
    int column;
};

// The row and the column of one of a lane's scores in its warp's tile.
__device__ __forceinline__ int score_row(int band, int i) {
    return band * 16 + i / 2 * 8 + mma_g();
}

__device__ __forceinline__ int score_column(int tile, int i) {
    return tile * 8 + 2 * mma_t() + i % 2;
}

// Runs `rule(score, l, s, seen_word, bit)` for each score of a lane: query, key, and where the key's bit is among those
// of 32 keys that a tile begins at multiples of.
template <bool Turned, int Bands, int Tiles, class Rule>
__device__ __forceinline__ void each_score(const Corner& corner, float (&scores)[Bands][Tiles][4], Rule rule) {
#pragma unroll
    for (int band = 0; band < Bands; ++band) {
#pragma unroll
        for (int j = 0; j < Tiles; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = score_row(band, i), column = score_column(j, i);
                const int l = Turned ? corner.column + column : corner.row + row;
                const int s = Turned ? corner.row + row : corner.column + column;
                // A constant, so that the fragments stay in registers.
                rule(scores[band][j][i], l, s, (Turned ? band * 16 : j * 8) / kWarpThreads, Turned ? row : column);
            }
        }
    }
}

// Whether the forward pass has registers for two Philox blocks at once: before sm_90 the compiler needs a few more.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasRoom = false;
#else
constexpr bool kHasRoom = true;
#endif

// Bits of keys that dropout leaves, of each of a lane's queries. The four lanes of a query make a quarter of a tile's
// bits each, so that every Philox block is made by one lane; a lane asks the others for the bits of its scores.
template <int Bands, int Tiles, int kAtOnce> struct KeptKeys {
    static constexpr int kOfLane = Tiles * 8 / 4;
    unsigned bits[Bands][2];

    __device__ __forceinline__ void make(const AttentionArguments& a, const Corner& corner) {
#pragma unroll
        for (int band = 0; band < Bands; ++band) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const long long row = query_row(a, corner.b, corner.n, corner.row + score_row(band, 2 * half));
                const int s = corner.column + mma_t() * kOfLane;
                bits[band][half] = dropout_kept<kOfLane, kAtOnce>(a.dropout, dropout_element(a.dropout, row, s));
            }
        }
    }

    // Of columns 2 t and 2 t + 1 of a tile. All lanes of the warp ask together.
    __device__ __forceinline__ void factors(const AttentionArguments& a, int band, int half, int tile,
                                            float (&factors)[2]) const {
        const int lane = threadIdx.x % kWarpThreads, owner = tile * 8 / kOfLane;
        const unsigned two = __shfl_sync(kAllLanes, bits[band][half], lane / 4 * 4 + owner) >>
                             (tile * 8 % kOfLane + 2 * mma_t());
        factors[0] = (two & 1u) != 0 ? a.dropout.scale : 0.0f;
        factors[1] = (two & 2u) != 0 ? a.dropout.scale : 0.0f;
    }
};

// Writes a warp's rows of results from `row` on, through its rows of `tile` in shared memory, which no other warp
// reads.
template <int Head, class Number, int Bands>
__device__ __forceinline__ void put_bands(const Heads& heads, int b, int n, int row, int rows, Number* tile,
                                          const float (&sums)[Bands][Head / 8][4], const float (&factors)[Bands][2]) {
    constexpr int kRow = Plan<Head>::kRow, kPacks = Head / kPack;
    Number* data = static_cast<Number*>(heads.data) + head_row(heads, Head, b, n, 0);
#pragma unroll
    for (int band = 0; band < Bands; ++band) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = band * 16 + half * 8 + mma_g();
            const float factor = factors[band][half];
#pragma unroll
            for (int j = 0; j < Head / 8; ++j) {
                const float low = sums[band][j][2 * half] * factor, high = sums[band][j][2 * half + 1] * factor;
                if (heads.add) {
                    // Rounded once: not through shared memory.
                    if (row + r < rows) {
                        const long long index = (row + r) * heads.row_stride + j * 8 + 2 * mma_t();
                        store_one<Number>(data, 1, index, low);
                        store_one<Number>(data, 1, index + 1, high);
                    }
                } else {
                    *reinterpret_cast<unsigned*>(tile + r * kRow + j * 8 + 2 * mma_t()) = join_pair<Number>(low, high);
                }
            }
        }
    }
    if (heads.add) {
        return;
    }
    __syncwarp();
    for (int i = threadIdx.x % kWarpThreads; i < Bands * 16 * kPacks; i += kWarpThreads) {
        const int r = i / kPacks, column = i % kPacks * kPack;
        if (row + r < rows) {
            *reinterpret_cast<uint4*>(data + (row + r) * heads.row_stride + column) =
                *reinterpret_cast<const uint4*>(tile + r * kRow + column);
        }
    }
}
