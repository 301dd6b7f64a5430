//! The ranks of an evaluation: each scores its batches of the sequences.

use super::setup::EvaluationSetup;
use crate::cli::ranks::RankModel;
use crate::{Error, Result};
use bmtrain_core::comm::Communicator;
use bmtrain_dist::launch::{DistributedOptions, ProcessGroup};
use model_center_base::error::ExitStatus;
use model_center_data::metrics::OrderedSum;
use model_center_train::evaluate::{ScoredSequence, Scorer, TokenScore};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest wait of a rank for another's batch. A rank that fails is noticed at once: all are threads of this process.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The sequences of an evaluation by number.
pub(super) type Sequences = Box<dyn Fn(u64) -> Result<ScoredSequence> + Send + Sync>;

/// Results collected of the sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The mean loss.
    Losses,
    /// The scores of every target.
    Tokens,
}

/// Scores of the ranks.
#[derive(Debug, Default)]
pub(super) struct Scores {
    /// Losses of batches, weighted by their numbers of targets.
    pub(super) losses: OrderedSum,
    /// Targets of all batches.
    pub(super) targets: u64,
    /// Scores of each sequence's targets.
    pub(super) tokens: BTreeMap<u64, Vec<TokenScore>>,
}

struct Shared {
    setup: EvaluationSetup,
    group: ProcessGroup,
    count: u64,
    sequences: Sequences,
    wanted: Wanted,
    scores: Mutex<Scores>,
}

/// Score `count` sequences on all ranks.
pub(super) fn score(setup: EvaluationSetup, count: u64, sequences: Sequences, wanted: Wanted) -> Result<Scores> {
    let options = DistributedOptions { deadline: Some(LONGEST_WAIT), ..DistributedOptions::default() };
    let group = ProcessGroup::join(setup.launch.clone(), options)?;
    let shared = Arc::new(Shared { setup, group, count, sequences, wanted, scores: Mutex::default() });
    let of_rank = {
        let shared = Arc::clone(&shared);
        move |ranks| shared.rank(ranks)
    };
    shared.group.run(of_rank)?;
    let mut scores = shared.scores.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *scores))
}

impl Shared {
    /// One rank's part. The ranks of a tensor group and the stages of a pipeline have the same outputs; the first of
    /// them adds them.
    fn rank(&self, ranks: Arc<dyn Communicator>) -> Result<ExitStatus> {
        let EvaluationSetup { options, threads, .. } = &self.setup;
        let RankModel { groups, device, opened, pipeline } = RankModel::open(
            (&self.group, ranks),
            (options.device.device, *threads),
            options.model_ranks(),
            |device| self.setup.open_options(device),
            |open| self.setup.open(open),
        )?;
        let mesh = groups.mesh();
        let adds = mesh.tensor_rank() == 0 && mesh.stage() == 0;
        let scorer = Scorer::new((&*opened.model, &device), (pipeline.as_ref(), mesh), options.batch)?;
        let with_scores = |add: &mut dyn FnMut(&mut Scores)| {
            if adds {
                add(&mut self.scores.lock().unwrap_or_else(PoisonError::into_inner));
            }
            Ok(())
        };
        let sequence = |number| (self.sequences)(number);
        let scored = match self.wanted {
            Wanted::Losses => scorer.losses(self.count, &sequence, &mut |batch, sum, targets| {
                with_scores(&mut |scores| {
                    scores.losses.add(batch, sum, targets as f64);
                    scores.targets += targets;
                })
            }),
            Wanted::Tokens => scorer.tokens(self.count, &sequence, &mut |number, tokens| {
                let mut tokens = Some(tokens);
                with_scores(&mut |scores| {
                    scores.tokens.extend(tokens.take().map(|tokens| (number, tokens)));
                })
            }),
        };
        scored.map_err(|error| match error {
            Error::Data { place, reason, fix } => Error::data(format!("{}, {place}", self.setup.file), reason, fix),
            other => other,
        })?;
        Ok(ExitStatus::Done)
    }
}
