//! Recipes for a user's own data and model: what was found in them decides the settings, and each line states why.
//!
//! [`starter`] takes a [`Preset`] of [`PRESETS`] and gives a [`Starter`]: a [`Sheet`], and the files of a split where
//! there are no evaluation data. The rest of the module looks: `table` at the columns of files, `labelled` and
//! `conversations` at what they hold, `tokens` at token files, `model` at the model's directory, `fit` at memory.
//!
//! Files are read and none is written. Called by the program `init`.

mod conversations;
mod fit;
mod labelled;
mod model;
mod split;
mod table;
mod tokens;

use self::model::FoundModel;
use crate::file::printable;
use crate::formats::ModelCaches;
use crate::import::Sheet;
use crate::import::keys;
use crate::recipe::suggest::closest;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// What a preset reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataKind {
    /// Texts with a class or a number.
    Labelled,
    /// Conversations, prompts with completions, or texts.
    Conversations,
    /// Token files.
    Tokens,
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trained {
    /// The whole model.
    Model,
    /// Low-rank updates of this rank; the model is frozen.
    LowRank(usize),
}

/// A kind of training that a recipe is made for. One more is one more line of [`PRESETS`].
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it trains, in a sentence.
    pub doc: &'static str,
    /// The data it reads.
    pub data: DataKind,
    /// The model where none is named.
    pub model: &'static str,
    /// What is trained.
    pub trained: Trained,
    /// Samples of a step, where so large a batch fits and the data have it.
    pub batch: usize,
    /// Passes over the training data; 0 where the number of steps decides.
    pub epochs: u32,
    /// The learning rate of a number of parameters.
    pub lr: fn(f64) -> f64,
    /// Where the learning rate is from.
    pub lr_reason: &'static str,
    /// Further lines: key, TOML value, reason.
    pub lines: &'static [(&'static str, &'static str, &'static str)],
}

/// The presets by name.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "classify",
        doc: "a classifier of texts or pairs of texts, or a regression",
        data: DataKind::Labelled,
        model: "google-bert/bert-base-uncased",
        trained: Trained::Model,
        batch: 32,
        epochs: 3,
        lr: whole_model_rate,
        lr_reason: "usual for a pretrained model of this size; larger models take less",
        lines: &[
            ("train.schedule", "\"linear\"", "falls to 0 at the end of the run"),
            ("train.warmup", "0.06", "the first 6 % of the steps"),
        ],
    },
    Preset {
        name: "sft",
        doc: "supervised fine-tuning of a whole language model on conversations, instructions or texts",
        data: DataKind::Conversations,
        model: "HuggingFaceTB/SmolLM2-135M-Instruct",
        trained: Trained::Model,
        batch: 16,
        epochs: 2,
        lr: whole_model_rate,
        lr_reason: "usual for a whole pretrained model of this size; larger models take less",
        lines: &[
            ("train.schedule", "\"cosine\"", "falls to 0 at the end of the run"),
            ("train.warmup", "0.03", "the first 3 % of the steps"),
        ],
    },
    Preset {
        name: "lora",
        doc: "the same with low-rank updates of a frozen model, which takes far less memory",
        data: DataKind::Conversations,
        model: "HuggingFaceTB/SmolLM2-135M-Instruct",
        trained: Trained::LowRank(16),
        batch: 16,
        epochs: 2,
        lr: |_| 2e-4,
        lr_reason: "updates that begin at 0 take about ten times the learning rate of a whole model",
        lines: &[
            ("adapter.method", "\"lora\"", "the model is frozen, and updates of its linear layers are trained"),
            ("adapter.rank", "16", "larger ranks learn more and take more memory"),
            ("adapter.alpha", "32", "twice the rank is usual"),
            ("train.schedule", "\"cosine\"", "falls to 0 at the end of the run"),
            ("train.warmup", "0.03", "the first 3 % of the steps"),
        ],
    },
    Preset {
        name: "pretrain",
        doc: "a decoder from random initialization on token files",
        data: DataKind::Tokens,
        model: "openai-community/gpt2",
        trained: Trained::Model,
        batch: 64,
        epochs: 0,
        lr: pretraining_rate,
        lr_reason: "GPT-3's for models of this size",
        lines: &[
            ("train.schedule", "\"cosine\"", "as GPT-3"),
            ("train.final_lr_ratio", "0.1", "as GPT-3: a tenth of the learning rate at the end"),
            ("train.warmup", "0.01", "the first 1 % of the steps"),
            ("train.weight_decay", "0.1", "as GPT-3"),
            ("train.betas", "[0.9, 0.95]", "as GPT-3"),
        ],
    },
];

/// Learning rates of whole pretrained models, by parameters.
fn whole_model_rate(parameters: f64) -> f64 {
    match parameters {
        p if p < 5e6 => 5e-4,
        p if p < 5e7 => 5e-5,
        p if p < 1e9 => 2e-5,
        _ => 1e-5,
    }
}

/// Learning rates of pretraining, by parameters: table 2.1 of the GPT-3 paper.
fn pretraining_rate(parameters: f64) -> f64 {
    match parameters {
        p if p < 2e8 => 6e-4,
        p if p < 5e8 => 3e-4,
        p if p < 1e9 => 2.5e-4,
        p if p < 2e9 => 2e-4,
        p if p < 4e9 => 1.6e-4,
        _ => 1.2e-4,
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct StarterOptions {
    /// The preset's name.
    pub preset: String,
    /// The model: a directory, or the hub's name; `None` for the preset's.
    pub model: Option<String>,
    /// The training data.
    pub data: Vec<PathBuf>,
    /// The evaluation data; `None` for a part of the training data.
    pub eval: Option<PathBuf>,
    /// Columns by what they hold: `text`, `text_pair`, `label`, `prompt`, `completion`, `messages`.
    pub columns: Vec<(String, String)>,
    /// Memory that the run may take, in bytes; `None` for what there is.
    pub memory: Option<u64>,
    /// The recipe's path, which names the files of a split and the run.
    pub out: PathBuf,
    /// `key=value` settings, which come last.
    pub sets: Vec<String>,
    /// Where models are looked for.
    pub places: ModelCaches,
}

/// A recipe, and the files that it needs.
#[derive(Debug, Clone)]
pub struct Starter {
    /// The recipe.
    pub sheet: Sheet,
    /// Files to write, with their text.
    pub files: Vec<(PathBuf, String)>,
    /// What the user should know beside the recipe.
    pub remarks: Vec<String>,
}

impl Starter {
    /// Adds a remark to the recipe and to what is printed.
    fn remark(&mut self, what: &str, why: String) {
        self.sheet.remark(what, why.clone());
        self.remarks.push(format!("{what}: {why}"));
    }
}

/// The preset of a name.
///
/// # Errors
/// An unknown name, with the closest one.
pub fn preset(name: &str) -> Result<&'static Preset> {
    let found = PRESETS.iter().find(|preset| preset.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        let fix = match closest(name, names.iter().copied()) {
            Some(near) => format!("did you mean {near}? presets: {}", names.join(", ")),
            None => format!("choose one of {}", names.join(", ")),
        };
        Error::argument("--preset", format!("unknown preset \"{}\"", printable(name, 60)), fix)
    })
}

/// Makes a recipe.
///
/// # Errors
/// No such preset or model; data that cannot be read or have no columns that the preset could learn from; a model that
/// the preset is not for.
pub fn starter(options: &StarterOptions) -> Result<Starter> {
    let preset = preset(&options.preset)?;
    let Some(first) = options.data.first() else {
        return Err(Error::argument("--data", "there are no data", "give --data FILE, such as a CSV with a header"));
    };
    let model = FoundModel::of(preset, options)?;
    let names: Vec<String> = options.data.iter().map(|path| path.display().to_string()).collect();
    let source = format!("--preset {}, {} and {}", preset.name, names.join(", "), model.name);
    let mut sheet = Sheet::made_by("init", source);
    sheet.file = Some(options.out.display().to_string());
    let mut made = Starter { sheet, files: Vec::new(), remarks: Vec::new() };
    model.write(&mut made);
    let samples = match preset.data {
        DataKind::Labelled => labelled::write(options, &model, &mut made)?,
        DataKind::Conversations => conversations::write(options, &model, &mut made)?,
        DataKind::Tokens => tokens::write(options, &model, &mut made)?,
    };
    train(preset, (options, &model), &samples, &mut made);
    for (key, value, why) in preset.lines {
        made.sheet.raw(key, *value, *why);
    }
    let stem = |path: &Path| path.file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned());
    let run = format!("runs/{}-{}", printable(&stem(first), 80), preset.name);
    made.sheet.text(keys::OUTPUT, &run, "named after the data and the preset");
    made.sheet.apply(&options.sets)?;
    Ok(made)
}

/// What the training data amount to.
struct TrainingSamples {
    /// Samples of an epoch; of token files, of the run.
    count: usize,
    /// Most tokens of one.
    length: usize,
    /// Whether `count` is of the whole run.
    is_run: bool,
}

/// Length, batch and learning rate.
fn train(
    preset: &Preset,
    (options, model): (&StarterOptions, &FoundModel),
    samples: &TrainingSamples,
    made: &mut Starter,
) {
    let TrainingSamples { count, length, is_run } = *samples;
    let most = count.max(1);
    let batch = preset.batch.min(1 << most.ilog2());
    let fit = fit::fit(model, preset.trained, (length, batch), options.memory);
    let reason = match batch < preset.batch {
        true => format!("{} is usual, and there are {count} training samples", preset.batch),
        false => "usual for this training".to_owned(),
    };
    let sheet = &mut made.sheet;
    if is_run {
        let steps = count.div_ceil(batch).max(1) as u64;
        sheet.whole(keys::STEPS, steps, "about one pass over the training tokens");
        let interval = (steps / 10).clamp(1, 1000);
        sheet.text(keys::EVAL_EVERY, &format!("{interval} steps"), "about ten times, at least every 1000 steps");
    } else {
        // Of small data each pass is short, and more of them are needed.
        let epochs = if count < 1000 { preset.epochs + 2 } else { preset.epochs };
        sheet.whole(keys::EPOCHS, epochs.into(), format!("{count} training samples"));
    }
    sheet.whole(keys::BATCH, batch as u64, reason);
    sheet.whole(keys::MICRO_BATCH, fit.micro_batch as u64, fit.reason.clone());
    if fit.recomputes {
        let why = "without it, one sample does not fit: blocks are computed again in the backward pass";
        sheet.text(keys::RECOMPUTE, "blocks", why);
    }
    sheet.number(keys::LR, (preset.lr)(model.parameters()), preset.lr_reason);
    if let Some(problem) = fit.problem {
        made.remark("memory", problem);
    }
}
