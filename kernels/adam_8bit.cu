// Adam with moments in codes of 8 bits; crate::kernel::Adam8bit has the formulas.
//
// Launch: blocks that take blocks of kStateBlock elements in turn, a thread for each element.
// Numerics: between codes as in steps.cuh: it has the CPU's bits, and so have the codes.
// Bytes moved for each element: the gradient, two codes, and the parameter or its master are read, the latter three
// written, and beside a master the parameter.

// crate::kernel::STATE_BLOCK.
constexpr int kStateBlock = 256;
constexpr int kCodes = 256;

struct Adam8bitArguments {
    In grad;
    // Written; read too where there is no master.
    Out parameter;
    // Null for an f32 parameter.
    float* master;
    // One number; if it is not finite nothing is changed.
    const float* factor;
    long long count;
    StepNumbers numbers;
    unsigned char* m;
    unsigned char* v;
    // One number for each block.
    float* m_scale;
    float* v_scale;
    // The values of the codes of each moment.
    float of_m[kCodes];
    float of_v[kCodes];
};

// The number of the bounds between codes that are below a value.
__device__ __forceinline__ unsigned char nearest_code(const float* values, float value) {
    int below = 0;
#pragma unroll
    for (int step = kCodes / 2; step > 0; step /= 2) {
        const int at = below + step - 1;
        const bool inside = at < kCodes - 1;
        const float bound = inside ? __fmul_rn(__fadd_rn(values[at], values[at + 1]), 0.5f) : BMTRAIN_INFINITY;
        below += inside && bound < value ? step : 0;
    }
    return static_cast<unsigned char>(below);
}

template <class Types>
__device__ __forceinline__ void adam_8bit_body(const Adam8bitArguments& a) {
    SHARED(float, of_m, [kCodes]);
    SHARED(float, of_v, [kCodes]);
    SHARED(float, partials, [kMostWarps]);
    const float known = *a.factor;
    if (changes_nothing(known)) {
        return;
    }
    const int lane = static_cast<int>(threadIdx.x);
    of_m[lane] = a.of_m[lane];
    of_v[lane] = a.of_v[lane];
    __syncthreads();
    const float factor = a.numbers.sign * known;
    const long long blocks = (a.count + kStateBlock - 1) / kStateBlock;
    float* const values = a.master != nullptr ? a.master : static_cast<float*>(a.parameter.data);
#pragma unroll 1
    for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {
        const long long index = block * kStateBlock + lane;
        const bool inside = index < a.count;
        float p = 0.0f, m = 0.0f, v = 0.0f;
        if (inside) {
            p = values[index];
            m = __fmul_rn(of_m[a.m[index]], a.m_scale[block]);
            v = __fmul_rn(of_v[a.v[index]], a.v_scale[block]);
            const float g = decayed_gradient(a.numbers, factor, p, Types::load(a.grad, index));
            p = adam_step(a.numbers, p, g, m, v);
        }
        // Their barriers come after every thread has read the old scales.
        const float m_scale = fmaxf(block_max(fabsf(m), partials), 0.0f);
        const float v_scale = fmaxf(block_max(fabsf(v), partials), 0.0f);
        if (inside) {
            a.m[index] = nearest_code(of_m, m_scale > 0.0f ? m / m_scale : 0.0f);
            a.v[index] = nearest_code(of_v, v_scale > 0.0f ? v / v_scale : 0.0f);
            values[index] = p;
            if (a.master != nullptr) {
                Types::store(a.parameter, index, p);
            }
        }
        if (lane == 0) {
            a.m_scale[block] = m_scale;
            a.v_scale[block] = v_scale;
        }
    }
}

TYPED_KERNEL(adam_8bit, Adam8bitArguments, kStateBlock)
