// Loops over the packs of a range, with several loads on their way at once.

// Packs of an operand that a thread has on their way at once.
constexpr int kTogether = 2;

// Elements of the pack at `start` of `count`.
__device__ __forceinline__ int pack_count(long long count, long long start) {
    const long long left = count - start;
    return left >= kPack ? kPack : left > 0 ? static_cast<int>(left) : 0;
}

// Packs of one or more operands at the same place.
template <int kOperands> struct Packs {
    Pack of[kOperands];
};

// Runs `load(index, count)` and then `work(packs, index, count)` for the packs of `[0, count)` that are every `stride`th from
// `start` on.
template <class Load, class Work>
__device__ __forceinline__ void each_pack(long long start, long long stride, long long count, Load load, Work work) {
    for (; start < count; start += kTogether * stride) {
        decltype(load(0LL, 0)) loaded[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const long long index = start + i * stride;
            if (index < count) {
                loaded[i] = load(index, pack_count(count, index));
            }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const long long index = start + i * stride;
            if (index < count) {
                work(loaded[i], index, pack_count(count, index));
            }
        }
    }
}

// The same for the packs of this thread when the whole grid shares them.
template <class Load, class Work>
__device__ __forceinline__ void each_pack_of_grid(long long count, Load load, Work work) {
    each_pack(global_thread() * kPack, global_threads() * kPack, count, load, work);
}

// The pack of what `element` gives for each position.
template <class Element> __device__ __forceinline__ Pack each_element(Element element) {
    Pack pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        pack.at[i] = element(i);
    }
    return pack;
}
