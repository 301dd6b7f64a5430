//! `plan` of a recipe over stages, by counting: the pool of the fullest stage.

use super::models::{BERT, GPT2, LLAMA};
use super::{RUN, on_stages};
use crate::tensor::{records, train};
use serde_json::Value;

/// Bytes of four messages: the plan has those that no receiver has taken yet, and in a run receivers may be early. They
/// are a few percent of the pools of these small models.
const MESSAGES: f64 = 4.0 * 3072.0;

#[test]
fn a_plan_over_stages_is_close_to_the_pool_of_the_fullest_stage() {
    for (model, stages, schedule, more) in [
        (&LLAMA, 2, "1f1b", &["parallel.partition=[1, 3]"][..]),
        (&LLAMA, 4, "gpipe", &["train.recompute=true"]),
        (&GPT2, 2, "zb-v", &[]),
        (&BERT, 2, "interleaved", &["model.dtype=bf16"]),
    ] {
        let fixture = model.fixture();
        let layout = on_stages(stages, schedule);
        let sets = [&RUN[..], &["train.steps=3"], &layout.each_ref().map(String::as_str), more].concat();
        let arguments = ["--json", "--ranks", if stages == 2 { "2" } else { "4" }];
        let arguments = arguments.into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).collect::<Vec<_>>();
        let plan: Value = serde_json::from_str(&fixture.plan(&arguments).succeeded().stdout).unwrap();
        train(&fixture, "run", stages, &sets).succeeded();
        let measured = &records(&fixture, "run", "end")[0]["time"]["pool_peak_bytes"];
        let (planned, measured) = (plan["pool"]["peak_bytes"].as_f64().unwrap(), measured.as_f64().unwrap());
        let room = 0.98 * measured..=1.05 * measured + MESSAGES;
        assert!(room.contains(&planned), "{schedule}: {planned} planned, {measured} measured: {plan}");
        assert_eq!((&plan["pipeline"], &plan["micro_batches"]), (&stages.into(), &4.into()), "{plan}");
        // One stage alone would hold more than each of several.
        let alone = fixture.plan(&["--json", "--set", "train.batch_size=8", "--set", "train.micro_batch_size=2"]);
        let alone: Value = serde_json::from_str(&alone.succeeded().stdout).unwrap();
        let parameters = |plan: &Value| plan["pool"]["own_peaks"]["parameters"].as_f64().unwrap();
        assert!(parameters(&plan) < parameters(&alone), "{plan} {alone}");
    }
}
