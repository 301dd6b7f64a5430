//! Losses of embeddings against PyTorch in 64-bit floats (`scripts/golden/make_contrastive.py`).

use crate::goldens::{check, directory, distance, f64s, follow_pytorch_by, norm};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::{NamePatterns, widen};
use model_center::contrastive::{ContrastiveLoss, embeddings};
use model_center::data::Batch;
use model_center::formats::SafetensorsFile;
use model_center::model::{OpenOptions, OpenedModel, PoolingMode, Registry, TextHead};

/// The largest relative error of a gradient, as of adapters.
const GRADIENTS: f64 = 1e-4;

/// Name, texts of a sample, temperature and pooling.
const CASES: [(&str, usize, f32, PoolingMode); 2] =
    [("pairs", 2, 0.2, PoolingMode::Mean), ("triplets", 3, 0.5, PoolingMode::First)];

fn golden() -> SafetensorsFile {
    SafetensorsFile::open(&directory("contrastive", "golden.safetensors")).unwrap()
}

fn batch(file: &SafetensorsFile, case: &str, number: usize) -> Batch {
    let ids = |name: &str| file.read_i64(&format!("{case}.batch.{number}.{name}")).unwrap();
    let length = file.entry(&format!("{case}.batch.{number}.input_ids")).unwrap().shape[1];
    let mask = ids("attention_mask").into_iter().map(|value| value as u8).collect();
    Batch { attention_mask: Some(mask), ..Batch::new(length, ids("input_ids")) }
}

/// The tiny BERT without its pooler, which gets no gradient.
fn open(device: &Device, recompute: Recompute) -> OpenedModel {
    let frozen = NamePatterns::new(["pooler.*"]);
    let options = OpenOptions { head: Some(TextHead::None), recompute, frozen, ..OpenOptions::new(device) };
    Registry::default().open(&directory("bert_a", "mlm"), &options).unwrap()
}

#[test]
fn losses_embeddings_and_every_gradient_equal_pytorchs() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    for (case, texts, temperature, pooling) in CASES {
        for recompute in [Recompute::Keep, Recompute::Checkpoint] {
            let opened = open(&device, recompute);
            let mut cx = Ctx::gradients(&device);
            let embeddings = embeddings(&*opened.model, &batch(&file, case, 0), pooling, &mut cx).unwrap();
            let loss = ContrastiveLoss { temperature }.of(&embeddings, texts, &cx).unwrap();
            let theirs = |name: &str| f64s(&file, &format!("{case}.{name}"));
            let values = |var: &Var| widen(var.value()).unwrap();
            check(&format!("{case} embeddings"), &values(&embeddings), &theirs("embeddings"));
            check(&format!("{case} loss"), &values(&loss), &theirs("loss"));
            let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
            cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
            compare_gradients(case, &opened, &file);
        }
    }
}

/// Every gradient of the file with ours. The keys' biases add the same to all logits of a softmax, so that their
/// gradients are zero but for roundings.
fn compare_gradients(case: &str, opened: &OpenedModel, file: &SafetensorsFile) {
    let prefix = format!("{case}.grad.");
    let all = file.tensors().iter().filter(|entry| entry.name.starts_with(&prefix));
    let largest = all.clone().map(|entry| norm(&f64s(file, &entry.name))).fold(0.0, f64::max);
    let mut count = 0;
    for param in opened.model.parameters().iter() {
        let Some(gradient) = param.grad().unwrap() else { continue };
        let gradient = widen(&gradient).unwrap();
        let pieces = opened.model.names().pieces(param.name(), param.spec().shape.dims(), false).unwrap();
        for piece in pieces {
            let (ours, theirs) = (piece.of(&gradient).unwrap(), f64s(file, &format!("{prefix}{}", piece.name)));
            let error = distance(&ours, &theirs) / norm(&theirs).max(1e-3 * largest);
            assert!(error <= GRADIENTS, "{case} grad {}: relative error {error:e}", piece.name);
            count += 1;
        }
    }
    assert_eq!(count, all.count(), "{case}: every gradient is compared");
}

#[test]
fn thirty_adamw_steps_follow_pytorch() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    for (case, texts, temperature, pooling) in CASES {
        let opened = open(&device, Recompute::Keep);
        let batches: Vec<Batch> = (0..3).map(|number| batch(&file, case, number)).collect();
        let loss_of = |step: usize, cx: &mut Ctx| {
            let embeddings = embeddings(&*opened.model, &batches[step % batches.len()], pooling, cx).unwrap();
            ContrastiveLoss { temperature }.of(&embeddings, texts, cx).unwrap()
        };
        follow_pytorch_by((case, &format!("{case}.")), &*opened.model, &file, &device, &loss_of);
    }
}

#[test]
fn embeddings_that_are_not_of_whole_samples_are_refused() {
    let device = Device::cpu(1).unwrap();
    let embeddings = Tensor::from_slice_in(&device, [3, 2], &[1.0f32; 6], Segment::Data).unwrap();
    let loss = ContrastiveLoss { temperature: 0.05 };
    for (texts, expected) in [(2, "3 embeddings of samples of 2 texts"), (1, "3 embeddings of samples of 1 texts")] {
        let error = loss.of(&Var::constant(embeddings.clone()), texts, &Ctx::inference(&device)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    // Embeddings that are all alike leave the choice to chance.
    let alike = Tensor::from_slice_in(&device, [4, 2], &[1.0f32; 8], Segment::Data).unwrap();
    let value = loss.of(&Var::constant(alike), 2, &Ctx::inference(&device)).unwrap().value().item().unwrap();
    assert!((value - 2f32.ln()).abs() < 1e-6, "{value}");
}

#[test]
fn what_has_no_embeddings_is_named() {
    let device = Device::cpu(1).unwrap();
    let (batch, mut cx) = (batch(&golden(), "pairs", 0), Ctx::inference(&device));
    let bert = open(&device, Recompute::Keep);
    let error = embeddings(&*bert.model, &batch, PoolingMode::Max, &mut cx).unwrap_err();
    assert!(error.to_string().contains("pool the mean or the first token"), "{error}");
    let options = OpenOptions { head: Some(TextHead::CausalLm), ..OpenOptions::new(&device) };
    let t5 = Registry::default().open(&directory("t5_a", "lm"), &options).unwrap();
    let error = embeddings(&*t5.model, &batch, PoolingMode::Mean, &mut cx).unwrap_err().to_string();
    assert!(error.contains("an encoder-decoder has no embeddings"), "{error}");
}
