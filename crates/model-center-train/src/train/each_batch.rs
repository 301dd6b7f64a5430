//! The pass over all batches of an epoch that evaluations and the log-probabilities of a reference model need.
//!
//! Defines [`EvalContext::each_batch`].

use super::batches::Batches;
use super::evaluate::EvalContext;
use super::waiting::Progress;
use crate::Result;
use model_center_base::batch::{Batch, Position};

impl EvalContext<'_> {
    /// Computes numbers of every batch once, the data-parallel ranks in turn, and shows them to every rank in the order
    /// of the batches. `compute` gives the numbers of each of this rank's batches, as many at once as pipeline stages
    /// work on; `take` gets a batch and its numbers. A batch has at most `len` numbers, and zeros follow fewer. `false`
    /// where a rank is asked to stop, after some of the batches. `name` is what is computed, for notes of its progress.
    pub(super) fn each_batch(
        self,
        (name, batches): (&'static str, &mut Batches),
        len: impl Fn(&Batch) -> usize,
        mut compute: impl FnMut(&[Batch]) -> Result<Vec<Vec<f32>>>,
        mut take: impl FnMut(&Batches, &Batch, &[f32]) -> Result<()>,
    ) -> Result<bool> {
        let EvalContext { ranks, pipeline, is_stopped, .. } = self;
        let (data_ranks, count) = (ranks.data_size() as u64, batches.per_epoch());
        let mut progress = Progress::new(name);
        // As many batches of a rank are on their way as there are stages to work on them.
        let at_once = pipeline.map_or(1, |pipeline| pipeline.schedule().stages()) as u64;
        for first in (0..count).step_by(ranks.data_size() * at_once as usize) {
            if ranks.is_first() {
                progress.report(first, count);
            }
            let mut round = |first: u64| -> Result<Vec<Batch>> {
                let round = first..(first + data_ranks).min(count);
                round.map(|index| batches.batch(Position { epoch: 0, index })).collect()
            };
            let starts = (0..at_once).map(|number| first + number * data_ranks).filter(|first| *first < count);
            let rounds = starts.map(&mut round).collect::<Result<Vec<_>>>()?;
            // A rank without a batch left takes another's: where parameters are gathered, all ranks take part in a
            // forward pass. Its results are discarded.
            let mine = rounds.iter().filter_map(|round| round.get(ranks.data_rank()).or(round.last()));
            let mine = compute(&mine.cloned().collect::<Vec<_>>())?;
            for (round, mut numbers) in rounds.iter().zip(mine) {
                numbers.resize(round.iter().map(&len).max().unwrap_or(0), 0.0);
                numbers.push(f32::from(u8::from(is_stopped())));
                let all = ranks.gather(&numbers)?;
                if all.iter().any(|numbers| numbers.last() == Some(&1.0)) {
                    return Ok(false);
                }
                for (batch, numbers) in round.iter().zip(ranks.of_data_ranks(&all)) {
                    let numbers = numbers.get(..len(batch)).unwrap_or_default();
                    take(batches, batch, numbers)?;
                }
            }
        }
        Ok(true)
    }
}
