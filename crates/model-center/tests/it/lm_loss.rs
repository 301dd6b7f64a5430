//! The language-modelling loss without requested logits: the same numbers, without their memory.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::param::{BuilderOptions, widen};
use model_center::config::{BertConfig, Gpt2Config, TextConfig};
use model_center::model::bert::Bert;
use model_center::model::gpt2::Gpt2;
use model_center::model::{Batch, ForwardOptions, ForwardOutputs, Head, LossSettings, TextModel};

const VOCABULARY: usize = 5000;
const ROWS: usize = 8;
const LENGTH: usize = 64;
/// Logits of all tokens in f32.
const LOGITS: usize = ROWS * LENGTH * VOCABULARY * 4;

/// The models with such a head.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Model {
    Gpt2 { tied: bool },
    Bert(Head),
}

const ALL: [Model; 4] = [
    Model::Gpt2 { tied: true },
    Model::Gpt2 { tied: false },
    Model::Bert(Head::MaskedLm),
    Model::Bert(Head::Pretraining),
];

fn model(kind: Model, device: &Device) -> Box<dyn TextModel> {
    let (builder, blocks) = (BuilderOptions::default(), BlockOptions::from(Recompute::Checkpoint));
    let (vocab_size, dim_model, num_heads, dim_head, dim_ff, num_layers) = (VOCABULARY, 32, 2, 16, 64, 2);
    match kind {
        Model::Gpt2 { tied } => {
            let text = TextConfig {
                vocab_size,
                dim_model,
                num_heads,
                dim_head,
                dim_ff,
                num_layers,
                ..Gpt2Config::default().text
            };
            let config = Gpt2Config { text, ..Gpt2Config::default() };
            let head = Head::CausalLm { tied };
            Box::new(Gpt2::new(device, config, head, blocks, builder).unwrap())
        }
        Model::Bert(head) => {
            let text = BertConfig::default().text;
            let text = TextConfig { vocab_size, dim_model, num_heads, dim_head, dim_ff, num_layers, ..text };
            let config = BertConfig { text, ..BertConfig::default() };
            Box::new(Bert::new(device, config, head, blocks, builder).unwrap())
        }
    }
}

fn batch(kind: Model) -> Batch {
    let ids = (0..ROWS * LENGTH).map(|at| ((at * at * 7 + 11 * at) % VOCABULARY) as i64).collect();
    let batch = Batch::next_tokens(LENGTH, ids, None);
    let is_first = |row: usize| (row % 2) as i64;
    match kind {
        Model::Bert(Head::Pretraining) => Batch { next_sentence: Some((0..ROWS).map(is_first).collect()), ..batch },
        Model::Gpt2 { .. } | Model::Bert(_) => batch,
    }
}

fn options(kind: Model, outputs: ForwardOutputs) -> ForwardOptions<'static> {
    let label_smoothing = if matches!(kind, Model::Gpt2 { .. }) { 0.1 } else { 0.0 };
    ForwardOptions { outputs, loss: LossSettings { label_smoothing, ..LossSettings::default() }, observe: None }
}

/// The loss, the largest amount of activations of a training pass, and all gradients.
fn pass(kind: Model, alone: bool) -> (f32, usize, Vec<Vec<f32>>) {
    let device = Device::cpu(1).unwrap();
    let (model, batch) = (model(kind, &device), batch(kind));
    device.reset_peaks();
    let mut cx = Ctx::training(&device, Randomness { seed: 3, step: 0, micro_batch: 0 });
    let outputs = if alone { ForwardOutputs::Loss } else { ForwardOutputs::All };
    let loss = model.forward_with(&batch, options(kind, outputs), &mut cx).unwrap().loss.unwrap();
    let value = loss.value().item().unwrap();
    let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
    cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
    let (_, activations) =
        device.memory().segments.into_iter().find(|(segment, _)| *segment == Segment::Activations).unwrap();
    let gradients = model.parameters().iter().map(|param| widen(&param.grad().unwrap().unwrap()).unwrap());
    (value, activations.peak, gradients.collect())
}

#[test]
fn the_loss_alone_is_that_of_the_logits_in_less_memory_than_they_take() {
    for kind in ALL {
        let (with, alone) = (pass(kind, false), pass(kind, true));
        assert!((with.0 - alone.0).abs() <= 1e-5 * with.0, "{kind:?}: {} and {}", with.0, alone.0);
        assert!(with.1 >= LOGITS, "{kind:?}: {} bytes with logits of {LOGITS}", with.1);
        assert!(alone.1 < LOGITS / 2, "{kind:?}: {} bytes, and the logits take {LOGITS}", alone.1);
        for (index, (with, alone)) in with.2.iter().zip(&alone.2).enumerate() {
            let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
            let apart = norm(&mut with.iter().zip(alone).map(|(with, alone)| with - alone));
            let size = norm(&mut with.iter().copied());
            // Sums in another order. The second term is for biases of keys, whose gradient is zero but for rounding.
            assert!(apart <= 1e-4 * size + 1e-7, "{kind:?}, parameter {index}: {apart} of {size}");
        }
    }
}

#[test]
fn evaluation_asks_for_the_loss_without_the_logits_too() {
    for kind in ALL {
        let device = Device::cpu(1).unwrap();
        let (model, batch) = (model(kind, &device), batch(kind));
        let pass = |batch: &Batch, outputs| {
            model.forward_with(batch, options(kind, outputs), &mut Ctx::inference(&device)).unwrap()
        };
        let of_scores = pass(&batch, ForwardOutputs::All);
        let expected = of_scores.loss.unwrap().value().item().unwrap();
        drop(of_scores.logits);
        device.reset_peaks();
        let loss = pass(&batch, ForwardOutputs::Loss).loss.unwrap().value().item().unwrap();
        assert!((loss - expected).abs() <= 1e-5 * expected, "{kind:?}: {loss} and {expected}");
        let memory = device.memory();
        let (_, activations) =
            memory.segments.into_iter().find(|(segment, _)| *segment == Segment::Activations).unwrap();
        assert!(activations.peak < LOGITS / 2, "{kind:?}: {} bytes", activations.peak);
        // Without labels there is nothing but logits.
        let unlabelled = Batch { labels: None, next_sentence: None, ..batch };
        assert!(pass(&unlabelled, ForwardOutputs::Loss).loss.is_none());
    }
}
