//! What people meet when they write recipes: precedence, origins, printing, hashing, unreadable files.

mod distill;
mod embedding;
mod files;
mod multi_label;
mod preference;
mod sft;

use crate::recipes;
use bmtrain_core::kernel::UpdateRule;
use bmtrain_dist::optim::{AdafactorOptions, Adam8bitOptions, AdamOptions, DecayForm, MuonOptions, MuonScale};
use model_center::data::{
    ColumnTask, LabelSpec, LanguageModelingColumns, LanguageModelingTask, OnBadRecord, PROMPTS, SUPERGLUE, Task,
    TemplateTask, TooLong, find_task,
};
use model_center::formats::ModelCaches;
use model_center::metrics::Metric;
use model_center::recipe::{
    ClassWeights, DataFiles, DataSource, EvalMetric, Interval, OptimizerSettings, Origin, OwnData, Recipe, Resolved,
    SaveWhich, Threads, list, preflight,
};
use recipes::{LEAST, load, mistakes, with, with_train};
use std::path::{Path, PathBuf};

#[test]
fn defaults_hold_where_nothing_is_written() {
    let r = load(LEAST, &[]);
    assert_eq!(r.train.batch_size, 32);
    assert_eq!(r.train.micro_batch_size, 32);
    assert_eq!(r.train.epochs, Some(3.0));
    assert_eq!((r.train.steps, r.train.minutes), (None, None));
    assert_eq!(r.data.max_length, 512);
    assert_eq!(r.data.too_long, TooLong::Truncate);
    assert_eq!(r.data.on_bad_record, OnBadRecord::Error);
    assert_eq!(r.eval.metric, EvalMetric::Metric(Metric::Accuracy));
    assert_eq!(r.eval.every, Interval::Epochs(1.0));
    assert_eq!(r.save.which, SaveWhich::Best);
    assert_eq!(r.model.init_seed, r.train.seed);
    assert!(!r.train.decay_norms_and_biases);
    assert!(!r.train.offload);
    assert_eq!(r.model.hidden_dropout, None);
}

/// A task that knows its files, below the directory of the tests.
fn of_directory(task: &dyn Task) -> DataSource {
    DataSource::new(task.shared(), DataFiles::Directory("sg".into()))
}

#[test]
fn the_command_line_beats_the_file_and_the_file_the_default() {
    let text = with_train("lr = 1e-4\nbatch_size = 16");
    let r = load(&text, &["train.lr=3e-4", "output.dir=2024-01-01", "data.labels=[\"a\", \"b\"]", "device.threads=2"]);
    assert_eq!(r.train.lr, 3e-4);
    assert_eq!(r.train.batch_size, 16);
    assert_eq!(r.output.dir, PathBuf::from("2024-01-01"));
    assert_eq!(r.device.threads, Threads::Count(2));
    let columns: &ColumnTask = r.data.source.task_as().unwrap();
    assert_eq!(columns.labels, LabelSpec::Names(vec!["a".into(), "b".into()]));
    assert_eq!(r.origin("train.lr").unwrap().to_string(), "--set train.lr=3e-4");
    assert_eq!(r.origin("train.batch_size").unwrap().to_string(), "r.toml:10");
    assert_eq!(r.place("train.batch_size"), "r.toml:10:14");
    assert_eq!(r.origin("train.micro_batch_size"), Some(&Origin::Follows("train.batch_size")));
    assert_eq!(r.origin("train.seed"), Some(&Origin::Default));
}

#[test]
fn a_recipe_can_be_written_on_the_command_line_alone() {
    let sets = ["model.path=m", "data.task=RTE", "data.path=sg", "train.steps=10", "output.dir=o"].map(String::from);
    let r = Recipe::load(None, &sets).unwrap();
    assert_eq!(r.data.source, of_directory(find_task("RTE", &[SUPERGLUE]).unwrap()));
    let found = Recipe::read(None, &[]).unwrap_err();
    assert_eq!(found[0].place, "command line");
    assert_eq!(
        found[0].reason,
        "`model.path` is missing: it must be the path of a Hugging Face model directory, or the hub's name of a \
            model that is in its cache"
    );
}

#[test]
fn print_config_shows_each_value_with_its_origin() {
    let text = "[model]\npath = \"models/mini\"\n[data]\ntask = \"RTE\"\npath = \"sg\"\n[train]\nsteps = 100\nlr = \
        1e-5\n[output]\ndir = \"o\"\n";
    let expected = r#"[model]
init = "weights"                # default
path = "models/mini"            # r.toml:2
# revision                      # not set: main, of a model of the hub
# family                        # not set: as config.json states, else as the names of the tensors tell
# leave                         # not set: nothing but what other heads have
# no effect, it is for model.init = "random": tokenizer, layers, hidden, heads, kv_heads, head_size,
#   feed_forward, positions, vocabulary, hidden_bias, init_std, scale_init_by_depth, unique_layers,
#   sharing_style
dtype = "f32"                   # default
# f32_parameters                # no effect: all parameters are f32
head = "auto"                   # default
# hidden_dropout                # not set: as in the model's config.json
# attention_dropout             # not set: as in the model's config.json
init_seed = 1234                # default: follows train.seed

[adapter]
method = "none"                 # default
# no effect, adapter.method = "none" trains the model itself: quantize, path, rank, alpha,
#   rank_stabilized, dora, dropout, targets, feed_forward, trained, virtual_tokens, prompt_text,
#   prompt_stacks, bottleneck_size, activation, placement

[data]
task = "RTE"                    # r.toml:4
objective = "classifier"        # default
path = "sg"                     # r.toml:5
# no effect, task RTE knows its files and labels: train, eval, format, delimiter, labels
# template                      # no effect: task RTE has its own prompt and label words
# words                         # no effect: task RTE has its own prompt and label words
# stride = 128                  # no effect: it is for task question-answering
# answer_length = 30            # no effect: it is for task question-answering
# no effect, it is for tasks sft, preference and reward: sets, records, loss_on, truncate, as_chat,
#   input_format, output_format
# no effect, it is for task pretrain: corpora, split, permute_documents, valid, test,
#   sequence_length, sample_order, maps, loading_threads, eod_token, eod_mask_loss, document_mask,
#   row_sampler
# parse_special = false         # no effect: it is for texts of tasks language, sft, preference and reward
max_length = 512                # default
# target_length = 512           # no effect: it is for tasks seq2seq, sft and SQuAD
# chat_template                 # no effect: it is for tasks sft, preference and reward
too_long = "truncate"           # default
on_bad_record = "error"         # default
# bad_record_limit = 0.001      # no effect: data.on_bad_record = "error" accepts none
shuffle = true                  # default
last_batch = "drop"             # default
length_grouped = false          # default
# packing = false               # no effect: it is for tasks language and sft
# eval_limit                    # not set: all of them
# class_weights                 # not set: all samples weigh the same
# seed = 1234                   # no effect: it is for task pretrain

[data.columns]
# no effect, task RTE knows its columns: text, text_pair, label, prompt, target, tokens, tags
# labels                        # no effect: it is for task multi-label-classification
# no effect, it is for task embedding: anchor, positive, negative
# no effect, it is for tasks sft, preference and reward: messages, completion, input, system
# chosen                        # no effect: it is for tasks preference and reward
# rejected                      # no effect: it is for tasks preference and reward

[data.masking]
# no effect, it is for task pretrain: share, second_sentence, whole_words, longest_ngram, short,
#   pair_sampler

[data.spans]
# preset = "t5"                 # no effect: it is for task pretrain
# share = 0.15                  # no effect: it is for task pretrain

[preference]
# no effect, it is for task preference: loss, beta, gamma, label_smoothing, good_weight, bad_weight

[embedding]
# temperature = 0.05            # no effect: it is for task embedding

[distill]
# teacher                       # not set: no teacher
# no effect, distill.teacher is not set: temperature, weight, divergence

[train]
# epochs                        # not set: no such limit
steps = 100                     # r.toml:7
# minutes                       # not set: no such limit
batch_size = 32                 # default
micro_batch_size = 32           # default: follows train.batch_size
# accumulation                  # not set: train.batch_size / (train.micro_batch_size x data ranks)
lr = 0.0003                     # --set train.lr=3e-4
schedule = "linear"             # default
# gamma = 0.95                  # no effect: it belongs to train.schedule = "exponential"
# range_test_lr = 1.0           # no effect: it belongs to train.schedule = "range-test"
# cycles = 1                    # no effect: it belongs to train.schedule = "cosine-restarts"
# power = 1.0                   # no effect: it belongs to train.schedule = "polynomial"
# decay_share = 0.1             # no effect: it belongs to train.schedule = "wsd"
# decay_shape = "cosine"        # no effect: it belongs to train.schedule = "wsd"
# start_lr_ratio = 0.04         # no effect: it belongs to train.schedule = "one-cycle"
warmup = 0                      # default
# decay_steps                   # not set: the steps of the run
decay_endpoint = "exact"        # default
final_lr_ratio = 0.0            # default
weight_decay = 0.01             # default
decay_norms_and_biases = false  # default
# groups                        # not set: all parameters alike
layer_decay = 1.0               # default
# frozen                        # not set: none
# only                          # not set: all parameters
optimizer = "adamw"             # default
decoupled = true                # default
betas = [0.9, 0.999]            # default
eps = 1e-8                      # default
# momentum = 0.0                # no effect: it belongs to train.optimizer = "sgd", "rmsprop", "muon"
# dampening = 0.0               # no effect: it belongs to train.optimizer = "sgd"
# nesterov = false              # no effect: it belongs to train.optimizer = "sgd", "muon"
# rho = 0.99                    # no effect: it belongs to train.optimizer = "rmsprop", "adadelta"
# centered = false              # no effect: it belongs to train.optimizer = "rmsprop"
# adagrad_decay = 0.0           # no effect: it belongs to train.optimizer = "adagrad"
# adagrad_start = 0.0           # no effect: it belongs to train.optimizer = "adagrad"
# momentum_decay = 0.004        # no effect: it belongs to train.optimizer = "nadam"
# muon_scale = "match-adamw"    # no effect: it belongs to train.optimizer = "muon"
# no effect, it belongs to train.optimizer = "adafactor": scale_parameter, clip_threshold,
#   decay_rate
# ema                           # not set: no average
# average_from                  # not set: no average
clip_norm = 1.0                 # default
clip_kind = "2"                 # default
label_smoothing = 0.0           # default
# prompt_loss = 0.0             # no effect: there is no prompt before an answer
seed = 1234                     # default
recompute = "none"              # default
# recompute_inputs = "device"   # no effect: blocks are not recomputed and keep more than their inputs
products = "full"               # default
gradient_sum = "fast"           # default
gradient_dtype = "f32"          # default
loss_scale = "auto"             # default
# loss_scale_start              # no effect: train.loss_scale = "auto" scales for model.dtype = "f16" alone
# loss_scale_window             # no effect: train.loss_scale = "auto" scales for model.dtype = "f16" alone
# loss_scale_hysteresis         # no effect: it is for train.loss_scale = "megatron" and "deepspeed"
# loss_scale_floor              # no effect: train.loss_scale = "auto" scales for model.dtype = "f16" alone
offload = false                 # default
offload_parameters = false      # default
# inspect_every                 # not set: never

[train.batch_ramp]
# start                         # not set: batches of one size
# increment                     # not set: batches of one size
# samples                       # not set: batches of one size

[train.early_stop]
# patience                      # not set: the run is not stopped early
# metric = "accuracy"           # no effect: train.early_stop.patience is not set

[train.divergence]
# patience                      # not set: gradients that are not finite alone end a run
# spike = 3.0                   # no effect: train.divergence.patience is not set

[eval]
# iterations = 100              # no effect: it is for task pretrain
every = "1 epoch"               # default
metric = "accuracy"             # default: follows data.task
batch_size = 32                 # default: follows train.micro_batch_size
# threshold = 0.5               # no effect: it is for task multi-label-classification

[save]
which = "best"                  # default
dtype = "f32"                   # default: follows model.dtype
# merged = false                # no effect: without updates there is nothing to merge

[checkpoint]
every = "never"                 # default
minutes = 10.0                  # default
keep = 2                        # default
on_failure = "continue"         # default
optimizer_state = true          # default

[log]
every = 10                      # default
metrics = "metrics.jsonl"       # default
quiet = false                   # default
# peak_tflops                   # not set: measured on processors, unknown on CUDA devices
tensorboard = true              # default
# samples                       # not set: no sample texts
# sample_tokens = 64            # no effect: log.samples is not set

[run]
# name                          # not set: the name of output.dir
# tags                          # not set: none

[output]
dir = "o"                       # r.toml:10

[device]
name = "auto"                   # default
threads = "auto"                # default
pin_threads = "nodes"           # default

[parallel]
zero = 3                        # default
prefetch = true                 # default
tensor = 1                      # default
# sequence = false              # no effect: parallel.tensor is 1
pipeline = 1                    # default
# no effect, parallel.pipeline is 1: virtual_stages, schedule, partition
"#;
    let printed = load(text, &["train.lr=3e-4"]).print_config();
    assert_eq!(printed, expected);
    assert_eq!(load(&printed, &[]).recipe_hash(), load(text, &["train.lr=3e-4"]).recipe_hash());
}

#[test]
fn the_resolved_recipe_loads_as_the_same_settings() {
    let odd = with_train(
        "warmup = 0.06\nmicro_batch_size = 8\nschedule = \
        \"exponential\"\n[train.early_stop]\npatience = 2\n[eval]\nevery = \"0.5 epochs\"",
    )
    .replace("\"out\"", "\"a\\\\b \\\"c\\\" \\t\\u0001 ü # x\"");
    let weights = with("[data.class_weights]\nyes = 2\n\"a \\\"b\\\"\" = 0.1");
    let balanced = LEAST.replace("eval = ", "class_weights = \"balanced\"\neval = ");
    for text in [LEAST, &odd, &weights, &balanced, &with("[data.columns]\ntext_pair = \"b\"\n[device]\nthreads = 1")] {
        let first = load(text, &[]);
        let toml = first.to_toml();
        let again = load(&toml, &[]);
        assert_eq!(*again, *first, "{toml}");
        assert_eq!(again.to_toml(), toml);
        assert_eq!(again.recipe_hash(), first.recipe_hash());
    }
}

#[test]
fn weights_of_classes_are_a_table_by_name_or_balanced() {
    let weights = |sets: &[&str]| load(LEAST, sets).data.class_weights.clone();
    let given = |weights: &[(&str, f32)]| {
        Some(ClassWeights::Given(weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect()))
    };
    assert_eq!(weights(&[]), None);
    assert_eq!(weights(&["data.class_weights=balanced"]), Some(ClassWeights::Balanced));
    assert_eq!(weights(&["data.class_weights={yes = 2, no = 0.5}"]), given(&[("no", 0.5), ("yes", 2.0)]));
    assert_eq!(
        weights(&["data.class_weights.yes=2", "data.class_weights.no=1.5"]),
        given(&[("no", 1.5), ("yes", 2.0)])
    );
    let of_file = with("[data.class_weights]\nno = 1\nyes = 2");
    let changed = load(&of_file, &["data.class_weights.yes=3"]);
    assert_eq!(changed.data.class_weights, given(&[("no", 1.0), ("yes", 3.0)]));
    // A whole table takes the place of an earlier one, whose classes may have other names.
    let replaced = load(&of_file, &["data.class_weights={a = 1}", "data.class_weights={bad = 1, good = 4}"]);
    assert_eq!(replaced.data.class_weights, given(&[("bad", 1.0), ("good", 4.0)]));
    assert!(changed.to_toml().contains("class_weights = { \"no\" = 1.0, \"yes\" = 3.0 }"), "{}", changed.to_toml());
    // A recipe without them has the text, and so the hash, that it had before there were any.
    assert!(!load(LEAST, &[]).to_toml().contains("class_weights"));
    assert_ne!(load(&of_file, &[]).recipe_hash(), load(LEAST, &[]).recipe_hash());
    assert_ne!(load(&of_file, &[]).recipe_hash(), changed.recipe_hash());
}

#[test]
fn the_hash_changes_with_what_is_computed_and_with_nothing_else() {
    let hash = |sets: &[&str]| load(LEAST, sets).recipe_hash();
    assert_eq!(hash(&[]).len(), 64);
    for same in [
        "output.dir=elsewhere",
        "log.every=1",
        "log.quiet=true",
        "device.threads=3",
        "device.pin_threads=none",
        "train.offload=true",
        "train.seed=1234",
        "train.batch_size=0x20",
        "train.lr=0.00005",
        "checkpoint.optimizer_state=false",
        "data.shuffle=true",
        "data.last_batch=drop",
    ] {
        assert_eq!(hash(&[same]), hash(&[]), "{same}");
    }
    let pretraining = "[model]\ninit = \"random\"\nfamily = \"gpt2\"\ntokenizer = \"t\"\n[data]\ntask = \"pretrain\"\n\
                       corpora = [\"books\"]\nsequence_length = 16\n[train]\nsteps = 6\n[output]\ndir = \"run\"\n";
    let threads = |count: &str| load(pretraining, &[&format!("data.loading_threads={count}")]);
    let [one, three] = ["1", "3"].map(threads);
    assert_eq!([one.recipe_hash(), one.hash_without_schedule()], [three.recipe_hash(), three.hash_without_schedule()]);
    assert!(one.changes(&three.to_toml()).unwrap().is_empty());
    // As earlier versions hashed the default.
    assert!(three.hashed_toml().contains("loading_threads = 1\n") && three.to_toml().contains("loading_threads = 3\n"));
    for other in [
        "train.seed=1",
        "train.lr=1e-5",
        "data.max_length=64",
        "data.shuffle=false",
        "data.last_batch=keep",
        "model.path=n",
        "eval.every=end",
        "save.dtype=bf16",
    ] {
        assert_ne!(hash(&[other]), hash(&[]), "{other}");
    }
}

#[test]
fn parameters_in_f32_are_a_set_that_decides_what_is_computed() {
    let of = |value: &str| load(LEAST, &["model.dtype=f16", &format!("model.f32_parameters={value}")]);
    let two = of("[\"embeddings\", \"norms\"]");
    assert!(two.to_toml().contains("f32_parameters = [\"embeddings\", \"norms\"]\n"), "{}", two.to_toml());
    let kinds = two.model.f32_parameters;
    assert_eq!((kinds.embeddings, kinds.norms, kinds.token_types), (true, true, false));
    assert_eq!(of("[\"norms\", \"embeddings\"]").recipe_hash(), two.recipe_hash());
    assert_ne!(of("[\"norms\"]").recipe_hash(), two.recipe_hash());
    let none = load(LEAST, &["model.dtype=f16"]);
    assert_ne!(none.recipe_hash(), two.recipe_hash());
    assert!(!none.to_toml().contains("f32_parameters"), "{}", none.to_toml());
    let changes = two.changes(&none.to_toml()).unwrap();
    assert_eq!(changes, ["model.f32_parameters: not set -> [\"embeddings\", \"norms\"]"]);
}

#[test]
fn recipes_that_differ_in_schedule_and_length_alone_share_a_hash() {
    let hash = |sets: &[&str]| load(LEAST, sets).hash_without_schedule();
    let schedule = ["train.schedule=exponential", "train.gamma=0.9", "train.warmup=0.1", "train.final_lr_ratio=0.1"];
    for same in [&schedule[..], &["train.lr=1", "train.decay_steps=9"], &["train.steps=7", "train.minutes=3"]] {
        assert_eq!(hash(same), hash(&[]), "{same:?}");
    }
    for other in ["train.seed=1", "train.batch_size=8", "train.weight_decay=0", "data.max_length=64"] {
        assert_ne!(hash(&[other]), hash(&[]), "{other}");
    }
}

#[test]
fn changes_since_a_run_was_begun_are_listed_with_both_values() {
    let begun = load(LEAST, &[]).to_toml();
    assert_eq!(
        load(LEAST, &["log.every=5", "checkpoint.keep=7", "parallel.zero=1", "train.offload=true"])
            .changes(&begun)
            .unwrap(),
        [""; 0]
    );
    let changes = load(LEAST, &["train.lr=0.25", "train.early_stop.patience=2"]).changes(&begun).unwrap();
    assert!(changes.iter().any(|line| line.starts_with("train.lr: ") && line.ends_with(" -> 0.25")), "{changes:?}");
    assert!(changes.iter().any(|line| line == "train.early_stop.patience: not set -> 2"), "{changes:?}");
}

#[test]
fn language_tasks_have_columns_lengths_and_a_metric_of_their_own() {
    let of_task = |task: &str| LEAST.replace("classification", task);
    let columns = |r: &Resolved| r.data.source.task_as::<LanguageModelingTask>().unwrap().columns.clone();
    let (language, seq2seq) = (of_task("language"), of_task("seq2seq"));
    let r = load(&language, &["data.columns.prompt=question", "train.label_smoothing=0.1"]);
    assert_eq!(columns(&r), LanguageModelingColumns::Language { text: "text".into(), prompt: Some("question".into()) });
    assert_eq!((r.eval.metric, r.data.source.task().name()), (EvalMetric::Loss, "language"));
    assert_eq!(load(&language, &["eval.metric=perplexity"]).eval.metric, EvalMetric::Metric(Metric::Perplexity));
    assert_eq!(columns(&load(&language, &[])), LanguageModelingColumns::Language { text: "text".into(), prompt: None });
    let r = load(&seq2seq, &["data.max_length=100", "data.columns.target=answer"]);
    assert_eq!(columns(&r), LanguageModelingColumns::Target { text: "text".into(), target: "answer".into() });
    assert_eq!((r.data.max_length, r.data.target_length), (100, 100));
    assert_eq!(load(&seq2seq, &["data.target_length=20"]).data.target_length, 20);
    for text in [&language, &seq2seq] {
        let first = load(text, &[]);
        assert_eq!(*load(&first.to_toml(), &[]), *first);
    }
    // Plain text: rows, not records.
    let r = load(&language, &["data.train=t.txt", "data.eval=e.txt", "data.max_length=64"]);
    assert_eq!(columns(&r), LanguageModelingColumns::Language { text: "text".into(), prompt: None });
    for (sets, reason) in [
        (&["data.train=t.txt", "data.columns.prompt=p"][..], "plain text has no columns"),
        (&["data.train=t.txt", "data.task=seq2seq"], "plain text has no columns, and this task needs them"),
        (&["data.format=text", "data.task=classification"], "plain text has no columns, and this task needs them"),
        (&["data.format=text", "data.columns.text=t"], "`data.columns.text` has no effect: plain text has no columns"),
        (&["data.format=text", "data.too_long=error"], "`data.too_long` has no effect"),
        (&["data.format=text", "data.length_grouped=true"], "`data.length_grouped` has no effect"),
        (&["data.format=text", "data.packing=true"], "`data.packing` has no effect"),
    ] {
        let found = mistakes(&language, sets);
        assert!(found.len() == 1 && found[0].reason.contains(reason), "{sets:?}: {found:?}");
    }
    for (text, set, reason) in [
        (&language, "data.columns.target=t", "`data.columns.target` has no effect: it is for task seq2seq"),
        (&language, "data.target_length=9", "`data.target_length` has no effect: it is for tasks seq2seq, sft and"),
        (&language, "data.labels=[\"a\", \"b\"]", "`data.labels` has no effect: the labels are the texts' own tokens"),
        (&language, "model.head=new", "`model.head` has no effect: a model keeps its language-modelling head"),
        (&language, "data.columns.prompt=text", "`data.columns.text` and `data.columns.prompt` both name the column"),
        (&seq2seq, "data.columns.target=text", "`data.columns.text` and `data.columns.target` both name the column"),
        (&seq2seq, "data.columns.prompt=p", "`data.columns.prompt` has no effect: it is for task language"),
        (&seq2seq, "data.columns.label=l", "`data.columns.label` has no effect: the labels are the texts' own tokens"),
        (&seq2seq, "eval.metric=accuracy", "judges classes, and task \"seq2seq\" has tokens for labels"),
        (&seq2seq, "data.train=t.bin", "the name of `data.train` does not determine the file's format"),
        (
            &of_task("regression"),
            "data.columns.prompt=p",
            "`data.columns.prompt` has no effect: it is for task language",
        ),
        (&LEAST.to_owned(), "eval.metric=perplexity", "judges tokens, and task \"classification\" has classes"),
    ] {
        let found = mistakes(text, &[set]);
        assert!(found.len() == 1 && found[0].reason.contains(reason), "{set}: {found:?}");
    }
}

#[test]
fn an_objective_decides_what_tells_classes_apart() {
    let task = |sets: &[&str]| load(LEAST, sets).data.source.clone();
    // Tasks that have only a verbalizer form do not need data.objective.
    let of_known = |further: &[&str]| {
        let text =
            LEAST.replace("task = \"classification\"\ntrain = \"t.jsonl\"\neval = \"e.jsonl\"\n", "path = \"sg\"\n");
        let is_named = further.iter().any(|set| set.starts_with("data.task"));
        load(&text, &[if is_named { &[][..] } else { &["data.task=RTE"] }, further].concat())
    };
    assert_eq!(of_known(&[]).data.source, of_directory(find_task("RTE", &[SUPERGLUE]).unwrap()));
    let of_prompts = |name: &str| of_directory(PROMPTS.iter().find(|entry| entry.name == name).unwrap());
    let prompts = of_known(&["data.objective=verbalizer", "train.prompt_loss=1"]);
    assert_eq!(prompts.data.source, of_prompts("RTE"));
    assert_eq!(prompts.train.prompt_loss, 1.0);
    let multirc = of_known(&["data.task=MultiRC", "eval.metric=exact_match"]);
    assert_eq!(multirc.data.source, of_prompts("MultiRC"));
    assert_eq!(multirc.data.source.files_of_task(), ["MultiRC/train.jsonl", "MultiRC/val.jsonl"]);
    assert_eq!(of_known(&["data.task=MultiRC"]).eval.metric, EvalMetric::Metric(Metric::F1));
    assert_eq!(of_known(&["data.task=LCQMC"]).data.source.files_of_task(), ["LCQMC/train.tsv", "LCQMC/dev.tsv"]);
    let squad = of_known(&["data.task=SQuAD", "data.target_length=32"]);
    assert_eq!((squad.eval.metric, squad.data.target_length), (EvalMetric::Metric(Metric::TokenF1), 32));
    assert_eq!(squad.data.source.files_of_task(), ["train-v1.1.json", "dev-v1.1.json"]);
    let own = task(&[
        "data.objective=verbalizer",
        "data.template=\"{text} Was it good?\"",
        "data.labels=[\"no\", \"yes\"]",
        "data.words=[\" No\", \" Yes\"]",
    ]);
    let task: &TemplateTask = own.task_as().unwrap();
    assert_eq!((task.template.to_string().as_str(), task.words[1].as_str()), ("{text} Was it good?", " Yes"));
    assert_eq!((own.task().name(), own.task().pipeline_tag(false)), ("classification", "text-generation"));
    // What is printed loads as it is.
    let text = of_known(&["data.objective=verbalizer"]).to_toml();
    assert_eq!(load(&text, &[]).recipe_hash(), of_known(&["data.objective=verbalizer"]).recipe_hash());
}

#[test]
fn the_default_micro_batch_is_the_share_of_a_rank_and_stays_that_of_the_run() {
    let on = |sets: &[&str], ranks: usize, begun: Option<&str>| load(LEAST, sets).on_ranks(ranks, begun);
    let size = |resolved: &Resolved| resolved.train.micro_batch_size;
    // One rank computes what it always has, under the same hash.
    assert_eq!(on(&[], 1, None), load(LEAST, &[]));
    let two = on(&[], 2, None);
    assert_eq!((size(&two), two.eval.batch_size, two.micro_batch_on(2)), (16, 16, 16));
    let line = "micro_batch_size = 16           # default: train.batch_size / 2 ranks";
    assert!(two.print_config().contains(line), "{}", two.print_config());
    assert_eq!(load(&two.to_toml(), &[]).recipe_hash(), two.recipe_hash());
    // What is written stays, whatever the ranks; what cannot be shared is left to be refused.
    assert_eq!(on(&["train.micro_batch_size=32"], 2, None), load(LEAST, &["train.micro_batch_size=32"]));
    assert_eq!(on(&["eval.batch_size=5"], 2, None).eval.batch_size, 5);
    assert_eq!(on(&[], 3, None), load(LEAST, &[]));

    // A run keeps the micro-batches it was begun with, and its hash, on other numbers of ranks.
    let begun_on_two = two.to_toml();
    for ranks in [1, 2, 4] {
        let again = on(&[], ranks, Some(&begun_on_two));
        assert_eq!((size(&again), again.recipe_hash()), (16, two.recipe_hash()), "{ranks} ranks");
    }
    assert_eq!(on(&[], 4, Some(&begun_on_two)).micro_batch_on(4), 8);
    let begun_on_one = load(LEAST, &[]).to_toml();
    let fast = on(&[], 2, Some(&begun_on_one));
    assert_eq!((fast.recipe_hash(), fast.micro_batch_on(2)), (load(LEAST, &[]).recipe_hash(), 16));
    // Where bits would change that are promised to stay, or samples, micro-batches stay what they are.
    for bound in ["train.gradient_sum=elastic", "data.length_grouped=true"] {
        let begun = load(LEAST, &[bound]).to_toml();
        assert_eq!(on(&[bound], 2, Some(&begun)).micro_batch_on(2), 32, "{bound}");
    }
    // A recipe of another batch, or no recipe, decides nothing.
    for other in [&*load(LEAST, &["train.batch_size=64"]).to_toml(), "x", "[train]\nbatch_size = 32"] {
        assert_eq!(size(&on(&[], 2, Some(other))), 16, "{other}");
    }
}

#[test]
fn an_incomplete_recipe_is_printed_with_what_is_missing() {
    let draft = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        Recipe::draft(None, &sets, OwnData::default()).unwrap()
    };
    let nothing = draft(&[]);
    assert!(!nothing.is_complete());
    let printed = nothing.print_config();
    assert_eq!(nothing.into_wrong(), []);
    assert!(printed.starts_with("# Incomplete: 4 settings are missing"), "{printed}");
    let line = |printed: &str, key: &str| {
        let found = printed.lines().find(|line| line.starts_with(key));
        found.unwrap_or_else(|| panic!("no {key} in {printed}")).to_owned()
    };
    assert!(line(&printed, "# path ").ends_with(
        "# missing: it must be the path of a Hugging Face model directory, \
        or the hub's name of a model that is in its cache"
    ));
    assert!(line(&printed, "# task ").contains("# missing: it must be one of \"BoolQ\""), "{printed}");
    assert!(
        line(&printed, "# steps ").contains("# missing: set train.epochs, train.steps or train.minutes"),
        "{printed}"
    );
    assert!(line(&printed, "lr = 5e-5 ").ends_with("# default"), "{printed}");
    // What one setting asks for is missing once that is set; with all of them it is the recipe that a run prints.
    let printed = draft(&["data.task=regression", "train.steps=5"]).print_config();
    assert!(printed.starts_with("# Incomplete: 3 settings are missing"), "{printed}");
    assert!(line(&printed, "# train ").contains("# missing: set data.train = "), "{printed}");
    let sets = ["model.path=m", "data.task=regression", "data.train=t.jsonl", "train.steps=5", "output.dir=o"];
    let complete = draft(&sets);
    assert_eq!(complete.print_config(), Recipe::load(None, &sets.map(String::from)).unwrap().print_config());
    assert!(complete.is_complete());
    // What is wrong is marked too, and is more than incomplete.
    let wrong = draft(&["train.lr=fast"]);
    let line = line(&wrong.print_config(), "# lr ");
    assert!(line.contains("# wrong at --set train.lr=fast: must be a number above 0"), "{line}");
    let [mistake] = &wrong.into_wrong()[..] else { panic!("more than one is wrong") };
    assert_eq!(mistake.place, "--set train.lr=fast");
    assert!(Recipe::draft(None, &["train.lr".into()], OwnData::default()).is_err());
}

#[test]
fn tensors_that_are_left_out_change_no_result_and_no_hash() {
    let sets = |leave: &[&str]| {
        let base = ["model.path=m", "data.task=RTE", "data.path=sg", "train.steps=1", "output.dir=o"];
        base.iter().chain(leave).map(|set| (*set).to_owned()).collect::<Vec<_>>()
    };
    let plain = Recipe::read(None, &sets(&[])).unwrap();
    assert!(plain.model.leave.is_empty() && !plain.to_toml().contains("leave"));
    let left = Recipe::read(None, &sets(&["model.leave=[\"ner.*\", \"topic.*\"]"])).unwrap();
    assert_eq!(left.model.leave, ["ner.*", "topic.*"]);
    assert!(left.to_toml().contains("leave = [\"ner.*\", \"topic.*\"]"));
    assert_eq!(left.recipe_hash(), plain.recipe_hash());
    let mistakes = Recipe::read(None, &sets(&["model.leave=ner"])).unwrap_err();
    assert!(mistakes[0].reason.contains("a list of strings"), "{}", mistakes[0].reason);
}

#[test]
fn recomputation_is_a_word_a_flag_or_a_number_of_blocks() {
    use bmtrain_dist::block::Recompute;
    for (set, expected, printed) in [
        ("false", Recompute::Keep, "\"none\""),
        ("none", Recompute::Keep, "\"none\""),
        ("true", Recompute::Checkpoint, "\"blocks\""),
        ("blocks", Recompute::Checkpoint, "\"blocks\""),
        ("1", Recompute::Checkpoint, "\"blocks\""),
        ("4", Recompute::Every(4), "4"),
        ("attention", Recompute::Attention, "\"attention\""),
        ("auto", Recompute::Auto, "\"auto\""),
    ] {
        let resolved = load(LEAST, &[&format!("train.recompute={set}")]);
        assert_eq!(resolved.train.recompute, expected, "{set}");
        assert!(resolved.to_toml().contains(&format!("recompute = {printed}\n")), "{set}");
    }
}

#[test]
fn an_optimizer_has_the_numbers_of_its_keys_and_the_defaults_of_its_library() {
    let of = |sets: &[&str]| load(LEAST, sets).train.optimizer;
    let rule = |sets: &[&str]| match of(sets) {
        OptimizerSettings::Elementwise(options) => (options.rule, options.decay_form),
        other => panic!("{other:?}"),
    };
    let (coupled, decoupled) = (DecayForm::Coupled, DecayForm::Decoupled);
    assert_eq!(of(&[]), OptimizerSettings::Adam(AdamOptions::default()));
    let adam = AdamOptions { decay_form: coupled, ..AdamOptions::default() };
    assert_eq!(of(&["train.optimizer=adam"]), OptimizerSettings::Adam(adam));
    assert_eq!(of(&["train.decoupled=false"]), OptimizerSettings::Adam(adam));
    let sgd = UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true };
    let sets = ["train.optimizer=sgd", "train.momentum=0.9", "train.nesterov=true"];
    assert_eq!(rule(&sets), (sgd, coupled));
    let lion = UpdateRule::Lion { beta1: 0.9, beta2: 0.99 };
    assert_eq!(rule(&["train.optimizer=lion"]), (lion, decoupled));
    let adadelta = UpdateRule::Adadelta { rho: 0.9, epsilon: 1e-6 };
    assert_eq!(rule(&["train.optimizer=adadelta", "train.decoupled=true"]), (adadelta, decoupled));
    let muon = MuonOptions { scale: MuonScale::MatchAdamW, ..MuonOptions::default() };
    assert_eq!(of(&["train.optimizer=muon"]), OptimizerSettings::Muon(muon, AdamOptions::default()));
    // Every name makes an optimizer, and the recipe that it is written out as is the same.
    let factors = AdafactorOptions { scale_parameter: true, ..AdafactorOptions::default() };
    let sets = ["train.optimizer=adafactor", "train.scale_parameter=true"];
    assert_eq!(of(&sets), OptimizerSettings::Adafactor(factors));
    assert_eq!(of(&["train.optimizer=adamw-8bit"]), OptimizerSettings::Adam8bit(Adam8bitOptions::default()));
    for name in ["adagrad", "rmsprop", "adamax", "nadam", "radam", "adafactor", "adamw-8bit"] {
        let loaded = load(LEAST, &[&format!("train.optimizer={name}")]);
        assert_eq!(loaded.train.optimizer.make(Vec::new(), false).unwrap().len(), 1);
        assert_eq!(load(&loaded.to_toml(), &[]).train.optimizer, loaded.train.optimizer);
    }
}
