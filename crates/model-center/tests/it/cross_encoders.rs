//! Directories of sentence-transformers' `CrossEncoder`: the scores and losses that it computes of them, by
//! `scripts/golden/make_sentence_families.py`, and what is refused.

use bmtrain_core::{Ctx, Device};
use model_center::config::ProblemType;
use model_center::data::{Batch, Labels};
use model_center::model::{CrossEncoder, DenseActivation, OpenOptions, OpenedModel, Registry, TextHead};
use model_center::predict::{PredictInput, PredictOptions, PredictedValue, PredictionKind, Predictor};
use model_center::tokenizer::AutoTokenizer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Each with the activation that it states: in a file of its own, in a block of `config.json`, or in a field of it.
const CASES: [(&str, DenseActivation); 4] = [
    ("bert", DenseActivation::Sigmoid),
    ("identity", DenseActivation::Identity),
    ("block", DenseActivation::Identity),
    ("older", DenseActivation::Identity),
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cross_encoders").join(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("expected.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn open(directory: &Path, options: OpenOptions) -> OpenedModel {
    let opened = Registry::default().open(directory, &options).unwrap();
    assert_eq!(opened.model.info().head, TextHead::Classification { outputs: 1 });
    opened
}

/// Both compute in f32; their sums are in another order.
fn assert_close(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let most = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
    assert!(most < 1e-5, "{what}: {most}");
}

#[test]
fn scores_of_pairs_are_those_of_sentence_transformers() {
    let device = Device::cpu(1).unwrap();
    for (name, activation) in CASES {
        let (directory, expected) = (golden(name), expected(name));
        let opened = open(&directory, OpenOptions::new(&device));
        let encoder = CrossEncoder::from_directory(&directory).unwrap();
        assert_eq!(encoder, CrossEncoder { activation, max_length: Some(24) }, "{name}");
        let info = opened.model.info();
        let kind = PredictionKind::of(info, &directory).unwrap();
        assert_eq!(kind, PredictionKind::Numbers(1), "{name}");
        let tokenizer = AutoTokenizer::open(&directory).unwrap();
        let predictor = Predictor::new((kind, info), tokenizer, PredictOptions::default()).unwrap();
        let pairs: Vec<[String; 2]> = serde_json::from_value(expected["pairs"].clone()).unwrap();
        let inputs: Vec<PredictInput> =
            pairs.into_iter().map(|[text, pair]| PredictInput::Text { text, pair: Some(pair) }).collect();
        let predicted = predictor.predict((&*opened.model, &device), &inputs).unwrap();
        let logit = |value: &PredictedValue| match value {
            PredictedValue::Numbers(numbers) => numbers[0],
            other => panic!("{other:?}"),
        };
        let logits: Vec<f32> = predicted.iter().map(|prediction| logit(&prediction.value)).collect();
        assert_close(&logits, &numbers(&expected["logits"]), name);
        let scores: Vec<f32> = logits.iter().map(|logit| encoder.score(*logit)).collect();
        assert_close(&scores, &numbers(&expected["scores"]), name);
    }
}

#[test]
fn losses_are_those_of_sentence_transformers_binary_cross_entropy() {
    let device = Device::cpu(1).unwrap();
    for (name, _) in CASES {
        let (directory, expected) = (golden(name), expected(name));
        // As a run of task `rerank` opens it.
        let head = Some(TextHead::Classification { outputs: 1 });
        let options = OpenOptions { head, problem: Some(ProblemType::MultiLabel), ..OpenOptions::new(&device) };
        let opened = open(&directory, options);
        let tokenizer = AutoTokenizer::open(&directory).unwrap();
        let pairs: Vec<[String; 2]> = serde_json::from_value(expected["pairs"].clone()).unwrap();
        let encode = |[text, pair]: &[String; 2]| tokenizer.encode(text, Some(pair), None).unwrap();
        let rows: Vec<_> = pairs.iter().map(encode).collect();
        let length = rows.iter().map(|row| row.input_ids.len()).max().unwrap();
        let grid = |values: &dyn Fn(usize) -> Vec<i64>, padding: i64| -> Vec<i64> {
            (0..rows.len())
                .flat_map(|row| (values(row).into_iter().chain(std::iter::repeat(padding))).take(length))
                .collect()
        };
        let wide = |ids: &[u32]| ids.iter().map(|id| i64::from(*id)).collect::<Vec<i64>>();
        let types = |row: usize| rows[row].token_type_ids.iter().map(|id| *id as i64).collect();
        let mask = grid(&|row| vec![1; rows[row].input_ids.len()], 0).into_iter().map(|one| one as u8).collect();
        let batch = Batch {
            attention_mask: Some(mask),
            token_type_ids: Some(grid(&types, 0)),
            labels: Some(Labels::Values(numbers(&expected["labels"]))),
            ..Batch::new(length, grid(&|row| wide(&rows[row].input_ids), 1))
        };
        let loss = opened.model.loss(&batch, &mut Ctx::inference(&device)).unwrap().unwrap();
        assert_close(&[loss.value().item().unwrap()], &numbers(&json!([expected["loss"]])), name);
        // Grades are probabilities.
        let beyond = Batch { labels: Some(Labels::Values(vec![1.0, 0.0, 1.5])), ..batch };
        assert!(opened.model.loss(&beyond, &mut Ctx::inference(&device)).is_err(), "{name}");
    }
}

#[test]
fn settings_without_a_counterpart_are_named() {
    let written = |name: &str, content: Value| {
        let directory = tempfile::tempdir().unwrap();
        crate::sentence_encoders::copy(&golden("bert"), directory.path());
        std::fs::write(directory.path().join(name), content.to_string()).unwrap();
        CrossEncoder::from_directory(directory.path()).unwrap_err().to_string()
    };
    let step = |name: &str| json!({"path": "", "type": format!("sentence_transformers.base.modules.{name}")});
    let own = "config_sentence_transformers.json";
    for (name, content, reason) in [
        ("modules.json", json!([step("Transformer"), step("LogitScore")]), "the step \"LogitScore\" is not supported"),
        (own, json!({"activation_fn": "torch.nn.modules.activation.Softplus"}), "Softplus\" of scores"),
        (own, json!({"model_type": "SparseEncoder"}), "a model of type \"SparseEncoder\""),
        (own, json!({"prompts": {"query": "q: "}, "default_prompt_name": "query"}), "a prompt by default"),
        ("sentence_bert_config.json", json!({"transformer_task": "fill-mask"}), "transformer_task is \"fill-mask\""),
        ("sentence_bert_config.json", json!({"do_lower_case": true}), "do_lower_case"),
    ] {
        let error = written(name, content);
        assert!(error.contains(reason) && error.lines().count() == 1, "{name}: {error}");
    }
}
