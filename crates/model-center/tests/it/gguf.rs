//! GGUF files: every type of elements bit for bit, names and row order of Hugging Face, and the directory that is made
//! of them.

mod families;
mod tokenizers;

use bmtrain_core::{BlockFormat, DType};
use model_center::formats::gguf::{GgmlType, GgufArray, GgufValue};
use model_center::formats::{
    GgufAsHuggingFace, GgufFile, SafetensorsFile, StoredDtype, TensorSource, Weights, gguf_to_directory,
};
use model_center::tokenizer::gguf::tokenizer_files;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(name)
}

fn open(name: &str) -> GgufFile {
    GgufFile::open(&golden(name)).unwrap()
}

fn model(name: &str) -> GgufAsHuggingFace {
    GgufAsHuggingFace::new(open(name)).unwrap()
}

fn values(source: &dyn TensorSource, name: &str) -> Vec<f32> {
    let count = source.entries().into_iter().find(|entry| entry.name == name).unwrap().elements().unwrap();
    let mut values = vec![0.0; count];
    source.read_f32(name, &mut values).unwrap();
    values
}

/// Equal bits, but for NaN, whose bits no two processors agree on.
fn assert_same(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{what} element {i}: {a:e} for {b:e}");
    }
}

#[test]
fn every_type_is_decoded_to_the_bits_of_the_reference() {
    let (file, expected) = (open("types.gguf"), SafetensorsFile::open(&golden("types.safetensors")).unwrap());
    assert_eq!(file.entries().len(), 11);
    for entry in expected.tensors() {
        let (ours, theirs) = (values(&file, &entry.name), values(&expected, &entry.name));
        assert_same(&ours, &theirs, &entry.name);
        let finite = theirs.iter().filter(|value| value.is_finite() && **value != 0.0).count();
        assert!(finite > 200, "{}: only {finite} values are finite and not zero", entry.name);
        assert_eq!(file.stored(&entry.name).unwrap().name(), entry.name);
    }
    assert!(file.read_f32("Q8_0", &mut [0.0; 511]).is_err());
    assert!(file.read_f32("Q8_1", &mut [0.0; 512]).is_err());
}

#[test]
fn stored_bytes_are_those_of_the_type_that_is_presented() {
    let file = open("types.gguf");
    for (name, presented) in [("F16", StoredDtype::F16), ("BF16", StoredDtype::BF16), ("Q4_K", StoredDtype::F32)] {
        let entry = file.entry(name).unwrap();
        assert_eq!((entry.dtype, &*entry.shape), (presented, &[1, 512][..]), "{name}");
        let mut raw = vec![0; entry.bytes().unwrap()];
        file.read_raw_at(name, 0, &mut raw).unwrap();
        if name == "Q4_K" {
            let floats: Vec<f32> = raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            assert_same(&floats, &values(&file, name), name);
        }
        for (from, length) in [(0, 1), (5, 11), (1021, 3), (300, 700)] {
            let mut part = vec![0; length];
            file.read_raw_at(name, from as u64, &mut part).unwrap();
            assert_eq!(part, raw[from..from + length], "{name} from {from}");
        }
        assert!(file.read_raw_at(name, raw.len() as u64 - 1, &mut [0; 2]).is_err());
        assert!(file.read_raw_at(name, u64::MAX, &mut [0; 2]).is_err());
    }
}

#[test]
fn metadata_of_every_type_are_kept_as_they_are_stored() {
    let file = open("types.gguf");
    let get = |key: &str| file.metadata().get(key).unwrap().clone();
    for (key, value) in [
        ("uint8", GgufValue::U8(200)),
        ("int8", GgufValue::I8(-3)),
        ("uint16", GgufValue::U16(60000)),
        ("int16", GgufValue::I16(-300)),
        ("uint32", GgufValue::U32(4_000_000_000)),
        ("int32", GgufValue::I32(-70000)),
        ("uint64", GgufValue::U64(1 << 40)),
        ("int64", GgufValue::I64(-(1 << 40))),
        ("float32", GgufValue::F32(0.1)),
        ("float64", GgufValue::F64(0.1)),
        ("bool", GgufValue::Bool(true)),
        ("string", GgufValue::Text("Grüße".into())),
    ] {
        assert_eq!(get(&format!("value.{key}")), value);
    }
    let texts = ["a", "", "ü"].map(Box::from).to_vec();
    assert_eq!(get("array.texts"), GgufValue::Array(GgufArray::Text(texts)));
    assert_eq!(get("array.wholes"), GgufValue::Array(GgufArray::I32(vec![1, -2, 3])));
    let inner = vec![GgufArray::I32(vec![1, 2]), GgufArray::I32(vec![3])];
    assert_eq!(get("array.arrays"), GgufValue::Array(GgufArray::Arrays(inner)));
    assert_eq!(file.metadata().whole("value.uint8").unwrap(), Some(200));
    assert_eq!(file.metadata().whole("value.none").unwrap(), None);
    let error = file.metadata().whole("value.int8").unwrap_err().to_string();
    assert!(error.contains("value.int8") && error.contains("expected a whole number from 0"), "{error}");
}

#[test]
fn a_llama_has_the_names_and_the_rows_of_hugging_face() {
    let (model, expected) = (model("llama.gguf"), SafetensorsFile::open(&golden("llama.safetensors")).unwrap());
    let names: Vec<_> = model.entries().into_iter().map(|entry| (&entry.name, &entry.shape)).collect();
    let theirs: Vec<_> = expected.tensors().iter().map(|entry| (&entry.name, &entry.shape)).collect();
    assert_eq!(names, theirs);
    for entry in expected.tensors() {
        let ours = values(&model, &entry.name);
        assert_same(&ours, &values(&expected, &entry.name), &entry.name);
        // Raw bytes come in the same order of rows, also from the middle of one.
        let size = model.entries().into_iter().find(|known| known.name == entry.name).unwrap().bytes().unwrap();
        if size == ours.len() * 4 {
            let mut raw = vec![0; size - 7];
            model.read_raw_at(&entry.name, 5, &mut raw).unwrap();
            let all: Vec<u8> = ours.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(raw, all[5..size - 2], "{}", entry.name);
        }
    }
    assert!(model.read_raw_at("model.layers.0.self_attn.q_proj.weight", u64::MAX, &mut [0; 2]).is_err());
    let query = model.mapped().iter().find(|mapped| mapped.theirs == "blk.1.attn_q.weight").unwrap();
    assert_eq!(query.stored, GgmlType::Blocks(BlockFormat::Q8_0));
    // The file's own order is another one.
    assert_ne!(values(model.file(), "blk.1.attn_q.weight"), values(&model, "model.layers.1.self_attn.q_proj.weight"));
}

#[test]
fn qwen_models_keep_their_rows() {
    let parts = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"),
        ("blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"),
        ("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ];
    let biases = [
        ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
        ("blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias"),
        ("blk.0.attn_v.bias", "model.layers.0.self_attn.v_proj.bias"),
    ];
    let norms = [
        ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
        ("blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"),
    ];
    for (name, own) in [("qwen2.gguf", &biases[..]), ("qwen3.gguf", &norms[..])] {
        let model = model(name);
        assert_eq!(model.entries().len(), parts.len() + own.len(), "{name}");
        for (here, there) in parts.iter().chain(own) {
            assert_same(&values(&model, there), &values(model.file(), here), there);
        }
    }
}

#[test]
fn the_configuration_is_that_of_the_metadata() {
    let sizes = json!({
        "hidden_size": 32, "intermediate_size": 36, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "max_position_embeddings": 131072, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "pad_token_id": null,
    });
    let own = [
        (
            "llama.gguf",
            json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 44,
                "bos_token_id": 41, "eos_token_id": 42, "num_hidden_layers": 2,
                "tie_word_embeddings": false, "attention_bias": true, "mlp_bias": false,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 8192},
            }),
        ),
        (
            "qwen2.gguf",
            json!({
                "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 44,
                "bos_token_id": 41, "eos_token_id": 42, "num_hidden_layers": 1,
                "tie_word_embeddings": true, "use_sliding_window": false,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            }),
        ),
        (
            "qwen3.gguf",
            json!({
                "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 18,
                "bos_token_id": 1, "eos_token_id": 2, "num_hidden_layers": 1,
                "tie_word_embeddings": true, "use_sliding_window": false, "attention_bias": false,
            }),
        ),
    ];
    for (name, own) in own {
        let mut expected = sizes.as_object().unwrap().clone();
        expected.extend(own.as_object().unwrap().clone());
        assert_eq!(Value::Object(model(name).config()), Value::Object(expected), "{name}");
    }
}

#[test]
fn a_directory_holds_what_the_file_holds() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, stored) in [(DType::F32, StoredDtype::F32), (DType::BF16, StoredDtype::BF16)] {
        let out = dir.path().join(dtype.to_string());
        let report = gguf_to_directory(&golden("llama.gguf"), &out, dtype).unwrap();
        let (model, weights) = (model("llama.gguf"), Weights::open(&out).unwrap());
        assert_eq!(report.mapped, model.mapped());
        assert_eq!(report.skipped.len(), 1, "{report}");
        assert!(report.to_string().contains("skipped rope_freqs.weight: its factors are rope_scaling"), "{report}");
        for entry in weights.entries() {
            assert_eq!(entry.dtype, stored);
            if dtype == DType::F32 {
                assert_same(&values(&weights, &entry.name), &values(&model, &entry.name), &entry.name);
            }
        }
        assert_eq!(weights.entries().len(), model.entries().len());
        let read = |name: &str| serde_json::from_str::<Value>(&fs::read_to_string(out.join(name)).unwrap()).unwrap();
        let config = read("config.json");
        assert_eq!(config["dtype"], if dtype == DType::F32 { "float32" } else { "bfloat16" });
        assert_eq!(config["rope_scaling"]["factor"], 8.0);
        let config = read("tokenizer_config.json");
        assert_eq!((&config["bos_token"], &config["eos_token"]), (&json!("<|begin|>"), &json!("<|end|>")));
        assert!(config["chat_template"].as_str().unwrap().contains("message['content']"));
    }
}

#[test]
fn what_cannot_be_converted_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(golden("qwen2.gguf")).unwrap();
    let kind = bytes.windows(4).position(|part| part == b"gpt2").unwrap();
    bytes[kind..kind + 4].copy_from_slice(b"rwkv");
    let changed = dir.path().join("changed.gguf");
    fs::write(&changed, bytes).unwrap();
    let out = dir.path().join("out");
    let report = gguf_to_directory(&changed, &out, DType::F16).unwrap();
    let line = "not made tokenizer.json: a vocabulary of kind rwkv is not read; gpt2, llama, t5, bert and gemma4 are";
    assert!(report.to_string().contains(line) && report.to_string().contains("tokenizer.ggml.model"), "{report}");
    assert!(!out.join("tokenizer.json").exists() && !out.join("tokenizer_config.json").exists());
    assert!(out.join("config.json").exists() && out.join("model.safetensors").exists());
    let file = GgufFile::open(&changed).unwrap();
    assert!(tokenizer_files(file.metadata(), 10).unwrap_err().to_string().contains("tokenizer.ggml.model"));

    let error = gguf_to_directory(&golden("llama.gguf"), &out, DType::F32).unwrap_err().to_string();
    assert!(error.contains("the directory is not empty"), "{error}");
    let error = gguf_to_directory(&golden("llama.gguf"), &dir.path().join("x"), DType::I64).unwrap_err().to_string();
    assert!(error.contains("not stored as i64") && !dir.path().join("x").exists(), "{error}");
    let error = GgufAsHuggingFace::new(open("types.gguf")).unwrap_err().to_string();
    assert!(error.contains("the architecture is none; supported are llama, qwen2, qwen3"), "{error}");
}
