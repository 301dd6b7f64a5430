// One step of the optimizers that update each element by itself, Adam apart.
//
//     g = factor * grad (+ decay * p when coupled)
//     p = p - rate * change, p first shrunk when decoupled
//
// The change of each form is below; crate::kernel::UpdateRule has the formulas in one piece.
//
// Launch: blocks of kStepThreads threads for each run, which take its packs in turn.
// Numerics: as in steps.cuh: it has the CPU's bits.
// Bytes moved for each element: gradient, states, and parameter or master are read; states, parameter and master are
// written.

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

// crate::kernel::UpdateNumbers.
struct UpdateNumbers : StepNumbers {
    // An UpdateForm.
    int form;
    float moment_rate;
};

// Its states are `first`, `second` and `third`.
using UpdateRun = StepRun<UpdateNumbers, 3>;
using UpdateArguments = StepArguments<UpdateNumbers, 3>;

// The step of an element: p, and its states in `first`, `second` and `third`.
__device__ __forceinline__ float updated(const UpdateRun& run, float p, float g, float& first, float& second,
                                         float& third) {
    const UpdateNumbers& n = run.numbers;
    switch (n.form) {
        case kSgd: {
            float change = g;
            if (run.states[0] != nullptr) {
                first = moved_average(first, n.beta1, n.rest1, g);
                change = __fmaf_rn(n.rest2, first, __fmul_rn(n.beta2, g));
            }
            return descended(n, p, change);
        }
        case kAdagrad:
            second = __fmaf_rn(g, g, second);
            return descended(n, p, g / __fadd_rn(sqrtf(second), n.epsilon));
        case kRmsProp: {
            second = square_average(second, n.beta2, n.rest2, g);
            float square = second;
            if (run.states[2] != nullptr) {
                third = __fmaf_rn(n.rest2, __fsub_rn(g, third), third);
                square = fmaxf(__fmaf_rn(-third, third, second), 0.0f);
            }
            float change = g / __fadd_rn(sqrtf(square), n.epsilon);
            if (run.states[0] != nullptr) {
                first = __fmaf_rn(n.beta1, first, change);
                change = first;
            }
            return descended(n, p, change);
        }
        case kAdadelta: {
            second = square_average(second, n.beta2, n.rest2, g);
            const float ratio = sqrtf(__fadd_rn(third, n.epsilon)) / sqrtf(__fadd_rn(second, n.epsilon));
            const float change = __fmul_rn(ratio, g);
            third = square_average(third, n.beta2, n.rest2, change);
            return descended(n, p, change);
        }
        case kAdamax:
            first = moved_average(first, n.beta1, n.rest1, g);
            second = fmaxf(__fmul_rn(n.beta2, second), __fadd_rn(fabsf(g), n.epsilon));
            return descended(n, p, first / second);
        case kNAdam: {
            first = moved_average(first, n.beta1, n.rest1, g);
            second = square_average(second, n.beta2, n.rest2, g);
            const float root = __fadd_rn(sqrtf(__fmul_rn(second, n.correction)), n.epsilon);
            return __fmaf_rn(-n.moment_rate, first / root, descended(n, p, g / root));
        }
        case kRAdam: {
            first = moved_average(first, n.beta1, n.rest1, g);
            second = square_average(second, n.beta2, n.rest2, g);
            const bool known = n.correction > 0.0f;
            const float scaled = __fmul_rn(first, n.correction) / __fadd_rn(sqrtf(second), n.epsilon);
            return descended(n, p, known ? scaled : first);
        }
        default: {
            const float mixed = moved_average(first, n.beta1, n.rest1, g);
            first = moved_average(first, n.beta2, n.rest2, g);
            const float sign = (mixed > 0.0f ? 1.0f : 0.0f) - (mixed < 0.0f ? 1.0f : 0.0f);
            return descended(n, p, sign);
        }
    }
}

template <class Types> __device__ __forceinline__ void update_body(const UpdateArguments& a) {
    each_step<Types, false>(a, [](const UpdateRun& run, float p, float g, float (&states)[3]) {
        return updated(run, p, g, states[0], states[1], states[2]);
    });
}

TYPED_KERNEL(update, UpdateArguments, kStepThreads)
