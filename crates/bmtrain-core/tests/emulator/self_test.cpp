// What the emulator claims of itself: kernels with a planted mistake are reported, right ones run under every order.
// Prints what failed; the exit status is the number of failures.
#include "cuda_emulator.h"

#include <cstdio>

namespace {

constexpr unsigned all_lanes = 0xffffffffu;

int failures = 0;

void expect(bool holds, const char* claim, const std::string& message) {
    if (!holds) {
        std::printf("FAILED: %s (message: \"%s\")\n", claim, message.c_str());
        failures += 1;
    }
}

void expect_report(const char* claim, const char* words, const std::function<void()>& kernel, unsigned threads) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const std::string message = emulator::run(kernel, {{1, 1, 1}, {threads, 1, 1}}, seed);
        expect(message.find(words) != std::string::npos, claim, message);
    }
}

float results[4][64];

// Every thread adds up what all threads of its block put into shared memory.
void add_up() {
    SHARED(float, values, [64]);
    values[threadIdx.x] = static_cast<float>(threadIdx.x + 100 * blockIdx.y);
    __syncthreads();
    float total = 0.0f;
    for (unsigned i = 0; i < blockDim.x; ++i) {
        total += values[i];
    }
    // The next block uses the same memory.
    __syncthreads();
    results[blockIdx.x + gridDim.x * blockIdx.y][threadIdx.x] = total;
}

// The same without the barrier: some order must show it.
void add_up_too_early() {
    SHARED(float, values, [64]);
    values[threadIdx.x] = 0.0f;
    __syncthreads();
    values[threadIdx.x] = 1.0f;
    float total = 0.0f;
    for (unsigned i = 0; i < blockDim.x; ++i) {
        total += values[i];
    }
    results[0][threadIdx.x] = total;
}

void check_sums() {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const std::string message = emulator::run(add_up, {{2, 2, 1}, {64, 1, 1}}, seed);
        bool right = message.empty();
        for (int row = 0; row < 4; ++row) {
            for (float total : results[row]) {
                right = right && total == 63.0f * 32.0f + 64.0f * 100.0f * static_cast<float>(row / 2);
            }
        }
        expect(right, "a barrier separates writing from reading", message);
    }
}

void check_race() {
    bool seen = false;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        emulator::run(add_up_too_early, {{1, 1, 1}, {64, 1, 1}}, seed);
        for (float total : results[0]) {
            seen = seen || total != 64.0f;
        }
    }
    expect(seen, "a missing barrier gives wrong numbers under some order", "");
}

// Two sums over the same shared memory, one number for each warp, without a barrier before the second writes.
void reuse_too_early() {
    SHARED(float, partials, [2]);
    const unsigned warp = threadIdx.x / 32;
    partials[warp] = 1.0f;
    __syncthreads();
    const float first = __shfl_xor_sync(all_lanes, partials[0] + partials[1], 1);
    partials[warp] = 10.0f;
    __syncthreads();
    results[0][threadIdx.x] = first;
}

void check_reuse() {
    bool seen = false;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        emulator::run(reuse_too_early, {{1, 1, 1}, {64, 1, 1}}, seed);
        for (float first : results[0]) {
            seen = seen || first != 2.0f;
        }
    }
    expect(seen, "memory that is written again too early gives wrong numbers under some order", "");
}

void check_shuffles() {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        auto exchange_partners = [] {
            const int value = static_cast<int>(threadIdx.x) * 10;
            results[0][threadIdx.x] = static_cast<float>(__shfl_xor_sync(all_lanes, value, 5));
        };
        const std::string message = emulator::run(exchange_partners, {{1, 1, 1}, {64, 1, 1}}, seed);
        bool right = message.empty();
        for (int thread = 0; thread < 64; ++thread) {
            right = right && results[0][thread] == static_cast<float>((thread ^ 5) * 10);
        }
        expect(right, "a shuffle brings the partner's value", message);
    }
}

}  // namespace

int main() {
    check_sums();
    check_race();
    check_reuse();
    check_shuffles();
    expect_report("a barrier that half of the threads reach is reported", "wait for each other", [] {
        if (threadIdx.x < 16) {
            __syncthreads();
        }
        __shfl_xor_sync(all_lanes, 1.0f, 1);
    }, 32);
    expect_report("different barriers are reported", "different __syncthreads", [] {
        if (threadIdx.x < 32) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    }, 64);
    expect_report("a mask without its own lane is reported", "leaves out the lane", [] {
        __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
    }, 32);
    expect_report("a mask of lanes that are not there is reported", "does not have", [] {
        __shfl_xor_sync(all_lanes, 1.0f, 1);
    }, 16);
    return failures;
}
