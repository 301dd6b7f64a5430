//! `ckpt export` on checkpoints of runs over stages.

use super::RUN;
use super::models::{GPT2, T5};
use crate::fixture::program;
use crate::tensor::train;

#[test]
fn an_exported_checkpoint_of_stages_has_the_bytes_of_one_stage() {
    for (model, layout) in [
        (&GPT2, &["parallel.pipeline=2"][..]),
        (&T5, &["parallel.pipeline=2", "parallel.schedule=zb-v", "parallel.partition=[1, 2, 1, 1]"]),
    ] {
        let fixture = model.fixture();
        let sets = [&RUN[2..], &["save.which=last", "train.steps=4", "checkpoint.every=2 steps"]].concat();
        train(&fixture, "alone", 1, &sets).succeeded();
        train(&fixture, "staged", 2, &[&sets[..], layout].concat()).succeeded();
        let export = |from: &str, to: &str| {
            fixture.run(program("ckpt"), &["export", from, to]).succeeded();
            fixture.bytes(&format!("{to}/model.safetensors"))
        };
        let last = export("staged", "last");
        assert!(last == fixture.bytes("staged/model/model.safetensors"), "{:?}", model.golden);
        assert!(last == export("alone", "of-one"), "{:?}", model.golden);
        let middle = export("staged@2", "middle");
        assert!(middle == export("alone@2", "middle-of-one") && middle != last, "{:?}", model.golden);
        let config = |directory: &str| fixture.bytes(&format!("{directory}/config.json"));
        assert!(config("last") == config("of-one"));
    }
}
