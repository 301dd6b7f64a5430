//! torchtitan's names: its own checkpoints, and models of Hugging Face's under them.

use crate::goldens::{directory, inputs};
use bmtrain_core::{Ctx, Device};
use model_center::config::{ConfigOverrides, ConfigSource};
use model_center::formats::{SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource, Weights};
use model_center::model::{OpenMode, OpenOptions, Registry};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Hugging Face's names and torchtitan's, of version 0.3.0 and of those before.
const NAMES: [(&str, &str, &str); 14] = [
    ("model.embed_tokens.weight", "tok_embeddings.weight", "tok_embeddings.weight"),
    ("model.norm.weight", "norm.weight", "norm.weight"),
    ("lm_head.weight", "lm_head.weight", "output.weight"),
    ("input_layernorm.weight", "attention_norm.weight", "attention_norm.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight", "ffn_norm.weight"),
    ("self_attn.q_proj.weight", "attention.qkv_linear.wq.weight", "attention.wq.weight"),
    ("self_attn.k_proj.weight", "attention.qkv_linear.wk.weight", "attention.wk.weight"),
    ("self_attn.v_proj.weight", "attention.qkv_linear.wv.weight", "attention.wv.weight"),
    ("self_attn.o_proj.weight", "attention.wo.weight", "attention.wo.weight"),
    ("self_attn.q_norm.weight", "attention.q_norm.weight", "attention.q_norm.weight"),
    ("self_attn.k_norm.weight", "attention.k_norm.weight", "attention.k_norm.weight"),
    ("mlp.gate_proj.weight", "feed_forward.w1.weight", "feed_forward.w1.weight"),
    ("mlp.up_proj.weight", "feed_forward.w3.weight", "feed_forward.w3.weight"),
    ("mlp.down_proj.weight", "feed_forward.w2.weight", "feed_forward.w2.weight"),
];

fn renamed(name: &str, is_old: bool) -> String {
    let (layer, rest) = match name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((number, rest)) => (format!("layers.{number}."), rest),
        None => (String::new(), name),
    };
    let (_, new, old) = NAMES.into_iter().find(|(theirs, ..)| *theirs == rest).unwrap_or_else(|| panic!("{name}"));
    format!("{layer}{}", if is_old { old } else { new })
}

/// The rows of each head in pairs: the reverse of what torchtitan's adapter calls `_permute`.
fn in_pairs(values: &[f32], head: usize, columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let from = |row: usize| row / head * head + row % 2 * (head / 2) + row % head / 2;
    (0..rows).flat_map(|row| values[from(row) * columns..][..columns].iter().copied()).collect()
}

/// Writes the model of a directory under torchtitan's names; a head that is tied is under both names.
fn write(model: &Path, to: &Path, pairs: Option<usize>, is_old: bool) {
    fs::copy(model.join("config.json"), to.join("config.json")).unwrap();
    let source = SafetensorsFile::open(&model.join("model.safetensors")).unwrap();
    let mut tensors: Vec<(TensorEntry, Vec<f32>)> = Vec::new();
    let is_tied = source.entries().iter().all(|entry| entry.name != "lm_head.weight");
    for entry in source.entries() {
        let mut values = vec![0.0; entry.elements().unwrap()];
        source.read_f32(&entry.name, &mut values).unwrap();
        let is_rotated = ["q_proj.weight", "k_proj.weight"].iter().any(|end| entry.name.ends_with(end));
        if let Some(head) = pairs.filter(|_| is_rotated) {
            values = in_pairs(&values, head, entry.shape[1]);
        }
        let twin = (is_tied && entry.name.contains("embed_tokens")).then_some("lm_head.weight");
        for name in [entry.name.as_str()].into_iter().chain(twin) {
            let entry = TensorEntry::new(renamed(name, is_old), entry.dtype, entry.shape.clone());
            tensors.push((entry, values.clone()));
        }
    }
    tensors.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    let entries: Vec<TensorEntry> = tensors.iter().map(|(entry, _)| entry.clone()).collect();
    let mut writer = SafetensorsWriter::create(&to.join("model.safetensors"), &entries).unwrap();
    tensors.iter().for_each(|(entry, values)| writer.write_f32(&entry.name, values).unwrap());
    writer.finish().unwrap();
}

fn loss(directory: &Path, model: &str) -> u32 {
    let device = Device::cpu(1).unwrap();
    let opened = Registry::default().open(directory, &OpenOptions::new(&device)).unwrap();
    assert!(opened.initialized.is_empty() && opened.unused.is_empty(), "{:?}", opened.initialized);
    let loss = opened.model.loss(&inputs(model, "lm"), &mut Ctx::inference(&device)).unwrap().unwrap();
    loss.value().item().unwrap().to_bits()
}

#[test]
fn a_model_under_torchtitans_names_computes_the_same() {
    for (name, pairs) in [("llama_a", Some(6)), ("qwen3_b", None)] {
        let model = directory(name, "lm");
        for is_old in [false, true] {
            let there = tempfile::tempdir().unwrap();
            write(&model, there.path(), pairs, is_old);
            assert_eq!(loss(there.path(), name), loss(&model, name), "{name}, old names: {is_old}");
        }
    }
    // Rows that are not in pairs are another model's.
    let there = tempfile::tempdir().unwrap();
    write(&directory("llama_a", "lm"), there.path(), None, false);
    assert_ne!(loss(there.path(), "llama_a"), loss(&directory("llama_a", "lm"), "llama_a"));
}

#[test]
fn a_family_that_torchtitan_does_not_have_is_refused() {
    let there = tempfile::tempdir().unwrap();
    write(&directory("llama_a", "lm"), there.path(), Some(6), false);
    let device = Device::cpu(1).unwrap();
    let config = Some(Arc::new(ConfigSource::open(&directory("mistral_a", "lm"), ConfigOverrides::default()).unwrap()));
    let asked = OpenOptions { config, ..OpenOptions::new(&device) };
    let error = Registry::default().open(there.path(), &asked).map(drop).unwrap_err().to_string();
    assert!(error.contains("torchtitan's names") && error.contains("last_save_in_hf"), "{error}");
}

/// All values of a directory's model by the names of its parameters, and what was left out of the files.
fn values(directory: &Path, config: Option<&Path>) -> (Vec<(String, Vec<u32>)>, Vec<String>) {
    let device = Device::cpu(1).unwrap();
    let read = |config| Arc::new(ConfigSource::open(config, ConfigOverrides::default()).unwrap());
    let asked = OpenOptions { config: config.map(read), mode: OpenMode::Check, ..OpenOptions::new(&device) };
    let opened = Registry::default().open(directory, &asked).unwrap();
    assert!(opened.initialized.is_empty() && opened.unused.is_empty(), "{:?}", opened.initialized);
    let weights = Weights::open(directory).unwrap();
    let value = |name: &str| {
        let mut values = Vec::new();
        opened.plan.read(&weights, name, &mut values).unwrap();
        (name.to_owned(), values.iter().map(|value| value.to_bits()).collect())
    };
    let declared = opened.model.parameters().declared();
    (declared.iter().map(|param| value(param.name())).collect(), weights.notes().to_vec())
}

#[test]
fn models_of_torchtitan_are_what_its_adapter_makes_of_them() {
    let step = |name| directory("torchtitan", name).join("checkpoint/step-2");
    let whole = "left out of the checkpoint: values under dataloader, values under lr_scheduler, 51 tensors under \
                 optimizer, values under train_state";
    let old = "left out of the checkpoint: 1 tensor under freqs_cis, 1 tensor under train_state";
    for (from, model, left) in [
        (step("llama"), "llama", &[whole][..]),
        (directory("torchtitan", "llama_old"), "llama", &[old]),
        (step("llama_tied"), "llama_tied", &[]),
        (step("qwen3"), "qwen3", &[]),
    ] {
        let model = directory("torchtitan", model).join("model");
        let (found, notes) = values(&from, Some(&model));
        assert!(found == values(&model, None).0, "{}", from.display());
        assert_eq!(notes, left, "{}", from.display());
    }
}
