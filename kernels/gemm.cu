// What is done to a matrix product where the library of products does not do it:
//
//     c = f(x + beta c + bias),   with a copy of the argument of f
//
// for matrices of a batch, each with a distance of rows of its own. With x and c alone it copies matrices of one number type
// into another.
//
// Launch: kGemmThreads threads a block; blocks take packs of rows in turn, and a thread loads kGemmTogether of them before it
// works on the first. No shared memory.
// Numerics: f32, rounded once when stored. f is applied to the copy as it was before it was rounded.
// Bytes moved for each element: x read, c written; c also read unless beta is 0; the copy written if there is one. The bias is
// shared by all rows and stays in the second level of the cache.

constexpr int kGemmThreads = 256;
// Packs that a thread has on their way at once.
constexpr int kGemmTogether = 2;

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

// Where a pack is.
struct GemmPlace {
    long long column;
    long long row;
    long long inner;
    long long outer;
    int count;
};

struct Unchanged {
    static __device__ __forceinline__ ValueAndSlope at(float x) { return {x, 1.0f}; }
};

// The quotient, and `index` becomes the remainder. Divisions of 64 bits take several times as long as those of 32.
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

__device__ __forceinline__ GemmPlace gemm_place(const GemmEpilogueArguments& a, long long index, long long packs) {
    GemmPlace place;
    long long row = divide(index, packs);
    place.column = index * kPack;
    const long long left = a.columns - place.column;
    place.count = left >= kPack ? kPack : static_cast<int>(left);
    place.inner = divide(row, a.rows);
    place.row = row;
    place.outer = divide(place.inner, a.inner);
    return place;
}

__device__ __forceinline__ long long gemm_index(const Distances& apart, const GemmPlace& place) {
    return place.outer * apart.outer + place.inner * apart.inner + place.row * apart.row + place.column;
}

template <class Types>
__device__ __forceinline__ Pack gemm_argument(const GemmEpilogueArguments& a, const GemmPlace& place) {
    const bool whole = a.whole != 0;
    Pack pack = {};
    if (a.x.data != nullptr) {
        pack = Types::load_pack(a.x, gemm_index(a.x_apart, place), place.count, whole);
    }
    if (a.beta != 0.0f) {
        const In c = {a.c.data, a.c.type, 0};
        const Pack old = Types::load_pack(c, gemm_index(a.c_apart, place), place.count, whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] += a.beta * old.at[i];
        }
    }
    if (a.bias.data != nullptr) {
        const Pack bias = Mixed::load_pack(a.bias, place.column, place.count, whole);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] += bias.at[i];
        }
    }
    return pack;
}

template <class Types, class Activation>
__device__ __forceinline__ void gemm_epilogue_with(const GemmEpilogueArguments& a) {
    const bool whole = a.whole != 0;
    const long long packs = (a.columns + kPack - 1) / kPack;
    const long long total = packs * a.rows * a.entries;
    for (long long start = global_thread(); start < total; start += kGemmTogether * global_threads()) {
        GemmPlace places[kGemmTogether];
        Pack loaded[kGemmTogether];
#pragma unroll
        for (int i = 0; i < kGemmTogether; ++i) {
            const long long index = start + i * global_threads();
            if (index < total) {
                places[i] = gemm_place(a, index, packs);
                loaded[i] = gemm_argument<Types>(a, places[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kGemmTogether; ++i) {
            if (start + i * global_threads() < total) {
                const GemmPlace& place = places[i];
                if (a.copy.data != nullptr) {
                    Types::store_pack(a.copy, place.row * a.columns + place.column, loaded[i], place.count, whole);
                }
#pragma unroll
                for (int e = 0; e < kPack; ++e) {
                    loaded[i].at[e] = Activation::at(loaded[i].at[e]).value;
                }
                Types::store_pack(a.c, gemm_index(a.c_apart, place), loaded[i], place.count, whole);
            }
        }
    }
}

template <class Types>
__device__ __forceinline__ void gemm_epilogue_body(const GemmEpilogueArguments& a) {
    if (a.activation < 0) {
        gemm_epilogue_with<Types, Unchanged>(a);
        return;
    }
    WITH_ACTIVATION(a.activation, gemm_epilogue_with, Types, a)
}

TYPED_KERNEL(gemm_epilogue, GemmEpilogueArguments, kGemmThreads)
