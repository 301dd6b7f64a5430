//! The settings of a run on a command line: a recipe, and changes to it. Shared by the programs that take them.

use crate::cli::places::model_places;
use crate::{Error, Result};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use model_center_models::Registry;
use model_center_recipe::{Draft, Mistake, Recipe, Resolved, as_error_with, preflight};
use std::path::PathBuf;

/// The first mistake of a recipe as an error of a program without a dry run of its own.
pub fn as_error(mistakes: Vec<Mistake>) -> Error {
    as_error_with(mistakes, "`finetune --dry-run` lists all")
}

/// A recipe, and changes to it.
#[derive(Debug, Clone, Default)]
pub struct SettingOptions {
    /// The recipe file.
    pub recipe: Option<PathBuf>,
    /// The changes, written with `--set` or without, in the order of the command line: of two of one key the last one
    /// wins.
    pub sets: Vec<String>,
}

/// The options as clap collects them, which keeps the order within each kind only.
#[derive(Debug, Clone, Default, Args)]
struct Collected {
    /// Recipe in TOML; without it every setting comes from --set.
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// Change one setting, e.g. --set train.lr=3e-5; may be repeated, and the last one of a key wins.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// The same without --set: train.lr=3e-5.
    #[arg(value_name = "KEY=VALUE")]
    bare_sets: Vec<String>,
    /// Leave out tensors of the model whose names match, `*` for any characters; short for --set model.leave=[PATTERN],
    /// may be repeated.
    #[arg(long, value_name = "PATTERN")]
    leave: Vec<String>,
}

impl Args for SettingOptions {
    fn augment_args(command: Command) -> Command {
        Collected::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Collected::augment_args_for_update(command)
    }
}

impl FromArgMatches for SettingOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Collected { recipe, sets, bare_sets, leave } = Collected::from_arg_matches(matches)?;
        let places = |name: &str| matches.indices_of(name).into_iter().flatten();
        let placed = places("sets").zip(sets).chain(places("bare_sets").zip(bare_sets));
        let mut placed: Vec<(usize, String)> = placed.collect();
        placed.sort_by_key(|(place, _)| *place);
        // Strings are written in JSON as they are in TOML.
        let leave = (!leave.is_empty()).then(|| format!("model.leave={}", serde_json::json!(leave)));
        Ok(SettingOptions { recipe, sets: placed.into_iter().map(|(_, set)| set).chain(leave).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SettingOptions {
    /// The recipe with its changes, and then `more`.
    pub fn read(&self, more: &[String], registry: Registry<'_>) -> Result<Resolved, Vec<Mistake>> {
        self.draft(more, registry)?.resolved()
    }

    /// The recipe with its changes as far as it can be read.
    ///
    /// # Errors
    /// A file that cannot be read, or arguments that are no settings.
    pub fn draft(&self, more: &[String], registry: Registry<'_>) -> Result<Draft, Vec<Mistake>> {
        Recipe::draft(self.recipe.as_deref(), &[&self.sets, more].concat(), registry.own_data())
    }

    /// The recipe with its changes, and what can be seen to be wrong with the files it names.
    pub fn resolve(&self, more: &[String], registry: Registry<'_>) -> Result<Resolved, Error> {
        let resolved = self.read(more, registry).map_err(as_error)?;
        let mistakes = preflight(&resolved, &model_places());
        if mistakes.is_empty() { Ok(resolved) } else { Err(as_error(mistakes)) }
    }
}
