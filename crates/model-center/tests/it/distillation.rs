//! Students of a teacher against Hinton's loss in 64-bit floats (`scripts/golden/make_distillation.py`).

use crate::goldens::{batch, check, directory, distance, f64s, follow_pytorch_by, norm};
use bmtrain_core::ops::{Distillation, Divergence};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::{NamePatterns, widen};
use model_center::data::{Batch, Labels};
use model_center::distillation::{DistillationLoss, Teaching, teaching};
use model_center::formats::SafetensorsFile;
use model_center::model::{LossSettings, OpenOptions, OpenedModel, Registry, TextHead};

/// The largest relative error of a gradient, as of adapters.
const GRADIENTS: f64 = 1e-4;

/// Name, student, teacher and the loss.
const CASES: [(&str, [&str; 2], [&str; 2], DistillationLoss); 4] = [
    ("smaller_teacher", ["llama_a", "lm"], ["mistral_a", "lm"], loss(Divergence::Forward, 2.0, 0.7)),
    ("larger_teacher", ["mistral_a", "untied"], ["llama_a", "lm"], loss(Divergence::Reverse, 1.0, 0.5)),
    ("teacher_alone", ["llama_a", "lm"], ["llama_a", "untied"], loss(Divergence::JensenShannon, 1.5, 1.0)),
    ("classes", ["llama_a", "cls"], ["mistral_a", "cls"], loss(Divergence::Forward, 2.5, 0.6)),
];

const fn loss(divergence: Divergence, temperature: f32, weight: f32) -> DistillationLoss {
    DistillationLoss { distillation: Distillation { divergence, temperature }, weight }
}

fn golden() -> SafetensorsFile {
    SafetensorsFile::open(&directory("distillation", "golden.safetensors")).unwrap()
}

/// The batches of a case; labels of language models are next tokens.
fn batches(file: &SafetensorsFile, case: &str) -> Vec<Batch> {
    let one = |number: usize| {
        let batch = batch(file, &format!("{case}.batch.{number}."));
        match batch.labels.clone() {
            Some(Labels::Classes(labels)) if case != "classes" => {
                Batch { labels: Some(Labels::NextTokens(labels)), ..batch }
            }
            _ => batch,
        }
    };
    (0..3).map(one).collect()
}

fn open(device: &Device, [model, head]: [&str; 2], recompute: Recompute, frozen: &str) -> OpenedModel {
    let kind = if head == "cls" { TextHead::Classification { outputs: 3 } } else { TextHead::CausalLm };
    let frozen = NamePatterns::new([frozen].into_iter().filter(|pattern| !pattern.is_empty()));
    let options = OpenOptions { head: Some(kind), recompute, frozen, ..OpenOptions::new(device) };
    Registry::default().open(&directory(model, head), &options).unwrap()
}

#[test]
fn losses_divergences_and_every_gradient_equal_pytorchs() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    for (case, student, teacher, loss) in CASES {
        let teacher = open(&device, teacher, Recompute::Keep, "*").model;
        for recompute in [Recompute::Keep, Recompute::Checkpoint] {
            let opened = open(&device, student, recompute, "");
            let batch = batches(&file, case).remove(0);
            let taught = teaching(&*teacher, &batch, &device).unwrap();
            let mut cx = Ctx::gradients(&device);
            let ours = loss.of(&*opened.model, &batch, (&taught, LossSettings::default()), &mut cx).unwrap();
            let theirs = |name: &str| f64s(&file, &format!("{case}.{name}"));
            check(&format!("{case} loss"), &widen(ours.loss.value()).unwrap(), &theirs("loss"));
            check(&format!("{case} divergence"), &widen(&ours.divergence).unwrap(), &theirs("divergence"));
            let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
            cx.take_tape().unwrap().backward(&device, vec![(ours.loss, one)], &[]).unwrap();
            compare_gradients(case, &opened, &file);
        }
        assert!(teacher.parameters().iter().all(|param| !param.is_trainable()), "{case}: the teacher is frozen");
    }
}

/// Every gradient of the file with ours.
fn compare_gradients(case: &str, opened: &OpenedModel, file: &SafetensorsFile) {
    let prefix = format!("{case}.grad.");
    let count = file.tensors().iter().filter(|entry| entry.name.starts_with(&prefix)).count();
    let mut compared = 0;
    for param in opened.model.parameters().iter() {
        let gradient = widen(&param.grad().unwrap().unwrap()).unwrap();
        for piece in opened.model.names().pieces(param.name(), param.spec().shape.dims(), true).unwrap() {
            let (ours, theirs) = (piece.of(&gradient).unwrap(), f64s(file, &format!("{prefix}{}", piece.name)));
            let error = distance(&ours, &theirs) / norm(&theirs);
            assert!(error <= GRADIENTS, "{case} grad {}: relative error {error:e}", piece.name);
            compared += 1;
        }
    }
    assert_eq!(compared, count, "{case}: every gradient is compared");
}

#[test]
fn thirty_adamw_steps_follow_pytorch() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    for (case, student, teacher, loss) in CASES {
        let teacher = open(&device, teacher, Recompute::Keep, "*").model;
        let student = open(&device, student, Recompute::Keep, "").model;
        let batches = batches(&file, case);
        let loss_of = |step: usize, cx: &mut Ctx| {
            let batch = &batches[step % batches.len()];
            let taught = teaching(&*teacher, batch, &device).unwrap();
            loss.of(&*student, batch, (&taught, LossSettings::default()), cx).unwrap().loss
        };
        follow_pytorch_by((case, &format!("{case}.")), &*student, &file, &device, &loss_of);
    }
}

#[test]
fn a_teacher_of_another_kind_and_samples_without_labels_are_refused() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    let student = open(&device, ["llama_a", "cls"], Recompute::Keep, "").model;
    let loss = DistillationLoss::default();
    let batch = batches(&file, "classes").remove(0);
    let lm = open(&device, ["mistral_a", "lm"], Recompute::Keep, "*").model;
    let tokens = batches(&file, "smaller_teacher").remove(0);
    let taught = teaching(&*lm, &tokens, &device).unwrap();
    let error = |batch: &Batch, taught: &Teaching| {
        let given = (taught, LossSettings::default());
        loss.of(&*student, batch, given, &mut Ctx::inference(&device)).unwrap_err().to_string()
    };
    let of_lm = error(&batch, &taught);
    assert!(of_lm.contains("the teacher has no classifier's logits"), "{of_lm}");
    let classifier = open(&device, ["mistral_a", "cls"], Recompute::Keep, "*").model;
    let taught = teaching(&*classifier, &batch, &device).unwrap();
    let unlabelled = error(&Batch { labels: None, ..batch }, &taught);
    assert!(unlabelled.contains("there are none"), "{unlabelled}");
}
