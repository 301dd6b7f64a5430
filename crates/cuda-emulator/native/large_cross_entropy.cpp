// cross_entropy.cu beyond 2^32 logits; see large_indices.h.
#include "large_indices.h"

int main() {
    constexpr long long rows = (1LL << 17) + 1, classes = 50257;
    large::Sparse<bf16> logits(rows * classes);
    large::Sparse<long long> targets(rows);
    large::Sparse<float> losses(rows), lse(rows);
    const long long begin = (rows - 1) * classes;
    double sum = 0.0;
    for (long long c = 0; c < classes; ++c) {
        const float value = static_cast<float>(c % 17) * 0.25f;
        logits[begin + c] = narrow<bf16>(value);
        sum += std::exp(static_cast<double>(value));
    }
    targets[rows - 1] = classes - 1;
    Fault fault = {};
    const Criterion shared = {targets.data(), -100, 0, classes, classes, nullptr, nullptr, &fault, 0.0f, 0};
    const CrossEntropyForwardArguments forward = {{logits.data(), kBF16, 0}, shared, losses.data(), lse.data(),
        classes};
    large::run_end([&] { cross_entropy_forward_bf16(forward); }, rows, 1, {kLossThreads, 1, 1});
    const double at_target = widen(logits[begin + classes - 1]);
    large::expect(large::close(lse[rows - 1], std::log(sum)), "the log-sum-exp of the last row");
    large::expect(large::close(losses[rows - 1], std::log(sum) - at_target), "the loss of the last row");

    const float dloss = 1.0f;
    const CrossEntropyBackwardArguments backward = {
        {logits.data(), kBF16, 0}, {logits.data(), kBF16, 0}, shared, lse.data(), &dloss, nullptr, classes, 0, 1, 1, 0};
    large::run_end([&] { cross_entropy_backward_bf16(backward); }, rows, 1, {kLossThreads, 1, 1});
    const double expected = std::exp(at_target) / sum - 1.0;
    large::expect(std::fabs(widen(logits[begin + classes - 1]) - expected) < 4e-3, "the gradient at the last target");
    large::expect(std::fabs(widen(logits[begin]) * sum - 1.0) < 4e-3,
                  "the gradient at the first logit of the last row");
    large::expect(fault.kernel == 0, "nothing is reported");
    return large::failures;
}
