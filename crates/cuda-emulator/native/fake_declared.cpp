// Declared ranges; see fake_declared.h.
#include "fake_declared.h"
#include "sanitizer.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace fake {
namespace {

thread_local std::shared_ptr<std::vector<DeclaredRange>> declaration;

bool running = false;

bool overlap(const DeclaredRange& a, const DeclaredRange& b) {
    return a.start < b.start + b.bytes && b.start < a.start + a.bytes;
}

// A number that changes with any byte.
std::uint64_t sum_of(const DeclaredRange& range) {
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(range.start);
    for (std::size_t i = 0; i < range.bytes; ++i) {
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
    return hash;
}

// Those that no written range shares a byte with.
std::vector<DeclaredRange> only_read(const std::vector<DeclaredRange>& ranges) {
    std::vector<DeclaredRange> found;
    for (const DeclaredRange& range : ranges) {
        const auto writes_into = [&range](const DeclaredRange& other) { return other.written &&
            overlap(range, other); };
        if (!range.written && std::none_of(ranges.begin(), ranges.end(), writes_into)) {
            found.push_back(range);
        }
    }
    return found;
}

// The allocation around a range; there is one.
std::pair<Address, std::size_t> around(const DeclaredRange& range) {
    return *std::prev(device().memory.upper_bound(range.start));
}

}  // namespace

std::shared_ptr<const std::vector<DeclaredRange>> declared_now() {
    return declaration;
}

bool runs_declared() {
    return running;
}

Status run_declared(const std::vector<DeclaredRange>& ranges, const std::function<Status()>& work) {
    for (const DeclaredRange& range : ranges) {
        if (Status status = check_ranges({range.start}, range.bytes, illegal_address)) {
            return status;
        }
    }
    const std::vector<DeclaredRange> constant = only_read(ranges);
    std::vector<std::uint64_t> before(constant.size());
    std::transform(constant.begin(), constant.end(), before.begin(), sum_of);
    for (const DeclaredRange& range : ranges) {
        const auto [start, bytes] = around(range);
        sanitizer::forbid(reinterpret_cast<void*>(start), bytes);
    }
    for (const DeclaredRange& range : ranges) {
        sanitizer::allow(reinterpret_cast<void*>(range.start), range.bytes);
    }
    running = true;
    const Status status = work();
    running = false;
    for (const DeclaredRange& range : ranges) {
        const auto [start, bytes] = around(range);
        sanitizer::allow(reinterpret_cast<void*>(start), bytes);
    }
    for (std::size_t i = 0; status == success && i < constant.size(); ++i) {
        if (sum_of(constant[i]) != before[i]) {
            std::fprintf(stderr, "emulated driver: %zu bytes from %llx are declared as only read, and were written\n",
                         constant[i].bytes, constant[i].start);
            return launch_failed;
        }
    }
    return status;
}

}  // namespace fake

extern "C" {

// Begins a declaration, or adds to it.
void emulated_declare(fake::Address start, std::size_t bytes, int written) {
    if (!fake::declaration) {
        fake::declaration = std::make_shared<std::vector<fake::DeclaredRange>>();
    }
    if (bytes > 0) {
        fake::declaration->push_back({start, bytes, written != 0});
    }
}

void emulated_declare_end() {
    fake::declaration = nullptr;
}

}  // extern "C"
