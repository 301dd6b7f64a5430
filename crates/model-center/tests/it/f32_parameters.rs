//! Embeddings, norms and token types in f32 beside parameters of 16 bits: what is stored and what is computed. Runs on
//! several ranks are in `tensor_parallel` and `pipeline`, plans in `plan_layouts`.

use crate::goldens::{directory, inputs};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::NormKind;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::OptimManager;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{F32Parameters, widen};
use half::{bf16, f16};
use model_center::data::Batch;
use model_center::formats::{DirectoryLayout, TensorSource, Weights};
use model_center::model::{OpenOptions, Registry, SaveOptions, TextModel};

/// Those that every model has.
const COMMON: F32Parameters = F32Parameters { embeddings: true, norms: true, token_types: false };
const ALL: F32Parameters = F32Parameters { token_types: true, ..COMMON };

fn open(device: &Device, golden: (&str, &str), dtype: DType, f32_parameters: F32Parameters) -> Box<dyn TextModel> {
    let options = OpenOptions { dtype, f32_parameters, ..OpenOptions::new(device) };
    Registry::default().open(&directory(golden.0, golden.1), &options).unwrap().model
}

/// The input of the first block, and its dtype.
fn embedded(model: &dyn TextModel, batch: &Batch, device: &Device) -> (Vec<f32>, DType) {
    let mut seen = None;
    let mut observe = |blocks: usize, states: &Tensor| -> bmtrain_dist::Result<()> {
        if blocks == 0 {
            seen = Some((widen(states)?, states.dtype()));
        }
        Ok(())
    };
    model.forward(batch, Some(&mut observe), &mut Ctx::inference(device)).unwrap();
    model.parameters().release();
    seen.unwrap()
}

fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// One row of a table for each id.
fn rows(model: &dyn TextModel, name: &str, ids: &[i64]) -> Vec<f32> {
    let param = model.parameters().get(name).unwrap();
    assert_eq!(param.spec().dtype, DType::F32, "{name}");
    let (table, width) = (param.read().unwrap(), param.spec().shape.last());
    ids.iter().flat_map(|id| table[*id as usize * width..][..width].to_vec()).collect()
}

#[test]
fn embeddings_are_added_in_f32_and_rounded_once() {
    let device = Device::cpu(1).unwrap();
    for dtype in [DType::BF16, DType::F16] {
        for (golden, f32_parameters) in [(("gpt2_a", "lm"), COMMON), (("bert_a", "mlm"), ALL)] {
            let model = open(&device, golden, dtype, f32_parameters);
            let mut batch = inputs(golden.0, golden.1);
            batch.attention_mask = None;
            let places: Vec<i64> = (0..batch.input_ids.len()).map(|at| (at % batch.length) as i64).collect();
            let words = rows(&*model, "input_embedding.weight", &batch.input_ids);
            let positions = rows(&*model, "position_embedding.weight", &places);
            let types = batch.token_type_ids.as_ref().filter(|_| f32_parameters.token_types);
            let types = types.map(|ids| rows(&*model, "token_type_embedding.weight", ids));
            let sum = |at: usize| words[at] + positions[at] + types.as_ref().map_or(0.0, |types| types[at]);
            let mut expected: Vec<f32> = (0..words.len()).map(|at| rounded(sum(at), dtype)).collect();
            // What tables of 16 bits give, each term and each sum rounded.
            let narrow = |at: usize| {
                let sum = rounded(rounded(words[at], dtype) + rounded(positions[at], dtype), dtype);
                rounded(sum + types.as_ref().map_or(0.0, |types| rounded(types[at], dtype)), dtype)
            };
            let differ = (0..words.len()).filter(|at| narrow(*at) != expected[*at]).count();
            assert!(10 * differ > words.len(), "{golden:?} {dtype}: {differ} of {}", words.len());
            if let Some(weight) = model.parameters().get("embedding_norm.weight") {
                // The norm of the rounded sum.
                let cx = Ctx::inference(&device);
                let shape = [words.len() / weight.spec().shape.last(), weight.spec().shape.last()];
                let sum = Tensor::from_slice_in(&device, shape, &expected, Segment::Data).unwrap();
                let sum = ops::cast(&cx, &Var::constant(sum), dtype).unwrap();
                let bias = model.parameters().get("embedding_norm.bias").unwrap().var(&cx).unwrap();
                let weight = weight.var(&cx).unwrap();
                let normed =
                    ops::norm(&cx, ops::NormRule::new(NormKind::Layer, 1e-12), &sum, &weight, Some(&bias)).unwrap();
                expected = widen(normed.value()).unwrap();
            }
            let (states, states_dtype) = embedded(&*model, &batch, &device);
            assert_eq!(states_dtype, dtype);
            assert!(states == expected, "{golden:?} {dtype}");
        }
    }
}

/// A step of 5e-7, some 1e-5 of a value, is below half a unit in the last place of most 16-bit values.
#[test]
fn a_small_update_reaches_the_forward_pass() {
    let device = Device::cpu(1).unwrap();
    for dtype in [DType::BF16, DType::F16] {
        let trained = |f32_parameters: F32Parameters| {
            let model = open(&device, ("gpt2_a", "lm"), dtype, f32_parameters);
            let read = |name: &str| model.parameters().get(name).unwrap().read().unwrap();
            let before = read("input_embedding.weight");
            let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
            let groups = ParamGroup::by_decay(model.parameters(), 0.0);
            optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 5e-7);
            let mut cx = Ctx::training(&device, Randomness::default());
            let loss = model.loss(&inputs("gpt2_a", "lm"), &mut cx).unwrap().unwrap();
            optim.backward(&loss, 1.0, &mut cx).unwrap();
            optim.step().unwrap();
            let after = read("input_embedding.weight");
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            (moved as f64 / before.len() as f64, after)
        };
        let (wide, table) = trained(COMMON);
        let (narrow, _) = trained(F32Parameters::default());
        assert!(wide > 0.9 && narrow < 0.1, "{dtype}: {wide} and {narrow} of the values moved");
        assert!(table.iter().any(|value| rounded(*value, dtype) != *value));
    }
}

/// Every family computes a loss and its gradients with norms and tables of another dtype than the rest.
#[test]
fn each_kind_is_in_f32_alone_where_it_is_asked_for() {
    let device = Device::cpu(1).unwrap();
    let goldens = [
        ("bert_a", "mlm"),
        ("bert_a", "pretraining"),
        ("megatron_bert_a", "mlm"),
        ("roberta_a", "mlm"),
        ("distilbert_a", "mlm"),
        ("electra_a", "mlm"),
        ("mpnet_a", "mlm"),
        ("modernbert_b", "mlm"),
        ("albert_a", "pretraining"),
        ("gpt2_a", "lm"),
        ("gpt2_a", "untied"),
        ("gptj_a", "lm"),
        ("llama_a", "lm"),
        ("mistral_a", "lm"),
        ("qwen2_a", "lm"),
        ("qwen3_a", "lm"),
        ("opt_a", "lm"),
        ("bloom_a", "lm"),
        ("bart_a", "lm"),
        ("marian_a", "lm"),
        ("t5_a", "lm"),
        ("cpm1_a", "lm"),
        ("cpm2_a", "lm"),
    ];
    for golden in goldens {
        let has_types =
            ["bert_", "megatron", "roberta", "electra", "albert"].iter().any(|name| golden.0.starts_with(name));
        let types = if has_types { &[false, true][..] } else { &[false] };
        for (kinds, &token_types) in [[true, false], [false, true], [true, true]]
            .iter()
            .flat_map(|kinds| types.iter().map(move |token_types| (kinds, token_types)))
        {
            let [embeddings, norms] = *kinds;
            let f32_parameters = F32Parameters { embeddings, norms, token_types };
            let model = open(&device, golden, DType::BF16, f32_parameters);
            let mut in_f32 = 0;
            for param in model.parameters() {
                let name = param.name();
                let is_table = name.ends_with("input_embedding.weight") || name.ends_with("position_embedding.weight");
                let expected = (is_table && embeddings)
                    || (name.contains("norm") && norms)
                    || (name.ends_with("token_type_embedding.weight") && token_types);
                let dtype = if expected { DType::F32 } else { DType::BF16 };
                assert_eq!(param.spec().dtype, dtype, "{golden:?} {f32_parameters:?}: {name}");
                in_f32 += usize::from(expected);
            }
            assert!(in_f32 > 0 && in_f32 < model.parameters().iter().count());
            let batch = inputs(golden.0, golden.1);
            let output = model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap();
            assert_eq!(output.logits.unwrap().dtype(), DType::BF16, "{golden:?}");
            model.parameters().release();
            let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
            let groups = ParamGroup::by_decay(model.parameters(), 0.0);
            optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-3);
            let mut cx = Ctx::training(&device, Randomness::default());
            let loss = model.loss(&batch, &mut cx).unwrap().unwrap();
            optim.backward(&loss, 1.0, &mut cx).unwrap();
            let missing: Vec<&str> = model
                .parameters()
                .iter()
                .filter_map(|param| (param.is_trainable() && param.grad().unwrap().is_none()).then_some(param.name()))
                .collect();
            assert!(missing.is_empty(), "{golden:?}: {missing:?} have no gradient");
            assert!(loss.value().item().unwrap().is_finite());
            assert!(optim.step().unwrap().grad_norm > 0.0);
        }
    }
}

/// A 16-bit value is the same in f32, and so are products with it.
#[test]
fn tables_of_sixteen_bit_values_give_the_logits_that_they_give_in_sixteen_bits() {
    let device = Device::cpu(1).unwrap();
    for golden in [("llama_a", "lm"), ("t5_a", "lm")] {
        let model = |f32_parameters| {
            let model = open(&device, golden, DType::BF16, f32_parameters);
            for param in model.parameters() {
                let values: Vec<f32> = param.read().unwrap().into_iter().map(|x| rounded(x, DType::BF16)).collect();
                param.load(&values).unwrap();
            }
            let batch = inputs(golden.0, golden.1);
            let output = model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap();
            widen(output.logits.unwrap().value()).unwrap()
        };
        // Neither has positions or types to add.
        assert_eq!(model(COMMON), model(F32Parameters::default()), "{golden:?}");
    }
}

#[test]
fn saved_directories_have_one_dtype() {
    let device = Device::cpu(1).unwrap();
    let model = open(&device, ("bert_a", "mlm"), DType::BF16, ALL);
    for dtype in [DType::BF16, DType::F32] {
        let to = tempfile::tempdir().unwrap();
        let options = SaveOptions { dtype, companions: None, layout: DirectoryLayout::HuggingFace };
        model.save(&to.path().join("model"), &options).unwrap();
        let weights = Weights::open(&to.path().join("model")).unwrap();
        let names: std::collections::BTreeSet<String> =
            weights.entries().iter().map(|entry| format!("{:?}", entry.dtype)).collect();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), [format!("{dtype:?}")]);
    }
}

#[test]
fn token_types_of_a_model_without_them_are_refused() {
    let device = Device::cpu(1).unwrap();
    let options = OpenOptions { dtype: DType::BF16, f32_parameters: ALL, ..OpenOptions::new(&device) };
    let error = Registry::default().open(&directory("gpt2_a", "lm"), &options).err().unwrap().to_string();
    assert!(error.contains("GPT-2 has no token types") && error.contains("model.f32_parameters"), "{error}");
}
