// Memory, streams and their order; see fake_device.h.
#include "fake_device.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

namespace fake {

thread_local void* current_context = nullptr;

namespace {

Stream* find_stream(void* handle) {
    for (const auto& stream : device().streams) {
        if (stream.get() == handle) {
            return stream.get();
        }
    }
    return nullptr;
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

// Runs the streams in random order until `done`.
Status run_until(const std::function<bool()>& done) {
    Device& here = device();
    while (!done()) {
        std::vector<Stream*> ready;
        for (const auto& stream : here.streams) {
            if (!stream->tasks.empty() && (!stream->tasks.front().after || stream->tasks.front().after->reached)) {
                ready.push_back(stream.get());
            }
        }
        if (ready.empty()) {
            std::fprintf(stderr, "emulated driver: every stream waits for another\n");
            return here.failure = launch_failed;
        }
        Stream* stream = ready[here.random() % ready.size()];
        Status status = here.failure == success ? stream->tasks.front().work() : here.failure;
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

bool allocated(Address start, std::size_t bytes) {
    const auto& memory = device().memory;
    auto after = memory.upper_bound(start);
    if (after == memory.begin()) {
        return false;
    }
    const auto& [begin, length] = *std::prev(after);
    return start - begin <= length && bytes <= length - (start - begin);
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

Status give(void* handle, std::function<Status()> work, std::shared_ptr<Occurrence> after) {
    Stream* stream = find_stream(handle);
    if (Status status = check_call(stream)) {
        return status;
    }
    stream->tasks.push_back({std::move(work), std::move(after)});
    return success;
}

Status run_stream(void* handle) {
    Stream* stream = find_stream(handle);
    if (Status status = check_call(stream)) {
        return status;
    }
    return run_until([stream] { return stream->tasks.empty(); });
}

Status run_to(const std::shared_ptr<Occurrence>& occurrence) {
    return run_until([&occurrence] { return !occurrence || occurrence->reached; });
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
