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

// A step whose factor is not finite changes nothing.
__device__ __forceinline__ bool changes_nothing(float factor) { return !(fabsf(factor) < BMTRAIN_INFINITY); }

// Runs of a launch; crate::cuda::runs::STEP_RUNS.
constexpr int kStepRuns = 32;

// Elements that share the numbers of a step.
template <class Numbers, int kStates> struct StepRun {
    const void* grad;
    // Written; read too where there is no master.
    void* parameter;
    // Null for an f32 parameter.
    float* master;
    // A state is null where the form of the step has none.
    float* states[kStates];
    long long count;
    int first_block;
    int blocks;
    // Every address is a multiple of 16 bytes.
    int whole;
    Numbers numbers;
    int unused;
};

// What a step works on.
template <class Numbers, int kStates> struct StepArguments {
    // One number; if it is not finite nothing is changed.
    const float* factor;
    int grad_type;
    int parameter_type;
    int count;
    int unused;
    StepRun<Numbers, kStates> runs[kStepRuns];
};

// Threads of a block of each_step.
constexpr int kStepThreads = 256;

// The blocks of a run take its packs in turn: `step(run, p, g, states)` changes the states of an element and
// returns its new value. `kAll`: every state is there.
template <class Types, bool kAll, class Numbers, int kStates, class Step>
__device__ __forceinline__ void each_step(const StepArguments<Numbers, kStates>& a, Step step) {
    const float known = *a.factor;
    if (changes_nothing(known)) {
        return;
    }
    const StepRun<Numbers, kStates>& run = own_run(a.runs, a.count);
    const Numbers& numbers = run.numbers;
    const float factor = numbers.sign * known;
    const In grads = {run.grad, a.grad_type, 0};
    const Out parameter = {run.parameter, a.parameter_type, 0};
    // What is updated: the master, or a parameter without one, which is f32.
    float* const values = run.master != nullptr ? run.master : static_cast<float*>(run.parameter);
    const long long packs = (run.count + kPack - 1) / kPack;
    const long long stride = static_cast<long long>(run.blocks) * kStepThreads;
    const long long first = static_cast<long long>(blockIdx.x - run.first_block) * kStepThreads + threadIdx.x;
#pragma unroll 1
    for (long long pack = first; pack < packs; pack += stride) {
        const long long index = pack * kPack;
        const int count = run.count - index >= kPack ? kPack : static_cast<int>(run.count - index);
        const bool is_whole = run.whole != 0 && count == kPack;
        // All on their way before the first is used.
        const auto loaded = Types::load_pack(grads, index, count, is_whole);
        Pack p = load_pack_of<float>(values, index, count, is_whole);
        Pack of[kStates] = {};
#pragma unroll
        for (int state = 0; state < kStates; ++state) {
            if (kAll || run.states[state] != nullptr) {
                of[state] = load_pack_of<float>(run.states[state], index, count, is_whole);
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
            p.at[i] = step(run, p.at[i], decayed_gradient(numbers, factor, p.at[i], grad.at[i]), at);
#pragma unroll
            for (int state = 0; state < kStates; ++state) {
                of[state].at[i] = at[state];
            }
        }
#pragma unroll
        for (int state = 0; state < kStates; ++state) {
            if (kAll || run.states[state] != nullptr) {
                store_pack_of<float>(run.states[state], 0, index, of[state], count, is_whole);
            }
        }
        store_pack_of<float>(values, 0, index, p, count, is_whole);
        if (run.master != nullptr) {
            Types::store_pack(parameter, index, p, count, is_whole);
        }
    }
}
