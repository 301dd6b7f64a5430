//! Whether a run fits the machine, and what would help most where it does not.

use super::{Layout, Planned, Subject, on_ranks};
use crate::finetune::setup::check_ranks;
use bmtrain_core::DType;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use model_center::Result;

/// Most halvings of the micro-batch that are tried.
const MOST_HALVINGS: usize = 16;

/// The comparison of a run with a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Memory that one machine needs, bytes.
    pub needed: u64,
    /// Memory that it has, bytes; `None` where the system does not say.
    pub available: Option<u64>,
    /// What was tried for a run that does not fit, the most helpful first.
    pub changes: Vec<Change>,
}

/// A change of settings and what the run needs with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// As one would write it on the command line.
    pub text: String,
    /// Memory that one machine then needs, bytes.
    pub needed: u64,
}

impl Verdict {
    /// Whether the run fits; `None` where that cannot be told.
    pub fn fits(&self) -> Option<bool> {
        self.available.map(|available| self.needed <= available)
    }
}

/// Compare a plan with the memory there is; where it does not fit, count it again with each change that might help.
///
/// # Errors
/// Those of counting.
pub fn judge(subject: &Subject<'_>, planned: &Planned, available: Option<u64>) -> Result<Verdict> {
    let needed = planned.machine_bytes();
    let mut verdict = Verdict { needed, available, changes: Vec::new() };
    if verdict.fits() != Some(false) {
        return Ok(verdict);
    }
    let mut helpful = Vec::new();
    for idea in ideas(planned) {
        let change = try_change(subject, &idea.sets, idea.layout)?;
        if change.needed < needed {
            helpful.push((change.needed, idea));
            verdict.changes.push(change);
        }
    }
    verdict.changes.extend(together(subject, planned.layout, helpful)?);
    verdict.changes.sort_by_key(|change| change.needed);
    // Of those with which it fits, the one that changes least: it needs most.
    let fits = |change: &Change| available.is_some_and(|available| change.needed <= available);
    if let Some(least) = verdict.changes.iter().rposition(fits) {
        let least = verdict.changes.remove(least);
        verdict.changes.insert(0, least);
    }
    Ok(verdict)
}

/// Changes of settings joined one after the other, the most helpful first, as long as each makes the run smaller.
fn together(subject: &Subject<'_>, layout: Layout, mut helpful: Vec<(u64, Idea)>) -> Result<Option<Change>> {
    helpful.retain(|(_, idea)| idea.layout == layout);
    helpful.sort_by_key(|(needed, _)| *needed);
    let (mut joined, mut best): (Vec<String>, Option<Change>) = (Vec::new(), None);
    let (mut least, mut parts) = (u64::MAX, 0);
    for (_, idea) in helpful {
        if idea.sets.iter().any(|set| joined.iter().any(|other| key(other) == key(set))) {
            continue;
        }
        let all = [&joined[..], &idea.sets].concat();
        let change = try_change(subject, &all, layout)?;
        if change.needed < least {
            (joined, least, parts, best) = (all, change.needed, parts + 1, Some(change));
        }
    }
    // A single one is in the list already.
    Ok(best.filter(|_| parts > 1))
}

/// What a setting is of.
fn key(set: &str) -> &str {
    set.split('=').next().unwrap_or_default()
}

fn try_change(subject: &Subject<'_>, sets: &[String], layout: Layout) -> Result<Change> {
    let planned = subject.plan(subject.options.settings.resolve(sets)?, layout)?;
    let mut text: Vec<String> = sets.iter().map(|set| format!("--set {set}")).collect();
    if layout.ranks != subject.options.ranks {
        text.insert(0, format!("--ranks {} --local-ranks {}", layout.ranks, layout.local_ranks));
    }
    Ok(Change { text: text.join(" "), needed: planned.machine_bytes() })
}

struct Idea {
    sets: Vec<String>,
    layout: Layout,
}

/// What might make a run smaller, each allowed with the settings as they are.
fn ideas(planned: &Planned) -> Vec<Idea> {
    let (resolved, layout) = (&planned.resolved, planned.layout);
    let mut ideas = Vec::new();
    let mut idea = |sets: &[String]| ideas.push(Idea { sets: sets.to_vec(), layout });
    if layout.ranks > 1 && resolved.parallel.zero < ZeroLevel::Three {
        idea(&["parallel.zero=3".into()]);
    }
    if resolved.train.gradient_sum == GradientSum::Elastic {
        idea(&["train.gradient_sum=fast".into()]);
    }
    if resolved.train.recompute == Recompute::Keep {
        idea(&["train.recompute=blocks".into()]);
    }
    if resolved.model.dtype == DType::F32 {
        idea(&["model.dtype=bf16".into()]);
    }
    let mut micro = resolved.micro_batch_on(layout.ranks);
    for _ in 0..MOST_HALVINGS {
        if !micro.is_multiple_of(2) {
            break;
        }
        micro /= 2;
        idea(&[format!("train.micro_batch_size={micro}"), format!("eval.batch_size={micro}")][..eval_sets(planned)]);
    }
    let ranks = 2 * layout.ranks;
    // More ranks help where each machine has no more of them than before.
    if check_ranks(&on_ranks(resolved.clone(), ranks), ranks).is_ok() {
        let layout = Layout { ranks, local_ranks: layout.local_ranks };
        ideas.push(Idea { sets: vec!["parallel.zero=3".into()], layout });
    }
    ideas
}

/// Evaluation follows the micro-batch, unless it was given a size, which then has to be made smaller too.
fn eval_sets(planned: &Planned) -> usize {
    1 + usize::from(planned.counted.batches.eval.is_some())
}
