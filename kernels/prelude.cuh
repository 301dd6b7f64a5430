// What every kernel source starts with: definitions that the run-time compiler lacks or that the emulator needs, and
// sums over a warp and a block.
//
// The text is prepended to a kernel's source by `bmtrain_kernels::Source::text`, together with numbers.cuh and
// philox.cuh. Nothing includes a header, so that the run-time compiler needs no directory of them. The same text is
// compiled by nvcc and, with BMTRAIN_EMULATED defined, by an ordinary C++ compiler for the processor, where a header in
// front of it supplies the CUDA definitions.

#ifndef BMTRAIN_EMULATED
// Makes a kernel known by name to the emulator. On a device a module does that by itself.
#define BMTRAIN_KERNEL(name)
// An array in the block's shared memory: SHARED(float, sums, [32]). The emulator gives every block memory of its own.
#define SHARED(type, name, extent) __shared__ type name extent
// The shared memory whose size is chosen at launch, aligned to 16 bytes.
#define SHARED_AT_LAUNCH(name) extern __shared__ __align__(16) unsigned char name[]
#endif

constexpr int kWarpThreads = 32;
// A block has at most 1024 threads.
constexpr int kMostWarps = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
#define BMTRAIN_INFINITY __int_as_float(0x7f800000)

// 64-bit: rows times columns, and blocks times their threads, may pass what 32 bits hold.
__device__ __forceinline__ long long global_thread() {
    return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ long long global_threads() {
    return static_cast<long long>(gridDim.x) * blockDim.x;
}

// Sum of `value` over a warp whose lanes all take part. Every lane gets the same bits: at each step both partners add
// the same two numbers.
__device__ __forceinline__ float warp_sum(float value) {
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

// Largest `value` over a warp; NaN is skipped.
__device__ __forceinline__ float warp_max(float value) {
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
    }
    return value;
}

// Sum of `value` over a block of whole warps. Every thread gets the same bits. `partials` is shared memory for
// kMostWarps numbers, free for the next sum: the first barrier waits until the previous one has been read.
__device__ __forceinline__ float block_sum(float value, float* partials) {
    const int lane = threadIdx.x % kWarpThreads;
    const int warp = threadIdx.x / kWarpThreads;
    const int warps = blockDim.x / kWarpThreads;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) {
        partials[warp] = value;
    }
    __syncthreads();
    return warp_sum(lane < warps ? partials[lane] : 0.0f);
}

// Largest `value` over a block, as block_sum.
__device__ __forceinline__ float block_max(float value, float* partials) {
    const int lane = threadIdx.x % kWarpThreads;
    const int warp = threadIdx.x / kWarpThreads;
    const int warps = blockDim.x / kWarpThreads;
    value = warp_max(value);
    __syncthreads();
    if (lane == 0) {
        partials[warp] = value;
    }
    __syncthreads();
    return warp_max(lane < warps ? partials[lane] : -BMTRAIN_INFINITY);
}

// ---- what the host must hear of

// Where kernels report values that are outside their table. The first report stays; the host reads it when it waits.
struct Fault {
    // 0 as long as nothing was reported; otherwise who reports, a number that the host knows.
    int kernel;
    int unused;
    // Flat position of the value in its tensor, the value, and how many would have been right.
    long long position;
    long long value;
    long long bound;
};

__device__ __forceinline__ void report(Fault* fault, int kernel, long long position, long long value, long long bound) {
    if (atomicCAS(&fault->kernel, 0, kernel) == 0) {
        fault->position = position;
        fault->value = value;
        fault->bound = bound;
    }
}
