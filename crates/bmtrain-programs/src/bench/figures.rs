//! Times of one collective as figures: what [`super::collectives`] prints, in columns or as JSON.

use bmtrain_core::bench::Seconds;
use serde_json::json;

/// One operation at one size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) operation: &'static str,
    /// As NCCL's tests count: all parts together for gather, scatter and all-to-all, one rank's data otherwise.
    pub(super) bytes: usize,
    pub(super) ranks: usize,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// The line above [`Figure::line`].
pub(super) fn names() -> String {
    format!(
        "{:<15} {:>10} {:>16} {:>12} {:>12} {:>12} {:>12}",
        "operation", "size", "algorithm GB/s", "bus GB/s", "median us", "min us", "max us"
    )
}

impl Figure {
    /// From the times of at least one repetition, in seconds.
    pub(super) fn new(operation: &'static str, bytes: usize, ranks: usize, times: &[f32]) -> Self {
        let times = Seconds::new(times.iter().map(|time| f64::from(*time)).collect());
        Figure { operation, bytes, ranks, median: times.median(), min: times.best(), max: times.worst() }
    }

    /// Bytes in a second, by the median.
    pub(super) fn algorithm(&self) -> f64 {
        self.bytes as f64 / self.median
    }

    /// Bytes that a link of each rank would have to carry in a second.
    pub(super) fn bus(&self) -> f64 {
        let ranks = self.ranks as f64;
        let carried = match self.operation {
            "all_reduce" => 2.0 * (ranks - 1.0) / ranks,
            "all_gather" | "reduce_scatter" | "all_to_all" => (ranks - 1.0) / ranks,
            _ => 1.0,
        };
        self.algorithm() * carried
    }

    pub(super) fn line(&self) -> String {
        let size = match self.bytes >> 20 {
            0 => format!("{:.1} KiB", self.bytes as f64 / 1024.0),
            _ => format!("{:.1} MiB", self.bytes as f64 / 1_048_576.0),
        };
        let [algorithm, bus] = [self.algorithm(), self.bus()].map(|rate| rate / 1e9);
        let [median, min, max] = [self.median, self.min, self.max].map(|time| time * 1e6);
        let operation = self.operation;
        format!("{operation:<15} {size:>10} {algorithm:>16.2} {bus:>12.2} {median:>12.1} {min:>12.1} {max:>12.1}")
    }

    pub(super) fn json(&self) -> String {
        let line = json!({
            "operation": self.operation,
            "bytes": self.bytes,
            "ranks": self.ranks,
            "algorithm_bytes_per_s": self.algorithm(),
            "bus_bytes_per_s": self.bus(),
            "median_s": self.median,
            "min_s": self.min,
            "max_s": self.max,
        });
        line.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_what_one_link_carries() {
        let bus = |operation, ranks| Figure::new(operation, 1 << 30, ranks, &[1.0]).bus() / f64::from(1 << 30);
        assert_eq!([bus("all_reduce", 2), bus("all_reduce", 4)], [1.0, 1.5]);
        assert_eq!([bus("all_gather", 2), bus("reduce_scatter", 4), bus("all_to_all", 4)], [0.5, 0.75, 0.75]);
        assert_eq!([bus("broadcast", 4), bus("send/recv", 2)], [1.0, 1.0]);
    }

    #[test]
    fn the_figure_is_the_median_between_the_best_and_the_worst() {
        let figure = Figure::new("broadcast", 100, 2, &[0.5, 0.25, 4.0]);
        assert_eq!((figure.min, figure.median, figure.max, figure.algorithm()), (0.25, 0.5, 4.0, 200.0));
    }
}
