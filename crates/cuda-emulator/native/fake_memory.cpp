// Memory of the emulated driver: taking and returning it, copies and fills. Environment: see fake_driver.cpp.
#include "fake_device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace {

using namespace fake;

// Queues `work` on ranges of the device's memory, which are checked now and when the stream comes to it. A device that
// only keeps account does `instead` in its place.
Status give_checked(void* stream, std::initializer_list<Address> starts, std::size_t bytes, std::function<void()> work,
                    std::function<void()> instead = [] {}) {
    Lock lock(device().mutex);
    if (Status status = check_ranges(starts, bytes, invalid_value)) {
        return status;
    }
    return give(stream, [=, ranges = std::vector<Address>(starts)] {
        for (const Address start : ranges) {
            if (Status status = check_ranges({start}, bytes, illegal_address)) {
                return status;
            }
        }
        account_gib() == 0 ? work() : instead();
        return success;
    });
}

template <class Pattern>
Status fill(Address to, Pattern pattern, std::size_t count, void* stream) {
    if (to % sizeof(Pattern) != 0) {
        return invalid_value;
    }
    return give_checked(stream, {to}, count * sizeof(Pattern),
                        [=] { std::fill_n(reinterpret_cast<Pattern*>(to), count, pattern); });
}

}  // namespace

extern "C" {

Status cuMemAlloc_v2(Address* address, std::size_t bytes) {
    Lock lock(device().mutex);
    if (current_context == nullptr) {
        return invalid_context;
    }
    if (bytes == 0) {
        return invalid_value;
    }
    const std::size_t device_bytes = account_gib() == 0 ? working_bytes : account_gib() << 30;
    if (bytes > device_bytes - device().memory_in_use) {
        return out_of_memory;
    }
    *address = allocate(bytes);
    return *address == 0 ? out_of_memory : success;
}

Status cuMemFree_v2(Address address) {
    Lock lock(device().mutex);
    if (Status status = drain("cuMemFree")) {
        return status;
    }
    return release(address) ? success : invalid_value;
}

Status cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
    Lock lock(device().mutex);
    if (Status status = drain("cuMemHostAlloc")) {
        return status;
    }
    *memory = std::malloc(bytes);
    forget_freed(reinterpret_cast<Address>(*memory), bytes);
    return *memory == nullptr ? out_of_memory : success;
}

Status cuMemFreeHost(void* memory) {
    Lock lock(device().mutex);
    if (Status status = drain("cuMemFreeHost")) {
        return status;
    }
    std::free(memory);
    return success;
}

Status cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned) {
    *address = reinterpret_cast<Address>(memory);
    return success;
}

Status cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void* stream) {
    return give_checked(stream, {to}, bytes, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}

Status cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void* stream) {
    return give_checked(
        stream, {from}, bytes, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); },
        [=] { std::memset(to, 0, bytes); });
}

Status cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, void* stream) {
    return give_checked(stream, {to, from}, bytes, [=] {
        std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    });
}

Status cuMemsetD8Async(Address to, unsigned char pattern, std::size_t count, void* stream) {
    return fill<std::uint8_t>(to, pattern, count, stream);
}

Status cuMemsetD16Async(Address to, unsigned short pattern, std::size_t count, void* stream) {
    return fill<std::uint16_t>(to, pattern, count, stream);
}

Status cuMemsetD32Async(Address to, unsigned pattern, std::size_t count, void* stream) {
    return fill<std::uint32_t>(to, pattern, count, stream);
}

}  // extern "C"
