// Products and copies beside the threads of a block; see warpgroup.h.
//
// What is under way is in memory of the running block, as in tensor_core.cpp. Checkers see none of it: what orders
// these accesses are barriers that they do not know.
#include "cuda_emulator.h"
#include "sanitizer.h"
#include "tensor_core.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace emulator {
namespace {

constexpr unsigned most_columns = 128;
constexpr unsigned terms = 16;
constexpr unsigned most_products = 40;
constexpr unsigned most_accumulators = 2;
constexpr unsigned most_copies = 16;
constexpr unsigned most_warps = 32;
// Where the shared memory that was chosen at launch begins.
constexpr unsigned shared_start = 1024 + 128;
constexpr unsigned row_bytes = 128;

using Counter = std::uint32_t;

[[noreturn]] void stop(const char* what) {
    std::fprintf(stderr, "emulated warpgroup: %s\n", what);
    std::abort();
}

unsigned thread_number() {
    return thread_index().x;
}

// ---- barriers: 20 bits of arrivals that are missing, 20 of all arrivals, 23 of bytes, and the phase.

struct Phase {
    std::uint64_t bits;

    std::uint64_t missing() const { return bits & 0xFFFFF; }
    std::uint64_t all() const { return bits >> 20 & 0xFFFFF; }
    std::uint64_t bytes() const { return bits >> 40 & 0x7FFFFF; }
    unsigned parity() const { return static_cast<unsigned>(bits >> 63); }
};

std::uint64_t phase_of(std::uint64_t missing, std::uint64_t all, std::uint64_t bytes, unsigned parity) {
    return missing | all << 20 | bytes << 40 | std::uint64_t{parity} << 63;
}

// Counts arrivals and bytes of a phase, and ends it where none are left.
void count(unsigned long long* barrier, unsigned arrivals, long long bytes) {
    const Phase now = {*barrier};
    if (now.all() == 0 || now.all() == 0xFFFFF) {
        stop("a barrier in shared memory is used before it is made");
    }
    if (arrivals > now.missing()) {
        stop("more threads arrive at a barrier than it was made for");
    }
    const std::uint64_t missing = now.missing() - arrivals;
    const std::uint64_t left = now.bytes() + static_cast<std::uint64_t>(bytes);
    if (left > 0x7FFFFF) {
        stop("more bytes come to a barrier than were announced");
    }
    if (missing == 0 && left == 0) {
        *barrier = phase_of(now.all(), now.all(), 0, now.parity() ^ 1);
        notify(barrier);
    } else {
        *barrier = phase_of(missing, now.all(), left, now.parity());
    }
}

// ---- copies

struct Copy {
    unsigned char* to;
    TensorDescription from;
    int at[4];
    unsigned long long* barrier;
};

struct Copies {
    Copy given[most_copies];
    Counter count;
    // Whether a thread has made barriers that copies cannot see yet.
    Counter unseen;
};

Copies& copies() {
    static const char tag = 0;
    auto& all = *static_cast<Copies*>(shared(&tag, sizeof(Copies)));
    if (all.count == ~Counter{0}) {
        all.count = 0;
        all.unseen = 0;
    }
    return all;
}

// Where a byte of shared memory is when its place of 16 bytes is changed by its row.
unsigned turned(unsigned address) {
    return address ^ (address / row_bytes % 8) * 16;
}

void carry_out(const Copy& copy) {
    const TensorDescription& from = copy.from;
    const unsigned start = shared_place(copy.to);
    unsigned bytes = 0;
    for (unsigned row = 0; row < from.box[2]; ++row) {
        for (unsigned column = 0; column < from.box[0]; ++column) {
            const long long at[4] = {copy.at[0] + static_cast<long long>(column), copy.at[1],
                                     copy.at[2] + static_cast<long long>(row), copy.at[3]};
            bool there = true;
            const unsigned char* place = reinterpret_cast<const unsigned char*>(from.address) + 2 * at[0];
            for (unsigned dimension = 0; dimension < 4; ++dimension) {
                there = there && at[dimension] >= 0 && at[dimension] < from.size[dimension];
                if (dimension > 0) {
                    place += static_cast<std::ptrdiff_t>(from.stride[dimension - 1]) * at[dimension];
                }
            }
            unsigned char* const to = copy.to + (turned(start + bytes) - start);
            if (there) {
                std::memcpy(to, place, 2);
            } else {
                std::memset(to, 0, 2);
            }
            bytes += 2;
        }
    }
    count(copy.barrier, 0, -static_cast<long long>(bytes));
}

// Carries out one of the copies, any of them.
bool advance() {
    const sanitizer::Unseen unseen;
    Copies& all = copies();
    if (all.count == 0) {
        return false;
    }
    Counter chosen = 0;
    while (chosen + 1 < all.count && coin()) {
        chosen += 1;
    }
    const Copy copy = all.given[chosen];
    all.given[chosen] = all.given[--all.count];
    carry_out(copy);
    return true;
}

// ---- products

struct Accumulator {
    float* sums;
    Counter tiles;
    float values[most_columns / 8 * 4];
};

struct Product {
    Half kind;
    unsigned accumulator;
    // Rows g and g + 8, where they came from registers; else the descriptor has their place.
    bool from_registers;
    float left[2][terms];
    // The registers, and what was in them when the product was given.
    const unsigned* registers;
    unsigned given[4];
    unsigned long long left_place;
    unsigned long long right_place;
    bool right_has_terms;
    bool add;
    bool spoilt;
};

// What a thread has given and not waited for.
struct Products {
    Accumulator accumulators[most_accumulators];
    Counter accumulator_count;
    Product given[most_products];
    Counter count;
    // How many of them are carried out.
    Counter done;
    Counter ends[most_products];
    Counter groups;
    Counter fenced;
};

struct Warp {
    float left[2][16][terms];
    Counter turns[32];
};

Products& products() {
    static const char tag = 0;
    auto* all = static_cast<Products*>(shared(&tag, sizeof(Products) * block_extent().x));
    Products& mine = all[thread_number()];
    if (mine.count == ~Counter{0}) {
        mine.accumulator_count = mine.count = mine.done = mine.groups = mine.fenced = 0;
    }
    return mine;
}

float number(Half kind, const unsigned char* place) {
    std::uint16_t bits;
    std::memcpy(&bits, place, 2);
    return half(kind, bits, 0);
}

// An operand in shared memory, as its descriptor has it.
struct Operand {
    unsigned start;
    unsigned across;
    unsigned rows;

    explicit Operand(unsigned long long descriptor)
        : start(static_cast<unsigned>(descriptor & 0x3FFF) << 4),
          across(static_cast<unsigned>(descriptor >> 16 & 0x3FFF) << 4),
          rows(static_cast<unsigned>(descriptor >> 32 & 0x3FFF) << 4) {
        if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) {
            stop("a descriptor of a layout that the emulator does not have");
        }
    }

    // Row and column in elements, of rows that are 128 bytes long.
    const unsigned char* at(unsigned row, unsigned column) const {
        const unsigned place = start + row / 8 * rows + row % 8 * row_bytes + column / 64 * across + column % 64 * 2;
        const unsigned address = turned(place);
        if (address < shared_start) {
            stop("a product reads before the shared memory of its block");
        }
        return static_cast<const unsigned char*>(shared_at_launch()) + (address - shared_start);
    }
};

void carry_out(Products& mine, const Product& product) {
    Accumulator& to = mine.accumulators[product.accumulator];
    const auto me = static_cast<unsigned>(lane());
    const unsigned g = me / 4, t = me % 4, warp = thread_number() / 32 % 4;
    float left[2][terms];
    bool spoilt = product.spoilt;
    if (product.from_registers) {
        std::memcpy(left, product.left, sizeof left);
        spoilt = spoilt || std::memcmp(product.registers, product.given, sizeof product.given) != 0;
    } else {
        const Operand operand(product.left_place);
        for (unsigned half = 0; half < 2; ++half) {
            for (unsigned k = 0; k < terms; ++k) {
                left[half][k] = number(product.kind, operand.at(16 * warp + 8 * half + g, k));
            }
        }
    }
    const Operand right(product.right_place);
    for (unsigned tile = 0; tile < to.tiles; ++tile) {
        for (unsigned which = 0; which < 2; ++which) {
            const unsigned column = 8 * tile + 2 * t + which;
            float* const low = &to.values[4 * tile + which];
            float* const high = low + 2;
            *low = product.add ? *low : 0.0f;
            *high = product.add ? *high : 0.0f;
            for (unsigned k = 0; k < terms; ++k) {
                const float value =
                    number(product.kind, product.right_has_terms ? right.at(k, column) : right.at(column, k));
                *low += left[0][k] * value;
                *high += left[1][k] * value;
            }
            if (spoilt) {
                *low = *high = std::numeric_limits<float>::quiet_NaN();
            }
        }
    }
}

// Carries out products up to a number, in their order.
void carry_out_until(Products& mine, Counter end) {
    for (; mine.done < end; ++mine.done) {
        carry_out(mine, mine.given[mine.done]);
    }
}

// The hidden values of sums, which are not numbers for the thread until it has waited.
unsigned accumulator_of(Products& mine, float* sums, unsigned tiles) {
    for (Counter i = 0; i < mine.accumulator_count; ++i) {
        if (mine.accumulators[i].sums == sums) {
            return i;
        }
    }
    if (mine.accumulator_count == most_accumulators || tiles * 8 > most_columns) {
        stop("more sums under way than the emulator has room for");
    }
    Accumulator& fresh = mine.accumulators[mine.accumulator_count];
    fresh.sums = sums;
    fresh.tiles = tiles;
    std::memcpy(fresh.values, sums, tiles * 4 * sizeof(float));
    return mine.accumulator_count++;
}

void give(Half kind, float* sums, unsigned tiles, Product product) {
    Products& mine = products();
    if (mine.count == most_products) {
        stop("a thread has given too many products without waiting");
    }
    product.kind = kind;
    product.accumulator = accumulator_of(mine, sums, tiles);
    product.spoilt = mine.fenced == 0;
    for (unsigned i = 0; i < tiles * 4; ++i) {
        sums[i] = std::numeric_limits<float>::quiet_NaN();
    }
    mine.given[mine.count++] = product;
    if (coin()) {
        carry_out_until(mine, mine.count);
    }
}

}  // namespace

unsigned shared_place(const void* place) {
    const auto distance = static_cast<const unsigned char*>(place) - static_cast<unsigned char*>(shared_at_launch());
    return shared_start + static_cast<unsigned>(distance);
}

void make_barrier(unsigned long long* barrier, unsigned arrivals) {
    const sanitizer::Unseen unseen;
    *barrier = phase_of(arrivals, arrivals, 0, 0);
    copies().unseen = 1;
    run_beside(advance);
}

void show_barriers() {
    const sanitizer::Unseen unseen;
    copies().unseen = 0;
}

void announce(unsigned long long* barrier, unsigned bytes) {
    const sanitizer::Unseen unseen;
    count(barrier, 0, bytes);
    count(barrier, 1, 0);
}

void arrive(unsigned long long* barrier) {
    const sanitizer::Unseen unseen;
    count(barrier, 1, 0);
}

void wait_for_phase(unsigned long long* barrier, unsigned parity, int line) {
    const sanitizer::Unseen unseen;
    if (coin()) {
        advance();
    }
    while (Phase{*barrier}.parity() == parity) {
        wait_at(barrier, line);
    }
}

void copy_box(void* to, const unsigned long long* map, int x, int y, int z, int w, unsigned long long* barrier) {
    const sanitizer::Unseen unseen;
    Copies& all = copies();
    Copy copy = {static_cast<unsigned char*>(to), {}, {x, y, z, w}, barrier};
    std::memcpy(&copy.from, map, sizeof copy.from);
    if (copy.from.magic != tensor_magic || reinterpret_cast<std::uintptr_t>(map) % 128 != 0) {
        stop("a copy needs a tensor map at a multiple of 128");
    }
    if (shared_place(to) % 1024 != 0) {
        stop("a copy to shared memory is not at a multiple of 1024");
    }
    if (all.unseen != 0) {
        stop("a copy is given a barrier that it cannot see");
    }
    if (all.count == most_copies) {
        stop("too many copies of boxes are under way");
    }
    all.given[all.count++] = copy;
    if (coin()) {
        advance();
    }
}

void begin_products(int line) {
    const sanitizer::Unseen unseen;
    exchange(~0u, 0, lane(), line);
    products().fenced = 1;
}

void end_products() {
    const sanitizer::Unseen unseen;
    Products& mine = products();
    mine.ends[mine.groups++] = mine.count;
}

void wait_products(unsigned left) {
    const sanitizer::Unseen unseen;
    Products& mine = products();
    mine.fenced = 0;
    if (left == 0 && mine.count > (mine.groups == 0 ? 0 : mine.ends[mine.groups - 1])) {
        stop("a thread waits for products that are in no group");
    }
    if (mine.groups <= left) {
        return;
    }
    const Counter finished = mine.groups - left, end = mine.ends[finished - 1];
    carry_out_until(mine, end);
    // Sums that no product under way adds to are the thread's again.
    for (Counter i = 0; i < mine.accumulator_count;) {
        Accumulator& of = mine.accumulators[i];
        bool busy = false;
        for (Counter product = end; product < mine.count; ++product) {
            busy = busy || mine.given[product].accumulator == i;
        }
        if (busy) {
            ++i;
            continue;
        }
        std::memcpy(of.sums, of.values, of.tiles * 4 * sizeof(float));
        const Counter last = --mine.accumulator_count;
        of = mine.accumulators[last];
        for (Counter product = end; product < mine.count; ++product) {
            if (mine.given[product].accumulator == last) {
                mine.given[product].accumulator = i;
            }
        }
    }
    for (Counter i = end; i < mine.count; ++i) {
        mine.given[i - end] = mine.given[i];
    }
    for (Counter group = finished; group < mine.groups; ++group) {
        mine.ends[group - finished] = mine.ends[group] - end;
    }
    mine.count -= end;
    mine.done -= end;
    mine.groups = left;
}

void multiply_rows(Half kind, float* sums, unsigned tiles, unsigned long long left, unsigned long long right, bool add,
                   int line) {
    const sanitizer::Unseen unseen;
    exchange(~0u, 0, lane(), line);
    Product product = {};
    product.left_place = left;
    product.right_place = right;
    product.add = add;
    give(kind, sums, tiles, product);
}

void multiply_columns(Half kind, float* sums, unsigned tiles, const unsigned* left, unsigned long long right,
                      int line) {
    const sanitizer::Unseen unseen;
    static const char tag = 0;
    Warp& here = static_cast<Warp*>(shared(&tag, sizeof(Warp) * most_warps))[thread_number() / 32];
    const auto me = static_cast<unsigned>(lane());
    const unsigned g = me / 4, turn = ++here.turns[me] % 2;
    put_left(kind, left, here.left[turn]);
    exchange(~0u, 0, lane(), line);
    Product product = {};
    product.from_registers = true;
    std::memcpy(product.left[0], here.left[turn][g], sizeof product.left[0]);
    std::memcpy(product.left[1], here.left[turn][g + 8], sizeof product.left[1]);
    product.registers = left;
    std::memcpy(product.given, left, sizeof product.given);
    product.right_place = right;
    product.right_has_terms = true;
    product.add = true;
    give(kind, sums, tiles, product);
}

void set_registers(unsigned count) {
    const sanitizer::Unseen unseen;
    static const char tag = 0;
    auto* const taken = static_cast<Counter*>(shared(&tag, sizeof(Counter) * 1024));
    if (count % 8 != 0 || count < 24 || count > 256) {
        stop("a number of registers that no thread may have");
    }
    taken[thread_number()] = count;
    unsigned sum = 0;
    for (unsigned thread = 0; thread < block_extent().x; ++thread) {
        sum += taken[thread] == ~Counter{0} ? 0 : taken[thread];
    }
    if (sum > 64 << 10) {
        stop("threads of a block take more registers than there are");
    }
}

}  // namespace emulator
