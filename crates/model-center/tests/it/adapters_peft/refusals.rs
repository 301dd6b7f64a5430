//! Directories of adapters that are refused by name.

use super::{logits, open};
use crate::goldens::directory;
use bmtrain_core::Device;
use model_center::adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
use model_center::formats::{SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource};
use serde_json::{Value, json};

/// A copy of a golden directory with other fields and tensors.
pub fn changed(name: &str, fields: &[(&str, Value)], more: &[(&str, &[usize], f32)]) -> tempfile::TempDir {
    let of = if name == "t5" { "adapters" } else { "adapters_peft" };
    let (out, from) = (tempfile::tempdir().unwrap(), directory(of, name));
    let text = std::fs::read_to_string(from.join(ADAPTER_CONFIG)).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    fields.iter().for_each(|(field, value)| config[*field] = value.clone());
    std::fs::write(out.path().join(ADAPTER_CONFIG), config.to_string()).unwrap();
    let file = SafetensorsFile::open(&from.join(ADAPTER_WEIGHTS)).unwrap();
    let mut entries: Vec<TensorEntry> = file.tensors().to_vec();
    let stored = entries[0].dtype;
    entries.extend(more.iter().map(|(name, shape, _)| TensorEntry::new(*name, stored, shape.to_vec())));
    let mut writer = SafetensorsWriter::create(&out.path().join(ADAPTER_WEIGHTS), &entries).unwrap();
    for entry in file.tensors() {
        let mut values = vec![0.0; entry.elements().unwrap()];
        file.read_f32(&entry.name, &mut values).unwrap();
        writer.write_f32(&entry.name, &values).unwrap();
    }
    for (name, shape, value) in more {
        writer.write_f32(name, &vec![*value; shape.iter().product()]).unwrap();
    }
    writer.finish().unwrap();
    out
}

fn refusal(name: &str, model: [&str; 2], fields: &[(&str, Value)], more: &[(&str, &[usize], f32)]) -> String {
    let out = changed(name, fields, more);
    open(&Device::cpu(1).unwrap(), model, Some(out.path()))
        .err()
        .unwrap_or_else(|| panic!("{fields:?} opens"))
        .to_string()
}

#[test]
fn what_a_directory_asks_for_and_is_not_available_is_refused_by_name() {
    let llama = ["llama_a", "lm"];
    for (field, value, reason) in [
        ("init_lora_weights", json!("corda"), "changes the base model"),
        ("init_lora_weights", json!("loftq"), "changes the base model"),
        ("init_lora_weights", json!("pissa_niter_4"), "random approximation"),
        ("init_lora_weights", json!("later"), "is not known"),
        ("layer_replication", json!([[0, 2]]), "not available"),
        ("target_parameters", json!(["mlp.up_proj.weight"]), "not available"),
        ("use_qalora", json!(true), "not available"),
        ("a_later_field", json!(3), "no such field"),
        ("bias", json!("some"), "\"lora_only\""),
        ("target_modules", json!(["k_proj"]), "target_modules does not name it"),
        ("target_modules", json!("("), "not read as a regular expression"),
        ("r", json!(4), "the configuration states 4"),
        ("modules_to_save", json!(["norm"]), "which modules_to_save names"),
        ("peft_type", json!("VERA"), "the method \"VERA\" is not read"),
    ] {
        let error = refusal("pissa", llama, &[(field, value)], &[]);
        assert!(error.contains(reason), "{field}: {error}");
    }
    // Of a matrix that has three names PEFT trains one copy.
    let shared = [("modules_to_save", json!(["shared"]))];
    let error = refusal("t5", ["t5_b", "lm"], &shared, &[("base_model.model.shared.weight", &[1, 1], 0.0)]);
    assert!(error.contains("one matrix"), "{error}");
    // Fields that are off ask for nothing, whatever their name.
    let off = [("a_later_field", json!(null)), ("another", json!([])), ("use_qalora", json!(false))];
    let out = changed("pissa", &off, &[]);
    open(&Device::cpu(1).unwrap(), llama, Some(out.path())).unwrap();
}

#[test]
fn every_tensor_of_a_directory_is_taken_or_refused() {
    let llama = ["llama_a", "lm"];
    let prefix = "base_model.model.model.";
    let error = |name: &str, shape: &[usize], value: f32| {
        refusal("pissa", llama, &[], &[(&format!("{prefix}{name}"), shape, value)])
    };
    // Of no part of the model; of a module that PEFT has put a layer around, without it, and the other way round.
    for name in ["extra.weight", "layers.0.self_attn.q_proj.weight", "layers.0.mlp.up_proj.base_layer.weight"] {
        let shape: &[usize] = if name.contains("up_proj") { &[33, 20] } else { &[24, 20] };
        let error = error(name, shape, 0.5);
        assert!(error.contains(name) && error.contains("no part of the model"), "{error}");
    }
    let shape = error("norm.weight", &[21], 0.5);
    assert!(shape.contains("its shape is [21], and the model has [20]"), "{shape}");
    let nan = error("norm.weight", &[20], f32::NAN);
    assert!(nan.contains("norm.weight") && nan.contains("NaN"), "{nan}");
    // PEFT reads a tensor of the base model under its name whatever the configuration states.
    let out = changed("pissa", &[], &[(&format!("{prefix}norm.weight"), &[20], 0.5)]);
    let device = Device::cpu(1).unwrap();
    let [with, without] = [out.path(), &directory("adapters_peft", "pissa")]
        .map(|path| logits(&open(&device, llama, Some(path)).unwrap(), llama, &device));
    assert!(with != without);
}
