// For programs that run a kernel at the end of a tensor beyond 2^32 elements, after the text of the kernel's unit.
//
// Memory is reserved and not backed: only the pages that the kernel touches exist. A launch runs only the last blocks
// of its grid, and an index that lost its upper bits reads zeros elsewhere or writes where nothing is checked.
#pragma once

#include "cuda_emulator.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

namespace large {

inline int failures = 0;

inline void expect(bool holds, const char* claim) {
    if (!holds) {
        std::printf("FAILED: %s\n", claim);
        failures += 1;
    }
}

inline bool close(double got, double expected) {
    return std::fabs(got - expected) <= 1e-5 * (1.0 + std::fabs(expected));
}

// Zeros that take no memory until they are written.
template <class Value>
class Sparse {
public:
    explicit Sparse(long long count) : bytes(static_cast<std::size_t>(count) * sizeof(Value)) {
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            std::printf("FAILED: %zu bytes of address space could not be reserved\n", bytes);
            std::exit(1);
        }
        values = static_cast<Value*>(memory);
    }
    ~Sparse() { munmap(values, bytes); }
    Sparse(const Sparse&) = delete;
    Sparse& operator=(const Sparse&) = delete;

    Value& operator[](long long index) { return values[index]; }
    Value* data() { return values; }

private:
    std::size_t bytes;
    Value* values;
};

// Runs the last `blocks` blocks of a grid of `grid` blocks.
inline void run_end(const std::function<void()>& kernel, unsigned grid, unsigned blocks, emulator::Triple threads) {
    emulator::Extent extent = {{grid, 1, 1}, threads};
    extent.first_block = grid - blocks;
    const std::string message = emulator::run(kernel, extent, 1);
    if (!message.empty()) {
        std::printf("FAILED: %s\n", message.c_str());
        failures += 1;
    }
}

}  // namespace large
