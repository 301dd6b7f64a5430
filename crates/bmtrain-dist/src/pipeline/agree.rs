//! Before the first step: the stages compare their schedules and what crosses the edges between them.

use super::executor::Pipeline;
use super::step::Step;
use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A stage's expectation of the others.
#[derive(Debug, Serialize, Deserialize)]
struct Declaration {
    /// Schedule and partition, for comparison and errors.
    pipeline: String,
    /// By the place after each edge of this stage, what crosses it.
    edges: BTreeMap<usize, String>,
}

impl Pipeline {
    fn describe(&self) -> String {
        let counts = self.stages.partition().map(|partition| partition.counts()).unwrap_or_default();
        format!(
            "{} with {} chunks, {} micro-batches, blocks {counts:?}",
            self.schedule.kind(),
            self.schedule.chunks(),
            self.schedule.micro_batches()
        )
    }
}

impl<M: Model> Step<'_, M> {
    /// Compare with all stages. Collective over the stages; all return the same error, which names both sides.
    pub(super) fn agree(&self) -> Result<()> {
        let ranks = self.pipeline.stages.ranks();
        if ranks.size() > 1 {
            let own = Declaration { pipeline: self.pipeline.describe(), edges: self.own_edges()? };
            let unreadable = |error: serde_json::Error| Error::setting("pipeline", format!("a declaration: {error}"));
            let text = serde_json::to_string(&own).map_err(unreadable)?;
            let texts = ControlGroup::new(Arc::clone(ranks), &self.pipeline.device).gather_texts(&text)?;
            // From stages that are only counted nothing arrives.
            if !texts.iter().all(String::is_empty) {
                let all: Result<Vec<Declaration>, _> = texts.iter().map(|text| serde_json::from_str(text)).collect();
                compare(&all.map_err(unreadable)?, self.pipeline.stages.holders())?;
            }
        }
        self.pipeline.has_agreed.set(true);
        Ok(())
    }

    /// Variables that cross the edges of this stage, with the first micro-batch.
    fn own_edges(&self) -> Result<BTreeMap<usize, String>> {
        let (holders, own) = (self.pipeline.stages.holders(), self.stage());
        let edges = (1..holders.len()).filter(|place| holders[place - 1] == own || holders[*place] == own);
        let text = |place: usize| {
            let tensors: Vec<String> = self.edge(place, 0)?.iter().map(ToString::to_string).collect();
            Ok((place, tensors.join(", ")))
        };
        edges.map(text).collect()
    }
}

fn compare(all: &[Declaration], holders: &[usize]) -> Result<()> {
    let refuse = |(a, of_a): (usize, &str), (b, of_b): (usize, &str), what: String| {
        let reason = format!("{what}: stage {a} has [{of_a}], stage {b} has [{of_b}]; start all stages alike");
        Err(Error::setting("pipeline", reason))
    };
    for (stage, declaration) in all.iter().enumerate() {
        if declaration.pipeline != all[0].pipeline {
            return refuse((0, &all[0].pipeline), (stage, &declaration.pipeline), "the stages disagree".into());
        }
    }
    for place in 1..holders.len() {
        let of = |stage: usize| all.get(stage).and_then(|declaration| declaration.edges.get(&place));
        let (before, after) = (holders[place - 1], holders[place]);
        if of(before) != of(after) {
            let side = |stage| (stage, of(stage).map_or("nothing", String::as_str));
            return refuse(side(before), side(after), format!("the stages disagree on edge {place}"));
        }
    }
    Ok(())
}
