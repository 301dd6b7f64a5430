// embedding.cu beyond 2^32 elements; see large_indices.h.
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

void check_embedding() {
    large::Sparse<bf16> table(kRows * kColumns);
    large::Sparse<float> out(kRows * kColumns);
    large::Sparse<long long> ids(kRows);
    Fault fault = {};
    fill_row(table, (kRows - 1) * kColumns);
    ids[kRows - 1] = kRows - 1;
    const EmbeddingForwardArguments a = {
        {table.data(), kBF16, 0}, {out.data(), kF32, 0}, ids.data(), &fault, kRows, kColumns, kRows, 1, 0};
    large::run_end([&] { embedding_forward_mixed(a); }, kRows / 2, 1, {kRowsThreads, 1, 1});
    large::expect(holds_row(out, (kRows - 1) * kColumns, 1.0f), "the last entry is the last row");
    large::expect(fault.kernel == 0, "nothing is reported");

    // The gradient of the same rows: the last piece has two of them, of the same entry.
    large::Sparse<unsigned> order(kRows);
    large::Sparse<float> partials(2 * kRows / 32 * kColumns * 2), dtable(kRows * kColumns);
    for (long long row = kRows - 36; row < kRows; ++row) {
        order[row] = static_cast<unsigned>(row);
        ids[row] = row == kRows - 2 ? kRows - 1 : row;
    }
    fill_row(out, (kRows - 2) * kColumns);
    const long long pieces = (kRows + 31) / 32;
    const EmbeddingSumArguments sum = {{out.data(), kF32, 0}, {dtable.data(), kF32, 0}, ids.data(), order.data(),
                                       partials.data(), kRows, kColumns, kRows, -1, 32, 1, 0};
    emulator::Extent extent = {{static_cast<unsigned>(pieces), 2, 1}, {kSumThreads, 1, 1}};
    extent.first_block = static_cast<unsigned>(pieces) - 1;
    large::expect(emulator::run([&] { embedding_sum_f32(sum); }, extent, 1).empty(), "the sums run");
    large::expect(holds_row(dtable, (kRows - 1) * kColumns, 2.0f), "the gradient of the last entry");
}

}  // namespace

int main() {
    check_embedding();
    return large::failures;
}
