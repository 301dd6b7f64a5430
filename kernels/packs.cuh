// Loops over the packs of a range, with several loads on their way at once.

// Packs of an operand that a thread has on their way at once.
constexpr int kTogether = 2;

// Elements of the pack at `start` of `count`.
__device__ __forceinline__ int pack_count(long long count, long long start) {
    const long long left = count - start;
    return left >= kPack ? kPack : left > 0 ? static_cast<int>(left) : 0;
}

// Packs of one or more operands at the same place, or what becomes them.
template <int kOperands, class Loaded = Pack> struct Packs {
    Loaded of[kOperands];
};

template <class Loaded> __device__ __forceinline__ Packs<1, Loaded> packs_of(const Loaded& only) {
    return {{only}};
}

template <class Loaded>
__device__ __forceinline__ Packs<2, Loaded> packs_of(const Loaded& first, const Loaded& second) {
    return {{first, second}};
}

__device__ __forceinline__ Pack unpacked(const Pack& loaded) {
    return loaded;
}

template <class Number> __device__ __forceinline__ Pack unpacked(const Bits16<Number>& loaded) {
    return loaded;
}

template <int kOperands, class Loaded>
__device__ __forceinline__ Packs<kOperands> unpacked(const Packs<kOperands, Loaded>& loaded) {
    Packs<kOperands> packs;
#pragma unroll
    for (int i = 0; i < kOperands; ++i) {
        packs.of[i] = loaded.of[i];
    }
    return packs;
}

// Runs `load(index, count)` and then `work(packs, index, count)` for the packs of `[0, count)` that are every
// `stride`th from `start` on.
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
                work(unpacked(loaded[i]), index, pack_count(count, index));
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
