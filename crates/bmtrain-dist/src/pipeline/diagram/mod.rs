//! Pictures of a schedule in time: rows of characters for a terminal, SVG for pages.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;

use crate::schedule::{Action, Work};

/// The longest row of a text diagram, in characters.
const MAX_COLUMNS: usize = 4096;

/// The letter of an action: forward, backward, input gradient, weight gradient; lower case for a stage's second, fourth
/// … chunk.
fn letter(action: Action) -> char {
    let letter = match action.work {
        Work::Forward => 'F',
        Work::Backward => 'B',
        Work::InputGradient => 'I',
        Work::WeightGradient => 'W',
    };
    if action.chunk % 2 == 1 { letter.to_ascii_lowercase() } else { letter }
}
