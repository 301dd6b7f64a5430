//! `[log]`: what is reported on the way.

use super::{MAX_SAMPLES, MAX_STEPS};
use crate::recipe::engine::kinds::{Expected, Range::Above};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;

const FILE_NAME: Expected = Expected { what: "a file name", example: "metrics.jsonl" };

settings! {
    /// `[log]`: what is reported on the way.
    #[derive(Debug, Clone, PartialEq)]
    pub struct LogSettings in "log", of_rank (r) then checked() {
        /// Interval of records of the training loss, in steps; slow steps are shown once a minute.
        pub every: u64 = integer(10, 1..=MAX_STEPS), "0.1";
        /// Name of the file of metrics in the output directory.
        pub metrics: String = text("metrics.jsonl", FILE_NAME), "0.1";
        /// Print errors and the result alone.
        pub quiet: bool = flag(false), "0.1";
        /// Peak of the device of a rank in TFLOP/s; utilisation is a share of it.
        pub peak_tflops: Option<f64> = optional_float(
            "not set: measured on processors, unknown on CUDA devices", Above(0.0), 989.0), "0.2";
        /// Write TensorBoard's event files too, in `tensorboard/` of the output directory.
        pub tensorboard: bool = flag(true), "0.2";
        /// Prompts that are completed by greedy decoding before training, at each evaluation and after training, for
        /// `runs`; in the text around inputs, or as a user's message if the task is "sft" and the model has a chat
        /// template.
        pub samples: Option<Vec<String>> = optional_texts("not set: no sample texts", "[\"Once upon a time\"]"), "0.2";
        /// The most tokens of such a completion.
        pub sample_tokens: usize = integer(64, 1..=MAX_SAMPLES), "0.2";
    }
}

impl LogSettings {
    /// Adds what has no effect.
    fn checked(self, r: &mut Reader) -> Self {
        if self.samples.is_none() {
            let (why, fix) = ("log.samples is not set", "set log.samples, or remove it");
            r.without_effect("log.sample_tokens", "log.samples", why, fix);
        }
        self
    }
}
