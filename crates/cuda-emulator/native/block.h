// The block that is running, and its threads; for cuda_emulator.cpp alone.
#pragma once

#include "cuda_emulator.h"
#include "fiber.h"
#include "slots.h"

#include <random>

namespace emulator {

constexpr unsigned warp_threads = 32;
constexpr unsigned most_shared_arrays = 64;

enum class State { ready, at_barrier, at_meeting, at_place, ended };

struct Thread {
    Fiber fiber;
    void* seen_as = nullptr;
    Triple index = {};
    unsigned number = 0;
    // Its place in the order.
    unsigned rank = 0;
    State state = State::ready;
    // Where it waits.
    int line = 0;
    // What it brought to a meeting: whom it meets, from whom it wants to hear, its value, and what it took home.
    unsigned mask = 0;
    int source = 0;
    std::uint64_t given = 0;
    std::uint64_t received = 0;
    // How many meetings of lanes it led that order memory.
    unsigned led = 0;
    // Of `wait_at`.
    const void* place = nullptr;

    int lane() const {
        return static_cast<int>(number % warp_threads);
    }
};

// Lanes of a warp, a bit each.
struct Warp {
    unsigned lanes;
    unsigned ended;
    // At a meeting.
    unsigned waiting;
};

struct SharedArray {
    const void* tag;
    void* memory;
    std::size_t bytes;
    // Whether this block has asked for it.
    bool taken;
};

// The block that is running.
struct Block {
    Triple grid, extent, index;
    const std::function<void()>* work;
    Thread* threads;
    unsigned count;
    // How many blocks ran before.
    unsigned serial;
    Warp warps[most_threads / warp_threads];
    // Numbers of the threads in order; the first that can run runs.
    unsigned* order;
    SharedArray shared[most_shared_arrays];
    unsigned shared_count;
    void* shared_at_launch;
    // The first in the order that may have been released since its turn.
    unsigned next;
    unsigned live;
    // The number of threads that wait at the barrier, its line, and the number of true predicates there; before that,
    // of the last time.
    unsigned at_barrier;
    int barrier_line;
    int yes;
    int last_yes;
    unsigned barriers;
    Thread* running;
    Fiber scheduler;
    void* scheduler_seen_as;
    Places* places;
    // Places as above, for the start and the end of a run.
    char begun;
    char ended;
    std::string* failure;
    // None for the order of the numbers.
    std::mt19937_64* random;
    // What runs beside the threads, or null.
    bool (*advance)();
};

}  // namespace emulator
