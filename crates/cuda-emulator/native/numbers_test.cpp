// The conversions of 16-bit numbers: all halves, and of f32 a dense sample with every exponent, all ties and their
// neighbours. Prints what failed; the exit status is the number of failures.
#include "cuda_emulator.h"

#include <cmath>
#include <cstdio>

namespace {

int failures = 0;

void expect(bool holds, const char* claim, std::uint32_t bits) {
    if (!holds && ++failures <= 20) {
        std::printf("FAILED: %s (bits %08x)\n", claim, bits);
    }
}

bool is_nan(std::uint32_t bits) {
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

// A type of 16 bits by its exponent's bits.
struct Format {
    int exponent_bits;
    std::uint16_t (*narrow)(float);

    int mantissa_bits() const { return 15 - exponent_bits; }
    std::uint16_t infinity() const { return static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits()); }

    // The value of bits without a sign; infinity as the next power of two, which rounding uses.
    double value(std::uint32_t bits) const {
        const int exponent = static_cast<int>(bits >> mantissa_bits());
        const auto mantissa = static_cast<double>(bits & ((1u << mantissa_bits()) - 1));
        const int bias = (1 << (exponent_bits - 1)) - 1;
        const double one = std::ldexp(1.0, -mantissa_bits());
        return exponent == 0 ? std::ldexp(mantissa * one, 1 - bias) : std::ldexp(1.0 + mantissa * one, exponent - bias);
    }

    // Whether a number was rounded to the nearest, of two to the even one.
    void check(std::uint32_t bits) const {
        const float value_in = emulator::bits_as<float>(bits);
        const std::uint16_t got = narrow(value_in);
        if (is_nan(bits)) {
            expect(got == 0x7fff, "what is not a number becomes the type's own", bits);
            return;
        }
        expect(got >> 15 == bits >> 31, "the sign stays", bits);
        const std::uint16_t magnitude = got & 0x7fffu;
        expect(magnitude <= infinity(), "a number stays one", bits);
        const double exact = std::fabs(static_cast<double>(value_in));
        if (std::isinf(exact)) {
            expect(magnitude == infinity(), "infinity stays", bits);
            return;
        }
        const double distance = std::fabs(exact - value(magnitude));
        const double below = magnitude == 0 ? HUGE_VAL : std::fabs(exact - value(magnitude - 1u));
        const double above = magnitude == infinity() ? HUGE_VAL : std::fabs(exact - value(magnitude + 1u));
        // Beyond infinity nothing is nearer.
        const bool beyond = magnitude == infinity() && exact >= value(magnitude);
        const bool nearest = beyond || (distance <= below && distance <= above);
        const bool even = beyond || (distance < below && distance < above) || magnitude % 2 == 0;
        expect(nearest && even, "to the nearest, ties to even", bits);
    }
};

const Format half = {5, emulator::f16_from_f32};
const Format bfloat = {8, emulator::bf16_from_f32};

void check_around(const Format& format, std::uint32_t bits) {
    for (std::uint32_t step : {~0u, 0u, 1u}) {
        format.check(bits + step);
        format.check((bits + step) ^ 0x80000000u);
    }
}

void check_halves() {
    for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
        const float wide = emulator::f32_from_f16(static_cast<std::uint16_t>(bits));
        const std::uint32_t magnitude = bits & 0x7fffu;
        if (magnitude > 0x7c00u) {
            const std::uint32_t expected = (bits & 0x8000u) << 16 | 0x7fc00000u | (bits & 0x3ffu) << 13;
            expect(emulator::bits_as<std::uint32_t>(wide) == expected, "a payload stays, and is quiet", bits);
            continue;
        }
        const double expected = magnitude == 0x7c00u ? HUGE_VAL : half.value(magnitude);
        expect(std::fabs(static_cast<double>(wide)) == expected && std::signbit(wide) == (bits >> 15 != 0),
               "widening is exact", bits);
        expect(emulator::f16_from_f32(wide) == bits, "there and back", bits);
        const std::uint32_t wide_bits = bits << 16;
        if (!is_nan(wide_bits)) {
            expect(emulator::bf16_from_f32(emulator::bits_as<float>(wide_bits)) == bits, "a bfloat16 there and back",
                   bits);
        }
#if defined(__FLT16_MANT_DIG__)
        _Float16 native;
        std::memcpy(&native, &bits, sizeof native);
        expect(static_cast<float>(native) == wide, "as the compiler widens", bits);
#endif
    }
}

void check_sample() {
    for (std::uint32_t i = 0; i < 1u << 24; ++i) {
        // Every exponent and the upper bits of every mantissa; the lower ones scattered.
        const std::uint32_t bits = i << 8 | (i * 0x9e3779b1u) >> 24;
        half.check(bits);
        bfloat.check(bits);
#if defined(__FLT16_MANT_DIG__)
        const float value = emulator::bits_as<float>(bits);
        if (!is_nan(bits)) {
            const auto native = static_cast<_Float16>(value);
            std::uint16_t expected;
            std::memcpy(&expected, &native, sizeof expected);
            expect(emulator::f16_from_f32(value) == expected, "as the compiler narrows", bits);
        }
#endif
    }
}

void check_ties() {
    for (std::uint32_t magnitude = 0; magnitude < half.infinity(); ++magnitude) {
        const double tie = (half.value(magnitude) + half.value(magnitude + 1)) / 2;
        check_around(half, emulator::bits_as<std::uint32_t>(static_cast<float>(tie)));
    }
    for (std::uint32_t magnitude = 0; magnitude < bfloat.infinity(); ++magnitude) {
        check_around(bfloat, magnitude << 16 | 0x8000u);
    }
    for (std::uint32_t payload : {1u, 2u, 0x1000u, 0x1fffu, 0x2000u, 0x8000u, 0xffffu, 0x3fffffu, 0x400000u,
        0x7fffffu}) {
        for (std::uint32_t sign : {0u, 0x80000000u}) {
            half.check(sign | 0x7f800000u | payload);
            bfloat.check(sign | 0x7f800000u | payload);
        }
    }
}

}  // namespace

int main() {
    check_halves();
    check_sample();
    check_ties();
    return failures > 255 ? 255 : failures;
}
