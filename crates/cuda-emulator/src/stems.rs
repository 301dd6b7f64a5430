//! The stems of the conformance table, in groups that are compared and checked apart.

/// Calls the macro `then` with all groups.
#[macro_export]
macro_rules! with_stems {
    ($then:ident) => {
        $then! {
            products: [
                "gemm", "linear", "add_low_rank", "matmul", "feed_forward", "gated_feed_forward", "scale_columns",
                "divide_by_norms", "updated_row_norms"
            ];
            elementwise: [
                "activation", "add", "add_scaled", "cast", "fan-out with an unused result", "fill", "gated", "mul",
                "multiply", "scale"
            ];
            attention: ["attention", "attention_cross", "attention_fused"];
            norms: ["norm", "residual_norm"];
            losses: [
                "cross_entropy", "squared_error", "absolute_error", "huber_loss", "binary_cross_entropy",
                "kl_divergence", "log_odds", "cosine_similarity", "pointwise"
            ];
            rows: [
                "embedding", "embedding_backward", "add_embedding", "permute", "row_copy", "concat_last", "slice_last",
                "select_row"
            ];
            rotary: ["rotary"];
            softmax: ["softmax", "log_softmax"];
            sums: ["column_sum", "sum", "mean"];
            optimizers: ["grad_norm", "non_finite", "clip_factor", "adam", "adam_8bit", "update"];
            random: ["fill_random", "dropout"];
            vocabularies: [
                "vocabulary", "vocabulary_cross_entropy", "vocabulary_embedding", "gather_logits",
                "cross_entropy_in_place", "loss_totals", "scale_by"
            ];
            heads: ["linear_cross_entropy", "logits_divergence", "linear_distillation"];
        }
    };
}
