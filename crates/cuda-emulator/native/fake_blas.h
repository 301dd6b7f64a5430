// What an emulated matrix product is: names and numbers of cuBLASLt's interface, descriptors, and what runs. The
// interface is in fake_blas.cpp, what is refused in fake_blas_checks.cpp, the arithmetic in fake_blas_product.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_blas {

using Status = int;

inline constexpr Status success = 0;
inline constexpr Status not_initialized = 1;
inline constexpr Status invalid_value = 7;
inline constexpr Status execution_failed = 13;
inline constexpr Status not_supported = 15;

// Dtypes; others are not emulated.
inline constexpr int type_f32 = 0;
inline constexpr int type_f16 = 2;
inline constexpr int type_bf16 = 14;
inline constexpr int type_e4m3 = 28;
inline constexpr int type_e5m2 = 29;
// As the result.
inline constexpr int type_unset = -1;

inline constexpr int compute_f32 = 68;
inline constexpr int compute_f32_pedantic = 69;
inline constexpr int compute_tf32 = 77;

inline constexpr int order_columns = 0;
inline constexpr int order_rows = 1;

// Epilogues are made of these bits; not every combination is one.
inline constexpr unsigned ep_default = 1;
inline constexpr unsigned ep_relu = 2;
inline constexpr unsigned ep_bias = 4;
inline constexpr unsigned ep_drelu = 8;
inline constexpr unsigned ep_bias_gradient = 16;
inline constexpr unsigned ep_gelu = 32;
inline constexpr unsigned ep_dgelu = 64;
inline constexpr unsigned ep_aux = 128;
inline constexpr unsigned ep_bias_gradient_a = 256;
inline constexpr unsigned ep_bias_gradient_b = 512;

// Epilogues that read or write a vector at the bias pointer.
inline constexpr unsigned ep_any_bias = ep_bias | ep_bias_gradient | ep_bias_gradient_a | ep_bias_gradient_b;

// Position of a matrix. Counted from a descriptor's creation, column-major and one matrix.
struct Layout {
    int type = type_f32;
    int order = order_columns;
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
    std::int64_t ld = 0;
    int batch_count = 1;
    std::int64_t batch_stride = 0;

    // Element of a matrix from its start.
    std::uint64_t at(std::uint64_t row, std::uint64_t column) const {
        const auto distance = static_cast<std::uint64_t>(ld);
        return order == order_columns ? row + column * distance : row * distance + column;
    }

    // Elements from the first to one past the last, of all matrices.
    std::uint64_t span() const {
        return at(rows - 1, columns - 1) + 1 +
               static_cast<std::uint64_t>(batch_count - 1) * static_cast<std::uint64_t>(batch_stride);
    }
};

struct Description {
    int compute = compute_f32;
    int scale = type_f32;
    int pointer_mode = 0;
    int transpose_a = 0;
    int transpose_b = 0;
    int transpose_c = 0;
    unsigned epilogue = ep_default;
    std::uint64_t bias = 0;
    std::int64_t bias_batch_stride = 0;
    int bias_type = type_unset;
    std::uint64_t aux = 0;
    std::int64_t aux_ld = 0;
    std::int64_t aux_batch_stride = 0;
    int aux_type = type_unset;
    // One f32 each, by which a product of 8-bit factors is multiplied; 0 for none.
    std::uint64_t a_scale = 0, b_scale = 0;
    signed char fast_accumulation = 0;
};

struct Preference {
    std::uint64_t workspace_bytes = 0;
    // Of a, b, c, d: as the library assumes it by default.
    unsigned alignment[4] = {256, 256, 256, 256};
};

// A product as it is queued.
struct Product {
    Description how;
    Layout a_layout, b_layout, c_layout, d_layout;
    float alpha = 0.0f;
    float beta = 0.0f;
    std::uint64_t a = 0, b = 0, c = 0, d = 0;
    std::uint64_t workspace = 0;
    // What the algorithm needs of the workspace.
    std::uint64_t workspace_bytes = 0;
    // More than the product itself takes: a slow algorithm.
    unsigned microseconds = 0;

    std::uint64_t m() const { return d_layout.rows; }
    std::uint64_t n() const { return d_layout.columns; }
    std::uint64_t k() const { return how.transpose_a != 0 ? a_layout.rows : a_layout.columns; }
    bool relu_mask() const { return (how.epilogue & ep_aux) != 0 && (how.epilogue & (ep_relu | ep_drelu)) != 0; }
    // Elements at the bias pointer, for one matrix.
    std::uint64_t bias_length() const { return (how.epilogue & ep_bias_gradient_b) != 0 ? n() : m(); }
};

std::uint64_t bytes_of(int type);

inline bool is_fp8(int type) { return type == type_e4m3 || type == type_e5m2; }

// A reason not to do something; success has none.
struct Answer {
    Status status = success;
    std::string reason;
};

// Whether shapes, types and epilogue make a product; what a heuristic can know.
Answer check_shapes(const Product& product);

// Whether pointers fit: present, aligned, apart from each other, in memory of the device.
Answer check_pointers(const Product& product, const unsigned (&alignment)[4]);

// Whether every range is in memory of the device.
Answer check_ranges(const Product& product);

// Computes it.
void run(const Product& product);

// ---- what the emulated driver exports

struct Driver {
    // Whether a context is current on this thread.
    int (*has_context)();
    int (*is_allocated)(std::uint64_t start, std::size_t bytes);
    // Kernels are loaded by `call`; not 0 if that makes the driver wait for what it must not wait for.
    int (*load)(const char* call);
    // Queues `work(data)`; `release(data)` is called once, whether it has run or not.
    int (*give)(void* stream, int (*work)(void*), void* data, void (*release)(void*));
};

// The library of the process.
const Driver& driver();

}  // namespace fake_blas
