//! Directories of sentence-transformers: the embeddings that it computes of them, by
//! `scripts/golden/make_sentence_encoders.py`, and what is refused.

use bmtrain_core::{Ctx, Device, Tensor};
use model_center::model::{Batch, OpenOptions, Registry, SentenceEncoder, TextHead};
use model_center::tokenizer::AutoTokenizer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CASES: [&str; 8] = ["mean", "first", "short", "several", "dense", "activations", "prompt", "older"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sentence_encoders").join(name)
}

fn copy(from: &Path, to: &Path) {
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
fn embedded(directory: &Path, texts: &[String], prompt: Option<&str>) -> Vec<(Vec<u32>, Vec<f32>)> {
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
