//! The flags of the three programs of "Distributed finetuning".

use crate::import::flags::{Flag, many, read, switch, unused, unused_switch};

const RECORDS: &str = "metrics.jsonl, TensorBoard's files and a text log in output.dir have all of it";

/// The flags of its three programs.
pub(in crate::import) const FLAGS: &[Flag] = &[
    // Model and checkpoint.
    read("--model-name"),
    read("--model-class"),
    read("--save-path"),
    read("--load-path"),
    // Data: lists of one entry for each data set.
    many("--data-sampling-proportion"),
    many("--data-path"),
    many("--data-class"),
    many("--data-config"),
    many("--input-format"),
    many("--output-format"),
    many("--max-input-tokens"),
    many("--max-output-tokens"),
    // Method.
    read("--training-inference-type"),
    read("--prompt-tuning-init"),
    read("--prompt-tuning-init-text"),
    read("--num-virtual-tokens"),
    read("--seed"),
    read("--dtype"),
    // Training.
    read("--num-training-steps"),
    read("--gradient-accumulation-steps"),
    read("--eval-and-save-interval"),
    read("--batch-size-per-gpu"),
    switch("--no-eval"),
    read("--stage"),
    unused_switch("--overlap-comm", "collectives overlap with computation, always"),
    unused_switch("--contiguous-gradients", "gradients of a block are contiguous, always"),
    switch("--cpu-offload"),
    unused("--logdir", RECORDS),
    unused("--aim-repo", "`bmtrain runs serve` compares runs from their directories: there is no store to set up"),
    read("--experiment-name"),
    // Optimizer and schedule.
    read("--learning-rate"),
    read("--weight-decay"),
    read("--beta1"),
    read("--beta2"),
    read("--eps"),
    read("--warmup-steps"),
    read("--lr-schedule"),
    read("--steps-per-print"),
    // Generation.
    read("--batch-size"),
    switch("--do-sample"),
    read("--max-new-tokens"),
    read("--temperature"),
    read("--top-k"),
    read("--top-p"),
    read("--output-file"),
];
