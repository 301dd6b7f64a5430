// What every kernel source starts with: the vocabulary that the run-time compiler lacks, and the sums over a block.
//
// The text is put in front of a kernel's source by `bmtrain_kernels::Source::text`. It includes nothing, so that the
// run-time compiler needs no folder of headers. The same text is compiled by nvcc and, with BMTRAIN_EMULATED defined, by
// an ordinary C++ compiler for the processor, where a header in front of it supplies the CUDA words.

#ifndef BMTRAIN_EMULATED
// Makes a kernel known by name to the emulator. On a device a module does that by itself.
#define BMTRAIN_KERNEL(name)
#endif

constexpr int kWarpThreads = 32;
// A block has at most 1024 threads.
constexpr int kMostWarps = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Sum of `value` over a warp whose lanes all take part. Every lane gets the same bits: at each step both partners add the
// same two numbers.
__device__ __forceinline__ float warp_sum(float value) {
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

// Sum of `value` over a block of whole warps. Every thread gets the same bits. `partials` is shared memory for kMostWarps
// numbers, free for the next sum: the first barrier waits until the previous one has been read.
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
