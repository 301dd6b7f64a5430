// Scores of attention on tensor cores: which keys a query sees, and the online softmax. For kernels whose scores are in
// registers as mma.cuh lays out results.

// Makes minus infinity of scores whose key is before the window of their query.
template <bool Turned, int Bands, int Tiles>
__device__ __forceinline__ void hide_before_window(const AttentionArguments& a, const Corner& corner,
                                                   float (&scores)[Bands][Tiles][4]) {
    each_score<Turned>(corner, scores, [&](float& score, int l, int s, int, int) {
        score = s < window_start(a, l) ? -BMTRAIN_INFINITY : score;
    });
}

// Makes minus infinity of scores whose key is of another document than their query.
template <bool Turned, int Bands, int Tiles>
__device__ __forceinline__ void hide_other_documents(const AttentionArguments& a, const Corner& corner,
                                                     float (&scores)[Bands][Tiles][4]) {
    each_score<Turned>(corner, scores, [&](float& score, int l, int s, int, int) {
        score = is_of_another_document(a, corner.b, l, s) ? -BMTRAIN_INFINITY : score;
    });
}

// Makes scores of products: plain ones stay as they are but for minus infinity where a key is not seen; general ones
// get scale, soft cap and bias and are powers of two. The padding mask is read once for each key of the tile, by all
// lanes together; a full mask and a bias, which differ for each score, share one branch.
template <bool General, bool Turned, int Bands, int Tiles>
__device__ __forceinline__ void apply_rules(const AttentionArguments& a, const Corner& corner,
                                            float (&scores)[Bands][Tiles][4]) {
    constexpr int kKeys = Turned ? Bands * 16 : Tiles * 8, kQueries = Turned ? Tiles * 8 : Bands * 16;
    const int l0 = Turned ? corner.column : corner.row, s0 = Turned ? corner.row : corner.column;
    const bool hides = window_hides(a, l0, kQueries, s0);
    if (!General) {
        if (hides) {
            hide_before_window<Turned>(a, corner, scores);
        }
        if (!all_seen(a, l0, s0, kKeys)) {
            each_score<Turned>(corner, scores, [&](float& score, int l, int s, int, int) {
                score = s >= seen_end(a, l) ? -BMTRAIN_INFINITY : score;
            });
        }
        return;
    }
    const bool padded = a.mask_kind == kMaskPadding;
    const unsigned char* padding = padded ? a.mask + static_cast<long long>(corner.b) * a.keys : nullptr;
    unsigned seen[(kKeys + kWarpThreads - 1) / kWarpThreads];
#pragma unroll
    for (int word = 0; word < (kKeys + kWarpThreads - 1) / kWarpThreads; ++word) {
        const int s = s0 + word * kWarpThreads + static_cast<int>(threadIdx.x) % kWarpThreads;
        seen[word] = __ballot_sync(kAllLanes, s < a.keys && (padding == nullptr || padding[s] != 0));
    }
    const float unit = a.scale * kLog2E;
    each_score<Turned>(corner, scores, [&](float& score, int l, int s, int word, int key) {
        const bool is_seen = (seen[word] >> key % kWarpThreads & 1u) != 0 && l < a.queries && s < seen_end(a, l);
        score = is_seen ? score * unit : -BMTRAIN_INFINITY;
    });
    if (a.soft_cap != 0.0f) {
        const float cap = a.soft_cap * kLog2E;
        each_score<Turned>(corner, scores, [&](float& score, int, int, int, int) {
            score = score == -BMTRAIN_INFINITY ? score : cap * tanhf(score / cap);
        });
    }
    if (hides) {
        hide_before_window<Turned>(a, corner, scores);
    }
    if (documents_hide(a, corner.b, l0, kQueries, s0, kKeys)) {
        hide_other_documents<Turned>(a, corner, scores);
    }
    if (a.mask_kind != kMaskFull && a.bias.data == nullptr) {
        return;
    }
    each_score<Turned>(corner, scores, [&](float& score, int l, int s, int, int) {
        if (score == -BMTRAIN_INFINITY) {
            return;
        }
        if (a.mask_kind == kMaskFull && mask_row(a, corner.b, l)[s] == 0) {
            score = -BMTRAIN_INFINITY;
        } else if (a.bias.data != nullptr) {
            score = fmaf(Mixed::load(a.bias, bias_row(a, corner.b, corner.n, l) + s), kLog2E, score);
        }
    });
}

// What a score is multiplied with to be a power of two.
template <bool General>
__device__ __forceinline__ float unit_of(const AttentionArguments& a) { return General ? 1.0f : a.scale * kLog2E; }

// What a block works on.
struct Share {
    // For dq a group of sequences.
    int b;
    int n;
    int row;
};

__device__ __forceinline__ Share share_of(const AttentionArguments& a, int rows, int size, int heads, bool last_first) {
    const unsigned tiles = (rows + size - 1) / size;
    const unsigned tile = blockIdx.x % tiles, head = blockIdx.x / tiles;
    // Under the causal rule the last queries see the most keys: the longest work goes first.
    return {static_cast<int>(head / heads), static_cast<int>(head % heads),
            static_cast<int>(last_first ? tiles - 1 - tile : tile) * size};
}

// One tile of the online softmax: scores to probabilities before normalisation, and what the results so far have to be
// multiplied by. Returns whether that is not 1 for a row of the warp.
template <bool General, int Bands, int Tiles>
__device__ __forceinline__ bool soften(const AttentionArguments& a, float (&scores)[Bands][Tiles][4],
                                       float (&largest)[Bands][2], float (&sum)[Bands][2],
                                       float (&corrections)[Bands][2]) {
    const float unit = unit_of<General>(a);
    bool corrected = false;
#pragma unroll
    for (int band = 0; band < Bands; ++band) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float now = largest[band][half];
#pragma unroll
            for (int j = 0; j < Tiles; ++j) {
                now = fmaxf(now, fmaxf(scores[band][j][2 * half], scores[band][j][2 * half + 1]));
            }
            now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 1));
            now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 2));
            // A row that has seen nothing yet has no largest score; any shift gives it zeros.
            const float shift = now == -BMTRAIN_INFINITY ? 0.0f : now * unit;
            const float before = largest[band][half];
            const float correction = before == now ? 1.0f : power_of_two(before * unit - shift);
            corrections[band][half] = correction;
            corrected = corrected || correction != 1.0f;
            largest[band][half] = now;
            float total = sum[band][half] * correction;
#pragma unroll
            for (int j = 0; j < Tiles; ++j) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    scores[band][j][i] = power_of_two(fmaf(scores[band][j][i], unit, -shift));
                    total += scores[band][j][i];
                }
            }
            sum[band][half] = total;
        }
    }
    return __any_sync(kAllLanes, corrected);
}

// Results so far, after a larger score was found. Once the largest ones are, which is soon, results stay as they are.
template <int Bands, int Width>
__device__ __forceinline__ void correct(float (&out)[Bands][Width][4], const float (&corrections)[Bands][2]) {
#pragma unroll
    for (int band = 0; band < Bands; ++band) {
#pragma unroll
        for (int j = 0; j < Width; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                out[band][j][i] *= corrections[band][i / 2];
            }
        }
    }
}

// The natural logarithm of the sum of a query's exponentials.
template <bool General>
__device__ __forceinline__ float log_sum(const AttentionArguments& a, float largest, float total) {
    const float shift = largest == -BMTRAIN_INFINITY ? 0.0f : largest * unit_of<General>(a) * kLn2;
    return shift + logf(total);
}
