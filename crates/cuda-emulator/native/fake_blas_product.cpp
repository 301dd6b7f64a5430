// The arithmetic of an emulated matrix product: sums in f32 in the order of k, one rounding of what is written.
#include "cuda_emulator.h"
#include "fake_blas.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

// The emulator's other files are compiled for debugging; products are what its tests would wait for.
#pragma GCC optimize("O3")

namespace fake_blas {
namespace {

// A number of 8 bits, `fraction` of them a fraction; beyond the largest code there are only NaN here.
float from_fp8(unsigned char code, int fraction, int bias, int largest) {
    const int magnitude = code & 0x7f, exponent = magnitude >> fraction;
    const float part = std::ldexp(static_cast<float>(magnitude & ((1 << fraction) - 1)), -fraction);
    const float value = exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1.0f + part, exponent - bias);
    return magnitude > largest ? std::nanf("") : (code & 0x80) != 0 ? -value : value;
}

float load(int type, std::uint64_t start, std::uint64_t index) {
    switch (type) {
        case type_f32: return reinterpret_cast<const float*>(start)[index];
        case type_f16: return emulator::f32_from_f16(reinterpret_cast<const std::uint16_t*>(start)[index]);
        case type_e4m3: return from_fp8(reinterpret_cast<const unsigned char*>(start)[index], 3, 7, 0x7e);
        case type_e5m2: return from_fp8(reinterpret_cast<const unsigned char*>(start)[index], 2, 15, 0x7b);
        default: {
            const std::uint32_t bits = reinterpret_cast<const std::uint16_t*>(start)[index];
            return emulator::bits_as<float>(bits << 16);
        }
    }
}

void store(int type, std::uint64_t start, std::uint64_t index, float value) {
    switch (type) {
        case type_f32: reinterpret_cast<float*>(start)[index] = value; return;
        case type_f16: reinterpret_cast<std::uint16_t*>(start)[index] = emulator::f16_from_f32(value); return;
        default: reinterpret_cast<std::uint16_t*>(start)[index] = emulator::bf16_from_f32(value); return;
    }
}

// The nearest number with ten fraction bits, as tensor cores take f32.
float to_tf32(float value) {
    const std::uint32_t bits = emulator::bits_as<std::uint32_t>(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        return value;
    }
    return emulator::bits_as<float>((bits + 0x1000u) & ~0x1fffu);
}

// The rows of a factor, `length` numbers each: rows of op(a), or of the transpose of op(b), so that sums run along
// rows.
std::vector<float> rows_of(const Product& p, const Layout& layout, std::uint64_t start, bool transpose,
                           std::uint64_t count,
                           std::uint64_t length) {
    std::vector<float> rows(count * length);
    for (std::uint64_t row = 0; row < count; ++row) {
        for (std::uint64_t i = 0; i < length; ++i) {
            const float value = load(layout.type, start, transpose ? layout.at(i, row) : layout.at(row, i));
            rows[row * length + i] = p.how.compute == compute_tf32 ? to_tf32(value) : value;
        }
    }
    return rows;
}

// The library's gelu is the approximation by tanh.
constexpr float gelu_slope = 0.7978845608028654f;
constexpr float gelu_cubic = 0.044715f;

float gelu(float x) {
    return 0.5f * x * (1.0f + std::tanh(gelu_slope * (x + gelu_cubic * x * x * x)));
}

float gelu_gradient(float x) {
    const float t = std::tanh(gelu_slope * (x + gelu_cubic * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * gelu_slope * (1.0f + 3.0f * gelu_cubic * x * x);
}

// One matrix of the batch: where its parts start.
struct Place {
    std::uint64_t a, b, c, d, bias, aux;
    // In bits where the auxiliary matrix is a mask.
    std::uint64_t aux_first;
};

Place place_of(const Product& p, std::uint64_t entry) {
    const auto moved = [entry](std::uint64_t start, const Layout& layout) {
        return start + entry * static_cast<std::uint64_t>(layout.batch_stride) * bytes_of(layout.type);
    };
    const std::uint64_t element = bytes_of(p.d_layout.type);
    return {moved(p.a, p.a_layout),
            moved(p.b, p.b_layout),
            moved(p.c, p.c_layout),
            moved(p.d, p.d_layout),
            p.how.bias + entry * static_cast<std::uint64_t>(p.how.bias_batch_stride) * element,
            p.how.aux,
            entry * static_cast<std::uint64_t>(p.how.aux_batch_stride)};
}

void set_bit(std::uint64_t start, std::uint64_t index, bool value) {
    auto* const byte = reinterpret_cast<unsigned char*>(start) + index / 8;
    const auto bit = static_cast<unsigned char>(1u << index % 8);
    *byte = static_cast<unsigned char>(value ? *byte | bit : *byte & ~bit);
}

bool bit_at(std::uint64_t start, std::uint64_t index) {
    return (reinterpret_cast<const unsigned char*>(start)[index / 8] >> index % 8 & 1) != 0;
}

// What becomes of one element of the product.
float finish(const Product& p, const Place& place, std::uint64_t row, std::uint64_t column, float value) {
    const unsigned epilogue = p.how.epilogue;
    const int type = p.d_layout.type;
    const std::uint64_t aux = place.aux_first + column * static_cast<std::uint64_t>(p.how.aux_ld) + row;
    if ((epilogue & ep_bias) != 0) {
        value += load(type, place.bias, row);
    }
    if ((epilogue & ep_relu) != 0) {
        if ((epilogue & ep_aux) != 0) {
            set_bit(place.aux, aux, value > 0.0f);
        }
        return value < 0.0f ? 0.0f : value;
    }
    if ((epilogue & ep_gelu) != 0) {
        if ((epilogue & ep_aux) != 0) {
            store(type, place.aux, aux, value);
        }
        return gelu(value);
    }
    if ((epilogue & ep_drelu) != 0) {
        return bit_at(place.aux, aux) ? value : 0.0f;
    }
    if ((epilogue & ep_dgelu) != 0) {
        return value * gelu_gradient(load(type, place.aux, aux));
    }
    return value;
}

// Sums of the factor's rows, as a bias gradient.
void store_sums(const Product& p, const Place& place, const std::vector<float>& rows, std::uint64_t count) {
    for (std::uint64_t row = 0; row < count; ++row) {
        float total = 0.0f;
        for (std::uint64_t i = 0; i < p.k(); ++i) {
            total += rows[row * p.k() + i];
        }
        store(p.d_layout.type, place.bias, row, total);
    }
}

void run_one(const Product& p, const Place& place) {
    const std::uint64_t m = p.m(), n = p.n(), k = p.k();
    const std::vector<float> a = rows_of(p, p.a_layout, place.a, p.how.transpose_a != 0, m, k);
    const std::vector<float> b = rows_of(p, p.b_layout, place.b, p.how.transpose_b == 0, n, k);
    std::vector<float> across(m * k);
    for (std::uint64_t row = 0; row < m; ++row) {
        for (std::uint64_t i = 0; i < k; ++i) {
            across[i * m + row] = a[row * k + i];
        }
    }
    std::vector<float> bias_gradient(m, 0.0f), sums(m);
    const auto factor_of = [](std::uint64_t address) {
        return address == 0 ? 1.0f : *reinterpret_cast<const float*>(address);
    };
    const float scale = factor_of(p.how.a_scale) * factor_of(p.how.b_scale);
    for (std::uint64_t column = 0; column < n; ++column) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (std::uint64_t i = 0; i < k; ++i) {
            const float factor = b[column * k + i];
            const float* const from = &across[i * m];
            for (std::uint64_t row = 0; row < m; ++row) {
                sums[row] += factor * from[row];
            }
        }
        for (std::uint64_t row = 0; row < m; ++row) {
            float value = p.alpha * scale * sums[row];
            if (p.beta != 0.0f) {
                value += p.beta * load(p.c_layout.type, place.c, p.c_layout.at(row, column));
            }
            value = finish(p, place, row, column, value);
            bias_gradient[row] += value;
            store(p.d_layout.type, place.d, p.d_layout.at(row, column), value);
        }
    }
    if ((p.how.epilogue & ep_bias_gradient) != 0) {
        for (std::uint64_t row = 0; row < m; ++row) {
            store(p.d_layout.type, place.bias, row, bias_gradient[row]);
        }
    }
    if ((p.how.epilogue & ep_bias_gradient_a) != 0) {
        store_sums(p, place, a, m);
    }
    if ((p.how.epilogue & ep_bias_gradient_b) != 0) {
        store_sums(p, place, b, n);
    }
}

}  // namespace

void run(const Product& p) {
    if (p.workspace_bytes > 0) {
        // An algorithm leaves anything there.
        std::memset(reinterpret_cast<void*>(p.workspace), 0xFF, p.workspace_bytes);
    }
    for (int entry = 0; entry < p.d_layout.batch_count; ++entry) {
        run_one(p, place_of(p, static_cast<std::uint64_t>(entry)));
    }
}

}  // namespace fake_blas
