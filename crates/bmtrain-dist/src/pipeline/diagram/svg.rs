//! A diagram as a self-contained SVG: its colours follow the reader's light or dark theme.

use crate::error::{Error, Result};
use crate::pipeline::simulation::Simulation;
use crate::schedule::{Action, Schedule, Work};
use std::fmt::Write as _;

/// Height of a stage's row and of the gap below it, in pixels.
const ROW: f64 = 22.0;
const GAP: f64 = 4.0;
/// Room for the numbers of the stages.
const LEFT: f64 = 62.0;
const TOP: f64 = 6.0;
/// Width of the rows.
const WIDTH: f64 = 900.0;
/// Narrower actions have no number.
const NARROWEST_NUMBER: f64 = 13.0;
/// Most actions of a picture.
const MAX_ACTIONS: usize = 10_000;

/// The colours are told apart by lightness too. A stage's further chunks have the same colours with an edge.
const STYLE: &str = "\
text{font:11px sans-serif;fill:#222}.n{text-anchor:middle}.n text{fill:#111}\
.F{fill:#8ec5ff}.B,.I{fill:#ffb86b}.W{fill:#b5e48c}.c{stroke:#222;stroke-width:1.4}.idle{fill:#ececec}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.idle{fill:#30343b}.c{stroke:#fff}}";

/// The picture of a simulated schedule: a row for each stage, an action as a bar with the number of its micro-batch,
/// and a legend. The whole width is the time of the step.
///
/// # Errors
/// More than 10 000 actions.
pub fn svg(schedule: &Schedule, simulation: &Simulation) -> Result<String> {
    let actions: usize = simulation.stages().iter().map(|stage| stage.spans.len()).sum();
    if actions > MAX_ACTIONS {
        let reason = format!("{actions} actions; expected at most {MAX_ACTIONS}: use fewer micro-batches");
        return Err(Error::setting("pipeline diagram", reason));
    }
    let scale = if simulation.time() > 0.0 { WIDTH / simulation.time() } else { 0.0 };
    let rows = simulation.stages().len() as f64 * (ROW + GAP);
    let (width, height) = (LEFT + WIDTH + TOP, TOP + rows + ROW + TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>{}: {} stages, {} micro-batches</title>\n<style>{STYLE}</style>\n",
        schedule.kind(),
        schedule.stages(),
        schedule.micro_batches(),
    );
    let mut bars = Bars::default();
    for (number, stage) in simulation.stages().iter().enumerate() {
        let y = TOP + number as f64 * (ROW + GAP);
        line(&mut out, &format!("<text x=\"4\" y=\"{}\">stage {number}</text>", round(y + 15.0)));
        line(&mut out, &format!("<rect class=\"idle\" x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{ROW}\"/>"));
        for span in &stage.spans {
            bars.add(span.action, LEFT + span.start * scale, y, (span.end - span.start) * scale);
        }
    }
    bars.write(&mut out);
    legend(&mut out, schedule, TOP + rows + 15.0);
    line(&mut out, "</svg>");
    Ok(out)
}

/// One path for each kind of bar: a tenth of the size of one element for each bar.
#[derive(Default)]
struct Bars {
    paths: [[String; 2]; 3],
    numbers: String,
}

const CLASSES: [&str; 3] = ["F", "B", "W"];

impl Bars {
    fn add(&mut self, action: Action, x: f64, y: f64, width: f64) {
        let class = match action.work {
            Work::Forward => 0,
            Work::Backward | Work::InputGradient => 1,
            Work::WeightGradient => 2,
        };
        let path = &mut self.paths[class][action.chunk.min(1)];
        let inner = (width - 1.0).max(0.2);
        // Writing to a string cannot fail.
        let _ = write!(path, "M{} {}h{}v{ROW}h-{2}z", round(x + 0.5), round(y), round(inner));
        if width >= NARROWEST_NUMBER {
            let (x, y) = (round(x + width / 2.0), round(y + 15.0));
            let _ = write!(self.numbers, "<text x=\"{x}\" y=\"{y}\">{}</text>", action.micro_batch);
        }
    }

    fn write(&self, out: &mut String) {
        for (class, paths) in CLASSES.iter().zip(&self.paths) {
            for (path, edge) in paths.iter().zip(["", " c"]).filter(|(path, _)| !path.is_empty()) {
                line(out, &format!("<path class=\"{class}{edge}\" d=\"{path}\"/>"));
            }
        }
        line(out, &format!("<g class=\"n\">{}</g>", self.numbers));
    }
}

fn legend(out: &mut String, schedule: &Schedule, y: f64) {
    let backward = if schedule.kind().splits_backward() { "gradient of the input" } else { "backward" };
    let mut entries = vec![("F", "forward"), ("B", backward)];
    if schedule.kind().splits_backward() {
        entries.push(("W", "gradients of the weights"));
    }
    if schedule.chunks() > 1 {
        entries.push(("F c", "further chunks of the model"));
    }
    entries.push(("idle", "idle"));
    for (index, (class, text)) in entries.into_iter().enumerate() {
        let x = LEFT + 170.0 * index as f64;
        line(out, &format!("<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"14\" height=\"14\"/>", y - 11.0));
        line(out, &format!("<text x=\"{}\" y=\"{y}\">{text}</text>", x + 20.0));
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// To a tenth of a pixel, without a trailing zero.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
