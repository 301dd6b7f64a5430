//! Losses of pairs of completions against TRL's formulas in 64-bit floats (`scripts/golden/make_preference.py`).

use crate::goldens::{batch, check, directory, distance, f64s, follow_pytorch_by, norm};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::adapter::{Adapter, PeftDetails};
use model_center::data::{Batch, Labels};
use model_center::formats::{SafetensorsFile, TensorSource};
use model_center::model::{OpenOptions, OpenedModel, Registry, TextHead, TextModel};
use model_center::preference::{
    PairedSequences, PreferenceKind, PreferenceLoss, PreferenceOutcome, UnpairedSequences, labelled_tokens, log_probs,
    own_and_mismatched,
};

/// The largest relative error of a gradient, as of adapters.
const GRADIENTS: f64 = 1e-4;

/// Of the first row of each pair, whose second row is the mismatch.
const GOOD: [bool; 3] = [true, false, true];

const CASES: [(&str, PreferenceLoss, Option<&str>); 7] = [
    ("dpo", loss(PreferenceKind::Dpo, 0.3, 0.0, 0.1), None),
    ("ipo", loss(PreferenceKind::Ipo, 0.2, 0.0, 0.0), None),
    ("simpo", loss(PreferenceKind::Simpo, 2.0, 0.5, 0.0), None),
    ("dpo_lora", loss(PreferenceKind::Dpo, 0.1, 0.0, 0.0), Some("llama")),
    ("orpo", loss(PreferenceKind::Orpo, 0.6, 0.0, 0.0), None),
    ("kto", loss(PreferenceKind::Kto, 0.4, 0.0, 0.0), None),
    ("kto_lora", loss(PreferenceKind::Kto, 0.3, 0.0, 0.0), Some("llama")),
];

const fn loss(kind: PreferenceKind, beta: f32, gamma: f32, label_smoothing: f32) -> PreferenceLoss {
    PreferenceLoss { kind, beta, gamma, label_smoothing, label_weights: [1.2, 0.8] }
}

fn golden() -> SafetensorsFile {
    SafetensorsFile::open(&directory("preference", "golden.safetensors")).unwrap()
}

/// The batches of the file, whose labels are of next tokens.
fn batches(file: &SafetensorsFile) -> Vec<Batch> {
    let one = |number: usize| {
        let batch = batch(file, &format!("batch.{number}."));
        let Some(Labels::Classes(labels)) = batch.labels.clone() else { panic!("labels are tokens") };
        Batch { labels: Some(Labels::NextTokens(labels)), ..batch }
    };
    (0..3).map(one).collect()
}

fn open(device: &Device, adapter: Option<&str>, recompute: Recompute) -> OpenedModel {
    let adapter = adapter.map(|name| Adapter::Saved(directory("adapters", name)));
    let options = OpenOptions { adapter, head: Some(TextHead::CausalLm), recompute, ..OpenOptions::new(device) };
    Registry::default().open(&directory("llama_a", "lm"), &options).unwrap()
}

/// The reference of a batch: as the file has it, or of the model without its updates.
fn reference(
    (case, number): (&str, usize),
    file: &SafetensorsFile,
    (model, batch): (&dyn TextModel, Option<&Batch>),
    device: &Device,
) -> Tensor {
    let theirs = f64s(file, &format!("{case}.reference.{number}"));
    let Some(batch) = batch else {
        let values: Vec<f32> = theirs.iter().map(|value| *value as f32).collect();
        return Tensor::from_slice_in(device, [values.len()], &values, Segment::Data).unwrap();
    };
    let ours = model.parameters().without_updates(|| log_probs(model, batch, &mut Ctx::inference(device)));
    let ours = ours.unwrap().into_value();
    check(&format!("{case} reference"), &widen(&ours).unwrap(), &theirs);
    ours
}

fn outcome(
    loss: PreferenceLoss,
    model: &dyn TextModel,
    (batch, reference): (&Batch, &Tensor),
    cx: &mut Ctx,
) -> PreferenceOutcome {
    if loss.kind == PreferenceKind::Kto {
        let [own, mismatch] = own_and_mismatched(batch);
        let reference = widen(reference).unwrap();
        let [of_own, of_mismatch] = [0, 1].map(|first| {
            let values: Vec<f32> = reference.iter().skip(first).step_by(2).copied().collect();
            Tensor::from_slice_in(cx.device(), [values.len()], &values, Segment::Data).unwrap()
        });
        let policy = log_probs(model, &mismatch, &mut Ctx::inference(cx.device())).unwrap().into_value();
        let log_probs = log_probs(model, &own, cx).unwrap();
        let unpaired = UnpairedSequences { is_good: &GOOD, reference: &of_own, mismatch: [&policy, &of_mismatch] };
        return loss.of_unpaired(&log_probs, unpaired, cx).unwrap();
    }
    let log_probs = log_probs(model, batch, cx).unwrap();
    let tokens = labelled_tokens(batch);
    loss.of(&log_probs, PairedSequences { tokens: &tokens, reference: Some(reference) }, cx).unwrap()
}

#[test]
fn losses_rewards_and_every_gradient_equal_trls_formulas() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    let batch = batches(&file).remove(0);
    for (case, loss, adapter) in CASES {
        for recompute in [Recompute::Keep, Recompute::Checkpoint] {
            let opened = open(&device, adapter, recompute);
            let model = &*opened.model;
            let reference = reference((case, 0), &file, (model, adapter.map(|_| &batch)), &device);
            let mut cx = Ctx::gradients(&device);
            let outcome = outcome(loss, model, (&batch, &reference), &mut cx);
            let theirs = |name: &str| f64s(&file, &format!("{case}.{name}"));
            let values = |var: &Var| widen(var.value()).unwrap();
            check(&format!("{case} log-probabilities"), &values(&outcome.log_probs), &theirs("log_probs"));
            // Differences of log-probabilities keep the error of these.
            let rewards = distance(&values(&outcome.rewards), &theirs("rewards")) / norm(&theirs("rewards"));
            assert!(rewards <= GRADIENTS, "{case} rewards: relative error {rewards:e}");
            check(&format!("{case} loss"), &values(&outcome.loss), &theirs("loss"));
            let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
            cx.take_tape().unwrap().backward(&device, vec![(outcome.loss, one)], &[]).unwrap();
            compare_gradients(case, &opened, &file);
        }
    }
}

/// Every gradient of the file with ours, under the names that files have.
fn compare_gradients(case: &str, opened: &OpenedModel, file: &SafetensorsFile) {
    let prefix = format!("{case}.grad.");
    let count = file.tensors().iter().filter(|entry| entry.name.starts_with(&prefix)).count();
    let parameters = opened.model.parameters();
    let gradient = |name: &str| widen(&parameters.get(name).unwrap().grad().unwrap().unwrap()).unwrap();
    let mut ours: Vec<(String, Vec<f32>)> = Vec::new();
    match &opened.adapter {
        Some(plan) => {
            let written = tempfile::tempdir().unwrap();
            let details = PeftDetails { base_model: "base", revision: None, dtype: DType::F32 };
            let mut fill = |name: &str, values: &mut Vec<f32>| {
                *values = gradient(name);
                Ok(())
            };
            plan.write(written.path(), &details, &mut fill).unwrap();
            let weights = SafetensorsFile::open(&written.path().join(model_center::adapter::ADAPTER_WEIGHTS)).unwrap();
            for entry in weights.tensors() {
                let mut values = vec![0.0; entry.elements().unwrap()];
                weights.read_f32(&entry.name, &mut values).unwrap();
                ours.push((entry.name.clone(), values));
            }
        }
        None => {
            for param in parameters.iter() {
                let gradient = gradient(param.name());
                for piece in opened.model.names().pieces(param.name(), param.spec().shape.dims(), true).unwrap() {
                    ours.push((piece.name.clone(), piece.of(&gradient).unwrap().into_owned()));
                }
            }
        }
    }
    assert_eq!(ours.len(), count, "{case}: every gradient is compared");
    for (name, values) in ours {
        let theirs = f64s(file, &format!("{prefix}{name}"));
        let error = distance(&values, &theirs) / norm(&theirs);
        assert!(error <= GRADIENTS, "{case} grad {name}: relative error {error:e}");
    }
}

#[test]
fn thirty_adamw_steps_follow_trls_formulas() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    let batches = batches(&file);
    for (case, loss, adapter) in CASES {
        let opened = open(&device, adapter, Recompute::Keep);
        let model = &*opened.model;
        // The reference of updates is the same at every step, whatever they have become.
        let loss_of = |step: usize, cx: &mut Ctx| {
            let number = step % batches.len();
            let batch = &batches[number];
            let reference = reference((case, number), &file, (model, adapter.map(|_| batch)), &device);
            outcome(loss, model, (batch, &reference), cx).loss
        };
        follow_pytorch_by((case, &format!("{case}.")), model, &file, &device, &loss_of);
    }
}

#[test]
fn log_probabilities_are_sums_of_the_losses_of_learned_tokens() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    let batch = batches(&file).remove(1);
    let opened = open(&device, None, Recompute::Keep);
    let summed = log_probs(&*opened.model, &batch, &mut Ctx::inference(&device)).unwrap();
    let sum: f32 = widen(summed.value()).unwrap().iter().sum();
    let mean = opened.model.loss(&batch, &mut Ctx::inference(&device)).unwrap().unwrap().value().item().unwrap();
    let tokens: usize = labelled_tokens(&batch).iter().sum();
    assert!((sum + mean * tokens as f32).abs() <= 1e-5 * sum.abs(), "{sum} for {mean} of {tokens} tokens");
    // Without labels there is nothing to sum.
    let unlabelled = Batch { labels: None, ..batch };
    let error = log_probs(&*opened.model, &unlabelled, &mut Ctx::inference(&device)).unwrap_err().to_string();
    assert!(error.contains("no log-probabilities"), "{error}");
}

#[test]
fn mistakes_are_errors_that_name_them() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let log_probs = |count: usize| {
        let values = vec![-1.0f32; count];
        Var::constant(Tensor::from_slice_in(&device, [count], &values, Segment::Data).unwrap())
    };
    let dpo = loss(PreferenceKind::Dpo, 0.1, 0.0, 0.0);
    for (count, tokens, expected) in [
        (3, &[1, 1, 1][..], "3 log-probabilities, of sequences of 3 lengths"),
        (2, &[1], "2 log-probabilities, of sequences of 1 lengths"),
        (2, &[1, 1], "there is no reference"),
    ] {
        let pairs = PairedSequences { tokens, reference: None };
        let error = dpo.of(&log_probs(count), pairs, &cx).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn kto_has_no_pairs_and_its_judgements_are_of_its_completions() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let numbers = Tensor::from_slice_in(&device, [2], &[-1.0f32, -2.0], Segment::Data).unwrap();
    let log_probs = Var::constant(numbers.clone());
    let [dpo, kto] = [PreferenceKind::Dpo, PreferenceKind::Kto].map(PreferenceLoss::new);
    let pairs = PairedSequences { tokens: &[1, 1], reference: Some(&numbers) };
    let error = kto.of(&log_probs, pairs, &cx).unwrap_err().to_string();
    assert!(error.contains("judged one by one"), "{error}");
    for (loss, is_good) in [(dpo, &[true, false][..]), (kto, &[true])] {
        let unpaired = UnpairedSequences { is_good, reference: &numbers, mismatch: [&numbers, &numbers] };
        let error = loss.of_unpaired(&log_probs, unpaired, &cx).unwrap_err().to_string();
        assert!(error.contains("give a judgement for each completion"), "{error}");
    }
    // Where model and reference agree, the sigmoid is a half.
    let unpaired = UnpairedSequences { is_good: &[true, false], reference: &numbers, mismatch: [&numbers, &numbers] };
    assert_eq!(kto.of_unpaired(&log_probs, unpaired, &cx).unwrap().loss.value().item().unwrap(), 0.5);
}
