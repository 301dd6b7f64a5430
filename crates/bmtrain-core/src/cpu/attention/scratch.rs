//! "Attention scratch": the tiles of one thread, kept between calls; each is at most 1 MiB for heads of up to 2048.
//!
//! Regions are sized by the tiles and the head size alone, so they stop growing after the first call of a model; those
//! of packed operands after the first with some queries.

crate::cpu::scratch::scratch! {
    /// Queries times the scale, by row.
    query,
    /// Keys by row; in the forward pass also values.
    key,
    key_panels,
    /// Values, transposed; by row on the way there.
    value_panels,
    /// Scores, then probabilities.
    scores,
    /// Gradients of the probabilities, then of the scores.
    dscores,
    /// Sums of the result, or gradients of the result.
    out,
    dquery,
    dkey,
    dvalue,
    /// Operands as blocks of bf16 have them, see `blocks.rs`: of the forward pass the first, the fifth and the last.
    packed_query,
    packed_query_across,
    packed_dout,
    packed_dout_across,
    packed_key,
    packed_key_across,
    packed_value,
    packed_scores,
    /// Maximum and sum of every row.
    statistics,
    row,
}
