//! Fine-tunes a model on a task of one's own: the similarity of two sentences as a grade from 0 to 5, with a metric of
//! its own. Arguments are settings of a recipe; records have the columns `first`, `second` and `grade`.
//!
//! cargo run --release -p bmtrain-examples --bin own_task -- data.task=similarity data.train=train.csv ...

use model_center::data::{Dataset, Example, Label, LabelSpace, SplitSource, Task};
use model_center::metrics::{Evaluator, LabelKind, Metric, OwnMetric};
use model_center::prelude::*;
use model_center::recipe::as_error;

/// Share of predictions that are at most one grade from the label.
static ADJACENT: OwnMetric = OwnMetric {
    name: "adjacent_accuracy",
    kind: LabelKind::Values,
    larger_is_better: true,
    value: |evaluator| {
        let Evaluator::Values(values) = evaluator else { return None };
        let is_adjacent = |(_, predicted, label): &&(u64, f32, f32)| (predicted - label).abs() <= 1.0;
        Some(values.pairs().iter().filter(is_adjacent).count() as f64 / values.len() as f64)
    },
};

#[derive(Debug, Clone, PartialEq)]
struct Similarity;

impl Task for Similarity {
    fn name(&self) -> &'static str {
        "similarity"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Values
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        static METRICS: [Metric; 2] = [Metric::Own(&ADJACENT), Metric::Spearman];
        Some(&METRICS)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        source.read_records(LabelSpace::Value, &mut |record, examples| {
            let grade = record.whole("grade")?;
            if grade > 5 {
                return Err(record.error("grade", format!("grade {grade} is above 5"), "correct the record"));
            }
            let [first, second] = [record.filled("first")?, record.filled("second")?].map(str::to_owned);
            examples.push(Example { first, second: Some(second), label: Label::Value(grade as f32) });
            Ok(())
        })
    }
}

fn main() -> Result<()> {
    let registry = Registry::default().with_tasks(&[&Similarity]);
    let settings: Vec<String> = std::env::args().skip(1).collect();
    let recipe = Recipe::draft(None, &settings, registry.own_data()).and_then(|draft| draft.resolved());
    let status = finetune(recipe.map_err(as_error)?, &FinetuneOptions::default(), registry)?;
    std::process::exit(status.code().into())
}
