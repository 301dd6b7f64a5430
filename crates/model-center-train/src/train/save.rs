//! The model directories of a run: written, recorded with their hashes, checked when the run goes on and before it
//! ends, and restored from a checkpoint where that holds the same weights.
//!
//! Methods of [`Run`].

use super::finetune::RunConfig;
use super::model_options::{peft_details, save_options};
use super::resume::Choice;
use super::run::Run;
use super::trainer::Trainer;
use crate::{Error, Result};
use bmtrain_dist::Error as DistError;
use bmtrain_dist::checkpoint::load_averages;
use bmtrain_dist::checkpoint::{CheckpointName, Fault, Store};
use model_center_base::file::write_atomic;
use model_center_data::write_formats;
use model_center_recipe::Resolved;
use model_center_recipe::run::console;
use model_center_recipe::run::{CARD_FILE, Damage, FileHashes, MODEL_DIRECTORY, ModelCard, OutputDirectory};
use std::path::Path;
use std::time::Instant;

const FIX: &str = "put the file back as it was, or add --accept-change to go on without the best weights";

const OTHER_FIX: &str = "put the directory and run.json back as they were, or add --accept-change to go on without the \
                         best weights";

/// Files beside the weights of a model.
#[derive(Clone, Copy, Default)]
pub(super) struct ModelContents<'a> {
    /// The step whose weights these are, if they are the best so far.
    pub(super) best_step: Option<u64>,
    pub(super) card: Option<&'a ModelCard>,
    /// The hashes that the files must have for the directory to appear.
    expected: Option<&'a FileHashes>,
}

impl<'a> ModelContents<'a> {
    pub(super) fn with(card: &'a ModelCard) -> Self {
        ModelContents { card: Some(card), ..ModelContents::default() }
    }

    pub(super) fn best(step: u64) -> Self {
        ModelContents { best_step: Some(step), ..ModelContents::default() }
    }
}

/// The state of the best weights of a run that is resumed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BestWeights {
    /// As they were written, or the run keeps none.
    Sound,
    /// Those in the directory are not this course's.
    Lost,
    /// They are damaged, and this checkpoint is of their step.
    In(CheckpointName),
}

impl Run<'_> {
    /// Write the weights, or their averages if the run keeps any, to the model directory `name`. On all ranks.
    ///
    /// # Errors
    /// Weights that are not finite; what the disk refuses; a lost rank; files other than expected, which are not kept.
    pub(super) fn save(&mut self, trainer: &Trainer, name: &str, contents: ModelContents<'_>) -> Result<()> {
        trainer.with_averages(|| self.save_present(trainer, name, contents))
    }

    /// The same of the values that the parameters have now.
    pub(super) fn save_present(&mut self, trainer: &Trainer, name: &str, contents: ModelContents<'_>) -> Result<()> {
        let _save = tracing::debug_span!("save").entered();
        let start = Instant::now();
        check_finite(trainer)?;
        let staged = match &mut self.files {
            Some(files) => {
                let staged = files.output.stage(name)?;
                write_model(self.config, trainer, staged.path())?;
                if let Some(formats) = self.config.resolved.data.source.task().text_formats() {
                    write_formats(staged.path(), &formats)?;
                }
                if let Some(pooling) = &self.config.setup.pooling {
                    pooling.write(staged.path(), trainer.model.info().hidden_size)?;
                }
                if let Some(card) = contents.card {
                    write_atomic(&staged.path().join(CARD_FILE), card.render().as_bytes())?;
                }
                Some((staged, &mut files.output))
            }
            None => {
                pass_model(&self.config.resolved, trainer)?;
                None
            }
        };
        let finish = || {
            let Some((staged, output)) = staged else { return Ok(()) };
            let hashes = FileHashes::of(staged.path())?;
            if let Some(name) = contents.expected.and_then(|expected| expected.first_difference(&hashes)) {
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
            if contents.best_step.is_none() || output.best_step() != contents.best_step {
                output.forget_model(name)?;
            }
            staged.commit()?;
            output.record_model(name, hashes, contents.best_step)
        };
        // Hashing and flushing a large model takes longer than ranks wait for each other.
        same_on_all(trainer, trainer.ranks.while_first(finish)?)?;
        self.times.save_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether the recipe asks for the best weights, and there are some.
    pub(super) fn best_step(&self) -> Option<u64> {
        self.best.best().filter(|_| self.config.resolved.save.which.keeps_best()).map(|(_, step)| step)
    }

    /// Check the best weights before resuming from `choice`, which the trainer has loaded; restore damaged ones. On all
    /// ranks. `digest` is what the checkpoint recorded of them.
    ///
    /// # Errors
    /// Damaged best weights that no checkpoint holds, and others than the checkpoint's, unless the change is accepted.
    pub(super) fn check_best(&mut self, trainer: &mut Trainer, choice: &Choice, digest: Option<&str>) -> Result<()> {
        let Some(step) = self.best_step() else { return Ok(()) };
        let output = self.files.as_mut().map(|files| &mut files.output);
        let (directory, accepts) = (self.checkpoints.as_path(), self.config.options.accept_change);
        let found = trainer.ranks.while_first(|| match output {
            Some(output) if choice.is_own && output.best_step() == Some(step) => {
                find(output, directory, (step, digest), accepts)
            }
            _ => Ok(BestWeights::Lost),
        });
        let found = same_on_all(trainer, found?)?;
        let text = trainer.ranks.first_text(&found.as_ref().map(BestWeights::to_text).unwrap_or_default())?;
        match found.map_or_else(|| BestWeights::from_text(&text), Ok)? {
            BestWeights::Sound => Ok(()),
            BestWeights::Lost => {
                self.best_is_lost = true;
                Ok(())
            }
            BestWeights::In(name) => self.restore(trainer, (&name, step), choice),
        }
    }

    /// Write the model again from the checkpoint of its step, then reload the weights that the run is resumed from.
    fn restore(&mut self, trainer: &mut Trainer, (name, step): (&CheckpointName, u64), choice: &Choice) -> Result<()> {
        let checkpoint = Store::open(&self.checkpoints)?.checkpoint(name)?;
        load_averages(&checkpoint, trainer.model.parameters())?;
        // Other settings, such as save.dtype, give other files; without them, these hashes prove that the weights are
        // the same.
        let recorded = self.files.as_ref().filter(|_| !self.config.options.accept_change);
        let recorded = recorded.and_then(|files| files.output.model(MODEL_DIRECTORY)).cloned();
        let contents = ModelContents { best_step: Some(step), card: None, expected: recorded.as_ref() };
        self.save_present(trainer, MODEL_DIRECTORY, contents)?;
        choice.load_weights(trainer)?;
        if trainer.ranks.is_first() {
            self.display.note(&format!("the best weights (step {step}) were restored from {name}"));
        }
        Ok(())
    }

    /// Before a run ends, check that the best weights, which were written long before, are undamaged. On all ranks.
    pub(super) fn recheck_best(&self, trainer: &Trainer) -> Result<()> {
        let output = self.files.as_ref().map(|files| &files.output);
        let damage =
            trainer.ranks.while_first(|| output.map_or(Ok(None), |output| output.model_damage(MODEL_DIRECTORY)))?;
        let refused = damage.map(|found| match found? {
            None => Ok(()),
            Some(damage) => Err(damage.into_error(
                "start the same command again: it restores the file if a checkpoint holds it, and else lists what can \
                 be done",
            )),
        });
        same_on_all(trainer, refused).map(drop)
    }
}

/// Refuse weights that are not finite: they are no result, and nothing is trained from them. The same on all ranks.
pub(super) fn check_finite(trainer: &Trainer) -> Result<()> {
    let parameters = trainer.model.parameters();
    let none = parameters.declared().len();
    let own = parameters.first_not_finite()?.unwrap_or(none);
    let all = trainer.ranks.gather(&[own as f32])?;
    let first = all.iter().flatten().fold(none as f32, |first, number| first.min(*number));
    let Some(param) = parameters.declared().get(first as usize) else { return Ok(()) };
    Err(Error::diverged(
        format!("step {}, {}", trainer.steps(), param.name()),
        "weights are infinite or not numbers, and are not saved",
        "lower train.lr or lengthen train.warmup, and start again, or resume an earlier checkpoint",
    ))
}

/// Write the model to a directory, or what is trained of it.
fn write_model(config: &RunConfig, trainer: &Trainer, directory: &Path) -> Result<()> {
    let RunConfig { resolved, setup, .. } = config;
    let (model, options) = (&*trainer.model, save_options(resolved, &setup.start.directory));
    match &trainer.adapter {
        None => model.save(directory, &options),
        Some(plan) if resolved.save.merged => plan.save_merged(model, directory, &options),
        Some(plan) => {
            plan.save(model, directory, &peft_details(resolved), options.companions)?;
            let (base, dtype) = (&setup.start.directory, options.dtype);
            setup.pooling.iter().try_for_each(|pooling| pooling.write_frozen_dense(base, directory, dtype))
        }
    }
}

/// Take part in the first rank's [`write_model`].
pub(crate) fn pass_model(resolved: &Resolved, trainer: &Trainer) -> Result<()> {
    match &trainer.adapter {
        None => trainer.model.pass_save(),
        Some(plan) if resolved.save.merged => plan.pass_merged(trainer.model.parameters()),
        Some(plan) => plan.pass(trainer.model.parameters()),
    }
}

/// The result of the first rank, `None` on the others. Damage that it found ends all ranks with its error: for a
/// scheduler, the loss of a rank would be a reason to restart.
fn same_on_all<T>(trainer: &Trainer, result: Option<Result<T>>) -> Result<Option<T>> {
    let text = match &result {
        Some(Err(Error::Dist(DistError::Checkpoint { fault: Fault::Damaged, place, reason, fix }))) => {
            [place.as_str(), reason, fix].join("\n")
        }
        Some(Err(_)) => return result.transpose(),
        Some(Ok(_)) | None => String::new(),
    };
    let text = trainer.ranks.first_text(&text)?;
    let parts: Vec<&str> = text.splitn(3, '\n').collect();
    match (&result, parts.as_slice()) {
        (None, [place, reason, fix]) => {
            Err(DistError::checkpoint(Fault::Damaged, *place, *reason, (*fix).to_owned()).into())
        }
        _ => result.transpose(),
    }
}

/// On the first rank: the state of the best weights, from `step` and with this digest by the checkpoint, of a run with
/// checkpoints in `directory`.
fn find(
    output: &mut OutputDirectory,
    directory: &Path,
    (step, digest): (u64, Option<&str>),
    accepts_loss: bool,
) -> Result<BestWeights> {
    let is_recorded = output.model(MODEL_DIRECTORY).is_some();
    let Some(damage) = output.model_damage(MODEL_DIRECTORY)? else {
        let path = output.path().join(MODEL_DIRECTORY);
        let hashes = match output.model(MODEL_DIRECTORY) {
            Some(recorded) => recorded.clone(),
            None => FileHashes::of(&path)?,
        };
        // Files and record of another run, which vouch for each other.
        if digest.is_some_and(|digest| digest != hashes.digest()) {
            let reason = format!("the best weights there, of step {step}, are not those that the checkpoint is beside");
            if accepts_loss {
                console::note(&format!("warning: {}: {reason}; they are given up", path.display()));
                return Ok(BestWeights::Lost);
            }
            return Err(Damage { path, reason }.into_error(OTHER_FIX));
        }
        if !is_recorded {
            console::note(
                "warning: the run is of an earlier version, which recorded no hashes of the best weights: only headers \
                 and sizes of their files were checked; they are recorded now",
            );
            output.record_model(MODEL_DIRECTORY, hashes, Some(step))?;
        }
        return Ok(BestWeights::Sound);
    };
    let damaged = format!("{}: {}", damage.path.display(), damage.reason);
    // Without a record nothing would prove that they are the same weights.
    if is_recorded && let Some(name) = checkpoint_of(directory, step)? {
        console::note(&format!("warning: the best weights are damaged: {damaged}"));
        return Ok(BestWeights::In(name));
    }
    if accepts_loss {
        console::note(&format!("warning: the best weights are damaged and given up: {damaged}"));
        return Ok(BestWeights::Lost);
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

impl BestWeights {
    /// In one text, for the other ranks.
    fn to_text(&self) -> String {
        match self {
            BestWeights::Sound => "sound".to_owned(),
            BestWeights::Lost => "lost".to_owned(),
            BestWeights::In(name) => name.to_string(),
        }
    }

    fn from_text(text: &str) -> Result<Self> {
        match text {
            "sound" => Ok(BestWeights::Sound),
            "lost" => Ok(BestWeights::Lost),
            name => name
                .parse()
                .map(BestWeights::In)
                .map_err(|_| Error::recipe("resume", "a rank sent no state of the best weights", "report this")),
        }
    }
}

/// The error for a finished run whose models are damaged.
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
        for found in [BestWeights::Sound, BestWeights::Lost, BestWeights::In(name)] {
            assert_eq!(BestWeights::from_text(&found.to_text()).expect("a text"), found);
        }
        assert!(BestWeights::from_text("").is_err());
    }
}
