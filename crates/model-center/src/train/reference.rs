//! Log-probabilities of the reference model, of all pairs, before the first step: kept in memory, and in a file of the
//! run's directory for a resume, which has other weights.

use super::batches::Batches;
use super::preference::{PairLogProbs, Reference};
use super::resume::Choice;
use super::run::Run;
use super::run_data::RunData;
use super::trainer::Trainer;
use crate::data::Batch;
use crate::file::read_text;
use crate::run::{REFERENCE_FILE, StopReason};
use crate::{Error, Result};
use bmtrain_core::Ctx;
use bmtrain_dist::param::widen;
use std::time::Instant;

/// Of the training and the evaluation data.
type StoredPairs = (PairLogProbs, PairLogProbs);

/// Two numbers of at most 16 characters for each of at most 2^32 samples.
const MAX_BYTES: u64 = 1 << 37;

impl Run<'_> {
    /// Knows the log-probabilities of the reference model, where it is not the model without its updates. A run that is
    /// resumed from `choice` reads them from the file of the run that saved it. Where there is none, they are computed
    /// from the weights that the model has: a checkpoint of step 0 is loaded before, another one after.
    /// [`Run::keep_reference`] writes the file.
    ///
    /// # Errors
    /// A file that is not of these samples; none, where the run began with weights that neither the model nor the
    /// checkpoint has.
    pub(super) fn prepare_reference(&mut self, trainer: &mut Trainer, choice: Option<&Choice>) -> Result<()> {
        let Some(preference) = &trainer.preference else { return Ok(()) };
        if matches!(preference.reference, Reference::None) {
            return Ok(());
        }
        let is_first = trainer.team.is_first();
        let config = self.config;
        let (train, eval) = (&config.setup.train, config.setup.eval.first().map(|set| &set.data));
        let own = &config.resolved.output.dir;
        let path = choice.map_or_else(|| own.clone(), Choice::run_directory).join(REFERENCE_FILE);
        let found = match choice.is_some() && is_first && path.is_file() {
            true => read_text(&path, MAX_BYTES)?,
            false => String::new(),
        };
        let found = trainer.team.first_text(&found)?;
        // With the weights of another run the model without its updates is not what training begins with.
        if found.is_empty() && !self.other_weights && matches!(preference.reference, Reference::WithoutUpdates) {
            return Ok(());
        }
        let can_compute = !self.other_weights || choice.is_none_or(|choice| choice.name.step() == 0);
        let place = path.display().to_string();
        let fix = match can_compute {
            true => "restore the file, or remove it to have the log-probabilities computed again",
            false => "restore the file, or begin the run again with --overwrite",
        };
        if found.is_empty() && !can_compute {
            let reason = "the file is missing, and the run began with the weights of another one";
            return Err(Error::data(place, reason, fix));
        }
        let parsed = parse(&found, train, eval);
        let is_of_others = parsed.is_none() && !found.is_empty();
        if is_of_others && !(can_compute && config.options.accept_change) {
            return Err(Error::data(place, "it is not of the samples of this run", fix));
        }
        let ((train, eval), note) = if let Some(stored) = parsed {
            let is_own = choice.is_some_and(|choice| choice.is_own);
            (stored, (!is_own).then(|| format!("log-probabilities of the reference model from {place}")))
        } else if let Some((stored, note)) = self.compute_reference(trainer, train, eval)? {
            let why = if is_of_others { "is of other samples" } else { "is missing" };
            (stored, Some(if choice.is_some() { format!("{note}: {place} {why}") } else { note }))
        } else {
            self.decision.stop = Some(StopReason::Request);
            return Ok(());
        };
        if let Some(note) = note.filter(|_| is_first) {
            self.display.note(&note);
            // For the log of the run, which is not open yet.
            self.first_notes.push(note);
        }
        if let Some(preference) = &mut trainer.preference {
            preference.reference = Reference::Stored { train, eval };
        }
        Ok(())
    }

    /// The log-probabilities, and a line on them; `None` where a rank is asked to stop.
    fn compute_reference(
        &self,
        trainer: &Trainer,
        train: &RunData,
        eval: Option<&RunData>,
    ) -> Result<Option<(StoredPairs, String)>> {
        let begin = Instant::now();
        let size = self.config.resolved.eval.batch_size;
        let Some(of_train) = log_probs_of_all(trainer, train, size)? else { return Ok(None) };
        let of_eval = match eval {
            Some(eval) => log_probs_of_all(trainer, eval, size)?,
            None => Some(Vec::new()),
        };
        let Some(of_eval) = of_eval else { return Ok(None) };
        let (pairs, seconds) = (of_train.len() + of_eval.len(), begin.elapsed().as_secs_f64());
        let note = format!("log-probabilities of the reference model: {pairs} pairs in {seconds:.1} s");
        Ok(Some(((of_train, of_eval), note)))
    }

    /// Writes the log-probabilities of the reference model into the run's directory, which is this run's by now.
    pub(super) fn keep_reference(&mut self, trainer: &Trainer) -> Result<()> {
        let Some(Reference::Stored { train, eval }) = trainer.preference.as_ref().map(|loss| &loss.reference) else {
            return Ok(());
        };
        let setup = &self.config.setup;
        let eval = setup.eval.first().map(|set| (&set.data, eval));
        let Some(files) = &mut self.files else { return Ok(()) };
        let text = to_text(std::iter::once((&setup.train, train)).chain(eval));
        files.output.write(REFERENCE_FILE, text.as_bytes())?;
        Ok(())
    }
}

/// Log-probabilities of the chosen and the rejected completion of every sample. `None` where a rank is asked to stop.
fn log_probs_of_all(trainer: &Trainer, data: &RunData, size: usize) -> Result<Option<PairLogProbs>> {
    let mut batches = Batches::evaluation(data, size)?;
    let mut found = vec![[f32::NAN; 2]; data.len() as usize];
    let is_stopped = || trainer.stop_conditions().is_requested();
    let of_batch = |batch: &Batch| {
        let log_probs = trainer.model.log_probs(batch, &mut Ctx::inference(&trainer.device))?; // [R]
        Ok(widen(log_probs.value())?)
    };
    let compute = |batches: &[Batch]| batches.iter().map(of_batch).collect();
    let take = |_: &Batches, batch: &Batch, numbers: &[f32]| {
        for (sample, pair) in batch.samples.iter().zip(numbers.as_chunks::<2>().0) {
            if let Some(found) = found.get_mut(*sample as usize) {
                *found = *pair;
            }
        }
        Ok(())
    };
    let context = trainer.evaluated(&is_stopped);
    let is_complete = context.each_batch(("reference model", &mut batches), |batch| batch.rows, compute, take)?;
    Ok(is_complete.then_some(found))
}

/// For each part a line with the fingerprint of its samples, and a line for each sample. Numbers read back as the same
/// bits.
fn to_text<'a>(parts: impl Iterator<Item = (&'a RunData, &'a PairLogProbs)>) -> String {
    let mut text = String::new();
    for (data, pairs) in parts {
        text += &format!("samples {}\n", data.fingerprint());
        for [chosen, rejected] in pairs {
            text += &format!("{chosen:?} {rejected:?}\n");
        }
    }
    text
}

/// What [`to_text`] wrote of these samples; `None` of any other text.
fn parse(text: &str, train: &RunData, eval: Option<&RunData>) -> Option<StoredPairs> {
    let mut lines = text.lines();
    let mut part = |data: &RunData| -> Option<PairLogProbs> {
        let fingerprint = lines.next()?.strip_prefix("samples ")?;
        if fingerprint != data.fingerprint() {
            return None;
        }
        let pair = |line: &str| {
            let (chosen, rejected) = line.split_once(' ')?;
            Some([chosen.parse().ok()?, rejected.parse().ok()?])
        };
        let pairs = lines.by_ref().take(data.len() as usize).map(pair).collect::<Option<PairLogProbs>>()?;
        (pairs.len() as u64 == data.len()).then_some(pairs)
    };
    let of_train = part(train)?;
    let of_eval = eval.map_or(Some(Vec::new()), part)?;
    lines.next().is_none().then_some((of_train, of_eval))
}
