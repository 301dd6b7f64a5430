//! The peak usage of the ranks' memory pools, for the last record of a run.

use crate::Result;
use bmtrain_core::pool::ALIGNMENT;
use bmtrain_core::{Device, Segment};
use bmtrain_dist::ControlGroup;
use std::cmp::Ordering;

/// Names and bytes: all segments, slabs with their gaps, and each segment at the moment of the peak
/// (of what is kept in the host's memory, its own peak). Of the rank whose pool
/// was fullest if all are well and take part, else of this one.
pub(super) fn of_fullest_rank(device: &Device, ranks: &ControlGroup, all_are_well: bool) -> Result<Vec<(String, u64)>> {
    // Whole chunks, whose number is exact in f32 up to 8 GiB and right to seven digits beyond.
    let chunks = |bytes: usize| (bytes / ALIGNMENT) as f32;
    let report = device.memory();
    let mut own = vec![chunks(report.total.peak), chunks(report.touched.peak)];
    own.extend(report.at_peak.iter().zip(&report.segments).map(|((segment, bytes), (_, usage))| match segment {
        Segment::Offload => chunks(usage.peak),
        _ => chunks(*bytes),
    }));
    let mut of_ranks = if all_are_well { ranks.gather(&own)? } else { vec![own] };
    of_ranks.sort_by(|a, b| a.first().partial_cmp(&b.first()).unwrap_or(Ordering::Equal));
    let names = ["peak", "touched"].into_iter().chain(report.at_peak.iter().map(|(segment, _)| segment.name()));
    let figures = names.zip(of_ranks.pop().unwrap_or_default());
    Ok(figures.map(|(name, chunks)| (format!("pool_{name}_bytes"), chunks as u64 * ALIGNMENT as u64)).collect())
}
