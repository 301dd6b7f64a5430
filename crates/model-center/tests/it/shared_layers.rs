//! Layers that share their parameters: the directory that is written has every layer and is the same model, bit for bit
//! in its loss, and the gradient of a shared parameter is the sum over its places.

use crate::goldens::directories::{F32, logits, open, tensors, train};
use crate::goldens::{directory, inputs};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::{Ctx, Device, Segment, Tensor};
use bmtrain_dist::RankGroups;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use bmtrain_dist::pipeline::{PartitionRule, Schedule, ScheduleKind};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::config::{ConfigOverrides, ConfigSource, LayerSharing, SharingStyle};
use model_center::model::StageOptions;
use model_center::model::{Batch, DecodingOptions, OpenOptions, TextModel};
use std::collections::BTreeMap;
use std::sync::Arc;
use tempfile::TempDir;

type Golden = (&'static str, &'static str);

const LAYERS: usize = 4;
const GPT2: Golden = ("gpt2_a", "lm");
/// Decoders, encoders with norms before and after their layers, and both stacks of an encoder-decoder.
const MODELS: [Golden; 4] = [GPT2, ("bert_a", "pretraining"), ("megatron_bert_a", "cls"), ("t5_a", "lm")];
const STYLES: [SharingStyle; 2] = [SharingStyle::Grouped, SharingStyle::Spaced];

/// A model of four layers with the other sizes of a golden one.
fn options(device: &Device, golden: Golden, sharing: Option<LayerSharing>) -> OpenOptions {
    // Large enough that every term of a gradient counts.
    let init_std = (golden.0 != "t5_a").then_some(0.2);
    let overrides = ConfigOverrides { layers: Some(LAYERS), sharing, init_std, ..ConfigOverrides::default() };
    let config = ConfigSource::open(&directory(golden.0, golden.1), overrides).unwrap();
    OpenOptions {
        config: Some(Arc::new(config)),
        from_config: true,
        seed: 5,
        hidden_dropout: Some(0.1),
        attention_dropout: Some(0.1),
        ..OpenOptions::new(device)
    }
}

fn two(style: SharingStyle) -> Option<LayerSharing> {
    Some(LayerSharing { unique: 2, style })
}

fn model(device: &Device, golden: Golden, sharing: Option<LayerSharing>) -> Box<dyn TextModel> {
    open(&directory(golden.0, golden.1), &options(device, golden, sharing)).unwrap().model
}

/// The same model with each layer's own parameters: what is written of a shared one, opened.
fn written(device: &Device, model: &dyn TextModel) -> (TempDir, Box<dyn TextModel>) {
    let to = tempfile::tempdir().unwrap();
    model.check_save(&F32).unwrap();
    model.save(to.path(), &F32).unwrap();
    let rates = OpenOptions { hidden_dropout: Some(0.1), attention_dropout: Some(0.1), ..OpenOptions::new(device) };
    let opened = open(to.path(), &rates).unwrap();
    assert!(opened.initialized.is_empty() && opened.unused.is_empty());
    (to, opened.model)
}

/// Loss and gradients of a training step.
fn step(device: &Device, model: &dyn TextModel, batch: &Batch) -> (u32, BTreeMap<String, Vec<f32>>) {
    let mut cx = Ctx::training(device, Randomness { seed: 3, step: 1, micro_batch: 2 });
    let loss = model.loss(batch, &mut cx).unwrap().unwrap();
    let value = loss.value().item().unwrap().to_bits();
    let one = Tensor::from_slice_in(device, [1], &[1.0f32], Segment::Activations).unwrap();
    cx.take_tape().unwrap().backward(device, vec![(loss, one)], &[]).unwrap();
    let gradient = |param: &bmtrain_dist::param::Param| Some(widen(&param.grad().unwrap()?).unwrap());
    let gradients = model.parameters().iter().filter_map(|p| Some((p.name().to_owned(), gradient(p)?)));
    (value, gradients.collect())
}

/// The name of a parameter with the number of its block replaced by what `block` makes of it.
fn renamed(name: &str, block: impl Fn(usize) -> usize) -> String {
    let Some((stack, rest)) = name.split_once(".layers.") else { return name.to_owned() };
    let (number, rest) = rest.split_once('.').unwrap();
    format!("{stack}.layers.{}.{rest}", block(number.parse().unwrap()))
}

#[test]
fn what_is_written_has_every_layer_and_is_the_same_model() {
    let device = Device::cpu(1).unwrap();
    for golden in MODELS {
        let batch = inputs(golden.0, golden.1);
        let (plain, _) = written(&device, &*model(&device, golden, None));
        let names = |directory: &TempDir| -> Vec<_> {
            tensors(directory.path()).into_iter().map(|(name, (shape, _))| (name, shape)).collect()
        };
        for style in STYLES {
            let shared = model(&device, golden, two(style));
            let (to, whole) = written(&device, &*shared);
            assert_eq!(names(&to), names(&plain), "{golden:?}");
            let (own, all) = (shared.parameters().count(), whole.parameters().count());
            let per_layer = whole.parameters().iter().filter(|p| p.name().contains(".layers.0."));
            let per_layer: usize = per_layer.map(|param| param.spec().shape.elements()).sum();
            assert_eq!((own + 2 * per_layer, shared.matmul_parameters()), (all, whole.matmul_parameters()));
            assert_eq!(logits(&device, &*shared, &batch), logits(&device, &*whole, &batch), "{golden:?}");
            let ((loss, gradients), (expected, parts)) =
                (step(&device, &*shared, &batch), step(&device, &*whole, &batch));
            // Dropout is addressed by place: both sample the same masks.
            assert_eq!(loss, expected, "{golden:?} {style:?}");
            let mut sums: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for (name, part) in &parts {
                let block = |place: usize| if style == SharingStyle::Grouped { place % 2 } else { place / 2 };
                let sum = sums.entry(renamed(name, block)).or_insert_with(|| vec![0.0; part.len()]);
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(*part));
            }
            assert!(sums.keys().eq(gradients.keys()), "{golden:?}");
            let largest = sums.values().flatten().fold(0.0f64, |most, value| most.max(value.abs()));
            for (name, gradient) in &gradients {
                for (ours, sum) in gradient.iter().zip(&sums[name]) {
                    assert!((f64::from(*ours) - sum).abs() <= 1e-6 * largest, "{golden:?} {name}: {ours} for {sum}");
                }
            }
        }
    }
}

#[test]
fn copies_of_a_layer_are_equal_after_training() {
    let device = Device::cpu(1).unwrap();
    for (style, same, other) in [(SharingStyle::Grouped, [1, 3], [0, 1]), (SharingStyle::Spaced, [2, 3], [1, 2])] {
        let shared = model(&device, GPT2, two(style));
        train(&device, &*shared, &inputs(GPT2.0, GPT2.1), 1, 4);
        let (to, _) = written(&device, &*shared);
        let tensors = tensors(to.path());
        let of = |layer: usize| &tensors[&format!("transformer.h.{layer}.attn.c_attn.weight")].1;
        assert!(of(same[0]) == of(same[1]) && of(other[0]) != of(other[1]), "{style:?}");
    }
}

#[test]
fn recomputation_and_sharding_change_no_bit() {
    let (device, batch) = (Device::cpu(1).unwrap(), inputs(GPT2.0, GPT2.1));
    let directory = directory(GPT2.0, GPT2.1);
    for style in STYLES {
        let expected = train(&device, &*model(&device, GPT2, two(style)), &batch, 1, 4);
        assert!(expected[0] != expected[3] && expected.iter().all(|loss| loss.is_finite()), "{expected:?}");
        let kinds = [Recompute::Checkpoint, Recompute::Every(3), Recompute::Attention, Recompute::Auto];
        for recompute in kinds {
            let options = OpenOptions { recompute, ..options(&device, GPT2, two(style)) };
            let model = open(&directory, &options).unwrap().model;
            assert_eq!(train(&device, &*model, &batch, 1, 4), expected, "{style:?} {recompute:?}");
        }
        for level in [ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three] {
            let to = tempfile::tempdir().unwrap();
            std::thread::scope(|scope| {
                for rank in HostGroup::threads(2, HostOptions::default()).unwrap() {
                    let (batch, expected, directory, to) = (&batch, &expected, &directory, to.path());
                    scope.spawn(move || {
                        let (device, ranks) = (Device::cpu(1).unwrap(), Arc::new(rank));
                        let is_first = ranks.rank() == 0;
                        let sharding = Sharding { ranks, level, sum: GradientSum::Fast, prefetch: true };
                        let options = OpenOptions { sharding, ..options(&device, GPT2, two(style)) };
                        let model = open(directory, &options).unwrap().model;
                        // Both ranks with the same rows: half of each gradient, twice.
                        assert_eq!(train(&device, &*model, batch, 2, 4), *expected, "{style:?} {level:?}");
                        match is_first {
                            true => model.save(to, &F32).unwrap(),
                            false => model.pass_save().unwrap(),
                        }
                    });
                }
            });
            let alone = model(&device, GPT2, two(style));
            train(&device, &*alone, &batch, 1, 4);
            assert!(tensors(written(&device, &*alone).0.path()) == tensors(to.path()), "{style:?} {level:?}");
        }
    }
}

#[test]
fn tensor_parallel_ranks_compute_what_one_does() {
    let golden = ("megatron_bert_a", "pretraining");
    let (device, batch) = (Device::cpu(1).unwrap(), inputs(golden.0, golden.1));
    let expected = train(&device, &*model(&device, golden, two(SharingStyle::Grouped)), &batch, 1, 4);
    std::thread::scope(|scope| {
        for rank in HostGroup::threads(2, HostOptions::default()).unwrap() {
            let (batch, expected) = (&batch, &expected);
            scope.spawn(move || {
                let device = Device::cpu(1).unwrap();
                let groups = RankGroups::split(Arc::new(rank), 1, 2).unwrap();
                let options = options(&device, golden, two(SharingStyle::Grouped)).on_groups(&groups);
                let model = open(&directory(golden.0, golden.1), &options).unwrap().model;
                let losses = train(&device, &*model, batch, 1, 4);
                for (ours, theirs) in losses.iter().zip(expected) {
                    assert!((ours - theirs).abs() <= 1e-5 * theirs, "{losses:?} for {expected:?}");
                }
            });
        }
    });
}

#[test]
fn each_place_has_its_own_keys_and_values_in_decoding() {
    let device = Device::cpu(1).unwrap();
    let ids = vec![7, 3, 19, 41, 2, 30];
    let tokens = |ids: &[i64]| Batch { labels: None, ..Batch::next_tokens(ids.len(), ids.to_vec(), None) };
    for style in STYLES {
        let model = model(&device, GPT2, two(style));
        let mut cx = Ctx::inference(&device);
        let whole = model.forward(&tokens(&ids), None, &mut cx).unwrap().logits.unwrap();
        let whole: Vec<f32> = whole.value().to_vec().unwrap();
        let mut decoding = model.decoding(DecodingOptions { source: None, expected: 8 }, &mut cx).unwrap();
        decoding.extend(&tokens(&ids[..4]), &mut cx).unwrap();
        for place in 4..6 {
            let next: Vec<f32> = decoding.extend(&tokens(&ids[place..=place]), &mut cx).unwrap().to_vec().unwrap();
            let expected = &whole[place * next.len()..(place + 1) * next.len()];
            let scale = expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
            assert!(next.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-5 * scale), "{style:?} {place}");
        }
    }
}

#[test]
fn blocks_that_do_not_divide_the_layers_or_differ_and_stages_are_refused() {
    let device = Device::cpu(1).unwrap();
    let refused = |golden: Golden, options: OpenOptions| open(&directory(golden.0, golden.1), &options).err().unwrap();
    let three = Some(LayerSharing { unique: 3, style: SharingStyle::Grouped });
    let error = refused(GPT2, options(&device, GPT2, three));
    assert!(error.contains("3 blocks with parameters of their own do not divide 4 layers"), "{error}");
    assert!(error.contains("model.unique_layers"), "{error}");
    // Its attention scores are divided by the number of the layer.
    let scaled = ("gpt2_b", "lm");
    let error = refused(scaled, options(&device, scaled, two(SharingStyle::Grouped)));
    assert!(error.contains("layers 0 and 2 of this GPT-2 compute differently"), "{error}");
    let rank = HostGroup::threads(2, HostOptions::default()).unwrap().into_iter().next().unwrap();
    let stages = StageOptions {
        ranks: Arc::new(rank),
        schedule: Schedule::new(ScheduleKind::GPipe, 2, 1, 2).unwrap(),
        partition: PartitionRule::Parameters,
    };
    let error =
        refused(GPT2, OpenOptions { stages: Some(stages), ..options(&device, GPT2, two(SharingStyle::Spaced)) });
    assert!(error.contains("one pipeline stage"), "{error}");
}
