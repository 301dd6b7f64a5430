//! A classifier on the first token: the last block computes nothing else after attention, and the numbers are the same
//! as where it computes every token.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::{Ctx, Device, Segment, Tensor};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::param::{BuilderOptions, widen};
use model_center::config::{BertConfig, MegatronBertConfig, RobertaConfig, TextConfig};
use model_center::model::bert::Bert;
use model_center::model::megatron_bert::MegatronBert;
use model_center::model::roberta::Roberta;
use model_center::model::{Batch, Head, Labels, TextModel};

const ROWS: usize = 6;
const LENGTH: usize = 40;
const HEAD: Head = Head::Classifier { outputs: 3 };

fn batch() -> Batch {
    let ids = (0..ROWS * LENGTH).map(|i| 5 + (i as i64 * 37) % 90).collect();
    let mask = (0..ROWS * LENGTH).map(|i| u8::from(i % LENGTH < 25 + 3 * (i / LENGTH))).collect();
    let labels = Labels::Classes((0..ROWS as i64).map(|row| row % 3).collect());
    Batch { attention_mask: Some(mask), labels: Some(labels), ..Batch::new(LENGTH, ids) }
}

fn text(text: TextConfig) -> TextConfig {
    TextConfig {
        vocab_size: 100,
        dim_model: 32,
        num_heads: 4,
        dim_head: 8,
        dim_ff: 64,
        num_layers: 2,
        dropout_p: 0.2,
        attention_dropout_p: 0.1,
        ..text
    }
}

fn models(device: &Device, recompute: Recompute) -> [Box<dyn TextModel>; 3] {
    let blocks = BlockOptions::from(recompute);
    let bert = BertConfig { text: text(BertConfig::default().text), ..BertConfig::default() };
    let megatron = MegatronBertConfig { text: text(MegatronBertConfig::default().text), ..Default::default() };
    let roberta = RobertaConfig { text: text(RobertaConfig::default().text), ..RobertaConfig::default() };
    [
        Box::new(Bert::new(device, bert, HEAD, blocks, BuilderOptions::default()).unwrap()),
        Box::new(Roberta::new(device, roberta, HEAD, blocks, BuilderOptions::default()).unwrap()),
        Box::new(MegatronBert::new(device, megatron, HEAD, blocks, BuilderOptions::default()).unwrap()),
    ]
}

/// Loss and gradients of a training step, and the elements of each state that an observer sees.
fn step(device: &Device, model: &dyn TextModel, is_observed: bool) -> (f32, Vec<Vec<f32>>, Vec<usize>) {
    let mut cx = Ctx::training(device, Randomness { seed: 3, step: 1, micro_batch: 2 });
    let mut states = Vec::new();
    let loss = match is_observed {
        true => {
            let mut observe = |_: usize, state: &Tensor| {
                states.push(state.elements());
                Ok(())
            };
            model.forward(&batch(), Some(&mut observe), &mut cx).unwrap().loss.unwrap()
        }
        false => model.loss(&batch(), &mut cx).unwrap().unwrap(),
    };
    let value = loss.value().item().unwrap();
    let one = Tensor::from_slice_in(device, [1], &[1.0f32], Segment::Activations).unwrap();
    cx.take_tape().unwrap().backward(device, vec![(loss, one)], &[]).unwrap();
    let gradients = model.parameters().iter().map(|param| widen(&param.grad().unwrap().unwrap()).unwrap()).collect();
    (value, gradients, states)
}

#[test]
fn loss_and_gradients_are_the_same_as_with_all_tokens() {
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        let device = Device::cpu(2).unwrap();
        for (own, all) in models(&device, recompute).iter().zip(models(&device, recompute)) {
            let (loss, gradients, _) = step(&device, &**own, false);
            let (expected, expected_gradients, states) = step(&device, &*all, true);
            assert_eq!(states, [ROWS * LENGTH * 32; 3], "an observer sees every token of every block");
            assert!((loss - expected).abs() <= 1e-6 * expected.abs(), "{loss} for {expected}");
            let largest = expected_gradients.iter().flatten().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let names = own.parameters().iter().map(|param| param.name().to_owned());
            for (name, (ours, theirs)) in names.zip(gradients.iter().zip(&expected_gradients)) {
                for (a, b) in ours.iter().zip(theirs) {
                    assert!((a - b).abs() <= 1e-6 * largest, "{name}: {a} for {b}, the largest is {largest}");
                }
            }
        }
    }
}

#[test]
fn the_activations_of_the_other_tokens_are_not_stored() {
    let device = Device::cpu(1).unwrap();
    let [model, _, pre] = models(&device, Recompute::Keep);
    let kept = |model: &dyn TextModel, is_observed: bool| {
        let mut cx = Ctx::training(&device, Randomness { seed: 3, step: 1, micro_batch: 2 });
        let mut observe = |_: usize, _: &Tensor| Ok(());
        let output = match is_observed {
            true => model.forward(&batch(), Some(&mut observe), &mut cx).unwrap().loss,
            false => model.loss(&batch(), &mut cx).unwrap(),
        };
        let memory = device.memory().segments;
        drop(output);
        memory.into_iter().find(|(segment, _)| *segment == Segment::Activations).unwrap().1.now
    };
    // After attention: its output in the norm, and what the feed-forward layers and their norm keep: 2 x 32 + 64
    // elements of a token at least.
    let least = ROWS * (LENGTH - 1) * (2 * 32 + 64) * 4;
    for model in [&*model, &*pre] {
        let (own, all) = (kept(model, false), kept(model, true));
        assert!(own + least <= all, "{own} bytes and {all}");
    }
}
