//! Parameters, gradients and optimizer state of a rank against what sharding predicts.

use super::{ONE, ZB_V, config_only, layout, peak, sequence};
use bmtrain_core::wrap::Counting;
use bmtrain_core::{Device, Segment};
use bmtrain_dist::Mesh;
use bmtrain_dist::param::{Param, Split};
use bmtrain_dist::pipeline::{ModelPart, Partition};
use bmtrain_dist::shard::ZeroLevel;
use model_center::model::{OpenMode, OpenOptions, Registry};
use model_center::plan::layout::{LayoutRun, count_rank};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Bytes of parameters, gradients and moments of a rank, by division alone: no rounding, no padding.
fn predicted(directory: &Path, run: &LayoutRun, mesh: Mesh) -> [f64; 3] {
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let options =
        OpenOptions { head: Some(run.head), from_config: true, mode: OpenMode::Check, ..OpenOptions::new(&nowhere) };
    let sketch = Registry::default().open(directory, &options).unwrap().model;
    let schedule = run.schedule().unwrap();
    let partition =
        Partition::of_model(&run.parallel.partition.rule(), sketch.parameters(), schedule.places()).unwrap();
    let holds = |place: usize| schedule.holder(place).0 == mesh.stage();
    let last = schedule.places() - 1;
    let held = |param: &&Param| match param.part() {
        ModelPart::Embed => holds(0),
        ModelPart::Tied => holds(0) || holds(last),
        ModelPart::Block(block) => holds(partition.place_of(block)),
        ModelPart::Head => holds(last),
    };
    let part = |param: &Param| {
        let all = param.spec().shape.elements() as f64;
        if param.spec().split == Split::Replicated { all } else { all / run.parallel.tensor as f64 }
    };
    // The two uses of a tied embedding have a gradient each, on one rank where it holds both.
    let uses = |param: &Param| if param.part() == ModelPart::Tied && holds(0) && holds(last) { 2.0 } else { 1.0 };
    let (mut values, mut gradients, mut storages) = (0.0, 0.0, BTreeMap::new());
    for param in sketch.parameters().declared().iter().filter(held) {
        values += part(param);
        gradients += part(param) * uses(param);
        *storages.entry(format!("{:?}", param.part())).or_insert(0.0) += part(param);
    }
    let shard = |from: ZeroLevel| if run.parallel.zero >= from { run.data as f64 } else { 1.0 };
    // ZeRO-1 reduces the gradients of one storage after the other, each to a shard beside it.
    let reduced = match run.parallel.zero == ZeroLevel::One && run.data > 1 {
        true => storages.into_values().fold(0.0, f64::max) / run.data as f64,
        false => 0.0,
    };
    [4.0 * values / shard(ZeroLevel::Two), 4.0 * (gradients + reduced), 8.0 * values / shard(ZeroLevel::One)]
}

#[test]
fn parameters_gradients_and_state_of_every_rank_are_what_sharding_predicts() {
    let fields = json!({"n_embd": 256, "n_head": 8, "n_layer": 8, "vocab_size": 50_304, "n_positions": 64});
    let tied = config_only(("gpt2_a", "lm"), &fields);
    let untied = config_only(("gpt2_a", "untied"), &fields);
    let mut largest = 0.0f64;
    for (directory, run) in [
        (&tied, layout([2, 1, 1], ONE, 0)),
        (&tied, layout([8, 1, 1], ONE, 0)),
        (&tied, layout([2, 2, 2], ONE, 1)),
        (&tied, sequence(layout([4, 2, 2], ONE, 1))),
        (&tied, layout([2, 4, 1], ONE, 0)),
        (&untied, layout([2, 2, 1], ZB_V, 0)),
        (&untied, layout([2, 2, 4], ONE, 3)),
        (&untied, layout([4, 1, 2], ONE, 2)),
    ] {
        for rank in 0..run.ranks() {
            let mesh = run.parallel.mesh(rank, run.ranks()).unwrap();
            let counted = count_rank(directory.path(), Registry::default(), &run, rank).unwrap();
            let classes = [Segment::Parameters, Segment::Gradients, Segment::Optimizer];
            for (class, predicted) in classes.into_iter().zip(predicted(directory.path(), &run, mesh)) {
                // From ZeRO-2 on gradients are shards, and full ones of blocks under way, which no division predicts.
                if class == Segment::Gradients && run.parallel.zero >= ZeroLevel::Two {
                    continue;
                }
                let ratio = peak(&counted.memory, class) as f64 / predicted;
                assert!(ratio <= 1.03, "rank {rank}, {class:?}: {ratio} of what sharding predicts: {run:?}");
                largest = largest.max(ratio);
            }
        }
    }
    println!("figure: {largest:.4}");
}
