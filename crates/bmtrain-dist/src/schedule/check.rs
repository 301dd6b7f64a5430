//! Checks that hold for every schedule: it is complete, in ascending order, and free of deadlock; and how much it
//! holds.

use super::{Action, Schedule, ScheduleKind, Work};
use crate::error::{Error, Result};

impl Schedule {
    /// Shows that the schedule can be run: every stage does every part of its work exactly once, each chunk takes the
    /// micro-batches in ascending order, and all actions can run where sends never block and receives do.
    ///
    /// # Errors
    /// Names the stage and the action where one of these does not hold.
    pub fn check(&self) -> Result<()> {
        for stage in 0..self.stages {
            self.check_order(stage)?;
        }
        self.check_progress()
    }

    /// Most micro-batches whose activations a stage holds at once, counted for each chunk: from a forward pass to
    /// the end of the work that releases it. Divided by [`Schedule::chunks`] it is micro-batches of all of a stage's
    /// layers. A schedule without backward passes holds the activations of one micro-batch.
    pub fn peak_in_flight(&self, stage: usize) -> usize {
        let (mut held, mut peak) = (0_usize, 0);
        for action in self.actions(stage) {
            if action.work == Work::Forward {
                held += 1;
                peak = peak.max(held);
            }
            if action.work.releases() || self.kind == ScheduleKind::ForwardOnly {
                held = held.saturating_sub(1);
            }
        }
        peak
    }

    /// Complete and ascending.
    fn check_order(&self, stage: usize) -> Result<()> {
        let mut next = vec![[0_usize; 4]; self.chunks];
        for &action in self.actions(stage) {
            let wrong = |reason: &str| self.wrong(stage, action, reason);
            let Some(chunk) = next.get_mut(action.chunk) else { return Err(wrong("has no such chunk")) };
            if chunk[action.work as usize] != action.micro_batch {
                return Err(wrong("is not in ascending order of micro-batches"));
            }
            chunk[action.work as usize] += 1;
        }
        let m = self.micro_batches;
        let expected = match self.kind {
            ScheduleKind::ForwardOnly => [m, 0, 0, 0],
            kind if kind.splits_backward() => [m, 0, m, m],
            _ => [m, m, 0, 0],
        };
        match next.iter().position(|counts| *counts != expected) {
            None => Ok(()),
            Some(chunk) => Err(Error::setting(
                "pipeline schedule",
                format!(
                    "{}: stage {stage} runs {:?} forward passes, backward passes, input and weight gradients of chunk \
                     {chunk}, expected {expected:?}",
                    self.kind, next[chunk]
                ),
            )),
        }
    }

    /// Runs every stage as far as it gets until all are finished or none gets further.
    fn check_progress(&self) -> Result<()> {
        let mut done = vec![[false; 2]; self.places() * self.micro_batches];
        let mut positions = vec![0; self.stages];
        let at = |place: usize, action: Action| place * self.micro_batches + action.micro_batch;
        loop {
            let mut moved = false;
            for (stage, position) in positions.iter_mut().enumerate() {
                while let Some(&action) = self.actions(stage).get(*position) {
                    let place = self.place(stage, action.chunk);
                    let source = self.source(stage, action).map(|(stage, chunk)| self.place(stage, chunk));
                    let (own, backward) = (done[at(place, action)], usize::from(action.work != Work::Forward));
                    let ready = source.is_none_or(|source| done[at(source, action)][backward])
                        && (action.work == Work::Forward || own[0])
                        && (action.work != Work::WeightGradient || own[1]);
                    if !ready {
                        break;
                    }
                    if action.work != Work::WeightGradient {
                        done[at(place, action)][backward] = true;
                    }
                    *position += 1;
                    moved = true;
                }
            }
            let waiting = (0..self.stages).find(|&stage| positions[stage] < self.actions(stage).len());
            match waiting {
                None => return Ok(()),
                Some(stage) if !moved => {
                    let action = self.actions(stage)[positions[stage]];
                    return Err(self.wrong(stage, action, "waits for work that never ends: a deadlock"));
                }
                Some(_) => {}
            }
        }
    }

    fn wrong(&self, stage: usize, action: Action, reason: &str) -> Error {
        let Action { work, chunk, micro_batch } = action;
        let reason =
            format!("{}: stage {stage}, {work:?} of chunk {chunk} on micro-batch {micro_batch} {reason}", self.kind);
        Error::setting("pipeline schedule", reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Vec<Vec<Action>>)) -> String {
        let mut schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 1, 2).unwrap();
        change(&mut schedule.actions);
        schedule.check().unwrap_err().to_string()
    }

    #[test]
    fn a_schedule_that_waits_for_itself_is_a_deadlock() {
        // Stage 0 waits for the first gradient before it has sent what the last stage needs for it.
        let message = refused(|actions| {
            let gradient = actions[0].remove(2);
            actions[0].insert(0, gradient);
        });
        assert!(message.contains("stage 0, Backward") && message.contains("deadlock"), "{message}");
    }

    #[test]
    fn work_that_is_missing_out_of_order_or_of_an_unknown_chunk_is_refused() {
        let message = refused(|actions| actions[1].truncate(3));
        assert!(message.contains("stage 1 runs [2, 1, 0, 0]"), "{message}");
        let message = refused(|actions| actions[1][0].chunk = 1);
        assert!(message.contains("no such chunk"), "{message}");
        let message = refused(|actions| actions[0].swap(0, 1));
        assert!(message.contains("stage 0, Forward") && message.contains("ascending"), "{message}");
    }
}
