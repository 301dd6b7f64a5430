//! Blocks divided among pipeline stages by the time they take.

use crate::goldens::{directory, inputs};
use bmtrain_core::Device;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_dist::Mesh;
use bmtrain_dist::pipeline::{PartitionRule, Schedule, ScheduleKind};
use model_center::model::{OpenOptions, Registry, StageOptions, partition_by_time};
use std::sync::Arc;

#[test]
fn all_stages_measure_their_blocks_and_open_the_model_by_the_same_rule() {
    // Masks, a position bias that travels in the flow, an encoder's output, and a head of its own.
    for (golden, blocks) in
        [(("gpt2_a", "untied"), 2), (("t5_a", "lm"), 3), (("bart_a", "lm"), 3), (("bert_a", "mlm"), 2)]
    {
        let (directory, batch) = (directory(golden.0, golden.1), inputs(golden.0, golden.1));
        let open = |rank: HostRank| {
            let device = Device::cpu(1).unwrap();
            let mesh = Mesh::new(bmtrain_core::comm::Communicator::rank(&rank), 2, 2, 1).unwrap();
            let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 1, 2).unwrap();
            let stages =
                StageOptions { ranks: Arc::new(rank), schedule, partition: PartitionRule::Given(vec![1, blocks - 1]) };
            let options = OpenOptions { mesh, stages: Some(stages.clone()), ..OpenOptions::new(&device) };
            let partition = partition_by_time(Registry::default(), &directory, &options, &batch).unwrap();
            let stages = Some(StageOptions { partition: partition.clone(), ..stages });
            let opened = Registry::default().open(&directory, &OpenOptions { stages, ..options }).unwrap();
            (partition, opened.model.parameters().stages().partition().unwrap().counts())
        };
        let ranks = HostGroup::threads(2, HostOptions::default()).unwrap();
        let opened: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| open(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(opened[0], opened[1]);
        let (PartitionRule::Time(costs), counts) = &opened[0] else { panic!("{golden:?}: {opened:?}") };
        assert!(costs.blocks.len() == blocks && costs.blocks.iter().all(|time| *time > 0), "{costs:?}");
        assert!(costs.head > 0 && counts.iter().sum::<usize>() == blocks, "{golden:?}: {opened:?}");
    }
}

#[test]
fn a_model_on_one_stage_is_not_measured() {
    let options = OpenOptions::new(&Device::cpu(1).unwrap());
    let directory = directory("gpt2_a", "lm");
    let error = partition_by_time(Registry::default(), &directory, &options, &inputs("gpt2_a", "lm")).unwrap_err();
    assert!(error.to_string().contains("one stage"), "{error}");
}
