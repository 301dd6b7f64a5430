//! A text diagram: one row for each stage, time from left to right.

use super::{MAX_COLUMNS, letter};
use crate::error::{Error, Result};
use crate::pipeline::simulation::{Simulation, Span};

/// One row for each stage; a second takes `columns_per_second` characters. An action is its letter and its micro-batch,
/// cut to the space it has and filled up with `-`; a dot is time in which the stage waits.
///
/// Letters: F forward, B backward, I gradient of the input, W gradients of the weights; lower case for a stage's
/// second, fourth … chunk.
///
/// # Errors
/// Rows of more than 4096 characters.
pub fn text(simulation: &Simulation, columns_per_second: f64) -> Result<String> {
    let columns = (simulation.time() * columns_per_second).round();
    if !(1.0..=MAX_COLUMNS as f64).contains(&columns) {
        let reason = format!("{columns} characters in a row; expected 1 to {MAX_COLUMNS}: use fewer micro-batches");
        return Err(Error::setting("pipeline diagram", reason));
    }
    let column = |time: f64| (time * columns_per_second).round() as usize;
    let width = simulation.stages().len().saturating_sub(1).to_string().len();
    let rows = simulation.stages().iter().enumerate().map(|(number, stage)| {
        let mut row = vec!['.'; columns as usize];
        for span in &stage.spans {
            let room = column(span.start)..column(span.end);
            let label = label(span);
            let text = label.chars().chain(std::iter::repeat('-'));
            row[room].iter_mut().zip(text).for_each(|(cell, character)| *cell = character);
        }
        format!("{number:>width$} |{}|", row.into_iter().collect::<String>())
    });
    Ok(rows.collect::<Vec<_>>().join("\n"))
}

fn label(span: &Span) -> String {
    format!("{}{}", letter(span.action), span.action.micro_batch)
}
