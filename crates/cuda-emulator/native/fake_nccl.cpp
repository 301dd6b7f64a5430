// An emulated libnccl.so.2: the part of NCCL's interface that this crate uses, on the streams of the emulated driver
// and between processes of one machine. What it promises is described in fake_nccl.h.
//
// Environment: EMULATED_NCCL_VERSION, the version it reports; EMULATED_NCCL_SILENT, if mismatched calls
// together are not reported; EMULATED_NCCL_DIRECTORY, a directory for its files that all emulated hosts see, in place
// of shared memory.
#include "fake_nccl.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <thread>
#include <unistd.h>

namespace {

using namespace fake_nccl;

// ---- the driver

// Of the driver's tasks: not yet.
constexpr int pending = -1;

struct Driver {
    int (*has_context)();
    int (*is_allocated)(unsigned long long, std::size_t);
    int (*give)(void*, int (*)(void*), void*, void (*)(void*));
    void (*run_ready)();
};

const Driver& driver() {
    // The program has opened it already, under this name.
    static const Driver found = [] {
        void* const library = dlopen("libcuda.so", RTLD_LAZY);
        const auto function = [=](const char* name) { return library == nullptr ? nullptr : dlsym(library, name); };
        return Driver{reinterpret_cast<decltype(Driver::has_context)>(function("emulated_has_context")),
                      reinterpret_cast<decltype(Driver::is_allocated)>(function("emulated_is_allocated")),
                      reinterpret_cast<decltype(Driver::give)>(function("emulated_give")),
                      reinterpret_cast<decltype(Driver::run_ready)>(function("emulated_run_ready"))};
    }();
    return found;
}

// ---- error messages

std::mutex words_mutex;
char words[600];

Result failed(Result result, const std::string& text) {
    std::lock_guard<std::mutex> lock(words_mutex);
    std::snprintf(words, sizeof words, "%s", text.c_str());
    return result;
}

// ---- communicators by their handles

std::mutex comms_mutex;
std::map<const void*, std::shared_ptr<Comm>> comms;

std::shared_ptr<Comm> find(const void* handle) {
    std::lock_guard<std::mutex> lock(comms_mutex);
    const auto found = comms.find(handle);
    return found == comms.end() ? nullptr : found->second;
}

void forget(const void* handle) {
    std::lock_guard<std::mutex> lock(comms_mutex);
    comms.erase(handle);
}

// A device works whether or not its host waits; the emulated one runs when its host does. Work that other ranks have
// been waiting for is run here.
class Pump {
public:
    Pump() : thread([this] { run(); }) {}

    ~Pump() {
        is_over = true;
        thread.join();
    }

private:
    void run() {
        std::uint64_t looks = 0;
        while (!is_over) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            looks = is_busy() ? looks + 1 : 0;
            if (looks >= 5) {
                driver().run_ready();
            }
        }
    }

    static bool is_busy() {
        std::lock_guard<std::mutex> lock(comms_mutex);
        for (const auto& [handle, comm] : comms) {
            if (comm->launched != comm->finished && !comm->is_aborted) {
                return true;
            }
        }
        return false;
    }

    std::atomic<bool> is_over{false};
    std::thread thread;
};

// ---- groups

thread_local int depth = 0;
thread_local std::vector<Batch> group;

int run_batch(void* data) {
    Batch& batch = **static_cast<std::shared_ptr<Batch>*>(data);
    Comm& comm = *batch.comm;
    if (comm.is_aborted) {
        comm.finished = comm.launched.load();
        return 0;
    }
    if (comm.finished != batch.number || !advance(batch)) {
        return pending;
    }
    comm.finished += 1;
    return 0;
}

Result launch(Batch batch) {
    Comm& comm = *batch.comm;
    std::int32_t together = 0;
    for (const Step& step : batch.steps) {
        together += step.call.operation == Operation::message ? 0 : 1;
    }
    std::int32_t place = 0;
    for (Step& step : batch.steps) {
        if (step.call.operation == Operation::message) {
            step.number = step.sends ? comm.sent[step.peer]++ : comm.received[step.peer]++;
        } else {
            step.number = comm.collectives++;
            step.call.place = place++;
            step.call.together = together;
        }
    }
    batch.number = comm.launched++;
    comm.busy = comm.blocks ? 0 : 1;
    void* const stream = batch.stream;
    const bool blocks = comm.blocks;
    auto* const data = new std::shared_ptr<Batch>(std::make_shared<Batch>(std::move(batch)));
    const auto release = [](void* data) { delete static_cast<std::shared_ptr<Batch>*>(data); };
    if (const int status = driver().give(stream, run_batch, data, release)) {
        return failed(1, "the driver answered " + std::to_string(status));
    }
    return blocks ? success : in_progress;
}

Result end_group() {
    std::vector<Batch> batches;
    batches.swap(group);
    Result result = success;
    for (Batch& batch : batches) {
        const Result one = launch(std::move(batch));
        result = result == success || result == in_progress ? (one == success ? result : one) : result;
    }
    return result;
}

// One call: checked, and put into the group or a group of its own.
Result call(void* handle, void* stream, Step step, std::size_t from_parts, std::size_t to_parts) {
    const std::shared_ptr<Comm> comm = find(handle);
    if (comm == nullptr) {
        return failed(invalid_argument, "no such communicator");
    }
    if (!driver().has_context()) {
        return failed(invalid_usage, "no device is current");
    }
    if (comm->busy > 0 || comm->board->joined < static_cast<std::uint32_t>(comm->size) || comm->is_finalized) {
        return failed(invalid_argument, "the communicator is busy with an earlier call, or finalized");
    }
    const std::size_t bytes = step.call.count * size_of(step.call.type);
    const std::size_t most = step.call.operation == Operation::message ? mail_bytes : slot_bytes;
    const bool is_rank = step.call.operation == Operation::message ? step.peer >= 0 && step.peer < comm->size
                                                                   : step.call.root >= 0 && step.call.root < comm->size;
    if (size_of(step.call.type) == 0 || !is_rank || bytes * from_parts > most || step.call.reduction > 4) {
        return failed(invalid_argument, "a type, rank, reduction or size that the emulation does not have");
    }
    const auto is_there = [](const void* place, std::size_t bytes) {
        return bytes == 0 || driver().is_allocated(reinterpret_cast<unsigned long long>(place), bytes) != 0;
    };
    if (!is_there(step.from, bytes * from_parts) || !is_there(step.to, bytes * to_parts)) {
        return failed(invalid_argument, "memory that is not the device's");
    }
    Batch* batch = nullptr;
    for (Batch& known : group) {
        if (known.comm == comm) {
            batch = &known;
        }
    }
    if (batch == nullptr) {
        group.push_back({comm, {}, 0, stream});
        batch = &group.back();
    }
    if (batch->stream != stream) {
        return failed(invalid_usage, "one communicator on two streams of one group");
    }
    batch->steps.push_back(step);
    return depth > 0 ? success : end_group();
}

Step collective(Operation operation, const void* from, void* to, std::size_t count, int type) {
    Step step;
    step.call.operation = operation;
    step.call.type = type;
    step.call.count = count;
    step.from = static_cast<const char*>(from);
    step.to = static_cast<char*>(to);
    return step;
}

Result begin(void** handle, const std::string& name, int rank, int size, bool blocks) {
    if (size < 1 || size > most_ranks || rank < 0 || rank >= size) {
        return failed(invalid_argument, "a rank or number of ranks that the emulation does not have");
    }
    auto comm = std::make_shared<Comm>(name, rank, size);
    if (comm->board == nullptr) {
        return failed(system_error, "no shared memory");
    }
    comm->blocks = blocks;
    driver();
    // Made after the device, so that it ends before it.
    static Pump pump;
    if (comm->board->joined.fetch_add(1) + 1 == static_cast<std::uint32_t>(size)) {
        remove_board(name);
    }
    while (blocks && comm->board->joined < static_cast<std::uint32_t>(size)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    *handle = comm.get();
    std::lock_guard<std::mutex> lock(comms_mutex);
    comms[comm.get()] = comm;
    return blocks ? success : in_progress;
}

}  // namespace

extern "C" {

struct UniqueId {
    char bytes[128];
};

struct Config {
    std::size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
};

Result ncclGetVersion(int* version) {
    const char* text = std::getenv("EMULATED_NCCL_VERSION");
    *version = text == nullptr ? 22809 : std::atoi(text);
    return success;
}

Result ncclGetUniqueId(UniqueId* id) {
    static std::atomic<int> count{0};
    std::memset(id->bytes, 0, sizeof id->bytes);
    std::snprintf(id->bytes, sizeof id->bytes, "/emulated-nccl-%d-%d", getpid(), count++);
    return success;
}

const char* ncclGetErrorString(Result result) {
    switch (result) {
        case success: return "no error";
        case system_error: return "unhandled system error";
        case invalid_argument: return "invalid argument";
        case invalid_usage: return "invalid usage";
        case remote_error: return "remote process exited or there was a network error";
        case in_progress: return "NCCL operation in progress";
        default: return "unhandled cuda error";
    }
}

const char* ncclGetLastError(void*) {
    return words;
}

Result ncclCommInitRankConfig(void** handle, int size, UniqueId id, int rank, Config* config) {
    if (config == nullptr || config->magic != 0xcafebeef || config->size < sizeof(Config)) {
        return failed(invalid_argument, "settings that were not filled in");
    }
    return begin(handle, id.bytes, rank, size, config->blocking != 0);
}

Result ncclCommGetAsyncError(void* handle, Result* error) {
    const std::shared_ptr<Comm> comm = find(handle);
    if (comm == nullptr) {
        return failed(invalid_argument, "no such communicator");
    }
    const auto size = static_cast<std::uint32_t>(comm->size);
    if (comm->board->mismatched == 2) {
        *error = failed(invalid_usage, comm->board->mismatch);
    } else if (comm->board->aborted > 0 && comm->launched != comm->finished) {
        *error = failed(remote_error, "another rank has broken off");
    } else if (comm->board->joined < size || (comm->is_finalized && comm->board->finalized < size)) {
        *error = in_progress;
    } else if (comm->busy > 0) {
        comm->busy -= 1;
        *error = in_progress;
    } else {
        *error = success;
    }
    return success;
}

Result ncclCommFinalize(void* handle) {
    const std::shared_ptr<Comm> comm = find(handle);
    if (comm == nullptr || comm->is_finalized || comm->launched != comm->finished) {
        return failed(invalid_usage, "no such communicator, one that is finalized, or one with work under way");
    }
    comm->is_finalized = true;
    comm->board->finalized += 1;
    return comm->blocks ? success : in_progress;
}

Result ncclCommDestroy(void* handle) {
    const std::shared_ptr<Comm> comm = find(handle);
    if (comm == nullptr || !comm->is_finalized) {
        return failed(invalid_usage, "no such communicator, or one that is not finalized");
    }
    forget(handle);
    return success;
}

Result ncclCommAbort(void* handle) {
    const std::shared_ptr<Comm> comm = find(handle);
    if (comm == nullptr) {
        return failed(invalid_argument, "no such communicator");
    }
    comm->is_aborted = true;
    comm->board->aborted += 1;
    if (comm->board->joined < static_cast<std::uint32_t>(comm->size)) {
        remove_board(comm->name);
    }
    forget(handle);
    return success;
}

Result ncclGroupStart() {
    depth += 1;
    return success;
}

Result ncclGroupEnd() {
    if (depth == 0) {
        return failed(invalid_usage, "no group was begun");
    }
    depth -= 1;
    return depth > 0 ? success : end_group();
}

Result ncclAllReduce(const void* from, void* to, std::size_t count, int type, int by, void* comm, void* stream) {
    Step step = collective(Operation::all_reduce, from, to, count, type);
    step.call.reduction = by;
    return call(comm, stream, step, 1, 1);
}

Result ncclReduce(const void* from, void* to, std::size_t count, int type, int by, int root, void* comm, void* stream) {
    Step step = collective(Operation::reduce, from, to, count, type);
    step.call.reduction = by;
    step.call.root = root;
    return call(comm, stream, step, 1, to == nullptr ? 0 : 1);
}

Result ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int by, void* comm, void* stream) {
    Step step = collective(Operation::reduce_scatter, from, to, count, type);
    step.call.reduction = by;
    const std::shared_ptr<Comm> known = find(comm);
    return call(comm, stream, step, known == nullptr ? 1 : static_cast<std::size_t>(known->size), 1);
}

Result ncclAllGather(const void* from, void* to, std::size_t count, int type, void* comm, void* stream) {
    const std::shared_ptr<Comm> known = find(comm);
    const std::size_t parts = known == nullptr ? 1 : static_cast<std::size_t>(known->size);
    return call(comm, stream, collective(Operation::all_gather, from, to, count, type), 1, parts);
}

Result ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, void* comm, void* stream) {
    Step step = collective(Operation::broadcast, from, to, count, type);
    step.call.root = root;
    return call(comm, stream, step, 1, 1);
}

Result ncclSend(const void* from, std::size_t count, int type, int peer, void* comm, void* stream) {
    Step step = collective(Operation::message, from, nullptr, count, type);
    step.peer = peer;
    step.sends = true;
    return call(comm, stream, step, 1, 0);
}

Result ncclRecv(void* to, std::size_t count, int type, int peer, void* comm, void* stream) {
    Step step = collective(Operation::message, nullptr, to, count, type);
    step.peer = peer;
    return call(comm, stream, step, 0, 1);
}

}  // extern "C"
