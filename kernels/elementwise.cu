// Elementwise kernels: activations and their gradients, gated activations, sums, products, casts, one value everywhere.
//
//     activation_forward   y = f(x)
//     activation_backward  dx (+)= dy f'(x)
//     activation_in_place  dy = dy f'(x), x = f(x)
//     gated_forward        y = f(gate) up
//     gated_backward       dgate (+)= dy up f'(gate), dup (+)= dy f(gate)
//     gated_in_place       gate = dy up f'(gate), up = dy f(gate), dy = f(gate) up
//     add_scaled           out = alpha a + beta b
//     multiply             out (+)= a b
//     cast                 out (+)= x
//     fill                 out = value
//
// Launch: kElementwiseThreads threads a block, blocks take packs in turn; a thread loads kTogether packs of each
// operand before it works on the first. The gated kernels give rows to blocks, because gate and factor may be halves of
// a wider matrix. No shared memory.
// Numerics: f32, rounded once when stored. Operands that are read and written are read before they are written, by the
// thread that writes them.
// Bytes moved for each element: each operand once, read and written where a result is added or replaced in place. With
// beta 0 the second term is not read.

constexpr int kElementwiseThreads = 256;

// What is written, to be read before.
__device__ __forceinline__ In read(const Out& out) { return In{out.data, out.type, 0}; }

// ---- activations

struct ActivationForwardArguments {
    In x;
    Out y;
    long long count;
    int activation;
    // Every address is a multiple of 16 bytes.
    int whole;
};

template <class Types>
__device__ __forceinline__ void activation_forward_body(const ActivationForwardArguments& a) {
    const auto load = [&](long long index, int count) {
        return packs_of(Types::load_pack(a.x, index, count, a.whole && count == kPack));
    };
    each_pack_of_grid(a.count, load, [&](const Packs<1>& packs, long long index, int count) {
        const PackAndSlope y = activate(a.activation, packs.of[0]);
        Types::store_pack(a.y, index, y.value, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(activation_forward, ActivationForwardArguments, kElementwiseThreads)

struct ActivationBackwardArguments {
    In x;
    In dy;
    Out dx;
    long long count;
    int activation;
    int whole;
};

template <class Types>
__device__ __forceinline__ void activation_backward_body(const ActivationBackwardArguments& a) {
    const auto load = [&](long long index, int count) {
        const bool whole = a.whole && count == kPack;
        return packs_of(Types::load_pack(a.x, index, count, whole), Types::load_pack(a.dy, index, count, whole));
    };
    each_pack_of_grid(a.count, load, [&](const Packs<2>& packs, long long index, int count) {
        const PackAndSlope y = activate(a.activation, packs.of[0]);
        const Pack dx = each_element([&](int i) { return y.slope.at[i] * packs.of[1].at[i]; });
        Types::store_pack(a.dx, index, dx, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(activation_backward, ActivationBackwardArguments, kElementwiseThreads)

struct ActivationInPlaceArguments {
    Out x;
    Out dy;
    long long count;
    int activation;
    int whole;
};

template <class Types>
__device__ __forceinline__ void activation_in_place_body(const ActivationInPlaceArguments& a) {
    const auto load = [&](long long index, int count) {
        const bool whole = a.whole && count == kPack;
        return packs_of(Types::load_pack(read(a.x), index, count, whole),
                        Types::load_pack(read(a.dy), index, count, whole));
    };
    each_pack_of_grid(a.count, load, [&](const Packs<2>& packs, long long index, int count) {
        const PackAndSlope y = activate(a.activation, packs.of[0]);
        const Pack dx = each_element([&](int i) { return y.slope.at[i] * packs.of[1].at[i]; });
        Types::store_pack(a.x, index, y.value, count, a.whole && count == kPack);
        Types::store_pack(a.dy, index, dx, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(activation_in_place, ActivationInPlaceArguments, kElementwiseThreads)

// ---- gated activations

struct GatedForwardArguments {
    In gate;
    In up;
    Out y;
    long long rows;
    long long columns;
    // Elements from one row of gate and factor to the next.
    long long stride;
    int activation;
    // Every address is a multiple of 16 bytes, every row and every distance of rows of 8 elements.
    int whole;
};

template <class Types>
__device__ __forceinline__ void gated_forward_body(const GatedForwardArguments& a) {
    const bool whole = a.whole != 0;
    const long long start = static_cast<long long>(threadIdx.x) * kPack;
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const long long from = row * a.stride;
        const auto load = [&](long long column, int count) {
            return packs_of(Types::load_pack(a.gate, from + column, count, whole),
                            Types::load_pack(a.up, from + column, count, whole));
        };
        each_pack(start, stride, a.columns, load, [&](const Packs<2>& packs, long long column, int count) {
            const PackAndSlope gate = activate(a.activation, packs.of[0]);
            const Pack y = each_element([&](int i) { return gate.value.at[i] * packs.of[1].at[i]; });
            Types::store_pack(a.y, row * a.columns + column, y, count, whole);
        });
    }
}

TYPED_KERNEL(gated_forward, GatedForwardArguments, kElementwiseThreads)

struct GatedBackwardArguments {
    // Gate and factor side by side, and so their gradients.
    In x;
    In dy;
    Out dx;
    long long rows;
    long long columns;
    int activation;
    int whole;
};

// What the backward pass makes of a gate, a factor and the gradient of their product.
struct GatedGradients {
    Pack dgate;
    Pack dup;
    // The product again.
    Pack value;
};

// Runs `put(row, column, count, gradients)` for packs of rows that blocks take in turn. One pack of each operand at a
// time: with three operands that is enough on its way, and two would not leave room for the arithmetic in the
// registers. Each is read before `put` may write where it was.
template <class Types, class Put>
__device__ __forceinline__ void each_gated(const In& x, const In& dy, long long rows, long long columns,
                                           int activation, bool whole, Put put) {
    const long long start = static_cast<long long>(threadIdx.x) * kPack;
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const long long from = row * 2 * columns;
        for (long long column = start; column < columns; column += stride) {
            const int count = pack_count(columns, column);
            const Pack gate = Types::load_pack(x, from + column, count, whole);
            const Pack up = Types::load_pack(x, from + columns + column, count, whole);
            const Pack gradient = Types::load_pack(dy, row * columns + column, count, whole);
            const PackAndSlope y = activate(activation, gate);
            GatedGradients made;
            made.dgate = each_element([&](int i) { return gradient.at[i] * up.at[i] * y.slope.at[i]; });
            made.dup = each_element([&](int i) { return gradient.at[i] * y.value.at[i]; });
            made.value = each_element([&](int i) { return y.value.at[i] * up.at[i]; });
            put(row, column, count, made);
        }
    }
}

template <class Types>
__device__ __forceinline__ void gated_backward_body(const GatedBackwardArguments& a) {
    const bool whole = a.whole != 0;
    each_gated<Types>(a.x, a.dy, a.rows, a.columns, a.activation, whole,
                      [&](long long row, long long column, int count, const GatedGradients& made) {
                          const long long at = row * 2 * a.columns + column;
                          Types::store_pack(a.dx, at, made.dgate, count, whole);
                          Types::store_pack(a.dx, at + a.columns, made.dup, count, whole);
                      });
}

TYPED_KERNEL(gated_backward, GatedBackwardArguments, kElementwiseThreads)

struct GatedInPlaceArguments {
    // Gate and factor side by side, and so their gradients.
    Out x;
    Out dy;
    long long rows;
    long long columns;
    int activation;
    int whole;
};

template <class Types>
__device__ __forceinline__ void gated_in_place_body(const GatedInPlaceArguments& a) {
    const bool whole = a.whole != 0;
    each_gated<Types>(read(a.x), read(a.dy), a.rows, a.columns, a.activation, whole,
                      [&](long long row, long long column, int count, const GatedGradients& made) {
                          const long long at = row * 2 * a.columns + column;
                          Types::store_pack(a.x, at, made.dgate, count, whole);
                          Types::store_pack(a.x, at + a.columns, made.dup, count, whole);
                          Types::store_pack(a.dy, row * a.columns + column, made.value, count, whole);
                      });
}

TYPED_KERNEL(gated_in_place, GatedInPlaceArguments, kElementwiseThreads)

// ---- sums and products

struct AddScaledArguments {
    In a;
    // Null where only the first term counts; what is written where the result replaces it.
    In b;
    Out out;
    long long count;
    float alpha;
    float beta;
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void add_scaled_body(const AddScaledArguments& a) {
    if (a.b.data == nullptr) {
        const auto load = [&](long long index, int count) {
            return packs_of(Types::load_pack(a.a, index, count, a.whole && count == kPack));
        };
        each_pack_of_grid(a.count, load, [&](const Packs<1>& packs, long long index, int count) {
            const Pack out = each_element([&](int i) { return a.alpha * packs.of[0].at[i]; });
            Types::store_pack(a.out, index, out, count, a.whole && count == kPack);
        });
        return;
    }
    const auto load = [&](long long index, int count) {
        const bool whole = a.whole && count == kPack;
        return packs_of(Types::load_pack(a.a, index, count, whole), Types::load_pack(a.b, index, count, whole));
    };
    each_pack_of_grid(a.count, load, [&](const Packs<2>& packs, long long index, int count) {
        const auto sum = [&](int i) { return fmaf(a.alpha, packs.of[0].at[i], a.beta * packs.of[1].at[i]); };
        const Pack out = each_element(sum);
        Types::store_pack(a.out, index, out, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(add_scaled, AddScaledArguments, kElementwiseThreads)

struct MultiplyArguments {
    In a;
    // What is written where the result replaces it.
    In b;
    Out out;
    long long count;
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void multiply_body(const MultiplyArguments& a) {
    const auto load = [&](long long index, int count) {
        const bool whole = a.whole && count == kPack;
        return packs_of(Types::load_pack(a.a, index, count, whole), Types::load_pack(a.b, index, count, whole));
    };
    each_pack_of_grid(a.count, load, [&](const Packs<2>& packs, long long index, int count) {
        const Pack out = each_element([&](int i) { return packs.of[0].at[i] * packs.of[1].at[i]; });
        Types::store_pack(a.out, index, out, count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(multiply, MultiplyArguments, kElementwiseThreads)

// ---- casts

struct CastArguments {
    In x;
    Out out;
    long long count;
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void cast_body(const CastArguments& a) {
    const auto load = [&](long long index, int count) {
        return packs_of(Types::load_pack(a.x, index, count, a.whole && count == kPack));
    };
    each_pack_of_grid(a.count, load, [&](const Packs<1>& packs, long long index, int count) {
        Types::store_pack(a.out, index, packs.of[0], count, a.whole && count == kPack);
    });
}

TYPED_KERNEL(cast, CastArguments, kElementwiseThreads)

// An integer as f32, rounded so that a second rounding to a 16-bit type gives what one rounding would: bits that are
// lost leave their trace in the last bit that is kept.
__device__ __forceinline__ float to_odd(long long x) {
    const unsigned long long value = static_cast<unsigned long long>(x), size = x < 0 ? 0ULL - value : value;
    const unsigned high = static_cast<unsigned>(size >> 32), low = static_cast<unsigned>(size);
    const int bits = 64 - (high != 0 ? __clz(static_cast<int>(high)) : 32 + __clz(static_cast<int>(low)));
    const int lost = bits > 24 ? bits - 24 : 0;
    const unsigned long long trace = (size & ((1ULL << lost) - 1)) != 0 ? 1 : 0;
    const float kept = static_cast<float>(((size >> lost) | trace) << lost);
    return x < 0 ? -kept : kept;
}

// From integers, one element a thread: ids and masks, which are few.
extern "C" __global__ void __launch_bounds__(kElementwiseThreads) cast_integers(const CastArguments a) {
    for (long long index = global_thread(); index < a.count; index += global_threads()) {
        long long x;
        switch (a.x.type) {
            case kI64: x = static_cast<const long long*>(a.x.data)[index]; break;
            case kI32: x = static_cast<const int*>(a.x.data)[index]; break;
            default: x = static_cast<const unsigned char*>(a.x.data)[index]; break;
        }
        Mixed::store(a.out, index, a.out.type == kF32 ? static_cast<float>(x) : to_odd(x));
    }
}
BMTRAIN_KERNEL(cast_integers)

// ---- one value

struct FillArguments {
    long long* out;
    long long value;
    long long count;
};

// For 8-byte elements, for which the driver has no pattern.
extern "C" __global__ void __launch_bounds__(kElementwiseThreads) fill_i64(const FillArguments a) {
    for (long long index = global_thread(); index < a.count; index += global_threads()) {
        a.out[index] = a.value;
    }
}
BMTRAIN_KERNEL(fill_i64)
