// rows.cu beyond 2^32 elements; see large_indices.h.
#include "large_indices.h"

namespace {

constexpr long long kColumns = 4096;
constexpr long long kRows = (1LL << 20) + 4;

// A number for each column that f32 and bf16 hold.
float value_of(long long column) {
    return static_cast<float>(column % 127) + 1.0f;
}

template <class Value>
void fill_row(large::Sparse<Value>& x, long long start) {
    for (long long c = 0; c < kColumns; ++c) {
        x[start + c] = narrow<Value>(value_of(c));
    }
}

template <class Value>
bool holds_row(large::Sparse<Value>& x, long long start, float factor) {
    bool right = true;
    for (long long c = 0; c < kColumns; ++c) {
        right = right && widen(x[start + c]) == factor * value_of(c);
    }
    return right;
}

// Rows of one axis, `from` and `to` apart.
Axes one_axis(long long rows, long long from, long long to) {
    Axes axes = {};
    axes.length[0] = rows;
    axes.from[0] = from;
    axes.to[0] = to;
    axes.count = 1;
    return axes;
}

// Many rows without large gaps, in units of 2 and of 16 bytes, each block with one or two of the grid's turns.
void check_many_rows(int unit_bytes, unsigned turns) {
    const long long stride = kColumns + 8, unit = unit_bytes / 2;
    large::Sparse<bf16> x(kRows * kColumns), out(kRows * stride);
    fill_row(x, (kRows - 1) * kColumns);
    const long long units = kColumns / unit;
    const CopyRowsArguments a = {
        x.data(), out.data(), kRows, units, one_axis(kRows, kColumns / unit, stride / unit), unit_bytes, 0};
    const long long pieces = (units + 1023) / 1024;
    const auto grid = static_cast<unsigned>(kRows * pieces / turns);
    large::run_end([&] { copy_rows(a); }, grid, static_cast<unsigned>(pieces), {kRowsThreads, 1, 1});
    large::expect(holds_row(out, (kRows - 1) * stride, 1.0f), "the last row is copied");
}

// Few rows that are very far from each other, copied and added.
void check_far_rows() {
    const long long from = (1LL << 31) + 8, to = (1LL << 32) + 16;
    large::Sparse<bf16> x(2 * from + kColumns), out(2 * to + kColumns);
    fill_row(x, 2 * from);
    const CopyRowsArguments copy = {x.data(), out.data(), 3, kColumns / 8, one_axis(3, from / 8, to / 8), 16, 0};
    large::run_end([&] { copy_rows(copy); }, 3, 1, {kRowsThreads, 1, 1});
    large::expect(holds_row(out, 2 * to, 1.0f), "a row far away is copied");
    const AddRowsArguments add = {{x.data(), kBF16, 0}, {out.data(), kBF16, 1}, 3, kColumns, one_axis(3, from, to), 1,
        0};
    large::run_end([&] { add_rows_bf16(add); }, 3, 1, {kRowsThreads, 1, 1});
    large::expect(holds_row(out, 2 * to, 2.0f), "a row far away is added");
}

// The last tile of a transposed matrix, which is not full.
void check_transposition() {
    const long long moved = kRows + 1, last = kColumns + 1;
    large::Sparse<unsigned short> x(moved * last), out(moved * last);
    const long long first_moved = moved / 64 * 64, first_last = last / 64 * 64;
    for (long long m = first_moved; m < moved; ++m) {
        for (long long l = first_last; l < last; ++l) {
            x[l * moved + m] = static_cast<unsigned short>(1 + m % 64 + 64 * (l % 64));
        }
    }
    const TransposeArguments a = {x.data(), {out.data(), kF16, 0}, 1, one_axis(1, 0, 0), moved, last, last, moved};
    const long long tiles = (moved / 64 + 1) * (last / 64 + 1);
    large::run_end([&] { transpose_16(a); }, static_cast<unsigned>(tiles), 1, {32, 8, 1});
    bool right = true;
    for (long long m = first_moved; m < moved; ++m) {
        for (long long l = first_last; l < last; ++l) {
            right = right && out[m * last + l] == x[l * moved + m] && out[m * last + l] != 0;
        }
    }
    large::expect(right, "the last tile is transposed");
}

}  // namespace

int main() {
    check_many_rows(2, 1);
    check_many_rows(16, 1);
    check_many_rows(16, 2);
    check_far_rows();
    check_transposition();
    return large::failures;
}
