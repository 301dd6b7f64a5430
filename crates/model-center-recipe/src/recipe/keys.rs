//! Every key of a recipe: its name, kind, range and default, in the order of the printed recipe.
//!
//! Defines [`read`], called by [`Recipe`](super::Recipe). The keys of `[data]` are in `sources.rs`, the keys
//! of `[parallel]` in `parallel.rs`; rules for several keys are in `rules.rs`.

use super::adapter;
use super::average;
use super::batch_ramp;
use super::distill;
use super::embedding;
use super::groups;
use super::kinds::{Expected, Range, as_integer, quote};
use super::layers::Value;
use super::loss_scale;
use super::memory;
use super::model::read_model;
use super::optimizer;
use super::parallel;
use super::preference;
use super::pretraining;
use super::reader::{Otherwise, Reader, Spec};
use super::schedule;
use super::schema::Shape;
use super::settings::*;
use super::sources::read_data;
use bmtrain_core::cpu::Pinning;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::{DType, DeviceChoice};
use bmtrain_dist::block::InputStore;
use bmtrain_dist::optim::{Clip, DecaySpan};
use bmtrain_dist::shard::GradientSum;
use model_center_data::metrics::{LabelKind, LabelSetCounts, Metric};

/// The largest whole number TOML can hold.
pub(super) const MOST: u64 = i64::MAX as u64;
pub(super) const MOST_STEPS: u64 = 1_000_000_000_000;
pub(super) const MOST_SAMPLES: u64 = 1 << 20;

const OUTPUT_DIRECTORY: Expected = Expected { what: "the path of the directory for this run", example: "runs/first" };
const RUN_NAME: Expected = Expected { what: "the name of the run in lists", example: "bert-lr3e-5" };
const FILE_NAME: Expected = Expected { what: "a file name", example: "metrics.jsonl" };

/// Reads every key. After a mistake the value is a placeholder, and the caller drops the settings.
pub(crate) fn read(r: &mut Reader) -> Settings {
    let mut model = read_model(r);
    let (adapter, base_weights) = adapter::read(r);
    let mut data = read_data(r);
    let preference = preference::read(r, &mut data.source);
    let contrastive = embedding::read(r, &data.source);
    let distill = distill::read(r);
    let mut train = read_train(r);
    pretraining::read_others(r, train.seed, data.source.pretraining_mut());
    let eval = read_eval(r, &data, train.micro_batch_size as u64);
    train.early_stop = read_early_stop(r, eval.metric);
    train.divergence = read_divergence(r);
    model.init_seed = r.integer("model.init_seed", train.seed, 0..=MOST);
    r.follow("model.init_seed", "train.seed");
    let save = read_save(r, &data, model.dtype);
    let checkpoint = CheckpointSettings {
        every: read_interval(r, "checkpoint.every", Interval::Never, ("never", Interval::Never)),
        minutes: r.float("checkpoint.minutes", 10.0, Range::AtLeast(0.0)),
        keep: r.integer("checkpoint.keep", 2, 2..=1000) as usize,
        on_failure: r.choice(
            "checkpoint.on_failure",
            &[("continue", OnSaveFailure::Continue), ("stop", OnSaveFailure::Stop)],
            OnSaveFailure::Continue,
        ),
        optimizer_state: r.flag("checkpoint.optimizer_state", true),
    };
    let mut log = LogSettings {
        every: r.integer("log.every", 10, 1..=MOST_STEPS),
        metrics: r.text("log.metrics", "metrics.jsonl", FILE_NAME),
        quiet: r.flag("log.quiet", false),
        peak_tflops: r.optional_float(
            "log.peak_tflops",
            "not set: measured on processors, unknown on CUDA devices",
            Range::Above(0.0),
            989.0,
        ),
        tensorboard: r.flag("log.tensorboard", true),
        samples: None,
        sample_tokens: 0,
    };
    (log.samples, log.sample_tokens) = read_samples(r);
    let run = RunSettings {
        name: r.optional_text("run.name", "not set: the name of output.dir", RUN_NAME),
        tags: r.optional_texts("run.tags", "not set: none", "[\"bert\", \"ablation\"]").unwrap_or_default(),
    };
    let output = OutputSettings { dir: r.required_path("output.dir", OUTPUT_DIRECTORY) };
    let pinnings = Pinning::ALL.map(|pinning| (pinning.name(), pinning));
    let device = DeviceSettings {
        name: read_device(r),
        threads: read_threads(r),
        pin_threads: r.choice("device.pin_threads", &pinnings, Pinning::Nodes),
    };
    let parallel = parallel::read(r);
    Settings {
        model,
        adapter,
        base_weights,
        data,
        preference,
        contrastive,
        distill,
        train,
        eval,
        save,
        checkpoint,
        log,
        run,
        output,
        device,
        parallel,
    }
}

fn read_train(r: &mut Reader) -> TrainSettings {
    let no_limit = "not set: no such limit";
    let epochs = r.optional_float("train.epochs", no_limit, Range::Above(0.0), 3.0);
    let steps = r.optional_integer("train.steps", no_limit, 1..=MOST_STEPS, 1000);
    let minutes = r.optional_float("train.minutes", no_limit, Range::Above(0.0), 60.0);
    let batch_size = r.integer("train.batch_size", 32, 1..=MOST_SAMPLES);
    let micro_batch_size = r.integer("train.micro_batch_size", batch_size, 1..=MOST_SAMPLES);
    r.follow("train.micro_batch_size", "train.batch_size");
    let accumulation = read_accumulation(r);
    let lr = r.float("train.lr", 5e-5, Range::Above(0.0));
    let schedule = schedule::read(r);
    let warmup = schedule::read_warmup(r);
    let run = "not set: the steps of the run";
    let decay_steps = r.optional_integer("train.decay_steps", run, 1..=MOST_STEPS, 990_000);
    let spans = [("exact", DecaySpan::AfterWarmup), ("megatron-2019", DecaySpan::All)];
    let decay_span = r.choice("train.decay_endpoint", &spans, DecaySpan::AfterWarmup);
    let final_lr_ratio = r.float("train.final_lr_ratio", 0.0, Range::Within(0.0, 1.0));
    let weight_decay = r.single("train.weight_decay", 0.01, Range::AtLeast(0.0));
    let decay_norms_and_biases = r.flag("train.decay_norms_and_biases", false);
    let groups = groups::read(r);
    let layer_decay = r.float("train.layer_decay", 1.0, Range::Within(0.0, 1.0));
    let frozen = groups::read_frozen(r);
    let only = groups::read_only(r);
    let optimizer = optimizer::read(r);
    let average = average::read(r);
    let clip = read_clip(r);
    let stores = [("device", InputStore::Device), ("sharded", InputStore::Sharded), ("host", InputStore::Host)];
    let sums = [("fast", GradientSum::Fast), ("elastic", GradientSum::Elastic)];
    TrainSettings {
        epochs,
        steps,
        minutes,
        batch_size: batch_size as usize,
        micro_batch_size: micro_batch_size as usize,
        accumulation,
        batch_ramp: batch_ramp::read(r, batch_size),
        lr,
        schedule,
        warmup,
        decay_steps,
        decay_span,
        final_lr_ratio,
        weight_decay,
        decay_norms_and_biases,
        groups,
        layer_decay,
        frozen,
        only,
        optimizer,
        average,
        clip,
        label_smoothing: r.single("train.label_smoothing", 0.0, Range::Below(0.0, 1.0)),
        prompt_loss: r.single("train.prompt_loss", 0.0, Range::AtLeast(0.0)),
        seed: r.integer("train.seed", 1234, 0..=MOST),
        recompute: memory::read_recompute(r),
        recompute_inputs: r.choice("train.recompute_inputs", &stores, InputStore::Device),
        products: r.choice(
            "train.products",
            &[("full", ProductPrecision::Full), ("fp8", ProductPrecision::Fp8)],
            ProductPrecision::Full,
        ),
        gradient_sum: r.choice("train.gradient_sum", &sums, GradientSum::Fast),
        gradient_dtype: r.choice(
            "train.gradient_dtype",
            &[("f32", GradientDType::F32), ("model", GradientDType::Model)],
            GradientDType::F32,
        ),
        loss_scale: loss_scale::read(r),
        offload: r.flag("train.offload", false),
        offload_parameters: r.flag("train.offload_parameters", false),
        inspect_every: r.optional_integer("train.inspect_every", "not set: never", 1..=MOST_STEPS, 100),
        early_stop: None,
        divergence: None,
    }
}

/// Prompts of sample texts, and the most tokens of each.
fn read_samples(r: &mut Reader) -> (Option<Vec<String>>, usize) {
    let prompts = r.optional_texts("log.samples", "not set: no sample texts", "[\"Once upon a time\"]");
    let tokens = r.integer("log.sample_tokens", 64, 1..=MOST_SAMPLES);
    if prompts.is_none() {
        r.without_effect("log.sample_tokens", "log.samples", "log.samples is not set", "set log.samples, or remove it");
    }
    (prompts, tokens as usize)
}

fn read_accumulation(r: &mut Reader) -> Option<usize> {
    let absent = "not set: train.batch_size / (train.micro_batch_size x data ranks)";
    let accumulation = r.optional_integer("train.accumulation", absent, 1..=MOST_SAMPLES, 4);
    accumulation.map(|accumulation| accumulation as usize)
}

fn read_clip(r: &mut Reader) -> Clip {
    let max_norm = r.single("train.clip_norm", 1.0, Range::Above(0.0));
    let orders = [("2", Some(NormOrder::Two)), ("inf", Some(NormOrder::Infinity)), ("none", None)];
    let order = r.choice("train.clip_kind", &orders, Some(NormOrder::Two));
    if order.is_none() {
        r.without_effect(
            "train.clip_norm",
            "train.clip_kind",
            "train.clip_kind = \"none\" does not clip",
            "remove one of the two",
        );
    }
    order.map_or(Clip::default(), |order| Clip { order, max_norm })
}

fn read_eval(r: &mut Reader, data: &DataSettings, micro_batch_size: u64) -> EvalSettings {
    let every = match data.source.pretraining() {
        Some(_) => Interval::Steps(1000),
        None => Interval::Epochs(1.0),
    };
    let every = read_interval(r, "eval.every", every, ("end", Interval::End));
    let default = match (data.source.task().metrics(), data.source.task().label_kind()) {
        (Some(metrics), _) => EvalMetric::Metric(metrics.first().copied().unwrap_or(Metric::Accuracy)),
        (None, LabelKind::Tokens | LabelKind::Pairs | LabelKind::Embeddings) => EvalMetric::Loss,
        (None, kind) => EvalMetric::Metric(kind.usual_metric()),
    };
    let metric = read_metric(r, "eval.metric", default);
    r.follow("eval.metric", "data.task");
    let batch_size = r.integer("eval.batch_size", micro_batch_size, 1..=MOST_SAMPLES) as usize;
    r.follow("eval.batch_size", "train.micro_batch_size");
    let threshold = r.single("eval.threshold", f64::from(LabelSetCounts::THRESHOLD), Range::Below(0.0, 1.0));
    if data.source.task().label_kind() != LabelKind::LabelSets {
        let why = "it is for task multi-label-classification";
        r.without_effect("eval.threshold", "data.task", why, "remove it");
    }
    if !data.source.has_eval() {
        let key_of_data = data.source.eval_key();
        let (why, fix) = (format!("there is no {key_of_data}"), format!("set {key_of_data}, or remove it"));
        for key in ["eval.every", "eval.metric", "eval.batch_size", "eval.threshold", "data.eval_limit"] {
            r.without_effect(key, key_of_data, &why, &fix);
        }
    }
    EvalSettings { every, metric, batch_size, threshold }
}

fn read_metric(r: &mut Reader, key: &'static str, default: EvalMetric) -> EvalMetric {
    let own = r.own.tasks.iter().flat_map(|task| task.metrics().unwrap_or_default());
    let own = own.filter(|metric| matches!(metric, Metric::Own(_))).copied();
    let metrics = Metric::all().chain(own).map(EvalMetric::Metric);
    let choices: Vec<(&str, EvalMetric)> =
        std::iter::once(EvalMetric::Loss).chain(metrics).map(|m| (m.name(), m)).collect();
    r.choice(key, &choices, default)
}

/// An interval; `none` is the value for none.
fn read_interval(r: &mut Reader, key: &'static str, default: Interval, none: (&str, Interval)) -> Interval {
    let plural = |number: String, one: &str| {
        let ending = if number == "1" { "" } else { "s" };
        quote(&format!("{number} {one}{ending}"))
    };
    r.shape(key, Shape::Pattern("^([0-9]+ steps?|[0-9.eE+-]+ epochs?|end|never)$"));
    r.read(Spec {
        key,
        textual: true,
        wanted: format!("a string such as \"200 steps\", \"0.5 epochs\" or {}", quote(none.0)),
        example: "\"200 steps\"".into(),
        otherwise: Otherwise::Default(default),
        read: &|value| {
            let Value::Text(text) = value else { return None };
            let parts: Vec<&str> = text.split_whitespace().collect();
            match parts.as_slice() {
                [only] if *only == none.0 => Some(none.1),
                [n, "step" | "steps"] => {
                    n.parse().ok().filter(|steps| (1..=MOST_STEPS).contains(steps)).map(Interval::Steps)
                }
                [x, "epoch" | "epochs"] => {
                    x.parse().ok().filter(|epochs| Range::Above(0.0).contains(*epochs)).map(Interval::Epochs)
                }
                _ => None,
            }
        },
        render: &|interval| match interval {
            Interval::Steps(steps) => plural(steps.to_string(), "step"),
            Interval::Epochs(epochs) => plural(epochs.to_string(), "epoch"),
            Interval::End | Interval::Never => quote(none.0),
        },
    })
    .unwrap_or(default)
}

fn read_early_stop(r: &mut Reader, eval_metric: EvalMetric) -> Option<EarlyStopSettings> {
    let absent = "not set: the run is not stopped early";
    let patience = r.optional_integer("train.early_stop.patience", absent, 1..=MOST_STEPS, 3);
    let metric = read_metric(r, "train.early_stop.metric", eval_metric);
    r.follow("train.early_stop.metric", "eval.metric");
    if patience.is_none() {
        let fix = "set train.early_stop.patience, or remove it";
        r.without_effect(
            "train.early_stop.metric",
            "train.early_stop.patience",
            "train.early_stop.patience is not set",
            fix,
        );
    }
    Some(EarlyStopSettings { metric, patience: patience? })
}

fn read_divergence(r: &mut Reader) -> Option<DivergenceSettings> {
    let absent = "not set: gradients that are not finite alone end a run";
    let patience = r.optional_integer("train.divergence.patience", absent, 1..=MOST_STEPS, 50);
    let spike = r.float("train.divergence.spike", 3.0, Range::Above(1.0));
    if patience.is_none() {
        let (because, fix) = ("train.divergence.patience", "set train.divergence.patience, or remove it");
        r.without_effect("train.divergence.spike", because, "train.divergence.patience is not set", fix);
    }
    Some(DivergenceSettings { spike, patience: patience? })
}

fn read_save(r: &mut Reader, data: &DataSettings, dtype: DType) -> SaveSettings {
    let which =
        [("best", SaveWhich::Best), ("last", SaveWhich::Last), ("both", SaveWhich::Both), ("none", SaveWhich::None)];
    let default = if data.source.has_eval() { SaveWhich::Best } else { SaveWhich::Last };
    let which = r.choice("save.which", &which, default);
    let dtype = r.choice("save.dtype", &[("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)], dtype);
    r.follow("save.dtype", "model.dtype");
    if which == SaveWhich::None {
        r.without_effect("save.dtype", "save.which", "save.which = \"none\" saves no model", "remove one of the two");
    }
    let merged = r.flag("save.merged", false);
    SaveSettings { which, dtype, merged }
}

fn read_device(r: &mut Reader) -> DeviceChoice {
    r.shape("device.name", Shape::Pattern("^(auto|cpu|cuda(:[0-9]+)?)$"));
    r.read(Spec {
        key: "device.name",
        textual: true,
        wanted: "\"auto\", \"cpu\", \"cuda\", or \"cuda:0\" for the first CUDA device".into(),
        example: quote("cpu"),
        otherwise: Otherwise::Default(DeviceChoice::Auto),
        read: &|value| match value {
            Value::Text(text) => text.parse().ok(),
            _ => None,
        },
        render: &|choice: &DeviceChoice| quote(&choice.to_string()),
    })
    .unwrap_or_default()
}

fn read_threads(r: &mut Reader) -> Threads {
    let auto = Shape::Choice(vec!["auto".into()]);
    r.shape("device.threads", Shape::Either(vec![auto, Shape::Integer(1, Some(1024))]));
    r.read(Spec {
        key: "device.threads",
        textual: false,
        wanted: "\"auto\" or a whole number from 1 to 1024".into(),
        example: "2".into(),
        otherwise: Otherwise::Default(Threads::Auto),
        read: &|value| match value {
            Value::Text(text) if text == "auto" => Some(Threads::Auto),
            _ => as_integer(value).filter(|n| (1..=1024).contains(n)).map(|n| Threads::Count(n as usize)),
        },
        render: &|threads| match threads {
            Threads::Auto => quote("auto"),
            Threads::Count(count) => count.to_string(),
        },
    })
    .unwrap_or(Threads::Auto)
}
