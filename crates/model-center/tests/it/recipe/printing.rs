//! Printed recipes: each value with its origin, and what is missing.

use crate::recipes::{LEAST, load, with, with_train};
use model_center::recipe::{OwnData, Recipe};

#[test]
fn print_config_shows_each_value_with_its_origin() {
    let text = "[model]\npath = \"models/mini\"\n[data]\ntask = \"RTE\"\npath = \"sg\"\n[train]\nsteps = 100\nlr = \
        1e-5\n[output]\ndir = \"o\"\n";
    let expected = r#"[model]
init = "weights"                # default
path = "models/mini"            # r.toml:2
# revision                      # not set: main, of a model of the hub
# family                        # not set: as config.json states, else as the names of the tensors tell
# leave                         # not set: only tensors of other heads
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
# patience                      # not set: only gradients that are not finite end a run
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
