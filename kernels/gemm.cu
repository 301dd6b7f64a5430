// What is done to a matrix product where the library of products does not do it:
//
//     c = f(x + beta c + bias),   with a copy of the argument of f, or
//     c = (x + beta c + bias) f'(points)
//
// for matrices of a batch, each with a distance of rows of its own. With x and c alone it copies matrices of one dtype
// into another.
//
// Launch: kGemmThreads threads a block; blocks take packs of rows in turn, and a thread loads two of them before it
// works on the first. No shared memory.
// Numerics: f32, rounded once when stored. f is applied to the copy as it was before it was rounded.
// Bytes moved for each element: x read, c written; c also read unless beta is 0; the copy written if there is one, the
// points read if there are any. The bias is shared by all rows and stays in the second level of the cache.

constexpr int kGemmThreads = 256;
// Packs that a thread has on their way at once. With every type in question there is no register left for a second.
template <class Types> struct GemmTogether {
    static constexpr int packs = 2;
};
template <> struct GemmTogether<Mixed> {
    static constexpr int packs = 1;
};

// Elements from one row, one entry and one group of entries to the next.
struct Distances {
    long long row;
    long long inner;
    long long outer;
};

struct GemmEpilogueArguments {
    // Null for 0. May be c.
    In x;
    Out c;
    In bias;
    // Without gaps, for a batch of one.
    Out copy;
    // The same; null for none, and then the function is applied and not its derivative.
    In points;
    Distances x_apart;
    Distances c_apart;
    long long rows;
    long long columns;
    // Entries of a group, and all entries.
    long long inner;
    long long entries;
    float beta;
    // Negative for none.
    int activation;
    // Every address is a multiple of 16 bytes; rows, and distances, are of whole packs.
    int whole;
    int unused;
};

// Where a pack of the result is: from the start of c, and of the copy.
struct GemmPlace {
    long long in_c;
    long long in_copy;
    int count;
};

// The quotient, and `index` becomes the remainder. 64-bit divisions take several times as long as 32-bit ones.
__device__ __forceinline__ long long divide(long long& index, long long by) {
    long long quotient;
    if (((index | by) >> 32) == 0) {
        quotient = static_cast<unsigned>(index) / static_cast<unsigned>(by);
    } else {
        quotient = index / by;
    }
    index -= quotient * by;
    return quotient;
}

// Sets `place` to the place of a pack, and reads what the function is applied to.
template <class Types>
__device__ __forceinline__ Pack gemm_argument(const GemmEpilogueArguments& a, long long index, long long packs,
                                              GemmPlace& place) {
    long long inner = divide(index, packs);
    const long long column = index * kPack;
    long long row = inner;
    inner = divide(row, a.rows);
    const long long outer = divide(inner, a.inner);
    const auto at = [&](const Distances& apart) {
        return outer * apart.outer + inner * apart.inner + row * apart.row + column;
    };
    const long long left = a.columns - column;
    place.count = left >= kPack ? kPack : static_cast<int>(left);
    place.in_c = at(a.c_apart);
    place.in_copy = row * a.columns + column;

    const bool whole = a.whole != 0;
    Pack pack = {};
    if (a.x.data != nullptr) {
        pack = Types::load_pack(a.x, at(a.x_apart), place.count, whole);
    }
    if (a.beta != 0.0f) {
        const In c = {a.c.data, a.c.type, 0};
        const Pack old = Types::load_pack(c, place.in_c, place.count, whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] += a.beta * old.at[i];
        }
    }
    if (a.bias.data != nullptr) {
        const Pack bias = Mixed::load_pack(a.bias, column, place.count, whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] += bias.at[i];
        }
    }
    return pack;
}

struct GemmValue {
    template <class Activation> static __device__ __forceinline__ void apply(Pack& pack, const Pack&) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] = Activation::at(pack.at[i]).value;
        }
    }
};

struct GemmSlope {
    template <class Activation> static __device__ __forceinline__ void apply(Pack& pack, const Pack& points) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] *= Activation::at(points.at[i]).slope;
        }
    }
};

// One branch for a pack, the same for all threads: a loop for each function would take the compiler several times as
// long.
template <class What>
__device__ __forceinline__ void gemm_activate(int activation, Pack& pack, const Pack& points) {
    switch (activation) {
        case 0: What::template apply<Gelu>(pack, points); return;
        case 1: What::template apply<GeluTanh>(pack, points); return;
        case 2: What::template apply<Relu>(pack, points); return;
        case 3: What::template apply<Silu>(pack, points); return;
        case 4: What::template apply<Tanh>(pack, points); return;
        case 5: What::template apply<QuickGelu>(pack, points); return;
        default: return;
    }
}

template <class Types>
__device__ __forceinline__ void gemm_epilogue_body(const GemmEpilogueArguments& a) {
    constexpr int kTogether = GemmTogether<Types>::packs;
    const bool whole = a.whole != 0;
    const long long packs = (a.columns + kPack - 1) / kPack;
    const long long total = packs * a.rows * a.entries;
    for (long long start = global_thread(); start < total; start += kTogether * global_threads()) {
        GemmPlace places[kTogether];
        Pack loaded[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const long long index = start + i * global_threads();
            if (index < total) {
                loaded[i] = gemm_argument<Types>(a, index, packs, places[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            if (start + i * global_threads() < total) {
                if (a.copy.data != nullptr) {
                    Types::store_pack(a.copy, places[i].in_copy, loaded[i], places[i].count, whole);
                }
                if (a.points.data != nullptr) {
                    const Pack points = Types::load_pack(a.points, places[i].in_copy, places[i].count, whole);
                    gemm_activate<GemmSlope>(a.activation, loaded[i], points);
                } else {
                    gemm_activate<GemmValue>(a.activation, loaded[i], loaded[i]);
                }
                Types::store_pack(a.c, places[i].in_c, loaded[i], places[i].count, whole);
            }
        }
    }
}

TYPED_KERNEL(gemm_epilogue, GemmEpilogueArguments, kGemmThreads)
