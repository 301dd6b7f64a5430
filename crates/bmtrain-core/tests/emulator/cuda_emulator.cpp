// The threads of a block: who may run, who waits for whom; see cuda_emulator.h.
#include "cuda_emulator.h"
#include "fiber.h"

#include <algorithm>
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

// The block that is running.
struct Block {
    Triple grid, extent, index;
    const std::function<void()>* work;
    std::vector<Thread> threads;
    // Numbers of the threads, the one that goes first whenever it can in front.
    std::vector<unsigned> order;
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

std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> known;
    return known;
}

std::string run(const std::function<void()>& thread, Triple grid, Triple extent, std::uint64_t seed) {
    Block running = {};
    running.grid = grid;
    running.extent = extent;
    running.work = &thread;
    const unsigned count = extent.x * extent.y * extent.z;
    running.threads = std::vector<Thread>(count);
    block = &running;
    std::mt19937_64 random(seed);
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x = 0; x < grid.x; ++x) {
                running.index = {x, y, z};
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
