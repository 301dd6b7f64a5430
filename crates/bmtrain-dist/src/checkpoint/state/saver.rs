//! All ranks save together while they train: copy, write, report, commit, without a wait for the disk.

use super::snapshot::Snapshot;
use crate::checkpoint::disk::{
    Committed, Facts, Fault, FileRecord, Keep, SaveJob, SaveOutcome, SaveThread, Store, TensorPiece, Writer,
};
use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::optim::OptimManager;
use crate::param::Parameters;
use bmtrain_core::Device;
use std::time::Duration;

/// Wait for the disk before a rank reports to the others that it is alive.
const PATIENCE: Duration = Duration::from_millis(100);

/// Outcome of a save; on all ranks the same.
#[derive(Debug)]
pub enum SaveEvent {
    /// It is committed. The name is known to the first rank.
    Saved {
        /// The step.
        step: u64,
        /// The checkpoint, on the first rank.
        committed: Option<Committed>,
    },
    /// It failed; the checkpoints before it are as they were.
    Failed {
        /// The step.
        step: u64,
        /// The first failure of any rank.
        error: Error,
    },
}

/// The stage of a save. All ranks are in the same one.
#[derive(Debug)]
enum Stage {
    Idle,
    Copying { snapshot: Snapshot, facts: Facts, step: u64 },
    Writing { writer: Option<Writer>, facts: Facts, step: u64 },
    Committing { step: u64 },
}

/// Saves checkpoints in the background. Every rank has one and makes the same calls between the same steps.
#[derive(Debug)]
pub struct Saver {
    store: Store,
    group: ControlGroup,
    thread: SaveThread,
    keep: Keep,
    stage: Stage,
    buffers: Vec<TensorPiece>,
    /// The result of this rank's part of the stage.
    outcome: Option<Result<Reported>>,
    attempts: u64,
    optimizer_state: bool,
}

#[derive(Debug)]
enum Reported {
    File(FileRecord),
    Committed(Committed),
}

impl Saver {
    /// A saver into a directory that all ranks see, keeping the newest `keep` checkpoints there. `group` is of all
    /// ranks that hold parts of the model: data-parallel and tensor-parallel ones. No other process saves there, and
    /// leftovers of earlier ones are removed already.
    pub fn new(store: Store, group: ControlGroup, keep: usize) -> Result<Self> {
        let thread = SaveThread::start(&format!("save-{}", group.rank()))?;
        let keep = Keep::from(keep);
        Ok(Saver {
            store,
            group,
            thread,
            keep,
            stage: Stage::Idle,
            buffers: Vec::new(),
            outcome: None,
            attempts: 0,
            optimizer_state: true,
        })
    }

    /// The same, leaving moments and master weights out of its checkpoints unless `is_saved`. What it leaves out, the
    /// [`TrainingState`](super::TrainingState) of these checkpoints has to be without as well.
    #[must_use]
    pub fn with_optimizer_state(self, is_saved: bool) -> Self {
        Saver { optimizer_state: is_saved, ..self }
    }

    /// Store to which it saves.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// From the next commit on, keep the checkpoint of `step` in addition to the newest ones. The first rank decides.
    pub fn keep_step(&mut self, step: Option<u64>) {
        self.keep.step = step;
    }

    /// Whether nothing is being saved.
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Begin to save the training state after `step` steps. Waits for a save in progress and returns its result.
    /// `facts.world` is set here.
    pub fn begin(
        &mut self,
        device: &Device,
        step: u64,
        facts: Facts,
        params: &Parameters,
        optim: &OptimManager,
    ) -> Result<Option<SaveEvent>> {
        let before = self.finish()?;
        let optim = self.optimizer_state.then_some(optim);
        let snapshot = Snapshot::begin(device, params, optim, std::mem::take(&mut self.buffers))?;
        let facts = Facts { world: self.group.size() as u64, ..facts };
        self.stage = Stage::Copying { snapshot, facts, step };
        Ok(before)
    }

    /// Go on with the save as far as possible without waiting for a disk. Called between steps; does nothing while
    /// nothing is being saved.
    pub fn advance(&mut self) -> Result<Option<SaveEvent>> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Idle => Ok(None),
            Stage::Copying { snapshot, facts, step } => {
                self.write(snapshot.finish()?, facts, step)?;
                Ok(None)
            }
            Stage::Writing { writer, facts, step } => self.report(writer, facts, step),
            Stage::Committing { step } => self.conclude(step),
        }
    }

    /// Wait until nothing is being saved.
    pub fn finish(&mut self) -> Result<Option<SaveEvent>> {
        while !self.is_idle() {
            if let Some(event) = self.advance()? {
                return Ok(Some(event));
            }
            if self.outcome.is_none() {
                match self.thread.wait(PATIENCE) {
                    Err(Error::Checkpoint { fault: Fault::Deadline, .. }) => {}
                    other => self.note(other?),
                }
            }
        }
        Ok(None)
    }

    fn write(&mut self, pieces: Vec<TensorPiece>, facts: Facts, step: u64) -> Result<()> {
        self.attempts += 1;
        let writer = match Writer::begin(&self.store, step, &self.attempts.to_string()) {
            Ok(writer) => {
                self.thread.submit(SaveJob::Shard { writer: writer.clone(), rank: self.group.rank(), pieces })?;
                Some(writer)
            }
            Err(error) => {
                self.buffers = pieces;
                self.outcome = Some(Err(error));
                None
            }
        };
        self.stage = Stage::Writing { writer, facts, step };
        Ok(())
    }

    /// Sends the records of all ranks' files, once they are written, to the first rank, which commits.
    fn report(&mut self, writer: Option<Writer>, facts: Facts, step: u64) -> Result<Option<SaveEvent>> {
        let Some(reports) = self.all_outcomes()? else {
            self.stage = Stage::Writing { writer, facts, step };
            return Ok(None);
        };
        let failed = reports.iter().find_map(|report| report.strip_prefix(FAILED));
        if let Some(text) = failed {
            let error = self.take_error(text);
            // The first rank may have failed before it opened the directory, which another has made.
            let has_writer = self.group.gather(&[f32::from(u8::from(writer.is_some()))])?;
            let first = has_writer.iter().position(|has| has.first() == Some(&1.0));
            if let Some(writer) = writer.filter(|_| first == Some(self.group.rank())) {
                writer.abandon();
            }
            return Ok(Some(SaveEvent::Failed { step, error }));
        }
        if let Some(writer) = writer.filter(|_| self.group.is_first()) {
            let records = reports.iter().map(|report| FileRecord::from_json(report.as_bytes()));
            let records = records.collect::<Result<Vec<_>>>()?;
            self.thread.submit(SaveJob::Commit { writer, records, facts, keep: Some(self.keep) })?;
        }
        self.outcome = None;
        self.stage = Stage::Committing { step };
        Ok(None)
    }

    fn conclude(&mut self, step: u64) -> Result<Option<SaveEvent>> {
        let Some(reports) = self.all_outcomes()? else {
            self.stage = Stage::Committing { step };
            return Ok(None);
        };
        let first = reports.into_iter().next().unwrap_or_default();
        if let Some(text) = first.strip_prefix(FAILED) {
            let error = self.take_error(text);
            return Ok(Some(SaveEvent::Failed { step, error }));
        }
        let committed = match self.outcome.take() {
            Some(Ok(Reported::Committed(committed))) => Some(committed),
            _ => None,
        };
        Ok(Some(SaveEvent::Saved { step, committed }))
    }

    /// Outcomes of the thread on all ranks, once it has one on each; a rank that has nothing to do has done it.
    /// Failures begin with [`FAILED`].
    fn all_outcomes(&mut self) -> Result<Option<Vec<String>>> {
        if self.outcome.is_none() {
            let outcome = self.thread.poll()?;
            self.note(outcome);
        }
        let is_done = self.outcome.is_some() || !self.thread.is_busy();
        if self.group.gather(&[f32::from(u8::from(is_done))])?.iter().flatten().any(|done| *done == 0.0) {
            return Ok(None);
        }
        let text = match &self.outcome {
            Some(Ok(Reported::File(record))) => String::from_utf8(record.to_json()?)
                .map_err(|e| Error::setting("save", format!("a record is not UTF-8: {e}")))?,
            Some(Ok(Reported::Committed(_))) | None => String::new(),
            Some(Err(Error::Checkpoint { place, reason, fix, .. })) => format!("{FAILED}{place}\n{reason}\n{fix}"),
            Some(Err(other)) => format!("{FAILED}\n{other}\n"),
        };
        self.group.gather_texts(&text).map(Some)
    }

    fn note(&mut self, outcome: Option<SaveOutcome>) {
        match outcome {
            None => {}
            Some(SaveOutcome::Shard { record, pieces }) => {
                self.buffers = pieces;
                self.outcome = Some(record.map(Reported::File));
            }
            Some(SaveOutcome::Commit { committed, pruned }) => {
                if let Err(error) = pruned {
                    tracing::warn!("old checkpoints stay, as they could not be removed: {error}");
                }
                self.outcome = Some(committed.map(Reported::Committed));
            }
        }
    }

    /// This rank's own failure, else the one that another rank told of.
    fn take_error(&mut self, told: &str) -> Error {
        if let Some(Err(own)) = self.outcome.take() {
            return own;
        }
        let mut lines = told.lines();
        let mut next = || lines.next().unwrap_or_default();
        let (place, reason, fix) = (next(), next(), next());
        Error::checkpoint(Fault::Disk, place, reason, fix)
    }
}

/// The prefix of a failed rank's report; no record begins with it.
const FAILED: &str = "failed: ";
