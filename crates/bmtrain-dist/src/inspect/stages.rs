//! Rows of the model chunks of a pipeline as one table: [`rows_of_stages`].

use super::moments::Moments;
use super::table::SummaryRow;
use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A row of a chunk, as it goes to other stages: moments as integers, which keep every bit.
#[derive(Serialize, Deserialize)]
struct SentRow {
    place: usize,
    name: String,
    shape: String,
    values: [i64; Moments::WORDS],
    gradient: Option<[i64; Moments::WORDS]>,
}

/// The rows of all stages, in the order of the forward pass. `own` has the rows of each chunk of this stage: the
/// [summary](super::TensorInspector::summary) of the observer that [`Pipeline::set_observers`] gave to it. Collective:
/// all stages get the same. Waits for the device.
///
/// # Errors
/// A failure of the ranks.
pub fn rows_of_stages(pipeline: &Pipeline, own: &[Vec<SummaryRow>]) -> Result<Vec<SummaryRow>> {
    let internal = |error: serde_json::Error| Error::setting("rows of stages", error.to_string());
    let (schedule, stages) = (pipeline.schedule(), pipeline.stages());
    let place = |chunk| schedule.place(stages.ranks().rank(), chunk);
    let rows = own.iter().enumerate().flat_map(|(chunk, rows)| rows.iter().map(move |row| (place(chunk), row)));
    let sent: Vec<SentRow> = rows.map(|(place, row)| SentRow::of(place, row)).collect();
    let text = serde_json::to_string(&sent).map_err(internal)?;
    let ranks = ControlGroup::new(Arc::clone(stages.ranks()), pipeline.device());
    let mut all: Vec<SentRow> = Vec::new();
    for of_stage in ranks.gather_texts(&text)? {
        all.extend(serde_json::from_str::<Vec<SentRow>>(&of_stage).map_err(internal)?);
    }
    all.sort_by_key(|row| row.place);
    Ok(all.into_iter().map(SentRow::into_row).collect())
}

impl SentRow {
    fn of(place: usize, SummaryRow { name, shape, values, gradient }: &SummaryRow) -> Self {
        let (name, shape) = (name.clone(), shape.clone());
        SentRow { place, name, shape, values: values.words(), gradient: gradient.map(|moments| moments.words()) }
    }

    fn into_row(self) -> SummaryRow {
        let SentRow { name, shape, values, gradient, .. } = self;
        let gradient = gradient.map(|words| Moments::of_words(&words));
        SummaryRow { name, shape, values: Moments::of_words(&values), gradient }
    }
}
