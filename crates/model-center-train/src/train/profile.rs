//! Where the time of the training steps went, by kind of kernel.

use bmtrain_core::wrap::Profiled;
use model_center_recipe::run::console;

/// The kinds people ask for, each with its kernels.
const KINDS: [(&str, &[&str]); 7] = [
    ("matrix products", &["gemm", "quantised_linear", "quantised_input_gradient"]),
    ("attention", &["attention_forward", "attention_backward"]),
    ("elementwise", ELEMENTWISE),
    ("norms", &["norm_forward", "norm_backward"]),
    ("embeddings and loss", EMBEDDINGS_AND_LOSS),
    ("optimizer", &["adam", "adam_8bit", "update", "grad_norm", "clip_factor"]),
    ("other", OTHER),
];

const ELEMENTWISE: &[&str] = &[
    "activation_forward",
    "activation_backward",
    "activation_in_place",
    "gated_forward",
    "gated_backward",
    "gated_in_place",
    "add_scaled",
    "multiply",
    "dropout",
    "rotary",
    "cast",
    "fill",
];

const EMBEDDINGS_AND_LOSS: &[&str] = &[
    "embedding_forward",
    "quantised_rows",
    "embedding_backward",
    "cross_entropy_forward",
    "cross_entropy_statistics",
    "cross_entropy_loss",
    "cross_entropy_backward",
    "cross_entropy_in_place",
    "squared_error_forward",
    "squared_error_backward",
    "pointwise_forward",
    "pointwise_backward",
    "loss_totals",
];

/// Sums, copies and what a training step seldom needs; a kernel that no list has counts here too.
const OTHER: &[&str] =
    &["column_sum", "permute", "row_copy", "softmax", "softmax_backward", "non_finite", "fill_random", "scale_by"];

fn kind_of(kernel: &str) -> usize {
    KINDS.iter().position(|(_, kernels)| kernels.contains(&kernel)).unwrap_or(KINDS.len() - 1)
}

/// Print the share of each kind in `seconds` of training, then the slowest kernels.
pub(super) fn print(profiled: &Profiled, seconds: f64) {
    let times = profiled.times();
    let mut sums = [0.0; KINDS.len()];
    for (name, time) in &times {
        sums[kind_of(name)] += time.seconds;
    }
    let mut lines = vec![format!("time of the training steps: {seconds:.2} s")];
    let row = |name: &str, part: f64| format!("  {name:<26} {part:>9.2} s {:>5.1} %", 100.0 * part / seconds);
    for ((name, _), sum) in KINDS.iter().zip(sums) {
        lines.push(row(name, sum));
    }
    lines.push(row("outside kernels", seconds - sums.iter().sum::<f64>()));
    let mut slowest: Vec<_> = times.into_iter().collect();
    slowest.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    lines.push("slowest kernels:".to_owned());
    for (name, time) in slowest.into_iter().take(8) {
        let rate = |work: u64| work as f64 / time.seconds / 1e9;
        lines.push(format!(
            "  {name:<26} {:>9.2} s {:>8} calls {:>8.1} GFLOP/s {:>7.1} GB/s",
            time.seconds,
            time.calls,
            rate(time.cost.flops),
            rate(time.cost.bytes)
        ));
    }
    console::note(&lines.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use bmtrain_core::kernel::Kernel;

    #[test]
    fn every_kernel_is_of_one_kind() {
        let mut listed: Vec<&str> = KINDS.iter().flat_map(|(_, kernels)| kernels.iter().copied()).collect();
        listed.sort_unstable();
        let mut all = Kernel::NAMES.to_vec();
        all.sort_unstable();
        assert_eq!(listed, all);
        assert_eq!(KINDS[kind_of("norm_backward")].0, "norms");
        assert_eq!(KINDS[kind_of("a kernel of tomorrow")].0, "other");
    }
}
