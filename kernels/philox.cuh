// The counter-based generator of the CPU backend, Philox4x32-10 (Salmon et al., 2011), and dropout masks made of it.
//
// Element `(row, column)` of what a kernel works on is element `offset + row * row_stride + column` of the unsharded
// tensor; number `e % 4` of block `e / 4` decides whether element `e` is dropped. The same bits as `crate::philox` and
// `crate::kernel::random` of the core.

struct Words {
    unsigned at[4];
};

// Ten rounds, `kUnrolled` of them in a row. Unrolled all at once, the keys of the rounds do not depend on the counter,
// and a kernel with a loop around keeps all twenty in registers: right where there is room, a reason to spill where
// there is not.
template <int kUnrolled = 1>
__device__ __forceinline__ Words philox(unsigned key0, unsigned key1, unsigned c0, unsigned c1, unsigned c2,
                                        unsigned c3) {
#pragma unroll kUnrolled
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(c0, 0xd2511f53u), low0 = c0 * 0xd2511f53u;
        const unsigned high1 = __umulhi(c2, 0xcd9e8d57u), low1 = c2 * 0xcd9e8d57u;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

// A mask; `threshold` 0 where there is none.
struct Dropout {
    unsigned threshold;
    float scale;
    unsigned key[2];
    unsigned step;
    unsigned micro_batch;
    unsigned long long offset;
    // Never 0: where rows follow each other without gaps, the row's length.
    unsigned long long row_stride;
};

__device__ __forceinline__ unsigned long long dropout_element(const Dropout& d, long long row, long long column) {
    return d.offset + static_cast<unsigned long long>(row) * d.row_stride + static_cast<unsigned long long>(column);
}

template <int kUnrolled = 1>
__device__ __forceinline__ Words dropout_block(const Dropout& d, unsigned long long block) {
    const unsigned low = static_cast<unsigned>(block), high = static_cast<unsigned>(block >> 32);
    return philox<kUnrolled>(d.key[0], d.key[1], low, high, d.step, d.micro_batch);
}

// Which of `Count` neighbouring elements, at most 32, are kept: a bit for each. A block is made once for the elements
// it covers; there is one block more where the first element is not the first of its block.
template <int Count>
__device__ __forceinline__ unsigned dropout_kept(const Dropout& d, unsigned long long element) {
    const int skipped = static_cast<int>(element % 4);
    unsigned kept = 0;
#pragma unroll 1
    for (int place = -skipped; place < Count; place += 4) {
        const Words words = dropout_block(d, element / 4 + (place + skipped) / 4);
        unsigned four = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            four |= words.at[i] < d.threshold ? 0u : 1u << i;
        }
        kept |= place < 0 ? four >> -place : four << place;
    }
    return kept;
}

// The factors of eight neighbouring elements: of two blocks, or three where the first element is not the first of a
// block. Blocks are made one after the other and leave a bit for each element, so that a kernel that holds a row in
// registers keeps it there.
template <int kUnrolled = 1>
__device__ __forceinline__ Pack dropout_factors(const Dropout& d, unsigned long long element) {
    const unsigned skipped = element % 4;
    const int blocks = skipped == 0 ? 2 : 3;
    unsigned kept = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
        const Words words = dropout_block<kUnrolled>(d, element / 4 + block);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            kept |= words.at[i] < d.threshold ? 0u : 1u << (4 * block + i);
        }
    }
    kept >>= skipped;
    Pack factors;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        factors.at[i] = (kept >> i & 1u) != 0 ? d.scale : 0.0f;
    }
    return factors;
}
