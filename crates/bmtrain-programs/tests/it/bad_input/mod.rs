//! Mistakes in recipes, files and directories, each made on purpose: the real programs answer with one error that names
//! place, reason and fix, fits a screen, ends with the exit code of the table, and leaves every file as it was.

mod device;
use crate::fixture;
mod forward;
mod generate;
mod models;
mod plan;

use fixture::{Fixture, Outcome, golden, sentences, split_header, without_tensors};
use std::os::unix::fs::PermissionsExt;

const USAGE: i32 = 2;
const DATA: i32 = 3;
const REFUSED: i32 = 5;

/// Runs finetune, and expects the exit code and, somewhere in the message, each of the texts.
fn refused(fixture: &Fixture, arguments: &[&str], code: i32, place: &str, texts: &[&str]) {
    let before = fixture.snapshot();
    let outcome = fixture.finetune(arguments);
    check(&outcome, code, place, texts);
    assert_eq!(fixture.snapshot(), before, "files were changed");
}

pub(crate) fn check(outcome: &Outcome, code: i32, place: &str, texts: &[&str]) {
    let message = &outcome.stderr;
    assert_eq!(outcome.code, code, "{message}");
    let lines: Vec<&str> = message.lines().collect();
    assert!(lines.len() <= 12, "{} lines: {message}", lines.len());
    assert!(lines[0].starts_with("error["), "{message}");
    let shown =
        lines.iter().find_map(|line| line.strip_prefix("  --> ")).unwrap_or_else(|| panic!("no place: {message}"));
    assert!(shown.contains(place), "the place is {shown}, not {place}: {message}");
    let fix = lines.iter().find_map(|line| line.strip_prefix("  fix: ")).unwrap_or_else(|| panic!("no fix: {message}"));
    assert!(fix.len() > 8, "{message}");
    assert!(lines.last().unwrap().starts_with(&format!("  exit {code}: ")), "{message}");
    for text in texts {
        assert!(message.contains(text), "{text:?} is not in: {message}");
    }
    for sign in ["panicked", "backtrace", "\u{1b}["] {
        assert!(!message.contains(sign), "{message}");
    }
    assert_eq!(outcome.stdout, "", "{message}");
}

/// A fixture whose model has a head for two classes, for the forward program.
fn classifier() -> Fixture {
    let fixture = Fixture::new();
    for file in ["config.json", "model.safetensors"] {
        fixture.write_bytes(&format!("model/{file}"), &std::fs::read(golden("bert_a", "cls").join(file)).unwrap());
    }
    fixture
}

#[test]
fn the_fixture_itself_is_sound() {
    let fixture = Fixture::new();
    let before = fixture.snapshot();
    let outcome = fixture.finetune(&["--dry-run"]).succeeded();
    assert!(outcome.stdout.contains("nothing is wrong"), "{}", outcome.stdout);
    assert_eq!(fixture.snapshot(), before, "a dry run changed files");
}

#[test]
fn an_unknown_recipe_key_comes_with_a_suggestion() {
    let fixture = Fixture::new();
    fixture.replace("recipe.toml", "batch_size = 4", "batch_szie = 4");
    refused(&fixture, &[], USAGE, "recipe.toml:12:", &["batch_szie", "train.batch_size"]);
}

#[test]
fn an_unknown_key_of_an_argument_comes_with_a_suggestion() {
    refused(&Fixture::new(), &["--set", "train.learning_rat=1"], USAGE, "train.learning_rat", &["fix: "]);
    refused(&Fixture::new(), &["--set", "train.lrr=1"], USAGE, "train.lrr", &["train.lr"]);
}

#[test]
fn a_value_of_the_wrong_type_is_named() {
    let fixture = Fixture::new();
    fixture.replace("recipe.toml", "batch_size = 4", "batch_size = \"four\"");
    refused(&fixture, &[], USAGE, "recipe.toml:12:", &["batch_size", "four", "whole number"]);
    refused(&Fixture::new(), &["--set", "train.lr=fast"], USAGE, "train.lr=fast", &["train.lr"]);
}

#[test]
fn broken_toml_is_named_by_line() {
    let fixture = Fixture::new();
    fixture.replace("recipe.toml", "steps = 3", "steps = = 3");
    refused(&fixture, &[], USAGE, "recipe.toml:11:", &[]);
}

#[test]
fn a_missing_recipe_is_named() {
    let fixture = Fixture::new();
    std::fs::remove_file(fixture.path("recipe.toml")).unwrap();
    refused(&fixture, &[], USAGE, "recipe.toml", &["No such file"]);
}

#[test]
fn a_missing_data_file_is_named() {
    let fixture = Fixture::new();
    std::fs::remove_file(fixture.path("eval.jsonl")).unwrap();
    refused(&fixture, &[], DATA, "recipe.toml:7:", &["eval.jsonl", "No such file"]);
}

#[test]
fn missing_files_of_the_model_directory_are_named() {
    for (file, place) in [("config.json", "recipe.toml:2:"), ("model.safetensors", "model"), ("vocab.txt", "model")] {
        let fixture = Fixture::new();
        std::fs::remove_file(fixture.path("model").join(file)).unwrap();
        refused(&fixture, &[], DATA, place, &[file]);
    }
    refused(
        &Fixture::new(),
        &["--set", "model.path=nowhere"],
        DATA,
        "model.path=nowhere",
        &["no directory", "bmtrain fetch nowhere"],
    );
    refused(&Fixture::new(), &["--set", "model.path=./nowhere"], DATA, "model.path=./nowhere", &["no such directory"]);
    let known = ["--set", "model.path=models/bert-base-uncased"];
    let advice = ["correct the path", "write bert-base-uncased", "bmtrain fetch bert-base-uncased`"];
    refused(&Fixture::new(), &known, DATA, "model.path=models/bert-base-uncased", &advice);
    refused(
        &Fixture::new(),
        &["--set", "model.path=./modle"],
        DATA,
        "model.path=./modle",
        &["did you mean `./model`?"],
    );
    let revised = ["--set", "model.revision=v2"];
    refused(&Fixture::new(), &revised, DATA, "model.revision=v2", &["\"v2\" has no effect"]);
}

#[test]
fn unreadable_weights_are_named() {
    let fixture = Fixture::new();
    let weights = fixture.path("model/model.safetensors");
    std::fs::set_permissions(&weights, PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::File::open(&weights).is_err() {
        refused(&fixture, &[], REFUSED, "model.safetensors", &["denied"]);
    }
    // Permissions do not keep root from reading; a directory in the place of a file does.
    std::fs::remove_file(&weights).unwrap();
    std::fs::create_dir(&weights).unwrap();
    refused(&fixture, &[], DATA, "model.safetensors", &["not a regular file"]);
}

#[test]
fn truncated_weights_are_named() {
    let fixture = Fixture::new();
    let whole = fixture.bytes("model/model.safetensors");
    for length in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        fixture.write_bytes("model/model.safetensors", &whole[..length]);
        refused(&fixture, &[], DATA, "model/model.safetensors", &["download or copy it again"]);
    }
}

#[test]
fn a_header_longer_than_the_file_is_named() {
    let fixture = Fixture::new();
    let mut bytes = fixture.bytes("model/model.safetensors");
    for claim in [bytes.len() as u64, u64::MAX, 99_999_999] {
        bytes[..8].copy_from_slice(&claim.to_le_bytes());
        fixture.write_bytes("model/model.safetensors", &bytes);
        refused(&fixture, &[], DATA, "model/model.safetensors", &["the header declares", "download or copy it again"]);
    }
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let fixture = Fixture::new();
    let (header, data) = split_header(&fixture.bytes("model/model.safetensors"));
    // The same bytes, taken for the transposed matrix.
    let changed = header.replace("[64,32]", "[16,128]");
    assert_ne!(header, changed);
    let bytes = [&(changed.len() as u64).to_le_bytes()[..], changed.as_bytes(), &data].concat();
    fixture.write_bytes("model/model.safetensors", &bytes);
    let texts = ["intermediate.dense.weight", "expected [64, 32], got [16, 128]"];
    refused(&fixture, &[], DATA, "model.safetensors", &texts);
}

#[test]
fn a_missing_tensor_is_named() {
    let fixture = Fixture::new();
    let (weights, copy) = (fixture.path("model/model.safetensors"), fixture.path("copy"));
    without_tensors(&weights, &copy, |name| name == "bert.encoder.layer.1.output.dense.bias");
    std::fs::rename(copy, weights).unwrap();
    let texts = ["1 missing", "bert.encoder.layer.1.output.dense.bias"];
    refused(&fixture, &[], DATA, "model.safetensors", &texts);
}

#[test]
fn a_configuration_that_disagrees_with_the_weights_is_named() {
    let changes = [
        ("\"hidden_size\": 32", "\"hidden_size\": 48", "expected [48"),
        ("\"intermediate_size\": 64", "\"intermediate_size\": 96", "expected [96"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "missing"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", "unexpected"),
        ("\"vocab_size\": 101", "\"vocab_size\": 200", "expected [200"),
        ("\"max_position_embeddings\": 24", "\"max_position_embeddings\": 48", "expected [48"),
        ("\"num_attention_heads\": 4", "\"num_attention_heads\": 5", "num_attention_heads"),
        ("\"hidden_act\": \"gelu\"", "\"hidden_act\": \"swirl\"", "swirl"),
        ("\"hidden_size\": 32", "\"hidden_size\": -32", "hidden_size"),
        ("\"hidden_size\": 32", "\"hidden_size\": 4000000000000000000", "hidden_size"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4000000000", "num_hidden_layers"),
        ("\"hidden_size\": 32,", "\"hidden_size\": 32", "config.json"),
    ];
    for (from, to, text) in changes {
        let fixture = Fixture::new();
        fixture.replace("model/config.json", from, to);
        refused(&fixture, &[], DATA, "model", &[text]);
    }
}

#[test]
fn a_classifier_for_other_labels_is_named() {
    let fixture = classifier();
    let labels = "data.labels=[\"negative\", \"neutral\", \"positive\"]";
    refused(&fixture, &["--set", labels], DATA, "model/config.json", &["2 outputs", "need 3"]);
}

#[test]
fn a_classifier_for_labels_of_other_names_is_named_with_the_way_to_a_new_one() {
    let fixture = Fixture::new();
    fixture.finetune(&[]).succeeded();
    let other = |text: String| text.replace("\"positive\"", "\"good\"").replace("\"negative\"", "\"bad\"");
    fixture.write("train.jsonl", &other(sentences(16)));
    fixture.write("eval.jsonl", &other(sentences(8)));
    let arguments = ["--set", "model.path=run/model", "--set", "output.dir=next"];
    let texts = ["negative, positive", "bad, good", "model.head = \"new\""];
    refused(&fixture, &arguments, DATA, "run/model/config.json", &texts);
    let outcome = fixture.finetune(&[&arguments[..], &["--set", "model.head=new"]].concat()).succeeded();
    assert!(outcome.stderr.contains("new, not in the directory: cls_projection"), "{}", outcome.stderr);
    assert!(fixture.read("next/model/config.json").contains("\"0\": \"bad\""));
}

#[test]
fn what_would_keep_the_model_from_being_saved_is_found_by_a_dry_run() {
    let fixture = Fixture::new();
    fixture.replace("model/config.json", "\"hidden_size\": 32", "\"attn_scale\": false, \"hidden_size\": 32");
    refused(&fixture, &["--dry-run"], DATA, "attn_scale", &["cannot be written as a Hugging Face directory"]);
    let fixture = Fixture::new();
    let companion = fixture.path("model/generation_config.json");
    std::os::unix::fs::symlink("/etc/hostname", &companion).unwrap();
    refused(&fixture, &["--dry-run"], DATA, "generation_config.json", &["outside the directory"]);
    std::fs::remove_file(&companion).unwrap();
    std::fs::File::create(&companion).unwrap().set_len(257 << 20).unwrap();
    let outcome = fixture.finetune(&["--dry-run"]);
    check(&outcome, DATA, "generation_config.json", &["more than any tokenizer"]);
}

#[test]
fn a_broken_json_line_is_named_by_line_and_column() {
    let fixture = Fixture::new();
    fixture.write("train.jsonl", &(sentences(2) + "{\"text\": \"good\", label: 1}\n" + &sentences(8)));
    refused(&fixture, &[], DATA, "train.jsonl:3:18", &["JSON"]);
    fixture.write("train.jsonl", &(sentences(4) + "{\"text\": \"good\", \"lab"));
    refused(&fixture, &[], DATA, "train.jsonl:5:", &["cut off"]);
    fixture.write_bytes("train.jsonl", b"{\"text\": \"\xFF\", \"label\": \"positive\"}\n");
    refused(&fixture, &[], DATA, "train.jsonl:1:", &["UTF-8"]);
}

#[test]
fn a_record_without_its_field_is_named() {
    let fixture = Fixture::new();
    fixture.write("train.jsonl", &(sentences(2) + "{\"txt\": \"good\", \"label\": \"positive\"}\n"));
    refused(&fixture, &[], DATA, "train.jsonl:3:", &["text"]);
    refused(&Fixture::new(), &["--set", "data.columns.label=topic"], DATA, "train.jsonl:1:", &["topic"]);
}

#[test]
fn an_empty_file_is_named() {
    for file in ["train.jsonl", "eval.jsonl"] {
        let fixture = Fixture::new();
        fixture.write(file, "");
        refused(&fixture, &[], DATA, "recipe.toml:", &[file, "empty"]);
        fixture.write(file, "\n\n");
        refused(&fixture, &[], DATA, file, &[]);
    }
    let fixture = Fixture::new();
    fixture.write("model/config.json", "");
    refused(&fixture, &[], DATA, "recipe.toml:2:", &["config.json", "empty"]);
    let fixture = Fixture::new();
    fixture.write("model/vocab.txt", "");
    refused(&fixture, &[], DATA, "model/vocab.txt", &["[UNK]"]);
}

#[test]
fn an_unknown_label_is_named() {
    let fixture = Fixture::new();
    fixture.write("eval.jsonl", &(sentences(2) + "{\"text\": \"fine\", \"label\": \"positve\"}\n"));
    refused(&fixture, &[], DATA, "eval.jsonl:3:", &["positve", "positive"]);
    fixture.write("eval.jsonl", &sentences(4));
    let labels = "data.labels=[\"yes\", \"no\"]";
    refused(&fixture, &["--set", labels], DATA, "train.jsonl:1:", &["positive", "yes"]);
}

#[test]
fn texts_and_targets_that_nothing_can_be_learnt_from_are_named() {
    let (decoder, seq2seq) = (Fixture::decoder(), Fixture::seq2seq());
    for (fixture, task) in [(&decoder, "language"), (&seq2seq, "seq2seq")] {
        fixture.replace("recipe.toml", "\"classification\"", &format!("\"{task}\""));
    }
    refused(&seq2seq, &[], DATA, "train.jsonl:1:", &["target"]);
    let prompt = ["--set", "data.columns.prompt=question"];
    refused(&decoder, &prompt, DATA, "train.jsonl:1:", &["question"]);
    let line = |target: &str| format!("{{\"text\": \"good\", \"target\": \"{target}\"}}\n");
    seq2seq.write("train.jsonl", &(line("bad") + &line("  ")));
    refused(&seq2seq, &[], DATA, "train.jsonl:2:", &["\"target\" is empty"]);
    seq2seq.write("train.jsonl", &(line("bad") + &line("it is not very good")));
    let short = ["--set", "data.target_length=4", "--set", "data.too_long=error"];
    refused(&seq2seq, &short, DATA, "train.jsonl:2:", &["7 tokens", "data.target_length = 4"]);
    refused(&seq2seq, &["--set", "data.columns.label=topic"], USAGE, "--set", &["data.columns.label", "no effect"]);
    refused(
        &decoder,
        &["--set", "eval.metric=accuracy"],
        USAGE,
        "--set",
        &["accuracy", "has tokens for labels", "perplexity"],
    );
}

#[test]
fn a_number_among_other_numbers_is_an_unknown_label() {
    let fixture = Fixture::new();
    let numbered = |one: &str, other: &str| sentences(8).replace("\"positive\"", one).replace("\"negative\"", other);
    fixture.write("train.jsonl", &numbered("1", "2"));
    fixture.write("eval.jsonl", &numbered("1", "0"));
    refused(&fixture, &[], DATA, "eval.jsonl:2:", &["unknown label", "known: 1, 2"]);
    // Listed names are numbered from 0 in both files.
    fixture.write("train.jsonl", &numbered("1", "0"));
    let labels = "data.labels=[\"no\", \"yes\"]";
    fixture.finetune(&["--dry-run", "--set", labels]).succeeded();
}

#[test]
fn weights_of_classes_that_do_not_fit_the_data_are_named() {
    let fixture = Fixture::new();
    for (set, texts) in [
        ("data.class_weights={positive=1, Negative=2}", ["no class \"Negative\"", "\"negative\", \"positive\""]),
        ("data.class_weights={positive=1}", ["class \"negative\" has no weight", "give one for each of"]),
    ] {
        refused(&fixture, &["--set", set], USAGE, set, &texts);
    }
    let labels = "data.labels=[\"negative\", \"positive\", \"neutral\"]";
    let balanced = ["--set", "data.class_weights=balanced", "--set", labels];
    refused(&fixture, &balanced, USAGE, "data.class_weights=balanced", &["class \"neutral\" has no sample"]);
}

#[test]
fn an_unknown_label_of_a_task_is_named() {
    let fixture = Fixture::new();
    let recipe = fixture::RECIPE
        .replace("\"classification\"", "\"CB\"")
        .replace("train = \"train.jsonl\"", "path = \"glue\"")
        .replace("eval = \"eval.jsonl\"\n", "");
    fixture.write("recipe.toml", &recipe);
    let line = "{\"premise\": \"it was\", \"hypothesis\": \"is it\", \"label\": \"maybe\", \"idx\": 0}\n";
    fixture.write("glue/CB/train.jsonl", line);
    fixture.write("glue/CB/val.jsonl", line);
    refused(&fixture, &[], DATA, "glue/CB/train.jsonl:1:", &["maybe", "entailment"]);
}

#[test]
fn a_sequence_longer_than_the_positions_is_named() {
    let fixture = Fixture::new();
    refused(&fixture, &["--set", "data.max_length=25"], USAGE, "data.max_length=25", &["24 positions", "at most 24"]);
    fixture.write(
        "train.jsonl",
        &(sentences(1) + "{\"text\": \"the film was a good film in the end\", \"label\": \"negative\"}\n"),
    );
    let arguments = ["--set", "data.max_length=8", "--set", "data.too_long=error"];
    refused(&fixture, &arguments, DATA, "train.jsonl:2:", &["11 tokens", "data.max_length = 8"]);
}

#[test]
fn a_label_out_of_range_is_named() {
    let fixture = Fixture::new();
    fixture.write("train.jsonl", "{\"text\": \"good\", \"label\": 0}\n{\"text\": \"bad\", \"label\": 2}\n");
    let labels = "data.labels=[\"no\", \"yes\"]";
    refused(&fixture, &["--set", labels], DATA, "train.jsonl:2:", &["label 2 is out of range"]);
}

#[test]
fn a_read_only_output_directory_is_named() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("run")).unwrap();
    std::fs::set_permissions(fixture.path("run"), PermissionsExt::from_mode(0o555)).unwrap();
    refused(&fixture, &[], REFUSED, "run", &["denied", "output.dir"]);
    // So is a new directory below it, one below a file, and one where no directory can be created.
    for dir in ["run/below", "recipe.toml/below", "/proc/below"] {
        refused(&fixture, &["--set", &format!("output.dir={dir}")], REFUSED, dir, &["output.dir"]);
    }
    refused(&fixture, &["--set", "output.dir=recipe.toml"], USAGE, "recipe.toml", &["is a file"]);
}

#[test]
fn an_output_directory_with_other_files_is_refused() {
    let fixture = Fixture::new();
    fixture.write("run/diary.txt", "mine");
    refused(&fixture, &["--overwrite"], USAGE, "run", &["diary.txt", "output.dir"]);
}

#[test]
fn an_output_directory_with_another_run_is_refused() {
    let fixture = Fixture::new();
    fixture.finetune(&[]).succeeded();
    refused(&fixture, &["--resume=never"], USAGE, "run", &["already holds a run of this recipe", "--overwrite"]);
    refused(&fixture, &["--set", "train.lr=2e-3"], USAGE, "run", &["the run of another recipe", "output.dir"]);
    // Overwriting is for the same recipe only.
    let arguments = ["--overwrite", "--set", "train.lr=2e-3"];
    refused(&fixture, &arguments, USAGE, "run", &["the run of another recipe", "output.dir"]);
    let weights = fixture.bytes("run/model/model.safetensors");
    fixture.finetune(&["--overwrite"]).succeeded();
    assert_eq!(fixture.bytes("run/model/model.safetensors"), weights);
}

#[test]
fn a_mistake_with_overwrite_keeps_the_earlier_run() {
    let fixture = Fixture::new();
    fixture.finetune(&[]).succeeded();
    fixture.write("train.jsonl", "{text: 1}\n");
    refused(&fixture, &["--overwrite"], DATA, "train.jsonl:1:", &["JSON"]);
}

#[test]
fn settings_that_do_not_fit_the_data_are_named() {
    refused(&Fixture::new(), &["--set", "train.batch_size=17"], USAGE, "train.batch_size=17", &["16 samples"]);
    // Four steps in an epoch: the data decide whether a warm-up fits.
    let arguments = ["--dry-run", "--set", "train.epochs=1", "--set", "train.steps=100", "--set", "train.warmup=5"];
    refused(&Fixture::new(), &arguments, USAGE, "train.warmup=5", &["a warm-up of 5 steps in a run of 4"]);
    let place = "train.micro_batch_size=3";
    refused(&Fixture::new(), &["--set", place], USAGE, place, &["does not divide"]);
}

#[test]
fn an_output_that_cannot_be_printed_is_no_panic() {
    let fixture = Fixture::new();
    for arguments in [&["--print-config"][..], &["--dry-run"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        check(&fixture.finetune_into(full.into(), arguments), REFUSED, "standard output", &["No space left"]);
        // The reader closes the pipe early.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = fixture.finetune_into(writer.into(), arguments);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    }
}

#[test]
fn names_that_are_nearly_right_are_followed_by_what_was_meant() {
    let fixture = Fixture::new();
    let data = "data.train=tran.jsonl";
    for (arguments, words) in [
        (&["--set", "device.name=gpu"][..], "did you mean \"cuda\"?"),
        (&["--set", data], "did you mean `train.jsonl`? name a file of training records"),
        (&["other.toml"], "for a recipe write --recipe other.toml"),
    ] {
        let refused = fixture.finetune(arguments).refused();
        assert!(refused.contains(words), "{arguments:?}: {refused}");
    }
}
