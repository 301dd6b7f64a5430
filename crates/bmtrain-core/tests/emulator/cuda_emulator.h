// Runs a hand-written CUDA kernel on the processor, every CUDA thread of a block on a stack of its own.
//
// Put in front of a kernel's source with `g++ -include cuda_emulator.h`. It supplies the CUDA words that our kernels use:
// indices, shared memory, __syncthreads, shuffles; a word that is missing is a compile error, to be added when a kernel
// needs it. What it proves is logic, indexing and synchronisation of a kernel. It says nothing about speed, about what the
// device's compiler makes of the source, or about approximate arithmetic: whoever reports a result says "emulated".
//
// Instead of hanging, it reports threads that never meet: a barrier that some threads do not reach, a shuffle whose mask
// names lanes that do not come, do not exist or disagree.
//
// Blocks run one after another. In each, warps and their threads have ranks drawn from a seed, and the highest that can run
// runs. Only one kernel may run at a time, which the caller sees to.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define BMTRAIN_EMULATED 1

// ---- words that mean nothing on a processor, or something simpler

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
// One block runs at a time.
#define __shared__ static

namespace emulator {

// A place in a grid or block, or an extent of one.
struct Triple {
    unsigned x, y, z;
};

// ---- what kernels call

// Index of the running thread in its block.
const Triple& thread_index();
// Index of the running block in its grid.
const Triple& block_index();
const Triple& block_extent();
const Triple& grid_extent();

// Waits until every thread of the block that has not ended is here.
void barrier(int line);

// Lane of the running thread in its warp.
int lane();

// Gives `bits` to the warp and returns what lane `source` gave. Waits for all lanes of `mask`.
std::uint64_t exchange(unsigned mask, std::uint64_t bits, int source, int line);

// ---- what the driver calls

// A kernel as the source made it known.
struct Kernel {
    // Copies the arguments out of what a launch was given, as the driver does, and returns what one thread runs.
    std::function<std::function<void()>(void** arguments)> bind;
    // Those of the arguments that are addresses.
    std::function<std::vector<const void*>(void** arguments)> addresses;
};

// All kernels by name. A function, because kernels enter themselves before main.
std::map<std::string, Kernel>& kernels();

// Runs every thread of every block, in the order of their numbers for seed 0. Returns an empty text, or what went wrong and
// where.
std::string run(const std::function<void()>& thread, Triple grid, Triple block, std::uint64_t seed);

// ---- how kernels make themselves known

template <class Argument>
void add_address(std::vector<const void*>& addresses, void* argument) {
    if constexpr (std::is_pointer_v<Argument>) {
        addresses.push_back(*static_cast<Argument*>(argument));
    }
}

template <class... Arguments, std::size_t... Positions>
Kernel describe(void (*kernel)(Arguments...), std::index_sequence<Positions...>) {
    Kernel description;
    description.bind = [kernel](void** arguments) -> std::function<void()> {
        std::tuple<Arguments...> values(*static_cast<Arguments*>(arguments[Positions])...);
        return [kernel, values] { std::apply(kernel, values); };
    };
    description.addresses = [](void** arguments) {
        std::vector<const void*> addresses;
        (add_address<Arguments>(addresses, arguments[Positions]), ...);
        return addresses;
    };
    return description;
}

struct Registration {
    template <class... Arguments>
    Registration(const char* name, void (*kernel)(Arguments...)) {
        kernels()[name] = describe(kernel, std::index_sequence_for<Arguments...>());
    }
};

template <class Value>
Value exchange_value(unsigned mask, Value value, int source, int line) {
    static_assert(sizeof(Value) <= sizeof(std::uint64_t), "a shuffle moves at most 8 bytes");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = exchange(mask, bits, source, line);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace emulator

#define BMTRAIN_KERNEL(name) static const emulator::Registration emulator_registration_##name(#name, name);

// ---- the words of CUDA

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_extent())
#define gridDim (emulator::grid_extent())

// The default argument is the line of the call.
inline void __syncthreads(int line = __builtin_LINE()) {
    emulator::barrier(line);
}

template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int lane_mask, int line = __builtin_LINE()) {
    return emulator::exchange_value(mask, value, emulator::lane() ^ lane_mask, line);
}
