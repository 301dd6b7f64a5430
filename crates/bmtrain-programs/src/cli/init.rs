//! The init program: a user's data and model in, a commented recipe out. [`model_center_import::starter`] looks at
//! them.

use crate::cli::{places::model_places, program, terminal};
use crate::{Error, Result};
use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use model_center_base::error::ExitStatus;
use model_center_base::file::{AtomicFile, commit_together, printable, shell_word};
use model_center_import::starter::{COLUMNS, PRESETS, Starter, StarterOptions, starter};
use model_center_models::Registry;
use model_center_recipe::{Draft, Recipe, as_error};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write a recipe for your own data and model. It has the columns, classes, lengths and forms that were found in the
/// data, a split where there are no evaluation data, a batch that fits the memory and the usual learning rate; a
/// comment on each line states why. The next commands are printed.
///
/// Example: bmtrain init --preset classify --model google-bert/bert-base-uncased --data tickets.csv
#[derive(Debug, Clone, Parser)]
#[command(name = "init", version)]
pub struct Options {
    /// What to train.
    #[arg(long, value_name = "PRESET", value_parser = preset_names())]
    pub preset: String,
    /// The model: a Hugging Face directory, or the hub name of a model in its cache; by default a small one of the
    /// preset.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The training data: CSV, TSV, JSON lines or a JSON list with columns of any names; of pretrain, token files. A
    /// file named dev, valid, eval or test beside another one is evaluated on.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub data: Vec<PathBuf>,
    /// The evaluation data; by default a tenth of the training data.
    #[arg(long, value_name = "FILE")]
    pub eval: Option<PathBuf>,
    /// A column by what it holds, where it is not found by itself: text, text_pair, label, prompt, completion,
    /// messages, chosen, rejected, anchor, positive or negative; may be repeated.
    #[arg(long = "column", value_name = "WHAT=NAME")]
    pub columns: Vec<String>,
    /// Memory that the run may take, in GiB; by default all of the CUDA device, or what this machine has available.
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,
    /// Set a key of the recipe; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// The recipe, which must not exist yet. The files of a split are written beside it.
    #[arg(long, value_name = "FILE", default_value = "recipe.toml")]
    pub out: PathBuf,
}

fn preset_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PRESETS.iter().map(|preset| PossibleValue::new(preset.name).help(preset.doc)))
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program.
///
/// # Errors
/// An output that exists; a model or data that cannot be read or that the preset is not for; a recipe that `--set`
/// contradicts.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let Starter { sheet, files, remarks, .. } = starter(&asked(options)?, &registry)?;
    let recipe = sheet.to_toml();
    // What `--set` contradicts is found here rather than by the run.
    let draft = Recipe::draft_text(&options.out.display().to_string(), &recipe, &[], registry.own_data());
    let resolved = draft.and_then(Draft::resolved).map_err(as_error)?;
    let mut written = Vec::new();
    for (path, text) in &files {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            let failed = |error| Error::file("create", directory, error, "choose another place with --out");
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        written.push(AtomicFile::with(path, text.as_bytes())?);
    }
    written.push(AtomicFile::with(&options.out, recipe.as_bytes())?);
    commit_together(written)?;
    for remark in remarks {
        terminal::note(&format!("note: {remark}"));
    }
    let lines = sheet.lines().len();
    let program = sheet.trainer();
    let word = |path: &Path| shell_word(&path.display().to_string());
    let (path, run) = (word(&options.out), word(&resolved.output.dir));
    let next = format!(
        "next:\n  bmtrain {program} --recipe {path} --dry-run   # checks all of it\n  bmtrain {program} --recipe \
         {path}\n  bmtrain runs report {run}"
    );
    terminal::print(&format!("{}: {lines} settings, each with its reason\n{next}", options.out.display()))?;
    Ok(ExitStatus::Done)
}

fn asked(options: &Options) -> Result<StarterOptions> {
    let column = |text: &String| match text.split_once('=') {
        Some((what, name)) if COLUMNS.contains(&what) && !name.is_empty() => Ok((what.to_owned(), name.to_owned())),
        _ => {
            let reason = format!("\"{}\" names no column", printable(text, 60));
            let fix = format!("write WHAT=NAME, with one of {}", COLUMNS.join(", "));
            Err(Error::argument("--column", reason, fix))
        }
    };
    let memory = match options.memory {
        Some(gib) if !(gib.is_finite() && gib > 0.0 && gib < 1e6) => {
            return Err(Error::argument("--memory", format!("{gib} GiB"), "give a number above 0"));
        }
        given => given.map(|gib| (gib * f64::from(1 << 30)) as u64),
    };
    Ok(StarterOptions {
        preset: options.preset.clone(),
        model: options.model.clone(),
        data: options.data.clone(),
        eval: options.eval.clone(),
        columns: options.columns.iter().map(column).collect::<Result<_>>()?,
        memory,
        out: options.out.clone(),
        sets: options.sets.clone(),
        places: model_places(),
    })
}
