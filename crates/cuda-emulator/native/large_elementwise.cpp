// elementwise.cu beyond 2^32 elements; see large_indices.h.
#include "large_indices.h"

namespace {

// Elements of a round of one block.
constexpr long long kBlock = static_cast<long long>(kElementwiseThreads) * kPack;

// A grid whose blocks each take `rounds` rounds; the last block has the last elements of the last one.
void check_cast(long long rounds) {
    const long long grid = ((1LL << 32) / kBlock + 6) / rounds;
    // The last pack is not full.
    const long long count = grid * rounds * kBlock - 3;
    large::Sparse<float> x(count);
    large::Sparse<bf16> out(count);
    for (long long i = count - 2000; i < count; ++i) {
        x[i] = static_cast<float>(i % 251) + 1.0f;
    }
    const CastArguments a = {{x.data(), kF32, 0}, {out.data(), kBF16, 0}, count, 1, 0};
    large::run_end([&] { cast_mixed(a); }, static_cast<unsigned>(grid), 1, {kElementwiseThreads, 1, 1});
    bool right = count > 1LL << 32;
    for (long long i = count - 2000; i < count; ++i) {
        right = right && widen(out[i]) == x[i];
    }
    large::expect(right, "a cast reaches the end of a large tensor");
}

}  // namespace

int main() {
    check_cast(1);
    check_cast(2);
    check_cast(3);
    return large::failures;
}
