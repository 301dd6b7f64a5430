//! Recipes for a user's own data and model: what was found in them decides the settings, and each line states why.
//!
//! [`starter`] takes a [`Preset`] of [`PRESETS`] and gives a [`Starter`]: a [`Sheet`], and the files of a split where
//! there are no evaluation data. The rest of the module looks: `table` at the columns of files, `labelled`,
//! `conversations` and `pairs` at what they hold, `tokens` at token files, `model` at the model's directory, `fit` at
//! memory. `files` names the data of a recipe, and `split` divides them.
//!
//! Files are read and none is written. Called by the program `init`.

mod conversations;
mod files;
mod fit;
mod labelled;
mod matches;
mod model;
mod pairs;
mod presets;
mod split;
mod table;
mod tokens;

pub use presets::{DataKind, PRESETS, Preset, Trained, preset};

use self::fit::Load;
use self::model::FoundModel;
use crate::import::Sheet;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::ModelCaches;
use model_center_models::Registry;
use model_center_recipe::key;
use std::path::{Path, PathBuf};

/// Contents of a column that a user can name.
pub const COLUMNS: [&str; 11] = [
    "text",
    "text_pair",
    "label",
    "prompt",
    "completion",
    "messages",
    "chosen",
    "rejected",
    "anchor",
    "positive",
    "negative",
];

/// Request for a recipe.
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
    /// Columns by what they hold, one of [`COLUMNS`] each.
    pub columns: Vec<(String, String)>,
    /// Memory that the run may take, in bytes; `None` for what there is.
    pub memory: Option<u64>,
    /// The recipe's path, which names the files of a split.
    pub out: PathBuf,
    /// `key=value` settings, which come last.
    pub sets: Vec<String>,
    /// Directories to look in for models.
    pub places: ModelCaches,
}

/// A recipe, and the files that it needs.
#[derive(Debug, Clone)]
pub struct Starter {
    /// The recipe.
    pub sheet: Sheet,
    /// Files to write, with their text.
    pub files: Vec<(PathBuf, String)>,
    /// Remarks for the user besides the recipe.
    pub remarks: Vec<String>,
    /// The share of records that a run leaves out, and why.
    left_out: (f64, Vec<String>),
}

impl Starter {
    /// Adds a remark to the recipe and to what is printed.
    fn remark(&mut self, what: &str, why: String) {
        self.sheet.remark(what, why.clone());
        self.remarks.push(format!("{what}: {why}"));
    }
}

/// Makes a recipe; the registry has the families that the model may be of.
///
/// # Errors
/// No such preset or model; an output that exists, before anything is read; data that cannot be read or have no columns
/// that the preset could learn from; a model that the preset is not for.
pub fn starter(options: &StarterOptions, registry: &Registry<'_>) -> Result<Starter> {
    let preset = preset(&options.preset)?;
    refuse_existing(options, preset)?;
    let Some(first) = options.data.first() else {
        return Err(Error::argument("--data", "there are no data", "give --data FILE, such as a CSV with a header"));
    };
    let model = FoundModel::of(preset, options, registry)?;
    let names: Vec<String> = options.data.iter().map(|path| path.display().to_string()).collect();
    let source = format!("--preset {}, {} and {}", preset.name, names.join(", "), model.name);
    let mut sheet = Sheet::made_by("init", source);
    sheet.file = Some(options.out.display().to_string());
    let mut made = Starter { sheet, files: Vec::new(), remarks: Vec::new(), left_out: (0.0, Vec::new()) };
    model.write(&mut made);
    let samples = match preset.data {
        DataKind::Labelled => labelled::write(options, &model, &mut made)?,
        DataKind::Conversations => conversations::write(options, &model, &mut made)?,
        DataKind::Pairs => pairs::write(options, &model, &mut made)?,
        DataKind::Matches => matches::write(options, &model, &mut made)?,
        DataKind::Tokens => tokens::write(preset, (options, &model), &mut made)?,
    };
    preset.trained.write(&mut made.sheet);
    train(preset, (options, &model), &samples, &mut made);
    for (key, value, why) in preset.lines {
        made.sheet.raw(key, *value, *why);
    }
    let stem = |path: &Path| path.file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned());
    let run = format!("runs/{}-{}", printable(&stem(first), 80), preset.name);
    made.sheet.text(key!(output.dir), &run, "named after the data and the preset");
    made.sheet.apply(&options.sets)?;
    Ok(made)
}

/// Refuses to overwrite the recipe, or the files of a split where there may be one.
fn refuse_existing(options: &StarterOptions, preset: &Preset) -> Result<()> {
    let may_split =
        preset.data != DataKind::Tokens && options.eval.is_none() && table::evaluation_file(&options.data).is_none();
    let split = split::paths(options).into_iter().filter(|_| may_split);
    match split.chain([options.out.clone()]).find(|path| path.symlink_metadata().is_ok()) {
        None => Ok(()),
        Some(path) => {
            let reason = format!("{} exists, and nothing is overwritten", path.display());
            Err(Error::argument("--out", reason, "name another file"))
        }
    }
}

/// Amount of the training data.
struct TrainingSamples {
    /// Samples of an epoch; of token files, of the run.
    count: usize,
    /// Most tokens of one.
    length: usize,
    /// Sequences of one.
    sequences: usize,
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
    let TrainingSamples { count, length, sequences, is_run } = *samples;
    let most = count.max(1);
    let batch = preset.batch.min(1 << most.ilog2());
    let fit = fit::fit(model, preset.trained, Load { length, batch, sequences }, options.memory);
    let reason = match batch < preset.batch {
        true => format!("{} is usual, and there are {count} training samples", preset.batch),
        false => "usual for this training".to_owned(),
    };
    let sheet = &mut made.sheet;
    if is_run {
        let steps = count.div_ceil(batch).max(1) as u64;
        sheet.whole(key!(train.steps), steps, "about one pass over the training tokens");
        let interval = (steps / 10).clamp(1, 1000);
        sheet.text(key!(eval.every), &format!("{interval} steps"), "about ten times, at least every 1000 steps");
    } else {
        // Of small data each pass is short, and more of them are needed.
        let epochs = if count < 1000 { preset.epochs + 2 } else { preset.epochs };
        sheet.whole(key!(train.epochs), epochs.into(), format!("{count} training samples"));
    }
    sheet.whole(key!(train.batch_size), batch as u64, reason);
    sheet.whole(key!(train.micro_batch_size), fit.micro_batch as u64, fit.reason.clone());
    if fit.recomputes {
        let why = "without it, one sample does not fit: blocks are computed again in the backward pass";
        sheet.text(key!(train.recompute), "blocks", why);
    }
    sheet.number(key!(train.lr), (preset.lr)(model.parameters()), preset.lr_reason);
    if let Some(problem) = fit.problem {
        made.remark("memory", problem);
    }
}
