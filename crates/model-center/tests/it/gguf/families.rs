//! Files of each family: the logits of the directory that holds the same model, and the directory they become. Made by
//! `scripts/golden/make_gguf_families.py`.

use super::golden;
use crate::goldens;
use bmtrain_core::{Ctx, DType, Device};
use model_center::formats::{GgufAsHuggingFace, GgufFile, SafetensorsFile, TensorSource, gguf_to_directory};
use model_center::model::{Batch, OpenOptions, Registry};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Name of the file, and the golden directory of the same model.
const FILES: [(&str, &str, &str); 8] = [
    ("granite", "granite_a", "lm"),
    ("olmo2", "olmo2_a", "lm"),
    ("olmo3", "olmo3_a", "lm"),
    ("smollm3", "gguf", "smollm3"),
    ("phi3", "phi3_a", "lm"),
    ("glm4", "glm4_a", "lm"),
    ("gpt_neox", "gpt_neox_a", "untied"),
    ("gemma3", "gemma3_b", "lm"),
];

fn file(family: &str) -> PathBuf {
    golden(&format!("{family}.gguf"))
}

fn config(family: &str) -> Value {
    Value::Object(GgufAsHuggingFace::new(GgufFile::open(&file(family)).unwrap()).unwrap().config())
}

/// The logits of a batch of text that is longer than the windows and LongRoPE's first training.
fn logits(path: &Path) -> Vec<f32> {
    let device = Device::cpu(1).unwrap();
    let opened = Registry::default().open(path, &OpenOptions::new(&device)).unwrap();
    assert!(opened.initialized.is_empty() && opened.unused.is_empty(), "{}: {:?}", path.display(), opened.initialized);
    let ids = (0..14i64).map(|place| (place * 7 + place * place * 3) % 31).collect();
    let batch = Batch { labels: None, ..Batch::next_tokens(14, ids, None) };
    let output = opened.model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap();
    output.logits.unwrap().value().to_vec().unwrap()
}

#[test]
fn logits_of_each_family_are_those_of_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    for (family, model, head) in FILES {
        let ours = logits(&file(family));
        let theirs = logits(&goldens::directory(model, head));
        let norm = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        assert!(norm(&theirs) > 1.0, "{family}: {}", norm(&theirs));
        if family == "gemma3" {
            // 1 was added to the weights of norms in single precision, which rounds.
            let differences: Vec<f32> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs).collect();
            assert!(norm(&differences) <= 1e-5 * norm(&theirs), "{family}: {}", norm(&differences));
        } else {
            assert!(ours == theirs, "{family}: {:?} for {:?}", &ours[..4], &theirs[..4]);
        }
        let written = directory.path().join(family);
        gguf_to_directory(&file(family), &written, DType::F32).unwrap();
        assert!(logits(&written) == ours, "{family}: the directory has other logits");
    }
}

#[test]
fn tensors_of_each_family_have_the_names_and_rows_of_hugging_face() {
    for (family, model, head) in FILES {
        let ours = GgufAsHuggingFace::new(GgufFile::open(&file(family)).unwrap()).unwrap();
        let theirs = SafetensorsFile::open(&goldens::directory(model, head).join("model.safetensors")).unwrap();
        assert_eq!(ours.entries().len(), theirs.tensors().len(), "{family}");
        for entry in theirs.tensors() {
            let [ours_f32, theirs_f32] = [&ours as &dyn TensorSource, &theirs].map(|source| {
                let mut values = vec![0.0; entry.elements().unwrap()];
                source.read_f32(&entry.name, &mut values).unwrap();
                values
            });
            let is_close = |(ours, theirs): (&f32, &f32)| match family {
                "gemma3" => (ours - theirs).abs() <= 1e-6,
                _ => ours == theirs,
            };
            assert!(ours_f32.iter().zip(&theirs_f32).all(is_close), "{family} {}", entry.name);
            // Raw bytes come in the same order of rows, also from the middle of one.
            let mut raw = vec![0; entry.bytes().unwrap() - 7];
            ours.read_raw_at(&entry.name, 5, &mut raw).unwrap();
            let bytes = ours_f32.iter().flat_map(|value| value.to_le_bytes()).skip(5).take(raw.len());
            assert!(bytes.eq(raw.iter().copied()), "{family} {}", entry.name);
        }
    }
}

#[test]
fn configurations_have_the_fields_of_their_family() {
    let granite = config("granite");
    for (name, value) in [
        ("embedding_multiplier", json!(3.5)),
        ("attention_multiplier", json!(0.3)),
        ("residual_multiplier", json!(0.45)),
        ("logits_scaling", json!(0.7)),
        ("mlp_bias", json!(false)),
    ] {
        assert_eq!(granite[name], value, "{name}");
    }
    let olmo3 = config("olmo3");
    assert_eq!((&config("olmo2")["model_type"], &olmo3["model_type"]), (&json!("olmo2"), &json!("olmo3")));
    let [full, sliding] = ["full_attention", "sliding_attention"];
    assert_eq!(olmo3["layer_types"], json!([sliding, sliding, sliding, full]));
    // The factor of cosines and sines in the file is the one that follows from the other.
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10, "beta_fast": 32.0,
        "beta_slow": 1.0, "rope_theta": 20.0});
    assert_eq!(olmo3["rope_parameters"], json!({full: yarn, sliding: {"rope_type": "default", "rope_theta": 30.0}}));
    assert_eq!(olmo3.get("rope_theta"), None);
    assert_eq!(config("smollm3")["no_rope_layers"], json!([1, 1, 1, 0, 1]));
    let phi3 = config("phi3");
    let long = json!({"rope_type": "longrope", "short_factor": [1.0, 1.25, 1.5], "long_factor": [1.125, 2.5, 4.0],
        "original_max_position_embeddings": 9});
    assert_eq!((&phi3["rope_scaling"], &phi3["partial_rotary_factor"]), (&long, &json!(0.75)));
    assert_eq!((&phi3["sliding_window"], &phi3["original_max_position_embeddings"]), (&json!(5), &json!(9)));
    assert_eq!(
        (&config("glm4")["partial_rotary_factor"], &config("glm4")["attention_bias"]),
        (&json!(0.5), &json!(true))
    );
    let neox = config("gpt_neox");
    assert_eq!((&neox["use_parallel_residual"], &neox["tie_word_embeddings"]), (&json!(true), &json!(false)));
    let gemma = config("gemma3");
    assert_eq!(gemma["model_type"], "gemma3_text");
    assert_eq!((&gemma["query_pre_attn_scalar"], &gemma["layer_types"]), (&json!(10), &json!([sliding, full])));
}

#[test]
fn what_files_do_not_declare_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    for (family, line) in [
        ("smollm3", "skipped layers without positions: the file does not list them: each fourth layer has none"),
        ("gpt_neox", "skipped activation: the file does not declare it: gelu is used"),
        ("gemma3", "skipped scale of attention scores: the file does not declare it"),
        ("phi3", "skipped rope_factors_long.weight: its factors are rope_scaling in config.json"),
    ] {
        let report = gguf_to_directory(&file(family), &directory.path().join(family), DType::F32).unwrap().to_string();
        assert!(report.contains(line), "{report}");
        assert!(!report.contains("skipped key"), "{report}");
    }
}
