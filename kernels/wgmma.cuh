// Products of a warpgroup that run beside its other instructions, copies of boxes of tensors into shared memory, and
// the barriers that tell when these have come: one function for each instruction. Compute capability 9.0 alone
// (sm_90a).
//
// A warpgroup is four warps, the first of them at a multiple of four. Its sums are of 64 rows, 16 of each warp, in
// tiles of eight columns whose lanes hold the elements that mma.cuh has for results; a left operand in registers is as
// there. Operands in shared memory have rows of 128 bytes, 64 numbers, from an address that is a multiple of 1024; of
// the eight places of 16 bytes in a row, place p of row r is at p ^ r % 8, which is how copies put them there.
// The emulator has the same functions in warpgroup.h.

// What the driver made to describe a tensor in global memory.
struct alignas(128) TensorMap {
    unsigned long long words[16];
};

// A barrier in shared memory: its phase ends when as many threads as it was made for have arrived and all bytes that
// were announced are there.
using PhaseBarrier = unsigned long long;

constexpr int kWarpgroupThreads = 128;

// The columns of 16-bit numbers that a row of an operand in shared memory has.
constexpr int kOperandColumns = 64;

#ifdef BMTRAIN_EMULATED
inline unsigned shared_place(const void* place) { return emulator::shared_place(place); }
inline void make_barrier(PhaseBarrier* barrier, unsigned arrivals) { emulator::make_barrier(barrier, arrivals); }
inline void show_barriers() { emulator::show_barriers(); }
inline void announce(PhaseBarrier* barrier, unsigned bytes) { emulator::announce(barrier, bytes); }
inline void arrive(PhaseBarrier* barrier) { emulator::arrive(barrier); }
inline void wait_for_phase(PhaseBarrier* barrier, unsigned parity, int line = __builtin_LINE()) {
    emulator::wait_for_phase(barrier, parity, line);
}
inline void copy_box(void* to, const TensorMap& map, int x, int y, int z, int w, PhaseBarrier* barrier) {
    emulator::copy_box(to, map.words, x, y, z, w, barrier);
}
inline void begin_products(int line = __builtin_LINE()) { emulator::begin_products(line); }
inline void end_products() { emulator::end_products(); }
template <int Left> inline void wait_products() { emulator::wait_products(Left); }
template <int Count> inline void take_registers() { emulator::set_registers(Count); }
template <int Count> inline void give_registers() { emulator::set_registers(Count); }
template <class Value, int Count> inline void hold(Value (&)[Count][4]) {}
template <class Number> constexpr emulator::Half emulated_half();
template <> constexpr emulator::Half emulated_half<f16>() { return emulator::Half::f16; }
template <> constexpr emulator::Half emulated_half<bf16>() { return emulator::Half::bf16; }
template <class Number, int Tiles>
inline void multiply_rows(float (&sums)[Tiles][4], unsigned long long left, unsigned long long right, bool add,
                          int line = __builtin_LINE()) {
    emulator::multiply_rows(emulated_half<Number>(), sums[0], Tiles, left, right, add, line);
}
template <class Number, int Tiles>
inline void multiply_columns(float (&sums)[Tiles][4], const unsigned (&left)[4], unsigned long long right,
                             int line = __builtin_LINE()) {
    emulator::multiply_columns(emulated_half<Number>(), sums[0], Tiles, left, right, line);
}
#else
__device__ __forceinline__ unsigned shared_place(const void* place) { return shared_address(place); }
__device__ __forceinline__ void make_barrier(PhaseBarrier* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Lets copies see the barriers that this thread has made. Threads see them after a barrier of the block.
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives, and announces bytes that copies bring.
__device__ __forceinline__ void announce(PhaseBarrier* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void arrive(PhaseBarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits until the phase of this parity has ended: 0 for the first one, 1 for the second. With 1 a wait at
// a new barrier ends at once.
__device__ __forceinline__ void wait_for_phase(PhaseBarrier* barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}
// Copies the box whose first element is at (x, y, z, w); zeros where the tensor has none. One thread gives it.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int x, int y, int z, int w,
                                         PhaseBarrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
}
// Before products whose sums or left operands other instructions wrote.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// The products since the last one are a group.
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all but the `Left` newest groups. Until then nothing may read or write their sums.
template <int Left> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}
// Registers of each thread from here on; all threads of the warpgroup together.
template <int Count> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
// Keeps the compiler from moving what it does with sums, or with a left operand, to the other side of this place.
template <int Tiles> __device__ __forceinline__ void hold(float (&sums)[Tiles][4]) {
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
        asm volatile("" : "+f"(sums[tile][0]), "+f"(sums[tile][1]), "+f"(sums[tile][2]), "+f"(sums[tile][3])::"memory");
    }
}

template <int Steps> __device__ __forceinline__ void hold(unsigned (&left)[Steps][4]) {
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
        asm volatile("" : "+r"(left[step][0]), "+r"(left[step][1]), "+r"(left[step][2]), "+r"(left[step][3])::"memory");
    }
}

#define WGMMA_TILE(tile) "+f"(sums[tile][0]), "+f"(sums[tile][1]), "+f"(sums[tile][2]), "+f"(sums[tile][3])
#define WGMMA_TILES_8                                                                                      \
    WGMMA_TILE(0), WGMMA_TILE(1), WGMMA_TILE(2), WGMMA_TILE(3), WGMMA_TILE(4), WGMMA_TILE(5), WGMMA_TILE(6), \
        WGMMA_TILE(7)
#define WGMMA_TILES_16                                                                                          \
    WGMMA_TILES_8, WGMMA_TILE(8), WGMMA_TILE(9), WGMMA_TILE(10), WGMMA_TILE(11), WGMMA_TILE(12), WGMMA_TILE(13), \
        WGMMA_TILE(14), WGMMA_TILE(15)
#define WGMMA_SUMS_8                                                                     \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_SUMS_16                                                                                        \
    WGMMA_SUMS_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
                 "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sums = left * right turned, or added to what is there: 64 rows by 128 columns by 16 terms. Both are in shared memory,
// with rows of what is summed over.
template <class Number, int Tiles>
__device__ __forceinline__ void multiply_rows(float (&sums)[Tiles][4], unsigned long long left,
                                              unsigned long long right, bool add);
// sums += left * right: 64 rows by 8 `Tiles` columns by 16 terms, the left operand in registers, the right one in
// shared memory with a row for each term.
template <class Number, int Tiles>
__device__ __forceinline__ void multiply_columns(float (&sums)[Tiles][4], const unsigned (&left)[4],
                                                 unsigned long long right);

#define WGMMA_OF_ROWS(number)                                                                              \
    template <>                                                                                            \
    __device__ __forceinline__ void multiply_rows<number>(float (&sums)[16][4], unsigned long long left,   \
                                                          unsigned long long right, bool add) {            \
        asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                    \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." #number "." #number " {" WGMMA_SUMS_16 \
                     "}, %64, %65, adds, 1, 1, 0, 0;\n}"                                                   \
                     : WGMMA_TILES_16                                                                      \
                     : "l"(left), "l"(right), "r"(add ? 1 : 0));                                           \
    }
#define WGMMA_OF_COLUMNS(number, tiles, columns, a0, a1, a2, a3, descriptor)                                   \
    template <>                                                                                                \
    __device__ __forceinline__ void multiply_columns<number>(float (&sums)[tiles][4], const unsigned (&left)[4], \
                                                             unsigned long long right) {                       \
        asm volatile("{\n.reg .pred adds;\nsetp.eq.b32 adds, 0, 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #number "." #number               \
                     " {" WGMMA_SUMS_##tiles "}, {" #a0 ", " #a1 ", " #a2 ", " #a3 "}, " #descriptor           \
                     ", adds, 1, 1, 1;\n}"                                                                     \
                     : WGMMA_TILES_##tiles                                                                     \
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));                    \
    }
WGMMA_OF_ROWS(f16)
WGMMA_OF_ROWS(bf16)
WGMMA_OF_COLUMNS(f16, 8, 64, %32, %33, %34, %35, %36)
WGMMA_OF_COLUMNS(bf16, 8, 64, %32, %33, %34, %35, %36)
WGMMA_OF_COLUMNS(f16, 16, 128, %64, %65, %66, %67, %68)
WGMMA_OF_COLUMNS(bf16, 16, 128, %64, %65, %66, %67, %68)
#endif

// How a product finds an operand in shared memory: groups of eight rows are 1024 bytes apart, blocks of 64 columns
// `across` bytes, which matters where columns are not what is summed over.
__device__ __forceinline__ unsigned long long operand_at(const void* place, unsigned across) {
    constexpr unsigned long long kRows = 1024 >> 4, kPlacesOf128Bytes = 1;
    const unsigned long long start = (shared_place(place) & 0x3FFFFu) >> 4, columns = across >> 4;
    return start | columns << 16 | kRows << 32 | kPlacesOf128Bytes << 62;
}
