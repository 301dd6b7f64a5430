// 16-bit numbers, bit for bit as the device converts them.
#include "cuda_emulator.h"

namespace emulator {

float f32_from_f16(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const unsigned exponent = bits >> 10 & 31;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 31) {
        // Infinity; what is not a number keeps its payload and becomes quiet.
        return bits_as<float>(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0));
    }
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    return bits_as<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

std::uint16_t f16_from_f32(float value) {
    const std::uint32_t bits = bits_as<std::uint32_t>(value);
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0x7fff;
    }
    // From 65520 on the nearest is infinity.
    if (magnitude >= 0x477ff000u) {
        return static_cast<std::uint16_t>(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) {
        // Subnormal: multiples of 2^-24. The processor rounds the sum with 0.5 to them, ties to even.
        const float sum = bits_as<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (bits_as<std::uint32_t>(sum) - 0x3f000000u));
    }
    const std::uint32_t odd = magnitude >> 13 & 1;
    return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

std::uint16_t bf16_from_f32(float value) {
    const std::uint32_t bits = bits_as<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fff;
    }
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

}  // namespace emulator
