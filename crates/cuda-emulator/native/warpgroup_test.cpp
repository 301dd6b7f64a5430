// Attention on products of warpgroups in blocks that run in several random orders, against the formula. Appended to
// the unit for heads of 128 in f16; the emulator's claims are tested by the same program with a mistake in the kernel.
// Prints what failed; the exit status is the number of failures.
#include <cstdio>

namespace {

constexpr unsigned seeds = 6;
constexpr int head = 128, heads = 2, length = 300;

using Bits = std::uint16_t;

// [length, heads or 1, head]: numbers between -1 and 1 without a short period.
std::vector<Bits> operand(int count, unsigned seed) {
    std::vector<Bits> bits(static_cast<std::size_t>(length) * count * head);
    for (std::size_t i = 0; i < bits.size(); ++i) {
        const unsigned word = (static_cast<unsigned>(i) ^ seed * 0x85eb'ca6bu) * 0x9e37'79b9u >> 8;
        bits[i] = emulator::f16_from_f32(static_cast<float>(word) / 8'388'608.0f - 1.0f);
    }
    return bits;
}

double at(const std::vector<Bits>& of, int count, int row, int which, int column) {
    return emulator::f32_from_f16(of[(static_cast<std::size_t>(row) * count + which) * head + column]);
}

TensorMap map_of(const std::vector<Bits>& of, int count) {
    emulator::TensorDescription description = {emulator::tensor_magic,
                                   reinterpret_cast<std::uintptr_t>(of.data()),
                                   {head, static_cast<unsigned>(count), length, 1},
                                   {2 * head, 2ull * head * count, 2ull * head * count * length},
                                   {64, 1, 128, 1}};
    TensorMap map = {};
    std::memcpy(&map, &description, sizeof description);
    return map;
}

struct Case {
    std::vector<Bits> q = operand(heads, 1), k = operand(1, 2), v = operand(1, 3), out = operand(heads, 4);
    std::vector<float> lse = std::vector<float>(heads * length);

    WarpgroupArguments arguments() {
        WarpgroupArguments a = {};
        a.q = map_of(q, heads);
        a.k = map_of(k, 1);
        a.v = map_of(v, 1);
        a.attention.out = {out.data(), kF16, 0, 1LL * length * heads * head, heads * head};
        a.attention.lse = lse.data();
        a.attention.batch = 1;
        a.attention.heads = heads;
        a.attention.kv_heads = 1;
        a.attention.queries = a.attention.keys = length;
        a.attention.head_size = head;
        a.attention.ahead = 0;
        a.attention.window_shift = std::numeric_limits<int>::min();
        a.attention.whole = 1;
        a.attention.in_turn = 1;
        a.attention.scale = 0.5f;
        return a;
    }

    // How far results are from the formula, at most; not a number if one of them is none.
    double distance() const {
        double worst = 0;
        for (int n = 0; n < heads; ++n) {
            for (int l = 0; l < length; ++l) {
                std::vector<double> weights(l + 1);
                double most = -1e300, total = 0;
                for (int s = 0; s <= l; ++s) {
                    for (int h = 0; h < head; ++h) {
                        weights[s] += 0.5 * at(q, heads, l, n, h) * at(k, 1, s, 0, h);
                    }
                    most = std::max(most, weights[s]);
                }
                for (double& weight : weights) {
                    weight = std::exp(weight - most);
                    total += weight;
                }
                const double far = std::abs(lse[n * length + l] - (most + std::log(total)));
                worst = far <= worst ? worst : far;
                for (int h = 0; h < head; ++h) {
                    double expected = 0;
                    for (int s = 0; s <= l; ++s) {
                        expected += weights[s] / total * at(v, 1, s, 0, h);
                    }
                    const double difference = std::abs(at(out, heads, l, n, h) - expected);
                    worst = difference <= worst ? worst : difference;
                }
            }
        }
        return worst;
    }
};

}  // namespace

int main() {
    int failures = 0;
    for (unsigned seed = 0; seed < seeds; ++seed) {
        Case of;
        WarpgroupArguments arguments = of.arguments();
        void* pointers[] = {&arguments};
        const auto kernel = emulator::kernels().at("attention_wgmma_forward_128_f16").bind(pointers);
        const emulator::Extent extent = {{heads * 3, 1, 1}, {kWarpgroupBlock, 1, 1}, 5 * 128 * head * 2 + 1024};
        const std::string failure = emulator::run(kernel, extent, seed);
        const double distance = failure.empty() ? of.distance() : 0;
        if (!failure.empty() || !(distance < 2e-3)) {
            std::printf("FAILED: seed %u: %s, results are %g from the formula\n", seed, failure.c_str(), distance);
            failures += 1;
        }
    }
    return failures;
}
