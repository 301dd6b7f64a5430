// Graphs of the emulated driver: what a captured stream was given, to be given to a stream again and again.
#include "fake_device.h"

#include <algorithm>

namespace {

using namespace fake;

// What the handles of graphs point to. What a graph was instantiated as shares its nodes, whose work may be another
// one there.
struct Graph {
    Nodes nodes;
};

struct Executable {
    Nodes nodes;
    std::vector<std::function<Status()>> work;
};

// As `CUDA_KERNEL_NODE_PARAMS_v2`.
struct KernelParameters {
    void* function;
    Shape shape;
    void** arguments;
    void** extra;
    void* kernel;
    void* context;
};

unsigned long long launched = 0;

}  // namespace

extern "C" {

// How many graphs were launched so far.
unsigned long long emulated_graphs() {
    Lock lock(device().mutex);
    return launched;
}

Status cuStreamBeginCapture_v2(void* handle, unsigned mode) {
    constexpr unsigned relaxed = 2;
    Lock lock(device().mutex);
    Stream* const stream = find_stream(handle);
    if (current_context == nullptr || stream == nullptr) {
        return stream == nullptr ? invalid_handle : invalid_context;
    }
    // Stricter modes forbid calls of other threads, which is not emulated.
    if (mode != relaxed || stream->captured) {
        return invalid_value;
    }
    stream->captured = std::make_unique<Nodes>();
    return success;
}

Status cuStreamEndCapture(void* handle, Graph** graph) {
    Lock lock(device().mutex);
    Stream* const stream = find_stream(handle);
    if (stream == nullptr || !stream->captured) {
        return invalid_value;
    }
    *graph = new Graph{std::move(*stream->captured)};
    stream->captured = nullptr;
    return success;
}

// The nodes that the next one will come after: the last one.
Status cuStreamGetCaptureInfo_v2(void* handle, int* status, unsigned long long*, Graph**, void* const** nodes,
                                 std::size_t* count) {
    constexpr int active = 1;
    static thread_local void* last[1];
    Lock lock(device().mutex);
    Stream* const stream = find_stream(handle);
    if (stream == nullptr || !stream->captured) {
        return invalid_value;
    }
    *status = active;
    *count = stream->captured->empty() ? 0 : 1;
    last[0] = stream->captured->empty() ? nullptr : stream->captured->back().get();
    *nodes = last;
    return success;
}

Status cuGraphInstantiateWithFlags(Executable** executable, Graph* graph, unsigned long long flags) {
    Lock lock(device().mutex);
    if (flags != 0 || from_environment("EMULATED_CUDA_NO_GRAPHS", 0) != 0) {
        return capture_invalidated;
    }
    auto made = std::make_unique<Executable>();
    made->nodes = graph->nodes;
    for (const auto& node : graph->nodes) {
        made->work.push_back(node->work);
    }
    *executable = made.release();
    return success;
}

// Of the same function alone: nothing else is ever set here.
Status cuGraphExecKernelNodeSetParams_v2(Executable* executable, void* node, const KernelParameters* parameters) {
    Lock lock(device().mutex);
    const auto same = [node](const std::shared_ptr<Node>& other) { return other.get() == node; };
    const auto found = std::find_if(executable->nodes.begin(), executable->nodes.end(), same);
    if (found == executable->nodes.end() || (*found)->function != parameters->function) {
        return invalid_value;
    }
    Prepared launch = prepare(parameters->function, parameters->shape, parameters->arguments);
    if (launch.status == success) {
        executable->work[static_cast<std::size_t>(found - executable->nodes.begin())] = std::move(launch.work);
    }
    return launch.status;
}

Status cuGraphLaunch(Executable* executable, void* stream) {
    Lock lock(device().mutex);
    launched += 1;
    for (std::size_t i = 0; i < executable->nodes.size(); ++i) {
        if (Status status = give(stream, executable->work[i], nullptr, executable->nodes[i]->launch)) {
            return status;
        }
    }
    return success;
}

Status cuGraphExecDestroy(Executable* executable) {
    Lock lock(device().mutex);
    delete executable;
    return success;
}

Status cuGraphDestroy(Graph* graph) {
    Lock lock(device().mutex);
    delete graph;
    return success;
}

}  // extern "C"
