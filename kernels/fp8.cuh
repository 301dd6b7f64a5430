// Numbers of 8 bits, E4M3 and E5M2 of the OCP specification: to nearest, ties to even; what is beyond the range is its
// end, and NaN is NaN.

enum { kE4M3 = 0, kE5M2 = 1 };

struct Fp8Format {
    int fraction;
    // The exponent of the smallest number with a full fraction.
    int least;
    // The largest number, and its code.
    float most;
    unsigned most_code;
};

__device__ __forceinline__ Fp8Format fp8_format(int format) {
    return format == kE4M3 ? Fp8Format{3, -6, 448.0f, 0x7eu} : Fp8Format{2, -14, 57344.0f, 0x7bu};
}

__device__ __forceinline__ float fp8_power(int exponent) {
    return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
}

__device__ __forceinline__ float fp8_scale(const Fp8Format& format, unsigned largest) {
    // Its reciprocal has a full fraction.
    const float most = fp8_power(126);
    if (largest == 0) {
        return 1.0f;
    }
    const float scale = format.most / __uint_as_float(largest);
    return scale > most ? most : scale;
}

// In whole numbers, for devices without the instruction, and for emulation.
__device__ __forceinline__ unsigned fp8_code(const Fp8Format& format, float value) {
    const unsigned bits = __float_as_uint(value) & 0x7fffffffu;
    const unsigned sign = __float_as_uint(value) >> 24 & 0x80u;
    if (bits > 0x7f800000u) {
        return sign | 0x7fu;
    }
    const float magnitude = __uint_as_float(bits);
    if (magnitude >= format.most) {
        return sign | format.most_code;
    }
    if (static_cast<int>(bits >> 23) - 127 < format.least) {
        // A multiple of the least distance: the sum has that as its own.
        const float shift = fp8_power(23 + format.least - format.fraction);
        return sign | (__float_as_uint(magnitude + shift) - __float_as_uint(shift));
    }
    const int dropped = 23 - format.fraction;
    const unsigned rounded = bits + ((1u << (dropped - 1)) - 1u) + (bits >> dropped & 1u);
    const auto bias = static_cast<unsigned>(127 + format.least - 1);
    return sign | ((rounded >> dropped) - (bias << format.fraction));
}

__device__ __forceinline__ float fp8_value(const Fp8Format& format, unsigned code) {
    const unsigned magnitude = code & 0x7fu;
    if (magnitude > format.most_code) {
        return __uint_as_float(0x7fc00000u);
    }
    const int exponent = static_cast<int>(magnitude >> format.fraction);
    const auto part = static_cast<float>(magnitude & ((1u << format.fraction) - 1u));
    const float share = part / static_cast<float>(1 << format.fraction);
    const float value = exponent == 0 ? share * fp8_power(format.least)
                                      : (1.0f + share) * fp8_power(exponent - 1 + format.least);
    return (code & 0x80u) != 0 ? -value : value;
}

// The codes of two numbers, the first in the lower byte.
__device__ __forceinline__ unsigned fp8_pair(int format, float low, float high) {
#if !defined(BMTRAIN_EMULATED) && __CUDA_ARCH__ >= 890
    unsigned short pair;
    if (format == kE4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    }
    return pair;
#else
    const Fp8Format how = fp8_format(format);
    return fp8_code(how, low) | fp8_code(how, high) << 8;
#endif
}
