//! Whether a run fits the machine, and what would help most where it does not.

use super::{Planned, Planner, RankLayout, on_ranks};
use crate::Result;
use crate::train::check_ranks;
use bmtrain_core::DType;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::shard::{GradientSum, ZeroLevel};

/// Most halvings of the micro-batch that are tried.
const MAX_HALVINGS: usize = 16;

/// Memory of one kind: of a host or of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Memory that a run needs, bytes.
    pub needed: u64,
    /// Memory that there is, bytes; `None` where it is unknown.
    pub available: Option<u64>,
}

impl MemoryNeed {
    /// Whether the one fits the other; `None` where that cannot be told.
    pub fn fits(&self) -> Option<bool> {
        self.available.map(|available| self.needed <= available)
    }
}

/// The comparison of a run with a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Memory of one machine.
    pub host: MemoryNeed,
    /// Memory of one of its CUDA devices, where the run uses them.
    pub device: Option<MemoryNeed>,
    /// Changes that were tried for a run that does not fit, the most helpful first.
    pub changes: Vec<Change>,
}

/// A change of settings and what the run needs with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// As one would write it on the command line.
    pub text: String,
    /// Memory that one machine then needs, bytes.
    pub needed: u64,
    /// Memory that one device then needs, bytes.
    pub device_needed: Option<u64>,
}

impl Verdict {
    /// Whether the run fits host and devices; `None` where that cannot be told.
    pub fn fits(&self) -> Option<bool> {
        let sides = [Some(self.host), self.device].map(|side| side.map_or(Some(true), |side| side.fits()));
        if sides.contains(&Some(false)) {
            Some(false)
        } else {
            sides.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
        }
    }

    /// Whether the run would fit with a change.
    pub fn fits_with(&self, change: &Change) -> bool {
        let device = self.device.zip(change.device_needed).is_none_or(|(side, needed)| is_enough(side, needed));
        device && is_enough(self.host, change.needed)
    }

    /// Bytes that a change needs of the memory that is too small: the device's where that is.
    pub fn scarce(&self, change: &Change) -> u64 {
        let device = self.device.filter(|side| side.fits() == Some(false));
        device.and(change.device_needed).unwrap_or(change.needed)
    }
}

/// Whether there is so much of it; memory of unknown size is taken to suffice.
fn is_enough(side: MemoryNeed, needed: u64) -> bool {
    side.available.is_none_or(|available| needed <= available)
}

/// Compare a plan with the memory there is; where it does not fit, count it again with each change that might help.
pub fn judge(
    planner: &Planner<'_>,
    planned: &Planned,
    (available, device_available): (Option<u64>, Option<u64>),
) -> Result<Verdict> {
    let host = MemoryNeed { needed: planned.machine_bytes(), available };
    let device = planned.device.map(|device| MemoryNeed { needed: device.total(), available: device_available });
    let mut verdict = Verdict { host, device, changes: Vec::new() };
    if verdict.fits() != Some(false) {
        return Ok(verdict);
    }
    let unchanged =
        Change { text: String::new(), needed: host.needed, device_needed: device.map(|device| device.needed) };
    let needed = verdict.scarce(&unchanged);
    let mut helpful = Vec::new();
    for idea in ideas(planned) {
        let change = try_change(planner, &idea.sets, idea.layout)?;
        if verdict.scarce(&change) < needed {
            helpful.push((verdict.scarce(&change), idea));
            verdict.changes.push(change);
        }
    }
    let joined = together(planner, (planned.layout, &verdict), helpful)?;
    verdict.changes.extend(joined);
    let mut changes = std::mem::take(&mut verdict.changes);
    changes.sort_by_key(|change| verdict.scarce(change));
    verdict.changes = changes;
    // Of those with which it fits, the one that changes least: it needs most.
    if let Some(least) = verdict.changes.iter().rposition(|change| verdict.fits_with(change)) {
        let least = verdict.changes.remove(least);
        verdict.changes.insert(0, least);
    }
    Ok(verdict)
}

/// Changes of settings joined one after the other, the most helpful first, as long as each makes the run smaller.
fn together(
    planner: &Planner<'_>,
    (layout, verdict): (RankLayout, &Verdict),
    mut helpful: Vec<(u64, Idea)>,
) -> Result<Option<Change>> {
    helpful.retain(|(_, idea)| idea.layout == layout);
    helpful.sort_by_key(|(needed, _)| *needed);
    let (mut joined, mut best): (Vec<String>, Option<Change>) = (Vec::new(), None);
    let (mut least, mut parts) = (u64::MAX, 0);
    for (_, idea) in helpful {
        if idea.sets.iter().any(|set| joined.iter().any(|other| key(other) == key(set))) {
            continue;
        }
        let all = [&joined[..], &idea.sets].concat();
        let change = try_change(planner, &all, layout)?;
        if verdict.scarce(&change) < least {
            (joined, least, parts, best) = (all, verdict.scarce(&change), parts + 1, Some(change));
        }
    }
    // A single one is in the list already.
    Ok(best.filter(|_| parts > 1))
}

/// Key of a setting.
fn key(set: &str) -> &str {
    set.split('=').next().unwrap_or_default()
}

fn try_change(planner: &Planner<'_>, sets: &[String], layout: RankLayout) -> Result<Change> {
    let planned = planner.plan((planner.resolve)(sets)?, layout)?;
    let mut text: Vec<String> = sets.iter().map(|set| format!("--set {set}")).collect();
    if layout.ranks != planner.ranks {
        text.insert(0, format!("--ranks {} --local-ranks {}", layout.ranks, layout.local_ranks));
    }
    let device_needed = planned.device.map(|device| device.total());
    Ok(Change { text: text.join(" "), needed: planned.machine_bytes(), device_needed })
}

struct Idea {
    sets: Vec<String>,
    layout: RankLayout,
}

/// Changes that might make a run smaller, each allowed with the settings as they are.
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
    let can_offload = planned.device.is_some() && resolved.train.optimizer.can_be_offloaded();
    if can_offload && !resolved.train.offload {
        idea(&["train.offload=true".into()]);
    }
    if can_offload && !resolved.train.offload_parameters {
        let sets = ["train.offload=true", "train.offload_parameters=true", "parallel.zero=3"];
        idea(&sets.map(String::from));
    }
    if resolved.train.recompute != Recompute::Checkpoint {
        idea(&["train.recompute=blocks".into()]);
    }
    if resolved.model.dtype == DType::F32 {
        idea(&["model.dtype=bf16".into()]);
    }
    let mut micro = resolved.micro_batch_on(resolved.parallel.data_ranks(layout.ranks));
    for _ in 0..MAX_HALVINGS {
        // With an accumulation that is set, another micro-batch is another batch.
        if !micro.is_multiple_of(2) || resolved.train.accumulation.is_some() {
            break;
        }
        micro /= 2;
        idea(&[format!("train.micro_batch_size={micro}"), format!("eval.batch_size={micro}")][..eval_sets(planned)]);
    }
    let ranks = 2 * layout.ranks;
    // More ranks help where each machine has no more of them than before.
    if check_ranks(&on_ranks(resolved.clone(), ranks), ranks).is_ok() {
        let layout = RankLayout { ranks, ranks_in_process: 1, ..layout };
        ideas.push(Idea { sets: vec!["parallel.zero=3".into()], layout });
    }
    ideas
}

/// Evaluation follows the micro-batch, unless it was given a size, which then has to be made smaller too.
fn eval_sets(planned: &Planned) -> usize {
    1 + usize::from(planned.counted.batches.eval.is_some())
}
