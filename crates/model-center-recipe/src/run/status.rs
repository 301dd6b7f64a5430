//! The status line of a training run.
//!
//! Defines [`Status`], whose `Display` is one line:
//!
//! ```text
//! step 1200/5000 24% | loss 2.3417 | gnorm 0.81 | lr 2.9e-4 | 18.4k tok/s | 71% peak | mem 3.1 GiB, peak 3.2 | eta 41m
//! ```
//!
//! The two memories are the process's resident memory now and its peak so far.
//! Shown by [`Progress`](super::Progress).

use bmtrain_dist::inspect::process::Memory;
use std::fmt;
use std::time::Duration;

/// The longest line, in columns.
const MAX_COLUMNS: usize = 160;

/// Numbers of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Status {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run; `None` if only a time limit is known.
    pub total: Option<u64>,
    /// Mean loss since the last line.
    pub loss: f64,
    /// Share of the pairs of completions that the rewards order rightly, and their mean difference.
    pub pairs: Option<[f64; 2]>,
    /// Norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Loss scale, if one is used.
    pub scale: Option<f64>,
    /// Tokens per second since the last line, padding not counted.
    pub tokens_per_s: f64,
    /// Share of the machine's measured peak, 0 to 1, if measured.
    pub peak_share: Option<f64>,
    /// Memory now and at most.
    pub memory: Option<Memory>,
    /// Time left.
    pub eta: Option<Duration>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::with_capacity(9);
        fields.push(match self.total {
            Some(total) => format!("step {}/{total} {}%", self.step, percent(self.step, total)),
            None => format!("step {}", self.step),
        });
        fields.push(format!("loss {}", decimal(self.loss, 4)));
        if let Some([accuracy, margin]) = self.pairs {
            fields.push(format!("accuracy {} | margin {}", decimal(accuracy, 2), decimal(margin, 4)));
        }
        fields.push(format!("gnorm {}", decimal(self.grad_norm, 2)));
        fields.push(format!("lr {}", scientific(self.lr)));
        if let Some(scale) = self.scale {
            fields.push(format!("scale {}", decimal(scale, 0)));
        }
        fields.push(format!("{} tok/s", thousands(self.tokens_per_s)));
        if let Some(share) = self.peak_share {
            fields.push(format!("{}% peak", decimal(share * 100.0, 0)));
        }
        if let Some(memory) = self.memory {
            let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
            fields.push(format!("mem {:.1} GiB, peak {:.1}", gib(memory.rss_bytes), gib(memory.peak_rss_bytes)));
        }
        if let Some(eta) = self.eta {
            fields.push(format!("eta {}", duration(eta)));
        }
        let mut line = String::new();
        for field in fields {
            let gap = if line.is_empty() { "" } else { " | " };
            // Only absurd numbers get this far; the fields at the end can be spared best.
            if line.len() + gap.len() + field.len() > MAX_COLUMNS {
                break;
            }
            line.push_str(gap);
            line.push_str(&field);
        }
        f.write_str(&line)
    }
}

/// Whole percent, never rounded up: 100 means done.
fn percent(step: u64, total: u64) -> u64 {
    if total == 0 { 100 } else { (u128::from(step.min(total)) * 100 / u128::from(total)) as u64 }
}

/// A number with `digits` after the point, or in scientific form when that would be long.
fn decimal(v: f64, digits: usize) -> String {
    if v.is_finite() && v.abs() >= 1e6 { format!("{v:.2e}") } else { format!("{v:.digits$}") }
}

fn scientific(v: f64) -> String {
    if v == 0.0 { "0".into() } else { format!("{v:.1e}") }
}

/// `950`, `18.4k`, `1.2M`, `3.0G`.
fn thousands(v: f64) -> String {
    for (size, letter) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        // 999,950 would print as 1000.0k.
        if v >= size * 0.99995 {
            let scaled = v / size;
            return if scaled >= 1e5 { format!("{scaled:.1e}{letter}") } else { format!("{scaled:.1}{letter}") };
        }
    }
    format!("{v:.0}")
}

/// `35s`, `41m`, `2h05m`, `3d04h`.
fn duration(d: Duration) -> String {
    let seconds = d.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m"),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status {
            step: 1200,
            total: Some(5000),
            loss: 2.34168,
            pairs: None,
            grad_norm: 0.8131,
            lr: 2.9e-4,
            scale: None,
            tokens_per_s: 18_412.0,
            peak_share: Some(0.712),
            memory: Some(Memory { rss_bytes: 3_328_599_654, peak_rss_bytes: 3_435_973_836 }),
            eta: Some(Duration::from_secs(41 * 60 + 12)),
        }
    }

    #[test]
    fn the_line_reads_as_documented() {
        let line = "step 1200/5000 24% | loss 2.3417 | gnorm 0.81 | lr 2.9e-4 | 18.4k tok/s | 71% peak | \
                mem 3.1 GiB, peak 3.2 | eta 41m";
        assert_eq!(status().to_string(), line);
        let with_scale = Status { scale: Some(65536.0), ..status() }.to_string();
        assert!(with_scale.contains("| lr 2.9e-4 | scale 65536 | 18.4k tok/s |"), "{with_scale}");
        let of_pairs = Status { pairs: Some([0.75, 0.12345]), ..status() }.to_string();
        assert!(of_pairs.contains("| loss 2.3417 | accuracy 0.75 | margin 0.1235 | gnorm 0.81 |"), "{of_pairs}");
        let bare = Status { total: None, peak_share: None, memory: None, eta: None, ..status() }.to_string();
        assert_eq!(bare, "step 1200 | loss 2.3417 | gnorm 0.81 | lr 2.9e-4 | 18.4k tok/s");
    }

    #[test]
    fn absurd_numbers_stay_within_160_columns() {
        for v in [f64::MAX, f64::MIN, f64::NAN, f64::INFINITY, 1e-300, 999_999.9] {
            let line = Status {
                step: u64::MAX,
                total: Some(u64::MAX),
                loss: v,
                pairs: Some([v; 2]),
                grad_norm: v,
                lr: v,
                scale: Some(v),
                tokens_per_s: v,
                peak_share: Some(v),
                memory: Some(Memory { rss_bytes: u64::MAX, peak_rss_bytes: u64::MAX }),
                eta: Some(Duration::MAX),
            }
            .to_string();
            assert!(line.chars().count() <= 160, "{} {line}", line.len());
            assert!(line.starts_with("step 18446744073709551615/18446744073709551615 100% | loss "), "{line}");
        }
    }

    #[test]
    fn units_are_short() {
        assert_eq!(thousands(950.4), "950");
        assert_eq!(thousands(999.97), "1.0k");
        assert_eq!(thousands(1_250_000.0), "1.2M");
        assert_eq!(duration(Duration::from_secs(7500)), "2h05m");
        assert_eq!(duration(Duration::from_secs(3 * 86_400 + 4 * 3600)), "3d04h");
        assert_eq!(percent(4999, 5000), 99);
        assert_eq!(scientific(0.0), "0");
    }
}
