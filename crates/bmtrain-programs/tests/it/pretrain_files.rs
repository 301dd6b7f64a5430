//! What docs/recipes.md pretrains on besides texts and a vocabulary that is there: TensorFlow's records, and a
//! vocabulary in SentencePiece's form that is trained on the same texts.

use crate::fixture::program;
use crate::pretrain::{fixture, pretrain};

#[test]
fn records_of_tensorflow_pretrain_the_model_that_their_token_files_do() {
    let fixture = fixture();
    for arguments in [
        ["convert", "books", "records.tfrecord.gz", "--to", "tfrecord", "--key", "input_ids"],
        ["convert", "records.tfrecord.gz", "again", "--to", "megatron", "--key", "input_ids"],
    ] {
        fixture.run(program("corpus"), &arguments).succeeded();
    }
    pretrain(&fixture, "output.dir=texts", &[]).succeeded();
    pretrain(&fixture, "output.dir=records", &["data.corpora=again"]).succeeded();
    let weights = |run: &str| fixture.bytes(&format!("{run}/model/model.safetensors"));
    assert!(weights("texts") == weights("records"));
}

#[test]
fn a_vocabulary_in_the_form_of_sentencepiece_is_trained_and_pretrained_with() {
    let fixture = fixture();
    let line = |number: usize| {
        let text = "the film was good and the end is bad . ".repeat(number % 7 + 1);
        format!("{}\n", serde_json::json!({"text": text}))
    };
    fixture.write("texts.jsonl", &(0..60).map(line).collect::<String>());
    let train = ["train", "texts.jsonl", "--column", "text", "--sentencepiece", "--kind", "unigram"];
    let train = [&train[..], &["--vocab-size", "40", "--out", "pieces"]].concat();
    fixture.run(program("tokenizer"), &train).succeeded();
    let build = ["build", "texts.jsonl", "--tokenizer", "pieces", "--append-eod", "--out", "texts"];
    fixture.run(program("corpus"), &build).succeeded();
    let sets = ["model.tokenizer=pieces", "model.vocabulary=40", "data.corpora=texts"];
    pretrain(&fixture, "output.dir=run", &sets).succeeded();
    assert_eq!(fixture.bytes("run/model/tokenizer.model"), fixture.bytes("pieces/tokenizer.model"));
    let generate = ["run/model", "--threads", "1", "--prompt", "the film", "--max-new-tokens", "3"];
    fixture.run(program("generate"), &generate).succeeded();
}
