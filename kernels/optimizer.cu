// The clipping factor of a norm, and Adam.
//
//     norm = root / scale,  factor = min(1, max_norm / (norm + 1e-6)) / scale
//
//     g = factor * grad (+ decay * p when coupled)
//     m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//     p = p - rate * m / (sqrt(v * correction) + epsilon), p first shrunk when decoupled
//
// Launch: clip_factor one thread; adam blocks of kStepThreads threads for each run, which take its packs in turn.
// Numerics: as in steps.cuh: both kernels have the CPU's bits.
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

using AdamArguments = StepArguments<StepNumbers, 2>;

template <class Types> __device__ __forceinline__ void adam_body(const AdamArguments& a) {
    each_step<Types, true>(a, [](const StepRun<StepNumbers, 2>& run, float p, float g, float (&states)[2]) {
        return adam_step(run.numbers, p, g, states[0], states[1]);
    });
}

TYPED_KERNEL(adam, AdamArguments, kStepThreads)
