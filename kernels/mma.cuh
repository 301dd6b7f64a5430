// Instructions of the tensor cores, one function each: products of fragments, loads of fragments from shared
// memory, copies that overlap with the arithmetic, the power of two. Instructions of compute capability 8.0, which
// later devices keep.
//
// Fragments of a warp, by lane, with g = lane / 4 and t = lane % 4; a register holds two 16-bit numbers, the first in
// its low half:
//     left    16 x 16, a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), and the next column of each
//     right   16 x 8,  b: (2t, g), (2t + 8, g), and the row below each
//     result  16 x 8,  c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// The emulator has the same functions in tensor_core.h.

// c += a * b over a warp.
template <class Number>
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

#ifdef BMTRAIN_EMULATED
template <> inline void mma<f16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply(emulator::Half::f16, c, a, b0, b1);
}
template <> inline void mma<bf16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply(emulator::Half::bf16, c, a, b0, b1);
}
#else
template <>
__device__ __forceinline__ void mma<f16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    // Volatile: all lanes of a warp take part, so it must not move into a branch that some of them take.
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<bf16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// Four matrices of 8 x 8 from shared memory: lane i names row i % 8 of matrix i / 8, 16 bytes at a multiple of 16. Of
// matrix m register m gets (g, 2t) and the next number; turned, (2t, g) and the number below.
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], const void* row);
__device__ __forceinline__ void load_matrices_turned(unsigned (&words)[4], const void* row);

// Copies 16 bytes from global to shared memory asynchronously; zeros where `there` is false. Both are
// at multiples of 16. What a thread has given since the last end_copies is a group.
__device__ __forceinline__ void copy_later(void* to, const void* from, bool there);
__device__ __forceinline__ void end_copies();
// Waits for all copies of this thread but the `Left` newest groups. Other threads see them after a barrier.
template <int Left> __device__ __forceinline__ void wait_copies();

// 2 to the power of `value`, to about two units in the last place; 0 for results below the normal numbers.
__device__ __forceinline__ float power_of_two(float value);

// Two numbers rounded to 16 bits, the first in the low half.
template <class Number> __device__ __forceinline__ unsigned join_pair(float low, float high);

#ifdef BMTRAIN_EMULATED
inline void load_matrices(unsigned (&words)[4], const void* row) { emulator::load_matrices(words, row, false); }
inline void load_matrices_turned(unsigned (&words)[4], const void* row) { emulator::load_matrices(words, row, true); }
inline void copy_later(void* to, const void* from, bool there) { emulator::copy_later(to, from, there); }
inline void end_copies() { emulator::end_copies(); }
template <int Left> inline void wait_copies() { emulator::wait_copies(Left); }
inline float power_of_two(float value) {
    const float power = std::exp2(value);
    return power < 0x1p-126f ? 0.0f : power;
}
template <class Number> inline unsigned join_pair(float low, float high) { return join<Number>(low, high); }
#else
__device__ __forceinline__ unsigned shared_address(const void* place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void load_matrices_turned(unsigned (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// Past the first level of the cache: a tile is read once by a block.
__device__ __forceinline__ void copy_later(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Left> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}
__device__ __forceinline__ float power_of_two(float value) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}
template <>
__device__ __forceinline__ unsigned join_pair<f16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <>
__device__ __forceinline__ unsigned join_pair<bf16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif
