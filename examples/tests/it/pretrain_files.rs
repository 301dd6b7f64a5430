//! What docs/recipes.md pretrains on besides texts and a vocabulary that is there: TensorFlow's records, and a
//! vocabulary in SentencePiece's form that is trained on the same texts.

use crate::fixture::{Fixture, Outcome};

const CORPUS: &str = env!("CARGO_BIN_EXE_corpus");

const RECIPE: &str = r#"[model]
init = "random"
family = "gpt2"
tokenizer = "tokenizer"
layers = 2
hidden = 16
heads = 2
positions = 32
vocabulary = 101

[data]
task = "pretrain"
corpora = ["books"]
split = "8,1,1"
sequence_length = 16

[train]
steps = 3
batch_size = 4
lr = 1e-2

[eval]
every = "3 steps"
iterations = 2

[output]
dir = "run"

[device]
threads = 1
"#;

/// A fixture with a tokenizer, texts and the recipe.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write_bytes("tokenizer/vocab.txt", &fixture.bytes("model/vocab.txt"));
    let text = |number: usize| "the film was good and the end is bad . ".repeat(number % 7 + 1);
    let line = |number: usize| format!("{}\n", serde_json::json!({"text": text(number)}));
    fixture.write("texts.jsonl", &(0..60).map(line).collect::<String>());
    fixture.write("recipe.toml", RECIPE);
    fixture
}

fn pretrain(fixture: &Fixture, sets: &[&str]) -> Outcome {
    fixture.run(env!("CARGO_BIN_EXE_pretrain"), &[&["--recipe", "recipe.toml"], sets].concat()).succeeded()
}

#[test]
fn records_of_tensorflow_pretrain_the_model_that_their_token_files_do() {
    let fixture = fixture();
    let build = ["build", "texts.jsonl", "--tokenizer", "tokenizer", "--eod-token", "[SEP]", "--out", "books"];
    for arguments in [
        &build[..],
        &["convert", "books", "records.tfrecord.gz", "--to", "tfrecord", "--key", "input_ids"],
        &["convert", "records.tfrecord.gz", "again", "--to", "megatron", "--key", "input_ids"],
    ] {
        fixture.run(CORPUS, arguments).succeeded();
    }
    pretrain(&fixture, &["output.dir=texts"]);
    pretrain(&fixture, &["output.dir=records", "data.corpora=again"]);
    let weights = |run: &str| fixture.bytes(&format!("{run}/model/model.safetensors"));
    assert!(weights("texts") == weights("records"));
}

#[test]
fn a_vocabulary_in_the_form_of_sentencepiece_is_trained_and_pretrained_with() {
    let fixture = fixture();
    let train = ["train", "texts.jsonl", "--column", "text", "--sentencepiece", "--kind", "unigram"];
    let train = [&train[..], &["--vocab-size", "40", "--out", "pieces"]].concat();
    fixture.run(env!("CARGO_BIN_EXE_tokenizer"), &train).succeeded();
    let build = ["build", "texts.jsonl", "--tokenizer", "pieces", "--append-eod", "--out", "books"];
    fixture.run(CORPUS, &build).succeeded();
    pretrain(&fixture, &["model.tokenizer=pieces", "model.vocabulary=40"]);
    assert_eq!(fixture.bytes("run/model/tokenizer.model"), fixture.bytes("pieces/tokenizer.model"));
    let generate = ["run/model", "--threads", "1", "--prompt", "the film", "--max-new-tokens", "3"];
    fixture.run(env!("CARGO_BIN_EXE_generate"), &generate).succeeded();
}
