// Sums of squares whose bits do not depend on the order of their terms: the fixed-point number of `crate::exact` of the
// core.
//
// A sum is kSumWords integers: limbs of 32 bits kept in 64, so that carries can wait, then how many terms were infinite
// and how many were not a number. Sums are added word by word.

constexpr int kLimbs = 20;
constexpr int kInfinities = kLimbs;
constexpr int kNans = kLimbs + 1;
constexpr int kSumWords = kLimbs + 2;
constexpr int kLimbBits = 32;
// The lowest bit weighs 2 to this power: the square of the smallest f32.
constexpr int kLowest = -298;

// Elements whose squares are summed in floating point: `NORM_CHUNK`.
constexpr int kNormChunk = 128;

// Where a term goes and what `part`, 0 to 2, of three neighbouring words gets of it.
__device__ __forceinline__ int sum_place(double term, int part, unsigned long long& share) {
    const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(term));
    const int exponent = static_cast<int>(bits >> 52) & 0x7ff;
    const unsigned long long fraction = bits & 0xfffffffffffffull;
    if (exponent == 0x7ff) {
        share = part == 0 ? 1 : 0;
        return fraction != 0 ? kNans : kInfinities;
    }
    // Below every square of an f32 there is zero alone.
    unsigned long long mantissa = exponent == 0 ? 0 : fraction | 1ull << 52;
    int shift = exponent - 1023 - 52 - kLowest;
    if (shift < 0) {
        mantissa >>= min(-shift, 63);
        shift = 0;
    }
    const int offset = shift % kLimbBits;
    // The mantissa has 53 bits: at most three limbs, and nothing in the third without an offset.
    share = part == 0   ? (mantissa << offset) & 0xffffffffull
            : part == 1 ? (mantissa >> (kLimbBits - offset)) & 0xffffffffull
                        : mantissa >> kLimbBits >> (kLimbBits - offset);
    return shift / kLimbBits + part;
}

// Moves what is above 32 bits to the next limb.
__device__ __forceinline__ void sum_carry(long long* words) {
    long long carry = 0;
    for (int limb = 0; limb < kLimbs - 1; ++limb) {
        const long long word = words[limb] + carry;
        carry = word >> kLimbBits;
        words[limb] = word & 0xffffffffll;
    }
    words[kLimbs - 1] += carry;
}

// 2 to a power between -1022 and 1023.
__device__ __forceinline__ double power_of_two(int exponent) {
    return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

// A carried sum, rounded to nearest: infinite or not a number as soon as one term was.
__device__ __forceinline__ double sum_to_double(const long long* words) {
    if (words[kNans] > 0) {
        return __longlong_as_double(0x7ff8000000000000ll);
    }
    if (words[kInfinities] > 0) {
        return __longlong_as_double(0x7ff0000000000000ll);
    }
    int top = kLimbs - 1;
    while (top >= 0 && words[top] == 0) {
        --top;
    }
    if (top < 0) {
        return 0.0;
    }
    // Three limbs from the highest that is not zero hold at least 65 bits: what is below cannot be seen.
    const int lowest = top < 2 ? 0 : top - 2;
    const auto limb = [&](int index) { return index <= top ? static_cast<unsigned long long>(words[index]) : 0ull; };
    unsigned long long high = limb(lowest + 2);
    unsigned long long low = limb(lowest + 1) << kLimbBits | limb(lowest);
    int weight = kLowest + kLimbBits * lowest;
    // The highest 64 bits, with a bit for whether anything is below: enough to round once.
    if (high != 0) {
        int spare = 0;
        while ((high << spare >> 63) == 0) {
            ++spare;
        }
        const unsigned long long below = low << spare;
        high = spare == 0 ? high : high << spare | low >> (64 - spare);
        low = high | (below != 0 ? 1ull : 0ull);
        weight += 64 - spare;
    }
    // The weight is far above the smallest double's: neither product rounds.
    return static_cast<double>(low) * power_of_two(weight);
}
