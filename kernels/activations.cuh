// The activations of `crate::kernel::Activation` in the core, and their derivatives.
//
// Numerics: f32. The normal distribution is the fit that the processor's kernels use (`crate::cpu::math`): its tail
// keeps its relative accuracy, and value and derivative share one exponential. Quotients have two units in the last
// place. What is not a number stays so.

struct ValueAndSlope {
    float value;
    float slope;
};

// 1 / x for x >= 1, infinity included.
__device__ __forceinline__ float reciprocal(float x) {
    return __fdividef(1.0f, x);
}

__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal(1.0f + expf(-x));
}

// x times the normal distribution function.
struct Gelu {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        const float t = reciprocal(fmaf(fabsf(x), 0.27f, 1.0f));
        const float e = expf(-0.5f * x * x);
        float p = fmaf(t, 2.8915267e-2f, -0.12625523f);
        p = fmaf(p, t, 0.16929132f);
        p = fmaf(p, t, -6.8620875e-2f);
        p = fmaf(p, t, 0.10739936f);
        p = fmaf(p, t, 7.224032e-2f);
        p = fmaf(p, t, 0.10175916f);
        p = fmaf(p, t, 0.10755051f);
        p = fmaf(p, t, 0.10772018f);
        const float tail = p * t * e;
        const float below = x > 0.0f ? 1.0f - tail : tail;
        return {x * below, fmaf(x, e * 0.3989423f, below)};
    }
};

// The approximation by a hyperbolic tangent: (1 + tanh z) / 2 = sigmoid(2 z), with 2 sqrt(2 / pi) as the scale.
struct GeluTanh {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        constexpr float kScale = 1.595769f;
        const float cube = 0.044715f * x * x;
        const float s = sigmoid(kScale * fmaf(x, cube, x));
        return {x * s, fmaf(x * s * (1.0f - s), kScale * fmaf(3.0f, cube, 1.0f), s)};
    }
};

struct Relu {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        // Not `x > 0`, so that what is not a number stays so.
        const bool off = x <= 0.0f;
        return {off ? 0.0f : x, off ? 0.0f : 1.0f};
    }
};

struct Silu {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        const float s = sigmoid(x);
        return {x * s, fmaf(x * s, 1.0f - s, s)};
    }
};

struct Tanh {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        const float y = tanhf(x);
        return {y, fmaf(-y, y, 1.0f)};
    }
};

struct QuickGelu {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        constexpr float kScale = 1.702f;
        const float s = sigmoid(kScale * x);
        return {x * s, fmaf(x * s * (1.0f - s), kScale, s)};
    }
};

// Values and derivatives of a pack.
struct PackAndSlope {
    Pack value;
    Pack slope;
};

template <class Activation> __device__ __forceinline__ PackAndSlope activation_of_pack(const Pack& x) {
    PackAndSlope result;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
        const ValueAndSlope both = Activation::at(x.at[i]);
        result.value.at[i] = both.value;
        result.slope.at[i] = both.slope;
    }
    return result;
}

// The activation of a number: one branch for a pack, the same for all threads. A loop over packs for each activation
// would take the compiler several times as long. What the caller leaves unused is not computed.
__device__ __forceinline__ PackAndSlope activate(int number, const Pack& x) {
    switch (number) {
        case 0: return activation_of_pack<Gelu>(x);
        case 1: return activation_of_pack<GeluTanh>(x);
        case 2: return activation_of_pack<Relu>(x);
        case 3: return activation_of_pack<Silu>(x);
        case 4: return activation_of_pack<Tanh>(x);
        default: return activation_of_pack<QuickGelu>(x);
    }
}
