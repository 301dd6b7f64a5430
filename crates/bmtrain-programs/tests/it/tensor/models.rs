//! Tiny models whose heads and feed-forward layers two tensor-parallel ranks divide: the golden ones, whose sizes are
//! odd on purpose, with fewer feed-forward columns and other numbers of heads.

use crate::fixture::{Fixture, golden};
use model_center::formats::{SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Model and head of a golden directory, and sizes of its feed-forward layers, each with the size that is left of it.
pub type Family = (&'static str, &'static str, &'static [(usize, usize)]);

/// One of each family.
pub const FAMILIES: [Family; 18] = [
    ("bert_a", "mlm", &[]),
    ("bert_a", "cls", &[]),
    ("roberta_a", "cls", &[]),
    ("megatron_bert_a", "pretraining", &[]),
    ("gpt2_a", "lm", &[]),
    ("gptj_a", "lm", &[]),
    ("llama_a", "untied", &[(33, 32)]),
    ("mistral_a", "lm", &[(31, 30)]),
    ("qwen2_a", "lm", &[(29, 28)]),
    ("qwen3_a", "lm", &[(25, 24)]),
    ("opt_a", "lm", &[(33, 32)]),
    ("bloom_a", "lm", &[]),
    ("t5_a", "lm", &[(29, 28)]),
    ("bart_a", "lm", &[(29, 28), (23, 22)]),
    ("marian_b", "lm", &[(19, 18), (33, 32)]),
    ("cpm1_b", "lm", &[(17, 16)]),
    ("cpm2_b", "lm", &[(15, 14)]),
    ("cpm_t5_b", "lm", &[(15, 14)]),
];

/// A copy of a golden directory whose axes of these sizes are cut, with heads that two divides.
pub fn divisible(fixture: &Fixture, (model, head, cuts): Family) -> PathBuf {
    let (from, name) = (golden(model, head), format!("even/{model}-{head}"));
    let cut = |size: usize| cuts.iter().find(|(old, _)| *old == size).map_or(size, |(_, new)| *new);
    let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in config.as_object_mut().unwrap() {
        if ["intermediate_size", "ffn_dim", "d_ff", "dim_ff", "ff_hidden_size"].contains(&&**key)
            || key.ends_with("ffn_dim")
        {
            *value = json!(cut(value.as_u64().unwrap() as usize));
        }
        if ["encoder_attention_heads", "decoder_attention_heads"].contains(&&**key) {
            *value = json!(2);
        }
    }
    fixture.write(&format!("{name}/config.json"), &config.to_string());
    let file = SafetensorsFile::open(&from.join("model.safetensors")).unwrap();
    let shape = |entry: &TensorEntry| entry.shape.iter().map(|size| cut(*size)).collect::<Vec<_>>();
    let entries: Vec<TensorEntry> =
        file.tensors().iter().map(|entry| TensorEntry { shape: shape(entry), ..entry.clone() }).collect();
    let directory = fixture.path(&name);
    let mut writer = SafetensorsWriter::create(&directory.join("model.safetensors"), &entries).unwrap();
    for (old, new) in file.tensors().iter().zip(&entries) {
        let mut values = vec![0.0; old.elements().unwrap()];
        file.read_f32(&old.name, &mut values).unwrap();
        let row = old.shape.last().copied().unwrap_or(1).max(1);
        let kept = new.shape.last().copied().unwrap_or(1);
        let left = values.chunks(row).flat_map(|row| &row[..kept]).copied().take(new.elements().unwrap());
        writer.write_f32(&new.name, &left.collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
    directory
}
