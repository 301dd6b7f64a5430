// Memory, streams and their order; see fake_device.h.
#include "fake_device.h"
#include "fake_declared.h"
#include "sanitizer.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace fake {

thread_local void* current_context = nullptr;

namespace {

// Whether the stream has work whose time has come.
bool can_run(const Stream& stream) {
    if (stream.busy || stream.tasks.empty()) {
        return false;
    }
    const auto& after = stream.tasks.front().after;
    return !after || after->reached;
}

// What must hold before any call on a stream.
Status check_call(Stream* stream) {
    if (current_context == nullptr) {
        return invalid_context;
    }
    if (stream == nullptr) {
        return invalid_handle;
    }
    return device().failure;
}

// Runs the first task of a stream, which stays there.
Status run_first(Stream& stream) {
    stream.busy = true;
    const Status status = stream.tasks.front().work();
    stream.busy = false;
    return status;
}

// Runs the streams in random order until `done`.
Status run_until(const std::function<bool()>& done) {
    Device& here = device();
    while (!done()) {
        std::vector<Stream*> ready;
        for (const auto& stream : here.streams) {
            if (can_run(*stream)) {
                ready.push_back(stream.get());
            }
        }
        if (ready.empty()) {
            std::fprintf(stderr, "emulated driver: every stream waits for another\n");
            return here.failure = launch_failed;
        }
        Stream* stream = ready[here.random() % ready.size()];
        Status status = here.failure == success ? run_first(*stream) : here.failure;
        if (status == pending) {
            here.mutex.unlock();
            std::this_thread::sleep_for(std::chrono::microseconds(20));
            here.mutex.lock();
            continue;
        }
        stream->tasks.pop_front();
        if (status != success) {
            here.failure = status;
            return status;
        }
    }
    return here.failure;
}

}  // namespace

Device& device() {
    static Device only;
    return only;
}

Stream* find_stream(void* handle) {
    for (const auto& stream : device().streams) {
        if (stream.get() == handle) {
            return stream.get();
        }
    }
    return nullptr;
}

std::size_t account_gib() {
    static const std::size_t found = from_environment("EMULATED_CUDA_ACCOUNT", 0);
    return found;
}

Address allocate(std::size_t bytes) {
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* memory = nullptr;
    if (account_gib() != 0) {
        // Addresses that nothing else has, and that nothing may touch.
        memory = mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            return 0;
        }
    } else {
        memory = std::aligned_alloc(alignment, rounded);
        if (memory == nullptr) {
            return 0;
        }
        // All bits set: not a number in every floating-point type, -1 in every integer.
        std::memset(memory, 0xFF, bytes);
        sanitizer::forbid(static_cast<char*>(memory) + bytes, rounded - bytes);
    }
    const auto start = reinterpret_cast<Address>(memory);
    forget_freed(start, rounded);
    device().memory[start] = bytes;
    device().memory_in_use += bytes;
    return start;
}

bool release(Address start) {
    auto& memory = device().memory;
    const auto found = memory.find(start);
    if (found == memory.end()) {
        return false;
    }
    device().memory_in_use -= found->second;
    const std::size_t bytes = found->second;
    device().freed[start] = bytes;
    memory.erase(found);
    if (account_gib() != 0) {
        munmap(reinterpret_cast<void*>(start), bytes);
    } else {
        std::free(reinterpret_cast<void*>(start));
    }
    return true;
}

void forget_freed(Address start, std::size_t bytes) {
    auto& freed = device().freed;
    auto next = freed.upper_bound(start);
    if (next != freed.begin()) {
        --next;
    }
    while (next != freed.end() && next->first < start + bytes) {
        const auto [old_start, old_bytes] = *next;
        const Address old_end = old_start + old_bytes;
        if (old_end <= start) {
            ++next;
            continue;
        }
        next = freed.erase(next);
        if (old_start < start) {
            freed[old_start] = start - old_start;
        }
        if (old_end > start + bytes) {
            freed[start + bytes] = old_end - (start + bytes);
        }
    }
}

bool is_freed(Address address) {
    const auto& freed = device().freed;
    const auto after = freed.upper_bound(address);
    return after != freed.begin() && address - std::prev(after)->first < std::prev(after)->second;
}

bool allocated(Address start, std::size_t bytes) {
    const auto& memory = device().memory;
    auto after = memory.upper_bound(start);
    if (after == memory.begin()) {
        return false;
    }
    const auto& [begin, length] = *std::prev(after);
    return start - begin <= length && bytes <= length - (start - begin);
}

unsigned long long from_environment(const char* name, unsigned long long otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

Status check_ranges(std::initializer_list<Address> starts, std::size_t bytes, Status error) {
    for (Address start : starts) {
        if (bytes > 0 && !allocated(start, bytes)) {
            std::fprintf(stderr, "emulated driver: %zu bytes from %llx are not allocated\n", bytes, start);
            return error;
        }
    }
    return success;
}

Status give(void* handle, std::function<Status()> work, std::shared_ptr<Occurrence> after,
            std::optional<Launch> launch) {
    Stream* stream = find_stream(handle);
    if (Status status = check_call(stream)) {
        return status;
    }
    if (stream->captured) {
        if (after) {
            return capture_unsupported;
        }
        stream->captured->push_back(std::make_shared<Node>(Node{std::move(work), std::move(launch)}));
        return success;
    }
    if (launch) {
        record(*launch);
    }
    if (const auto declared = declared_now()) {
        work = [declared, inner = std::move(work)] { return run_declared(*declared, inner); };
    }
    stream->tasks.push_back({std::move(work), std::move(after)});
    return success;
}

Status run_stream(void* handle) {
    Stream* stream = find_stream(handle);
    if (Status status = check_call(stream)) {
        return status;
    }
    if (stream->captured) {
        return capture_unsupported;
    }
    return run_until([stream] { return stream->tasks.empty(); });
}

Status run_to(const std::shared_ptr<Occurrence>& occurrence) {
    return run_until([&occurrence] { return !occurrence || occurrence->reached; });
}

void run_ready() {
    Device& here = device();
    std::vector<const Stream*> waiting;
    while (here.failure == success) {
        std::vector<Stream*> ready;
        for (const auto& stream : here.streams) {
            const bool is_waiting = std::find(waiting.begin(), waiting.end(), stream.get()) != waiting.end();
            if (!is_waiting && can_run(*stream)) {
                ready.push_back(stream.get());
            }
        }
        if (ready.empty()) {
            return;
        }
        Stream* stream = ready[here.random() % ready.size()];
        const Status status = run_first(*stream);
        if (status == pending) {
            waiting.push_back(stream);
            continue;
        }
        stream->tasks.pop_front();
        waiting.clear();
        here.failure = status;
    }
}

Status drain(const char* call) {
    if (from_environment("EMULATED_CUDA_DRAINS", 0) == 0) {
        return success;
    }
    run_ready();
    for (const auto& stream : device().streams) {
        if (!stream->tasks.empty()) {
            std::fprintf(stderr, "emulated CUDA: %s waits for work that waits for another rank\n", call);
            return launch_failed;
        }
    }
    return device().failure;
}

void run_between_blocks() {
    Device& here = device();
    constexpr unsigned often = 8;
    if (here.failure != success || here.random() % often != 0) {
        return;
    }
    std::vector<Stream*> ready;
    for (const auto& stream : here.streams) {
        if (can_run(*stream)) {
            ready.push_back(stream.get());
        }
    }
    if (ready.empty()) {
        return;
    }
    Stream& stream = *ready[here.random() % ready.size()];
    const Status status = run_first(stream);
    if (status != pending) {
        stream.tasks.pop_front();
        here.failure = status;
    }
}

Status remove_stream(void* handle) {
    auto& streams = device().streams;
    auto same = [handle](const std::unique_ptr<Stream>& stream) { return stream.get() == handle; };
    auto found = std::find_if(streams.begin(), streams.end(), same);
    if (found == streams.end()) {
        return invalid_handle;
    }
    streams.erase(found);
    return success;
}

}  // namespace fake
