// Random numbers by address: dropout, and initial values.
//
//     dropout      y = x * factor of the element, 0 or the scale
//     fill_random  element e is from block e / 4 of the generator; uniform, normal (Box and Muller, 1958) or normal
//                  cut at two standard deviations
//
// Launch: blocks that take packs (dropout) or elements (fill_random) in turn, kRandomThreads threads.
// Numerics: masks and values have the bits of the CPU backend. Values are made in doubles by additions,
// multiplications, divisions and square roots alone, each rounded by itself, with one rounding to f32 at the end; these
// rules are frozen. Bytes moved for each element: dropout reads x and writes y, fill_random writes.

constexpr int kRandomThreads = 256;

struct DropoutArguments {
    // Absent where `y` is masked in place.
    In x;
    Out y;
    Dropout dropout;
    long long rows;
    // Elements of a row; without gaps between rows all is one row.
    long long columns;
    // Packs of a row, the last one perhaps not whole.
    long long packs;
    // Every address is a multiple of 16 bytes and, if there is more than one row, every row of 8 elements.
    int whole;
    int unused;
};

template <class Types>
__device__ __forceinline__ void dropout_body(const DropoutArguments& a) {
    const In x = a.x.data != nullptr ? a.x : In{a.y.data, a.y.type, 0};
    const In old = {a.y.data, a.y.type, 0};
    const Out y = {a.y.data, a.y.type, 0};
    const long long all = a.rows * a.packs;
#pragma unroll 1
    for (long long item = global_thread(); item < all; item += global_threads()) {
        const long long row = a.rows == 1 ? 0 : item / a.packs;
        const long long column = (item - row * a.packs) * kPack;
        const int count = a.columns - column >= kPack ? kPack : static_cast<int>(a.columns - column);
        const bool whole = a.whole != 0 && count == kPack;
        const long long index = row * a.columns + column;
        Pack pack = Types::load_pack(x, index, count, whole);
        const Pack factors = dropout_factors<true>(a.dropout, dropout_element(a.dropout, row, column));
        if (a.y.add != 0) {
            const Pack before = Types::load_pack(old, index, count, whole);
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                pack.at[i] = __fmaf_rn(pack.at[i], factors.at[i], before.at[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kPack; ++i) {
                pack.at[i] *= factors.at[i];
            }
        }
        Types::store_pack(y, index, pack, count, whole);
    }
}

TYPED_KERNEL(dropout, DropoutArguments, kRandomThreads, 4)

// ---- initial values

enum { kNormal = 0, kUniform = 1, kTruncated = 2 };

struct FillRandomArguments {
    Out out;
    RoundKeys keys;
    // Index of the first element.
    unsigned long long offset;
    long long count;
    // Mean and deviation, or the two bounds.
    float first;
    float second;
    int distribution;
    int unused;
};

struct Normals {
    double cosine;
    double sine;
};

// a * b + c, rounded twice.
__device__ __forceinline__ double times_plus(double a, double b, double c) { return __dadd_rn(__dmul_rn(a, b), c); }

// 32 random bits as a number in (0, 1), exact.
__device__ __forceinline__ double open_unit(unsigned word) {
    return __dmul_rn(__dadd_rn(static_cast<double>(word), 0.5), 1.0 / 4294967296.0);
}

// Natural logarithm of a number in (0, 1) that is not subnormal: the series of atanh around a mantissa in [sqrt(1/2),
// sqrt(2)).
__device__ __forceinline__ double frozen_logarithm(double x) {
    constexpr long long kHalfRoot = 0x3fe6a09e667f3bcdll;
    const unsigned long long bits =
        static_cast<unsigned long long>(__double_as_longlong(x)) - static_cast<unsigned long long>(kHalfRoot);
    // The offset carries into the exponent where the mantissa is above; the exponent is negative or zero.
    const int exponent = static_cast<int>(static_cast<long long>(bits) >> 52);
    const double mantissa = __longlong_as_double(static_cast<long long>(bits & 0x000fffffffffffffull) + kHalfRoot);
    const double s = __ddiv_rn(__dadd_rn(mantissa, -1.0), __dadd_rn(mantissa, 1.0));
    const double z = __dmul_rn(s, s);
    double p = 1.0 / 19.0;
#pragma unroll
    for (int divisor = 17; divisor >= 1; divisor -= 2) {
        p = times_plus(p, z, 1.0 / divisor);
    }
    const double whole = __dmul_rn(static_cast<double>(exponent), 0.69314718055994530941723212145818);
    return __dadd_rn(whole, __dmul_rn(__dmul_rn(2.0, s), p));
}

// Cosine and sine of `x` turns, `x` in (0, 1): Taylor series around the nearest quarter.
__device__ __forceinline__ Normals frozen_turn(double x) {
    // Adding it rounds to an integer, which is then in the low bits.
    constexpr double kRounder = 6755399441055744.0;
    const double quarters = __dadd_rn(__dmul_rn(4.0, x), kRounder);
    const double angle =
        __dmul_rn(__dsub_rn(__dmul_rn(4.0, x), __dsub_rn(quarters, kRounder)), 1.57079632679489661923132169163975);
    const double z = __dmul_rn(angle, angle);
    double cosine = 1.0, sine = 1.0;
#pragma unroll
    for (int n = 15; n >= 1; n -= 2) {
        cosine = __dsub_rn(1.0, __dmul_rn(__dmul_rn(z, cosine), 1.0 / (n * (n + 1.0))));
        sine = __dsub_rn(1.0, __dmul_rn(__dmul_rn(z, sine), 1.0 / ((n + 1.0) * (n + 2.0))));
    }
    sine = __dmul_rn(sine, angle);
    const int quadrant = static_cast<int>(__double_as_longlong(quarters) & 3);
    const double a = quadrant % 2 == 0 ? cosine : sine;
    const double b = quadrant % 2 == 0 ? sine : cosine;
    return {quadrant == 1 || quadrant == 2 ? -a : a, quadrant >= 2 ? -b : b};
}

// Two independent standard normals.
__device__ __forceinline__ Normals normal_pair(unsigned first, unsigned second) {
    const double radius = __dsqrt_rn(__dmul_rn(-2.0, frozen_logarithm(open_unit(first))));
    const Normals turn = frozen_turn(open_unit(second));
    return {__dmul_rn(radius, turn.cosine), __dmul_rn(radius, turn.sine)};
}

// A block of the generator; an `attempt` beyond the first is for values that were cut.
__device__ __forceinline__ Words random_block(const FillRandomArguments& a, unsigned long long block,
                                              unsigned attempt) {
    return philox(a.keys, static_cast<unsigned>(block), static_cast<unsigned>(block >> 32), 0u, attempt);
}

// Element `index` of a block, a standard normal; if cut, the first within two deviations among the attempts.
__device__ __forceinline__ double normal_of(const FillRandomArguments& a, unsigned long long block, int index) {
    constexpr double kCut = 2.0;
    // After the last attempt, with a probability of 1e-86, the value is the mean.
    constexpr unsigned kAttempts = 64;
#pragma unroll 1
    for (unsigned attempt = 0; attempt < kAttempts; ++attempt) {
        const Words words = random_block(a, block, attempt);
        const Normals pair = index < 2 ? normal_pair(words.at[0], words.at[1]) : normal_pair(words.at[2], words.at[3]);
        const double normal = index % 2 == 0 ? pair.cosine : pair.sine;
        if (a.distribution != kTruncated || fabs(normal) <= kCut) {
            return normal;
        }
    }
    return 0.0;
}

__device__ __forceinline__ unsigned word_of(const Words& words, int word) {
    return word < 2 ? (word == 0 ? words.at[0] : words.at[1]) : (word == 2 ? words.at[2] : words.at[3]);
}

// One element for each thread: weights are initialized once in the life of a model, and neighbours write neighbouring
// places.
extern "C" __global__ void __launch_bounds__(kRandomThreads) fill_random(const FillRandomArguments a) {
    const double first = a.first, second = a.second;
#pragma unroll 1
    for (long long i = global_thread(); i < a.count; i += global_threads()) {
        const unsigned long long element = a.offset + static_cast<unsigned long long>(i);
        const int word = static_cast<int>(element % 4);
        double value;
        if (a.distribution == kUniform) {
            const double unit = open_unit(word_of(random_block(a, element / 4, 0), word));
            value = __dadd_rn(first, __dmul_rn(__dsub_rn(second, first), unit));
        } else {
            value = __dadd_rn(first, __dmul_rn(second, normal_of(a, element / 4, word)));
        }
        Mixed::store(a.out, i, static_cast<float>(value));
    }
}
BMTRAIN_KERNEL(fill_random)
