//! The model directories of a run: written, recorded with their hashes, checked when the run goes on and before it
//! ends, and restored from a checkpoint where that holds the same weights.
//!
//! Methods of [`Run`]; called by its course.

use super::course::Run;
use super::resume::Choice;
use super::setup::save_options;
use super::train::{Plan, Trainer};
use crate::terminal;
use bmtrain_dist::Error as DistError;
use bmtrain_dist::checkpoint::load_parameters;
use bmtrain_dist::checkpoint::{CheckpointName, Fault, Store};
use bmtrain_dist::param::WholeReader;
use model_center::file::write_atomic;
use model_center::recipe::{Resolved, SaveWhich};
use model_center::run::{CARD_FILE, Damage, FileHashes, MODEL_DIRECTORY, ModelCard, OutputDirectory};
use model_center::{Error, Result};
use std::path::Path;
use std::time::Instant;

const FIX: &str = "put the file back as it was, or add --accept-change to go on without the best weights";

/// What a model is written as.
#[derive(Clone, Copy, Default)]
pub(super) struct Written<'a> {
    /// The step whose weights these are, if they are the best so far.
    pub(super) best_step: Option<u64>,
    pub(super) card: Option<&'a ModelCard>,
    /// What the files have to be for the directory to appear.
    expected: Option<&'a FileHashes>,
}

impl<'a> Written<'a> {
    pub(super) fn with(card: &'a ModelCard) -> Self {
        Written { card: Some(card), ..Written::default() }
    }

    pub(super) fn best(step: u64) -> Self {
        Written { best_step: Some(step), ..Written::default() }
    }
}

/// What became of the best weights of a run that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    /// They are as they were written, or the run keeps none.
    Sound,
    /// Those in the directory are not this course's.
    Lost,
    /// They are damaged, and this checkpoint is of their step.
    In(CheckpointName),
}

impl Run {
    /// Write the present weights to the model directory `name`. On all ranks.
    ///
    /// # Errors
    /// What the disk refuses; a lost rank; files other than expected, which are not kept.
    pub(super) fn save(&mut self, trainer: &Trainer, resolved: &Resolved, name: &str, how: Written<'_>) -> Result<()> {
        let start = Instant::now();
        let staged = match &mut self.files {
            Some(files) => {
                let staged = files.output.stage(name)?;
                trainer.model.save(staged.path(), &save_options(resolved, &trainer.directory))?;
                if let Some(card) = how.card {
                    write_atomic(&staged.path().join(CARD_FILE), card.render().as_bytes())?;
                }
                Some((staged, &mut files.output))
            }
            None => {
                let mut reader = WholeReader::default();
                trainer.model.parameters().iter().try_for_each(|param| reader.pass(param))?;
                None
            }
        };
        let finish = || {
            let Some((staged, output)) = staged else { return Ok(()) };
            let hashes = staged.hashes()?;
            if let Some(name) = how.expected.and_then(|expected| expected.first_difference(&hashes)) {
                let reason = "neither the file nor the one made from the checkpoint of that step is as it was recorded";
                let path = output.path().join(MODEL_DIRECTORY).join(name);
                let fix =
                    "put the file back as it was, or add --accept-change to take what is made from that checkpoint";
                return Err(Damage { path, reason: reason.to_owned() }.into_error(fix));
            }
            // Before the record goes: flushing is what takes time, and what fails where the disk is full.
            staged.flush()?;
            // From here until the hashes are recorded, nothing vouches for what is in the directory. A restored model
            // is what the record states: it stays, so that a restoration that is cut off is made again.
            if how.best_step.is_none() || output.best_step() != how.best_step {
                output.forget_model(name)?;
            }
            staged.commit()?;
            output.record_model(name, hashes, how.best_step)
        };
        // Hashing and flushing a large model takes longer than ranks wait for each other.
        agreed(trainer, trainer.team.while_first(finish)?)?;
        self.save_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether the recipe asks for the best weights, and there are some.
    pub(super) fn best_step(&self, resolved: &Resolved) -> Option<u64> {
        self.best.best().filter(|_| resolved.save.which != SaveWhich::Last).map(|(_, step)| step)
    }

    /// See what became of the best weights before the run goes on from `choice`, which the trainer has loaded, and
    /// restore them if need be. On all ranks.
    ///
    /// # Errors
    /// Damaged best weights that no checkpoint holds, unless the change is accepted.
    pub(super) fn check_best(&mut self, plan: &Plan, trainer: &mut Trainer, choice: &Choice) -> Result<()> {
        let Some(step) = self.best_step(&plan.resolved) else { return Ok(()) };
        let output = self.files.as_mut().map(|files| &mut files.output);
        let (directory, accepts) = (self.checkpoints.as_path(), plan.options.accept_change);
        let found = trainer.team.while_first(|| match output {
            Some(output) if choice.is_own && output.best_step() == Some(step) => find(output, directory, step, accepts),
            _ => Ok(Found::Lost),
        });
        let found = agreed(trainer, found?)?;
        let text = trainer.team.first_text(&found.as_ref().map(Found::to_text).unwrap_or_default())?;
        match found.map_or_else(|| Found::from_text(&text), Ok)? {
            Found::Sound => Ok(()),
            Found::Lost => {
                self.best_is_lost = true;
                Ok(())
            }
            Found::In(name) => self.restore(plan, trainer, (&name, step), choice),
        }
    }

    /// Write the model anew from the checkpoint of its step, and load what the run goes on from again.
    fn restore(
        &mut self,
        plan: &Plan,
        trainer: &mut Trainer,
        (name, step): (&CheckpointName, u64),
        choice: &Choice,
    ) -> Result<()> {
        let checkpoint = Store::open(&self.checkpoints)?.checkpoint(name)?;
        load_parameters(&checkpoint, trainer.model.parameters())?;
        // Other settings, such as save.dtype, give other files; without them, these hashes prove that the weights are
        // the same.
        let recorded = self.files.as_ref().filter(|_| !plan.options.accept_change);
        let recorded = recorded.and_then(|files| files.output.model(MODEL_DIRECTORY)).cloned();
        let how = Written { best_step: Some(step), card: None, expected: recorded.as_ref() };
        self.save(trainer, &plan.resolved, MODEL_DIRECTORY, how)?;
        choice.load_weights(trainer)?;
        if trainer.team.is_first() {
            trainer.progress.note(&format!("the best weights, those of step {step}, were restored from {name}"));
        }
        Ok(())
    }

    /// Before a run ends, see that the best weights, which were written long before, are still what was written. On all
    /// ranks.
    ///
    /// # Errors
    /// They are not.
    pub(super) fn recheck_best(&self, trainer: &Trainer) -> Result<()> {
        let output = self.files.as_ref().map(|files| &files.output);
        let damage =
            trainer.team.while_first(|| output.map_or(Ok(None), |output| output.model_damage(MODEL_DIRECTORY)))?;
        let refused = damage.map(|found| match found? {
            None => Ok(()),
            Some(damage) => Err(damage.into_error(
                "start the same command again: it restores the file if a checkpoint holds it, and else lists what can \
                 be done",
            )),
        });
        agreed(trainer, refused).map(drop)
    }
}

/// What the first rank came to, `None` on the others. Damage that it found ends all ranks with its error: for a
/// scheduler, the loss of a rank would be a reason to start again.
fn agreed<T>(trainer: &Trainer, result: Option<Result<T>>) -> Result<Option<T>> {
    let told = match &result {
        Some(Err(Error::Dist(DistError::Checkpoint { fault: Fault::Damaged, place, reason, fix }))) => {
            [place.as_str(), reason, fix].join("\n")
        }
        Some(Err(_)) => return result.transpose(),
        Some(Ok(_)) | None => String::new(),
    };
    let told = trainer.team.first_text(&told)?;
    let parts: Vec<&str> = told.splitn(3, '\n').collect();
    match (&result, parts.as_slice()) {
        (None, [place, reason, fix]) => {
            Err(DistError::checkpoint(Fault::Damaged, *place, *reason, (*fix).to_owned()).into())
        }
        _ => result.transpose(),
    }
}

/// On the first rank: what became of the best weights, those of `step`, of a run with checkpoints in `directory`.
fn find(output: &mut OutputDirectory, directory: &Path, step: u64, accepts_loss: bool) -> Result<Found> {
    let is_recorded = output.model(MODEL_DIRECTORY).is_some();
    let Some(damage) = output.model_damage(MODEL_DIRECTORY)? else {
        if !is_recorded {
            terminal::note(
                "warning: the run is of an earlier version, which recorded no hashes of the best weights: only headers \
                 and sizes of their files were checked; they are recorded now",
            );
            let hashes = FileHashes::of(&output.path().join(MODEL_DIRECTORY))?;
            output.record_model(MODEL_DIRECTORY, hashes, Some(step))?;
        }
        return Ok(Found::Sound);
    };
    let said = format!("{}: {}", damage.path.display(), damage.reason);
    // Without a record nothing would prove that they are the same weights.
    if is_recorded && let Some(name) = checkpoint_of(directory, step)? {
        terminal::note(&format!("warning: the best weights are damaged: {said}"));
        return Ok(Found::In(name));
    }
    if accepts_loss {
        terminal::note(&format!("warning: the best weights are damaged and given up: {said}"));
        return Ok(Found::Lost);
    }
    Err(damage.into_error(FIX))
}

/// The checkpoint of this step, if there is a sound one.
fn checkpoint_of(directory: &Path, step: u64) -> Result<Option<CheckpointName>> {
    if !directory.is_dir() {
        return Ok(None);
    }
    let store = Store::open(directory)?;
    Ok(store.list()?.into_iter().find(|name| name.step() == step && store.verify(name).is_ok()))
}

impl Found {
    /// In one text, for the other ranks.
    fn to_text(&self) -> String {
        match self {
            Found::Sound => "sound".to_owned(),
            Found::Lost => "lost".to_owned(),
            Found::In(name) => name.to_string(),
        }
    }

    fn from_text(text: &str) -> Result<Self> {
        match text {
            "sound" => Ok(Found::Sound),
            "lost" => Ok(Found::Lost),
            name => name
                .parse()
                .map(Found::In)
                .map_err(|_| Error::recipe("resume", "a rank sent no state of the best weights", "report this")),
        }
    }
}

/// The error for a finished run whose models are not as they were written, if they are not.
pub(super) fn check_finished(dir: &Path, has_checkpoints: bool) -> Result<()> {
    let Some(damage) = OutputDirectory::check_models(dir)? else { return Ok(()) };
    let from_checkpoint = match has_checkpoints {
        true => format!(", write the model anew from a checkpoint with --resume {}", dir.display()),
        false => String::new(),
    };
    Err(damage.into_error(format!("put the file back as it was{from_checkpoint}, or train again with --overwrite")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_comes_back_from_its_text() {
        let name = "step-3-00aa11bb".parse().expect("a name");
        for found in [Found::Sound, Found::Lost, Found::In(name)] {
            assert_eq!(Found::from_text(&found.to_text()).expect("a text"), found);
        }
        assert!(Found::from_text("").is_err());
    }
}
