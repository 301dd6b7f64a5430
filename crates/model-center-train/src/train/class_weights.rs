//! The classes of a run: how many samples each has, and what each weighs in the training loss.
//!
//! Defines [`weights`], which `setup` calls once the data are read, and [`describe`], for the summary of a run.

use crate::{Error, Result};
use model_center_base::batch::LabelSpace;
use model_center_base::file::printable;
use model_center_data::Dataset;
use model_center_recipe::Resolved;

/// Classes whose counts are printed; the rest is one number.
const SHOWN: usize = 20;

/// The weight of each class of the training data; `None` where the recipe sets none.
///
/// # Errors
/// Names that are no classes, classes without a weight, a task without named classes.
pub(super) fn weights(resolved: &Resolved, train: &Dataset) -> Result<Option<Vec<f32>>> {
    let Some(weights) = &resolved.data.class_weights else { return Ok(None) };
    let wrong = |reason: String, fix: String| Error::recipe(resolved.place("data.class_weights"), reason, fix);
    let LabelSpace::Classes(names) = train.labels() else {
        let reason = format!("task {} has no named classes", resolved.data.source.task().name());
        return Err(wrong(reason, "remove data.class_weights".to_owned()));
    };
    let counts = train.class_counts();
    let classes: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(counts).collect();
    match weights.of(&classes) {
        Ok(weights) => Ok(Some(weights)),
        Err((reason, fix)) => Err(wrong(format!("`data.class_weights`: {reason}"), fix)),
    }
}

/// The samples of each class, and their weights, on a line; `None` of data without named classes.
pub(super) fn describe(data: &Dataset, weights: Option<&[f32]>) -> Option<String> {
    let names = match data.labels() {
        LabelSpace::Classes(names) | LabelSpace::LabelSets(names) => names,
        LabelSpace::Verbalizer(answers) => &answers.names,
        _ => return None,
    };
    let counts = data.class_counts();
    let class = |(at, (name, count)): (usize, (&String, u64))| {
        let weight = weights.and_then(|weights| weights.get(at)).map(|weight| format!(" (weight {weight:.4})"));
        format!("{} {count}{}", printable(name, 40), weight.unwrap_or_default())
    };
    let mut shown: Vec<String> = names.iter().zip(counts).enumerate().take(SHOWN).map(class).collect();
    if names.len() > SHOWN {
        shown.push(format!("and {} classes more", names.len() - SHOWN));
    }
    Some(shown.join(", "))
}
