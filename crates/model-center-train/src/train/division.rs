//! Whether the ranks of a run divide its batch and its model.
//!
//! Defines [`check_ranks`], which needs the recipe alone, and [`check_layout`], which opens the headers of the model's
//! weights besides. Both list all that does not divide in one error.

use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::pipeline::{Partition, ScheduleKind};
use model_center_data::metrics::LabelKind;
use model_center_formats::ModelCaches;
use model_center_formats::config::TextHead;
use model_center_models::{Division, OpenMode, OpenOptions, Registry};
use model_center_recipe::{Mismatch, ModelStart, Parallel, Resolved, nearest};
use std::sync::Arc;

/// Whether `ranks` ranks can be divided as the recipe asks for, and share the micro-batches of a step evenly.
///
/// # Errors
/// [`Error::Recipe`] with all that does not divide and the nearest values that would.
pub fn check_ranks(resolved: &Resolved, ranks: usize) -> Result<()> {
    refuse(resolved, &resolved.mismatches(ranks))
}

/// The same, and whether tensor-parallel ranks and pipeline stages divide the model. Its weights are not read.
///
/// # Errors
/// As [`check_ranks`]; a model directory that cannot be opened.
pub fn check_layout(resolved: &Resolved, ranks: usize, registry: Registry<'_>, places: &ModelCaches) -> Result<()> {
    check_model(resolved, ranks, (registry, places), false)
}

/// The same by the `config.json` of the model alone, which needs no weights.
///
/// # Errors
/// As [`check_layout`].
pub fn check_layout_of_config(
    resolved: &Resolved,
    ranks: usize,
    registry: Registry<'_>,
    places: &ModelCaches,
) -> Result<()> {
    check_model(resolved, ranks, (registry, places), true)
}

fn check_model(
    resolved: &Resolved,
    ranks: usize,
    (registry, places): (Registry<'_>, &ModelCaches),
    from_config: bool,
) -> Result<()> {
    let mut mismatches = resolved.mismatches(ranks);
    if resolved.parallel.ranks_of_copy() > 1 {
        let division = division(resolved, (registry, places), from_config)?;
        mismatches.extend(of_model(&resolved.parallel, &division));
        mismatches.extend(of_tied(resolved, &division, resolved.parallel.data_ranks(ranks)));
    }
    refuse(resolved, &mismatches)
}

/// Parts of the model that have to be divided. A classifier is not; a language-modelling head is split as the token
/// embedding is, with which it may share its weight.
fn division(
    resolved: &Resolved,
    (registry, places): (Registry<'_>, &ModelCaches),
    from_config: bool,
) -> Result<Division> {
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let start = ModelStart::of(resolved, places)?;
    let open = |head: TextHead| {
        let options = OpenOptions {
            family: resolved.model.family.clone(),
            ignored: resolved.model.leave.clone(),
            head: Some(head),
            mode: OpenMode::Check,
            from_config,
            ..OpenOptions::new(&nowhere)
        };
        registry.open(&start.directory, &start.with_config(options))
    };
    let source = &resolved.data.source;
    let opened = match source.task().uses_label_words() || source.task().label_kind() == LabelKind::Tokens {
        // A model without such a head is refused with its task, once data are read.
        true => open(TextHead::CausalLm).or_else(|_| open(TextHead::MaskedLm)).or_else(|_| open(TextHead::None))?,
        false => open(TextHead::None)?,
    };
    Ok(Division::of(opened.model.parameters()))
}

fn of_model(parallel: &Parallel, division: &Division) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let (tensor, undivided) = (parallel.tensor, division.undivided(parallel.tensor));
    if !undivided.is_empty() {
        let near = nearest(tensor, 2 * tensor, |ranks| division.undivided(ranks).is_empty());
        let reason = format!("{} cannot be divided over {tensor} tensor-parallel ranks", undivided.join(" and "));
        found.push(Mismatch { key: "parallel.tensor", reason, fix: format!("set parallel.tensor = {near}") });
    }
    let (blocks, chunks) = (division.blocks, parallel.chunks());
    if parallel.pipeline > 1 && chunks > blocks {
        let reason = format!("{blocks} blocks cannot be divided over {chunks} model chunks of a pipeline");
        let fits = |stages: usize| stages == 1 || stages * parallel.virtual_stages <= blocks;
        let near = nearest(parallel.pipeline, parallel.pipeline, fits);
        found.push(Mismatch { key: "parallel.pipeline", reason, fix: format!("set parallel.pipeline = {near}") });
    }
    if let Some(counts) = parallel.partition.given()
        && parallel.pipeline > 1
        && counts.iter().sum::<usize>() != blocks
    {
        let reason = format!("`parallel.partition` divides {} blocks", counts.iter().sum::<usize>());
        let even = Partition::even(blocks, counts.len()).map(|even| format!(", such as {:?}", even.counts()));
        let fix = format!("give numbers that add up to the {blocks} blocks of the model{}", even.unwrap_or_default());
        found.push(Mismatch { key: "parallel.partition", reason, fix });
    }
    found
}

/// A tied embedding whose two gradients are on two stages, which add them once a step.
fn of_tied(resolved: &Resolved, division: &Division, data_ranks: usize) -> Option<Mismatch> {
    let (parallel, reducing) = (&resolved.parallel, resolved.reducing_each_micro_batch(data_ranks));
    let tied = division.tied.as_ref()?;
    // Under this schedule the first stage has the head too; and others that put gradients of weights off are refused.
    let is_parted = parallel.pipeline > 1 && parallel.schedule != ScheduleKind::ZeroBubbleV;
    if !is_parted || parallel.schedule.splits_backward() || reducing.is_empty() {
        return None;
    }
    let (what, instead): (Vec<String>, Vec<&str>) = reducing.into_iter().unzip();
    let reason = format!(
        "{tied} is on the first and on the last pipeline stage, which add its gradients once a step, and {} reduces \
         them with every micro-batch",
        what.join(" with ")
    );
    let fix = format!("set {}", instead.join(" and "));
    Some(Mismatch { key: "parallel.pipeline", reason, fix })
}

/// All mismatches as one error, at the place of the first.
fn refuse(resolved: &Resolved, mismatches: &[Mismatch]) -> Result<()> {
    let Some(first) = mismatches.first() else { return Ok(()) };
    let joined = |part: fn(&Mismatch) -> &str| mismatches.iter().map(part).collect::<Vec<_>>().join("; ");
    Err(Error::recipe(resolved.place(first.key), joined(|mismatch| &mismatch.reason), joined(|mismatch| &mismatch.fix)))
}
