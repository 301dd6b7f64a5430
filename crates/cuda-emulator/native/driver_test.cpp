// What the emulated driver claims of memory: addresses of freed memory in a kernel's arguments, and writes to what is
// declared as read only, are reported. Prints what failed; the exit status is the number of failures.
#include "cuda_emulator.h"
#include "fake_device.h"

#include <algorithm>
#include <cstdio>

using fake::Address;
using fake::Status;

extern "C" {
Status cuInit(unsigned);
Status cuCtxSetCurrent(void*);
Status cuMemAlloc_v2(Address*, std::size_t);
Status cuMemFree_v2(Address);
Status cuStreamCreate(void**, unsigned);
Status cuStreamSynchronize(void*);
Status cuModuleGetFunction(void**, void*, const char*);
Status cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                      void**);
Status cuMemsetD32Async(Address, unsigned, std::size_t, void*);
void emulated_declare(Address, std::size_t, int);
void emulated_declare_end();
}

namespace {

int failures = 0;
void* stream = nullptr;

void expect(bool holds, const char* claim) {
    if (!holds) {
        std::printf("FAILED: %s\n", claim);
        failures += 1;
    }
}

struct CopyArguments {
    const float* from;
    // Not an address.
    long long count;
    float* to;
};

void copy(const CopyArguments a) {
    if (threadIdx.x < a.count) {
        a.to[threadIdx.x] = a.from[threadIdx.x];
    }
}
BMTRAIN_KERNEL(copy)

Address take(std::size_t bytes) {
    Address start = 0;
    expect(cuMemAlloc_v2(&start, bytes) == fake::success, "memory is given");
    return start;
}

Status launch(Address from, Address to) {
    void* function = nullptr;
    expect(cuModuleGetFunction(&function, nullptr, "copy") == fake::success, "a kernel is found");
    CopyArguments arguments = {reinterpret_cast<const float*>(from), 8, reinterpret_cast<float*>(to)};
    void* slots[] = {&arguments};
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, slots, nullptr);
}

void check_freed() {
    const Address from = take(4096), to = take(4096);
    expect(launch(from, to) == fake::success && cuStreamSynchronize(stream) == fake::success, "live memory is taken");
    const Address old = take(1 << 20);
    cuMemFree_v2(old);
    expect(launch(old, to) == fake::invalid_value, "an address of freed memory is refused");
    expect(launch(to, old + 4096) == fake::invalid_value, "and so is one in the middle of it");
    expect(launch(from, to) == fake::success && cuStreamSynchronize(stream) == fake::success,
           "other memory is allocated as before");
    // The system gives the same memory again sooner or later; what is taken is not freed any more, what is left of it
    // still is.
    fake::device().freed[from] = 4096;
    fake::forget_freed(from + 1024, 2048);
    expect(fake::is_freed(from) && fake::is_freed(from + 1023) && !fake::is_freed(from + 1024),
           "the part before stays freed");
    expect(!fake::is_freed(from + 3071) && fake::is_freed(from + 3072) && fake::is_freed(from + 4095),
           "and the part after");
    expect(!fake::is_freed(from + 4096) && !fake::is_freed(from - 1), "and nothing else is");
    fake::forget_freed(from, 4096);
    expect(!fake::is_freed(from) && !fake::is_freed(from + 4095), "taken as a whole, nothing of it is freed");
    cuMemFree_v2(from);
    cuMemFree_v2(to);
}

void check_declared() {
    const Address from = take(64), to = take(64);
    cuMemsetD32Async(from, 0x3f800000u, 16, stream);
    emulated_declare(from, 32, 0);
    emulated_declare(to, 32, 1);
    expect(launch(from, to) == fake::success, "a declared launch is taken");
    emulated_declare_end();
    expect(cuStreamSynchronize(stream) == fake::success, "what is declared as written may be");
    expect(*reinterpret_cast<float*>(to) == 1.0f, "and was");
    expect(launch(to, from) == fake::success && cuStreamSynchronize(stream) == fake::success, "a declaration ends");

    cuMemsetD32Async(to, 0x40000000u, 16, stream);
    emulated_declare(from, 32, 1);
    emulated_declare(to, 32, 0);
    // The wrong way round.
    expect(launch(from, to) == fake::success, "a declared launch is taken");
    emulated_declare_end();
    expect(cuStreamSynchronize(stream) == fake::launch_failed, "a write to what is only read is reported");
}

struct FillArguments {
    float* to;
    float value;
};

// One element a block.
void fill_blocks(const FillArguments a) {
    a.to[blockIdx.x] = a.value;
}
BMTRAIN_KERNEL(fill_blocks)

// Two streams that nothing orders write to the same memory: blocks of one kernel run between blocks of the other.
void check_kernels_side_by_side() {
    constexpr unsigned count = 256;
    const Address to = take(count * sizeof(float));
    void* other = nullptr;
    void* function = nullptr;
    expect(cuStreamCreate(&other, 1) == fake::success, "another stream");
    expect(cuModuleGetFunction(&function, nullptr, "fill_blocks") == fake::success, "a kernel is found");
    unsigned mixed = 0;
    for (int round = 0; round < 16; ++round) {
        void* streams[] = {stream, other};
        for (int i = 0; i < 2; ++i) {
            FillArguments arguments = {reinterpret_cast<float*>(to), static_cast<float>(i)};
            void* slots[] = {&arguments};
            cuLaunchKernel(function, count, 1, 1, 1, 1, 1, 0, streams[i], slots, nullptr);
        }
        expect(cuStreamSynchronize(stream) == fake::success && cuStreamSynchronize(other) == fake::success, "both run");
        const float* const values = reinterpret_cast<const float*>(to);
        const bool same = std::all_of(values, values + count, [&](float value) { return value == values[0]; });
        mixed += same ? 0 : 1;
    }
    expect(mixed > 0, "a kernel runs between the blocks of another");
}

void check_freed_under_queued_work() {
    const Address from = take(4096), to = take(4096);
    expect(launch(from, to) == fake::success, "a launch is queued");
    cuMemFree_v2(from);
    expect(cuStreamSynchronize(stream) == fake::illegal_address, "memory freed under a queued kernel is reported");
}

}  // namespace

int main() {
    int context = 0;
    cuInit(0);
    cuCtxSetCurrent(&context);
    expect(cuStreamCreate(&stream, 1) == fake::success, "a stream");
    fake::device().random.seed(5);
    check_freed();
    check_kernels_side_by_side();
    check_declared();
    // A failure stays: the next one is looked at on a device that forgot it.
    fake::device().failure = fake::success;
    check_freed_under_queued_work();
    return failures;
}
