//! Counters and gauges in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets of seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Counters of a server.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By endpoint and outcome: the status, or `cancelled`.
    requests: Mutex<BTreeMap<(&'static str, String), u64>>,
    /// Seconds of the requests for the model: the number up to each bound, the last for all above, and their sum.
    seconds: Mutex<([u64; BOUNDS.len() + 1], f64)>,
    pub(super) connections: AtomicUsize,
    /// Connections whose request was read and whose response is not sent.
    pub(super) answering: AtomicUsize,
    pub(super) running: AtomicUsize,
    pub(super) reserved_tokens: AtomicUsize,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) generated_tokens: AtomicU64,
    pub(super) passes: AtomicU64,
}

impl Metrics {
    /// Counts a request that has ended.
    pub(super) fn ended(&self, endpoint: &'static str, outcome: String, took: Option<Duration>) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry((endpoint, outcome)).or_default() += 1;
        if let Some(seconds) = took.map(|took| took.as_secs_f64()) {
            let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
            let (counts, sum) = &mut *self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = counts.get_mut(bucket) {
                *count += 1;
            }
            *sum += seconds;
        }
    }

    /// All of them, with the queue's length and the tokens that KV caches may have.
    pub(super) fn text(&self, queue: usize, cached_tokens: usize) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, String)]| {
            // Writing to a string does not fail.
            let _ = write!(text, "# HELP serve_{name} {help}\n# TYPE serve_{name} {kind}\n");
            for (labels, value) in samples {
                let _ = writeln!(text, "serve_{name}{labels} {value}");
            }
        };
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let requests: Vec<(String, String)> = requests
            .iter()
            .map(|((endpoint, outcome), count)| {
                (format!("{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}}"), count.to_string())
            })
            .collect();
        family("requests_total", "counter", "Requests that have ended.", &requests);
        let one = |value: String| vec![(String::new(), value)];
        let gauge = |value: &AtomicUsize| one(value.load(Ordering::Acquire).to_string());
        let counter = |value: &AtomicU64| one(value.load(Ordering::Acquire).to_string());
        family("queue_length", "gauge", "Requests that wait for the model.", &one(queue.to_string()));
        family("running_sequences", "gauge", "Sequences that share passes.", &gauge(&self.running));
        family("connections", "gauge", "Open connections.", &gauge(&self.connections));
        family("cached_tokens", "gauge", "Tokens that KV caches have room for.", &gauge(&self.reserved_tokens));
        family("cached_tokens_limit", "gauge", "The most tokens of KV caches.", &one(cached_tokens.to_string()));
        family("prompt_tokens_total", "counter", "Tokens of prompts and inputs.", &counter(&self.prompt_tokens));
        family("generated_tokens_total", "counter", "New tokens.", &counter(&self.generated_tokens));
        family("passes_total", "counter", "Passes of the model.", &counter(&self.passes));
        let (counts, sum) = *self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = text.write_str(
            "# HELP serve_request_seconds Time of requests for the model.\n# TYPE serve_request_seconds histogram\n",
        );
        let mut below = 0;
        for (count, bound) in counts.iter().zip(BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()])) {
            below += count;
            let _ = writeln!(text, "serve_request_seconds_bucket{{le=\"{bound}\"}} {below}");
        }
        let _ = write!(text, "serve_request_seconds_sum {sum}\nserve_request_seconds_count {below}\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Metrics;
    use std::time::Duration;

    #[test]
    fn buckets_are_cumulative_and_requests_counted_by_outcome() {
        let metrics = Metrics::default();
        for millis in [20, 300, 400, 100_000] {
            metrics.ended("/v1/completions", "200".into(), Some(Duration::from_millis(millis)));
        }
        metrics.ended("/health", "200".into(), None);
        let text = metrics.text(3, 1000);
        for line in [
            "serve_requests_total{endpoint=\"/v1/completions\",outcome=\"200\"} 4",
            "serve_requests_total{endpoint=\"/health\",outcome=\"200\"} 1",
            "serve_queue_length 3",
            "serve_cached_tokens_limit 1000",
            "serve_request_seconds_bucket{le=\"0.01\"} 0",
            "serve_request_seconds_bucket{le=\"0.025\"} 1",
            "serve_request_seconds_bucket{le=\"0.5\"} 3",
            "serve_request_seconds_bucket{le=\"+Inf\"} 4",
            "serve_request_seconds_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
