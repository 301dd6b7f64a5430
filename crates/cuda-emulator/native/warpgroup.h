// What wgmma.cuh stands for on a device: products of a warpgroup, copies of boxes of tensors, barriers of phases.
//
// What runs beside the threads is carried out at a random time in what the device allows: a copy between where it is
// given and where no thread can go on without it; a product between where it is given and where its thread waits for
// its group, from what is in shared memory then. Until that wait its sums are not numbers, and what is written to them
// is lost. Products before which no fence came since the last wait, and products whose left operand in registers has
// changed before they are carried out, have sums that are not numbers. What is not shown: ordinary stores to shared
// memory that products or copies would read without a fence.
#pragma once

namespace emulator {

// A tensor of four dimensions, as the emulated driver describes it at the start of a tensor map.
struct TensorDescription {
    unsigned long long magic;
    unsigned long long address;
    // Elements of 16 bits; strides in bytes, of all dimensions but the first.
    unsigned size[4];
    unsigned long long stride[3];
    unsigned box[4];
};

inline constexpr unsigned long long tensor_magic = 0x7465'6e73'6f72'6d61ull;

// The address of a place in the block's shared memory whose size was chosen at launch. That begins past a multiple of
// 1024, as it may on a device.
unsigned shared_place(const void* place);

void make_barrier(unsigned long long* barrier, unsigned arrivals);
void show_barriers();
void announce(unsigned long long* barrier, unsigned bytes);
void arrive(unsigned long long* barrier);
void wait_for_phase(unsigned long long* barrier, unsigned parity, int line);
void copy_box(void* to, const unsigned long long* map, int x, int y, int z, int w, unsigned long long* barrier);

void begin_products(int line);
void end_products();
void wait_products(unsigned left);
// The sums are `tiles` times four numbers.
void multiply_rows(Half kind, float* sums, unsigned tiles, unsigned long long left, unsigned long long right, bool add,
                   int line);
void multiply_columns(Half kind, float* sums, unsigned tiles, const unsigned* left, unsigned long long right, int line);

// Registers of a thread from here on, of 64 Ki for the block.
void set_registers(unsigned count);

}  // namespace emulator
