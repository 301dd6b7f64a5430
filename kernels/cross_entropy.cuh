// What the kernels of cross-entropy have in common: targets and class weights of rows, and the walk over the packs of a
// row.

constexpr int kLossThreads = 512;
constexpr int kLossRowThreads = 256;
// The most there may be: one row on a multiprocessor rather than several, so that the rows in work fit into a device's
// second-level cache and are read from memory once.
constexpr int kInPlaceThreads = 1024;
// Packs of a row that a thread has in flight.
constexpr int kLogitsTogether = 2;

// Numbers of the host for reports.
enum {
    kCrossEntropyForward = 3,
    kCrossEntropyBackward = 4,
    kCrossEntropyStatistics = 5,
    kCrossEntropyInPlace = 8,
};

struct Criterion {
    const long long* targets;
    long long ignore_index;
    // The class of the first column, the classes of this shard, the classes of all shards.
    long long first;
    long long count;
    long long total;
    // Of all classes; null if all are 1.
    const float* weights;
    // Null if the kernel sums the weights itself.
    const float* weight_sum;
    Fault* fault;
    float smoothing;
    // Logits are taken as cap * tanh(x / cap); 0 where they stay as they are.
    float soft_cap;
    // The address of the weights is a multiple of 16 bytes.
    int weights_whole;
    int unused;
};

// A logit after the soft cap, if there is one.
__device__ __forceinline__ float capped(const Criterion& c, float x) {
    return c.soft_cap != 0.0f ? c.soft_cap * tanhf(x / c.soft_cap) : x;
}

__device__ __forceinline__ void cap(const Criterion& c, Pack& pack) {
    if (c.soft_cap != 0.0f) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
            pack.at[i] = capped(c, pack.at[i]);
        }
    }
}

// A target that is neither ignored nor out of range.
__device__ __forceinline__ bool counts(const Criterion& c, long long target) {
    return target != c.ignore_index && target >= 0 && target < c.total;
}

// The target of a row; -1 if the row is ignored. Every thread of the block calls this, the first reports.
__device__ __forceinline__ long long target_of(const Criterion& c, long long row, int kernel) {
    const long long target = c.targets[row];
    if (counts(c, target)) {
        return target;
    }
    if (target != c.ignore_index && threadIdx.x == 0) {
        report(c.fault, kernel, row, target, c.total);
    }
    return -1;
}

__device__ __forceinline__ float weight_of(const Criterion& c, long long target) {
    return c.weights != nullptr ? c.weights[target] : 1.0f;
}

// The largest of some numbers and the sum of the exponentials of their differences to it. NaN is skipped by the first
// and makes the second NaN.
struct Exponentials {
    float largest;
    float sum;
};

// Subtracted before an exponential: minus infinity would give NaN.
__device__ __forceinline__ float shift_of(float largest) { return largest == -BMTRAIN_INFINITY ? 0.0f : largest; }

// Elements of a row by their offsets in the matrix: whole packs from `head` to `tail`, single elements around them.
struct Span {
    long long begin;
    long long head;
    long long tail;
    long long end;
};

__device__ __forceinline__ Span span_of(long long begin, long long count, bool aligned) {
    const long long end = begin + count;
    if (!aligned) {
        return {begin, end, end, end};
    }
    const long long head = min(end, (begin + kPack - 1) / kPack * kPack);
    return {begin, head, max(head, end / kPack * kPack), end};
}

// Run `one(place)` for the single elements of a span, and `packs(place, stride)` for whole packs, several at a time.
template <class One, class Packs>
__device__ __forceinline__ void walk(const Span& span, const One& one, const Packs& packs) {
    for (long long place = span.begin + threadIdx.x; place < span.head; place += blockDim.x) {
        one(place);
    }
    for (long long place = span.tail + threadIdx.x; place < span.end; place += blockDim.x) {
        one(place);
    }
    const long long stride = static_cast<long long>(blockDim.x) * kPack;
    for (long long place = span.head + static_cast<long long>(threadIdx.x) * kPack; place < span.tail;
         place += kLogitsTogether * stride) {
        packs(place, stride);
    }
}

// The packs at `place` and a stride further, as far as they are before `tail`.
template <class Types>
__device__ __forceinline__ void load_packs(
    Pack* held, const In& from, long long place, long long stride, long long tail) {
#pragma unroll
    for (int h = 0; h < kLogitsTogether; ++h) {
        if (place + h * stride < tail) {
            held[h] = Types::load_pack(from, place + h * stride, kPack, true);
        }
    }
}
