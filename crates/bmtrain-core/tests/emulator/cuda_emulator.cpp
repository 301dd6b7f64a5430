// The threads of a block: who may run, who waits for whom; see cuda_emulator.h.
#include "cuda_emulator.h"
#include "fiber.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

namespace emulator {
namespace {

constexpr unsigned warp_threads = 32;
constexpr std::size_t stack_bytes = 64 << 10;

enum class State { ready, at_barrier, in_exchange, ended };

struct Thread {
    Fiber fiber;
    std::unique_ptr<char[]> stack{new char[stack_bytes]};
    Triple index = {};
    unsigned number = 0;
    State state = State::ready;
    // Where it waits.
    int line = 0;
    // What it gave to an exchange, from whom it wants to hear, and the answer.
    unsigned mask = 0;
    int source = 0;
    std::uint64_t given = 0;
    std::uint64_t received = 0;

    int lane() const {
        return static_cast<int>(number % warp_threads);
    }
};

struct Release {
    void operator()(void* memory) const {
        std::free(memory);
    }
};
using Memory = std::unique_ptr<void, Release>;

// Memory that no kernel may take for zeros.
Memory take(std::size_t bytes) {
    Memory memory(std::malloc(bytes));
    std::memset(memory.get(), 0xFF, bytes);
    return memory;
}

// The block that is running.
struct Block {
    Triple grid, extent, index;
    const std::function<void()>* work;
    std::vector<Thread> threads;
    // Numbers of the threads, the one that goes first whenever it can in front.
    std::vector<unsigned> order;
    // Shared memory by the tag it was asked for with, and that chosen at launch.
    std::map<const void*, Memory> shared;
    Memory shared_at_launch;
    // Whether somebody who waited may go on.
    bool released;
    unsigned live;
    // How many threads wait at the barrier, and in which line it is.
    unsigned at_barrier;
    int barrier_line;
    Thread* running;
    Fiber scheduler;
    std::string failure;
};

Block* block = nullptr;

// Gives the turn back to the scheduler.
void pause() {
    Fiber::change(block->running->fiber, block->scheduler);
}

// Ends the block with a message. The other threads' stacks are dropped as they are.
[[noreturn]] void fail(const std::string& what, int line) {
    const Thread& thread = *block->running;
    block->failure = what + " (block " + std::to_string(block->index.x) + "," + std::to_string(block->index.y) + "," +
                     std::to_string(block->index.z) + ", thread " + std::to_string(thread.number) + ", line " +
                     std::to_string(line) + ")";
    for (;;) {
        pause();
    }
}

void release_barrier() {
    block->at_barrier = 0;
    block->released = true;
    for (Thread& thread : block->threads) {
        if (thread.state == State::at_barrier) {
            thread.state = State::ready;
        }
    }
}

// The first function on a thread's stack.
void begin_thread() {
    (*block->work)();
    Thread& thread = *block->running;
    thread.state = State::ended;
    block->live -= 1;
    // A thread that has ended is not waited for.
    if (block->live > 0 && block->at_barrier == block->live) {
        release_barrier();
    }
    for (;;) {
        pause();
    }
}

std::string describe_waiting() {
    std::string text = "threads wait for each other:";
    unsigned listed = 0;
    for (const Thread& thread : block->threads) {
        if (thread.state == State::at_barrier || thread.state == State::in_exchange) {
            if (++listed > 4) {
                return text + " and more";
            }
            const char* where = thread.state == State::at_barrier ? "__syncthreads" : "a shuffle";
            text += " thread " + std::to_string(thread.number) + " at " + where + " in line " +
                    std::to_string(thread.line) + ";";
        }
    }
    return text;
}

// Puts the warps, and the threads of each warp, in an order of their own.
void draw_order(std::mt19937_64& random, bool shuffled) {
    const auto count = static_cast<unsigned>(block->threads.size());
    std::vector<unsigned> warps((count + warp_threads - 1) / warp_threads);
    std::iota(warps.begin(), warps.end(), 0u);
    if (shuffled) {
        std::shuffle(warps.begin(), warps.end(), random);
    }
    block->order.clear();
    for (unsigned warp : warps) {
        const auto start = static_cast<std::ptrdiff_t>(block->order.size());
        for (unsigned number = warp * warp_threads; number < std::min(count, (warp + 1) * warp_threads); ++number) {
            block->order.push_back(number);
        }
        if (shuffled) {
            std::shuffle(block->order.begin() + start, block->order.end(), random);
        }
    }
}

void prepare_threads() {
    for (unsigned number = 0; number < block->threads.size(); ++number) {
        Thread& thread = block->threads[number];
        thread.number = number;
        thread.index.x = number % block->extent.x;
        thread.index.y = number / block->extent.x % block->extent.y;
        thread.index.z = number / (block->extent.x * block->extent.y);
        thread.state = State::ready;
        thread.fiber.prepare(thread.stack.get(), stack_bytes, begin_thread);
    }
    block->live = static_cast<unsigned>(block->threads.size());
    block->at_barrier = 0;
}

// Runs threads until all have ended or nobody can go on. Always the first in the order that can run, so that one warp gets
// as far ahead of the others as barriers let it: fair turns would hide memory that is written again too early.
void run_threads() {
    std::size_t position = 0;
    while (block->live > 0) {
        if (position == block->order.size()) {
            block->failure = describe_waiting();
            return;
        }
        Thread& thread = block->threads[block->order[position]];
        if (thread.state != State::ready) {
            ++position;
            continue;
        }
        block->running = &thread;
        Fiber::change(block->scheduler, thread.fiber);
        if (!block->failure.empty()) {
            return;
        }
        if (block->released) {
            block->released = false;
            position = 0;
        }
    }
}

}  // namespace

const Triple& thread_index() {
    return block->running->index;
}

const Triple& block_index() {
    return block->index;
}

const Triple& block_extent() {
    return block->extent;
}

const Triple& grid_extent() {
    return block->grid;
}

int lane() {
    return block->running->lane();
}

void barrier(int line) {
    Thread& thread = *block->running;
    if (block->at_barrier > 0 && block->barrier_line != line) {
        fail("threads meet at different __syncthreads, the other in line " + std::to_string(block->barrier_line), line);
    }
    block->barrier_line = line;
    thread.line = line;
    block->at_barrier += 1;
    if (block->at_barrier == block->live) {
        release_barrier();
        return;
    }
    thread.state = State::at_barrier;
    pause();
}

std::uint64_t exchange(unsigned mask, std::uint64_t bits, int source, int line) {
    Thread& thread = *block->running;
    const unsigned warp_start = thread.number / warp_threads * warp_threads;
    if ((mask >> thread.lane() & 1) == 0) {
        fail("a shuffle's mask leaves out the lane that calls it", line);
    }
    thread.mask = mask;
    thread.source = source;
    thread.given = bits;
    thread.line = line;

    bool complete = true;
    for (unsigned other_lane = 0; other_lane < warp_threads; ++other_lane) {
        if ((mask >> other_lane & 1) == 0) {
            continue;
        }
        if (warp_start + other_lane >= block->threads.size()) {
            fail("a shuffle's mask names lanes that the block does not have", line);
        }
        const Thread& other = block->threads[warp_start + other_lane];
        if (other.state == State::ended) {
            fail("a shuffle's mask names a lane that has ended", line);
        }
        if (&other == &thread) {
            continue;
        }
        if (other.state != State::in_exchange) {
            complete = false;
        } else if (other.mask != mask || other.line != line) {
            fail("lanes of a warp meet at different shuffles, the other in line " + std::to_string(other.line), line);
        }
    }
    if (!complete) {
        thread.state = State::in_exchange;
        pause();
        return thread.received;
    }
    // The last lane to come answers all.
    block->released = true;
    for (unsigned other_lane = 0; other_lane < warp_threads; ++other_lane) {
        if ((mask >> other_lane & 1) == 0) {
            continue;
        }
        Thread& other = block->threads[warp_start + other_lane];
        const bool inside = other.source >= 0 && other.source < static_cast<int>(warp_threads);
        // What a lane outside the mask would give is not defined: a pattern that is no number in any type.
        const bool defined = inside && (mask >> other.source & 1) != 0;
        other.received = defined ? block->threads[warp_start + other.source].given : ~std::uint64_t{0};
        other.state = State::ready;
    }
    return thread.received;
}

unsigned ballot(unsigned mask, bool predicate, int line) {
    Thread& thread = *block->running;
    // Everybody gives its answer and then reads those of all: nobody gives again before all have met once more.
    exchange(mask, predicate ? 1 : 0, thread.lane(), line);
    const unsigned warp_start = thread.number / warp_threads * warp_threads;
    unsigned answers = 0;
    for (unsigned other_lane = 0; other_lane < warp_threads; ++other_lane) {
        if ((mask >> other_lane & 1) != 0 && block->threads[warp_start + other_lane].given != 0) {
            answers |= 1u << other_lane;
        }
    }
    exchange(mask, predicate ? 1 : 0, thread.lane(), line);
    return answers;
}

void* shared(const void* tag, std::size_t bytes) {
    Memory& memory = block->shared[tag];
    if (!memory) {
        memory = take(bytes);
    }
    return memory.get();
}

void* shared_at_launch() {
    return block->shared_at_launch.get();
}

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

std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> known;
    return known;
}

std::string run(const std::function<void()>& thread, const Extent& extent, std::uint64_t seed) {
    Block running = {};
    running.grid = extent.grid;
    running.extent = extent.block;
    running.work = &thread;
    const unsigned count = extent.block.x * extent.block.y * extent.block.z;
    running.threads = std::vector<Thread>(count);
    block = &running;
    std::mt19937_64 random(seed);
    for (unsigned z = 0; z < extent.grid.z; ++z) {
        for (unsigned y = 0; y < extent.grid.y; ++y) {
            for (unsigned x = extent.first_block; x < extent.grid.x; ++x) {
                running.index = {x, y, z};
                running.shared.clear();
                running.shared_at_launch = extent.shared_bytes > 0 ? take(extent.shared_bytes) : nullptr;
                draw_order(random, seed != 0);
                prepare_threads();
                run_threads();
                if (!running.failure.empty()) {
                    block = nullptr;
                    return running.failure;
                }
            }
        }
    }
    block = nullptr;
    return {};
}

}  // namespace emulator
