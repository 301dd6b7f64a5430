// What the emulated tensor core claims: every position of every fragment is where the instructions put it, and copies
// are visible after a wait and not before. Appended to the sources of the kernels, with mma.cuh last.
// Prints what failed; the exit status is the number of failures.
#include <cstdio>

namespace {

constexpr unsigned seeds = 4;

int failures = 0;

void expect(bool holds, const char* claim, const std::string& message = {}) {
    if (!holds) {
        std::printf("FAILED: %s %s\n", claim, message.c_str());
        failures += 1;
    }
}

// Small whole numbers, so that every sum is exact; no two rows or columns are alike.
float left_at(int row, int k) { return static_cast<float>((row * 7 + k * 3 + row * k) % 13 - 6); }
float right_at(int k, int column) { return static_cast<float>((k * 5 + column * 11 + k * column) % 11 - 5); }

// One product of 16 x 16 with 16 x 8.
struct Product {
    float result[16][8];
};

Product plain_product() {
    Product product = {};
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
            product.result[row][column] = static_cast<float>(row - column);
            for (int k = 0; k < 16; ++k) {
                product.result[row][column] += left_at(row, k) * right_at(k, column);
            }
        }
    }
    return product;
}

// Where the lanes of every warp put their results.
Product results[2];

template <class Number>
unsigned pair_of(float low, float high) { return join_pair<Number>(low, high); }

// c starts as row - column, so that its positions are tested too.
void start_result(float (&c)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i) {
        c[i] = static_cast<float>(g + i / 2 * 8 - (2 * t + i % 2));
    }
}

void put_result(const float (&c)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i) {
        results[threadIdx.x / 32].result[g + i / 2 * 8][2 * t + i % 2] = c[i];
    }
}

// Fragments filled by hand, after the description in mma.cuh.
template <class Number>
void multiply_by_hand() {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const auto left = [](int row, int k) { return pair_of<Number>(left_at(row, k), left_at(row, k + 1)); };
    const auto right = [](int k, int column) { return pair_of<Number>(right_at(k, column), right_at(k + 1, column)); };
    const unsigned a[4] = {left(g, 2 * t), left(g + 8, 2 * t), left(g, 2 * t + 8), left(g + 8, 2 * t + 8)};
    float c[4];
    start_result(c);
    mma<Number>(c, a, right(2 * t, g), right(2 * t + 8, g));
    put_result(c);
}

// Fragments loaded from matrices in shared memory; the right one from rows of k, turned, or from rows of columns.
template <class Number, bool Turned>
void multiply_loaded() {
    constexpr int row = 24;
    SHARED(Number, left, [16 * row]);
    SHARED(Number, right, [16 * row]);
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        left[i / 16 * row + i % 16] = narrow<Number>(left_at(i / 16, i % 16));
        const int k = Turned ? i / 16 : i % 16, column = Turned ? i % 16 : i / 16;
        right[i / 16 * row + i % 16] = narrow<Number>(column < 8 ? right_at(k, column) : 0.0f);
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    unsigned a[4], b[4];
    load_matrices(a, left + lane % 16 * row + lane / 16 * 8);
    if (Turned) {
        load_matrices_turned(b, right + lane % 16 * row + lane / 16 * 8);
    } else {
        load_matrices(b, right + (lane / 16 * 8 + lane % 8) * row + lane / 8 % 2 * 8);
    }
    float c[4], rest[4] = {};
    start_result(c);
    mma<Number>(c, a, b[0], b[1]);
    mma<Number>(rest, a, b[2], b[3]);
    put_result(c);
    for (float value : rest) {
        expect(value == 0.0f, "the second eight columns are zero");
    }
}

void check_product(const char* claim, void (*kernel)()) {
    const Product right = plain_product();
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        std::memset(results, 0xFF, sizeof results);
        const std::string message = emulator::run(kernel, {{1, 1, 1}, {64, 1, 1}}, seed);
        expect(message.empty(), claim, message);
        for (const Product& result : results) {
            expect(std::memcmp(&result, &right, sizeof right) == 0, claim);
        }
    }
}

alignas(16) unsigned short source[2][64 * 8];
unsigned short seen[4][64];

// Two groups of copies, each checked before and after its wait.
void copy_and_look() {
    SHARED(uint4, first, [64]);
    SHARED(uint4, second, [64]);
    const unsigned me = threadIdx.x;
    copy_later(first + me, source[0] + 8 * me, true);
    end_copies();
    copy_later(second + me, source[1] + 8 * me, me % 2 == 0);
    end_copies();
    seen[0][me] = static_cast<unsigned short>(first[me].x);
    wait_copies<1>();
    seen[1][me] = static_cast<unsigned short>(first[me].x);
    seen[2][me] = static_cast<unsigned short>(second[me].x);
    wait_copies<0>();
    seen[3][me] = static_cast<unsigned short>(second[me].x);
}

void check_copies() {
    for (int i = 0; i < 2 * 64 * 8; ++i) {
        source[i / 512][i % 512] = static_cast<unsigned short>(i + 1);
    }
    unsigned early = 0, late = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        const std::string message = emulator::run(copy_and_look, {{1, 1, 1}, {64, 1, 1}}, seed);
        bool right = message.empty();
        for (unsigned thread = 0; thread < 64; ++thread) {
            const unsigned short first = source[0][8 * thread];
            const unsigned short second = thread % 2 == 0 ? source[1][8 * thread] : 0;
            right = right && seen[1][thread] == first && seen[3][thread] == second;
            right = right && (seen[0][thread] == 0xFFFF || seen[0][thread] == first);
            right = right && (seen[2][thread] == 0xFFFF || seen[2][thread] == second);
            early += seen[0][thread] == first;
            late += seen[2][thread] == 0xFFFF;
        }
        expect(right, "a copy is there after the wait for its group", message);
    }
    expect(early > 0 && late > 0, "and before that at times");
}

// A copy to what a neighbour reads before a barrier has passed.
void overwrite_too_early() {
    SHARED(uint4, tile, [64]);
    const unsigned me = threadIdx.x;
    copy_later(tile + me, source[0] + 8 * me, true);
    end_copies();
    wait_copies<0>();
    __syncthreads();
    copy_later(tile + me, source[1] + 8 * me, true);
    end_copies();
    seen[0][me] = static_cast<unsigned short>(tile[(me + 32) % 64].x);
    __syncthreads();
    wait_copies<0>();
}

void check_early_copies() {
    bool shows = false;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        emulator::run(overwrite_too_early, {{1, 1, 1}, {64, 1, 1}}, seed);
        for (unsigned thread = 0; thread < 64; ++thread) {
            shows = shows || seen[0][thread] != source[0][8 * ((thread + 32) % 64)];
        }
    }
    expect(shows, "a copy to what others still read shows under some order");
}

// Rows of a matrix `Distance` elements apart.
template <int Distance>
void load_apart() {
    SHARED(uint4, memory, [32 * Distance / 8]);
    memory[threadIdx.x] = make_uint4(0, 0, 0, 0);
    unsigned words[4];
    __syncthreads();
    load_matrices(words, reinterpret_cast<unsigned short*>(memory) + threadIdx.x * Distance);
}

void check_banks() {
    const auto conflicts = [](void (*kernel)()) {
        const unsigned long long before = emulator::bank_conflicts();
        emulator::run(kernel, {{1, 1, 1}, {32, 1, 1}}, 0);
        return emulator::bank_conflicts() - before;
    };
    expect(conflicts(load_apart<64>) == 4 * 7, "rows of 128 bytes share a bank");
    expect(conflicts(load_apart<32 + 8>) == 0, "no conflicts for heads of 32");
    expect(conflicts(load_apart<64 + 8>) == 0, "no conflicts for heads of 64");
    expect(conflicts(load_apart<80 + 8>) == 0, "no conflicts for heads of 80");
    expect(conflicts(load_apart<96 + 8>) == 0, "no conflicts for heads of 96");
    expect(conflicts(load_apart<128 + 8>) == 0, "no conflicts for heads of 128");
}

}  // namespace

int main() {
    check_product("a product of f16 fragments", multiply_by_hand<f16>);
    check_product("a product of bf16 fragments", multiply_by_hand<bf16>);
    check_product("a product of loaded fragments", multiply_loaded<f16, false>);
    check_product("a product of fragments loaded turned", multiply_loaded<bf16, true>);
    check_copies();
    check_early_copies();
    check_banks();
    const std::string late = emulator::run([] {
        if (threadIdx.x == 0) {
            __syncwarp();
        }
        float c[4] = {};
        const unsigned a[4] = {};
        mma<f16>(c, a, 0, 0);
    }, {{1, 1, 1}, {32, 1, 1}}, 0);
    expect(!late.empty(), "a lane that does not come to a product is reported", late);
    return failures;
}
