//! Two tiny BERTs against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, and a
//! training run. The data are described in `golden/README.md` and made by `scripts/golden/make_bert.py`.
#![allow(missing_docs, clippy::unwrap_used)]

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup, Schedule, ScheduleKind, Scheduler, Warmup};
use bmtrain_dist::param::widen;
use model_center::hf::{SafetensorsFile, TensorEntry};
use model_center::model::{OpenOptions, Registry, TextBatch, TextLabels, TextModel};
use std::path::{Path, PathBuf};

const MODELS: [&str; 2] = ["bert_a", "bert_b"];
const HEADS: [&str; 4] = ["cls", "mlm", "nsp", "pretraining"];

/// The largest relative error of hidden states, logits, losses and gradients. f32 arithmetic over a few dozen terms
/// stays near 1e-6.
const TOLERANCE: f64 = 1e-5;

fn folder(model: &str, head: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model).join(head)
}

fn f64s(file: &SafetensorsFile, name: &str) -> Vec<f64> {
    let bytes = file.read_raw(name).unwrap();
    bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn shape(file: &SafetensorsFile, name: &str) -> Vec<usize> {
    file.entry(name).unwrap().shape.clone()
}

fn batch(file: &SafetensorsFile, prefix: &str) -> TextBatch {
    let ids = |name: &str| file.read_i64(&format!("{prefix}{name}"));
    let shape = shape(file, &format!("{prefix}input_ids"));
    TextBatch {
        rows: shape[0],
        length: shape[1],
        input_ids: ids("input_ids").unwrap(),
        attention_mask: Some(ids("attention_mask").unwrap().into_iter().map(|value| value as u8).collect()),
        token_type_ids: Some(ids("token_type_ids").unwrap()),
        labels: Some(TextLabels::Classes(ids("labels").unwrap())),
        next_sentence: ids("next_sentence_label").ok(),
        choices: 1,
        label_smoothing: 0.0,
    }
}

fn open(device: &Device, model: &str, head: &str, recompute: Recompute) -> Box<dyn TextModel> {
    let options = OpenOptions { recompute, ..OpenOptions::new(device) };
    let opened = Registry::default().open(&folder(model, head), &options).unwrap();
    assert!(opened.drawn.is_empty() && opened.unused.is_empty(), "{model} {head}: {:?}", opened.drawn);
    opened.model
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn distance(ours: &[f32], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    norm(&ours.iter().zip(theirs).map(|(ours, theirs)| f64::from(*ours) - theirs).collect::<Vec<_>>())
}

/// Within the tolerance relative to the norm of what is expected; the error otherwise.
fn check(what: &str, ours: &[f32], theirs: &[f64]) {
    let error = distance(ours, theirs) / norm(theirs).max(f64::MIN_POSITIVE);
    assert!(error <= TOLERANCE, "{what}: relative error {error:e}");
}

fn check_head(model: &str, head: &str, recompute: Recompute) {
    let device = Device::cpu(1).unwrap();
    let what = format!("{model} {head} {recompute:?}");
    let bert = open(&device, model, head, recompute);
    let inputs = SafetensorsFile::open(&folder(model, head).join("inputs.safetensors")).unwrap();
    let golden = SafetensorsFile::open(&folder(model, head).join("golden.safetensors")).unwrap();
    let batch = batch(&inputs, "");

    let mut hidden: Vec<Vec<f32>> = Vec::new();
    let mut observe = |_: usize, state: &Tensor| {
        hidden.push(widen(state)?);
        Ok(())
    };
    let mut observed = Ctx::gradients(&device);
    let seen = bert.score(&batch, Some(&mut observe), &mut observed).unwrap();
    let mut states = 0;
    while golden.entry(&format!("hidden.{states}")).is_some() {
        check(&format!("{what} hidden.{states}"), &hidden[states], &f64s(&golden, &format!("hidden.{states}")));
        states += 1;
    }
    assert_eq!(states, hidden.len());
    check(&format!("{what} logits"), &widen(seen.logits.unwrap().value()).unwrap(), &f64s(&golden, "logits"));
    for (name, value) in &seen.extra {
        check(&format!("{what} {name}"), &widen(value.value()).unwrap(), &f64s(&golden, name));
    }
    let extra = |name: &str| seen.extra.iter().any(|(known, _)| *known == name);
    for entry in golden.tensors() {
        let name = entry.name.as_str();
        let is_compared =
            name == "logits" || name == "loss" || name.starts_with("hidden.") || name.starts_with("grad.");
        assert!(is_compared || extra(name), "{what}: there is nothing to compare {name} with");
    }

    let mut cx = Ctx::gradients(&device);
    let loss = bert.score(&batch, None, &mut cx).unwrap().loss.unwrap();
    check(&format!("{what} loss"), &widen(loss.value()).unwrap(), &f64s(&golden, "loss"));
    let one = Tensor::full(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
    cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
    let names: Vec<&TensorEntry> = golden.tensors().iter().filter(|entry| entry.name.starts_with("grad.")).collect();
    let all = norm(&names.iter().flat_map(|entry| f64s(&golden, &entry.name)).collect::<Vec<_>>());
    let mut compared = 0;
    for param in bert.parameters() {
        let dims = param.spec().shape;
        let grad = match param.grad().unwrap() {
            Some(grad) => widen(&grad).unwrap(),
            None => vec![0.0; dims.elements()],
        };
        for piece in bert.names().pieces(param.name(), dims.dims(), true).unwrap() {
            let theirs = f64s(&golden, &format!("grad.{}", piece.name));
            let error = distance(&piece.of(&grad).unwrap(), &theirs);
            // The second term is for gradients that are zero in exact arithmetic, such as those of key biases.
            let bound = TOLERANCE * norm(&theirs) + 1e-8 * all;
            assert!(error <= bound, "{what} grad {}: error {error:e}, bound {bound:e}", piece.name);
            compared += 1;
        }
    }
    assert_eq!(compared, names.len(), "{what}: every gradient is compared");
}

#[test]
fn hidden_states_logits_losses_and_gradients_equal_those_of_pytorch() {
    for model in MODELS {
        for head in HEADS {
            check_head(model, head, Recompute::Keep);
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_gradients() {
    for model in MODELS {
        check_head(model, "cls", Recompute::Checkpoint);
    }
}

#[test]
fn thirty_adamw_steps_follow_pytorch() {
    for model in MODELS {
        let device = Device::cpu(1).unwrap();
        let bert = open(&device, model, "cls", Recompute::Keep);
        let file = SafetensorsFile::open(&folder(model, "cls").join("training.safetensors")).unwrap();
        let (losses, norms, lrs) = (f64s(&file, "losses"), f64s(&file, "grad_norms"), f64s(&file, "lrs"));
        let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 }).unwrap();
        let groups = ParamGroup::by_decay(bert.parameters(), 0.01);
        let schedule = Schedule::new(ScheduleKind::Linear, 5e-3, Warmup::Steps(6), 30, 0.0).unwrap();
        optim.add_scheduled(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), Scheduler::new(schedule));
        for step in 0..30 {
            let batch = batch(&file, &format!("batch.{}.", step % 4));
            let mut cx = Ctx::training(&device, Randomness { seed: 0, step: step as u32, micro_batch: 0 });
            let loss = bert.score(&batch, None, &mut cx).unwrap().loss.unwrap();
            optim.backward(&loss, 1.0, &mut cx).unwrap();
            let info = optim.step().unwrap();
            let error = (f64::from(loss.value().item().unwrap()) - losses[step]).abs() / losses[0];
            assert!(error <= 1e-4, "{model} step {step}: loss off by {error:e} of the first loss");
            assert!((info.lr - lrs[step]).abs() <= 1e-12, "{model} step {step}: rate {} for {}", info.lr, lrs[step]);
            // The norm of a step shares the drift of its loss.
            let drift = (f64::from(info.grad_norm) - norms[step]).abs() / norms[step].max(1e-3);
            assert!(drift <= 1e-3, "{model} step {step}: norm {} for {}", info.grad_norm, norms[step]);
        }
    }
}
