// Runs a hand-written CUDA kernel on the processor, every CUDA thread of a block on a stack of its own.
//
// Included before a kernel's source with `g++ -include cuda_emulator.h`. It supplies the CUDA names that our kernels
// use: indices, shared memory, __syncthreads, shuffles; a name that is missing is a compile error, to be added when a
// kernel needs it. What it proves is logic, indexing and synchronisation of a kernel. It proves nothing about speed,
// about what the device's compiler makes of the source, or about approximate arithmetic: results are reported as
// "emulated".
//
// Instead of hanging, it reports threads that never meet: a barrier that some threads do not reach, a shuffle whose
// mask names lanes that do not come, do not exist or disagree.
//
// Blocks run one after another. In each, warps and their threads have random priorities from a seed, and the highest
// that can run runs. Only one kernel may run at a time, which the caller sees to.
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

// ---- names that mean nothing on a processor, or something simpler

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
// Shared memory is taken through the macros of prelude.cuh, so that every block gets its own.
#define SHARED(type, name, extent)                                                        \
    static const char shared_tag_##name = 0;                                              \
    using shared_type_##name = type extent;                                               \
    auto& name = *static_cast<shared_type_##name*>(                                       \
        emulator::shared(&shared_tag_##name, sizeof(shared_type_##name)))
#define SHARED_AT_LAUNCH(name) auto* const name = static_cast<unsigned char*>(emulator::shared_at_launch())

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

// Waits until every thread of the block that has not ended is here. Returns for how many of them `predicate` holds.
int barrier(int line, bool predicate);

// Lane of the running thread in its warp.
int lane();

// Memory of the running block, the same for every thread that asks with this tag; its content is not a number.
void* shared(const void* tag, std::size_t bytes);

// The memory whose size was chosen at launch.
void* shared_at_launch();

// Gives `bits` to the warp and returns what lane `source` gave. Waits for all lanes of `mask`.
std::uint64_t exchange(unsigned mask, std::uint64_t bits, int source, int line);

// Ballot: which lanes of `mask` have a true predicate.
unsigned ballot(unsigned mask, bool predicate, int line);

// Lets the lanes of `mask` meet; what each did before is then seen by all.
void order_lanes(unsigned mask, int line);

// Waits until `notify` is called with this place, or what runs beside the threads has gone on, whichever is first: the
// caller looks again. Where nothing can go on any more, the threads that wait are reported.
void wait_at(const void* place, int line);

// Lets those go on that wait at a place.
void notify(const void* place);

// What runs beside the threads of a block, such as copies that a thread has given: `advance` does some of it, where
// there is any, and returns whether it did. Set for the running block, and called where no thread can run.
void run_beside(bool (*advance)());

// What __threadfence orders: everything before a fence with everything after a later one, of any thread.
void fence_memory();

// What the threads of a block are to each other while `change` runs: one at a time. Returns what was there before.
template <class Value, class Change>
Value atomically(Value* place, Change change) {
    Value old, value;
    __atomic_load(place, &old, __ATOMIC_RELAXED);
    do {
        value = change(old);
    } while (!__atomic_compare_exchange(place, &old, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

// ---- what the driver calls

// A kernel as the source made it known.
struct Kernel {
    // Copies the arguments out of what a launch was given, as the driver does, and returns what one thread runs.
    std::function<std::function<void()>(void** arguments)> bind;
    // The bytes of each argument.
    std::vector<std::size_t> sizes;
};

// All kernels by name. A function, because kernels enter themselves before main.
std::map<std::string, Kernel>& kernels();

// A launch: extents, and the bytes of shared memory chosen with them. Blocks from `first_block` on are run, along x: a
// test of large indices need not run the ones before.
struct Extent {
    Triple grid;
    Triple block;
    std::size_t shared_bytes = 0;
    unsigned first_block = 0;
};

// Runs every thread of every block, in the order of their numbers for seed 0 and else in a random one. Returns an empty
// text, or what went wrong and where. `between` is called before each block but the first: another kernel may run
// there.
std::string run(const std::function<void()>& thread, const Extent& extent, std::uint64_t seed,
                const std::function<void()>& between = {});

// One of two, at random; no for seed 0. For what a device may do now or later.
bool coin();

// ---- 16-bit numbers, bit for bit as the device converts them

float f32_from_f16(std::uint16_t bits);
std::uint16_t f16_from_f32(float value);
std::uint16_t bf16_from_f32(float value);

// ---- how kernels make themselves known

// An argument of a kernel, wherever its bytes are.
template <class Argument>
Argument read_argument(const void* from) {
    std::remove_const_t<Argument> value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class... Arguments, std::size_t... Positions>
Kernel describe(void (*kernel)(Arguments...), std::index_sequence<Positions...>) {
    Kernel description;
    description.bind = [kernel](void** arguments) -> std::function<void()> {
        std::tuple<std::remove_const_t<Arguments>...> values(read_argument<Arguments>(arguments[Positions])...);
        return [kernel, values] { std::apply(kernel, values); };
    };
    description.sizes = {sizeof(Arguments)...};
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

// ---- the names of CUDA

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_extent())
#define gridDim (emulator::grid_extent())

// The default argument is the line of the call.
inline void __syncthreads(int line = __builtin_LINE()) {
    emulator::barrier(line, false);
}

inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
    return emulator::barrier(line, predicate != 0);
}

inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
    return emulator::barrier(line, predicate != 0) != 0;
}

inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
    return emulator::barrier(line, predicate == 0) == 0;
}

// Lanes meet, as at a shuffle, which moves a value and orders nothing else; this orders their memory.
inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    emulator::order_lanes(mask, line);
}

template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int lane_mask, int line = __builtin_LINE()) {
    return emulator::exchange_value(mask, value, emulator::lane() ^ lane_mask, line);
}

template <class Value>
Value __shfl_sync(unsigned mask, Value value, int source, int line = __builtin_LINE()) {
    return emulator::exchange_value(mask, value, source & 31, line);
}

// A lane without a source keeps its own value.
template <class Value>
Value __shfl_up_sync(unsigned mask, Value value, unsigned distance, int line = __builtin_LINE()) {
    const int source = emulator::lane() - static_cast<int>(distance);
    return emulator::exchange_value(mask, value, source < 0 ? emulator::lane() : source, line);
}

template <class Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned distance, int line = __builtin_LINE()) {
    const int source = emulator::lane() + static_cast<int>(distance);
    return emulator::exchange_value(mask, value, source > 31 ? emulator::lane() : source, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return emulator::ballot(mask, predicate != 0, line);
}

inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return emulator::ballot(mask, predicate != 0, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return emulator::ballot(mask, predicate != 0, line) == mask;
}

inline void __threadfence() { emulator::fence_memory(); }
inline void __threadfence_block() { emulator::fence_memory(); }

// ---- vectors

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- bits and arithmetic

namespace emulator {
template <class To, class From>
To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
}  // namespace emulator

inline unsigned __float_as_uint(float value) { return emulator::bits_as<unsigned>(value); }
inline int __float_as_int(float value) { return emulator::bits_as<int>(value); }
inline float __uint_as_float(unsigned bits) { return emulator::bits_as<float>(bits); }
inline float __int_as_float(int bits) { return emulator::bits_as<float>(bits); }
inline long long __double_as_longlong(double value) { return emulator::bits_as<long long>(value); }
inline double __longlong_as_double(long long bits) { return emulator::bits_as<double>(bits); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
// The compiler of the host is told not to contract, so that these are one rounding each.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double value) { return std::sqrt(value); }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
template <class Value>
Value min(Value a, Value b) { return b < a ? b : a; }
template <class Value>
Value max(Value a, Value b) { return a < b ? b : a; }

// ---- atomics

template <class Value>
Value atomicAdd(Value* place, Value value) {
    return emulator::atomically(place, [value](Value old) { return static_cast<Value>(old + value); });
}
template <class Value>
Value atomicMax(Value* place, Value value) {
    return emulator::atomically(place, [value](Value old) { return old < value ? value : old; });
}
template <class Value>
Value atomicMin(Value* place, Value value) {
    return emulator::atomically(place, [value](Value old) { return value < old ? value : old; });
}
template <class Value>
Value atomicOr(Value* place, Value value) {
    return emulator::atomically(place, [value](Value old) { return static_cast<Value>(old | value); });
}
template <class Value>
Value atomicExch(Value* place, Value value) {
    return emulator::atomically(place, [value](Value) { return value; });
}
template <class Value>
Value atomicCAS(Value* place, Value expected, Value value) {
    return emulator::atomically(place, [=](Value old) { return old == expected ? value : old; });
}
