//! The meaning of each key, and the version that added it: the texts of the settings page.
//!
//! Defines [`meaning`], called by `page.rs`. Type, range and default are not here: they are declared where the key is
//! read, in `keys.rs` and `sources.rs`. A test finds a key without a meaning and a meaning without a key.

/// The meaning of a key, and its first version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meaning {
    pub(super) key: &'static str,
    pub(super) text: &'static str,
    pub(super) since: &'static str,
}

/// A key of the first version.
const fn first(key: &'static str, text: &'static str) -> Meaning {
    Meaning { key, text, since: "0.1" }
}

/// A key that version 0.2 added.
const fn second(key: &'static str, text: &'static str) -> Meaning {
    Meaning { key, text, since: "0.2" }
}

/// Of a key; `None` of one that has none.
pub(super) fn meaning(key: &str) -> Option<&'static Meaning> {
    MEANINGS.iter().find(|meaning| meaning.key == key)
}

pub(super) const MEANINGS: &[Meaning] = &[
    first(
        "model.path",
        "The model that training begins with: a Hugging Face directory, or a model of the hub that is in its cache.",
    ),
    first("model.revision", "Branch, tag or commit of a model of the hub."),
    first("model.family", "The family, where `config.json` does not name one."),
    first("model.dtype", "Dtype of the parameters. With `f16` and `bf16` the optimizer keeps f32 master weights."),
    first("model.leave", "Patterns of tensors in the model's directory that are not read, as `--leave` gives them."),
    first(
        "model.head",
        "`auto` takes the classification head of the directory if it has one; `new` initializes a new one.",
    ),
    first("model.hidden_dropout", "Dropout of hidden states."),
    first("model.attention_dropout", "Dropout of attention probabilities."),
    first("model.init_seed", "Seed of the initial values of parameters that the directory does not hold."),
    first("data.task", "What is learned; `docs/tasks.md` describes each task."),
    first("data.objective", "How classes are told apart: by the outputs of a head, or by tokens that answer a prompt."),
    first("data.path", "Directory of a task that knows its files."),
    first("data.train", "File of training records; for plain text also a directory."),
    first("data.eval", "The same for evaluation."),
    first("data.format", "Format of the files; `auto` derives it from the file name's ending."),
    first("data.labels", "Names of the classes, in the order of their indices."),
    first(
        "data.class_weights",
        "Weight of each class in the training loss, `{ name = 2.0, … }`; `balanced` is \
         samples / (classes × samples of the class). Evaluation is not weighted.",
    ),
    first("data.template", "The prompt, with names of columns in braces."),
    first("data.words", "The verbalizer: one label word per label, in the order of `data.labels`."),
    first("data.columns.text", "Column of the text; for `language` with a prompt, of the completion."),
    first("data.columns.text_pair", "Column of the second text of a pair."),
    first("data.columns.label", "Column of the label."),
    first("data.columns.prompt", "Column of the prompt, which is read and not learned."),
    first("data.columns.target", "Column of the target."),
    first("data.max_length", "Most tokens of an input, special tokens included."),
    first("data.target_length", "Most tokens of a target."),
    first("data.too_long", "Whether longer inputs are truncated or an error."),
    first("data.on_bad_record", "Whether a record that cannot be used is an error or left out."),
    first("data.bad_record_limit", "Largest share of records that may be left out."),
    first("data.length_grouped", "Batch samples of similar length together."),
    first(
        "data.packing",
        "Join the samples of a micro-batch to one sequence without padding; each attends to itself alone, at positions \
         from 0.",
    ),
    first("data.eval_limit", "Most records that are evaluated."),
    first(
        "train.epochs",
        "Stop after this many passes over the training data. The first limit that is reached ends the run.",
    ),
    first("train.steps", "Stop after this many optimizer steps."),
    first("train.minutes", "Stop this many minutes after the first step began."),
    first("train.batch_size", "Samples of an optimizer step, over all ranks."),
    first(
        "train.micro_batch_size",
        "Samples of one forward pass of a rank; gradients of the micro-batches of a step are accumulated. \
         A resumed run keeps its size.",
    ),
    second(
        "train.accumulation",
        "Micro-batches of a data-parallel rank in one step: `train.batch_size` is `train.micro_batch_size` x \
         `train.accumulation` x data ranks, and one of the three may be left out.",
    ),
    first("train.lr", "Peak learning rate; for `noam` the factor of its formula."),
    first("train.schedule", "Course of the learning rate after the warm-up."),
    first("train.gamma", "Factor of each step, for `train.schedule = \"exponential\"`."),
    first("train.warmup", "Length of the linear warm-up."),
    first("train.final_lr_ratio", "Share of `train.lr` below which the schedule does not decay."),
    first("train.weight_decay", "Weight decay."),
    first("train.decay_norms_and_biases", "Apply weight decay to norms and biases too."),
    first("train.decoupled", "Decoupled weight decay, as in AdamW; otherwise it is added to the gradient."),
    first("train.betas", "Decay rates of Adam's first and second moments."),
    first("train.eps", "Added to the root of Adam's second moment."),
    first("train.clip_norm", "Largest norm of the gradients; larger ones are scaled down."),
    first("train.clip_kind", "Norm that is clipped: of order 2, the largest absolute value, or none."),
    first("train.label_smoothing", "Share of the target distribution that is uniform over all classes."),
    first("train.prompt_loss", "Weight of the loss of a prompt's own tokens relative to the answer's."),
    first("train.seed", "Seed of dropout and of the order of samples."),
    first(
        "train.recompute",
        "What blocks recompute in the backward pass (activation checkpointing). `blocks` or `true` keeps only the \
         input of each block, a number k only the input of every k-th one. `attention` keeps everything but what \
         attention computes from queries, keys and values. `auto` is `blocks` for the first blocks, and keeps \
         those whose activations fit into the memory that gradients take later; from the second micro-batch of a step \
         on that is none.",
    ),
    second(
        "train.recompute_inputs",
        "Where inputs of recomputed blocks are kept: on the device, in pieces by tensor-parallel ranks (`sharded`), or \
         in host memory, which on the CPU is the same as `device`.",
    ),
    first(
        "train.gradient_sum",
        "Order in which gradients of micro-batches are added; `elastic` gives the same bits on any number of ranks.",
    ),
    first(
        "train.gradient_dtype",
        "Dtype of gradients and of their reduction over ranks; `model` is the dtype of the parameters.",
    ),
    first("train.loss_scale", "Rule of the loss scale; `auto` scales for `f16` alone."),
    first("train.offload", "Keep optimizer state in host memory and update it there."),
    second(
        "train.offload_parameters",
        "Keep parameters in host memory too, and bring a block's to the device while it computes; on the CPU \
         nothing moves.",
    ),
    second(
        "train.inspect_every",
        "Every this number of steps, print statistics of hidden states and parameters and of their gradients.",
    ),
    first("train.early_stop.patience", "Stop after this many evaluations in a row without a new best."),
    first("train.early_stop.metric", "Metric that early stopping watches."),
    first("eval.every", "Interval of evaluations; there is always one at the end."),
    first("eval.metric", "Metric that decides which weights are best."),
    first("eval.batch_size", "Samples of one forward pass of an evaluation."),
    first("save.which", "Which weights the run leaves in its output directory; `none` is for measurements."),
    first("save.dtype", "Dtype of the saved weights."),
    first("checkpoint.every", "Interval of checkpoints in steps or epochs."),
    first("checkpoint.minutes", "Interval of checkpoints in minutes; 0 for none by the clock."),
    first("checkpoint.keep", "Number of checkpoints that are kept."),
    first("checkpoint.on_failure", "Whether the run continues or stops when a checkpoint cannot be saved."),
    first("log.every", "Interval of records of the training loss, in steps."),
    first("log.metrics", "Name of the file of metrics in the output directory."),
    first("log.quiet", "Print errors and the result alone."),
    first("output.dir", "Directory of the run."),
    first("device.name", "Device of a rank; `auto` takes a CUDA device if there is one."),
    first("device.threads", "Threads of the ranks of a host together; `auto` is one for each physical core."),
    second(
        "device.pin_threads",
        "What threads are pinned to: the NUMA nodes of the rank's cores, a core, nothing; `docs/devices.md`.",
    ),
    first("parallel.zero", "ZeRO level: what is sharded over the data-parallel ranks, `docs/sharding.md`."),
    first("parallel.prefetch", "Gather the parameters of the next block while one computes."),
    second(
        "parallel.tensor",
        "Tensor-parallel ranks: each has some of the heads, columns and tokens of every layer, and all of them see the \
         same samples. Divides the number of ranks; the others are data-parallel.",
    ),
    second("parallel.sequence", "Shard the sequences between the layers of tensor-parallel ranks."),
    second(
        "parallel.pipeline",
        "Pipeline stages: each has some of the blocks, and every micro-batch passes through all. Divides the number of \
         ranks.",
    ),
    second("parallel.virtual_stages", "Model chunks of each pipeline stage, with `interleaved` and `zb-v`."),
    second("parallel.schedule", "Order in which a pipeline stage runs its micro-batches, `docs/parallelism.md`."),
    second(
        "parallel.partition",
        "Blocks of the model chunks of a pipeline: with about the same number of parameters, the same number of \
         blocks, or these numbers.",
    ),
];
