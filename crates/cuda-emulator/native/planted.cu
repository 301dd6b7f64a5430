// Mistakes on purpose, one for each value of EMULATED_PLANTED. A test appends them to the source of norm.cu,
// in place of its first kernel, and expects the checkers to find each and nothing where there is none.

#include <cstdlib>

namespace planted {

const std::string& mistake() {
    static const std::string word = std::getenv("EMULATED_PLANTED") != nullptr ? std::getenv("EMULATED_PLANTED") : "";
    return word;
}

float* destination(const NormForwardArguments& a) {
    return static_cast<float*>(a.y.data);
}

// Threads read what their neighbours of another warp put into shared memory.
void exchange_by_block(const NormForwardArguments& a, bool with_barrier) {
    SHARED(float, values, [kNormThreads]);
    values[threadIdx.x] = 1.0f;
    if (with_barrier) {
        __syncthreads();
    }
    destination(a)[global_thread()] = values[(threadIdx.x + kWarpThreads) % blockDim.x];
}

// Lanes read what their neighbours put into shared memory. A shuffle in between lets them meet, and orders nothing.
void exchange_by_warp(const NormForwardArguments& a, bool with_order) {
    SHARED(float, values, [kNormThreads]);
    values[threadIdx.x] = 1.0f;
    if (with_order) {
        __syncwarp();
    } else {
        warp_sum(1.0f);
    }
    destination(a)[global_thread()] = values[threadIdx.x ^ 1];
}

// Blocks leave a number each, and the last to come adds them up.
void add_up_blocks(const NormForwardArguments& a, bool with_fence) {
    if (threadIdx.x != 0) {
        return;
    }
    a.mean[blockIdx.x] = 1.0f;
    if (with_fence) {
        __threadfence();
    }
    // The memory holds -1 in every byte when it is new.
    const int before = atomicAdd(reinterpret_cast<int*>(a.rstd), 1);
    if (before == static_cast<int>(gridDim.x) - 2) {
        if (with_fence) {
            __threadfence();
        }
        for (unsigned i = 0; i < gridDim.x; ++i) {
            destination(a)[0] += a.mean[i];
        }
    }
}

// Whether the running thread is the last of all.
bool is_last() {
    return global_thread() == global_threads() - 1;
}

void kernel(const NormForwardArguments a) {
    const std::string& word = mistake();
    if (word == "a missing barrier" || word == "no mistake with a barrier") {
        exchange_by_block(a, word != "a missing barrier");
    } else if (word == "a shuffle in place of an order" || word == "no mistake with an order of lanes") {
        exchange_by_warp(a, word != "a shuffle in place of an order");
    } else if (word == "a missing fence" || word == "no mistake with a fence") {
        add_up_blocks(a, word != "a missing fence");
    } else if (word == "blocks that write the same") {
        a.rstd[0] = 1.0f;
    } else if (word == "blocks that write the same after a barrier") {
        __syncthreads();
        if (threadIdx.x == 0) {
            a.rstd[0] = 1.0f;
        }
    } else if (word == "a write beyond a view") {
        if (is_last()) {
            destination(a)[a.rows * a.columns] = 1.0f;
        }
    } else if (word == "a write beyond a view, in its allocation") {
        if (is_last()) {
            a.mean[a.rows] = 1.0f;
        }
    } else if (word == "a write before a view") {
        if (is_last()) {
            destination(a)[-1] = 1.0f;
        }
    } else if (word == "a read beyond a view") {
        if (is_last()) {
            a.rstd[0] = static_cast<const float*>(a.x.data)[a.rows * a.columns];
        }
    } else if (word == "a read beyond shared memory") {
        SHARED(float, values, [kMostWarps]);
        float* const start = values;
        a.rstd[blockIdx.x] = start[kMostWarps + threadIdx.x / kNormThreads];
    } else if (word == "an index beyond an array") {
        float values[4] = {1.0f, 2.0f, 3.0f, 4.0f};
        a.rstd[blockIdx.x] = values[blockDim.x / 32];
    } else if (word == "a misaligned pack") {
        a.rstd[blockIdx.x] = Whole<float>::load(a.x.data, 1).at[0];
    } else if (word == "a write to what is read") {
        if (is_last()) {
            const_cast<float*>(static_cast<const float*>(a.weight.data))[0] = 1.0f;
        }
    } else {
        norm_forward_body<F32>(a);
    }
}

// Called after the kernel itself, which it replaces.
const emulator::Registration registration("norm_forward_f32", kernel);

}  // namespace planted
