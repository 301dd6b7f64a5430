//! The settings of a run on a command line: a recipe, and changes to it. Shared by the programs that take them.

use crate::places::model_places;
use clap::Args;
use model_center::recipe::{Mistake, Recipe, Resolved, as_error, preflight};
use model_center::{Error, Result};
use std::path::PathBuf;

/// A recipe, and changes to it.
#[derive(Debug, Clone, Default, Args)]
pub struct SettingOptions {
    /// Recipe in TOML; without it every setting comes from --set.
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Change one setting, e.g. --set train.lr=3e-5; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// The same without --set: train.lr=3e-5.
    #[arg(value_name = "KEY=VALUE")]
    pub bare_sets: Vec<String>,
}

impl SettingOptions {
    /// The recipe with its changes, and `more` in the place of those of the same keys.
    ///
    /// # Errors
    /// Mistakes in the recipe, all of them.
    pub fn read(&self, more: &[String]) -> Result<Resolved, Vec<Mistake>> {
        let key = |set: &str| set.split('=').next().unwrap_or_default().trim().to_owned();
        // What was said twice by the user is still refused.
        let stays = |set: &&String| !more.iter().any(|other| key(other) == key(set));
        let sets: Vec<String> = self.sets.iter().chain(&self.bare_sets).filter(stays).chain(more).cloned().collect();
        Recipe::read(self.recipe.as_deref(), &sets)
    }

    /// The same, and what can be seen to be wrong with the files it names.
    ///
    /// # Errors
    /// The first mistake.
    pub fn resolve(&self, more: &[String]) -> Result<Resolved, Error> {
        let resolved = self.read(more).map_err(as_error)?;
        let mistakes = preflight(&resolved, &model_places());
        if mistakes.is_empty() { Ok(resolved) } else { Err(as_error(mistakes)) }
    }
}
