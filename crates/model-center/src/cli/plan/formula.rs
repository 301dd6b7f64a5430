//! `plan --layout` and `plan --fit`: sizing in three dimensions by formula, without data and weights.

use super::Options;
use crate::cli::places::model_places;
use crate::cli::terminal;
use crate::model::Registry;
use crate::plan::fit::{FitRequest, fit};
use crate::plan::formula::families::sizes_of;
use crate::plan::formula::{ParallelLayout, TransformerSizes};
use crate::plan::layout_report::{LayoutReport, fit_json, fit_text};
use crate::recipe::{Resolved, model_directory};
use crate::run::ExitStatus;
use crate::simulate::{Machine, Scenario};
use crate::{Error, Result};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::pipeline::ScheduleKind;
use clap::Args;
use std::path::PathBuf;

/// What is sized by formula.
#[derive(Debug, Clone, Default, Args)]
pub struct FormulaOptions {
    /// Size one layout by formula: tensor x pipeline x data ranks, such as 8x4x2. Reads config.json, no data and no
    /// weights.
    #[arg(long, value_name = "TxPxD", conflicts_with_all = [
        "fit", "ranks", "local_ranks", "processes", "memory", "device_memory", "all_levels",
    ])]
    pub layout: Option<String>,
    /// Propose layouts for ranks and the memory of each, such as 32x32GB (GB or GiB), by formula, with every
    /// micro-batch that divides train.batch_size. Reads config.json, no data and no weights.
    #[arg(long, value_name = "RANKSxMEMORY", conflicts_with_all = [
        "ranks", "processes", "memory", "device_memory", "all_levels",
    ])]
    pub fit: Option<String>,
    /// With --layout: the schedule of the pipeline.
    #[arg(long, value_name = "KIND", requires = "layout")]
    pub schedule: Option<ScheduleKind>,
    /// With --layout: chunks of the model on each rank; by default 2 where the schedule needs several, else 1.
    #[arg(long, value_name = "N", requires = "layout")]
    pub chunks: Option<usize>,
    /// With --fit: a file of the program simulate; its machine decides which layout is fastest.
    #[arg(long, value_name = "FILE", requires = "fit")]
    pub machine: Option<PathBuf>,
}

impl FormulaOptions {
    /// Whether formulas are asked for.
    pub fn is_asked(&self) -> bool {
        self.layout.is_some() || self.fit.is_some()
    }
}

/// Print the layout or the layouts that are asked for.
///
/// # Errors
/// Mistakes in the recipe; arguments that name no layout or no machine; a family that formulas do not know.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let resolved = options.settings.resolve(&[], registry)?;
    let sizes = sizes_of(&model_directory(&resolved, &model_places())?)?;
    let length = options.length.unwrap_or(resolved.data.max_length);
    let text = match (&options.formula.layout, &options.formula.fit) {
        (Some(layout), _) => {
            let report = LayoutReport::new(&sizes, &layout_of(options, &resolved, layout, length)?, "--layout")?;
            if options.json { report.json().to_string() } else { report.text() }
        }
        (None, Some(machine)) => {
            let request = request(options, &resolved, (sizes, length), machine)?;
            let found = fit(&request)?;
            if options.json { fit_json(&found).to_string() } else { fit_text(&request, &found) }
        }
        (None, None) => String::new(),
    };
    terminal::print(&text)?;
    Ok(ExitStatus::Done)
}

fn layout_of(options: &Options, resolved: &Resolved, text: &str, length: usize) -> Result<ParallelLayout> {
    let wrong = |reason: String, fix: &str| Error::argument("--layout", reason, fix.to_owned());
    let sizes: Vec<usize> = text.split('x').map_while(|size| size.trim().parse().ok()).collect();
    let (&[tensor, pipeline, data], 2) = (&sizes[..], text.matches('x').count()) else {
        return Err(wrong(format!("\"{text}\""), "give tensor x pipeline x data ranks, as in 8x4x2"));
    };
    let schedule = options.formula.schedule.unwrap_or(ScheduleKind::OneForwardOneBackward);
    let batch = resolved.train.batch_size;
    let micro_batch = if data == 0 { 0 } else { resolved.micro_batch_on(data) };
    if micro_batch == 0 || !batch.is_multiple_of(data * micro_batch) {
        let reason =
            format!("{batch} sequences cannot be shared by {data} data ranks in micro-batches of {micro_batch}");
        return Err(wrong(reason, "change train.batch_size, train.micro_batch_size or the data ranks"));
    }
    Ok(ParallelLayout {
        tensor,
        pipeline,
        data,
        zero: resolved.parallel.zero,
        schedule,
        chunks: options.formula.chunks.unwrap_or(schedule.default_chunks()),
        length,
        micro_batch,
        micro_batches: batch / (data * micro_batch),
        recompute: !matches!(resolved.train.recompute, Recompute::Keep | Recompute::Attention),
        overlap: resolved.parallel.prefetch,
        overlap_tensor: false,
        value_bytes: resolved.model.dtype.size(),
        gradient_bytes: resolved.model.dtype.size(),
    })
}

fn request(
    options: &Options,
    resolved: &Resolved,
    (sizes, length): (TransformerSizes, usize),
    text: &str,
) -> Result<FitRequest> {
    let (ranks, memory) = parse_fit(text)?;
    let mut machine = match &options.formula.machine {
        Some(path) => Scenario::read(path)?.machine,
        None => Machine::example()?,
    };
    if let Some(local_ranks) = options.local_ranks.filter(|&ranks| ranks > 0) {
        machine.ranks_per_host = local_ranks;
    }
    Ok(FitRequest {
        sizes,
        ranks,
        memory,
        batch: resolved.train.batch_size,
        length,
        value_bytes: resolved.model.dtype.size(),
        gradient_bytes: resolved.model.dtype.size(),
        machine,
    })
}

/// Ranks and bytes of `32x32GB`.
fn parse_fit(text: &str) -> Result<(usize, f64)> {
    let wrong = || {
        let fix = "give ranks and the memory of each, as in 32x32GB or 8x80GiB";
        Error::argument("--fit", format!("\"{text}\""), fix)
    };
    let (ranks, memory) = text.split_once('x').ok_or_else(wrong)?;
    let (number, unit) = match (memory.strip_suffix("GiB"), memory.strip_suffix("GB")) {
        (Some(number), _) => (number, (1_u64 << 30) as f64),
        (None, Some(number)) => (number, 1e9),
        (None, None) => return Err(wrong()),
    };
    let ranks: usize = ranks.trim().parse().map_err(|_| wrong())?;
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    if ranks == 0 || ranks > 1 << 12 || !(number.is_finite() && number > 0.0) {
        return Err(wrong());
    }
    Ok((ranks, number * unit))
}
