// Fragments, matrices and late copies; see tensor_core.h.
//
// What the lanes of a warp pass each other is in memory of the running block, so that every block starts anew.
// Checkers do not look at it; they do look at what matrices are loaded from and at both ends of a copy.
#include "cuda_emulator.h"
#include "sanitizer.h"
#include "tensor_core.h"

#include <cstdio>
#include <cstdlib>

namespace emulator {
namespace {

constexpr unsigned most_warps = 32;
constexpr unsigned most_copies = 96;
constexpr unsigned most_groups = 8;

// Memory of a block starts with all bits set: counters start at -1, so that the first turn is 0.
using Counter = std::uint32_t;

// What a warp's lanes gave to their latest two collective calls. Two, because a lane may already give to the next while
// others read; it cannot get to the one after that before all have come to the next.
struct Warp {
    float left[2][16][16];
    float right[2][16][8];
    const unsigned short* rows[2][32];
    Counter products[32];
    Counter loads[32];
};

struct Copy {
    void* to;
    const void* from;
    bool there;
};

// The copies that a thread has given and not waited for, and where groups of them end.
struct Copies {
    Copy given[most_copies];
    Counter ends[most_groups];
    Counter count;
    Counter groups;
};

unsigned long long conflicts = 0;

[[noreturn]] void stop(const char* what) {
    std::fprintf(stderr, "emulated tensor core: %s\n", what);
    std::abort();
}

unsigned thread_number() {
    const Triple& index = thread_index();
    const Triple& extent = block_extent();
    return index.x + extent.x * (index.y + extent.y * index.z);
}

Warp& warp() {
    static const char tag = 0;
    auto* warps = static_cast<Warp*>(shared(&tag, sizeof(Warp) * most_warps));
    return warps[thread_number() / 32];
}

Copies& copies() {
    static const char tag = 0;
    const Triple& extent = block_extent();
    auto* all = static_cast<Copies*>(shared(&tag, sizeof(Copies) * extent.x * extent.y * extent.z));
    Copies& mine = all[thread_number()];
    if (mine.count == ~Counter{0}) {
        mine.count = 0;
        mine.groups = 0;
    }
    return mine;
}

// What was carried out before has no place any more.
void carry_out(const Copy& copy) {
    if (copy.to == nullptr) {
        return;
    }
    if (copy.there) {
        std::memcpy(copy.to, copy.from, 16);
    } else {
        std::memset(copy.to, 0, 16);
    }
}

bool aligned(const void* place) {
    return reinterpret_cast<std::uintptr_t>(place) % 16 == 0;
}

// The banks of eight rows that are read at once: each bank of 16 bytes serves one.
void count_conflicts(const unsigned short* const* rows) {
    unsigned taken = 0;
    for (unsigned row = 0; row < 8; ++row) {
        const unsigned bank = 1u << (reinterpret_cast<std::uintptr_t>(rows[row]) / 16 % 8);
        conflicts += (taken & bank) != 0;
        taken |= bank;
    }
}

}  // namespace

float half(Half kind, unsigned pair, unsigned which) {
    const auto bits = static_cast<std::uint16_t>(which == 0 ? pair : pair >> 16);
    return kind == Half::f16 ? f32_from_f16(bits) : bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
}

void put_left(Half kind, const unsigned* registers, float (&left)[16][16]) {
    const auto me = static_cast<unsigned>(lane());
    const unsigned g = me / 4, t = me % 4;
    for (unsigned pair = 0; pair < 4; ++pair) {
        for (unsigned which = 0; which < 2; ++which) {
            left[g + pair % 2 * 8][2 * t + pair / 2 * 8 + which] = half(kind, registers[pair], which);
        }
    }
}

void multiply(Half kind, float* c, const unsigned* a, unsigned b0, unsigned b1, int line) {
    const sanitizer::Unseen unseen;
    Warp& here = warp();
    const auto me = static_cast<unsigned>(lane());
    const unsigned g = me / 4, t = me % 4;
    const unsigned turn = ++here.products[me] % 2;
    float(&left)[16][16] = here.left[turn];
    float(&right)[16][8] = here.right[turn];
    put_left(kind, a, left);
    for (unsigned which = 0; which < 2; ++which) {
        right[2 * t + which][g] = half(kind, b0, which);
        right[2 * t + 8 + which][g] = half(kind, b1, which);
    }
    exchange(~0u, 0, lane(), line);
    for (unsigned k = 0; k < 16; ++k) {
        for (unsigned i = 0; i < 4; ++i) {
            c[i] += left[g + i / 2 * 8][k] * right[k][2 * t + i % 2];
        }
    }
}

void load_matrices(unsigned* words, const void* row, bool turned, int line) {
    const auto me = static_cast<unsigned>(lane());
    const unsigned short* rows[32];
    {
        const sanitizer::Unseen unseen;
        Warp& here = warp();
        if (!aligned(row)) {
            stop("a row of a matrix is not aligned to 16 bytes");
        }
        const unsigned turn = ++here.loads[me] % 2;
        here.rows[turn][me] = static_cast<const unsigned short*>(row);
        exchange(~0u, 0, lane(), line);
        std::memcpy(rows, here.rows[turn], sizeof rows);
        for (unsigned matrix = 0; matrix < 4 && me == 0; ++matrix) {
            count_conflicts(rows + 8 * matrix);
        }
    }
    const unsigned g = me / 4, t = me % 4;
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const unsigned short* const* of = rows + 8 * matrix;
        const unsigned low = turned ? of[2 * t][g] : of[g][2 * t];
        const unsigned high = turned ? of[2 * t + 1][g] : of[g][2 * t + 1];
        words[matrix] = low | high << 16;
    }
}

unsigned long long bank_conflicts() {
    return conflicts;
}

void copy_later(void* to, const void* from, bool there) {
    bool now = false;
    {
        const sanitizer::Unseen unseen;
        Copies& mine = copies();
        if (!aligned(to) || !aligned(from)) {
            stop("a copy to shared memory is not aligned to 16 bytes");
        }
        if (mine.count == most_copies) {
            stop("a thread has given too many copies without waiting");
        }
        now = coin();
        mine.given[mine.count++] = {now ? nullptr : to, from, there};
    }
    if (now) {
        carry_out({to, from, there});
    }
}

void end_copies() {
    const sanitizer::Unseen unseen;
    Copies& mine = copies();
    if (mine.groups == most_groups) {
        stop("a thread has ended too many groups of copies without waiting");
    }
    mine.ends[mine.groups++] = mine.count;
}

void wait_copies(unsigned left) {
    Copies& mine = copies();
    if (mine.groups <= left) {
        return;
    }
    const Counter finished = mine.groups - left, end = mine.ends[finished - 1];
    for (Counter i = 0; i < end; ++i) {
        carry_out(mine.given[i]);
    }
    for (Counter i = end; i < mine.count; ++i) {
        mine.given[i - end] = mine.given[i];
    }
    for (Counter group = finished; group < mine.groups; ++group) {
        mine.ends[group - finished] = mine.ends[group] - end;
    }
    mine.count -= end;
    mine.groups = left;
}

}  // namespace emulator
