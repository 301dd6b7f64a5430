//! Where the time of the training steps went, by kind of kernel.

use crate::terminal;
use bmtrain_core::wrap::Profiled;

/// The kinds people ask for.
const KINDS: [(&str, &[&str]); 4] = [
    ("matrix products", &["gemm"]),
    ("attention", &["attention_forward", "attention_backward"]),
    ("optimizer", &["adam", "grad_norm", "clip_factor"]),
    ("elementwise and the rest", &[]),
];

/// Print the share of each kind in `seconds` of training, then the slowest kernels.
pub fn print(profiled: &Profiled, seconds: f64) {
    let times = profiled.times();
    let kind_of = |name: &str| KINDS.iter().position(|(_, names)| names.contains(&name)).unwrap_or(KINDS.len() - 1);
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
    terminal::note(&lines.join("\n"));
}
