//! Log-probabilities of the reference model, of all pairs, before the first step: kept in memory, and in a file of the
//! run's directory for a resume, which has other weights.

use super::batches::Batches;
use super::objective::{PairLogProbs, Reference};
use super::resume::Choice;
use super::run::Run;
use super::run_data::RunData;
use super::trainer::Trainer;
use crate::{Error, Result};
use bmtrain_core::Ctx;
use bmtrain_dist::checkpoint::ContentHash;
use bmtrain_dist::param::widen;
use model_center_base::batch::Batch;
use model_center_base::file::read_text;
use model_center_models::preference::log_probs;
use model_center_recipe::run::{REFERENCE_FILE, StopReason};
use std::fmt;
use std::time::Instant;

/// Log-probabilities of the training and the evaluation data.
type StoredPairs = (PairLogProbs, PairLogProbs);

/// Two numbers of at most 16 characters for each of at most 2^32 samples.
const MAX_BYTES: u64 = 1 << 37;

/// Beginning of the file, before its hash; earlier versions wrote none.
const HASH: &str = "blake3 ";

/// Replacement of a file that is not text.
const NOT_TEXT: &str = "\0";

/// Usable contents of a file.
#[derive(Debug, PartialEq)]
struct Stored {
    pairs: StoredPairs,
    /// Whether it vouches for its numbers.
    has_hash: bool,
}

/// Why there are no stored log-probabilities to use.
#[derive(Debug, PartialEq)]
enum Unusable {
    Missing,
    OtherSamples,
    Damaged(&'static str),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Missing => f.write_str("is missing"),
            Unusable::OtherSamples => f.write_str("is not of the samples of this run"),
            Unusable::Damaged(what) => write!(f, "is damaged: {what}"),
        }
    }
}

impl Run<'_> {
    /// Knows the log-probabilities of the reference model, where it is not the model without its updates. A run that is
    /// resumed from `choice` reads them from the file of the run that saved it. Where there is none, they are computed
    /// from the weights that the model has: a checkpoint of step 0 is loaded before, another one after.
    /// [`Run::keep_reference`] writes the file, with a hash if its run `writes_hashes`, as earlier versions did not.
    ///
    /// # Errors
    /// A file that is not of these samples; none, where the run began with weights that neither the model nor the
    /// checkpoint has.
    pub(super) fn prepare_reference(
        &mut self,
        trainer: &mut Trainer,
        (choice, writes_hashes): (Option<&Choice>, bool),
    ) -> Result<()> {
        let Some(reference) = trainer.objective.reference() else { return Ok(()) };
        let without_updates = match reference {
            Reference::None => return Ok(()),
            Reference::WithoutUpdates => true,
            Reference::Pending | Reference::Stored { .. } => false,
        };
        let is_first = trainer.ranks.is_first();
        let config = self.config;
        let (train, eval) = (&config.setup.train, config.setup.eval.first().map(|set| &set.data));
        let own = &config.resolved.output.dir;
        let path = choice.map_or_else(|| own.clone(), Choice::run_directory).join(REFERENCE_FILE);
        let found = match choice.is_some() && is_first && path.is_file() {
            true => read_text(&path, MAX_BYTES).or_else(|error| match error {
                // Not text, as only damage makes it.
                Error::Model { .. } => Ok(NOT_TEXT.to_owned()),
                other => Err(other),
            })?,
            false => String::new(),
        };
        let found = trainer.ranks.first_text(&found)?;
        // With the weights of another run the model without its updates is not what training begins with.
        if found.is_empty() && !self.other_weights && without_updates {
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
        let of = |data: &RunData| (data.fingerprint().to_owned(), data.len());
        let parsed = match found.is_empty() {
            true => Err(Unusable::Missing),
            false => parse(&found, &of(train), eval.map(of).as_ref()),
        };
        let parsed = match parsed {
            // Its run writes hashes: a file without one was edited.
            Ok(Stored { has_hash: false, .. }) if writes_hashes => Err(Unusable::Damaged("it has no hash")),
            other => other,
        };
        let is_accepted = |unusable: &Unusable| match unusable {
            Unusable::Missing => true,
            // The file is a cache: what cannot be believed is computed again.
            Unusable::Damaged(_) => can_compute,
            Unusable::OtherSamples => can_compute && config.options.accept_change,
        };
        if let Err(unusable) = &parsed
            && !is_accepted(unusable)
        {
            return Err(Error::data(place, format!("it {unusable}"), fix));
        }
        let ((train, eval), note) = if let Ok(Stored { pairs, has_hash }) = parsed {
            let is_own = choice.is_some_and(|choice| choice.is_own);
            let unknown = "of an earlier version, which recorded no hash of them";
            let note = match (is_own, has_hash) {
                (_, false) => Some(format!("log-probabilities of the reference model from {place}, {unknown}")),
                (false, true) => Some(format!("log-probabilities of the reference model from {place}")),
                (true, true) => None,
            };
            (pairs, note)
        } else if let Some((stored, note)) = self.compute_reference(trainer, train, eval)? {
            let why = parsed.err().filter(|_| choice.is_some());
            (stored, Some(why.map_or_else(|| note.clone(), |why| format!("{note}: {place} {why}"))))
        } else {
            self.decision.stop = Some(StopReason::Request);
            return Ok(());
        };
        note.into_iter().for_each(|note| self.note_first(note));
        if let Some(reference) = trainer.objective.reference() {
            *reference = Reference::Stored { train, eval };
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
        for (part, pairs) in [("training", &of_train), ("evaluation", &of_eval)] {
            if let Some(sample) = pairs.iter().position(|pair| !pair.iter().all(|number| number.is_finite())) {
                return Err(Error::Diverged {
                    place: format!("reference model, sample {sample} of the {part} data"),
                    reason: "the log-probabilities of its completions are not finite".to_owned(),
                    fix: "check the weights of the model, and that its dtype can hold what it computes".to_owned(),
                });
            }
        }
        let (pairs, seconds) = (of_train.len() + of_eval.len(), begin.elapsed().as_secs_f64());
        let note = format!("log-probabilities of the reference model: {pairs} pairs in {seconds:.1} s");
        Ok(Some(((of_train, of_eval), note)))
    }

    /// Writes the log-probabilities of the reference model into the run's directory, which is this run's by now.
    pub(super) fn keep_reference(&mut self, trainer: &mut Trainer) -> Result<()> {
        let Some(Reference::Stored { train, eval }) = trainer.objective.reference() else { return Ok(()) };
        let setup = &self.config.setup;
        let eval = setup.eval.first().map(|set| (set.data.fingerprint(), &*eval));
        let Some(files) = &mut self.files else { return Ok(()) };
        let text = to_text(std::iter::once((setup.train.fingerprint(), &*train)).chain(eval));
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
        let log_probs = log_probs(&*trainer.model, batch, &mut Ctx::inference(&trainer.device))?; // [R]
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

/// A line with the hash of all that follows; for each part a line with the fingerprint of its samples, and a line for
/// each sample. Numbers read back as the same bits.
fn to_text<'a>(parts: impl Iterator<Item = (&'a str, &'a PairLogProbs)>) -> String {
    let mut text = String::new();
    for (fingerprint, pairs) in parts {
        text += &format!("samples {fingerprint}\n");
        for [chosen, rejected] in pairs {
            text += &format!("{chosen:?} {rejected:?}\n");
        }
    }
    format!("{HASH}{}\n{text}", ContentHash::of(text.as_bytes()))
}

/// The fingerprint of samples, and their number.
type OfSamples = (String, u64);

/// Parses the output of [`to_text`] for these samples.
fn parse(text: &str, train: &OfSamples, eval: Option<&OfSamples>) -> Result<Stored, Unusable> {
    if text == NOT_TEXT {
        return Err(Unusable::Damaged("it is not text"));
    }
    let (body, has_hash) = match text.strip_prefix(HASH).and_then(|rest| rest.split_once('\n')) {
        Some((hash, body)) if ContentHash::parse(hash) == Some(ContentHash::of(body.as_bytes())) => (body, true),
        Some(_) => return Err(Unusable::Damaged("its hash differs")),
        None => (text, false),
    };
    let mut lines = body.lines();
    let mut part = |(samples, count): &OfSamples| {
        let line = lines.next().and_then(|line| line.strip_prefix("samples "));
        let fingerprint = line.ok_or(Unusable::Damaged("a line is missing"))?;
        if fingerprint != samples {
            return Err(Unusable::OtherSamples);
        }
        let pairs = lines.by_ref().take(*count as usize).map(pair).collect::<Option<PairLogProbs>>();
        let pairs = pairs.ok_or(Unusable::Damaged("a line is not two finite numbers"))?;
        if pairs.len() as u64 == *count { Ok(pairs) } else { Err(Unusable::Damaged("lines are missing")) }
    };
    let pairs = (part(train)?, eval.map_or(Ok(Vec::new()), part)?);
    if lines.next().is_some() {
        return Err(Unusable::OtherSamples);
    }
    Ok(Stored { pairs, has_hash })
}

/// The numbers of a line.
fn pair(line: &str) -> Option<[f32; 2]> {
    let (chosen, rejected) = line.split_once(' ')?;
    let pair: [f32; 2] = [chosen.parse().ok()?, rejected.parse().ok()?];
    pair.iter().all(|number| number.is_finite()).then_some(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_numbers_come_back_and_damaged_ones_are_never_believed() {
        let (train, eval) = (vec![[-1.5, -2.25e-7], [-3.0, -0.1]], vec![[-4.0, -5.0]]);
        let text = to_text([("a", &train), ("b", &eval)].into_iter());
        let of = |name: &str, count| (name.to_owned(), count);
        let read = |text: &str| parse(text, &of("a", 2), Some(&of("b", 1)));
        assert_eq!(read(&text), Ok(Stored { pairs: (train.clone(), eval.clone()), has_hash: true }));
        // Every byte counts.
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(matches!(read(std::str::from_utf8(&bytes).unwrap()), Err(Unusable::Damaged(_))), "byte {at}");
            assert!(matches!(read(&text[..at]), Err(Unusable::Damaged(_))), "cut at {at}");
        }
        assert_eq!(parse(&text, &of("c", 2), Some(&of("b", 1))), Err(Unusable::OtherSamples));
        assert_eq!(parse(&text, &of("a", 2), None), Err(Unusable::OtherSamples));
        // Earlier versions wrote no hash.
        let (_, old) = text.split_once('\n').unwrap();
        assert_eq!(read(old), Ok(Stored { pairs: (train, eval), has_hash: false }));
        for wrong in ["NaN", "inf", "x"] {
            let damaged = Unusable::Damaged("a line is not two finite numbers");
            assert_eq!(read(&old.replace("-0.1", wrong)), Err(damaged));
        }
    }
}
