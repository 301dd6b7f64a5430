// What the emulated driver offers beside the driver's interface, by names that start with "emulated_": to emulated
// libraries, the memory and the streams of its device; to tests, what was launched.
#include "fake_device.h"

#include <cstdio>
#include <string>

namespace {

using namespace fake;

bool recording = false;
std::vector<Launch> launches;

}  // namespace

void fake::record(const Launch& launch) {
    if (recording) {
        launches.push_back(launch);
    }
}

extern "C" {

int emulated_has_context() {
    return current_context != nullptr ? 1 : 0;
}

// Contexts that were retained and not released.
int emulated_contexts() {
    Lock lock(device().mutex);
    return device().contexts;
}

int emulated_is_allocated(Address start, std::size_t bytes) {
    Lock lock(device().mutex);
    return allocated(start, bytes) ? 1 : 0;
}

// Lets the streams go on, as a device does whose host does not wait.
void emulated_run_ready() {
    Lock lock(device().mutex);
    run_ready();
}

// From now on launches are recorded, or no more; what was is forgotten.
void emulated_record(int on) {
    Lock lock(device().mutex);
    recording = on != 0;
    launches.clear();
}

// A launch that was recorded, with its name in at most `bytes` bytes; 0 after the last.
int emulated_launch(std::size_t index, char* name, std::size_t bytes, unsigned long long* blocks, unsigned* threads) {
    Lock lock(device().mutex);
    if (index >= launches.size()) {
        return 0;
    }
    std::snprintf(name, bytes, "%s", launches[index].kernel.c_str());
    *blocks = launches[index].blocks;
    *threads = launches[index].threads;
    return 1;
}

// Kernels of a library are loaded.
Status emulated_load(const char* call) {
    Lock lock(device().mutex);
    return drain(call);
}

// Queues `work(data)`; `release(data)` is called once, whether it has run or not.
Status emulated_give(void* stream, Status (*work)(void*), void* data, void (*release)(void*)) {
    const std::shared_ptr<void> owned(data, release);
    Lock lock(device().mutex);
    const auto run = [work, owned] { return account_gib() == 0 ? work(owned.get()) : success; };
    // How many blocks and threads a library chooses is its own matter: several.
    return give(stream, run, nullptr, Launch{"a library", 2, 64});
}

}  // extern "C"
