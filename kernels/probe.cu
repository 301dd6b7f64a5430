// The instructions that the headers write as inline assembly, one after the other on given numbers: products of
// fragments, loads of fragments, asynchronous copies, conversions, the power of two, accesses of 16 bytes. The host
// compares every result with its own arithmetic, so that an instruction that does something else on some device is
// known by its name.
//
//     probe_fragments  c += a b, for a fragment of each, by lane as in mma.cuh
//     probe_tile       four matrices, copied to shared memory and read as fragments, then turned; then the tile after a
//                      second copy that leaves out every other row
//     probe_numbers    conversions, and the power of two, of one number and the next lane's
//
// Launch: one warp.

struct FragmentsArguments {
    // [4, 32] and [2, 32] pairs of numbers, and [4, 32] sums.
    const unsigned* a;
    const unsigned* b;
    const float* c;
    // [4, 32]
    float* sums;
};

struct TileArguments {
    // 32 rows of 16 bytes.
    const uint4* rows;
    // [4, 32] registers of the fragments, of the turned ones, and of the tile after the second copy.
    unsigned* registers;
};

struct NumbersArguments {
    // [32]
    const float* values;
    // [8, 32]
    unsigned* registers;
};

template <class Number>
__device__ __forceinline__ void fragments_body(const FragmentsArguments& args) {
    const int lane = threadIdx.x;
    unsigned a[4];
    float c[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        a[i] = args.a[i * kWarpThreads + lane];
        c[i] = args.c[i * kWarpThreads + lane];
    }
    mma<Number>(c, a, args.b[lane], args.b[kWarpThreads + lane]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        args.sums[i * kWarpThreads + lane] = c[i];
    }
}

extern "C" __global__ void __launch_bounds__(kWarpThreads) probe_fragments_f16(const FragmentsArguments args) {
    fragments_body<f16>(args);
}
BMTRAIN_KERNEL(probe_fragments_f16)

extern "C" __global__ void __launch_bounds__(kWarpThreads) probe_fragments_bf16(const FragmentsArguments args) {
    fragments_body<bf16>(args);
}
BMTRAIN_KERNEL(probe_fragments_bf16)

extern "C" __global__ void __launch_bounds__(kWarpThreads) probe_tile(const TileArguments args) {
    SHARED(uint4, tile, [kWarpThreads]);
    const int lane = threadIdx.x;
    copy_later(&tile[lane], args.rows + lane, true);
    end_copies();
    wait_copies<0>();
    __syncthreads();
    unsigned words[4], turned[4];
    load_matrices(words, &tile[lane]);
    load_matrices_turned(turned, &tile[lane]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        args.registers[i * kWarpThreads + lane] = words[i];
        args.registers[(4 + i) * kWarpThreads + lane] = turned[i];
    }
    __syncthreads();
    copy_later(&tile[lane], args.rows + lane, lane % 2 == 0);
    end_copies();
    wait_copies<0>();
    __syncthreads();
    // 512 bytes after the fragments and the turned ones.
    store_16(args.registers + 8 * kWarpThreads + 4 * lane, tile[lane]);
}
BMTRAIN_KERNEL(probe_tile)

extern "C" __global__ void __launch_bounds__(kWarpThreads) probe_numbers(const NumbersArguments args) {
    const int lane = threadIdx.x;
    const float value = args.values[lane], next = args.values[(lane + 1) % kWarpThreads];
    const unsigned words[8] = {
        __float_as_uint(power_of_two(value)),
        join_pair<f16>(value, next),
        join_pair<bf16>(value, next),
        static_cast<unsigned>(narrow<f16>(value).bits),
        static_cast<unsigned>(narrow<bf16>(value).bits),
        __float_as_uint(widen(narrow<f16>(value))),
        fp8_pair(kE4M3, value, next),
        fp8_pair(kE5M2, value, next),
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        args.registers[i * kWarpThreads + lane] = words[i];
    }
}
BMTRAIN_KERNEL(probe_numbers)
