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
    second(
        "model.init",
        "Source of initial values: the weights in `model.path`, or `random`, which reads its `config.json` alone.",
    ),
    first(
        "model.path",
        "The model that training begins with: a Hugging Face directory, or a model of the hub that is in its cache.",
    ),
    first("model.revision", "Branch, tag or commit of a model of the hub."),
    first("model.family", "The family, where `config.json` does not name one."),
    second("model.tokenizer", "Tokenizer of a model without weights, where it is not in `model.path`."),
    second("model.layers", "Blocks of a model without weights; of an encoder-decoder, of each stack."),
    second("model.hidden", "Size of its hidden states."),
    second("model.heads", "Its attention heads."),
    second("model.kv_heads", "Its key and value heads."),
    second("model.head_size", "Size of each head, in families where it is not `model.hidden` / `model.heads`."),
    second("model.feed_forward", "Size of its feed-forward layers; 4 × `model.hidden` where nothing states it."),
    second("model.positions", "The longest sequence it has positions for."),
    second("model.vocabulary", "Rows of its token embedding; at least the tokens of the tokenizer."),
    second("model.hidden_bias", "Biases in the linear layers of attention and feed-forward, in CPM-Pretrain's T5."),
    second("model.init_std", "Standard deviation of its initial values."),
    second(
        "model.scale_init_by_depth",
        "Divide the initial values of the projections that add to a block's input by the root of 2 × `model.layers`.",
    ),
    second(
        "model.unique_layers",
        "Layers with parameters of their own, a divisor of `model.layers`: the others share theirs. Saved models \
         have all.",
    ),
    second(
        "model.sharing_style",
        "Order of the layers that share: of two, `grouped` is 1 2 1 2 and `spaced` is 1 1 2 2.",
    ),
    first("model.dtype", "Dtype of the parameters. With `f16` and `bf16` the optimizer keeps f32 master weights."),
    second(
        "model.f32_parameters",
        "Parameters that are stored, gathered and updated in f32 where `model.dtype` has 16 bits: tables of tokens and \
         learned positions, all norms, tables of token types.",
    ),
    first("model.leave", "Patterns of tensors in the model's directory that are not read, as `--leave` gives them."),
    first(
        "model.head",
        "`auto` takes the classification head of the directory if it has one; `new` initializes a new one.",
    ),
    first("model.hidden_dropout", "Dropout of hidden states."),
    first("model.attention_dropout", "Dropout of attention probabilities."),
    first("model.init_seed", "Seed of the initial values of parameters that the directory does not hold."),
    second(
        "adapter.method",
        "`lora` freezes the model and trains low-rank updates of its linear layers, `ia3` factors of keys, values and \
         feed-forwards, `prompt` the embeddings of virtual tokens before every sequence, `prefix` their keys and \
         values in each layer, `bottleneck` two maps after attention and feed-forward: all that checkpoints and the \
         saved directory have, `docs/adapters.md`.",
    ),
    second(
        "adapter.quantize",
        "How the frozen model is held: `nf4` quantises the linear layers of its blocks to 4 bits while they are read \
         (QLoRA), `as-stored` keeps them in the blocks of a GGUF file.",
    ),
    second("adapter.path", "PEFT directory of an adapter that training begins with."),
    second("adapter.rank", "Rank of an update."),
    second("adapter.alpha", "An update is multiplied by `adapter.alpha` / `adapter.rank`."),
    second("adapter.rank_stabilized", "Divide by the root of the rank instead."),
    second("adapter.dora", "Train the lengths of the rows of updated weights, too: DoRA."),
    second("adapter.dropout", "Dropout of what enters an update."),
    second(
        "adapter.targets",
        "The layers that are updated, by Hugging Face's names of modules, whole or from any dot on; `*` stands for any \
         text.",
    ),
    second(
        "adapter.feed_forward",
        "IA³: the layers among `adapter.targets` whose inputs are multiplied, not the outputs.",
    ),
    second("adapter.virtual_tokens", "Number of virtual tokens."),
    second(
        "adapter.prompt_text",
        "Text whose tokens' embeddings they begin with, repeated or truncated to their number.",
    ),
    second("adapter.prompt_stacks", "Of an encoder-decoder: `both` gives the decoder as many of its own."),
    second("adapter.bottleneck_size", "Bottleneck adapters: values between the two maps."),
    second("adapter.activation", "Their activation."),
    second(
        "adapter.placement",
        "After which layers of a block they are: `both` as in Houlsby et al., `feed-forward` as in Pfeiffer et al.",
    ),
    second("adapter.trained", "Modules that are trained as a whole, by the same names, and saved with the updates."),
    first("data.task", "What is learned; `docs/tasks.md` describes each task."),
    first(
        "data.objective",
        "How classes are told apart: by the outputs of a head, or by tokens that answer a prompt. Of task `pretrain`: \
         which tokens are predicted.",
    ),
    first("data.path", "Directory of a task that knows its files."),
    first("data.train", "File of training records; for plain text also a directory."),
    first("data.eval", "The same for evaluation."),
    first("data.format", "Format of the files; `auto` derives it from the file name's ending."),
    second("data.delimiter", "The character between columns of CSV where it is not a comma."),
    first(
        "data.labels",
        "Names of the classes, in the order of their indices; a model with classes of these names keeps its own \
         order.",
    ),
    first(
        "data.class_weights",
        "Weight of each class in the training loss, `{ name = 2.0, … }`; `balanced` is \
         samples / (classes × samples of the class). Evaluation is not weighted.",
    ),
    first("data.template", "The prompt, with names of columns in braces."),
    first("data.words", "The verbalizer: one label word per label, in the order of `data.labels`."),
    first("data.columns.text", "Column of the text; for `language` with a prompt, of the completion."),
    first("data.columns.text_pair", "Column of the second text of a pair."),
    first("data.columns.label", "Column of the label; of `preference` with KTO, of whether a completion is good."),
    first("data.columns.prompt", "Column of the prompt, which is read and not learned."),
    first("data.columns.target", "Column of the target."),
    second("data.columns.messages", "Column of the list of messages."),
    second("data.columns.completion", "Column of the completion or output, which is learned."),
    second("data.columns.input", "Of Alpaca's records, column of the input beside an instruction."),
    second("data.columns.system", "Column of a text that becomes the system message of a conversation."),
    second(
        "data.sets",
        "Data sets of task `sft`, mixed by `proportion`: a file, or a directory with `train` and `val`. `docs/sft.md`.",
    ),
    second("data.records", "Form of the records; `auto` is the one that the first record has."),
    second(
        "data.loss_on",
        "Tokens with a loss: of all turns of the assistant, of the last one, or all tokens. Of a prompt with a \
         completion, the completion, or all.",
    ),
    second("data.truncate", "The side on which samples of task `sft` that are too long are cut."),
    second("data.chat_template", "Name of the model's chat template, of several with names. `docs/chat-templates.md`."),
    second("data.as_chat", "Make prompts and completions messages of a user and the assistant."),
    second(
        "data.parse_special",
        "Parse control tokens that texts spell, for texts that are rendered already; otherwise they are text.",
    ),
    second("data.columns.chosen", "Column of the better completion of a pair."),
    second("data.columns.rejected", "Column of the worse completion of a pair."),
    second(
        "data.columns.labels",
        "Columns of 0 and 1, one for each label, of task `multi-label-classification`; without them \
         `data.columns.label` has lists.",
    ),
    second("data.columns.anchor", "Column of the anchor, to which another text belongs."),
    second("data.columns.positive", "Column of the text that belongs to the anchor."),
    second("data.columns.negative", "Column of a text that does not; without it samples are pairs."),
    second(
        "embedding.temperature",
        "What cosines are divided by in the loss of embeddings, which compares all samples of a step. See \
         [embeddings](embeddings.md).",
    ),
    second(
        "distill.teacher",
        "Directory or hub name of a model whose logits are learned beside the labels, of tasks `language`, `sft` and \
         classifications. It has the same vocabulary, and of classes the same ones. See \
         [distillation](distillation.md).",
    ),
    second(
        "distill.temperature",
        "What the logits of teacher and student are divided by; the divergence is multiplied by its square.",
    ),
    second("distill.weight", "Share of the divergence in the loss, above 0; the rest is the loss of the labels."),
    second(
        "distill.divergence",
        "Divergence of the student from the teacher: `forward` from teacher to student, `reverse`, or `js`, the \
         divergence of Jensen and Shannon.",
    ),
    second(
        "preference.loss",
        "Loss of pairs of completions: `dpo`, `ipo`, or `simpo` and `orpo`, which have no reference model; of \
         completions that are judged one by one: `kto`. See [preferences](preference.md).",
    ),
    second(
        "preference.beta",
        "Factor of log-ratios, or of the mean log-probabilities of SimPO and ORPO, in rewards; of ORPO also of the \
         term that compares.",
    ),
    second("preference.gamma", "SimPO's margin between the rewards of a pair."),
    second(
        "preference.label_smoothing",
        "Probability that a preference is the other way round, as in conservative DPO.",
    ),
    second("preference.good_weight", "KTO's weight of the loss of a good completion."),
    second("preference.bad_weight", "KTO's weight of the loss of a bad completion."),
    second("data.input_format", "Text of an input, `__input__` in it is replaced by the record's."),
    second("data.output_format", "The same of an output, with `__output__`."),
    second("data.columns.tokens", "Column of the list of words."),
    second("data.columns.tags", "Column of the list of tags of the words, texts or numbers of `data.labels`."),
    second("data.stride", "Tokens that consecutive windows of a long passage share, at most half of a window."),
    second("data.answer_length", "Most tokens of a predicted answer."),
    second(
        "data.corpora",
        "Token files of task `pretrain`, without `.bin` and `.idx`: a list of paths, or of tables with `path` and \
         `weight`. Without weights they are mixed by their number of tokens.",
    ),
    second("data.split", "Shares of training, validation and test of `data.corpora`."),
    second("data.permute_documents", "Split a random order of the documents, which depends on `data.seed` alone."),
    second("data.valid", "Validation sets of their own, in place of a part of `data.corpora`."),
    second("data.test", "The same of test sets, which are evaluated once, at the end."),
    second("data.sequence_length", "Tokens of a sample of task `pretrain`."),
    second("data.sample_order", "Rule of the orders of documents and samples, `docs/corpus.md`."),
    second("data.maps", "Directory of index maps."),
    second("data.eod_token", "The token that ends a document in token files."),
    second("data.eod_mask_loss", "Of `causal`: the token after EOD has no loss."),
    second(
        "data.document_mask",
        "Of `causal`: tokens attend to their own document alone, and positions count from its beginning.",
    ),
    second(
        "data.row_sampler",
        "Rows of tokens are packed documents, cut one after the other, or windows at random places.",
    ),
    second("data.masking.share", "Share of the tokens that are predicted."),
    second(
        "data.masking.second_sentence",
        "The second segment: the sentences that follow, in half of the samples of another document (`next`) or \
         in swapped order (`order`), or none.",
    ),
    second("data.masking.whole_words", "Mask words with all their tokens."),
    second("data.masking.longest_ngram", "Words of the longest masked n-gram."),
    second("data.masking.short", "Share of the groups of sentences that are made short."),
    second(
        "data.masking.pair_sampler",
        "Groups of consecutive sentences, each once in an epoch, or sentences of random documents.",
    ),
    second("data.spans.preset", "Whose samples: the T5 paper's, Megatron-LM's T5 or CPM-2's, `docs/objectives.md`."),
    second("data.spans.share", "Share of hidden tokens."),
    second("data.loading_threads", "Threads of a rank that form batches before a step asks for them."),
    second("data.seed", "Seed of the orders and the split of token files."),
    first("data.max_length", "Most tokens of an input, special tokens included."),
    first("data.target_length", "Most tokens of a target."),
    first("data.too_long", "Whether longer inputs are truncated or an error."),
    first("data.on_bad_record", "Whether a record that cannot be used is an error or left out."),
    first("data.bad_record_limit", "Largest share of records that may be left out."),
    second("data.shuffle", "Give each epoch a random order of its own; otherwise samples keep the order of the files."),
    second(
        "data.last_batch",
        "Samples that do not fill the last batch of an epoch: left out of it (`drop`), or a smaller batch (`keep`), \
         whose loss is the mean of the samples that it has.",
    ),
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
    second(
        "train.optimizer",
        "The optimizer, `docs/optimizers.md`. `adamw` and `adam` differ in the default of `train.decoupled` alone.",
    ),
    first("train.lr", "Peak learning rate; for `noam` the factor of its formula."),
    first("train.schedule", "Course of the learning rate after the warm-up."),
    first("train.gamma", "Factor of each step, for `train.schedule = \"exponential\"`."),
    second("train.cycles", "Cosines of `train.schedule = \"cosine-restarts\"`, of one length."),
    second("train.power", "Power of `train.schedule = \"polynomial\"`, which ends at `train.final_lr_ratio`."),
    second(
        "train.decay_share",
        "Share of all steps over which `train.schedule = \"wsd\"` (warm-up, stable, decay) decays at the end, to \
         `train.final_lr_ratio`.",
    ),
    second("train.decay_shape", "Form of that decay: half a cosine, a line, or one minus a root."),
    second(
        "train.start_lr_ratio",
        "First learning rate of `train.schedule = \"one-cycle\"`, as a share of `train.lr`; `train.warmup` is the \
         number of steps to the peak.",
    ),
    first("train.warmup", "Length of the linear warm-up; a fraction of the steps is rounded up."),
    second(
        "train.batch_ramp.start",
        "Samples of the first steps of task `pretrain`, where batches grow to `train.batch_size`.",
    ),
    second("train.batch_ramp.increment", "What the batch grows by at a time."),
    second("train.batch_ramp.samples", "Samples over which it grows."),
    second(
        "train.range_test_lr",
        "Learning rate of the last step of a range test, which grows from `train.lr` by the same factor at each step \
         and writes the picture `lr_range.svg`.",
    ),
    second(
        "train.decay_steps",
        "Steps that the learning rate's schedule is made for, where it is not the length of the run.",
    ),
    second(
        "train.decay_endpoint",
        "Where a linear or cosine decay ends: at its last step (`exact`), or the warm-up's length later, by \
         Megatron-LM's formula of 2019.",
    ),
    first(
        "train.final_lr_ratio",
        "Share of `train.lr` below which the schedule does not decay; `linear-with-min-lr` and `cosine-with-min-lr` \
         end at it.",
    ),
    first("train.weight_decay", "Weight decay."),
    first("train.decay_norms_and_biases", "Apply weight decay to norms and biases too."),
    first("train.decoupled", "Decoupled weight decay, as in AdamW; otherwise it is added to the gradient."),
    first(
        "train.betas",
        "Decay rates of the first and second moments, of Adam and of `adamax`, `nadam`, `radam` and `lion`.",
    ),
    first("train.eps", "Added to the root of Adam's second moment, and to what others divide by."),
    second(
        "train.groups",
        "Parameters with a learning rate, as a factor of `train.lr`, or a weight decay of their own, by patterns of \
         their names in which `*` stands for anything; the first that matches decides.",
    ),
    second(
        "train.layer_decay",
        "Factor of the learning rate from each layer to the one below it: the head has 1, the embeddings the least.",
    ),
    second("train.frozen", "Parameters that are not trained, by patterns of their names."),
    second(
        "train.only",
        "Train only parameters with these patterns of names: `[\"*.bias\", \"cls_projection.*\"]` is BitFit with a new \
         head.",
    ),
    second("train.momentum", "Momentum of `sgd`, `rmsprop` and `muon`."),
    second("train.dampening", "What is taken from the weight of a gradient in the momentum of `sgd`."),
    second("train.nesterov", "Nesterov's momentum, of `sgd` and `muon`."),
    second(
        "train.rho",
        "Decay rate of the averages of squared gradients, of `rmsprop` (PyTorch's alpha) and `adadelta`.",
    ),
    second("train.centered", "Divide by the deviation of the gradients, of `rmsprop`."),
    second("train.adagrad_decay", "Decay of Adagrad's learning rate: by 1 / (1 + steps × this)."),
    second("train.adagrad_start", "What Adagrad's sums of squares begin with."),
    second(
        "train.muon_scale",
        "What `muon` multiplies the change of a matrix by: such that it is as large as AdamW's, or as in the original.",
    ),
    second(
        "train.scale_parameter",
        "Multiply the learning rate of `adafactor` by the root mean square of the parameter.",
    ),
    second(
        "train.clip_threshold",
        "Root mean square above which the change of a parameter by `adafactor` is scaled down to it.",
    ),
    second("train.decay_rate", "At step t the averages of `adafactor` keep 1 - t^this of what they were."),
    second("train.momentum_decay", "How fast the momentum of `nadam` grows to its first beta."),
    second(
        "train.ema",
        "Decay of an exponential moving average of the weights (EMA). Evaluations and the models that are written have \
         the averages, checkpoints both.",
    ),
    second(
        "train.average_from",
        "The step from which on the weights after each step are averaged (SWA); evaluations, models and checkpoints as \
         with `train.ema`.",
    ),
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
    second(
        "train.products",
        "What the factors of products with weights of blocks are rounded to: nothing, or 8 bits with a scale for each \
         tensor, on GPUs of compute capability 8.9 and later; others, and the CPU, compute the same more slowly. \
         `docs/fp8.md`.",
    ),
    first(
        "train.gradient_sum",
        "Order in which gradients of micro-batches are added; `elastic` gives the same bits on any number of ranks \
         with one `train.micro_batch_size`.",
    ),
    first(
        "train.gradient_dtype",
        "Dtype of gradients and of their reduction over ranks; `model` is the dtype of the parameters.",
    ),
    first("train.loss_scale", "Rule of the loss scale; `auto` scales for `f16` alone."),
    second("train.loss_scale_start", "The first loss scale, or the only one with `static`."),
    second("train.loss_scale_window", "Steps without overflow before the loss scale grows."),
    second(
        "train.loss_scale_hysteresis",
        "The overflow that first lowers the loss scale; earlier ones only skip a step.",
    ),
    second("train.loss_scale_floor", "The loss scale is not lowered below this."),
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
    second(
        "train.divergence.patience",
        "End the run with exit code 7 after this many losses in a row that are not finite, above the mean of the first \
         20 steps, or spikes.",
    ),
    second("train.divergence.spike", "A loss of more than this many times the mean of recent ones is a spike."),
    second("eval.iterations", "Training batches that an evaluation of task `pretrain` has samples for."),
    first("eval.batch_size", "Samples of one forward pass of an evaluation."),
    second(
        "eval.threshold",
        "Probability above which a label counts as predicted, of task `multi-label-classification`.",
    ),
    first("save.which", "Which weights the run leaves in its output directory; `none` is for measurements."),
    first("save.dtype", "Dtype of the saved weights."),
    second("save.merged", "Save the model with the updates of `[adapter]` added, not the updates alone."),
    first("checkpoint.every", "Interval of checkpoints in steps or epochs."),
    first("checkpoint.minutes", "Interval of checkpoints in minutes; 0 for none by the clock."),
    first("checkpoint.keep", "Number of checkpoints that are kept."),
    first("checkpoint.on_failure", "Whether the run continues or stops when a checkpoint cannot be saved."),
    second(
        "checkpoint.optimizer_state",
        "Save moments and master weights too; from checkpoints without them a run resumes with `--fresh-optimizer`.",
    ),
    first("log.every", "Interval of records of the training loss, in steps; slow steps are shown once a minute."),
    first("log.metrics", "Name of the file of metrics in the output directory."),
    first("log.quiet", "Print errors and the result alone."),
    second("log.peak_tflops", "Peak of the device of a rank in TFLOP/s; utilisation is a share of it."),
    second(
        "log.samples",
        "Prompts that are completed by greedy decoding before training, at each evaluation and after training, for \
         `runs`; in the text around inputs, or as a user's message if the task is \"sft\" and the model has a chat \
         template.",
    ),
    second("log.sample_tokens", "The most tokens of such a completion."),
    second("log.tensorboard", "Write TensorBoard's event files too, in `tensorboard/` of the output directory."),
    second("run.name", "Name of the run in lists, pages and reports."),
    second("run.tags", "Texts by which runs are found together."),
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
         blocks, about the same time as the run measures it at its start, or these numbers.",
    ),
];
