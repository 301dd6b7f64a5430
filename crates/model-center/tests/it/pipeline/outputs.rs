//! Forward passes over stages give the outputs of one stage on every stage, to the last bit.

use super::{Run, on_mesh};
use crate::goldens::inputs;
use bmtrain_core::Ctx;
use bmtrain_dist::param::widen;
use bmtrain_dist::pipeline::{PartitionRule, ScheduleKind};
use model_center::data::Batch;
use model_center::inference::forward_stages;
use model_center::model::{ForwardOutputs, ModelOutput};

/// Bits of the outputs of a batch, by name.
type Bits = Vec<(String, Vec<usize>, Vec<u32>)>;

fn bits(output: &ModelOutput) -> Bits {
    let first = [("logits", output.logits.as_ref()), ("loss", output.loss.as_ref())];
    let first = first.into_iter().filter_map(|(name, var)| Some((name, var?)));
    let all = first.chain(output.extra.iter().map(|(name, var)| (*name, var)));
    let bits = |var| widen(var).unwrap().into_iter().map(f32::to_bits).collect();
    all.map(|(name, var)| (name.to_owned(), var.shape().dims().to_vec(), bits(var.value()))).collect()
}

/// The golden inputs, with other tokens where a classifier does not look for one of them.
fn batches((model, head): (&str, &str)) -> Vec<Batch> {
    let other = |salt: i64| {
        let mut batch = inputs(model, head);
        if head != "cls" {
            batch.input_ids.iter_mut().for_each(|id| *id = (*id + 3 * salt) % 31 + 1);
        }
        batch
    };
    (0..4).map(other).collect()
}

#[test]
fn outputs_of_every_kind_of_model_are_those_of_one_stage_on_all_stages() {
    for golden in [
        ("gpt2_a", "lm"),
        ("llama_a", "cls"),
        ("bloom_a", "untied"),
        ("bert_a", "cls"),
        ("bert_a", "pretraining"),
        ("roberta_a", "mlm"),
        ("t5_a", "lm"),
        ("bart_a", "cls"),
    ] {
        let batches = batches(golden);
        let alone = on_mesh(&Run { golden, ..Run::default() }, |rank| {
            let mut cx = Ctx::inference(&rank.device);
            let all =
                |batch: &Batch| bits(&rank.model.forward(batch, None, &mut Ctx::inference(&rank.device)).unwrap());
            let outputs: Vec<Bits> = batches.iter().map(all).collect();
            let loss =
                |batch: &Batch| rank.model.loss(batch, &mut cx).unwrap().map(|loss| loss.value().item().unwrap());
            (outputs, batches.iter().map(loss).collect::<Vec<Option<f32>>>())
        });
        for (stages, tensor) in [(2, 1), (2, 2)] {
            let run = Run { golden, stages, tensor, ..Run::default() };
            let staged = on_mesh(&run, |rank| {
                let pipeline = rank.pipeline.as_ref().unwrap();
                let of = |wants| rank.model.forward_stages(pipeline, &batches, wants).unwrap();
                let outputs: Vec<Bits> = of(ForwardOutputs::All).iter().map(bits).collect();
                let losses = of(ForwardOutputs::Loss);
                assert!(losses.iter().all(|output| output.logits.is_none() && output.extra.is_empty()));
                let losses: Vec<Option<f32>> =
                    losses.into_iter().map(|output| output.loss.map(|loss| loss.value().item().unwrap())).collect();
                let named = forward_stages(&*rank.model, &batches[0], pipeline).unwrap();
                let named: Vec<String> = named.into_iter().map(|tensor| tensor.entry.name).collect();
                assert!(outputs[0].iter().map(|(name, ..)| name).eq(&named), "{golden:?}");
                (outputs, losses)
            });
            assert!(staged.iter().all(|stage| *stage == staged[0]), "{golden:?}");
            // The order of sums over tensor-parallel ranks is another one.
            assert!(tensor > 1 || staged[0] == alone[0], "{golden:?}");
        }
    }
}

#[test]
fn outputs_of_several_chunks_of_a_stage_are_those_of_one_stage() {
    // Three blocks and the head in four places.
    let golden = ("qwen3_a", "lm");
    let batches = batches(golden);
    let alone = on_mesh(&Run { golden, ..Run::default() }, |rank| {
        let forward = |batch| bits(&rank.model.forward(batch, None, &mut Ctx::inference(&rank.device)).unwrap());
        batches.iter().map(forward).collect::<Vec<_>>()
    });
    for kind in [ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV] {
        let partition = PartitionRule::Given(vec![1, 1, 1, 0]);
        let run = Run { golden, kind, stages: 2, chunks: 2, partition, ..Run::default() };
        let staged = on_mesh(&run, |rank| {
            let outputs =
                rank.model.forward_stages(rank.pipeline.as_ref().unwrap(), &batches, ForwardOutputs::All).unwrap();
            outputs.iter().map(bits).collect::<Vec<_>>()
        });
        assert!(staged.iter().all(|stage| *stage == alone[0]), "{kind:?}");
    }
}
