//! Log-probabilities of the reference model, of all pairs, before the first step: kept in memory, and in a file of the
//! run's directory for a resume, which has other weights.

use super::batches::Batches;
use super::preference::{PairLogProbs, Reference};
use super::run::Run;
use super::run_data::RunData;
use super::trainer::Trainer;
use super::waiting::Progress;
use crate::data::{Batch, Position};
use crate::file::read_text;
use crate::run::{REFERENCE_FILE, StopReason};
use crate::{Error, Result};
use bmtrain_core::Ctx;
use bmtrain_dist::param::widen;
use std::time::Instant;

/// Two numbers of at most 16 characters for each of at most 2^32 samples.
const MAX_BYTES: u64 = 1 << 37;

impl Run<'_> {
    /// Knows the log-probabilities of the reference model, where it is not the model without its updates: from the file
    /// of the run if it `resumes`, else from the model as it is. Before a checkpoint is loaded; the file is written by
    /// [`Run::keep_reference`].
    ///
    /// # Errors
    /// A file that is not of these samples; none, where the run began with weights that are not the model's own.
    pub(super) fn prepare_reference(&mut self, trainer: &mut Trainer, resumes: bool) -> Result<()> {
        let Some(preference) = &trainer.preference else { return Ok(()) };
        if matches!(preference.reference, Reference::None) {
            return Ok(());
        }
        let config = self.config;
        let (train, eval) = (&config.setup.train, config.setup.eval.first().map(|set| &set.data));
        let path = config.resolved.output.dir.join(REFERENCE_FILE);
        let found = match resumes && trainer.team.is_first() && path.is_file() {
            true => read_text(&path, MAX_BYTES)?,
            false => String::new(),
        };
        let found = trainer.team.first_text(&found)?;
        // With the weights of another run the model without its updates is not what training begins with.
        let begins_new = found.is_empty() && config.options.init_from.is_none();
        if begins_new && matches!(preference.reference, Reference::WithoutUpdates) {
            return Ok(());
        }
        let stored = if !found.is_empty() {
            Some(parse(&found, train, eval).ok_or_else(|| {
                let fix = "restore the file, or begin the run again with --overwrite";
                Error::data(path.display().to_string(), "it is not of the samples of this run", fix)
            })?)
        } else if resumes && config.options.init_from.is_some() {
            let reason = "the file is missing, and the run began with the weights of another one";
            return Err(Error::data(path.display().to_string(), reason, "restore it, or begin again with --overwrite"));
        } else {
            self.compute_reference(trainer, train, eval)?
        };
        let Some((train, eval)) = stored else {
            self.decision.stop = Some(StopReason::Request);
            return Ok(());
        };
        if let Some(preference) = &mut trainer.preference {
            preference.reference = Reference::Stored { train, eval };
        }
        Ok(())
    }

    /// `None` where a rank is asked to stop.
    fn compute_reference(
        &mut self,
        trainer: &Trainer,
        train: &RunData,
        eval: Option<&RunData>,
    ) -> Result<Option<(PairLogProbs, PairLogProbs)>> {
        let begin = Instant::now();
        let size = self.config.resolved.eval.batch_size;
        let Some(of_train) = log_probs_of_all(trainer, train, size)? else { return Ok(None) };
        let of_eval = match eval {
            Some(eval) => log_probs_of_all(trainer, eval, size)?,
            None => Some(Vec::new()),
        };
        let Some(of_eval) = of_eval else { return Ok(None) };
        if trainer.team.is_first() {
            let (pairs, seconds) = (of_train.len() + of_eval.len(), begin.elapsed().as_secs_f64());
            let note = format!("log-probabilities of the reference model: {pairs} pairs in {seconds:.1} s");
            self.display.note(&note);
            // For the log of the run, which is not open yet.
            self.first_notes.push(note);
        }
        Ok(Some((of_train, of_eval)))
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

/// Log-probabilities of the chosen and the rejected completion of every sample; data-parallel ranks take batches in
/// turn. `None` where a rank is asked to stop.
fn log_probs_of_all(trainer: &Trainer, data: &RunData, size: usize) -> Result<Option<PairLogProbs>> {
    let mut batches = Batches::evaluation(data, size)?;
    let (team, ranks, count) = (&trainer.team, trainer.team.data_size() as u64, batches.per_epoch());
    let mut found = vec![[0.0; 2]; data.len() as usize];
    let mut progress = Progress::new("reference model");
    for first in (0..count).step_by(ranks as usize) {
        if team.is_first() {
            progress.report(first, count);
        }
        let round = (first..(first + ranks).min(count)).map(|index| batches.batch(Position { epoch: 0, index }));
        let round = round.collect::<Result<Vec<Batch>>>()?;
        // A rank without a batch left takes another's: parameters are gathered from all ranks.
        let Some(mine) = round.get(team.data_rank()).or(round.last()) else { continue };
        let log_probs = trainer.model.log_probs(mine, &mut Ctx::inference(&trainer.device))?; // [R]
        let mut numbers = widen(log_probs.value())?;
        numbers.resize(2 * size, 0.0);
        numbers.push(f32::from(u8::from(trainer.stop_conditions().is_requested())));
        let all = team.gather(&numbers)?;
        if all.iter().any(|numbers| numbers.last() == Some(&1.0)) {
            return Ok(None);
        }
        for (batch, numbers) in round.iter().zip(team.of_data_ranks(&all)) {
            for (sample, pair) in batch.samples.iter().zip(numbers.as_chunks::<2>().0) {
                if let Some(found) = found.get_mut(*sample as usize) {
                    *found = *pair;
                }
            }
        }
    }
    Ok(Some(found))
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
fn parse(text: &str, train: &RunData, eval: Option<&RunData>) -> Option<(PairLogProbs, PairLogProbs)> {
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
