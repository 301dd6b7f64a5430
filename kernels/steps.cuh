// What the steps of optimizers have in common: averages, descent, Adam, and the loop over packs.
//
// Numerics: every operation is one IEEE rounding, fused exactly where the CPU backend's is: they have the CPU's bits.
// (On a processor with fused multiply-add; one without rounds once more in each such step.)

// An average that keeps `beta` of itself.
__device__ __forceinline__ float moved_average(float average, float beta, float rest, float x) {
    return __fmaf_rn(beta, average, __fmul_rn(rest, x));
}

// The same of the squares.
__device__ __forceinline__ float square_average(float average, float beta, float rest, float x) {
    return __fmaf_rn(beta, average, __fmul_rn(__fmul_rn(rest, x), x));
}

// What all elements of a step share, made by the host: crate::kernel::AdamNumbers, whose documentation has the meaning
// of each number, and the beginning of crate::kernel::UpdateNumbers.
struct StepNumbers {
    // 1, or -1 to climb.
    float sign;
    float beta1;
    float rest1;
    float beta2;
    float rest2;
    float epsilon;
    float rate;
    float correction;
    // Added to the gradient, times the parameter.
    float coupled;
    // What the parameter is first multiplied by.
    float keep;
};

// p after a change.
__device__ __forceinline__ float descended(const StepNumbers& numbers, float p, float change) {
    return __fmaf_rn(-numbers.rate, change, __fmul_rn(p, numbers.keep));
}

// The gradient of a step, times `factor`, with coupled weight decay.
__device__ __forceinline__ float decayed_gradient(const StepNumbers& numbers, float factor, float p, float grad) {
    return __fmaf_rn(numbers.coupled, p, __fmul_rn(factor, grad));
}

// p after a step of Adam, and its moments; `g` is the gradient.
__device__ __forceinline__ float adam_step(const StepNumbers& numbers, float p, float g, float& m, float& v) {
    m = moved_average(m, numbers.beta1, numbers.rest1, g);
    v = square_average(v, numbers.beta2, numbers.rest2, g);
    const float root = sqrtf(__fmul_rn(v, numbers.correction));
    return descended(numbers, p, m / __fadd_rn(root, numbers.epsilon));
}

// What a step works on.
struct StepOperands {
    In grad;
    // Written; read too where there is no master.
    Out parameter;
    // Null for an f32 parameter.
    float* master;
    // One number; if it is not finite nothing is changed.
    const float* factor;
    long long count;
};

__device__ __forceinline__ bool changes_nothing(const StepOperands& a) {
    return !(fabsf(*a.factor) < BMTRAIN_INFINITY);
}

// What is updated: the master, or a parameter without one, which is f32.
__device__ __forceinline__ float* values_of(const StepOperands& a) {
    return a.master != nullptr ? a.master : static_cast<float*>(a.parameter.data);
}

// Threads of a block of each_step.
constexpr int kStepThreads = 256;

// Takes the packs of a range in turn: `step(p, g, states)` changes the states of an element and returns its new value.
// A state is null where there is none, unless `kAll`; `whole`: every address is a multiple of 16 bytes.
template <class Types, bool kAll, int kStates, class Step>
__device__ __forceinline__ void each_step(const StepOperands& a, const StepNumbers& numbers, int whole,
                                          float* const (&states)[kStates], Step step) {
    if (changes_nothing(a)) {
        return;
    }
    const float factor = numbers.sign * *a.factor;
    const long long packs = (a.count + kPack - 1) / kPack;
    float* const values = values_of(a);
#pragma unroll 1
    for (long long pack = global_thread(); pack < packs; pack += global_threads()) {
        const long long index = pack * kPack;
        const int count = a.count - index >= kPack ? kPack : static_cast<int>(a.count - index);
        const bool is_whole = whole != 0 && count == kPack;
        // All on their way before the first is used.
        const auto loaded = Types::load_pack(a.grad, index, count, is_whole);
        Pack p = load_pack_of<float>(values, index, count, is_whole);
        Pack of[kStates] = {};
#pragma unroll
        for (int state = 0; state < kStates; ++state) {
            if (kAll || states[state] != nullptr) {
                of[state] = load_pack_of<float>(states[state], index, count, is_whole);
            }
        }
        const Pack grad = loaded;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            float at[kStates];
#pragma unroll
            for (int state = 0; state < kStates; ++state) {
                at[state] = of[state].at[i];
            }
            p.at[i] = step(p.at[i], decayed_gradient(numbers, factor, p.at[i], grad.at[i]), at);
#pragma unroll
            for (int state = 0; state < kStates; ++state) {
                of[state].at[i] = at[state];
            }
        }
#pragma unroll
        for (int state = 0; state < kStates; ++state) {
            if (kAll || states[state] != nullptr) {
                store_pack_of<float>(states[state], 0, index, of[state], count, is_whole);
            }
        }
        store_pack_of<float>(values, 0, index, p, count, is_whole);
        if (a.master != nullptr) {
            Types::store_pack(a.parameter, index, p, count, is_whole);
        }
    }
}
