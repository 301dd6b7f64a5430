//! A schedule as a diagram, with its bubble and memory.

use bmtrain_dist::pipeline::{PipelineCosts, Schedule, ScheduleKind, diagram, simulate};
use model_center_base::Result;
use model_center_base::file::write_atomic;
use std::path::Path;

/// The diagram with a summary, or the summary of the diagram that was written to a file.
///
/// # Errors
/// What [`Schedule::new`] refuses; a diagram too large; a file that cannot be written.
pub fn show(
    (kind, stages, chunks, micro_batches): (ScheduleKind, usize, usize, usize),
    file: Option<&Path>,
) -> Result<String> {
    let schedule = Schedule::new(kind, stages, chunks, micro_batches)?;
    let simulation = simulate(&schedule, &PipelineCosts::equal(&schedule))?;
    let mut lines = Vec::new();
    match file {
        Some(file) => {
            write_atomic(file, diagram::svg(&schedule, &simulation)?.as_bytes())?;
            lines.push(format!("wrote {}", file.display()));
        }
        None => {
            let columns = 1 + micro_batches.saturating_sub(1).to_string().len();
            lines.push(diagram::text(&simulation, (columns + 1) as f64)?);
            lines.push(String::new());
        }
    }
    let peaks: Vec<String> = (0..stages).map(|stage| schedule.peak_in_flight(stage).to_string()).collect();
    lines.push(format!(
        "{kind}: stages {stages}, chunks of a rank {chunks}, micro-batches {micro_batches}: bubble {:.1} %, time {}",
        100.0 * simulation.bubble(),
        simulation.time(),
    ));
    lines.push(format!("most chunks' activations in flight, by stage: {}", peaks.join(" ")));
    Ok(lines.join("\n"))
}
