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

/// Outputs and losses of batches one after the other on every rank.
fn on_one_stage(run: &Run, batches: &[Batch]) -> Vec<(Vec<Bits>, Vec<Option<f32>>)> {
    on_mesh(run, |rank| {
        let cx = || Ctx::inference(&rank.device);
        let outputs = batches.iter().map(|batch| bits(&rank.model.forward(batch, None, &mut cx()).unwrap()));
        let loss = |batch| rank.model.loss(batch, &mut cx()).unwrap().map(|loss| loss.value().item().unwrap());
        (outputs.collect(), batches.iter().map(loss).collect())
    })
}

fn on_stages(run: &Run, batches: &[Batch]) -> Vec<(Vec<Bits>, Vec<Option<f32>>)> {
    on_mesh(run, |rank| {
        let pipeline = rank.pipeline.as_ref().unwrap();
        let of = |wants| rank.model.forward_stages(pipeline, batches, wants).unwrap();
        let outputs: Vec<Bits> = of(ForwardOutputs::All).iter().map(bits).collect();
        let losses = of(ForwardOutputs::Loss);
        assert!(losses.iter().all(|output| output.logits.is_none() && output.extra.is_empty()));
        let loss = |output: ModelOutput| output.loss.map(|loss| loss.value().item().unwrap());
        let named = forward_stages(&*rank.model, &batches[0], pipeline).unwrap();
        let named: Vec<String> = named.into_iter().map(|tensor| tensor.entry.name).collect();
        assert!(outputs[0].iter().map(|(name, ..)| name).eq(&named), "{run:?}");
        (outputs, losses.into_iter().map(loss).collect())
    })
}

#[test]
fn outputs_of_every_kind_of_model_are_those_of_one_stage_on_all_stages() {
    for (golden, tensor) in [
        (("gpt2_a", "lm"), 1),
        (("gpt2_a", "lm"), 2),
        (("llama_a", "cls"), 1),
        (("bloom_a", "untied"), 2),
        (("bert_a", "cls"), 1),
        (("bert_a", "cls"), 2),
        (("bert_a", "pretraining"), 1),
        (("roberta_a", "mlm"), 1),
        (("megatron_bert_a", "cls"), 2),
        (("megatron_bert_a", "pretraining"), 1),
        (("t5_a", "lm"), 1),
        (("bart_a", "cls"), 1),
    ] {
        let (batches, run) = (batches(golden), Run { golden, tensor, ..Run::default() });
        let expected = on_one_stage(&run, &batches);
        assert!(expected[0].0[0].len() > 1 && expected[0].1[0].is_some(), "{golden:?}");
        let staged = on_stages(&Run { stages: 2, ..run }, &batches);
        assert!(staged.iter().all(|stage| *stage == expected[0]), "{golden:?}, {tensor} tensor-parallel ranks");
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
