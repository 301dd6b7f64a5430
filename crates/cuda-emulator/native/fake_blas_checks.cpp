// What an emulated matrix product refuses; see fake_blas.h.
//
// As strict as the library's documentation, and stricter where that is silent: combinations of dtypes that it
// does not list, overlapping operands, an epilogue on row-major results. So what passes here is not proven to be
// supported by a device's library, but what that is known to refuse is found.
#include "fake_blas.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

namespace fake_blas {
namespace {

constexpr unsigned epilogues[] = {
    ep_default,
    ep_relu,
    ep_bias,
    ep_relu | ep_bias,
    ep_relu | ep_aux,
    ep_relu | ep_aux | ep_bias,
    ep_drelu | ep_aux,
    ep_drelu | ep_aux | ep_bias_gradient,
    ep_gelu,
    ep_gelu | ep_bias,
    ep_gelu | ep_aux,
    ep_gelu | ep_aux | ep_bias,
    ep_dgelu | ep_aux,
    ep_dgelu | ep_aux | ep_bias_gradient,
    ep_bias_gradient_a,
    ep_bias_gradient_b,
};

// Elements of the rows of a mask, in bits, and of a copy of the activation's input.
constexpr std::int64_t mask_ld_multiple = 128;
constexpr std::int64_t copy_ld_multiple = 8;
constexpr std::uint64_t aux_alignment = 16;
constexpr std::uint64_t workspace_alignment = 256;
// Of a bias or of sums: kernels of the library move 16 bytes at a time, and fault at another address.
constexpr std::uint64_t vector_alignment = 16;

Answer invalid(const std::string& reason) {
    return {invalid_value, reason};
}

Answer unsupported(const std::string& reason) {
    return {not_supported, reason};
}

std::string text(std::uint64_t number) {
    return std::to_string(number);
}

Answer check_layout(const char* name, const Layout& layout) {
    const std::string which = std::string("matrix ") + name + ": ";
    if (bytes_of(layout.type) == 0) {
        return unsupported(which + "dtype " + std::to_string(layout.type));
    }
    if (layout.order != order_columns && layout.order != order_rows) {
        return unsupported(which + "order " + std::to_string(layout.order));
    }
    if (layout.rows == 0 || layout.columns == 0) {
        return invalid(which + "no elements");
    }
    const std::uint64_t run = layout.order == order_columns ? layout.rows : layout.columns;
    if (layout.ld < 0 || static_cast<std::uint64_t>(layout.ld) < run) {
        return invalid(which + "leading dimension " + std::to_string(layout.ld) + " below " + text(run));
    }
    if (layout.batch_count < 1 || layout.batch_stride < 0) {
        return invalid(which + std::to_string(layout.batch_count) + " matrices at distance " +
                       std::to_string(layout.batch_stride));
    }
    return {};
}

// Whether no element is meant twice: sorted by distance, no axis reaches into the next.
bool is_apart(const Layout& layout) {
    struct Axis {
        std::uint64_t distance, count;
    };
    const bool columns = layout.order == order_columns;
    std::array<Axis, 3> axes = {Axis{1, columns ? layout.rows : layout.columns},
                                Axis{static_cast<std::uint64_t>(layout.ld), columns ? layout.columns : layout.rows},
                                Axis{static_cast<std::uint64_t>(layout.batch_stride),
                                     static_cast<std::uint64_t>(layout.batch_count)}};
    std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.distance < b.distance; });
    std::uint64_t reach = 1;
    for (const Axis& axis : axes) {
        if (axis.count <= 1) {
            continue;
        }
        if (axis.distance < reach) {
            return false;
        }
        reach += (axis.count - 1) * axis.distance;
    }
    return true;
}

Answer check_sizes(const Product& p) {
    const auto sizes = [](const Layout& layout, int transpose) {
        return transpose != 0 ? std::pair(layout.columns, layout.rows) : std::pair(layout.rows, layout.columns);
    };
    const auto [m, k] = sizes(p.a_layout, p.how.transpose_a);
    const auto [b_rows, n] = sizes(p.b_layout, p.how.transpose_b);
    if (k != b_rows || m != p.d_layout.rows || n != p.d_layout.columns) {
        return invalid(text(m) + " x " + text(k) + " times " + text(b_rows) + " x " + text(n) + " is not " +
                       text(p.d_layout.rows) + " x " + text(p.d_layout.columns));
    }
    if (p.c_layout.rows != m || p.c_layout.columns != n || p.c_layout.order != p.d_layout.order) {
        return invalid("c and d have different shapes or orders");
    }
    const int count = p.d_layout.batch_count;
    if (p.a_layout.batch_count != count || p.b_layout.batch_count != count || p.c_layout.batch_count != count) {
        return invalid("matrices of different batch counts");
    }
    if (!is_apart(p.d_layout)) {
        return invalid("an element of d is written twice");
    }
    return {};
}

// Products of 8-bit factors: each sum along the columns of both, in whole units of 16, into f32 or 16 bits.
Answer check_fp8(const Product& p) {
    const char* const capability = std::getenv("EMULATED_CUDA_CAPABILITY");
    if (capability != nullptr && std::atoi(capability) < 89) {
        return unsupported("8-bit factors before compute capability 8.9");
    }
    const int d = p.d_layout.type;
    if (!is_fp8(p.a_layout.type) || !is_fp8(p.b_layout.type) ||
        (p.a_layout.type == type_e5m2 && p.b_layout.type == type_e5m2)) {
        return unsupported("factors of these dtypes together");
    }
    if (p.c_layout.type != d || (d != type_f32 && d != type_f16 && d != type_bf16)) {
        return unsupported("this result of 8-bit factors");
    }
    if (p.how.compute != compute_f32) {
        return unsupported("this compute type with 8-bit factors");
    }
    if (p.how.transpose_a == 0 || p.how.transpose_b != 0) {
        return unsupported("8-bit factors whose sums are not along the columns of both");
    }
    constexpr int unit = 16;
    if (p.k() % unit != 0 || p.m() % unit != 0 || p.a_layout.ld % unit != 0 || p.b_layout.ld % unit != 0) {
        return unsupported("8-bit factors whose sizes are no multiples of 16");
    }
    if (p.d_layout.batch_count > 1) {
        return unsupported("several products of 8-bit factors");
    }
    const unsigned gradients = ep_drelu | ep_dgelu | ep_bias_gradient | ep_bias_gradient_a | ep_bias_gradient_b;
    if ((p.how.epilogue & gradients) != 0) {
        return unsupported("the epilogue of a gradient with 8-bit factors");
    }
    const int bias = d == type_f16 ? type_f16 : type_bf16;
    if ((p.how.epilogue & ep_bias) != 0 && (p.how.bias_type == type_unset ? d : p.how.bias_type) != bias) {
        return unsupported("a bias of this dtype with 8-bit factors");
    }
    if ((p.how.epilogue & ep_aux) != 0 && p.how.aux_type != type_unset && p.how.aux_type != d) {
        return unsupported("an auxiliary matrix of another dtype than the result");
    }
    return {};
}

Answer check_types(const Product& p) {
    const int compute = p.how.compute;
    if (compute != compute_f32 && compute != compute_f32_pedantic && compute != compute_tf32) {
        return unsupported("compute type " + std::to_string(compute));
    }
    if (p.how.scale != type_f32) {
        return unsupported("scale type " + std::to_string(p.how.scale));
    }
    if (p.how.pointer_mode != 0) {
        return unsupported("factors in device memory are not emulated");
    }
    const int a = p.a_layout.type, b = p.b_layout.type, c = p.c_layout.type, d = p.d_layout.type;
    if (is_fp8(a) || is_fp8(b)) {
        return check_fp8(p);
    }
    if (p.how.a_scale != 0 || p.how.b_scale != 0 || p.how.fast_accumulation != 0) {
        return unsupported("scales of factors that are not of 8 bits");
    }
    if (a != b || c != d) {
        return unsupported("a and b, or c and d, of different dtypes");
    }
    if (d != a && d != type_f32) {
        return unsupported("a result of another 16-bit type than the factors, or narrower");
    }
    if (compute == compute_tf32 && a != type_f32) {
        return unsupported("TF32 products of 16-bit factors");
    }
    if ((p.how.epilogue & ep_any_bias) != 0 && p.how.bias_type != type_unset && p.how.bias_type != d) {
        return unsupported("a bias of another dtype than the result");
    }
    if ((p.how.epilogue & ep_aux) != 0 && p.how.aux_type != type_unset && p.how.aux_type != d) {
        return unsupported("an auxiliary matrix of another dtype than the result");
    }
    return {};
}

Answer check_epilogue(const Product& p) {
    const unsigned epilogue = p.how.epilogue;
    if (std::find(std::begin(epilogues), std::end(epilogues), epilogue) == std::end(epilogues)) {
        return invalid("epilogue " + std::to_string(epilogue) + " is none");
    }
    if (epilogue == ep_default) {
        return {};
    }
    const auto column_major = [](const Layout& layout) { return layout.order == order_columns; };
    if (!column_major(p.a_layout) || !column_major(p.b_layout) || !column_major(p.d_layout)) {
        return unsupported("an epilogue with row-major matrices");
    }
    const bool batched = p.d_layout.batch_count > 1;
    if (batched && (epilogue & (ep_bias_gradient | ep_bias_gradient_a | ep_bias_gradient_b)) != 0) {
        return unsupported("a bias gradient of several matrices");
    }
    if ((epilogue & ep_bias) != 0 && p.how.bias_batch_stride < 0) {
        return invalid("a negative distance between biases");
    }
    if ((epilogue & ep_aux) == 0) {
        return {};
    }
    const std::int64_t multiple = p.relu_mask() ? mask_ld_multiple : copy_ld_multiple;
    if (p.how.aux_ld < 0 || static_cast<std::uint64_t>(p.how.aux_ld) < p.m() || p.how.aux_ld % multiple != 0) {
        return invalid("leading dimension " + std::to_string(p.how.aux_ld) + " of the auxiliary matrix: below " +
                       text(p.m()) +
                       ", or no multiple of " + std::to_string(multiple));
    }
    const auto one = static_cast<std::uint64_t>(p.how.aux_ld) * (p.n() - 1) + p.m();
    if (batched && (p.how.aux_batch_stride < 0 || static_cast<std::uint64_t>(p.how.aux_batch_stride) < one)) {
        return invalid("auxiliary matrices overlap");
    }
    return {};
}

// Bytes that a product reads or writes, from the first to one past the last.
struct Range {
    const char* name;
    std::uint64_t start, bytes;
    bool written;
};

std::vector<Range> ranges_of(const Product& p) {
    const auto bytes = [](const Layout& layout) { return layout.span() * bytes_of(layout.type); };
    std::vector<Range> ranges = {{"a", p.a, bytes(p.a_layout), false},
                                 {"b", p.b, bytes(p.b_layout), false},
                                 {"d", p.d, bytes(p.d_layout), true}};
    if (p.beta != 0.0f && p.c != p.d) {
        ranges.push_back({"c", p.c, bytes(p.c_layout), false});
    }
    const auto count = static_cast<std::uint64_t>(p.d_layout.batch_count - 1);
    const std::uint64_t element = bytes_of(p.d_layout.type);
    if ((p.how.epilogue & ep_any_bias) != 0) {
        const auto stride = static_cast<std::uint64_t>(p.how.bias_batch_stride);
        const bool written = (p.how.epilogue & ep_bias) == 0;
        ranges.push_back({"bias", p.how.bias, (p.bias_length() + count * stride) * element, written});
    }
    if ((p.how.epilogue & ep_aux) != 0) {
        const auto ld = static_cast<std::uint64_t>(p.how.aux_ld);
        const auto stride = static_cast<std::uint64_t>(p.how.aux_batch_stride);
        const std::uint64_t elements = ld * (p.n() - 1) + p.m() + count * stride;
        const bool written = (p.how.epilogue & (ep_relu | ep_gelu)) != 0;
        ranges.push_back({"aux", p.how.aux, p.relu_mask() ? (elements + 7) / 8 : elements * element, written});
    }
    for (const auto& [name, scale] : {std::pair{"scale of a", p.how.a_scale}, {"scale of b", p.how.b_scale}}) {
        if (scale != 0) {
            ranges.push_back({name, scale, sizeof(float), false});
        }
    }
    if (p.workspace_bytes > 0) {
        ranges.push_back({"workspace", p.workspace, p.workspace_bytes, true});
    }
    return ranges;
}

Answer first_of(std::initializer_list<Answer> answers) {
    for (const Answer& answer : answers) {
        if (answer.status != success) {
            return answer;
        }
    }
    return {};
}

}  // namespace

std::uint64_t bytes_of(int type) {
    switch (type) {
        case type_f32: return 4;
        case type_f16:
        case type_bf16: return 2;
        case type_e4m3:
        case type_e5m2: return 1;
        default: return 0;
    }
}

Answer check_shapes(const Product& p) {
    if (p.how.transpose_c != 0) {
        return invalid("c cannot be transposed");
    }
    const Answer layouts = first_of({check_layout("a", p.a_layout), check_layout("b", p.b_layout),
                                     check_layout("c", p.c_layout), check_layout("d", p.d_layout)});
    return layouts.status != success ? layouts : first_of({check_sizes(p), check_types(p), check_epilogue(p)});
}

Answer check_pointers(const Product& p, const unsigned (&alignment)[4]) {
    if (p.a == 0 || p.b == 0 || p.d == 0 || (p.c == 0 && p.beta != 0.0f)) {
        return invalid("a matrix without an address");
    }
    if (p.c == p.d && (p.c_layout.ld != p.d_layout.ld || p.c_layout.batch_stride != p.d_layout.batch_stride)) {
        return invalid("c is d, in another layout");
    }
    if (((p.how.epilogue & ep_any_bias) != 0 && p.how.bias == 0) ||
        ((p.how.epilogue & ep_aux) != 0 && p.how.aux == 0)) {
        return invalid("the epilogue's vector or matrix has no address");
    }
    const std::uint64_t addresses[] = {p.a, p.b, p.beta != 0.0f ? p.c : p.d, p.d};
    const Layout* const layouts[] = {&p.a_layout, &p.b_layout, &p.c_layout, &p.d_layout};
    for (int i = 0; i < 4; ++i) {
        const std::uint64_t wanted = std::max<std::uint64_t>(alignment[i], bytes_of(layouts[i]->type));
        if (addresses[i] % wanted != 0) {
            return invalid(std::string("matrix ") + "abcd"[i] + " is not aligned to the " + text(wanted) +
                           " bytes that the algorithm was chosen for");
        }
    }
    if ((p.how.epilogue & ep_any_bias) != 0 && p.how.bias % vector_alignment != 0) {
        return invalid("the bias is not aligned to " + text(vector_alignment) + " bytes");
    }
    if ((p.how.epilogue & ep_aux) != 0 && p.how.aux % aux_alignment != 0) {
        return invalid("the auxiliary matrix is not aligned to " + text(aux_alignment) + " bytes");
    }
    if (p.workspace_bytes > 0 && (p.workspace == 0 || p.workspace % workspace_alignment != 0)) {
        return invalid("the workspace has no address, or one that is not aligned to " + text(workspace_alignment));
    }
    const std::vector<Range> ranges = ranges_of(p);
    for (const Range& written : ranges) {
        for (const Range& other : ranges) {
            const bool apart = written.start + written.bytes <= other.start || other.start +
                other.bytes <= written.start;
            if (written.written && &written != &other && !apart) {
                return invalid(std::string(written.name) + " is written and overlaps " + other.name);
            }
        }
    }
    return check_ranges(p);
}

Answer check_ranges(const Product& p) {
    for (const Range& range : ranges_of(p)) {
        if (driver().is_allocated(range.start, range.bytes) == 0) {
            return invalid(std::string(range.name) + ": its " + text(range.bytes) + " bytes are not allocated");
        }
    }
    return {};
}

}  // namespace fake_blas
