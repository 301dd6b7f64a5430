//! Directories of sentence-transformers: the embeddings that it computes of them, by
//! `scripts/golden/make_sentence_encoders.py`, and what is refused.

use bmtrain_core::{Ctx, Device, Tensor};
use model_center::model::{Batch, OpenOptions, Registry, SentenceEncoder, TextHead, sentence_field};
use model_center::tokenizer::{AutoTokenizer, ConfigField};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CASES: [&str; 8] = ["mean", "first", "short", "several", "dense", "activations", "prompt", "older"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sentence_encoders").join(name)
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let own = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &own);
        } else {
            std::fs::copy(&path, own).unwrap();
        }
    }
}

/// The directory of a case.
fn directory(case: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    copy(&golden("base"), directory.path());
    copy(&golden(case), directory.path());
    directory
}

/// The ids and embeddings of texts as the server computes them.
pub(crate) fn embedded(directory: &Path, texts: &[String], prompt: Option<&str>) -> Vec<(Vec<u32>, Vec<f32>)> {
    let device = Device::cpu(1).unwrap();
    let open = OpenOptions { head: Some(TextHead::None), ..OpenOptions::new(&device) };
    let model = Registry::default().open(directory, &open).unwrap().model;
    let encoder = SentenceEncoder::from_directory(directory).unwrap().within(model.info().max_length);
    let tokenizer = AutoTokenizer::open(directory).unwrap();
    let embed = |text: &String| {
        let ids = encoder.encode(&*tokenizer, text, prompt).unwrap();
        let batch = Batch::new(ids.len(), ids.iter().map(|id| i64::from(*id)).collect());
        let mut states: Vec<f32> = Vec::new();
        let mut observe = |_: usize, value: &Tensor| {
            states = value.to_vec()?;
            Ok::<(), bmtrain_dist::Error>(())
        };
        model.forward(&batch, Some(&mut observe), &mut Ctx::inference(&device)).unwrap();
        let embedding = encoder.embed(&states, states.len() / ids.len());
        assert!(encoder.size.is_none_or(|size| size == embedding.len()));
        (ids, embedding)
    };
    texts.iter().map(embed).collect()
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    for case in CASES {
        let directory = directory(case);
        let expected: Value =
            serde_json::from_slice(&std::fs::read(golden(case).join("expected.json")).unwrap()).unwrap();
        let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
        let ids: Vec<Vec<u32>> = serde_json::from_value(expected["ids"].clone()).unwrap();
        let prompted = expected
            .as_object()
            .unwrap()
            .iter()
            .filter_map(|(key, found)| Some((key.strip_prefix("embeddings")?.strip_prefix(" of "), found)));
        for (prompt, found) in prompted {
            let found: Vec<Vec<f32>> = serde_json::from_value(found.clone()).unwrap();
            let ours = embedded(directory.path(), &texts, prompt);
            if prompt.is_none() {
                assert_eq!(ours.iter().map(|(ids, _)| ids.clone()).collect::<Vec<_>>(), ids, "{case}");
            }
            for ((_, ours), theirs) in ours.iter().zip(&found) {
                assert_eq!(ours.len(), theirs.len(), "{case}");
                let most = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
                // Both compute in f32; their sums are in another order.
                assert!(most < 1e-5, "{case}, prompt {prompt:?}: {most}");
            }
        }
    }
}

#[test]
fn modules_and_settings_without_a_counterpart_are_named() {
    let written = |name: &str, content: &Value| {
        let directory = directory("mean");
        std::fs::write(directory.path().join(name), content.to_string()).unwrap();
        SentenceEncoder::from_directory(directory.path())
    };
    let step = |path: &str, name: &str| json!({"path": path, "type": format!("sentence_transformers.models.{name}")});
    let with = |more: Value| json!([step("", "Transformer"), step("1_Pooling", "Pooling"), more]);
    for (name, content, reason) in [
        ("modules.json", with(step("2_LSTM", "LSTM")), "the step \"LSTM\" is not supported"),
        (
            "modules.json",
            with(json!({"path": "", "type": "custom.Normalize"})),
            "the step \"Normalize\" is not supported",
        ),
        ("modules.json", json!([step("", "Transformer")]), "no step makes one embedding"),
        ("modules.json", json!([step("0_Transformer", "Transformer")]), "in a directory of its own"),
        (
            "modules.json",
            with(json!({"path": "2_Normalize", "type": "sentence_transformers.N.Normalize",
            "kwargs": ["task"]})),
            "takes arguments of calls",
        ),
        ("1_Pooling/config.json", json!({"pooling_mode": "middle"}), "the pooling \"middle\""),
        ("1_Pooling/config.json", json!({"pooling_mode": "mean", "window": 3}), "window is 3, which is not supported"),
        ("2_Normalize/config.json", json!({"module_input_name": "token_embeddings"}), "module_input_name is"),
        ("sentence_bert_config.json", json!({"transformer_task": "fill-mask"}), "transformer_task is \"fill-mask\""),
        ("sentence_bert_config.json", json!({"model_args": {"revision": "x"}}), "model_args.revision is \"x\""),
        ("sentence_bert_config.json", json!({"query_length": 32}), "query_length is 32"),
        (
            "config_sentence_transformers.json",
            json!({"model_type": "SparseEncoder"}),
            "model_type is \"SparseEncoder\"",
        ),
        ("config_sentence_transformers.json", json!({"default_prompt_name": "q"}), "no prompt has this name"),
        ("config_sentence_transformers.json", json!({"truncate_dim": 64}), "truncate_dim is 64"),
    ] {
        let error = written(name, &content).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(name), "{content}: {error}");
    }
    let prompts = json!({"prompts": {"query": "q: "}, "default_prompt_name": null, "similarity_fn_name": "dot"});
    let encoder = written("config_sentence_transformers.json", &prompts).unwrap();
    assert_eq!(encoder.prompts().collect::<Vec<_>>(), ["query", "document"]);
    let tokenizer = AutoTokenizer::open(golden("base")).unwrap();
    let error = encoder.encode(&*tokenizer, "bad", Some("passage")).unwrap_err().to_string();
    assert!(error.contains("no prompt \"passage\"; prompts: query, document"), "{error}");
    // Prompts whose tokens are left out of embeddings.
    let directory = directory("prompt");
    let pooling = json!({"pooling_mode": "mean", "include_prompt": false}).to_string();
    std::fs::write(directory.path().join("1_Pooling/config.json"), pooling).unwrap();
    assert!(SentenceEncoder::from_directory(directory.path()).unwrap_err().to_string().contains("include_prompt"));
}

/// Fields by file, or by the class of a module: of `scripts/golden/make_sentence_fields.py`, or of a fresh list.
fn fields() -> BTreeMap<String, Vec<String>> {
    let fresh = std::env::var_os("BMTRAIN_FIELDS").map(PathBuf::from);
    let directory = fresh.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"));
    serde_json::from_slice(&std::fs::read(directory.join("sentence_fields.json")).unwrap()).unwrap()
}

/// Sets a field of the file of `owner` in a directory; `false` where the directory has no such file.
fn set_field(directory: &Path, owner: &str, field: &str, value: &Value) -> bool {
    let modules = directory.join("modules.json");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&modules).unwrap()).unwrap();
    if owner == "modules.json" {
        list[0][field] = value.clone();
        std::fs::write(modules, list.to_string()).unwrap();
        return true;
    }
    let is_own = |module: &&Value| module["type"].as_str().unwrap().ends_with(&format!(".{owner}"));
    let path = match owner {
        "config_sentence_transformers.json" => directory.join(owner),
        "Transformer" => directory.join("sentence_bert_config.json"),
        _ => match list.as_array().unwrap().iter().find(is_own) {
            Some(module) => directory.join(module["path"].as_str().unwrap()).join("config.json"),
            None => return false,
        },
    };
    let Ok(text) = std::fs::read(&path) else { return false };
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    config[field] = value.clone();
    std::fs::write(path, config.to_string()).unwrap();
    true
}

#[test]
fn every_field_of_the_files_is_used_or_without_effect_or_refused() {
    let (mut unknown, mut all, mut tried) = (Vec::new(), 0, [0, 0]);
    let expected = SentenceEncoder::from_directory(directory("dense").path()).unwrap();
    for (owner, names) in fields() {
        for name in &names {
            all += 1;
            let Some(meaning) = sentence_field(&owner, name) else {
                unknown.push(format!("{owner}: {name}"));
                continue;
            };
            let directory = directory("dense");
            let is_set = set_field(directory.path(), &owner, name, &json!({"unexpected": 7}));
            let opened = SentenceEncoder::from_directory(directory.path());
            match meaning {
                ConfigField::WithoutEffect(_) if is_set => {
                    assert!(opened.is_ok_and(|encoder| encoder == expected), "{owner}: {name}");
                    tried[0] += 1;
                }
                ConfigField::Refused(_) if is_set => {
                    let error = opened.unwrap_err().to_string();
                    assert!(error.contains(name.as_str()), "{owner}: {name}: {error}");
                    tried[1] += 1;
                }
                _ => {}
            }
        }
        // A step that is not supported is refused by its class.
        if sentence_field(&owner, "").is_some() {
            let directory = directory("dense");
            let class = format!("sentence_transformers.models.{owner}");
            set_field(directory.path(), "modules.json", "type", &json!(class));
            let error = SentenceEncoder::from_directory(directory.path()).unwrap_err().to_string();
            assert!(error.contains(owner.as_str()), "{owner}: {error}");
        }
    }
    println!("figure: {}/{all}", unknown.len());
    assert_eq!(unknown, [""; 0]);
    assert!(all > 100 && tried[0] > 7 && tried[1] > 15, "{all}, {tried:?}");
}
