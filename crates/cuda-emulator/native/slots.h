// What the threads of a block run on: stacks, and what the race checker knows them by. Included by cuda_emulator.cpp
// alone.
#pragma once

#include "sanitizer.h"

#include <cstdlib>
#include <memory>
#include <vector>

namespace emulator {

// Of a block.
constexpr unsigned most_threads = 1024;
// The address checker puts space between what is on a stack.
constexpr std::size_t stack_bytes = 64 << 10;
// To the race checker a thread is one of a number of slots. What follows each other in a slot is taken for ordered, so
// there are this many, or enough for two blocks.
constexpr unsigned watched_slots = 512;
struct Release {
    void operator()(void* memory) const {
        std::free(memory);
    }
};
using Memory = std::unique_ptr<void, Release>;

// What threads run on, kept from run to run: making it anew would cost more than most blocks.
struct Slots {
    Memory stacks;
    // As whom the race checker sees a thread that runs here.
    std::vector<void*> seen_as;
    unsigned count = 0;

    void reserve(unsigned wanted) {
        if (count >= wanted) {
            return;
        }
        const sanitizer::Unseen unseen;
        stacks.reset(std::malloc(wanted * stack_bytes));
        count = wanted;
        while (seen_as.size() < count) {
            seen_as.push_back(sanitizer::make_thread());
        }
    }
    char* stack(unsigned slot) const {
        // Not all at the same distance from a page, or they would share few lines of the cache.
        return static_cast<char*>(stacks.get()) + slot * stack_bytes - slot % 16 * 64;
    }
    // What stopped threads left on their stacks is unowned.
    void drop() {
        const sanitizer::Unseen unseen;
        stacks.reset();
        count = 0;
    }
};

// Addresses by which the race checker remembers what orders the threads of a block; nothing is stored there. Each block
// uses new ones, or it would be ordered after the previous block.
struct Places {
    char barrier[2][8];
    char lanes[most_threads][2][8];
};

}  // namespace emulator
