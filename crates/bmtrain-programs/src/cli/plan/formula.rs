//! `bmtrain plan --layout` and `bmtrain plan --fit`: ranks in three dimensions, counted or by formula, without data and
//! weights.

use super::{Options, layout};
use crate::cli::{places::model_places, settings::as_error, terminal};
use crate::cluster::fit::{FitRequest, fit};
use crate::cluster::fit_report::{fit_json, fit_text};
use crate::cluster::{Machine, Scenario};
use crate::{Error, Result};
use bmtrain_dist::pipeline::ScheduleKind;
use clap::Args;
use model_center_base::error::ExitStatus;
use model_center_models::Registry;
use model_center_recipe::{ModelStart, Resolved};
use model_center_train::check_layout_of_config;
use model_center_train::formula::{
    TransformerSizes,
    families::{sizes_of, sizes_of_config},
};
use model_center_train::plan::layout::{LayoutCount, LayoutRun, count_layout};
use model_center_train::plan::{self, MAX_RANKS};
use std::path::PathBuf;

/// Layouts in three dimensions.
#[derive(Debug, Clone, Default, Args)]
pub struct FormulaOptions {
    /// Count the ranks of one layout: tensor x pipeline x data ranks, such as 8x4x2; without a value, the layout
    /// of the recipe on --ranks. Reads config.json, no data and no weights.
    #[arg(long, value_name = "TxPxD", num_args = 0..=1, default_missing_value = "", conflicts_with_all = [
        "fit", "local_ranks", "processes", "memory", "device_memory", "all_levels",
    ])]
    pub layout: Option<String>,
    /// Propose layouts for ranks and the memory of each, such as 32x32GB (GB or GiB), by formula, with every
    /// micro-batch that divides train.batch_size. Reads config.json, no data and no weights.
    #[arg(long, value_name = "RANKSxMEMORY", conflicts_with_all = [
        "ranks", "processes", "memory", "device_memory", "all_levels",
    ])]
    pub fit: Option<String>,
    /// With --layout: the schedule of the pipeline; by default parallel.schedule.
    #[arg(long, value_name = "KIND", requires = "layout")]
    pub schedule: Option<ScheduleKind>,
    /// With --layout: chunks of the model on each rank; by default parallel.virtual_stages, with --schedule the fewest
    /// that it runs.
    #[arg(long, value_name = "N", requires = "layout")]
    pub chunks: Option<usize>,
    /// With --fit: a file of `bmtrain simulate`; its machine decides which layout is fastest.
    #[arg(long, value_name = "FILE", requires = "fit")]
    pub machine: Option<PathBuf>,
}

impl FormulaOptions {
    /// Whether a layout is asked for.
    pub fn is_asked(&self) -> bool {
        self.layout.is_some() || self.fit.is_some()
    }
}

/// Print the layout or the layouts that are asked for.
///
/// # Errors
/// Mistakes in the recipe; arguments that name no layout or no machine; ranks that do not divide model or batch; for
/// `--fit` a family that formulas do not know.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    // The data files need not be there.
    let resolved = options.settings.read(&[], registry).map_err(as_error)?;
    let length = options.length.unwrap_or(resolved.data.max_length);
    let text = match (&options.formula.layout, &options.formula.fit) {
        (Some(text), _) => {
            let counted = counted(options, (resolved, registry), text, length)?;
            if options.json { layout::json(&counted).to_string() } else { layout::text(&counted) }
        }
        (None, Some(machine)) => {
            let refuse_sharing = |fix: &str| {
                let reason = "layers that share their parameters are not in the formulas of sizes";
                Err(Error::argument("--fit", reason, fix))
            };
            if resolved.model.shape.sharing.is_some() {
                return refuse_sharing("remove model.unique_layers, or plan with --ranks");
            }
            let start = ModelStart::of(&resolved, &model_places())?;
            let sizes = start.config.as_ref().map_or_else(|| sizes_of(&start.directory), |c| sizes_of_config(c))?;
            if sizes.unique_layers != sizes.layers {
                return refuse_sharing("plan with --ranks or --layout");
            }
            let request = request(options, &resolved, (sizes, length), machine)?;
            let found = fit(&request)?;
            if options.json { fit_json(&found).to_string() } else { fit_text(&request, &found) }
        }
        (None, None) => String::new(),
    };
    terminal::print(&text)?;
    Ok(ExitStatus::Done)
}

/// The ranks of the layout `text`, or where it is empty of the recipe's.
fn counted(
    options: &Options,
    (resolved, registry): (Resolved, Registry<'static>),
    text: &str,
    length: usize,
) -> Result<LayoutCount> {
    let (mut ranks, mut parallel) = (options.ranks, resolved.parallel.clone());
    if !text.is_empty() {
        let [tensor, pipeline, data] = parse_layout(text)?;
        (parallel.tensor, parallel.pipeline) = (tensor, pipeline);
        ranks = tensor * pipeline * data;
        if options.ranks != 1 && options.ranks != ranks {
            let reason = format!("\"{text}\" is {ranks} ranks, and --ranks is {}", options.ranks);
            return Err(Error::argument("--layout", reason, "leave --ranks out"));
        }
    }
    if let Some(schedule) = options.formula.schedule {
        (parallel.schedule, parallel.virtual_stages) = (schedule, schedule.default_chunks());
    }
    parallel.virtual_stages = match (parallel.pipeline, options.formula.chunks) {
        (1, _) => 1,
        (_, chunks) => chunks.unwrap_or(parallel.virtual_stages),
    };
    if length == 0 {
        return Err(Error::argument("--length", "sequences of 0 tokens", "give a number above 0"));
    }
    let resolved = plan::on_ranks(resolved.with_parallel(parallel), ranks);
    check_layout_of_config(&resolved, ranks, registry, &model_places())?;
    let start = ModelStart::of(&resolved, &model_places())?;
    let run = LayoutRun { config: start.config, ..LayoutRun::of_recipe(&resolved, ranks, length) };
    count_layout(&start.directory, registry, run)
}

/// Tensor, pipeline and data ranks of `8x4x2`.
fn parse_layout(text: &str) -> Result<[usize; 3]> {
    let wrong = |reason: String, fix: &str| Err(Error::argument("--layout", reason, fix.to_owned()));
    let sizes: Vec<usize> = text.split('x').map_while(|size| size.trim().parse().ok()).collect();
    let (&[tensor, pipeline, data], 2) = (&sizes[..], text.matches('x').count()) else {
        return wrong(format!("\"{text}\""), "give tensor x pipeline x data ranks, as in 8x4x2");
    };
    let ranks = sizes.iter().try_fold(1_usize, |ranks, &size| ranks.checked_mul(size));
    match ranks {
        Some(1..=MAX_RANKS) => Ok([tensor, pipeline, data]),
        _ => wrong(format!("\"{text}\" is not 1 to {MAX_RANKS} ranks"), "change one of the three"),
    }
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
