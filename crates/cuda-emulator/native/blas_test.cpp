// What the emulated cuBLASLt claims of itself: every epilogue against doubles, and what it must refuse. Linked with the
// emulated driver. Prints what failed; the exit status is the number of failures.
#include "cuda_emulator.h"
#include "fake_blas.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>

using namespace fake_blas;
using Address = unsigned long long;

extern "C" {
int cuInit(unsigned);
int cuCtxSetCurrent(void*);
int cuMemAlloc_v2(Address*, std::size_t);
int cuMemFree_v2(Address);
int cuStreamCreate(void**, unsigned);
int cuStreamSynchronize(void*);
Status cublasLtCreate(void**);
Status cublasLtMatrixLayoutCreate(void**, int, std::uint64_t, std::uint64_t, std::int64_t);
Status cublasLtMatrixLayoutSetAttribute(void*, int, const void*, std::size_t);
Status cublasLtMatrixLayoutDestroy(void*);
Status cublasLtMatmulDescCreate(void**, int, int);
Status cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t);
Status cublasLtMatmulPreferenceCreate(void**);
Status cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t);
Status cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int*);
Status cublasLtMatmul(void*, void*, const void*, Address, void*, Address, void*, const void*, Address, void*, Address,
                      void*,                       const void*, Address, std::size_t, void*);
}

namespace {

int failures = 0;
void* handle = nullptr;
void* stream = nullptr;

void expect(bool holds, const std::string& claim) {
    if (!holds) {
        std::printf("FAILED: %s\n", claim.c_str());
        failures += 1;
    }
}

// Numbers in device memory, in a dtype.
struct Numbers {
    int type;
    Address start = 0;
    std::size_t count;

    Numbers(int number_type, std::size_t elements, unsigned seed) : type(number_type),
        count(std::max<std::size_t>(elements, 1)) {
        expect(cuMemAlloc_v2(&start, count * bytes_of(type)) == 0, "memory");
        std::mt19937 random(seed);
        for (std::size_t i = 0; i < count; ++i) {
            put(i, static_cast<float>(random() % 1024) / 256.0f - 2.0f);
        }
    }
    ~Numbers() { cuMemFree_v2(start); }
    void put(std::size_t i, float value) {
        if (type == type_f32) {
            reinterpret_cast<float*>(start)[i] = value;
        } else {
            reinterpret_cast<std::uint16_t*>(start)[i] =
                type == type_f16 ? emulator::f16_from_f32(value) : emulator::bf16_from_f32(value);
        }
    }
    double at(std::size_t i) const {
        if (type == type_f32) {
            return reinterpret_cast<const float*>(start)[i];
        }
        const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(start)[i];
        return type == type_f16 ? emulator::f32_from_f16(bits) :
            emulator::bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
    }
};

// A call that tests change in one place.
struct Call {
    int m = 24, n = 5, k = 70, batch = 1;
    int in = type_f32, out = type_f32;
    bool transpose_a = false, transpose_b = false;
    unsigned epilogue = ep_default;
    float alpha = 0.5f, beta = 0.0f;
    std::int64_t aux_ld = 128;
    std::int64_t lda_change = 0;
    unsigned alignment = 16;
    std::size_t offset_a = 0;
    std::uint64_t workspace_bytes = 1 << 16;
    std::size_t given_workspace = 1 << 16;
    bool bias_pointer = true;
    int bias_type = type_unset;
    bool other_algorithm = false;
    bool c_is_d = true;
    bool d_is_a = false;
    bool overlapping_batch = false;
    bool destroyed_layout = false;
    bool late_free = false;

    Status run(std::string* wrong) const;
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double gelu_gradient(double x) {
    const double step = 1e-5;
    return (gelu(x + step) - gelu(x - step)) / (2 * step);
}

void* layout(int type, int rows, int columns, std::int64_t ld, int batch, std::int64_t stride) {
    void* made = nullptr;
    cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), ld);
    cublasLtMatrixLayoutSetAttribute(made, 5, &batch, sizeof batch);
    cublasLtMatrixLayoutSetAttribute(made, 6, &stride, sizeof stride);
    return made;
}

Status Call::run(std::string* wrong) const {
    const int a_rows = transpose_a ? k : m, a_columns = transpose_a ? m : k;
    const int b_rows = transpose_b ? n : k, b_columns = transpose_b ? k : n;
    const std::int64_t lda = a_rows + 3 + lda_change, ldb = b_rows + 1, ldd = m + 2;
    const std::int64_t a_stride = lda * a_columns, b_stride = ldb * b_columns, d_stride = ldd * n;
    const auto many = [this](std::int64_t stride) { return static_cast<std::size_t>(stride * batch); };
    Numbers a(in, many((a_rows + 3) * a_columns), 1), b(in, many(b_stride), 2), d(out, many(d_stride), 3),
        c(out, many(d_stride), 3);
    Numbers bias(out, static_cast<std::size_t>(std::max(m, n)), 4), aux(out, many(aux_ld * n), 5);
    auto workspace = std::make_unique<Numbers>(type_f32, 1 << 14, 6);
    std::vector<double> old, pre;
    for (std::size_t i = 0; i < d.count; ++i) {
        old.push_back(d.at(i));
    }
    for (std::size_t i = 0; i < aux.count; ++i) {
        pre.push_back(aux.at(i));
    }
    const auto mask_bit =
        [&](std::int64_t i) { return (reinterpret_cast<unsigned char*>(aux.start)[i / 8] >> i % 8 & 1) != 0; };
    std::vector<bool> mask;
    for (std::int64_t i = 0; i < aux_ld * n * batch; ++i) {
        mask.push_back(mask_bit(i));
    }

    void *how = nullptr, *preference = nullptr;
    cublasLtMatmulDescCreate(&how, compute_f32, type_f32);
    const auto set = [&](int attribute, auto value) {
        expect(cublasLtMatmulDescSetAttribute(how, attribute, &value, sizeof value) == success,
               "an attribute is taken");
    };
    set(3, transpose_a ? 1 : 0);
    set(4, transpose_b ? 1 : 0);
    set(7, epilogue);
    if ((epilogue & ep_any_bias) != 0) {
        set(8, bias_pointer ? bias.start : Address{0});
        set(26, bias_type);
    }
    if ((epilogue & ep_aux) != 0) {
        set(11, aux.start);
        set(12, aux_ld);
        set(13, aux_ld * n);
    }
    void* const a_layout = layout(in, a_rows, a_columns, lda, batch, a_stride);
    void* const b_layout = layout(in, b_rows, b_columns, ldb, batch, b_stride);
    void* const d_layout = layout(out, m, n, ldd, batch, overlapping_batch ? ldd * (n - 1) : d_stride);
    if (destroyed_layout) {
        cublasLtMatrixLayoutDestroy(b_layout);
    }
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, 1, &workspace_bytes, sizeof workspace_bytes);
    for (int attribute = 5; attribute <= 8; ++attribute) {
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment);
    }
    std::uint64_t result[12] = {};
    int count = 0;
    const Status chosen = cublasLtMatmulAlgoGetHeuristic(handle, how, a_layout, b_layout, d_layout, d_layout,
                                                         preference, 1, result, &count);
    if (chosen != success) {
        return chosen;
    }
    if (other_algorithm) {
        set(3, transpose_a ? 0 : 1);
        const int rows[] = {a_columns, a_rows};
        const std::int64_t ld = rows[0];
        const auto u = [](int value) { return static_cast<std::uint64_t>(value); };
        const std::uint64_t wide[] = {u(rows[0]), u(rows[1])};
        cublasLtMatrixLayoutSetAttribute(a_layout, 2, &wide[0], 8);
        cublasLtMatrixLayoutSetAttribute(a_layout, 3, &wide[1], 8);
        cublasLtMatrixLayoutSetAttribute(a_layout, 4, &ld, 8);
    }
    const Address c_start = c_is_d ? d.start : c.start;
    const Status given = cublasLtMatmul(handle, how, &alpha, a.start + offset_a, a_layout, b.start, b_layout, &beta,
                                        c_start, d_layout, d_is_a ? a.start : d.start, d_layout, result,
                                        workspace->start, given_workspace, stream);
    if (given != success) {
        return given;
    }
    if (late_free) {
        workspace.reset();
        return cuStreamSynchronize(stream);
    }
    expect(d.at(0) == old[0], "a product waits for the host");
    expect(cuStreamSynchronize(stream) == 0, "a product runs");

    const double unit = out == type_f32 ? 2e-6 : out == type_f16 ? 1.0 / 1024 : 1.0 / 128;
    const auto close = [&](const char* what, double got, double expected, double scale) {
        if (std::fabs(got - expected) > unit * std::max(scale, std::fabs(expected))) {
            *wrong = std::string(what) + ": " + std::to_string(got) + " instead of " + std::to_string(expected);
        }
    };
    std::vector<double> gradient(static_cast<std::size_t>(m), 0.0);
    for (int e = 0; e < batch; ++e) {
        const auto at_a = [&](int i, int p) {
            return a.at(static_cast<std::size_t>(e * a_stride + (transpose_a ? p + i * lda : i + p * lda)));
        };
        const auto at_b = [&](int p, int j) {
            return b.at(static_cast<std::size_t>(e * b_stride + (transpose_b ? j + p * ldb : p + j * ldb)));
        };
        for (int j = 0; j < n; ++j) {
            for (int i = 0; i < m; ++i) {
                double sum = 0;
                for (int p = 0; p < k; ++p) {
                    sum += at_a(i, p) * at_b(p, j);
                }
                const auto place = static_cast<std::size_t>(e * d_stride + j * ldd + i);
                const auto aux_place = static_cast<std::size_t>(e * aux_ld * n + j * aux_ld + i);
                double value = alpha * sum + (beta != 0 ? beta * old[place] : 0.0);
                value += (epilogue & ep_bias) != 0 ? bias.at(static_cast<std::size_t>(i)) : 0.0;
                // A sum of k terms as large as 4.
                const double scale = 40;
                if ((epilogue & ep_relu) != 0) {
                    if ((epilogue & ep_aux) != 0 && std::fabs(value) > 1e-3 &&
                        mask_bit(static_cast<std::int64_t>(aux_place)) != (value > 0)) {
                        *wrong = "a bit of the mask";
                    }
                    value = std::max(value, 0.0);
                } else if ((epilogue & ep_gelu) != 0) {
                    if ((epilogue & ep_aux) != 0) {
                        close("input of the activation", aux.at(aux_place), value, scale);
                    }
                    value = gelu(value);
                } else if ((epilogue & ep_drelu) != 0) {
                    value = mask[aux_place] ? value : 0.0;
                } else if ((epilogue & ep_dgelu) != 0) {
                    value *= gelu_gradient(pre[aux_place]);
                }
                gradient[static_cast<std::size_t>(i)] += value;
                close("result", d.at(place), value, scale);
            }
        }
        for (int i = m; i < ldd; ++i) {
            const auto at = static_cast<std::size_t>(e * d_stride + i);
            expect(d.at(at) == old[at], "what is between columns stays");
        }
        for (int i = 0; (epilogue & ep_bias_gradient) != 0 && i < m; ++i) {
            close("bias gradient", bias.at(static_cast<std::size_t>(i)), gradient[static_cast<std::size_t>(i)], 200);
        }
        for (int i = 0; (epilogue & (ep_bias_gradient_a | ep_bias_gradient_b)) != 0 &&
             i < ((epilogue & ep_bias_gradient_a) != 0 ? m : n); ++i) {
            double sum = 0;
            for (int p = 0; p < k; ++p) {
                sum += (epilogue & ep_bias_gradient_a) != 0 ? at_a(i, p) : at_b(p, i);
            }
            close("sum of a factor", bias.at(static_cast<std::size_t>(i)), sum, 40);
        }
    }
    return success;
}

void check_products() {
    const unsigned known[] = {1, 2, 4, 6, 130, 134, 136, 152, 32, 36, 160, 164, 192, 208, 256, 512};
    const int types[][2] = {{type_f32, type_f32}, {type_f16, type_f16}, {type_bf16, type_bf16}, {type_bf16, type_f32}};
    for (unsigned epilogue : known) {
        for (const auto& [in, out] : types) {
            for (int transposes = 0; transposes < 4; ++transposes) {
                for (int batch : {1, 3}) {
                    if (batch > 1 && (epilogue & (ep_bias_gradient | ep_bias_gradient_a | ep_bias_gradient_b)) != 0) {
                        continue;
                    }
                    Call call;
                    call.in = in;
                    call.out = out;
                    call.epilogue = epilogue;
                    call.batch = batch;
                    call.transpose_a = (transposes & 1) != 0;
                    call.transpose_b = (transposes & 2) != 0;
                    call.beta = transposes == 3 ? 2.0f : 0.0f;
                    std::string wrong;
                    const Status status = call.run(&wrong);
                    expect(status == success && wrong.empty(),
                           "epilogue " + std::to_string(epilogue) + ", types " + std::to_string(in) + " " +
                               std::to_string(out) +
                               ", transposes " + std::to_string(transposes) + ", batch " + std::to_string(batch) +
                                   ", status " +
                               std::to_string(status) + ": " + wrong);
                }
            }
        }
    }
}

void check_refusals() {
    const auto refused = [](const char* what, Status status, auto change) {
        Call call;
        change(call);
        std::string wrong;
        const Status got = call.run(&wrong);
        expect(got == status, std::string(what) + ": status " + std::to_string(got) + " instead of " +
               std::to_string(status));
    };
    refused("a leading dimension below the rows", invalid_value, [](Call& c) { c.lda_change = -4; });
    refused("results of another 16-bit type", not_supported, [](Call& c) { c.in = type_f16, c.out = type_bf16; });
    refused("results narrower than the factors", not_supported, [](Call& c) { c.out = type_bf16; });
    refused("an address less aligned than declared", invalid_value,
            [](Call& c) { c.alignment = 256, c.offset_a = 16, c.m = 16; });
    refused("a workspace smaller than the algorithm's", invalid_value, [](Call& c) { c.given_workspace = 64; });
    refused("an epilogue without its bias", invalid_value,
            [](Call& c) { c.epilogue = ep_bias, c.bias_pointer = false; });
    refused("a bias of another type", not_supported, [](Call& c) { c.epilogue = ep_bias, c.bias_type = type_bf16; });
    refused("an epilogue that is none", invalid_value, [](Call& c) { c.epilogue = ep_relu | ep_gelu; });
    refused("copies at an odd distance", invalid_value, [](Call& c) { c.epilogue = ep_gelu | ep_aux, c.aux_ld = 28; });
    refused("copies closer than rows", invalid_value, [](Call& c) { c.epilogue = ep_gelu | ep_aux, c.aux_ld = 16; });
    refused("a mask at a distance of 64", invalid_value, [](Call& c) { c.epilogue = ep_relu | ep_aux, c.aux_ld = 64; });
    refused("an algorithm for another product", invalid_value, [](Call& c) { c.other_algorithm = true; });
    refused("a result over a factor", invalid_value, [](Call& c) { c.d_is_a = true, c.beta = 0.0f, c.c_is_d = false; });
    refused("results over each other", invalid_value, [](Call& c) { c.overlapping_batch = true, c.batch = 2; });
    refused("a bias gradient of a batch", not_supported, [](Call& c) { c.epilogue = ep_bias_gradient_b, c.batch = 2; });
    refused("a destroyed layout", invalid_value, [](Call& c) { c.destroyed_layout = true; });
    refused("sums without terms", invalid_value, [](Call& c) { c.k = 0; });
    // Last: the device is unusable from then on.
    refused("a workspace freed under a queued product", 700, [](Call& c) { c.late_free = true; });
}

}  // namespace

int main() {
    int context = 0;
    expect(cublasLtCreate(&handle) == not_initialized, "a handle needs a context");
    cuInit(0);
    cuCtxSetCurrent(&context);
    expect(cublasLtCreate(&handle) == success && cuStreamCreate(&stream, 1) == 0, "a handle and a stream");
    check_products();
    check_refusals();
    return failures;
}
