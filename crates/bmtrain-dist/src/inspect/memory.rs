//! Memory of every rank: [`memory_report`] and [`format_memory`].

use super::moments::gather_words;
use super::process;
use super::table::aligned;
use crate::error::Result;
use bmtrain_core::comm::Communicator;
use bmtrain_core::pool::Usage;
use bmtrain_core::{Device, Segment};

/// Memory of one rank, bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRow {
    /// The rank.
    pub rank: usize,
    /// Number of its process: ranks that are threads of one process have the same.
    pub process: u32,
    /// In use by tensors and storages, for each segment.
    pub segments: Vec<(Segment, Usage)>,
    /// Over all segments together.
    pub total: Usage,
    /// Memory that the rank's pool has taken from the system.
    pub pool: usize,
    /// Scratch memory of kernels outside of the pool; shared by the ranks of a process where the backend shares it.
    pub scratch: usize,
    /// Resident memory of the rank's process, where the system reports it.
    pub resident: Option<usize>,
    /// The most that was.
    pub peak_resident: Option<usize>,
}

const WORDS: usize = 2 * Segment::ALL.len() + 7;

/// The memory of every rank, on each. Waits for them.
pub fn memory_report(ranks: &dyn Communicator, device: &Device) -> Result<Vec<MemoryRow>> {
    let report = device.memory();
    let scratch: usize = device.backend().scratch().iter().map(|(_, bytes)| bytes).sum();
    let memory = process::now();
    let resident = memory.map_or(-1, |memory| memory.rss_bytes as i64);
    let peak_resident = memory.map_or(-1, |memory| memory.peak_rss_bytes as i64);
    let mut own = Vec::with_capacity(WORDS);
    for (_, usage) in &report.segments {
        own.extend([usage.now as i64, usage.peak as i64]);
    }
    own.extend([report.total.now, report.total.peak, report.system_bytes, scratch].map(|bytes| bytes as i64));
    own.extend([i64::from(std::process::id()), resident, peak_resident]);
    let all = gather_words(ranks, device, &own)?;
    Ok(all.iter().enumerate().map(|(rank, words)| row(rank, words)).collect())
}

fn row(rank: usize, words: &[i64]) -> MemoryRow {
    let at = |place: usize| words.get(place).copied().unwrap_or(0);
    let usage = |place: usize| Usage { now: at(place) as usize, peak: at(place + 1) as usize };
    let segments = Segment::ALL.into_iter().enumerate().map(|(number, segment)| (segment, usage(2 * number)));
    let rest = 2 * Segment::ALL.len();
    MemoryRow {
        rank,
        process: at(rest + 4) as u32,
        segments: segments.collect(),
        total: usage(rest),
        pool: at(rest + 2) as usize,
        scratch: at(rest + 3) as usize,
        resident: usize::try_from(at(rest + 5)).ok(),
        peak_resident: usize::try_from(at(rest + 6)).ok(),
    }
}

/// A line for each rank in MiB: the peak of each segment that is in use anywhere, of all together, what the pool has
/// taken, scratch, and resident memory of the rank's process, now and at most.
pub fn format_memory(rows: &[MemoryRow]) -> String {
    let used = |segment: Segment| {
        let of = |row: &MemoryRow| row.segments.iter().any(|(known, usage)| *known == segment && usage.peak > 0);
        rows.iter().any(of)
    };
    let segments: Vec<Segment> = Segment::ALL.into_iter().filter(|segment| used(*segment)).collect();
    let mut names = vec!["rank"];
    names.extend(segments.iter().map(|segment| segment.name()));
    names.extend(["all", "pool", "scratch", "process", "resident", "most"]);
    let mib = |bytes: usize| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
    let lines = rows.iter().map(|row| {
        let of = |segment: &Segment| row.segments.iter().find(|(known, _)| known == segment);
        let peaks = segments.iter().map(|segment| of(segment).map_or_else(String::new, |(_, usage)| mib(usage.peak)));
        let resident = [row.resident, row.peak_resident].map(|bytes| bytes.map_or("-".into(), mib));
        let mut line = vec![row.rank.to_string()];
        line.extend(peaks);
        line.extend([mib(row.total.peak), mib(row.pool), mib(row.scratch), row.process.to_string()]);
        line.extend(resident);
        line
    });
    aligned(&names, lines.collect())
}
