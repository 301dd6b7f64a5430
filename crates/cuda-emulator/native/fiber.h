// A stack of its own for a function that is stopped in the middle and continued later.
//
// The emulator gives one to each CUDA thread of a block. On x86-64 a switch saves six registers and costs nanoseconds;
// elsewhere the system's own context switch does the same, slower.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

class Fiber {
public:
    // For the code that is already running: nothing to prepare, the first switch away fills it in.
    Fiber() = default;

    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Prepares to run `entry` on the `bytes` bytes from `stack`. `entry` must not return: it switches away for good.
    void prepare(void* stack, std::size_t bytes, void (*entry)());

    // Stops `from`, which is running, and continues `to`.
    static void change(Fiber& from, Fiber& to);

private:
#if defined(__x86_64__)
    // Where the registers are, on the fiber's own stack.
    void* stack_pointer = nullptr;
#else
    ucontext_t context = {};
#endif
};

}  // namespace emulator
