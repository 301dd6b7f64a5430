// norm.cu beyond 2^32 elements; see large_indices.h.
#include "large_indices.h"

int main() {
    constexpr long long rows = (1LL << 20) + 3, columns = 4096 + 8;
    large::Sparse<float> x(rows * columns), y(rows * columns), mean(rows), rstd(rows), weight(columns);
    double sum = 0.0, squares = 0.0;
    const long long last = rows - 1;
    for (long long c = 0; c < columns; ++c) {
        const float value = static_cast<float>(c * 37 % 101) * 0.25f;
        x[last * columns + c] = value;
        weight[c] = 1.0f;
        sum += value;
        squares += static_cast<double>(value) * value;
    }
    NormForwardArguments a = {};
    a.x = {x.data(), kF32, 0};
    a.weight = {weight.data(), kF32, 0};
    a.y = {y.data(), kF32, 0};
    a.mean = mean.data();
    a.rstd = rstd.data();
    a.rows = rows;
    a.columns = columns;
    a.epsilon = 1e-5f;
    a.whole = 1;
    large::run_end([&] { norm_forward_f32(a); }, static_cast<unsigned>(rows), 2, {512, 1, 1});
    const double expected_mean = sum / columns;
    const double expected_rstd = 1.0 / std::sqrt(squares / columns - expected_mean * expected_mean + 1e-5);
    large::expect(large::close(mean[last], expected_mean), "the mean of the last row");
    large::expect(large::close(rstd[last], expected_rstd), "the deviation of the last row");
    bool right = true;
    for (long long c = 0; c < columns; ++c) {
        const double expected = (x[last * columns + c] - expected_mean) * expected_rstd;
        right = right && large::close(y[last * columns + c], expected);
    }
    large::expect(right, "the last row of a large tensor is normalised");
    return large::failures;
}
