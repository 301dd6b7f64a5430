//! Training by a program's own loop: steps equal the steps of a loop by hand, batches add up, settings are checked.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::{NormOrder, UpdateRule};
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, DecayForm, ElementwiseOptions, ParamGroup, ScheduleKind};
use model_center::data::{IGNORED, Labels};
use model_center::model::{Batch, OpenOptions, Registry, TextModel};
use model_center::recipe::{OptimizerSettings, TrainSettings};
use model_center::train::{StepTrainer, StepTraining};
use std::path::Path;

const STEPS: u32 = 4;

fn open(device: &Device) -> Box<dyn TextModel> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama_a/lm");
    Registry::default().open(&directory, &OpenOptions::new(device)).unwrap().model
}

/// Rows of eight tokens, of the second three.
fn batch(rows: usize) -> Batch {
    let ids: Vec<i64> = (0..rows * 8).map(|at| (at * 7 % 40 + 4) as i64).collect();
    let mask = (0..rows * 8).map(|at| u8::from(!(11..16).contains(&at))).collect();
    Batch::next_tokens(8, ids, Some(mask))
}

/// Rows `from..to` of a batch, as a batch of their own.
fn part(whole: &Batch, from: usize, to: usize) -> Batch {
    let mask = whole.attention_mask.as_ref().map(|mask| mask[from * 8..to * 8].to_vec());
    Batch::next_tokens(8, whole.input_ids[from * 8..to * 8].to_vec(), mask)
}

fn settings(more: &[&str]) -> Vec<String> {
    let usual = ["train.steps=4", "train.lr=1e-2", "train.schedule=constant", "train.warmup=0", "train.seed=7"];
    usual.iter().chain(more).map(|setting| (*setting).to_owned()).collect()
}

fn trainer(device: &Device, more: &[&str]) -> Result<StepTrainer, String> {
    let model = open(device);
    let training = StepTraining::of_texts(&*model, device, &settings(more)).map_err(|error| error.to_string())?;
    Ok(training.of(model))
}

#[test]
fn steps_are_those_of_a_loop_by_hand() {
    let device = Device::cpu(1).unwrap();
    let (model, batch) = (open(&device), batch(3));
    let groups = ParamGroup::by_decay(model.parameters(), 0.01);
    let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 }).unwrap();
    optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-2);
    let train = TrainSettings {
        steps: Some(4),
        lr: 1e-2,
        schedule: ScheduleKind::NoDecay,
        seed: 7,
        ..TrainSettings::default()
    };
    let own = open(&device);
    let mut trainer = StepTraining::new(&*own, &device, &train).unwrap().of(own);
    for step in 0..STEPS {
        let mut cx = Ctx::training(&device, Randomness { seed: 7, step, micro_batch: 0 });
        let loss = model.loss(&batch, &mut cx).unwrap().unwrap();
        optim.backward_last(&loss, 1.0, &mut cx).unwrap();
        let info = optim.step().unwrap();
        let done = trainer.step(vec![batch.clone()]).unwrap();
        assert_eq!(done.loss.to_bits(), loss.value().item().unwrap().to_bits(), "step {step}");
        assert_eq!((done.grad_norm, done.lr, done.skipped), (info.grad_norm, 1e-2, false));
        assert_eq!((done.step, done.samples, done.tokens), (u64::from(step) + 1, 3, 19));
    }
    assert_eq!(trainer.steps(), u64::from(STEPS));
    let values = |model: &dyn TextModel| {
        model.parameters().declared().iter().map(|param| param.read().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(values(&*trainer.into_model()), values(&*model));
}

#[test]
fn batches_of_a_step_weigh_by_their_tokens() {
    let device = Device::cpu(1).unwrap();
    let whole = batch(3);
    let (mut one, mut two) = (trainer(&device, &[]).unwrap(), trainer(&device, &[]).unwrap());
    for _ in 0..STEPS {
        let together = one.step(vec![whole.clone()]).unwrap();
        let apart = two.step(vec![part(&whole, 0, 1), part(&whole, 1, 3)]).unwrap();
        assert!((together.loss - apart.loss).abs() <= 1e-4 * together.loss, "{together:?} {apart:?}");
        assert!((together.grad_norm - apart.grad_norm).abs() <= 1e-3 * together.grad_norm, "{together:?} {apart:?}");
        assert_eq!((together.samples, together.tokens), (apart.samples, apart.tokens));
    }
}

#[test]
fn a_batch_without_a_target_changes_no_loss() {
    let device = Device::cpu(1).unwrap();
    let (whole, none) = (batch(3), Batch { labels: Some(Labels::NextTokens(vec![IGNORED; 16])), ..batch(2) });
    let (mut one, mut two) = (trainer(&device, &[]).unwrap(), trainer(&device, &[]).unwrap());
    for _ in 0..STEPS {
        let alone = one.step(vec![whole.clone()]).unwrap();
        let beside = two.step(vec![none.clone(), whole.clone(), none.clone()]).unwrap();
        assert_eq!(beside.loss, alone.loss);
        assert!((beside.grad_norm - alone.grad_norm).abs() <= 1e-6 * alone.grad_norm, "{beside:?} {alone:?}");
    }
}

#[test]
fn settings_that_are_not_of_a_step_are_refused() {
    let device = Device::cpu(1).unwrap();
    let refused = |more: &[&str]| trainer(&device, more).unwrap_err();
    let cases = [
        ("train.batch_size=8", "train.batch_size: it is not a setting of a step"),
        ("train.early_stop.patience=3", "train.early_stop.patience: it is not a setting of a step"),
        ("train.ema=0.9", "train.ema: it is not a setting of a step"),
        ("train.average_from=2", "train.average_from: it is not a setting of a step"),
        ("data.max_length=8", "data.max_length: it is not a setting of a step"),
        ("train.learning_rate=1", "train.lr"),
        ("train.lr=-1", "train.lr"),
        ("train.groups=[{params = [\"no.such\"], lr_factor = 0.1}]", "train.groups"),
    ];
    for (setting, expected) in cases {
        let error = refused(&[setting]);
        assert!(error.contains(expected), "{setting}: {error}");
    }
    let model = open(&device);
    let error = StepTraining::of_texts(&*model, &device, &["train.lr=1".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("train.steps: it is missing"), "{error}");
}

#[test]
fn values_and_texts_are_the_same_settings() {
    let texts = settings(&["train.weight_decay=0", "train.clip_norm=0.5", "train.optimizer=sgd"]);
    let of_texts = TrainSettings::of_step(&texts, DType::F32).unwrap();
    let optimizer = OptimizerSettings::Elementwise(ElementwiseOptions {
        decay_form: DecayForm::Coupled,
        ..ElementwiseOptions::new(UpdateRule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false })
    });
    let values = TrainSettings {
        steps: Some(4),
        lr: 1e-2,
        schedule: ScheduleKind::NoDecay,
        seed: 7,
        weight_decay: 0.0,
        clip: Clip { order: NormOrder::Two, max_norm: 0.5 },
        optimizer,
        ..TrainSettings::default()
    };
    assert_eq!(of_texts, values);
    let device = Device::cpu(1).unwrap();
    let model = open(&device);
    let refused = |train: &TrainSettings| StepTraining::new(&*model, &device, train).unwrap_err().to_string();
    assert!(refused(&TrainSettings::default()).contains("train.steps: it is missing"));
    assert!(refused(&TrainSettings { batch_size: 8, ..values }).contains("which are not of a step"));
}

#[test]
fn steps_without_labels_or_with_labels_of_two_kinds_are_refused() {
    let device = Device::cpu(1).unwrap();
    let mut trainer = trainer(&device, &[]).unwrap();
    let unlabelled = Batch { labels: None, ..batch(2) };
    let classes = Batch { labels: Some(Labels::Classes(vec![0, 1])), ..batch(2) };
    for (batches, expected) in [
        (vec![], "the step: it has no batch"),
        (vec![unlabelled], "batch 0: it has no labels"),
        (vec![batch(2), classes], "batch 1: its labels are not of the kind"),
    ] {
        let error = trainer.step(batches).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(trainer.step(vec![batch(2)]).unwrap().step, 1);
}

#[test]
fn a_batch_weighs_what_it_predicts() {
    let tokens = Batch::next_tokens(3, vec![11, 12, 0, 21, 22, 23], Some(vec![1, 1, 0, 1, 1, 1]));
    assert_eq!(tokens.weight(), 3);
    let packed = Batch { document_starts: Some(vec![0, 0, 2, 2, 2]), ..Batch::next_tokens(5, vec![7; 5], None) };
    assert_eq!(packed.weight(), 3);
    let with = |labels, choices| Batch { labels: Some(labels), choices, ..Batch::new(2, vec![7; 8]) };
    assert_eq!(with(Labels::Target(vec![5, IGNORED, 6, IGNORED]), 1).weight(), 2);
    assert_eq!(with(Labels::Classes(vec![0, 1, 1, 0]), 1).weight(), 4);
    assert_eq!(with(Labels::Classes(vec![1, 0]), 2).weight(), 2);
}
