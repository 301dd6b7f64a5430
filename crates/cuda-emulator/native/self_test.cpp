// What the emulator claims of itself: kernels with a planted mistake are reported, right ones run under every order.
// Prints what failed; the exit status is the number of failures.
#include "cuda_emulator.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace {

constexpr unsigned all_lanes = 0xffffffffu;

int failures = 0;

unsigned global() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

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

// Which turn each of 16 blocks had.
void take_turns() {
    static float next = 0.0f;
    results[0][blockIdx.x] = next;
    next = blockIdx.x == 0 && gridDim.x == 1 ? 0.0f : next + 1.0f;
}

void check_blocks() {
    bool orders[2] = {false, false};
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        emulator::run(take_turns, {{1, 1, 1}, {1, 1, 1}}, seed);
        unsigned between = 0;
        const std::string message = emulator::run(take_turns, {{16, 1, 1}, {1, 1, 1}}, seed, [&] { between += 1; });
        const bool ascends = std::is_sorted(results[0], results[0] + 16);
        orders[ascends ? 0 : 1] = true;
        expect(between == 15 && message.empty() && (seed > 0 || ascends), "each block runs once", message);
        expect(std::is_permutation(results[0], results[0] + 16, results[1]), "blocks take turns", message);
    }
    expect(orders[0] && orders[1], "blocks run in order for seed 0, and else in any", "");
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

// Runs a kernel of one block under several orders and compares what it left in `results[0]`.
template <class Expected>
void expect_results(const char* claim, const std::function<void()>& kernel, unsigned threads, Expected expected) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        std::fill_n(results[0], 64, -1.0f);
        const std::string message = emulator::run(kernel, {{1, 1, 1}, {threads, 1, 1}, 256}, seed);
        bool right = message.empty();
        for (unsigned thread = 0; thread < threads; ++thread) {
            right = right && results[0][thread] == static_cast<float>(expected(thread));
        }
        expect(right, claim, message);
    }
}

void give(double value) {
    results[0][threadIdx.x] = static_cast<float>(value);
}

void check_lanes() {
    const auto own = [] { return static_cast<int>(threadIdx.x) * 10; };
    expect_results("a shuffle up leaves the first lanes what they have",
                   [=] { give(__shfl_up_sync(all_lanes, own(), 3)); }, 64,
                   [](unsigned t) { return (t % 32 < 3 ? t : t - 3) * 10; });
    expect_results("a shuffle down leaves the last lanes what they have",
                   [=] { give(__shfl_down_sync(all_lanes, own(), 5)); }, 64,
                   [](unsigned t) { return (t % 32 > 26 ? t : t + 5) * 10; });
    expect_results("a shuffle brings one lane's value, counted within the warp",
                   [=] { give(__shfl_sync(all_lanes, own(), 33)); }, 64,
                   [](unsigned t) { return (t / 32 * 32 + 1) * 10; });
    expect_results("a shuffle moves eight bytes",
                   [] { give(static_cast<double>(__shfl_xor_sync(all_lanes, 1ll << (threadIdx.x + 8), 1) >> 20)); },
                   32, [](unsigned t) { return static_cast<double>((1ll << ((t ^ 1) + 8)) >> 20); });
    // Each half of a warp by itself, at different times.
    expect_results("lanes of a mask shuffle without the others",
                   [] {
                       const unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
                       float total = 1.0f;
                       for (int distance = 1; distance < 16; distance *= 2) {
                           total += __shfl_xor_sync(mask, total, distance);
                       }
                       give(total);
                   },
                   64, [](unsigned) { return 16; });
    expect_results("a ballot is the lanes with a true predicate",
        [] { give(__popc(__ballot_sync(all_lanes, threadIdx.x % 3 == 0)) +
                  (__ballot_sync(all_lanes, threadIdx.x % 32 == 5) == 32u ? 100 : 0)); },
                   64, [](unsigned) { return 111; });
    expect_results("any and all of a mask",
                   [] {
                       const unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
                       const int low = threadIdx.x % 32 < 16;
                       give(8 * __any_sync(mask, low) + 4 * __all_sync(mask, low) +
                            2 * __any_sync(mask, threadIdx.x % 32 == 3) +
                            __all_sync(mask, threadIdx.x % 32 != 3));
                   },
                   64, [](unsigned t) { return t % 32 < 16 ? 14 : 1; });
    expect_results("lanes see what they wrote before they met",
                   [] {
                       SHARED(int, values, [64]);
                       values[threadIdx.x] = static_cast<int>(threadIdx.x);
                       __syncwarp();
                       give(values[threadIdx.x ^ 31]);
                   },
                   64, [](unsigned t) { return t ^ 31; });
}

void check_barriers() {
    expect_results("a barrier counts, and knows any and all",
                   [] {
                       const int count = __syncthreads_count(threadIdx.x < 5);
                       const int any = __syncthreads_or(threadIdx.x == 63), none = __syncthreads_or(0);
                       const int all = __syncthreads_and(1), not_all = __syncthreads_and(threadIdx.x != 7);
                       give(count + 100 * (any + 2 * none + 4 * all + 8 * not_all));
                   },
                   64, [](unsigned) { return 505; });
    expect_results("threads that have ended are not waited for",
                   [] {
                       give(-5);
                       if (threadIdx.x < 32) {
                           return;
                       }
                       __syncthreads();
                       give(7);
                   },
                   64, [](unsigned t) { return t < 32 ? -5 : 7; });
}

unsigned count_up = 0;
int largest = 0, smallest = 0;
unsigned bits_set = 0;
float total = 0.0f;

void check_atomics() {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        count_up = bits_set = 0;
        largest = -1000;
        smallest = 1000;
        total = 0.0f;
        const auto kernel = [] {
            const int place = static_cast<int>(global());
            const unsigned before = atomicAdd(&count_up, 1u);
            atomicMax(&largest, place);
            atomicMin(&smallest, -place);
            atomicOr(&bits_set, 1u << threadIdx.x % 32);
            atomicAdd(&total, 0.5f);
            atomicCAS(&results[0][0], -1.0f, static_cast<float>(before));
        };
        results[0][0] = -1.0f;
        const std::string message = emulator::run(kernel, {{3, 1, 1}, {64, 1, 1}}, seed);
        const bool right = count_up == 192 && largest == 191 && smallest == -191 && bits_set == all_lanes &&
            total == 96.0f;
        expect(right && results[0][0] == 0.0f && message.empty(), "atomics add up, whatever the order", message);
        expect(atomicExch(&largest, 3) == 191 && largest == 3, "atomicExch returns the old value", "");
    }
}

void check_shared_memory() {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const auto kernel = [] {
            SHARED(float, first, [2]);
            SHARED(float, second, [2]);
            SHARED_AT_LAUNCH(chosen);
            const auto fresh = [](float value) { return value != value; };
            const bool are_fresh = fresh(first[0]) && fresh(second[1]) && fresh(reinterpret_cast<float*>(chosen)[63]);
            // All read before any thread writes.
            __syncthreads();
            first[threadIdx.x % 2] = 1.0f;
            second[threadIdx.x % 2] = 2.0f;
            reinterpret_cast<float*>(chosen)[threadIdx.x] = 3.0f;
            __syncthreads();
            const bool is_kept = first[0] == 1.0f && second[1] == 2.0f && reinterpret_cast<float*>(chosen)[63] == 3.0f;
            results[blockIdx.x][threadIdx.x] = are_fresh && is_kept ? 1.0f : 0.0f;
        };
        const std::string message = emulator::run(kernel, {{4, 1, 1}, {64, 1, 1}, 256}, seed);
        bool right = message.empty();
        for (const auto& block : results) {
            right = right && std::all_of(std::begin(block), std::end(block),
                                         [](float result) { return result == 1.0f; });
        }
        expect(right, "every block has shared memory of its own, which holds no numbers at first", message);
    }
}

void check_indices() {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
        std::vector<int> seen(3 * 2 * 2 * 4 * 3 * 2);
        const auto kernel = [&seen] {
            const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
            const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
            seen[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
        };
        const std::string message = emulator::run(kernel, {{3, 2, 2}, {4, 3, 2}}, seed);
        expect(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }),
               "every thread of every block runs once", message);
    }
}

}  // namespace

int main() {
    check_lanes();
    check_barriers();
    check_atomics();
    check_shared_memory();
    check_indices();
    check_sums();
    std::iota(results[1], results[1] + 16, 0.0f);
    check_blocks();
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
    expect_report("a lane that has ended in a mask is reported", "has ended", [] {
        if (threadIdx.x == 3) {
            return;
        }
        __shfl_xor_sync(all_lanes, 1.0f, 1);
    }, 32);
    expect_report("lanes of a warp at different shuffles are reported", "different shuffles", [] {
        if (threadIdx.x < 16) {
            __shfl_xor_sync(all_lanes, 1.0f, 1);
        } else {
            __shfl_xor_sync(all_lanes, 1.0f, 1);
        }
    }, 32);
    expect_report("a meeting that half of the lanes reach is reported", "wait for each other", [] {
        if (threadIdx.x < 16) {
            __syncwarp();
        }
        __syncthreads();
    }, 32);
    return failures;
}
