// What kernels with tensor cores need of the emulator: the functions that mma.cuh stands for on a device.
//
// Fragments and matrices are collective calls: all 32 lanes of a warp meet, as at a shuffle, and the line of the call
// tells different calls apart. A copy to shared memory is carried out when it is given or when its thread waits
// for it, at random: a missing wait, or one that waits for too few, shows by copies that come late, and a copy to what
// others still read by copies that come early.
#pragma once

namespace emulator {

enum class Half { f16, bf16 };

// The first (0) or second (1) of two 16-bit numbers.
float half(Half kind, unsigned pair, unsigned which);

// A lane's registers of a left operand of 16 x 16, into its places of the whole.
void put_left(Half kind, const unsigned* registers, float (&left)[16][16]);

// c += a * b for m16n8k16: products exact, sums in f32 in the order of k.
void multiply(Half kind, float* c, const unsigned* a, unsigned b0, unsigned b1, int line = __builtin_LINE());

// Four 8 x 8 matrices of 16-bit numbers from the rows that the lanes name.
void load_matrices(unsigned* words, const void* row, bool turned, int line = __builtin_LINE());

// Of the rows of 16 bytes that make a matrix, how many had to wait for a bank of the shared memory, since the start.
unsigned long long bank_conflicts();

void copy_later(void* to, const void* from, bool there);
void end_copies();
void wait_copies(unsigned left);

}  // namespace emulator

#include "warpgroup.h"
