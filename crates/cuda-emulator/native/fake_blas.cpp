// An emulated libcublasLt.so.13: the part of the interface that this crate uses. Products are queued on the emulated
// driver's streams and run as late as kernels do. The reason for a refusal is printed to the standard error, which the
// real library does not.
//
// Environment: EMULATED_BLAS_UNKNOWN, the number of an epilogue for which there is no algorithm; EMULATED_BLAS_REFUSED,
// of one that has an algorithm and is refused all the same when a product is queued. EMULATED_BLAS_ALGORITHMS, how many
// algorithms each product has, 1 if absent; EMULATED_BLAS_FASTEST, the number of the one that is not slow, counted from
// 0; EMULATED_BLAS_REFUSED_ALGORITHM, of one that is refused when a product is queued. All give the same result.
//
// Descriptors that were destroyed or never made are found. An algorithm is good for the product it was asked for, with
// pointers aligned as the preference declared; it needs a workspace where it may have one, and spoils what is in it.
// Its kernels are loaded when it is first used, for which the driver may wait for the device.
#include "fake_blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace fake_blas {

const Driver& driver() {
    // Opened again under the name that the bindings use, which gives the library that is in the process already, unless
    // the driver is part of the program.
    static const Driver found = [] {
        const bool inside = dlsym(RTLD_DEFAULT, "emulated_give") != nullptr;
        void* const library = inside ? RTLD_DEFAULT : dlopen("libcuda.so", RTLD_LAZY);
        const auto function = [=](const char* name) { return library == nullptr && !inside ? nullptr :
            dlsym(library, name); };
        return Driver{reinterpret_cast<decltype(Driver::has_context)>(function("emulated_has_context")),
                      reinterpret_cast<decltype(Driver::is_allocated)>(function("emulated_is_allocated")),
                      reinterpret_cast<decltype(Driver::load)>(function("emulated_load")),
                      reinterpret_cast<decltype(Driver::give)>(function("emulated_give"))};
    }();
    return found;
}

namespace {

int handle_token = 0;

// What the caller made and did not destroy.
template <class Object>
struct Made {
    std::mutex mutex;
    std::map<const void*, std::unique_ptr<Object>> objects;

    void* make(Object object) {
        std::lock_guard<std::mutex> lock(mutex);
        auto owned = std::make_unique<Object>(object);
        void* const address = owned.get();
        objects[address] = std::move(owned);
        return address;
    }

    Object* find(const void* address) {
        std::lock_guard<std::mutex> lock(mutex);
        const auto found = objects.find(address);
        return found == objects.end() ? nullptr : found->second.get();
    }

    bool destroy(const void* address) {
        std::lock_guard<std::mutex> lock(mutex);
        return objects.erase(address) == 1;
    }
};

Made<Layout> layouts;
Made<Description> descriptions;
Made<Preference> preferences;

Status refuse(Status status, const std::string& reason) {
    std::fprintf(stderr, "emulated cuBLASLt: %s\n", reason.c_str());
    return status;
}

Status refuse(const Answer& answer) {
    return answer.status == success ? success : refuse(answer.status, answer.reason);
}

// What tests ask for: how often an algorithm was looked for, how often a product that has one was refused, and how many
// products were queued with an epilogue.
struct Counts {
    std::mutex mutex;
    std::uint64_t queries = 0;
    std::uint64_t refusals = 0;
    std::map<unsigned, std::uint64_t> products;
};

Counts counts;

// Whether an environment variable is this number: of an epilogue, or of an algorithm.
bool named(const char* variable, std::uint64_t number) {
    const char* const text = std::getenv(variable);
    return text != nullptr && std::strtoul(text, nullptr, 10) == number;
}

// How many algorithms a product has.
int algorithms_of_a_product() {
    const char* const text = std::getenv("EMULATED_BLAS_ALGORITHMS");
    return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

// Long beside a product of a test, so that a fast algorithm is told from a slow one on a busy machine.
unsigned microseconds_of(std::uint64_t number) {
    constexpr unsigned slow = 2000;
    return std::getenv("EMULATED_BLAS_FASTEST") == nullptr || named("EMULATED_BLAS_FASTEST", number) ? 0 : slow;
}

// Copies an attribute whose size must match its field.
template <class Value>
Status set(Value& place, const void* from, std::size_t bytes) {
    if (from == nullptr || bytes != sizeof place) {
        return refuse(invalid_value, "an attribute of " + std::to_string(bytes) + " bytes, not " +
                                         std::to_string(sizeof place));
    }
    std::memcpy(&place, from, sizeof place);
    return success;
}

// What the 64 opaque bytes of an algorithm hold here.
struct Algorithm {
    std::uint64_t mark;
    std::uint64_t number;
    std::uint64_t workspace_bytes;
    unsigned alignment[4];
    std::uint64_t unused[3];
};
static_assert(sizeof(Algorithm) == 64);

constexpr std::uint64_t algorithm_mark = 0x656d756c61746564;

struct HeuristicResult {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

struct Hash {
    std::uint64_t value = 0xcbf29ce484222325;

    void add(std::uint64_t part) { value = (value ^ part) * 0x100000001b3; }
};

// A number for the kernels of an algorithm, which are compiled for types, transposes and an epilogue.
std::uint64_t kernels_of(const Product& p, std::uint64_t number) {
    Hash hash;
    for (int value : {p.how.compute, p.how.transpose_a, p.how.transpose_b, static_cast<int>(p.how.epilogue)}) {
        hash.add(static_cast<std::uint64_t>(value));
    }
    for (const Layout* layout : {&p.a_layout, &p.b_layout, &p.c_layout, &p.d_layout}) {
        hash.add(static_cast<std::uint64_t>(layout->type));
        hash.add(static_cast<std::uint64_t>(layout->order));
    }
    hash.add(number);
    return hash.value;
}

// A number for what an algorithm depends on, pointers apart.
std::uint64_t problem_of(const Product& p, std::uint64_t kernels) {
    Hash hash;
    const auto add = [&hash](std::uint64_t value) { hash.add(value); };
    add(kernels);
    for (const Layout* layout : {&p.a_layout, &p.b_layout, &p.c_layout, &p.d_layout}) {
        add(layout->rows);
        add(layout->columns);
        add(static_cast<std::uint64_t>(layout->ld));
        add(static_cast<std::uint64_t>(layout->batch_count));
    }
    return hash.value;
}

// Problems that an algorithm was given for, and kernels that were loaded.
struct Numbers {
    std::mutex mutex;
    std::set<std::uint64_t> numbers;

    // Whether it is new.
    bool add(std::uint64_t number) {
        std::lock_guard<std::mutex> lock(mutex);
        return numbers.insert(number).second;
    }

    bool has(std::uint64_t number) {
        std::lock_guard<std::mutex> lock(mutex);
        return numbers.count(number) == 1;
    }
};

Numbers given, loaded;

// What the emulated algorithm asks for: a little for long sums, if it may.
std::uint64_t workspace_for(const Product& p, std::uint64_t most) {
    constexpr std::uint64_t wanted = 4096, long_sum = 64;
    return p.k() >= long_sum && most >= wanted ? wanted : 0;
}

// The product of descriptors; without an address yet.
Answer describe(Product& p, const void* how, const void* a, const void* b, const void* c, const void* d) {
    const Description* const description = descriptions.find(how);
    // Without a layout of its own c has the layout of d.
    const Layout* const found[] = {layouts.find(a), layouts.find(b), layouts.find(c == nullptr ? d : c),
        layouts.find(d)};
    if (description == nullptr || std::find(std::begin(found), std::end(found), nullptr) != std::end(found)) {
        return {invalid_value, "a descriptor that is none, or was destroyed"};
    }
    p.how = *description;
    p.a_layout = *found[0];
    p.b_layout = *found[1];
    p.c_layout = *found[2];
    p.d_layout = *found[3];
    return check_shapes(p);
}

int run_queued(void* data) {
    const Product& product = *static_cast<const Product*>(data);
    // Memory may have been freed since.
    const Answer answer = check_ranges(product);
    if (answer.status != success) {
        refuse(answer);
        constexpr int illegal_address = 700;
        return illegal_address;
    }
    run(product);
    std::this_thread::sleep_for(std::chrono::microseconds(product.microseconds));
    return 0;
}

}  // namespace
}  // namespace fake_blas

using namespace fake_blas;

extern "C" {

std::uint64_t emulated_blas_queries() {
    std::lock_guard<std::mutex> lock(counts.mutex);
    return counts.queries;
}

std::uint64_t emulated_blas_refusals() {
    std::lock_guard<std::mutex> lock(counts.mutex);
    return counts.refusals;
}

std::uint64_t emulated_blas_products(unsigned epilogue) {
    std::lock_guard<std::mutex> lock(counts.mutex);
    return counts.products[epilogue];
}

std::size_t cublasLtGetVersion() {
    return 130000;
}

const char* cublasLtGetStatusName(Status status) {
    switch (status) {
        case success: return "CUBLAS_STATUS_SUCCESS";
        case not_initialized: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case invalid_value: return "CUBLAS_STATUS_INVALID_VALUE";
        case execution_failed: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case not_supported: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "unknown error";
    }
}

const char* cublasLtGetStatusString(Status status) {
    switch (status) {
        case success: return "success";
        case not_initialized: return "the library was not initialized";
        case invalid_value: return "an unsupported value or parameter was passed to the function";
        case execution_failed: return "the function failed to launch on the GPU";
        case not_supported: return "the functionality requested is not supported";
        default: return "unknown error";
    }
}

Status cublasLtCreate(void** handle) {
    if (driver().has_context == nullptr || driver().has_context() == 0) {
        return refuse(not_initialized, "no context is current on this thread");
    }
    *handle = &handle_token;
    return success;
}

Status cublasLtDestroy(void* handle) {
    return handle == &handle_token ? success : refuse(invalid_value, "a handle that is none");
}

// ---- descriptors

Status cublasLtMatrixLayoutCreate(void** made, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld) {
    Layout layout;
    layout.type = type;
    layout.rows = rows;
    layout.columns = columns;
    layout.ld = ld;
    *made = layouts.make(layout);
    return success;
}

Status cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* from, std::size_t bytes) {
    Layout* const layout = layouts.find(handle);
    if (layout == nullptr) {
        return refuse(invalid_value, "a layout that is none, or was destroyed");
    }
    switch (attribute) {
        case 0: return set(layout->type, from, bytes);
        case 1: return set(layout->order, from, bytes);
        case 2: return set(layout->rows, from, bytes);
        case 3: return set(layout->columns, from, bytes);
        case 4: return set(layout->ld, from, bytes);
        case 5: return set(layout->batch_count, from, bytes);
        case 6: return set(layout->batch_stride, from, bytes);
        default: return refuse(invalid_value, "attribute " + std::to_string(attribute) + " of a layout");
    }
}

Status cublasLtMatrixLayoutDestroy(void* handle) {
    return layouts.destroy(handle) ? success : refuse(invalid_value, "a layout was destroyed twice");
}

Status cublasLtMatmulDescCreate(void** made, int compute, int scale) {
    Description description;
    description.compute = compute;
    description.scale = scale;
    *made = descriptions.make(description);
    return success;
}

Status cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* from, std::size_t bytes) {
    Description* const how = descriptions.find(handle);
    if (how == nullptr) {
        return refuse(invalid_value, "a description that is none, or was destroyed");
    }
    switch (attribute) {
        case 0: return set(how->compute, from, bytes);
        case 1: return set(how->scale, from, bytes);
        case 2: return set(how->pointer_mode, from, bytes);
        case 3: return set(how->transpose_a, from, bytes);
        case 4: return set(how->transpose_b, from, bytes);
        case 5: return set(how->transpose_c, from, bytes);
        case 7: return set(how->epilogue, from, bytes);
        case 8: return set(how->bias, from, bytes);
        case 10: return set(how->bias_batch_stride, from, bytes);
        case 11: return set(how->aux, from, bytes);
        case 12: return set(how->aux_ld, from, bytes);
        case 13: return set(how->aux_batch_stride, from, bytes);
        case 17: return set(how->a_scale, from, bytes);
        case 18: return set(how->b_scale, from, bytes);
        case 22: return set(how->aux_type, from, bytes);
        case 25: return set(how->fast_accumulation, from, bytes);
        case 26: return set(how->bias_type, from, bytes);
        default: return refuse(invalid_value, "attribute " + std::to_string(attribute) + " of a product");
    }
}

Status cublasLtMatmulDescDestroy(void* handle) {
    return descriptions.destroy(handle) ? success : refuse(invalid_value, "a description was destroyed twice");
}

Status cublasLtMatmulPreferenceCreate(void** made) {
    *made = preferences.make({});
    return success;
}

Status cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* from, std::size_t bytes) {
    Preference* const preference = preferences.find(handle);
    if (preference == nullptr) {
        return refuse(invalid_value, "a preference that is none, or was destroyed");
    }
    unsigned mask = 0;
    switch (attribute) {
        case 1: return set(preference->workspace_bytes, from, bytes);
        // How partial sums are put together: there are none.
        case 3: return set(mask, from, bytes);
        case 5: return set(preference->alignment[0], from, bytes);
        case 6: return set(preference->alignment[1], from, bytes);
        case 7: return set(preference->alignment[2], from, bytes);
        case 8: return set(preference->alignment[3], from, bytes);
        default: return refuse(invalid_value, "attribute " + std::to_string(attribute) + " of a preference");
    }
}

Status cublasLtMatmulPreferenceDestroy(void* handle) {
    return preferences.destroy(handle) ? success : refuse(invalid_value, "a preference was destroyed twice");
}

// ---- products

Status cublasLtMatmulAlgoGetHeuristic(void* handle, void* how, void* a, void* b, void* c, void* d, void* wanted,
                                      int requested, HeuristicResult* results, int* count) {
    const Preference* const preference = preferences.find(wanted);
    if (handle != &handle_token || preference == nullptr || requested < 1 || results == nullptr || count == nullptr) {
        return refuse(invalid_value, "a heuristic without a handle, a preference or a place for its answer");
    }
    {
        std::lock_guard<std::mutex> lock(counts.mutex);
        ++counts.queries;
    }
    *count = 0;
    Product product;
    if (Status status = refuse(describe(product, how, a, b, c, d))) {
        return status;
    }
    if (named("EMULATED_BLAS_UNKNOWN", product.how.epilogue)) {
        return success;
    }
    *count = std::min(requested, algorithms_of_a_product());
    for (int number = 0; number < *count; ++number) {
        HeuristicResult& result = results[number];
        result = {};
        result.algorithm.mark = algorithm_mark;
        result.algorithm.number = static_cast<std::uint64_t>(number);
        // Each asks for other memory.
        result.algorithm.workspace_bytes =
            workspace_for(product, preference->workspace_bytes) * (result.algorithm.number + 1);
        std::copy(std::begin(preference->alignment), std::end(preference->alignment),
                  std::begin(result.algorithm.alignment));
        result.workspace_bytes = result.algorithm.workspace_bytes;
        result.state = success;
        result.waves = 1.0f;
        given.add(problem_of(product, kernels_of(product, result.algorithm.number)));
    }
    return success;
}

Status cublasLtMatmul(void* handle, void* how, const float* alpha, std::uint64_t a, void* a_layout, std::uint64_t b,
                      void* b_layout, const float* beta, std::uint64_t c, void* c_layout, std::uint64_t d,
                          void* d_layout,
                      const Algorithm* algorithm, std::uint64_t workspace, std::size_t workspace_bytes, void* stream) {
    if (handle != &handle_token || alpha == nullptr || beta == nullptr) {
        return refuse(invalid_value, "a product without a handle or a factor");
    }
    auto product = std::make_unique<Product>();
    Product& p = *product;
    if (Status status = refuse(describe(p, how, a_layout, b_layout, c_layout, d_layout))) {
        return status;
    }
    p.alpha = *alpha;
    p.beta = *beta;
    p.a = a;
    p.b = b;
    p.c = c;
    p.d = d;
    p.workspace = workspace;
    // Without an algorithm the library chooses one, for the pointers it sees.
    constexpr unsigned any_alignment[4] = {1, 1, 1, 1};
    p.workspace_bytes = workspace_for(p, workspace_bytes);
    if (algorithm != nullptr) {
        const std::uint64_t kernels = kernels_of(p, algorithm->number);
        if (algorithm->mark != algorithm_mark || !given.has(problem_of(p, kernels))) {
            return refuse(invalid_value, "the algorithm is none, or was chosen for another product");
        }
        if (algorithm->workspace_bytes > workspace_bytes) {
            return refuse(invalid_value, "the workspace is smaller than the algorithm asked for");
        }
        p.workspace_bytes = algorithm->workspace_bytes;
        p.microseconds = microseconds_of(algorithm->number);
        if (named("EMULATED_BLAS_REFUSED_ALGORITHM", algorithm->number)) {
            std::lock_guard<std::mutex> lock(counts.mutex);
            ++counts.refusals;
            return refuse(not_supported, "this algorithm is refused");
        }
        if (loaded.add(kernels) && driver().load("the first use of an algorithm of cuBLASLt") != 0) {
            return execution_failed;
        }
    }
    if (Status status = refuse(check_pointers(p, algorithm == nullptr ? any_alignment : algorithm->alignment))) {
        return status;
    }
    if (named("EMULATED_BLAS_REFUSED", p.how.epilogue)) {
        std::lock_guard<std::mutex> lock(counts.mutex);
        ++counts.refusals;
        return refuse(not_supported, "this epilogue is refused");
    }
    {
        std::lock_guard<std::mutex> lock(counts.mutex);
        ++counts.products[p.how.epilogue];
    }
    const auto release = [](void* data) { delete static_cast<Product*>(data); };
    return driver().give(stream, run_queued, product.release(), release) == 0 ? success : execution_failed;
}

}  // extern "C"
