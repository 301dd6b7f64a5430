//! Training by a program's own loop: steps equal the steps of a loop by hand, batches add up, settings are checked.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::{NormOrder, UpdateRule};
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, DecayForm, ElementwiseOptions, ParamGroup, ScheduleKind};
use bmtrain_dist::param::F32Parameters;
use bmtrain_dist::pipeline::MicroBatch;
use model_center::data::{IGNORED, Labels};
use model_center::model::{Batch, OpenOptions, Registry, TextModel};
use model_center::recipe::{BatchRamp, OptimizerSettings, TrainSettings};
use model_center::train::{Objective, ObjectiveLoss, Pass, StepPasses, StepRunner, StepTrainer, StepTraining};
use model_center::{Error, Result as ModelResult};
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
    training.of(model).map_err(|error| error.to_string())
}

fn values(model: &dyn TextModel) -> Vec<Vec<f32>> {
    model.parameters().declared().iter().map(|param| param.read().unwrap()).collect()
}

/// A batch that fails in its forward pass: it has a token beyond the vocabulary.
fn failing() -> Batch {
    Batch::next_tokens(8, vec![1_000_000; 8], None)
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
    let mut trainer = StepTraining::new(&*own, &device, &train).unwrap().of(own).unwrap();
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
        ("train.batch_ramp={start=4, increment=4, samples=8}", "train.batch_ramp.increment: it is not a setting"),
        ("train. epochs=3", "train.epochs: it is not a setting of a step"),
        ("train={epochs=3}", "train.epochs: it is not a setting of a step"),
        ("train.label_smoothing=1", "train.label_smoothing"),
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
    assert!(refused(&TrainSettings { label_smoothing: 1.5, ..values.clone() }).contains("train.label_smoothing: 1.5"));
    let ramp = Some(BatchRamp { start: 4, increment: 4, samples: 8, batch: 32 });
    assert!(
        refused(&TrainSettings { batch_ramp: ramp, ..values.clone() }).contains("train.batch_ramp.start: it is not")
    );
    assert!(refused(&TrainSettings { batch_size: 8, ..values }).contains("train.batch_size: it is not a setting"));
}

#[test]
fn optimizer_state_that_cannot_be_on_the_host_is_refused_there() {
    let device = Device::cpu(1).unwrap();
    for optimizer in ["muon", "adafactor", "adamw-8bit"] {
        let optimizer = format!("train.optimizer={optimizer}");
        let error = trainer(&device, &[&optimizer, "train.offload=true"]).unwrap_err();
        assert!(error.contains("train.offload: the host updates each element by itself"), "{optimizer}: {error}");
        trainer(&device, &[&optimizer]).unwrap();
    }
    trainer(&device, &["train.offload=true"]).unwrap();
}

#[test]
fn a_failed_step_leaves_no_gradients() {
    let device = Device::cpu(1).unwrap();
    let (mut one, mut two) = (trainer(&device, &[]).unwrap(), trainer(&device, &[]).unwrap());
    one.step(vec![batch(2), failing()]).unwrap_err();
    for _ in 0..2 {
        assert_eq!(one.step(vec![batch(3)]).unwrap().grad_norm, two.step(vec![batch(3)]).unwrap().grad_norm);
    }
    assert_eq!(values(&*one.into_model()), values(&*two.into_model()));
}

#[test]
fn a_failed_step_of_a_runner_leaves_no_gradients() {
    let device = Device::cpu(1).unwrap();
    let runner = || {
        let model = open(&device);
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        let groups = ParamGroup::by_decay(model.parameters(), 0.01);
        optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-2);
        StepRunner::new(&device, model, optim, 2).unwrap()
    };
    let load = |fails: bool| {
        move |number: usize| {
            let batch = if fails && number == 1 { failing() } else { batch(2) };
            let randomness = Randomness { seed: 7, step: 0, micro_batch: number as u32 };
            Ok(MicroBatch { batch, randomness, weight: 0.5 })
        }
    };
    let (mut one, mut two) = (runner(), runner());
    one.step(&mut load(true)).unwrap_err();
    assert_eq!(one.step(&mut load(false)).unwrap(), two.step(&mut load(false)).unwrap());
    assert_eq!(values(&*one.model), values(&*two.model));
}

#[test]
fn a_model_that_the_settings_were_not_made_for_is_refused() {
    let device = Device::cpu(1).unwrap();
    let model = open(&device);
    let training = StepTraining::of_texts(&*model, &device, &settings(&[])).unwrap();
    let error = training.of(open(&device)).unwrap_err().to_string();
    assert!(error.contains("StepTraining::of: the optimizer has the parameters of another model"), "{error}");
}

#[test]
fn losses_of_f16_are_scaled_where_embeddings_are_f32() {
    let device = Device::cpu(1).unwrap();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama_a/lm");
    let f32_parameters = F32Parameters { embeddings: true, ..F32Parameters::default() };
    let options = OpenOptions { dtype: DType::F16, f32_parameters, ..OpenOptions::new(&device) };
    let model = Registry::default().open(&directory, &options).unwrap().model;
    assert_eq!(model.parameters().declared()[0].spec().dtype, DType::F32);
    let training = StepTraining::of_texts(&*model, &device, &settings(&[])).unwrap();
    assert_eq!(training.of(model).unwrap().step(vec![batch(2)]).unwrap().loss_scale, 65536.0);
}

/// The loss of the labels, by a loop over the micro-batches of its own.
#[derive(Debug, Default)]
struct OwnLoop {
    /// Numbers of the first micro-batch, and of others.
    numbers: [usize; 2],
    leaves_out: bool,
    names: &'static [&'static str],
}

impl Objective for OwnLoop {
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> ModelResult<ObjectiveLoss> {
        Ok(pass.model.loss(pass.batch, cx)?.ok_or_else(|| Error::data("batch", "no labels", "give some"))?.into())
    }

    fn metrics(&self) -> &[&'static str] {
        self.names
    }

    fn run(&self, step: &mut StepPasses<'_>) -> ModelResult<()> {
        let own: Vec<u64> = step.own_micro_batches().collect();
        assert_eq!(own.len() as u64, step.count());
        for micro_batch in own.into_iter().skip(usize::from(self.leaves_out)) {
            let batch = step.batch(micro_batch)?;
            let mut cx = step.context(micro_batch);
            let loss = step.model().loss(&batch, &mut cx)?.expect("labels");
            let count = self.numbers[usize::from(micro_batch > 0)];
            let numbers = if count == 0 {
                Vec::new()
            } else {
                vec![bmtrain_core::Tensor::zeros(step.device(), [count], DType::F32)?]
            };
            step.backward(micro_batch, ObjectiveLoss { loss, numbers }, &mut cx)?;
        }
        Ok(())
    }
}

fn with_objective(device: &Device, objective: OwnLoop, more: &[&str]) -> ModelResult<StepTrainer> {
    let model = open(device);
    StepTraining::of_texts(&*model, device, &settings(more))?.with_objective(Box::new(objective))?.of(model)
}

#[test]
fn a_loop_of_an_objective_of_ones_own_is_the_usual_one_to_the_bit() {
    let device = Device::cpu(1).unwrap();
    let mut usual = trainer(&device, &[]).unwrap();
    let mut own = with_objective(&device, OwnLoop::default(), &[]).unwrap();
    for _ in 0..2 {
        let [one, two] = [&mut usual, &mut own].map(|trainer| trainer.step(vec![batch(3), batch(2)]).unwrap());
        assert_eq!((one.loss, one.grad_norm, one.tokens), (two.loss, two.grad_norm, two.tokens));
    }
    assert_eq!(values(&*own.into_model()), values(&*usual.into_model()));
}

#[test]
fn numbers_and_losses_that_an_objective_leaves_out_are_refused() {
    let device = Device::cpu(1).unwrap();
    let names = &["one", "two"];
    for (objective, expected) in [
        (OwnLoop { numbers: [1, 1], names, ..OwnLoop::default() }, "has 2 names, and ObjectiveLoss::numbers has 1"),
        (OwnLoop { names, ..OwnLoop::default() }, "has 2 names, and ObjectiveLoss::numbers has 0"),
        (OwnLoop { numbers: [2, 3], names, ..OwnLoop::default() }, "2 elements of the first micro-batch, and 3"),
        (OwnLoop { leaves_out: true, ..OwnLoop::default() }, "gave 1 losses for 2 micro-batches"),
    ] {
        let mut trainer = with_objective(&device, objective, &[]).unwrap();
        let error = trainer.step(vec![batch(2), batch(2)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let right = OwnLoop { numbers: [2, 2], names, ..OwnLoop::default() };
    let done = with_objective(&device, right, &[]).unwrap().step(vec![batch(2), batch(2)]).unwrap();
    assert_eq!(done.metrics, [("one", 0.0), ("two", 0.0)]);
}

#[test]
fn label_smoothing_is_refused_with_another_objective() {
    let device = Device::cpu(1).unwrap();
    let error = with_objective(&device, OwnLoop::default(), &["train.label_smoothing=0.1"]).unwrap_err().to_string();
    assert!(error.contains("train.label_smoothing: it is of the loss of the labels"), "{error}");
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
