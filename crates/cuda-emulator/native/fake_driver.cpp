// An emulated libcuda.so.1: the part of the CUDA driver's interface that this crate uses, over the memory of the
// process, with kernels run by the emulator. Tests put it first in the loader's path; the device's name contains
// "emulated".
//
// Memory is filled with NaN when it is taken. What runs when, and what is checked, is described in fake_device.h. A
// module's image is not looked at: kernels are those compiled into this library, found by name.
//
// Environment: EMULATED_CUDA_DEVICES, number of devices, 1 if absent; EMULATED_CUDA_SEED, for the random orders;
// EMULATED_CUDA_CAPABILITY, compute capability in tenths, 90 if absent; EMULATED_CUDA_FIRST, the number that the first
// device has among all of the host, 0 if absent: what a process that sees some devices alone is not told otherwise;
// EMULATED_CUDA_DAWDLE, microseconds that each launch takes before it is queued, for threads to come between each
// other; EMULATED_CUDA_MUTE, 1 for a device that does not tell its attributes; EMULATED_CUDA_FAILING_KERNEL, name of a
// kernel that fails when it runs; EMULATED_CUDA_REFUSED_KERNEL, of one that is never launched; EMULATED_CUDA_IDLE, 1
// for a device that runs no kernel and leaves their results what they were: it is for tests that ask what is launched;
// EMULATED_CUDA_ACCOUNT, the GiB of a device that only keeps account: its memory is addresses, nothing runs on it, and
// what is read from it is zeros, for tests that ask what models launch that are too large to run here;
// EMULATED_CUDA_DRAINS, 1 for calls that return memory, take page-locked memory or load kernels to wait for all work,
// as a real driver's may: see `drain` in fake_device.h.
#include "cuda_emulator.h"
#include "fake_declared.h"
#include "fake_device.h"
#include "sanitizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

using namespace fake;

// What the handles of the one context and of any module point to.
int context_token = 0;
int module_token = 0;

// A function's handle points to its entry among the emulator's kernels.
using Named = std::pair<const std::string, emulator::Kernel>;

// As on an H100.
constexpr std::size_t shared_bytes_of_a_block = 227 << 10;
constexpr int max_dynamic_shared_bytes = 8;
// A share in percent, or -1 for the driver's own choice.
constexpr int preferred_shared_carveout = 9;
std::map<const void*, std::size_t> shared_allowed;

// The arguments of a kernel as integers that may be addresses.
std::vector<Address> words_of(void** arguments, const std::vector<std::size_t>& sizes) {
    std::vector<Address> words;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::size_t start = words.size(), count = sizes[i] / sizeof(Address);
        words.resize(start + count);
        std::memcpy(words.data() + start, arguments[i], count * sizeof(Address));
    }
    return words;
}

Status check_words(const std::vector<Address>& words, const std::string& kernel, Status error) {
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (is_freed(words[i])) {
            std::fprintf(stderr, "emulated driver: %s: its arguments hold, at byte %zu, the freed address %llx\n",
                         kernel.c_str(), i * sizeof(Address), words[i]);
            return error;
        }
    }
    return success;
}

Status run_kernel(const std::function<void()>& thread, const emulator::Extent& extent, const std::string& name) {
    const char* failing = std::getenv("EMULATED_CUDA_FAILING_KERNEL");
    if (failing != nullptr && name == failing) {
        return launch_failed;
    }
    if (from_environment("EMULATED_CUDA_IDLE", 0) != 0) {
        return success;
    }
    // Declared views are of one kernel, and so is what the race checker knows of the threads of a block.
    const bool alone = runs_declared() || sanitizer::checks_threads;
    const auto between = alone ? std::function<void()>() : std::function<void()>(run_between_blocks);
    const std::string failure = emulator::run(thread, extent, device().random(), between);
    if (!failure.empty()) {
        std::fprintf(stderr, "emulated driver: %s: %s\n", name.c_str(), failure.c_str());
        return launch_failed;
    }
    return success;
}

}  // namespace

Prepared fake::prepare(void* function, const Shape& shape, void** arguments) {
    const auto& [grid, block, shared_bytes] = shape;
    bool empty = false;
    for (int axis = 0; axis < 3; ++axis) {
        empty = empty || grid[axis] == 0 || block[axis] == 0;
    }
    const unsigned long long threads = static_cast<unsigned long long>(block[0]) * block[1] * block[2];
    const bool large = grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535 || block[0] > 1024 ||
        block[1] > 1024 || block[2] > 64 || threads > 1024;
    // Beyond 48 KiB a kernel has to be allowed it first.
    const auto allowed = shared_allowed.find(function);
    const std::size_t most = allowed == shared_allowed.end() ? 48 << 10 : allowed->second;
    if (empty || large || shared_bytes > most) {
        return {invalid_value, {}, {}};
    }
    const auto& [name, kernel] = *static_cast<const Named*>(function);
    const char* refused = std::getenv("EMULATED_CUDA_REFUSED_KERNEL");
    if (refused != nullptr && name == refused) {
        return {invalid_value, {}, {}};
    }
    const std::vector<Address> words = words_of(arguments, kernel.sizes);
    if (Status status = check_words(words, name, invalid_value)) {
        return {status, {}, {}};
    }
    const std::function<void()> thread = kernel.bind(arguments);
    const emulator::Extent extent = {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes};
    const auto work = [=, label = name] {
        const Status status = check_words(words, label, illegal_address);
        return status != success || account_gib() != 0 ? status : run_kernel(thread, extent, label);
    };
    const auto blocks = static_cast<unsigned long long>(grid[0]) * grid[1] * grid[2];
    return {success, work, {name, blocks, static_cast<unsigned>(threads)}};
}

extern "C" {

// ---- the driver and its devices

Status cuInit(unsigned) {
    Lock lock(device().mutex);
    if (from_environment("EMULATED_CUDA_DEVICES", 1) == 0) {
        return no_device;
    }
    device().random.seed(from_environment("EMULATED_CUDA_SEED", 0));
    return success;
}

Status cuDeviceGetCount(int* count) {
    *count = static_cast<int>(from_environment("EMULATED_CUDA_DEVICES", 1));
    return success;
}

Status cuDeviceGet(int* found, int ordinal) {
    int count = 0;
    cuDeviceGetCount(&count);
    if (ordinal < 0 || ordinal >= count) {
        return invalid_device;
    }
    *found = ordinal;
    return success;
}

Status cuDeviceGetName(char* name, int bytes, int) {
    std::snprintf(name, static_cast<std::size_t>(bytes), "emulated device");
    return success;
}

Status cuDeviceGetPCIBusId(char* id, int bytes, int device) {
    const unsigned number = static_cast<unsigned>(from_environment("EMULATED_CUDA_FIRST", 0)) +
        static_cast<unsigned>(device);
    const int written = std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02x:00.0", 0x17 + number);
    return written < bytes ? success : invalid_value;
}

Status cuDevicePrimaryCtxRetain(void** context, int) {
    Lock lock(device().mutex);
    device().contexts += 1;
    *context = &context_token;
    return success;
}

Status cuDevicePrimaryCtxRelease_v2(int) {
    Lock lock(device().mutex);
    device().contexts -= 1;
    return success;
}

Status cuCtxSetCurrent(void* context) {
    current_context = context;
    return success;
}

Status cuCtxGetCurrent(void** context) {
    *context = current_context;
    return success;
}

Status cuGetErrorName(Status status, const char** name) {
    for (const StatusText& known : status_texts) {
        if (known.status == status) {
            *name = known.name;
            return success;
        }
    }
    return invalid_value;
}

Status cuGetErrorString(Status status, const char** text) {
    for (const StatusText& known : status_texts) {
        if (known.status == status) {
            *text = known.text;
            return success;
        }
    }
    return invalid_value;
}

// ---- streams and events

Status cuStreamCreate(void** stream, unsigned) {
    Lock lock(device().mutex);
    if (current_context == nullptr) {
        return invalid_context;
    }
    device().streams.push_back(std::make_unique<Stream>());
    *stream = device().streams.back().get();
    return success;
}

Status cuStreamDestroy_v2(void* handle) {
    Lock lock(device().mutex);
    return remove_stream(handle);
}

Status cuStreamSynchronize(void* handle) {
    Lock lock(device().mutex);
    return run_stream(handle);
}

Status cuStreamWaitEvent(void* stream, Event* event, unsigned) {
    Lock lock(device().mutex);
    // The time meant is the latest one at this moment: the event may be recorded again before the stream gets here.
    return give(stream, [] { return success; }, event->recorded);
}

// With the barrier that flags 0 stand for.
Status cuStreamWriteValue32_v2(void* stream, Address address, unsigned value, unsigned flags) {
    Lock lock(device().mutex);
    if (flags != 0 || address % 4 != 0) {
        return invalid_value;
    }
    return give(stream, [=] {
        __atomic_store_n(reinterpret_cast<unsigned*>(address), value, __ATOMIC_RELEASE);
        return success;
    });
}

// The address is one of page-locked memory; only "at least, counted in a circle" is known.
Status cuStreamWaitValue32_v2(void* stream, Address address, unsigned value, unsigned flags) {
    Lock lock(device().mutex);
    if (flags != 0 || address % 4 != 0) {
        return invalid_value;
    }
    return give(stream, [=] {
        const unsigned now = __atomic_load_n(reinterpret_cast<unsigned*>(address), __ATOMIC_ACQUIRE);
        return static_cast<int>(now - value) >= 0 ? success : pending;
    });
}

Status cuEventCreate(Event** event, unsigned flags) {
    constexpr unsigned disable_timing = 2;
    *event = new Event;
    (*event)->keeps_time = (flags & disable_timing) == 0;
    return success;
}

Status cuEventDestroy_v2(Event* event) {
    Lock lock(device().mutex);
    delete event;
    return success;
}

Status cuEventRecord(Event* event, void* stream) {
    Lock lock(device().mutex);
    auto occurrence = std::make_shared<Occurrence>();
    Status status = give(stream, [occurrence] {
        occurrence->reached = true;
        using Milliseconds = std::chrono::duration<double, std::milli>;
        occurrence->at = Milliseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
        return success;
    });
    if (status == success) {
        event->recorded = occurrence;
    }
    return status;
}

Status cuEventQuery(Event* event) {
    Lock lock(device().mutex);
    if (device().failure != success) {
        return device().failure;
    }
    return !event->recorded || event->recorded->reached ? success : not_ready;
}

// Time of the host, so nothing about a device: that both were reached, and in which order.
Status cuEventElapsedTime(float* milliseconds, Event* from, Event* to) {
    Lock lock(device().mutex);
    if (!from->keeps_time || !to->keeps_time || !from->recorded || !to->recorded) {
        return invalid_handle;
    }
    if (!from->recorded->reached || !to->recorded->reached) {
        return not_ready;
    }
    *milliseconds = static_cast<float>(to->recorded->at - from->recorded->at);
    return success;
}

Status cuEventSynchronize(Event* event) {
    Lock lock(device().mutex);
    return run_to(event->recorded);
}

// ---- kernels

Status cuModuleLoadData(void** module, const void*) {
    Lock lock(device().mutex);
    if (Status status = drain("cuModuleLoadData")) {
        return status;
    }
    *module = &module_token;
    return success;
}

Status cuModuleUnload(void*) {
    return success;
}

Status cuModuleGetFunction(void** function, void*, const char* name) {
    auto found = emulator::kernels().find(name);
    if (found == emulator::kernels().end()) {
        return not_found;
    }
    *function = &*found;
    return success;
}

Status cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** arguments,
                      void**) {
    if (const unsigned long long time = from_environment("EMULATED_CUDA_DAWDLE", 0)) {
        std::this_thread::sleep_for(std::chrono::microseconds(time));
    }
    Lock lock(device().mutex);
    const Shape shape = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    Prepared launch = prepare(function, shape, arguments);
    if (launch.status != success) {
        return launch.status;
    }
    const Status status = give(stream, std::move(launch.work), nullptr, std::move(launch.launch));
    if (Stream* const found = find_stream(stream); status == success && found->captured) {
        found->captured->back()->function = function;
    }
    return status;
}

Status cuFuncGetParamInfo(void* function, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    const auto& [name, kernel] = *static_cast<const Named*>(function);
    if (index >= kernel.sizes.size()) {
        return invalid_value;
    }
    *offset = 0;
    *bytes = kernel.sizes[index];
    return success;
}

Status cuFuncSetAttribute(void* function, int attribute, int value) {
    Lock lock(device().mutex);
    if (attribute == preferred_shared_carveout) {
        return value >= -1 && value <= 100 ? success : invalid_value;
    }
    if (attribute != max_dynamic_shared_bytes || value < 0 ||
        static_cast<std::size_t>(value) > shared_bytes_of_a_block) {
        return invalid_value;
    }
    shared_allowed[function] = static_cast<std::size_t>(value);
    return success;
}

Status cuDeviceGetAttribute(int* value, int attribute, int) {
    if (from_environment("EMULATED_CUDA_MUTE", 0) != 0) {
        return invalid_value;
    }
    switch (attribute) {
        case 16: *value = 2; return success;     // multiprocessors: few, so that grids have to loop
        // Compute capability, major and minor.
        case 75: *value = static_cast<int>(from_environment("EMULATED_CUDA_CAPABILITY", 90) / 10); return success;
        case 76: *value = static_cast<int>(from_environment("EMULATED_CUDA_CAPABILITY", 90) % 10); return success;
        case 97: *value = static_cast<int>(shared_bytes_of_a_block); return success;
        default: return invalid_value;
    }
}

}  // extern "C"
