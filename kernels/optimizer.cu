// The clipping factor of a norm, and Adam.
//
//     norm = root / scale,  factor = min(1, max_norm / (norm + 1e-6)) / scale
//
//     g = factor * grad (+ decay * p when coupled)
//     m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//     p = p - rate * m / (sqrt(v * correction) + epsilon), p first shrunk when decoupled
//
// Launch: clip_factor one thread; adam blocks that take packs in turn, kAdamThreads threads.
// Numerics: every operation is one IEEE rounding, fused exactly where the CPU backend's is: both kernels have its bits.
// (On a processor with fused multiply-add; one without rounds once more in each such step.)
// Bytes moved for each element of adam: the gradient and three f32 numbers (moments, and the parameter or its master)
// are read, the three written, and beside a master the parameter; 28 for f32 as well as for 16-bit parameters with
// gradients of their type. A thread has four packs on their way at once.

struct ClipFactorArguments {
    // kSumWords limbs: a sum of squares, or the bits of the largest magnitude.
    const long long* accumulated;
    float* norm;
    float* factor;
    float max_norm;
    float scale;
    // The largest magnitude was accumulated.
    int largest;
    int unused;
};

extern "C" __global__ void __launch_bounds__(kWarpThreads) clip_factor(const ClipFactorArguments a) {
    SHARED(long long, words, [kSumWords]);
    if (threadIdx.x != 0) {
        return;
    }
    double root = 0.0;
    if (a.largest != 0) {
        root = __uint_as_float(static_cast<unsigned>(a.accumulated[0]));
    } else {
        for (int word = 0; word < kSumWords; ++word) {
            words[word] = a.accumulated[word];
        }
        sum_carry(words);
        root = __dsqrt_rn(sum_to_double(words));
    }
    const float norm = static_cast<float>(__ddiv_rn(root, static_cast<double>(a.scale)));
    // False for what is not a number too.
    const bool finite = fabsf(norm) < BMTRAIN_INFINITY;
    *a.norm = norm;
    *a.factor = finite ? fminf(a.max_norm / __fadd_rn(norm, 1e-6f), 1.0f) / a.scale : __int_as_float(0x7fc00000);
}
BMTRAIN_KERNEL(clip_factor)

constexpr int kAdamThreads = 256;

struct AdamArguments {
    In grad;
    // Written; read too where there is no master.
    Out parameter;
    // Null for an f32 parameter.
    float* master;
    float* m;
    float* v;
    // One number; if it is not finite nothing is changed.
    const float* factor;
    long long count;
    // 1, or -1 to climb.
    float sign;
    float beta1;
    float beta2;
    // 1 - beta, as f32.
    float rest1;
    float rest2;
    float epsilon;
    // lr / (1 - beta1^t) and 1 / (1 - beta2^t), made in doubles.
    float rate;
    float correction;
    // Added to the gradient, times the parameter.
    float coupled;
    // What the parameter is first multiplied by.
    float keep;
    // Every address is a multiple of 16 bytes.
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void adam_body(const AdamArguments& a) {
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
        Pack m = load_pack_of<float>(a.m, index, count, whole);
        Pack v = load_pack_of<float>(a.v, index, count, whole);
        const Pack grad = loaded;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            const float g = __fmaf_rn(a.coupled, p.at[i], __fmul_rn(factor, grad.at[i]));
            m.at[i] = __fmaf_rn(a.beta1, m.at[i], __fmul_rn(a.rest1, g));
            v.at[i] = __fmaf_rn(a.beta2, v.at[i], __fmul_rn(__fmul_rn(a.rest2, g), g));
            const float root = sqrtf(__fmul_rn(v.at[i], a.correction));
            const float change = m.at[i] / __fadd_rn(root, a.epsilon);
            p.at[i] = __fmaf_rn(-a.rate, change, __fmul_rn(p.at[i], a.keep));
        }
        store_pack_of<float>(a.m, 0, index, m, count, whole);
        store_pack_of<float>(a.v, 0, index, v, count, whole);
        store_pack_of<float>(values, 0, index, p, count, whole);
        if (a.master != nullptr) {
            Types::store_pack(a.parameter, index, p, count, whole);
        }
    }
}

TYPED_KERNEL(adam, AdamArguments, kAdamThreads)
