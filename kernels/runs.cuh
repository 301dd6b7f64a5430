// Several runs of elements in one launch: each is taken by blocks of its own, `blocks` of them from `first_block` on,
// in ascending order and without gaps. crate::cuda::runs gives them out.

// The run that this block belongs to: the last one that does not begin after it. The same for all threads of a block.
template <class Run, int kMost>
__device__ __forceinline__ const Run& own_run(const Run (&runs)[kMost], int count) {
    const int block = static_cast<int>(blockIdx.x);
    int own = 0;
    int end = count;
#pragma unroll 1
    while (end - own > 1) {
        const int middle = (own + end) / 2;
        if (runs[middle].first_block <= block) {
            own = middle;
        } else {
            end = middle;
        }
    }
    return runs[own];
}
