// The threads of a block: who may run, who waits for whom; see cuda_emulator.h.
//
// This file is compiled without instrumentation in every build. What its functions touch while they run as a CUDA
// thread is therefore in plain arrays: templates of the library might be shared with instrumented files.
#include "block.h"
#include "cuda_emulator.h"
#include "fiber.h"
#include "sanitizer.h"
#include "slots.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

namespace emulator {
namespace {

Block* block = nullptr;
Slots slots;
char fence = 0;

// Gives the turn back to the scheduler.
void pause() {
    Thread& thread = *block->running;
    sanitizer::become(block->scheduler_seen_as);
    Fiber::change(thread.fiber, block->scheduler);
}

// Ends the block with a message. The other threads' stacks are dropped as they are.
[[noreturn]] void fail(const std::string& what, int line) {
    {
        const sanitizer::Unseen unseen;
        const Thread& thread = *block->running;
        *block->failure = what + " (block " + std::to_string(block->index.x) + "," + std::to_string(block->index.y) +
            "," +
                          std::to_string(block->index.z) + ", thread " + std::to_string(thread.number) + ", line " +
                          std::to_string(line) + ")";
    }
    for (;;) {
        pause();
    }
}

void make_ready(Thread& thread) {
    thread.state = State::ready;
    block->next = thread.rank < block->next ? thread.rank : block->next;
}

void release_barrier() {
    block->at_barrier = 0;
    block->barriers += 1;
    block->last_yes = block->yes;
    block->yes = 0;
    for (unsigned number = 0; number < block->count; ++number) {
        if (block->threads[number].state == State::at_barrier) {
            make_ready(block->threads[number]);
        }
    }
}

// The first function on a thread's stack.
void begin_thread() {
    sanitizer::acquire(&block->begun);
    (*block->work)();
    Thread& thread = *block->running;
    thread.state = State::ended;
    block->warps[thread.number / warp_threads].ended |= 1u << thread.lane();
    block->live -= 1;
    sanitizer::release(&block->ended);
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
    for (unsigned number = 0; number < block->count; ++number) {
        const Thread& thread = block->threads[number];
        if (thread.state != State::ready && thread.state != State::ended) {
            if (++listed > 4) {
                return text + " and more";
            }
            const char* where = thread.state == State::at_barrier ? "__syncthreads"
                : thread.state == State::at_place ? "a barrier in shared memory"
                                                  : "a shuffle";
            text += " thread " + std::to_string(thread.number) + " at " + where + " in line " +
                    std::to_string(thread.line) + ";";
        }
    }
    return text;
}

// Puts the warps, and the threads of each warp, in an order of their own.
void shuffle_order(std::mt19937_64& random, bool shuffled) {
    const unsigned count = block->count, warps = (count + warp_threads - 1) / warp_threads;
    unsigned warp_order[most_threads / warp_threads];
    std::iota(warp_order, warp_order + warps, 0u);
    if (shuffled) {
        std::shuffle(warp_order, warp_order + warps, random);
    }
    unsigned* end = block->order;
    for (unsigned warp = 0; warp < warps; ++warp) {
        unsigned* const start = end;
        const unsigned first = warp_order[warp] * warp_threads;
        for (unsigned number = first; number < std::min(count, first + warp_threads); ++number) {
            *end++ = number;
        }
        if (shuffled) {
            std::shuffle(start, end, random);
        }
    }
    for (unsigned rank = 0; rank < count; ++rank) {
        block->threads[block->order[rank]].rank = rank;
    }
}

void prepare_threads() {
    for (unsigned number = 0; number < block->count; ++number) {
        Thread& thread = block->threads[number];
        thread.number = number;
        thread.index.x = number % block->extent.x;
        thread.index.y = number / block->extent.x % block->extent.y;
        thread.index.z = number / (block->extent.x * block->extent.y);
        thread.state = State::ready;
        thread.led = 0;
        const unsigned slot = sanitizer::checks_threads ? (block->serial * block->count + number) % slots.count :
            number;
        thread.seen_as = slots.seen_as[slot];
        thread.fiber.prepare(slots.stack(slot), stack_bytes - 1024, begin_thread);
    }
    for (unsigned first = 0; first < block->count; first += warp_threads) {
        const unsigned lanes = std::min(block->count - first, warp_threads);
        block->warps[first / warp_threads] = {lanes == warp_threads ? ~0u : (1u << lanes) - 1, 0, 0};
    }
    block->live = block->count;
    block->at_barrier = 0;
    block->yes = 0;
    block->next = 0;
}

// Runs threads until all have ended or none can continue. Always the first in the order that can run, so that one warp
// gets as far ahead of the others as barriers let it: fair turns would hide memory that is written again too early.
void run_threads() {
    unsigned position = 0;
    while (block->live > 0) {
        if (position == block->count) {
            // Then from the first thread that has been let go on.
            block->next = block->count;
            if (block->advance != nullptr && block->advance()) {
                position = block->next;
                continue;
            }
            *block->failure = describe_waiting();
            return;
        }
        Thread& thread = block->threads[block->order[position]];
        if (thread.state != State::ready) {
            ++position;
            continue;
        }
        block->running = &thread;
        block->next = position;
        sanitizer::become(thread.seen_as);
        Fiber::change(block->scheduler, thread.fiber);
        if (!block->failure->empty()) {
            return;
        }
        position = block->next;
    }
    if (block->advance != nullptr && block->advance()) {
        *block->failure = "work that threads gave is still under way when their block ends";
    }
}

// Memory that no kernel may take for zeros.
void* take(std::size_t bytes) {
    void* const memory = std::malloc(bytes);
    std::memset(memory, 0xFF, bytes);
    return memory;
}

// Gives a block shared memory as if it were unused. The race checker must not see the accesses of blocks before.
void renew_shared(std::size_t bytes_at_launch) {
    const sanitizer::Unseen unseen;
    for (unsigned i = 0; i < block->shared_count; ++i) {
        block->shared[i].taken = false;
        if (sanitizer::checks_threads) {
            std::free(block->shared[i].memory);
        }
    }
    block->shared_count = sanitizer::checks_threads ? 0 : block->shared_count;
    if (bytes_at_launch == 0) {
        return;
    }
    if (block->shared_at_launch == nullptr || sanitizer::checks_threads) {
        std::free(block->shared_at_launch);
        block->shared_at_launch = take(bytes_at_launch);
    } else {
        std::memset(block->shared_at_launch, 0xFF, bytes_at_launch);
    }
}

void free_memory() {
    const sanitizer::Unseen unseen;
    for (unsigned i = 0; i < block->shared_count; ++i) {
        std::free(block->shared[i].memory);
    }
    std::free(block->shared_at_launch);
    delete block->places;
}

// Numbers of blocks in a random order; empty for none, and for more than would be worth the memory.
std::vector<unsigned> order_of_blocks(std::mt19937_64& random, std::uint64_t blocks) {
    constexpr std::uint64_t most = 1 << 20;
    std::vector<unsigned> order(blocks <= most ? blocks : 0);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    return order;
}

// One block from its first thread to its last.
void run_block(std::mt19937_64& random, const Extent& extent, bool shuffled) {
    renew_shared(extent.shared_bytes);
    block->advance = nullptr;
    if (sanitizer::checks_threads) {
        const sanitizer::Unseen unseen;
        delete block->places;
        block->places = new Places;
    }
    shuffle_order(random, shuffled);
    prepare_threads();
    run_threads();
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

int barrier(int line, bool predicate) {
    Thread& thread = *block->running;
    if (block->at_barrier > 0 && block->barrier_line != line) {
        fail("threads meet at different __syncthreads, the other in line " + std::to_string(block->barrier_line), line);
    }
    block->barrier_line = line;
    thread.line = line;
    block->at_barrier += 1;
    block->yes += predicate ? 1 : 0;
    char* const passed = block->places->barrier[block->barriers % 2];
    sanitizer::release(passed);
    if (block->at_barrier == block->live) {
        release_barrier();
    } else {
        thread.state = State::at_barrier;
        pause();
    }
    sanitizer::acquire(passed);
    return block->last_yes;
}

namespace {

// Whether the running thread is the last of its mask to come. What cannot be right ends the block.
bool is_last_to_come(const Thread& thread, const Warp& warp) {
    const unsigned mask = thread.mask;
    if ((mask >> thread.lane() & 1) == 0) {
        fail("a shuffle's mask leaves out the lane that calls it", thread.line);
    }
    if ((mask & ~warp.lanes) != 0) {
        fail("a shuffle's mask names lanes that the block does not have", thread.line);
    }
    if ((mask & warp.ended) != 0) {
        fail("a shuffle's mask names a lane that has ended", thread.line);
    }
    const unsigned here = mask & warp.waiting;
    if (here != 0) {
        // Waiting threads agree with each other as far as their masks meet, so that one can speak for all.
        const Thread& other = block->threads[thread.number / warp_threads * warp_threads +
            static_cast<unsigned>(__builtin_ctz(here))];
        if (other.mask != mask || other.line != thread.line) {
            fail("lanes of a warp meet at different shuffles, the other in line " + std::to_string(other.line),
                 thread.line);
        }
    }
    return (here | 1u << thread.lane()) == mask;
}

// Meets the lanes of a mask. The last to come calls `answer` for each lane, with the first thread of the warp.
template <class Answer>
std::uint64_t meet(unsigned mask, std::uint64_t bits, int source, int line, Answer answer) {
    Thread& thread = *block->running;
    thread.mask = mask;
    thread.source = source;
    thread.given = bits;
    thread.line = line;
    Warp& warp = block->warps[thread.number / warp_threads];
    if (!is_last_to_come(thread, warp)) {
        warp.waiting |= 1u << thread.lane();
        thread.state = State::at_meeting;
        pause();
        return thread.received;
    }
    warp.waiting &= ~mask;
    Thread* const first = &block->threads[thread.number / warp_threads * warp_threads];
    for (unsigned left = mask; left != 0; left &= left - 1) {
        Thread& other = first[__builtin_ctz(left)];
        other.received = answer(other, first);
        make_ready(other);
    }
    return thread.received;
}

}  // namespace

std::uint64_t exchange(unsigned mask, std::uint64_t bits, int source, int line) {
    return meet(mask, bits, source, line, [mask](const Thread& thread, const Thread* warp) {
        const bool inside = thread.source >= 0 && thread.source < static_cast<int>(warp_threads);
        // The value of a lane outside the mask is undefined: a bit pattern that is NaN in every dtype.
        const bool defined = inside && (mask >> thread.source & 1) != 0;
        return defined ? warp[thread.source].given : ~std::uint64_t{0};
    });
}

unsigned ballot(unsigned mask, bool predicate, int line) {
    const std::uint64_t answers = meet(mask, predicate ? 1 : 0, 0, line, [mask](const Thread&, const Thread* warp) {
        std::uint64_t yes = 0;
        for (unsigned left = mask; left != 0; left &= left - 1) {
            const int other = __builtin_ctz(left);
            yes |= warp[other].given << other;
        }
        return yes;
    });
    return static_cast<unsigned>(answers);
}

void order_lanes(unsigned mask, int line) {
    Thread& thread = *block->running;
    const unsigned first = thread.number / warp_threads * warp_threads;
    // The first lane of the mask stands for its lanes. A mask without lanes that are there is reported by the meeting.
    const unsigned leader = mask == 0 ? thread.number : first + static_cast<unsigned>(__builtin_ctz(mask));
    Thread& leading = leader < block->count ? block->threads[leader] : thread;
    char* const ordered = block->places->lanes[leading.number][leading.led % 2];
    sanitizer::release(ordered);
    meet(mask, 0, 0, line, [&leading](const Thread& other, const Thread*) {
        leading.led += &other == &leading ? 1 : 0;
        return std::uint64_t{0};
    });
    sanitizer::acquire(ordered);
}

void wait_at(const void* place, int line) {
    Thread& thread = *block->running;
    thread.place = place;
    thread.line = line;
    thread.state = State::at_place;
    pause();
}

void notify(const void* place) {
    for (unsigned number = 0; number < block->count; ++number) {
        Thread& thread = block->threads[number];
        if (thread.state == State::at_place && thread.place == place) {
            make_ready(thread);
        }
    }
}

void run_beside(bool (*advance)()) {
    block->advance = advance;
}

void fence_memory() {
    sanitizer::release(&fence);
    sanitizer::acquire(&fence);
}

void* shared(const void* tag, std::size_t bytes) {
    for (unsigned i = 0; i < block->shared_count; ++i) {
        SharedArray& array = block->shared[i];
        if (array.tag == tag) {
            if (!array.taken) {
                std::memset(array.memory, 0xFF, bytes);
                array.taken = true;
            }
            return array.memory;
        }
    }
    if (block->shared_count == most_shared_arrays) {
        fail("more arrays in shared memory than the emulator counts", 0);
    }
    const sanitizer::Unseen unseen;
    void* const memory = take(bytes);
    block->shared[block->shared_count++] = {tag, memory, bytes, true};
    return memory;
}

void* shared_at_launch() {
    return block->shared_at_launch;
}

std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> known;
    return known;
}

bool coin() {
    return block->random != nullptr && ((*block->random)() >> 32) % 2 == 0;
}

std::string run(const std::function<void()>& thread, const Extent& extent, std::uint64_t seed,
                const std::function<void()>& between) {
    Block* const outer = block;
    Block running = {};
    running.grid = extent.grid;
    running.extent = extent.block;
    running.work = &thread;
    running.count = extent.block.x * extent.block.y * extent.block.z;
    std::vector<Thread> threads(running.count);
    std::vector<unsigned> order(running.count);
    std::string failure;
    running.threads = threads.data();
    running.order = order.data();
    running.failure = &failure;
    running.scheduler_seen_as = sanitizer::this_thread();
    block = &running;
    const unsigned watched = std::max(watched_slots, 2 * running.count);
    slots.reserve(sanitizer::checks_threads ? watched : running.count);
    running.places = new Places;
    std::mt19937_64 random(seed);
    running.random = seed != 0 ? &random : nullptr;
    sanitizer::release(&running.begun);
    const std::uint64_t in_row = extent.grid.x - extent.first_block;
    const std::uint64_t blocks = in_row * extent.grid.y * extent.grid.z;
    const std::vector<unsigned> turns = order_of_blocks(random, seed != 0 ? blocks : 0);
    for (std::uint64_t turn = 0; turn < blocks && failure.empty(); ++turn) {
        if (turn > 0 && between) {
            block = nullptr;
            between();
            block = &running;
        }
        const std::uint64_t number = turns.empty() ? turn : turns[turn];
        const std::uint64_t row = number / in_row;
        running.index = {extent.first_block + static_cast<unsigned>(number % in_row),
                         static_cast<unsigned>(row % extent.grid.y), static_cast<unsigned>(row / extent.grid.y)};
        run_block(random, extent, seed != 0);
        running.serial += 1;
    }
    sanitizer::acquire(&running.ended);
    if (!failure.empty()) {
        slots.drop();
    }
    free_memory();
    block = outer;
    return failure;
}

}  // namespace emulator
