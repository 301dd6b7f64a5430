// One step of the optimizers that update each element by itself, Adam apart.
//
//     g = factor * grad (+ decay * p when coupled)
//     p = p - rate * change, p first shrunk when decoupled
//
// The change of each form is below; crate::kernel::UpdateRule has the formulas in one piece.
//
// Launch: blocks that take packs in turn, kUpdateThreads threads.
// Numerics: every operation is one IEEE rounding, fused exactly where the CPU backend's is: it has the CPU's bits.
// (On a processor with fused multiply-add; one without rounds once more in each such step.)
// Bytes moved for each element: gradient, states, and parameter or master are read; states, parameter and master are
// written.

constexpr int kUpdateThreads = 256;

enum UpdateForm {
    kSgd = 0,
    kAdagrad = 1,
    kRmsProp = 2,
    kAdadelta = 3,
    kAdamax = 4,
    kNAdam = 5,
    kRAdam = 6,
    kLion = 7,
};

struct UpdateArguments {
    In grad;
    // Written; read too where there is no master.
    Out parameter;
    // Null for an f32 parameter.
    float* master;
    // Null where the form has no such state.
    float* first;
    float* second;
    float* third;
    // One number; if it is not finite nothing is changed.
    const float* factor;
    long long count;
    // An UpdateForm.
    int form;
    // 1, or -1 to climb.
    float sign;
    // Added to the gradient, times the parameter.
    float coupled;
    // What the parameter is first multiplied by.
    float keep;
    float beta1;
    float rest1;
    float beta2;
    float rest2;
    float epsilon;
    float rate;
    float moment_rate;
    float correction;
    // Every address is a multiple of 16 bytes.
    int whole;
    int unused;
};

// An average that keeps `beta` of itself.
__device__ __forceinline__ float moved_average(float average, float beta, float rest, float x) {
    return __fmaf_rn(beta, average, __fmul_rn(rest, x));
}

// The same of the squares.
__device__ __forceinline__ float square_average(float average, float beta, float rest, float x) {
    return __fmaf_rn(beta, average, __fmul_rn(__fmul_rn(rest, x), x));
}

// p after a change.
__device__ __forceinline__ float descended(const UpdateArguments& a, float p, float change) {
    return __fmaf_rn(-a.rate, change, __fmul_rn(p, a.keep));
}

// The step of an element: p, and its states in `first`, `second` and `third`.
__device__ __forceinline__ float updated(const UpdateArguments& a, float p, float g, float& first, float& second,
                                         float& third) {
    switch (a.form) {
        case kSgd: {
            float change = g;
            if (a.first != nullptr) {
                first = moved_average(first, a.beta1, a.rest1, g);
                change = __fmaf_rn(a.rest2, first, __fmul_rn(a.beta2, g));
            }
            return descended(a, p, change);
        }
        case kAdagrad:
            second = __fmaf_rn(g, g, second);
            return descended(a, p, g / __fadd_rn(sqrtf(second), a.epsilon));
        case kRmsProp: {
            second = square_average(second, a.beta2, a.rest2, g);
            float square = second;
            if (a.third != nullptr) {
                third = __fmaf_rn(a.rest2, __fsub_rn(g, third), third);
                square = fmaxf(__fmaf_rn(-third, third, second), 0.0f);
            }
            float change = g / __fadd_rn(sqrtf(square), a.epsilon);
            if (a.first != nullptr) {
                first = __fmaf_rn(a.beta1, first, change);
                change = first;
            }
            return descended(a, p, change);
        }
        case kAdadelta: {
            second = square_average(second, a.beta2, a.rest2, g);
            const float ratio = sqrtf(__fadd_rn(third, a.epsilon)) / sqrtf(__fadd_rn(second, a.epsilon));
            const float change = __fmul_rn(ratio, g);
            third = square_average(third, a.beta2, a.rest2, change);
            return descended(a, p, change);
        }
        case kAdamax:
            first = moved_average(first, a.beta1, a.rest1, g);
            second = fmaxf(__fmul_rn(a.beta2, second), __fadd_rn(fabsf(g), a.epsilon));
            return descended(a, p, first / second);
        case kNAdam: {
            first = moved_average(first, a.beta1, a.rest1, g);
            second = square_average(second, a.beta2, a.rest2, g);
            const float root = __fadd_rn(sqrtf(__fmul_rn(second, a.correction)), a.epsilon);
            return __fmaf_rn(-a.moment_rate, first / root, descended(a, p, g / root));
        }
        case kRAdam: {
            first = moved_average(first, a.beta1, a.rest1, g);
            second = square_average(second, a.beta2, a.rest2, g);
            const bool known = a.correction > 0.0f;
            const float scaled = __fmul_rn(first, a.correction) / __fadd_rn(sqrtf(second), a.epsilon);
            return descended(a, p, known ? scaled : first);
        }
        default: {
            const float mixed = moved_average(first, a.beta1, a.rest1, g);
            first = moved_average(first, a.beta2, a.rest2, g);
            const float sign = (mixed > 0.0f ? 1.0f : 0.0f) - (mixed < 0.0f ? 1.0f : 0.0f);
            return descended(a, p, sign);
        }
    }
}

__device__ __forceinline__ Pack load_state(const float* state, long long index, int count, bool whole) {
    Pack values = {};
    return state == nullptr ? values : load_pack_of<float>(state, index, count, whole);
}

__device__ __forceinline__ void store_state(float* state, long long index, const Pack& values, int count, bool whole) {
    if (state != nullptr) {
        store_pack_of<float>(state, 0, index, values, count, whole);
    }
}

template <class Types>
__device__ __forceinline__ void update_body(const UpdateArguments& a) {
    if (!(fabsf(*a.factor) < BMTRAIN_INFINITY)) {
        return;
    }
    const float factor = a.sign * *a.factor;
    const long long packs = (a.count + kPack - 1) / kPack;
    // Without a master the parameter is f32.
    float* const values = a.master != nullptr ? a.master : static_cast<float*>(a.parameter.data);
#pragma unroll 1
    for (long long pack = global_thread(); pack < packs; pack += global_threads()) {
        const long long index = pack * kPack;
        const int count = a.count - index >= kPack ? kPack : static_cast<int>(a.count - index);
        const bool whole = a.whole != 0 && count == kPack;
        // All on their way before the first is used.
        const auto loaded = Types::load_pack(a.grad, index, count, whole);
        Pack p = load_pack_of<float>(values, index, count, whole);
        Pack first = load_state(a.first, index, count, whole);
        Pack second = load_state(a.second, index, count, whole);
        Pack third = load_state(a.third, index, count, whole);
        const Pack grad = loaded;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            const float g = __fmaf_rn(a.coupled, p.at[i], __fmul_rn(factor, grad.at[i]));
            p.at[i] = updated(a, p.at[i], g, first.at[i], second.at[i], third.at[i]);
        }
        store_state(a.first, index, first, count, whole);
        store_state(a.second, index, second, count, whole);
        store_state(a.third, index, third, count, whole);
        store_pack_of<float>(values, 0, index, p, count, whole);
        if (a.master != nullptr) {
            Types::store_pack(a.parameter, index, p, count, whole);
        }
    }
}

TYPED_KERNEL(update, UpdateArguments, kUpdateThreads)
