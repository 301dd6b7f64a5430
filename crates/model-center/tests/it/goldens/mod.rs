//! Comparing models with the golden data of `golden/README.md`: every hidden state, logit, loss and gradient, and a
//! training run.
// Each of the tests needs a part of it.
#![allow(missing_docs, dead_code, clippy::unwrap_used)]

pub mod adapters;
pub mod directories;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup, Schedule, ScheduleKind, Scheduler, Warmup};
use bmtrain_dist::param::widen;
use model_center::formats::{SafetensorsFile, TensorEntry, TensorSource};
use model_center::model::{Batch, Labels, OpenOptions, Registry, TextModel};
use std::path::{Path, PathBuf};

/// The largest relative error of hidden states, logits, losses and gradients. f32 arithmetic over a few dozen terms
/// stays near 1e-6.
const TOLERANCE: f64 = 1e-5;

pub fn directory(model: &str, head: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model).join(head)
}

pub fn f64s(file: &SafetensorsFile, name: &str) -> Vec<f64> {
    let bytes = file.read_raw(name).unwrap();
    bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn labels(file: &SafetensorsFile, prefix: &str) -> Labels {
    let name = &format!("{prefix}labels");
    let Some(entry) = file.entry(name) else {
        let side = |name: &str| file.read_i64(&format!("{prefix}{name}")).unwrap();
        let spans = side("start_positions").into_iter().zip(side("end_positions"));
        return Labels::Spans(spans.map(|(start, end)| [start, end]).collect());
    };
    if !entry.is_float() {
        return Labels::Classes(file.read_i64(name).unwrap());
    }
    let mut values = vec![0.0; entry.shape.iter().product()];
    file.read_f32(name, &mut values).unwrap();
    Labels::Values(values)
}

/// The batch of a file of inputs whose names have this prefix.
pub fn batch(file: &SafetensorsFile, prefix: &str) -> Batch {
    let ids = |name: &str| file.read_i64(&format!("{prefix}{name}"));
    let mask = |name: &str| ids(name).ok().map(|mask| mask.into_iter().map(|value| value as u8).collect());
    let shape = file.entry(&format!("{prefix}input_ids")).unwrap().shape.clone();
    Batch {
        attention_mask: Some(mask("attention_mask").unwrap()),
        token_type_ids: ids("token_type_ids").ok(),
        decoder_input_ids: ids("decoder_input_ids").ok(),
        decoder_attention_mask: mask("decoder_attention_mask"),
        context: mask("context"),
        span: ids("span").ok(),
        labels: Some(labels(file, prefix)),
        next_sentence: ids("next_sentence_label").ok(),
        ..Batch::new(shape[1], ids("input_ids").unwrap())
    }
}

pub fn inputs(model: &str, head: &str) -> Batch {
    batch(&SafetensorsFile::open(&directory(model, head).join("inputs.safetensors")).unwrap(), "")
}

pub fn open(device: &Device, model: &str, head: &str, recompute: Recompute) -> Box<dyn TextModel> {
    let options = OpenOptions { recompute, ..OpenOptions::new(device) };
    let opened = Registry::default().open(&directory(model, head), &options).unwrap();
    assert!(opened.initialized.is_empty() && opened.unused.is_empty(), "{model} {head}: {:?}", opened.initialized);
    opened.model
}

pub fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

pub fn distance(ours: &[f32], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    norm(&ours.iter().zip(theirs).map(|(ours, theirs)| f64::from(*ours) - theirs).collect::<Vec<_>>())
}

/// Within the tolerance relative to the norm of what is expected; the error otherwise.
pub fn check(what: &str, ours: &[f32], theirs: &[f64]) {
    let error = distance(ours, theirs) / norm(theirs).max(f64::MIN_POSITIVE);
    assert!(error <= TOLERANCE, "{what}: relative error {error:e}");
}

/// Values at the defined tokens; without tokens, or with another number than `defined` has, all of them: an encoder's
/// states are all defined.
fn at<T: Copy + Default>(values: &[T], defined: &[bool], shape: &[usize]) -> Vec<T> {
    match shape {
        [rows, tokens, columns] if rows * tokens == defined.len() => values
            .chunks(*columns)
            .zip(defined)
            .flat_map(|(row, defined)| row.iter().map(move |value| if *defined { *value } else { T::default() }))
            .collect(),
        _ => values.to_vec(),
    }
}

/// Whether a position of a model with a window sees something: where all keys within it are padding there is nothing to
/// see. A model that has windows in some of its blocks counts as having them in all, one without sees everything.
/// Windows of an encoder (`local_attention`), and of a decoder that attends to both sides, have half on either side.
pub fn within_the_window(model: &str, head: &str, batch: &Batch) -> Option<Vec<bool>> {
    let config = std::fs::read_to_string(directory(model, head).join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let size = |name: &str| config[name].as_u64().map(|size| size as usize);
    let window = size("sliding_window").filter(|_| config["use_sliding_window"] != false);
    let both = size("local_attention").or(window.filter(|_| config["use_bidirectional_attention"] == true));
    let [before, after] = match both {
        Some(both) => [both / 2; 2],
        None => [window?.saturating_sub(1), 0],
    };
    let rows = batch.attention_mask.as_ref().unwrap().chunks(batch.length);
    let sees = |row: &[u8], at: usize| row[at.saturating_sub(before)..row.len().min(at + after + 1)].contains(&1);
    Some(rows.flat_map(|row| (0..row.len()).map(move |at| sees(row, at))).collect())
}

/// Compares a head with its golden file. `defined` tells for each token of the batch whether its states are defined:
/// attention without any visible key has no defined result.
pub fn check_head(model: &str, head: &str, recompute: Recompute, defined: impl Fn(&Batch) -> Vec<bool>) {
    let device = Device::cpu(1).unwrap();
    let what = format!("{model} {head} {recompute:?}");
    let ours = open(&device, model, head, recompute);
    let golden = SafetensorsFile::open(&directory(model, head).join("golden.safetensors")).unwrap();
    let batch = inputs(model, head);
    let mut defined = defined(&batch);
    if let Some(within) = within_the_window(model, head, &batch) {
        defined.iter_mut().zip(within).for_each(|(defined, within)| *defined &= within);
    }
    let compare = |name: &str, value: &Tensor| {
        let shape = &golden.entry(name).unwrap().shape;
        let (ours, theirs) = (widen(value).unwrap(), f64s(&golden, name));
        check(&format!("{what} {name}"), &at(&ours, &defined, shape), &at(&theirs, &defined, shape));
    };

    let mut hidden: Vec<Tensor> = Vec::new();
    let mut observe = |_: usize, state: &Tensor| {
        hidden.push(state.clone());
        Ok(())
    };
    let mut observed = Ctx::gradients(&device);
    let seen = ours.forward(&batch, Some(&mut observe), &mut observed).unwrap();
    for (index, state) in hidden.iter().enumerate() {
        compare(&format!("hidden.{index}"), state);
    }
    assert!(golden.entry(&format!("hidden.{}", hidden.len())).is_none(), "{what}: there are more hidden states");
    assert!(seen.logits.is_some() || seen.span_logits().is_some(), "{what}: there are no logits");
    seen.logits.iter().for_each(|logits| compare("logits", logits.value()));
    for (name, value) in &seen.extra {
        compare(name, value.value());
    }
    let extra = |name: &str| seen.extra.iter().any(|(known, _)| *known == name);
    for entry in golden.tensors() {
        let name = entry.name.as_str();
        let is_compared =
            name == "logits" || name == "loss" || name.starts_with("hidden.") || name.starts_with("grad.");
        assert!(is_compared || extra(name), "{what}: there is nothing to compare {name} with");
    }

    // The loss with the logits, and the loss alone, which a head may make without them.
    for alone in [false, true] {
        let ours = open(&device, model, head, recompute);
        let mut cx = Ctx::gradients(&device);
        let loss = match alone {
            false => ours.forward(&batch, None, &mut cx).unwrap().loss.unwrap(),
            true => ours.loss(&batch, &mut cx).unwrap().unwrap(),
        };
        compare("loss", loss.value());
        let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
        cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
        check_gradients(&what, &*ours, &golden);
    }
}

/// All that is compared of a head, for one that not every model of its family has.
pub fn check_everything(model: &str, head: &str, defined: impl Fn(&Batch) -> Vec<bool>) {
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        check_head(model, head, recompute, &defined);
    }
    check_training(model, head);
    directories::check_export(model, head);
    directories::check_two_ranks(model, head);
}

fn check_gradients(what: &str, ours: &dyn TextModel, golden: &SafetensorsFile) {
    let names: Vec<&TensorEntry> = golden.tensors().iter().filter(|entry| entry.name.starts_with("grad.")).collect();
    let all = norm(&names.iter().flat_map(|entry| f64s(golden, &entry.name)).collect::<Vec<_>>());
    // For gradients that are zero in exact arithmetic, such as key biases'. Gradients of answer spans are sums over the
    // positions of a softmax, which cancel: of the size of f32's rounding, 6e-8, of terms as large as the gradient.
    let zero = if golden.entry("start_logits").is_some() { 6e-8 } else { 1e-8 };
    let mut compared = 0;
    for param in ours.parameters() {
        if !param.is_trainable() {
            assert!(param.grad().unwrap().is_none(), "{what} grad {}: it is never trained", param.name());
            continue;
        }
        let dims = param.spec().shape;
        let grad = match param.grad().unwrap() {
            Some(grad) => widen(&grad).unwrap(),
            None => vec![0.0; dims.elements()],
        };
        for piece in ours.names().pieces(param.name(), dims.dims(), true).unwrap() {
            let theirs = f64s(golden, &format!("grad.{}", piece.name));
            let error = distance(&piece.of(&grad).unwrap(), &theirs);
            let bound = TOLERANCE * norm(&theirs) + zero * all;
            assert!(error <= bound, "{what} grad {}: error {error:e}, bound {bound:e}", piece.name);
            compared += 1;
        }
    }
    assert_eq!(compared, names.len(), "{what}: every gradient is compared");
}

/// Thirty steps of AdamW with warm-up, decay and clipping, against the losses and norms of PyTorch.
pub fn check_training(model: &str, head: &str) {
    let file = SafetensorsFile::open(&directory(model, head).join("training.safetensors")).unwrap();
    let batches: Vec<Batch> = (0..4).map(|number| batch(&file, &format!("batch.{number}."))).collect();
    let device = Device::cpu(1).unwrap();
    follow_pytorch((model, head), &*open(&device, model, head, Recompute::Keep), &file, &batches, &device);
}

/// The same with these batches, and the losses.
pub fn check_losses(device: &Device, (model, head): (&str, &str), batches: &[Batch]) -> Vec<f64> {
    let file = SafetensorsFile::open(&directory(model, head).join("training.safetensors")).unwrap();
    follow_pytorch((model, head), &*open(device, model, head, Recompute::Keep), &file, batches, device);
    f64s(&file, "losses")
}

pub fn follow_pytorch(
    (model, head): (&str, &str),
    ours: &dyn TextModel,
    file: &SafetensorsFile,
    batches: &[Batch],
    device: &Device,
) {
    let loss = |step: usize, cx: &mut Ctx| ours.loss(&batches[step % batches.len()], cx).unwrap().unwrap();
    follow_pytorch_by((&format!("{model} {head}"), ""), ours, file, device, &loss);
}

/// The same with the loss of each step from a function; the file's names have this prefix.
pub fn follow_pytorch_by(
    (what, prefix): (&str, &str),
    ours: &dyn TextModel,
    file: &SafetensorsFile,
    device: &Device,
    loss_of: &dyn Fn(usize, &mut Ctx) -> Var,
) {
    let read = |name: &str| f64s(file, &format!("{prefix}{name}"));
    let (losses, norms, lrs) = (read("losses"), read("grad_norms"), read("lrs"));
    let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 1.0 }).unwrap();
    let groups = ParamGroup::by_decay(ours.parameters(), 0.01);
    let schedule = Schedule::new(ScheduleKind::Linear, 5e-3, Warmup::Steps(6), 30, 0.0).unwrap();
    optim.add_scheduled(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), Scheduler::new(schedule));
    for step in 0..30 {
        let mut cx = Ctx::training(device, Randomness { seed: 0, step: step as u32, micro_batch: 0 });
        let loss = loss_of(step, &mut cx);
        optim.backward(&loss, 1.0, &mut cx).unwrap();
        let info = optim.step().unwrap();
        let error = (f64::from(loss.value().item().unwrap()) - losses[step]).abs() / losses[0];
        assert!(error <= 1e-4, "{what} step {step}: loss off by {error:e} of the first loss");
        assert!((info.lr - lrs[step]).abs() <= 1e-12, "{what} step {step}: rate {} for {}", info.lr, lrs[step]);
        // The norm of a step shares the drift of its loss.
        let drift = (f64::from(info.grad_norm) - norms[step]).abs() / norms[step].max(1e-3);
        assert!(drift <= 1e-3, "{what} step {step}: norm {} for {}", info.grad_norm, norms[step]);
    }
}

/// A position of a decoder sees itself and what is before it: from the first token of its row on there is something to
/// see.
pub fn from_the_first_token(batch: &Batch) -> Vec<bool> {
    let rows = batch.attention_mask.as_ref().unwrap().chunks(batch.length);
    rows.flat_map(|row| (0..row.len()).map(|at| row[..=at].contains(&1))).collect()
}

/// The same for the decoder of an encoder-decoder, all of whose positions may be tokens. No batch has as many for the
/// encoder.
pub fn from_the_first_decoder_token(batch: &Batch) -> Vec<bool> {
    let Some(labels) = batch.labels.as_ref().and_then(Labels::ids) else { panic!("the labels are not tokens") };
    let length = labels.len() / batch.rows;
    assert_ne!(length, batch.length);
    let Some(mask) = &batch.decoder_attention_mask else { return vec![true; labels.len()] };
    mask.chunks(length).flat_map(|row| (0..length).map(|at| row[..=at].contains(&1))).collect()
}

/// The tests of an encoder-decoder family, each of its tiny models with the language-modelling head.
#[allow(unused_macros)]
macro_rules! seq2seq_tests {
    (models: $models:expr $(,)?) => {
        const HEAD: &str = "lm";

        #[test]
        fn hidden_states_logits_losses_and_gradients_equal_those_of_pytorch() {
            for model in $models {
                goldens::check_head(model, HEAD, Recompute::Keep, goldens::from_the_first_decoder_token);
            }
        }

        #[test]
        fn recomputed_blocks_give_the_same_gradients() {
            for model in $models {
                goldens::check_head(model, HEAD, Recompute::Checkpoint, goldens::from_the_first_decoder_token);
            }
        }

        #[test]
        fn thirty_adamw_steps_follow_pytorch() {
            for model in $models {
                goldens::check_training(model, HEAD);
            }
        }

        #[test]
        fn a_saved_trained_model_is_loaded_bit_for_bit() {
            for model in $models {
                goldens::directories::check_export(model, HEAD);
            }
        }

        #[test]
        fn two_ranks_with_zero_3_train_and_write_what_one_does() {
            for model in $models {
                goldens::directories::check_two_ranks(model, HEAD);
            }
        }
    };
}

/// Every row has a token, which all positions of an encoder see.
pub fn everywhere(batch: &Batch) -> Vec<bool> {
    vec![true; batch.rows * batch.length]
}

/// The tests of a family but for training, of one head of one model.
pub fn check_untrained(model: &str, head: &str, defined: fn(&Batch) -> Vec<bool>) {
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        check_head(model, head, recompute, defined);
    }
    directories::check_export(model, head);
    directories::check_two_ranks(model, head);
}

/// The tests of a family of decoders: its tiny models and their heads.
#[allow(unused_macros)]
macro_rules! decoder_tests {
    (models: $models:expr, heads: $heads:expr, trained: $trained:expr $(,)?) => {
        family_tests! {
            models: $models,
            heads: $heads,
            trained: $trained,
            defined: goldens::from_the_first_token,
        }
    };
}

/// The tests of a family: its tiny models and their heads, at the tokens whose states are defined.
#[allow(unused_macros)]
macro_rules! family_tests {
    (models: $models:expr, heads: $heads:expr, trained: $trained:expr, defined: $defined:expr $(,)?) => {
        fn every() -> impl Iterator<Item = (&'static str, &'static str)> {
            $models.into_iter().flat_map(|model| $heads.into_iter().map(move |head| (model, head)))
        }

        #[test]
        fn hidden_states_logits_losses_and_gradients_equal_those_of_pytorch() {
            for (model, head) in every() {
                goldens::check_head(model, head, Recompute::Keep, $defined);
            }
        }

        #[test]
        fn recomputed_blocks_give_the_same_gradients() {
            for model in $models {
                goldens::check_head(model, $trained, Recompute::Checkpoint, $defined);
            }
        }

        #[test]
        fn thirty_adamw_steps_follow_pytorch() {
            for model in $models {
                goldens::check_training(model, $trained);
            }
        }

        #[test]
        fn a_saved_trained_model_is_loaded_bit_for_bit() {
            for (model, head) in every() {
                goldens::directories::check_export(model, head);
            }
        }

        #[test]
        fn two_ranks_with_zero_3_train_and_write_what_one_does() {
            for (model, head) in every() {
                goldens::directories::check_two_ranks(model, head);
            }
        }
    };
}
