// Adam with moments in codes of 8 bits; crate::kernel::Adam8bit has the formulas and the values of the codes.
//
// Launch: blocks that take blocks of kStateBlock elements in turn, a thread for each element.
// Numerics: between codes every operation is one IEEE rounding, fused exactly where the CPU backend's is: it has the
// CPU's bits, and so have the codes. (On a processor with fused multiply-add; one without rounds once more in each such
// step.)
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
    unsigned char* m;
    unsigned char* v;
    // One number for each block.
    float* m_scale;
    float* v_scale;
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
};

// The middle of part `k` of 2^bits equal parts of 0.1 to 1, times 10^(power - 6).
__device__ __forceinline__ float spaced(int power, int bits, int k) {
    double ten = 1.0;
    switch (power) {
        case 0: ten = 1e-6; break;
        case 1: ten = 1e-5; break;
        case 2: ten = 1e-4; break;
        case 3: ten = 1e-3; break;
        case 4: ten = 1e-2; break;
        case 5: ten = 1e-1; break;
        default: break;
    }
    // Exact: the divisor is a power of two.
    const double share = static_cast<double>(2 * k + 1) / static_cast<double>(2 << bits);
    return static_cast<float>(__dmul_rn(ten, __dadd_rn(0.1, __dmul_rn(0.9, share))));
}

__device__ __forceinline__ int whole_log2(int number) {
    int bits = 0;
    while (number >> (bits + 1) != 0) {
        ++bits;
    }
    return bits;
}

// The value of a code of the first moment.
__device__ __forceinline__ float signed_code(int code) {
    if (code == 127) {
        return 0.0f;
    }
    if (code == 255) {
        return 1.0f;
    }
    // 1, 2, 4, ... codes for each power.
    const int number = code > 127 ? code - 127 : 127 - code;
    const int bits = whole_log2(number);
    const float value = spaced(bits, bits, number - (1 << bits));
    return code > 127 ? value : -value;
}

// The same of the second moment.
__device__ __forceinline__ float unsigned_code(int code) {
    if (code == 0) {
        return 0.0f;
    }
    if (code == 255) {
        return 1.0f;
    }
    // 2, 4, 8, ... codes for each power.
    const int bits = whole_log2(code + 1);
    return spaced(bits - 1, bits, code + 1 - (1 << bits));
}

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
    if (!(fabsf(*a.factor) < BMTRAIN_INFINITY)) {
        return;
    }
    const int lane = static_cast<int>(threadIdx.x);
    of_m[lane] = signed_code(lane);
    of_v[lane] = unsigned_code(lane);
    __syncthreads();
    const float factor = a.sign * *a.factor;
    const long long blocks = (a.count + kStateBlock - 1) / kStateBlock;
    // Without a master the parameter is f32.
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
            const float g = __fmaf_rn(a.coupled, p, __fmul_rn(factor, Types::load(a.grad, index)));
            m = __fmaf_rn(a.beta1, m, __fmul_rn(a.rest1, g));
            v = __fmaf_rn(a.beta2, v, __fmul_rn(__fmul_rn(a.rest2, g), g));
            const float root = sqrtf(__fmul_rn(v, a.correction));
            const float change = m / __fadd_rn(root, a.epsilon);
            p = __fmaf_rn(-a.rate, change, __fmul_rn(p, a.keep));
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
