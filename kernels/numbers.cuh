// Dtypes, and how kernels read and write memory in them.
//
// Arithmetic is f32 whatever is stored. A kernel is a template over a policy: with F32, F16 and BF16 all its large
// operands have that type, Mixed that each operand's own tag decides. So each kernel has a fast path for each type,
// without a branch, and one that serves every combination. Small operands (scales, shifts, their gradients) are read
// through Mixed in every case: the branch is the same for all threads.
//
// Memory is moved in packs of eight elements, 16 or 32 bytes, by accesses of 16 bytes where addresses allow.

struct f16 {
    unsigned short bits;
};

struct bf16 {
    unsigned short bits;
};

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(bf16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }

#ifdef BMTRAIN_EMULATED
inline float widen(f16 value) { return emulator::f32_from_f16(value.bits); }
#else
__device__ __forceinline__ float widen(f16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
#endif

// To nearest, ties to even; what is not a number becomes the type's own.
template <class Number> __device__ __forceinline__ Number narrow(float value);
template <> __device__ __forceinline__ float narrow<float>(float value) { return value; }

#ifdef BMTRAIN_EMULATED
template <> inline f16 narrow<f16>(float value) { return {emulator::f16_from_f32(value)}; }
template <> inline bf16 narrow<bf16>(float value) { return {emulator::bf16_from_f32(value)}; }
#else
template <> __device__ __forceinline__ f16 narrow<f16>(float value) {
    f16 narrowed;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrowed.bits) : "f"(value));
    return narrowed;
}
template <> __device__ __forceinline__ bf16 narrow<bf16>(float value) {
    bf16 narrowed;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrowed.bits) : "f"(value));
    return narrowed;
}
#endif

// Tags of dtypes, as `cuda::launch::tag`.
enum { kF32 = 0, kF16 = 1, kBF16 = 2, kI64 = 3, kI32 = 4, kU8 = 5 };

// An operand that is read; null where there is none.
struct In {
    const void* data;
    int type;
    int unused;
};

// An operand that is written; with `add` the value is added to what is there.
struct Out {
    void* data;
    int type;
    int add;
};

constexpr int kPack = 8;

// Eight neighbouring elements.
struct Pack {
    float at[kPack];
};

// ---- one type

template <class Number>
__device__ __forceinline__ float load_one(const void* data, long long index) {
    return widen(static_cast<const Number*>(data)[index]);
}

template <class Number>
__device__ __forceinline__ void store_one(void* data, int add, long long index, float value) {
    Number* place = static_cast<Number*>(data) + index;
    *place = narrow<Number>(add ? widen(*place) + value : value);
}

template <class Number>
__device__ __forceinline__ Pack unpack(const uint4& bits) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    Pack pack;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        pack.at[2 * i] = widen(Number{static_cast<unsigned short>(words[i] & 0xffffu)});
        pack.at[2 * i + 1] = widen(Number{static_cast<unsigned short>(words[i] >> 16)});
    }
    return pack;
}

template <class Number>
__device__ __forceinline__ unsigned join(float low, float high) {
    return static_cast<unsigned>(narrow<Number>(low).bits) | static_cast<unsigned>(narrow<Number>(high).bits) << 16;
}

// One access of 16 bytes. The compiler may cut an access of its own in two or four where it later uses the parts apart.
#ifdef BMTRAIN_EMULATED
inline uint4 load_16(const void* place) { return *static_cast<const uint4*>(place); }
inline void store_16(void* place, const uint4& bits) { *static_cast<uint4*>(place) = bits; }
#else
__device__ __forceinline__ uint4 load_16(const void* place) {
    uint4 bits;
    // Memory: a thread reads again what it wrote.
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(place)
                 : "memory");
    return bits;
}

__device__ __forceinline__ void store_16(void* place, const uint4& bits) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(place), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
}
#endif

template <class Number> struct Whole;

template <> struct Whole<float> {
    static __device__ __forceinline__ Pack load(const void* data, long long index) {
        const float4* place = reinterpret_cast<const float4*>(static_cast<const float*>(data) + index);
        const float4 low = place[0], high = place[1];
        return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    }
    static __device__ __forceinline__ void store(void* data, long long index, const Pack& p) {
        float4* place = reinterpret_cast<float4*>(static_cast<float*>(data) + index);
        place[0] = make_float4(p.at[0], p.at[1], p.at[2], p.at[3]);
        place[1] = make_float4(p.at[4], p.at[5], p.at[6], p.at[7]);
    }
};

template <class Number> struct WholeHalves {
    static __device__ __forceinline__ Pack load(const void* data, long long index) {
        return unpack<Number>(load_16(static_cast<const Number*>(data) + index));
    }
    static __device__ __forceinline__ void store(void* data, long long index, const Pack& p) {
        store_16(static_cast<Number*>(data) + index,
                 make_uint4(join<Number>(p.at[0], p.at[1]), join<Number>(p.at[2], p.at[3]),
                            join<Number>(p.at[4], p.at[5]), join<Number>(p.at[6], p.at[7])));
    }
};

template <> struct Whole<f16> : WholeHalves<f16> {};
template <> struct Whole<bf16> : WholeHalves<bf16> {};

// `count` elements from `index` on, the others zero. With `whole` the address is a multiple of 16 bytes and `count` is
// kPack.
template <class Number>
__device__ __forceinline__ Pack load_pack_of(const void* data, long long index, int count, bool whole) {
    if (whole) {
        return Whole<Number>::load(data, index);
    }
    Pack pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        pack.at[i] = i < count ? load_one<Number>(data, index + i) : 0.0f;
    }
    return pack;
}

template <class Number>
__device__ __forceinline__ void store_pack_of(void* data, int add, long long index, Pack pack, int count, bool whole) {
    if (whole) {
        if (add) {
            const Pack old = Whole<Number>::load(data, index);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                pack.at[i] += old.at[i];
            }
        }
        Whole<Number>::store(data, index, pack);
        return;
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        if (i < count) {
            store_one<Number>(data, add, index + i, pack.at[i]);
        }
    }
}

// ---- what was loaded and is not unpacked yet

// Eight 16-bit numbers as in memory. Unpacking is the first use of what was loaded, which a thread waits for:
// who wants several loads on their way keeps these, loads all, and then unpacks.
template <class Number> struct Bits16 {
    uint4 bits;
    __device__ __forceinline__ operator Pack() const { return unpack<Number>(bits); }
};

template <class Number> struct LoadedOf {
    using Type = Bits16<Number>;
    static __device__ __forceinline__ Type load(const void* data, long long index, int count, bool whole) {
        const Number* from = static_cast<const Number*>(data) + index;
        if (whole) {
            return {load_16(from)};
        }
        unsigned words[4] = {};
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            words[i / 2] |= i < count ? static_cast<unsigned>(from[i].bits) << 16 * (i % 2) : 0u;
        }
        return {make_uint4(words[0], words[1], words[2], words[3])};
    }
};

template <> struct LoadedOf<float> {
    using Type = Pack;
    static __device__ __forceinline__ Type load(const void* data, long long index, int count, bool whole) {
        return load_pack_of<float>(data, index, count, whole);
    }
};

// ---- policies

template <class Number> struct Only {
    // A pack, or what becomes one.
    using Loaded = typename LoadedOf<Number>::Type;
    static __device__ __forceinline__ float load(const In& in, long long index) {
        return load_one<Number>(in.data, index);
    }
    static __device__ __forceinline__ void store(const Out& out, long long index, float value) {
        store_one<Number>(out.data, out.add, index, value);
    }
    static __device__ __forceinline__ Loaded load_pack(const In& in, long long index, int count, bool whole) {
        return LoadedOf<Number>::load(in.data, index, count, whole);
    }
    static __device__ __forceinline__ void store_pack(const Out& out, long long index, const Pack& pack, int count,
                                                      bool whole) {
        store_pack_of<Number>(out.data, out.add, index, pack, count, whole);
    }
    // What reading back gives.
    static __device__ __forceinline__ float rounded(const Out&, float value) { return widen(narrow<Number>(value)); }
};

using F32 = Only<float>;
using F16 = Only<f16>;
using BF16 = Only<bf16>;

struct Mixed {
    using Loaded = Pack;
    static __device__ __forceinline__ float load(const In& in, long long index) {
        switch (in.type) {
            case kF32: return load_one<float>(in.data, index);
            case kF16: return load_one<f16>(in.data, index);
            default: return load_one<bf16>(in.data, index);
        }
    }
    static __device__ __forceinline__ void store(const Out& out, long long index, float value) {
        switch (out.type) {
            case kF32: store_one<float>(out.data, out.add, index, value); return;
            case kF16: store_one<f16>(out.data, out.add, index, value); return;
            default: store_one<bf16>(out.data, out.add, index, value); return;
        }
    }
    static __device__ __forceinline__ Pack load_pack(const In& in, long long index, int count, bool whole) {
        switch (in.type) {
            case kF32: return load_pack_of<float>(in.data, index, count, whole);
            case kF16: return load_pack_of<f16>(in.data, index, count, whole);
            default: return load_pack_of<bf16>(in.data, index, count, whole);
        }
    }
    static __device__ __forceinline__ void store_pack(const Out& out, long long index, const Pack& pack, int count,
                                                      bool whole) {
        switch (out.type) {
            case kF32: store_pack_of<float>(out.data, out.add, index, pack, count, whole); return;
            case kF16: store_pack_of<f16>(out.data, out.add, index, pack, count, whole); return;
            default: store_pack_of<bf16>(out.data, out.add, index, pack, count, whole); return;
        }
    }
    static __device__ __forceinline__ float rounded(const Out& out, float value) {
        switch (out.type) {
            case kF32: return value;
            case kF16: return widen(narrow<f16>(value));
            default: return widen(narrow<bf16>(value));
        }
    }
};

// The four kernels of a template: TYPED_KERNEL(softmax, SoftmaxArguments, THREADS) makes softmax_f32, softmax_f16,
// softmax_bf16 and softmax_mixed from `template <class Types> softmax_body(const SoftmaxArguments&)`, with at most
// THREADS threads a block. A fourth argument is the least number of blocks that a multiprocessor is to hold.
#define TYPED_KERNEL_OF(name, body, Arguments, Types, ...)                                                            \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const Arguments a) { body<Types>(a); }             \
    BMTRAIN_KERNEL(name)
#define TYPED_KERNEL(name, Arguments, ...)                                                                            \
    TYPED_KERNEL_OF(name##_f32, name##_body, Arguments, F32, __VA_ARGS__)                                             \
    TYPED_KERNEL_OF(name##_f16, name##_body, Arguments, F16, __VA_ARGS__)                                             \
    TYPED_KERNEL_OF(name##_bf16, name##_body, Arguments, BF16, __VA_ARGS__)                                           \
    TYPED_KERNEL_OF(name##_mixed, name##_body, Arguments, Mixed, __VA_ARGS__)
