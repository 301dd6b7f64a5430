// The counter-based generator of the CPU backend, Philox4x32-10 (Salmon et al., 2011), and dropout masks made of it.
//
// Element `(row, column)` of what a kernel works on is element `offset + row * row_stride + column` of the unsharded
// tensor; number `e % 4` of block `e / 4` decides whether element `e` is dropped. The same bits as `crate::philox` and
// `crate::kernel::random` of the core.

struct Words {
    unsigned at[4];
};

// The keys of the ten rounds. The host makes them, and kernels have them in their arguments: operands in constant
// memory cost neither registers nor instructions.
struct RoundKeys {
    unsigned at[10][2];
};

// Ten rounds in a row; without `kUnrolled` a loop that makes the keys, for kernels that have no registers to spare.
template <bool kUnrolled = true>
__device__ __forceinline__ Words philox(const RoundKeys& keys, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
    unsigned key0 = keys.at[0][0], key1 = keys.at[0][1];
#pragma unroll(kUnrolled ? 10 : 1)
    for (int round = 0; round < 10; ++round) {
        if (kUnrolled) {
            key0 = keys.at[round][0];
            key1 = keys.at[round][1];
        }
        const unsigned high0 = __umulhi(c0, 0xd2511f53u), low0 = c0 * 0xd2511f53u;
        const unsigned high1 = __umulhi(c2, 0xcd9e8d57u), low1 = c2 * 0xcd9e8d57u;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        if (!kUnrolled) {
            key0 += 0x9e3779b9u;
            key1 += 0xbb67ae85u;
        }
    }
    return {{c0, c1, c2, c3}};
}

// A mask; `threshold` 0 where there is none.
struct Dropout {
    unsigned threshold;
    float scale;
    RoundKeys keys;
    unsigned step;
    unsigned micro_batch;
    unsigned long long offset;
    // Never 0: where rows follow each other without gaps, the row's length.
    unsigned long long row_stride;
};

__device__ __forceinline__ unsigned long long dropout_element(const Dropout& d, long long row, long long column) {
    return d.offset + static_cast<unsigned long long>(row) * d.row_stride + static_cast<unsigned long long>(column);
}

template <bool kUnrolled = true>
__device__ __forceinline__ Words dropout_block(const Dropout& d, unsigned long long block) {
    const unsigned low = static_cast<unsigned>(block), high = static_cast<unsigned>(block >> 32);
    return philox<kUnrolled>(d.keys, low, high, d.step, d.micro_batch);
}

// Which elements of a block are kept: a bit for each.
__device__ __forceinline__ unsigned kept_of(const Dropout& d, const Words& words) {
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        kept |= words.at[i] < d.threshold ? 0u : 1u << i;
    }
    return kept;
}

// Which elements of `kAtOnce` blocks are kept, one or two.
template <int kAtOnce> __device__ __forceinline__ unsigned kept_of(const Dropout& d, unsigned long long block) {
    if (kAtOnce == 1) {
        return kept_of(d, dropout_block<false>(d, block));
    }
    const Words first = dropout_block(d, block), second = dropout_block(d, block + 1);
    return kept_of(d, first) | kept_of(d, second) << 4;
}

// Which of `Count` neighbouring elements, at most 32, are kept: a bit for each. As many blocks as cover the elements
// are made, one or two at a time: one round waits for another, so that two blocks whose rounds take turns are done in
// little more time than one, in four registers more. One at a time is for kernels that have none: there the rounds are
// a loop.
template <int Count, int kAtOnce>
__device__ __forceinline__ unsigned dropout_kept(const Dropout& d, unsigned long long element) {
    const int skipped = static_cast<int>(element % 4);
    unsigned kept = 0;
#pragma unroll 1
    for (int place = -skipped; place < Count; place += 4 * kAtOnce) {
        const unsigned bits = kept_of<kAtOnce>(d, element / 4 + (place + skipped) / 4);
        kept |= place < 0 ? bits >> -place : bits << place;
    }
    return kept;
}

// The factors of eight neighbouring elements: of two blocks, or three where the first element is not the first of a
// block. Blocks are made one after the other and leave a bit for each element, so that a kernel that holds a row in
// registers keeps it there.
template <bool kUnrolled = false>
__device__ __forceinline__ Pack dropout_factors(const Dropout& d, unsigned long long element) {
    const unsigned skipped = element % 4;
    const int blocks = skipped == 0 ? 2 : 3;
    unsigned kept = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
        kept |= kept_of(d, dropout_block<kUnrolled>(d, element / 4 + block)) << (4 * block);
    }
    kept >>= skipped;
    Pack factors;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        factors.at[i] = (kept >> i & 1u) != 0 ? d.scale : 0.0f;
    }
    return factors;
}
