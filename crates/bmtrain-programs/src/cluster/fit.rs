//! Layouts in three dimensions that fit the memory of a machine's ranks, the fastest first.
//!
//! [`fit`] tries every division of the ranks that the model allows, sizes each by
//! [formula](model_center_train::formula), drops what does not fit and simulates the rest. Memory is an estimate by
//! formula and the order one of a machine that is described by numbers: what is proposed is where to start, and `plan`
//! counts it exactly.

use super::{Machine, StepReport, simulate};
use crate::{Error, Result};
use bmtrain_dist::pipeline::ScheduleKind;
use bmtrain_dist::shard::ZeroLevel;
use model_center_train::formula::{ParallelLayout, RankMemory, TransformerSizes};
use std::collections::HashSet;

/// Share of a rank's memory that is left to the driver, to libraries and to gaps between tensors.
const RESERVE: f64 = 0.1;
/// More micro-batches of a rank take long to simulate and no longer change the order.
const MAX_MICRO_BATCHES: usize = 256;
/// Layouts of the most promising that are simulated.
const MAX_SIMULATED: usize = 500;
/// More chunks of a rank send more messages than the smaller bubble saves.
const MAX_CHUNKS: usize = 4;

/// Request for a layout that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct FitRequest {
    /// The model.
    pub sizes: TransformerSizes,
    /// All ranks.
    pub ranks: usize,
    /// Memory of each, bytes.
    pub memory: f64,
    /// Sequences of a step over all ranks.
    pub batch: usize,
    /// L, tokens of a sequence.
    pub length: usize,
    /// Bytes of a value of parameters and hidden states.
    pub value_bytes: usize,
    /// Bytes of a value of the gradients that ranks reduce.
    pub gradient_bytes: usize,
    /// The machine, for the order.
    pub machine: Machine,
}

/// A layout that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitting {
    /// The layout.
    pub layout: ParallelLayout,
    /// Memory of its fullest rank.
    pub memory: RankMemory,
    /// A simulated step.
    pub report: StepReport,
}

/// Layouts that were found.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The layouts that fit, the fastest first: of each division of the ranks and ZeRO level the fastest.
    pub fitting: Vec<Fitting>,
    /// Number of layouts that were sized.
    pub tried: usize,
    /// The layout that needs least and its memory, where none fits.
    pub smallest: Option<(ParallelLayout, RankMemory)>,
}

/// Find layouts for a request.
///
/// # Errors
/// No ranks, no memory, and a model or batch that no division of the ranks suits.
pub fn fit(request: &FitRequest) -> Result<Fit> {
    request.sizes.validate("--fit")?;
    if !(request.memory.is_finite() && request.memory > 0.0) || request.ranks == 0 {
        let reason = format!("{} ranks of {} bytes", request.ranks, request.memory);
        return Err(Error::argument("--fit", reason, "give ranks and memory above 0, as in 32x32GB"));
    }
    let mut sized: Vec<(ParallelLayout, RankMemory)> = layouts(request)
        .filter_map(|layout| {
            let schedule = layout.schedule(&request.sizes, "--fit").ok()?;
            Some((layout, RankMemory::of(&request.sizes, &layout, &schedule)))
        })
        .collect();
    let tried = sized.len();
    if tried == 0 {
        let reason = format!(
            "no division of {} ranks suits {} blocks, {} heads and a batch of {} sequences",
            request.ranks, request.sizes.layers, request.sizes.heads, request.batch
        );
        return Err(Error::argument("--fit", reason, "change the number of ranks, or train.batch_size"));
    }
    let room = request.memory * (1.0 - RESERVE);
    let smallest = sized.iter().copied().min_by(|(_, one), (_, other)| one.total().total_cmp(&other.total()));
    sized.retain(|(_, memory)| memory.total() <= room);
    if sized.is_empty() {
        return Ok(Fit { fitting: Vec::new(), tried, smallest });
    }
    sized.sort_by(|(one, _), (other, _)| lower_bound(request, one).total_cmp(&lower_bound(request, other)));
    sized.truncate(MAX_SIMULATED);
    let simulated = sized.into_iter().map(|(layout, memory)| -> Result<Fitting> {
        let report = simulate(&request.sizes, &layout, &request.machine, "--fit")?;
        Ok(Fitting { layout, memory, report })
    });
    let mut fitting = simulated.collect::<Result<Vec<_>>>()?;
    fitting.sort_by(|one, other| one.report.step.total_cmp(&other.report.step));
    // Of layouts that differ in schedule, micro-batch or recomputation alone, the fastest.
    let mut seen = HashSet::new();
    fitting.retain(|Fitting { layout, .. }| seen.insert((layout.tensor, layout.pipeline, layout.zero)));
    Ok(Fit { fitting, tried, smallest: None })
}

/// Relative time of arithmetic and bubble: what no communication makes shorter.
fn lower_bound(request: &FitRequest, layout: &ParallelLayout) -> f64 {
    let bubble = layout.schedule.bubble(layout.pipeline, layout.chunks, layout.micro_batches);
    let work = if layout.recompute { 4.0 } else { 3.0 };
    // Where the tensor-parallel ranks are on several hosts, every all-reduce passes the network.
    let crosses = if layout.tensor > request.machine.ranks_per_host { 2.0 } else { 1.0 };
    work * crosses * (1.0 + bubble.unwrap_or(1.0))
}

/// Every layout of the request's ranks with powers of two as micro-batches.
fn layouts(request: &FitRequest) -> impl Iterator<Item = ParallelLayout> + '_ {
    let FitRequest { sizes, ranks, batch, length, value_bytes, gradient_bytes, .. } = request;
    let divisors = |number: usize| (1..=number).filter(move |divisor| number.is_multiple_of(*divisor));
    let meshes = divisors(*ranks)
        .filter(|&tensor| sizes.heads.is_multiple_of(tensor) && tensor <= 2 * request.machine.ranks_per_host)
        .flat_map(move |tensor| divisors(*ranks / tensor).map(move |pipeline| (tensor, pipeline)))
        .filter(|&(_, pipeline)| sizes.layers.is_multiple_of(pipeline));
    meshes.flat_map(move |(tensor, pipeline)| {
        let data = *ranks / tensor / pipeline;
        let share = if batch.is_multiple_of(data) { *batch / data } else { 0 };
        let micro_batches = (0..8).map(|power| 1_usize << power).filter(move |&micro_batch| {
            share > 0 && share.is_multiple_of(micro_batch) && share / micro_batch <= MAX_MICRO_BATCHES
        });
        micro_batches.flat_map(move |micro_batch| {
            kinds(sizes.layers, pipeline).into_iter().flat_map(move |(schedule, chunks)| {
                levels(data).iter().flat_map(move |&zero| {
                    [false, true].map(|recompute| ParallelLayout {
                        tensor,
                        pipeline,
                        data,
                        zero,
                        schedule,
                        chunks,
                        length: *length,
                        micro_batch,
                        micro_batches: share / micro_batch,
                        recompute,
                        // Stages reduce the gradients of a step after its last micro-batch.
                        overlap: pipeline == 1 || zero >= ZeroLevel::Two,
                        overlap_tensor: true,
                        value_bytes: *value_bytes,
                        gradient_bytes: *gradient_bytes,
                    })
                })
            })
        })
    })
}

/// ZeRO-2 and ZeRO-3 in a pipeline would reduce or gather for every micro-batch; they are tried all the same, and are
/// slow where that costs more than it saves.
fn levels(data: usize) -> &'static [ZeroLevel] {
    const ALL: [ZeroLevel; 4] = [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three];
    if data == 1 { &ALL[..1] } else { &ALL }
}

/// The schedules that a number of stages allows, with their chunks.
fn kinds(layers: usize, pipeline: usize) -> Vec<(ScheduleKind, usize)> {
    if pipeline == 1 {
        return vec![(ScheduleKind::OneForwardOneBackward, 1)];
    }
    let blocks = layers / pipeline;
    let mut kinds = vec![(ScheduleKind::OneForwardOneBackward, 1), (ScheduleKind::ZeroBubble, 1)];
    let chunks = (2..=MAX_CHUNKS).filter(|&chunks| blocks.is_multiple_of(chunks));
    kinds.extend(chunks.map(|chunks| (ScheduleKind::Interleaved, chunks)));
    if blocks.is_multiple_of(2) {
        kinds.push((ScheduleKind::ZeroBubbleV, 2));
    }
    kinds
}
