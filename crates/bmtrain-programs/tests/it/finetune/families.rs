//! Models of other families than BERT, made into classifiers.

use super::fixture::{Fixture, golden};
use super::superglue::{superglue, write_task};
use super::{records, train};
use model_center::formats::SafetensorsFile;
use serde_json::Value;

/// A language model is trained as a classifier, and saved as this class of `transformers`.
fn check_classifier(fixture: &Fixture, class: &str) {
    train(fixture, "run", &["train.steps=60", "train.lr=3e-3", "train.warmup=6"]);
    let best = records(fixture, "run", "end")[0]["best"]["value"].as_f64().unwrap();
    assert_eq!(best, 1.0, "a single adjective determines the label");
    let config: Value = serde_json::from_str(&fixture.read("run/model/config.json")).unwrap();
    assert_eq!((&config["architectures"][0], &config["id2label"]["1"]), (&class.into(), &"positive".into()));
}

#[test]
fn a_decoder_becomes_a_classifier_that_learns() {
    let fixture = Fixture::decoder();
    check_classifier(&fixture, "GPT2ForSequenceClassification");
    let model = SafetensorsFile::open(&fixture.path("run/model/model.safetensors")).unwrap();
    assert!(model.entry("score.weight").is_some() && model.entry("lm_head.weight").is_none());
    fixture.replace("recipe.toml", "path = \"model\"", "path = \"run/model\"");
    train(&fixture, "next", &["parallel.zero=3"]);
}

#[test]
fn an_encoder_decoder_becomes_a_classifier_that_learns() {
    let fixture = Fixture::bart();
    fixture.plan(&[]).succeeded();
    check_classifier(&fixture, "BartForSequenceClassification");
    let outcome = train(&fixture, "next", &["model.path=run/model"]);
    assert!(!outcome.stdout.contains("new, not in the directory"), "{}", outcome.stdout);
    // Another's classifier, of three classes without names, can be replaced.
    for file in ["config.json", "model.safetensors"] {
        fixture.write_bytes(&format!("model/{file}"), &std::fs::read(golden("bart_a", "cls").join(file)).unwrap());
    }
    train(&fixture, "new", &["model.head=new"]);
    // Choices would be several rows of one sample, which its classifier does not support.
    let (_, lines) = superglue().into_iter().find(|(task, _)| *task == "COPA").unwrap();
    write_task(&fixture, "COPA", lines);
    let message = fixture.finetune(&["--set", "output.dir=choices", "--set", "model.head=new"]).refused();
    assert!(message.contains("a sample has 2 choices") && message.contains("recipe.toml:5:8"), "{message}");
    assert!(!fixture.path("choices").exists());
}
