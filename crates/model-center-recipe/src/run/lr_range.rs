//! Result of a learning-rate range test: loss against learning rate, as a picture.
//!
//! Defines [`LrRange`]. A run with `train.schedule = "range-test"` fills it.

use std::fmt::Write as _;

/// The file in the output directory.
pub const LR_RANGE_FILE: &str = "lr_range.svg";

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
/// Room for labels on the left and at the bottom, and on the other sides.
const MARGIN: f64 = 56.0;
const EDGE: f64 = 12.0;
/// Share of a loss in the smoothed one.
const SMOOTHING: f64 = 0.1;
/// A smoothed loss of this many times the smallest one is one that has left its course.
const DIVERGED: f64 = 1.5;

const STYLE: &str = "text{font:11px sans-serif;fill:#222}.axis{stroke:#888}.loss{fill:none;stroke:#2f7ed8}\
.best{stroke:#d8572f;stroke-dasharray:4 3}\
@media(prefers-color-scheme:dark){text{fill:#ddd}}";

/// The learning rate and the loss of each step, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LrRange {
    /// Learning rate and smoothed loss.
    points: Vec<(f64, f64)>,
}

impl LrRange {
    /// Adds a step. Losses that are not finite end the course.
    pub fn add(&mut self, lr: f64, loss: f64) {
        let before = self.points.last().map_or(loss, |(_, smoothed)| *smoothed);
        if lr > 0.0 && before.is_finite() {
            self.points.push((lr, before + SMOOTHING * (loss - before)));
        }
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.points.len() < 2
    }

    /// The largest learning rate before the smoothed loss left its course.
    pub fn largest(&self) -> Option<f64> {
        let mut least = f64::INFINITY;
        let mut found = None;
        for (lr, loss) in &self.points {
            least = least.min(*loss);
            if !loss.is_finite() || *loss > DIVERGED * least {
                break;
            }
            if *loss <= least {
                found = Some(*lr);
            }
        }
        found
    }

    /// The picture: the smoothed loss over the learning rate, which has a logarithmic axis.
    pub fn svg(&self) -> String {
        let shown: Vec<(f64, f64)> = self.points.iter().filter(|(_, loss)| loss.is_finite()).copied().collect();
        let bounds = |of: &dyn Fn(&(f64, f64)) -> f64| {
            let values = shown.iter().map(of);
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
        };
        let ((left, right), (low, high)) = (bounds(&|point| point.0.ln()), bounds(&|point| point.1));
        let share = |value: f64, low: f64, high: f64| if high > low { (value - low) / (high - low) } else { 0.5 };
        let (inner_width, inner_height) = (WIDTH - MARGIN - EDGE, HEIGHT - MARGIN - EDGE);
        let x = |lr: f64| MARGIN + inner_width * share(lr.ln(), left, right);
        let y = |loss: f64| EDGE + inner_height * (1.0 - share(loss, low, high));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
             <title>loss over learning rate</title>\n<style>{STYLE}</style>\n"
        );
        let bottom = HEIGHT - MARGIN;
        let mut line = |text: String| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{text}");
        };
        line(format!("<path class=\"axis\" fill=\"none\" d=\"M{MARGIN} {EDGE}V{bottom}H{}\"/>", WIDTH - EDGE));
        let points = shown.iter().map(|(lr, loss)| format!("{:.1},{:.1}", x(*lr), y(*loss))).collect::<Vec<_>>();
        line(format!("<polyline class=\"loss\" points=\"{}\"/>", points.join(" ")));
        for (lr, anchor) in [(left.exp(), "start"), (right.exp(), "end")] {
            line(format!("<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{lr:.1e}</text>", x(lr), bottom + 16.0));
        }
        for loss in [low, high] {
            line(format!(
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.3}</text>",
                MARGIN - 6.0,
                y(loss) + 4.0
            ));
        }
        if let Some(lr) = self.largest() {
            line(format!("<path class=\"best\" d=\"M{:.1} {EDGE}V{bottom}\"/>", x(lr)));
            let (at, under) = (x(lr), bottom + 34.0);
            line(format!("<text x=\"{at:.1}\" y=\"{under}\" text-anchor=\"middle\">lowest loss at {lr:.2e}</text>"));
        }
        line("</svg>".to_owned());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_rate_is_that_of_the_lowest_loss_before_it_diverges() {
        let mut range = LrRange::default();
        for step in 0..100 {
            let loss = if step < 60 { 5.0 - f64::from(step) / 20.0 } else { 9.0 };
            range.add(1e-6 * 1.1_f64.powi(step), loss);
        }
        range.add(1.0, f64::NAN);
        range.add(2.0, 1.0);
        let largest = range.largest().unwrap();
        assert!((largest / (1e-6 * 1.1_f64.powi(59)) - 1.0).abs() < 1e-9, "{largest}");
        let svg = range.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
        assert!(svg.contains("lowest loss at 2.77e-4") && svg.contains(">1.0e-6<"), "{svg}");
        assert!(LrRange::default().is_empty() && LrRange::default().largest().is_none());
    }
}
