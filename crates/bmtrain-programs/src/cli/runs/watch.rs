//! Records of a run in progress, printed as they are written.

use crate::Result;
use crate::cli::terminal;
use crate::runs::{LineReader, Run, RunDirectory, RunState};
use model_center_base::file::printable;
use model_center_data::metrics::Metric;
use model_center_recipe::run::Status;
use serde_json::Value;
use std::time::Duration;

/// Time between two looks at a followed run.
const LOOK: Duration = Duration::from_millis(500);

/// Print the last lines of a run, then new ones until it ends.
pub(super) fn watch(run: &RunDirectory, last: usize) -> Result<()> {
    let mut earlier = Vec::new();
    let mut reader = None;
    let mut is_first = true;
    loop {
        // Before the records: what is written between the two is read.
        let state = Run::read(run.clone())?;
        if reader.is_none() && run.metrics.is_file() {
            reader = Some(LineReader::open(&run.metrics)?);
        }
        if let Some(reader) = &mut reader {
            while let Some(record) = reader.advance()? {
                earlier.extend(line_of(&record, &state));
            }
        }
        let shown = if is_first { earlier.split_off(earlier.len().saturating_sub(last)) } else { earlier.clone() };
        earlier.clear();
        is_first = false;
        for line in shown {
            terminal::print(&line)?;
        }
        if state.state != RunState::Running {
            return terminal::print(&format!("{} ({})", state.state.name(), printable(&state.reason, 200)));
        }
        std::thread::sleep(LOOK);
        // A run that was resumed goes on after an earlier step: its lines follow.
        let lost = match &reader {
            Some(open) => LineReader::open_at(&run.metrics, open.position())?,
            None => continue,
        };
        reader = match lost {
            Some(reader) => Some(reader),
            None => {
                terminal::print("the run went on from an earlier step, or began anew")?;
                let mut again = LineReader::open(&run.metrics)?;
                while again.advance()?.is_some() {}
                Some(again)
            }
        };
    }
}

/// A record as a line, if it has one.
fn line_of(record: &Value, run: &Run) -> Option<String> {
    let number = |name: &str| record.get(name).and_then(Value::as_f64);
    let time = |name: &str| record.get("time").and_then(|time| time.get(name)).and_then(Value::as_f64);
    let step = record.get("step").and_then(Value::as_u64);
    match record.get("kind")?.as_str()? {
        "step" => Some(
            Status {
                step: step?,
                total: run.recipe.values.get("train.steps").and_then(|steps| steps.parse().ok()),
                loss: number("loss").unwrap_or(f64::NAN),
                pairs: number(Metric::RewardAccuracy.name())
                    .zip(number(Metric::RewardMargin.name()))
                    .map(<[f64; 2]>::from),
                grad_norm: number("grad_norm").unwrap_or(f64::NAN),
                lr: number("lr").unwrap_or(f64::NAN),
                scale: None,
                tokens_per_s: time("tokens_per_s").unwrap_or(0.0),
                peak_share: time("peak_share"),
                memory: None,
                eta: None,
            }
            .to_string(),
        ),
        kind @ ("eval" | "test") => {
            let values = record.get("metrics").and_then(Value::as_object).into_iter().flatten();
            let values: Vec<String> = values.map(|(name, value)| format!("{} {value}", printable(name, 60))).collect();
            Some(format!("{kind} after step {}: {}", step?, values.join(", ")))
        }
        "resume" => Some(format!("resumed after step {}", step?)),
        _ => None,
    }
}
