//! CPM-Pretrain's T5 beside its goldens: the shared position table, biases and norms by option, what its decoder reads,
//! heads and layouts that it does not have.

use crate::goldens;

use bmtrain_core::{Ctx, DType, Device};
use goldens::directories::{F32, changed, logits, open, opened};
use goldens::{directory, inputs};
use model_center::formats::DirectoryLayout;
use model_center::model::{Batch, OpenOptions, SaveOptions, TextHead, TextModel};
use serde_json::json;

fn device() -> Device {
    Device::cpu(1).unwrap()
}

fn names(model: &dyn TextModel) -> Vec<String> {
    model.parameters().declared().iter().map(|param| param.name().to_owned()).collect()
}

#[test]
fn both_stacks_have_one_position_table_that_counts_once() {
    let model = opened(&device(), &directory("cpm_t5_a", "lm"));
    let tables: Vec<String> = names(&*model).into_iter().filter(|name| name.contains("position")).collect();
    assert_eq!(tables, ["position_embedding.weight"]);
    // The tied token embedding is a head's matrix, too.
    assert_eq!(model.parameters().count() - model.matmul_parameters(), 14 * 18);
}

#[test]
fn a_changed_position_changes_the_encoder_and_the_decoder() {
    let (device, batch) = (device(), inputs("cpm_t5_a", "lm"));
    let states = |model: &dyn TextModel| {
        let output = model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap();
        let (_, encoder) = output.extra.iter().find(|(name, _)| *name == "encoder_last_hidden_state").unwrap();
        (bmtrain_dist::param::widen(encoder.value()).unwrap(), logits(&device, model, &batch))
    };
    // The decoder's sequences have 10 tokens, the encoder's 8.
    let with = |position: usize| {
        let other = changed(("cpm_t5_a", "lm"), &[], |values| {
            let (_, table) = values.get_mut("position_embedding.weight").unwrap();
            table[position * 18..][..18].iter_mut().for_each(|value| *value += 1.0);
        });
        states(&*opened(&device, other.path()))
    };
    let (encoder, words) = states(&*opened(&device, &directory("cpm_t5_a", "lm")));
    let (first, last, unused) = (with(0), with(9), with(13));
    assert!(first.0 != encoder && first.1 != words);
    assert!(last.0 == encoder && last.1 != words);
    assert_eq!(unused, (encoder, words));
}

#[test]
fn sequences_are_as_long_as_the_table_at_most() {
    let (device, batch) = (device(), inputs("cpm_t5_b", "lm"));
    let model = opened(&device, &directory("cpm_t5_b", "lm"));
    let run = |batch: &Batch| model.forward(batch, None, &mut Ctx::inference(&device)).err().map(|e| e.to_string());
    assert_eq!(run(&batch), None);
    let ids = |length: usize| (0..batch.rows * length).map(|at| (at % 30) as i64).collect::<Vec<_>>();
    let long =
        Batch { length: 12, input_ids: ids(12), attention_mask: Some(vec![1; batch.rows * 12]), ..batch.clone() };
    assert!(run(&long).unwrap().contains("12"), "{:?}", run(&long));
    let read = Batch { decoder_input_ids: Some(ids(12)), labels: None, ..batch.clone() };
    assert!(run(&read).unwrap().contains("12"), "{:?}", run(&read));
}

#[test]
fn biases_are_in_all_linear_layers_or_in_none() {
    let biases = |model: &str| -> Vec<String> {
        let linear = |name: &String| name.ends_with(".bias") && !name.contains("norm");
        names(&*opened(&device(), &directory(model, "lm"))).into_iter().filter(linear).collect()
    };
    assert!(biases("cpm_t5_a").is_empty());
    // Four layers of an encoder block, and seven of each decoder block.
    assert_eq!(biases("cpm_t5_b").len(), 4 + 2 * 7);
}

#[test]
fn the_norms_of_cpm_pretrain_are_an_option() {
    let norms = |model: &str| -> Vec<String> {
        let weight = |name: &String| name.ends_with("norm.weight");
        names(&*opened(&device(), &directory(model, "lm"))).into_iter().filter(weight).collect()
    };
    let (own, shared) = (norms("cpm_t5_b"), norms("cpm_t5_c"));
    assert!(own.iter().any(|name| name == "encoder.output_norm.weight"));
    assert!(own.iter().any(|name| name == "decoder.layers.0.ffn_norm.weight"));
    assert!(!shared.iter().any(|name| name == "encoder.output_norm.weight"));
    assert!(!shared.iter().any(|name| name.starts_with("decoder") && name.contains("ffn_norm")));
    assert!(shared.iter().any(|name| name == "encoder.layers.1.ffn_norm.weight"));
    assert!(shared.iter().any(|name| name == "decoder.output_norm.weight"));
    // Weights of the one are none of the other.
    for (model, is_shared) in [("cpm_t5_b", true), ("cpm_t5_c", false)] {
        let other = changed((model, "lm"), &[("cpm_pretrain_norms", json!(is_shared))], |_| {});
        let error = open(other.path(), &OpenOptions::new(&device())).err().unwrap();
        assert!(error.contains("encoder.output_layernorm.weight"), "{error}");
    }
}

#[test]
fn without_a_decoder_start_token_its_decoder_needs_decoder_inputs() {
    let device = device();
    let (model, plain) = (opened(&device, &directory("cpm_t5_a", "lm")), inputs("cpm_t5_a", "lm"));
    let silent = Batch { decoder_input_ids: None, decoder_attention_mask: None, ..plain.clone() };
    let error = model.forward(&silent, None, &mut Ctx::inference(&device)).unwrap_err().to_string();
    assert!(error.contains("decoder_start_token_id") && error.contains("give decoder_input_ids"), "{error}");
}

#[test]
fn it_opens_in_16_bits_with_its_own_head_alone_and_is_not_written_for_model_center() {
    let device = device();
    let half = OpenOptions { dtype: DType::F16, ..OpenOptions::new(&device) };
    let model = open(&directory("cpm_t5_b", "lm"), &half).unwrap().model;
    assert!(logits(&device, &*model, &inputs("cpm_t5_b", "lm")).iter().all(|value| value.is_finite()));
    let bare = OpenOptions { head: Some(TextHead::None), ..OpenOptions::new(&device) };
    assert!(open(&directory("cpm_t5_a", "lm"), &bare).unwrap().unused.is_empty());
    let classes = OpenOptions { head: Some(TextHead::Classification { outputs: 2 }), ..OpenOptions::new(&device) };
    let error = open(&directory("cpm_t5_a", "lm"), &classes).err().unwrap();
    assert!(error.contains("CPM-T5") && error.contains("lm or none"), "{error}");
    let options = SaveOptions { layout: DirectoryLayout::ModelCenter, ..F32 };
    let error = model.check_save(&options).unwrap_err().to_string();
    assert!(error.contains("a CPM-T5 like this is not written in ModelCenter's layout"), "{error}");
}
