//! Directories of sentence-transformers of several families, by `scripts/golden/make_sentence_families.py`: their
//! embeddings, the loss and the gradients of `Dense` modules, and what is written of a model that is trained on.

use crate::goldens::norm;
use crate::sentence_encoders::embedded;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::param::widen;
use model_center::contrastive::{ContrastiveLoss, embeddings};
use model_center::data::Batch;
use model_center::formats::DirectoryLayout;
use model_center::model::{
    DenseActivation, DenseSettings, OpenOptions, OpenedModel, Pooling, PoolingMode, Registry, SaveOptions,
    SentenceEncoder, TextHead,
};
use model_center::tokenizer::AutoTokenizer;
use serde_json::Value;
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 5] = ["mpnet", "xlm_roberta", "distilbert", "modernbert", "embedding_gemma"];
/// The temperature of sentence-transformers' default `scale`.
const TEMPERATURE: f32 = 0.05;
/// The number of the padding token.
const PADDING: i64 = 1;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sentence_families").join(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("expected.json")).unwrap()).unwrap()
}

/// The model as it is trained.
fn open(directory: &Path, device: &Device) -> OpenedModel {
    let options = OpenOptions { head: Some(TextHead::None), sentence_modules: true, ..OpenOptions::new(device) };
    Registry::default().open(directory, &options).unwrap()
}

/// The embeddings of texts, with each prompt, are these.
fn check_embeddings(directory: &Path, expected: &Value, name: &str) {
    let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
    let mut count = 0;
    for (key, found) in expected.as_object().unwrap() {
        let Some(prompt) = key.strip_prefix("embeddings") else { continue };
        let prompt = prompt.strip_prefix(" of ");
        let found: Vec<Vec<f32>> = serde_json::from_value(found.clone()).unwrap();
        for ((_, ours), theirs) in embedded(directory, &texts, prompt).iter().zip(&found) {
            assert_eq!(ours.len(), theirs.len(), "{name}");
            let most = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
            // Both compute in f32; their sums are in another order.
            assert!(most < 1e-5, "{name}, prompt {prompt:?}: {most}");
            count += 1;
        }
    }
    assert_eq!(count, if name == "embedding_gemma" { 12 } else { 4 }, "{name}");
}

#[test]
fn embeddings_of_each_family_are_those_of_sentence_transformers() {
    for name in FAMILIES {
        check_embeddings(&golden(name), &expected(name), name);
    }
}

/// Anchors and positives in turn.
fn pairs(directory: &Path, expected: &Value) -> Batch {
    let tokenizer = AutoTokenizer::open(directory).unwrap();
    let pairs: Vec<[String; 2]> = serde_json::from_value(expected["pairs"].clone()).unwrap();
    let rows: Vec<Vec<i64>> = pairs
        .iter()
        .flatten()
        .map(|text| tokenizer.encode(text, None, None).unwrap().input_ids.into_iter().map(i64::from).collect())
        .collect();
    let length = rows.iter().map(Vec::len).max().unwrap();
    let padded = |row: &Vec<i64>, with: i64| [row.clone(), vec![with; length - row.len()]].concat();
    let ids = rows.iter().flat_map(|row| padded(row, PADDING)).collect();
    let mask = rows.iter().flat_map(|row| padded(&vec![1; row.len()], 0)).map(|one| one as u8).collect();
    Batch { attention_mask: Some(mask), ..Batch::new(length, ids) }
}

#[test]
fn losses_and_gradients_of_dense_modules_are_those_of_sentence_transformers() {
    let device = Device::cpu(1).unwrap();
    for (name, modules) in [("mpnet", 0), ("distilbert", 1), ("embedding_gemma", 2)] {
        let expected = expected(name);
        let opened = open(&golden(name), &device);
        let mut cx = Ctx::gradients(&device);
        let batch = pairs(&golden(name), &expected);
        let embedded = embeddings(&*opened.model, &batch, PoolingMode::Mean, &mut cx).unwrap();
        let loss = ContrastiveLoss { temperature: TEMPERATURE }.of(&embedded, 2, &cx).unwrap();
        let (ours, theirs) = (loss.value().item().unwrap(), expected["loss"].as_f64().unwrap() as f32);
        // Roundings of cosines are multiplied by 20.
        assert!((ours - theirs).abs() <= 1e-4 * theirs.abs().max(1e-2), "{name}: {ours}, {theirs}");
        let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
        cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
        let parameters = opened.model.parameters().iter();
        let dense: Vec<_> = parameters.filter(|param| param.name().starts_with("sentence_dense.")).collect();
        let gradients = expected["gradients"].as_object().unwrap();
        assert_eq!(dense.len(), gradients.len(), "{name}");
        assert_eq!(dense.iter().filter(|param| param.name().ends_with("weight")).count(), modules, "{name}");
        for param in dense {
            let [_, number, part] = param.name().split('.').collect::<Vec<_>>().try_into().unwrap();
            let key = format!("{}_Dense.linear.{part}", number.parse::<usize>().unwrap() + 2);
            let theirs: Vec<f64> = serde_json::from_value(gradients[&key].clone()).unwrap();
            let ours = widen(&param.grad().unwrap().unwrap()).unwrap();
            let difference: Vec<f64> =
                ours.iter().zip(&theirs).map(|(ours, theirs)| f64::from(*ours) - theirs).collect();
            assert_eq!(ours.len(), theirs.len(), "{name}: {key}");
            assert!(norm(&difference) <= 1e-4 * norm(&theirs).max(1e-3), "{name}: {key}");
        }
    }
}

#[test]
fn a_written_directory_has_the_same_embeddings_and_prompts() {
    let device = Device::cpu(1).unwrap();
    for name in FAMILIES {
        let (from, to) = (golden(name), tempfile::tempdir().unwrap());
        let opened = open(&from, &device);
        let pooling = Pooling::to_train(&from).unwrap();
        let options = SaveOptions { dtype: DType::F32, companions: Some(&from), layout: DirectoryLayout::HuggingFace };
        opened.model.check_save(&options).unwrap();
        opened.model.save(to.path(), &options).unwrap();
        pooling.write(to.path(), opened.model.info().hidden_size).unwrap();
        assert_eq!(Pooling::to_train(to.path()).unwrap().dense, pooling.dense, "{name}");
        check_embeddings(to.path(), &expected(name), name);
        let weights = std::fs::read(to.path().join("model.safetensors")).unwrap();
        assert!(!String::from_utf8_lossy(&weights).contains("sentence_dense"), "{name}");
        if name == "embedding_gemma" {
            let read = |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
            for module in ["2_Dense", "3_Dense"] {
                let [ours, theirs] = [to.path(), &from].map(|directory| {
                    let config = read(&directory.join(module).join("config.json"));
                    ["in_features", "out_features", "bias", "activation_function"].map(|field| config[field].clone())
                });
                assert_eq!(ours, theirs, "{module}");
            }
            let file = "config_sentence_transformers.json";
            assert_eq!(read(&to.path().join(file))["prompts"], read(&from.join(file))["prompts"]);
        }
    }
}

#[test]
fn dense_modules_are_parameters_where_they_are_asked_for() {
    let device = Device::cpu(1).unwrap();
    let opened = open(&golden("embedding_gemma"), &device);
    let names = |opened: &OpenedModel| {
        let names = opened.model.parameters().declared().iter().map(|param| param.name().to_owned());
        names.filter(|name| name.starts_with("sentence_dense.")).collect::<Vec<String>>()
    };
    assert_eq!(names(&opened), ["sentence_dense.0.weight", "sentence_dense.1.weight"]);
    let options = OpenOptions { head: Some(TextHead::None), ..OpenOptions::new(&device) };
    assert_eq!(names(&Registry::default().open(&golden("embedding_gemma"), &options).unwrap()), [""; 0]);
    let pooling = Pooling::to_train(&golden("distilbert")).unwrap();
    let settings = DenseSettings { inputs: 8, outputs: 6, bias: true, activation: DenseActivation::Tanh };
    assert_eq!((pooling.dense, pooling.size), (vec![settings], Some(6)));
    // Weights of another shape are named with their file.
    let directory = tempfile::tempdir().unwrap();
    crate::sentence_encoders::copy(&golden("distilbert"), directory.path());
    let config = directory.path().join("2_Dense/config.json");
    let text = std::fs::read_to_string(&config).unwrap().replace("\"out_features\": 6", "\"out_features\": 7");
    std::fs::write(&config, text).unwrap();
    let error = SentenceEncoder::from_directory(directory.path()).unwrap_err().to_string();
    assert!(error.contains("2_Dense") && error.contains("linear.weight"), "{error}");
}

#[test]
fn dropout_of_embeddings_is_not_trained() {
    let directory = tempfile::tempdir().unwrap();
    crate::sentence_encoders::copy(&golden("mpnet"), directory.path());
    let modules = directory.path().join("modules.json");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&modules).unwrap()).unwrap();
    let dropout = serde_json::json!({"path": "", "type": "sentence_transformers.models.Dropout"});
    list.as_array_mut().unwrap().insert(2, dropout);
    std::fs::write(&modules, list.to_string()).unwrap();
    assert!(SentenceEncoder::from_directory(directory.path()).is_ok());
    let error = Pooling::to_train(directory.path()).unwrap_err().to_string();
    assert!(error.contains("modules.json") && error.contains("remove the step Dropout"), "{error}");
}
