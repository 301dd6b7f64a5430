//! Untrusted model directories and files, damaged or made on purpose: every program that opens one names place,
//! reason and fix, and writes nothing.

use super::fixture::{Fixture, Outcome, VOCABULARY, add_tensors, split_header, vocabulary};
use super::{DATA, check};
use std::path::Path;

/// Programs by their names.
type Program = (&'static str, fn(&Fixture) -> Outcome);

const FINETUNE: Program = ("finetune", |fixture| fixture.finetune(&[]));
const FORWARD: Program = ("forward", |fixture| {
    fixture.write("text.jsonl", "{\"text\": \"the film was good\"}\n");
    let outcome = fixture.forward(&["--model", "model", "--inputs", "text.jsonl", "--out", "out.safetensors"]);
    std::fs::remove_file(fixture.path("text.jsonl")).unwrap();
    outcome
});
const CONVERT: Program = ("convert", |fixture| fixture.convert(&["model", "new", "--dtype", "f32"]));
const PLAN: Program = ("plan", |fixture| fixture.plan(&[]));
const ALL: [Program; 4] = [FINETUNE, PLAN, FORWARD, CONVERT];

/// Each program refuses the fixture's model with all of the texts, and leaves every file as it was.
fn refused_by(programs: &[Program], fixture: &Fixture, place: &str, texts: &[&str]) {
    let before = fixture.snapshot();
    for (name, program) in programs {
        let outcome = program(fixture);
        check(&outcome, DATA, place, texts);
        assert_eq!(fixture.snapshot(), before, "{name} changed files");
    }
}

/// A fixture whose configuration has one text for another.
fn configured(from: &str, to: &str) -> Fixture {
    let fixture = Fixture::new();
    fixture.replace("model/config.json", from, to);
    fixture
}

/// Puts weights of another name in place of the fixture's.
fn replace_weights(fixture: &Fixture, name: &str, bytes: &[u8]) {
    std::fs::remove_file(fixture.path("model/model.safetensors")).unwrap();
    fixture.write_bytes(&format!("model/{name}"), bytes);
}

#[test]
fn a_family_that_is_not_known_comes_with_those_that_are() {
    let fixture = configured("\"model_type\": \"bert\"", "\"model_type\": \"mamba\"");
    refused_by(
        &ALL,
        &fixture,
        "model/config.json",
        &["unknown model family \"mamba\"", "supported are: bert, gpt2", "t5"],
    );
}

#[test]
fn a_configuration_that_lacks_a_field_or_contradicts_itself_is_named() {
    let missing = configured("\"hidden_size\": 32,", "");
    refused_by(&ALL, &missing, "model/config.json, field hidden_size", &["no safe default", "add hidden_size"]);
    let twice = configured("\"hidden_size\": 32,", "\"hidden_size\": 32, \"dim_model\": 48,");
    refused_by(&ALL, &twice, "model/config.json, field", &["hidden_size = 32 and dim_model = 48"]);
    let lying = configured("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4096");
    refused_by(&ALL, &lying, "model.safetensors", &["missing", "and 6", "config.json"]);
}

#[test]
fn projections_of_another_layout_are_named_with_both_shapes() {
    let fixture = Fixture::decoder();
    let (header, data) = split_header(&fixture.bytes("model/model.safetensors"));
    // The same bytes taken for a matrix of outputs by inputs, as most families have it and GPT-2 has not.
    let changed = header.replace("[20,60]", "[60,20]");
    assert_ne!(header, changed);
    let bytes = [&(changed.len() as u64).to_le_bytes()[..], changed.as_bytes(), &data].concat();
    fixture.write_bytes("model/model.safetensors", &bytes);
    let texts = ["h.0.attn.c_attn.weight", "project_qkv", "expected [20, 60], got [60, 20]"];
    refused_by(&ALL, &fixture, "model.safetensors", &texts);
    // Three projections where the family has one.
    let fixture = Fixture::decoder();
    let changed = header.replace("attn.c_attn", "attn.q_attn");
    let bytes = [&(changed.len() as u64).to_le_bytes()[..], changed.as_bytes(), &data].concat();
    fixture.write_bytes("model/model.safetensors", &bytes);
    refused_by(&ALL, &fixture, "model.safetensors", &["missing", "attn.c_attn.weight", "attn.q_attn.weight"]);
}

#[test]
fn a_gguf_file_with_wrong_lengths_is_refused() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-center/tests/golden/gguf/llama.gguf");
    let good = std::fs::read(golden).unwrap();
    let fixture = Fixture::new();
    let claim = |at: usize, value: u64| [&good[..at], &value.to_le_bytes(), &good[at + 8..]].concat();
    let cases = [
        (claim(8, u64::MAX), "18446744073709551615 tensors"),
        (claim(8, 100_000), "tensors are declared"),
        (claim(16, 60_000), "keys are declared"),
        // The length of the first key's name.
        (claim(24, 1 << 40), "1099511627776 bytes of text are declared"),
        (good[..good.len() - 64].to_vec(), "the tensor ends at"),
        (good[..100].to_vec(), "the file ends"),
    ];
    for (bytes, text) in cases {
        fixture.write_bytes("model.gguf", &bytes);
        let before = fixture.snapshot();
        let outcome = fixture.convert(&["model.gguf", "new", "--dtype", "f32"]);
        check(&outcome, DATA, "model.gguf", &[text, "download or copy it again"]);
        assert_eq!(fixture.snapshot(), before, "{text}");
    }
}

#[test]
fn a_pickle_that_would_run_something_is_refused_and_runs_nothing() {
    let cases: [(&[u8], &str); 3] = [
        (b"\x80\x02cos\nsystem\nX\x0b\0\0\0touch owned\x85R.", "os.system"),
        (b"\x80\x02cbuiltins\nexec\nX\x04\0\0\0pass\x85R.", "builtins.exec"),
        // An instruction that makes an object of a class by its name.
        (b"\x80\x02(ios\nsystem\n.", "INST"),
    ];
    for (pickle, text) in cases {
        let fixture = Fixture::new();
        replace_weights(&fixture, "pytorch_model.bin", pickle);
        refused_by(&ALL, &fixture, "model/pytorch_model.bin", &[text]);
        assert!(!fixture.path("owned").exists());
    }
}

#[test]
fn a_tokenizer_of_a_larger_vocabulary_is_named_with_both_sizes() {
    let fixture = Fixture::new();
    fixture.write("model/vocab.txt", &vocabulary(VOCABULARY + 1));
    let texts = ["102 tokens", "101 rows", "tokenizer files that belong to these weights"];
    refused_by(&[FINETUNE, PLAN, FORWARD], &fixture, "model/vocab.txt", &texts);
}

#[test]
fn an_index_that_leads_out_of_its_directory_is_refused() {
    for shard in ["../model-00001-of-00002.safetensors", "/etc/passwd", "inner/../../model.safetensors"] {
        let fixture = Fixture::new();
        let index = serde_json::json!({"metadata": {}, "weight_map": {"bert.pooler.dense.bias": shard}});
        replace_weights(&fixture, "model.safetensors.index.json", index.to_string().as_bytes());
        refused_by(&ALL, &fixture, "model", &["leads out of the directory", shard]);
    }
    let fixture = Fixture::new();
    let index = br#"{"weight_map": {"bert.pooler.dense.bias": "model-00001-of-00002.safetensors"}}"#;
    replace_weights(&fixture, "model.safetensors.index.json", index);
    std::os::unix::fs::symlink("/etc/hostname", fixture.path("model/model-00001-of-00002.safetensors")).unwrap();
    refused_by(&ALL, &fixture, "model", &["symbolic link", "outside the directory"]);
}

#[test]
fn weights_that_are_a_link_to_nothing_are_not_passed_over_for_others() {
    let fixture = Fixture::new();
    replace_weights(&fixture, "pytorch_model.bin", b"what is left of another model");
    std::os::unix::fs::symlink("../blobs/gone", fixture.path("model/model.safetensors")).unwrap();
    refused_by(
        &ALL,
        &fixture,
        "model/model.safetensors",
        &["a link to a file that is not there", "fetch the model again"],
    );
}

#[test]
fn tensors_of_no_known_head_are_refused_with_the_patterns_that_leave_them_out() {
    let fixture = Fixture::new();
    let further: [(&str, &[usize]); 4] = [
        ("topic_head.weight", &[7, 32]),
        ("bert.adapter.weight", &[4, 32]),
        ("qa_outputs.weight", &[2, 32]),
        ("qa_outputs.bias", &[2]),
    ];
    add_tensors(&fixture.path("model/model.safetensors"), &further);
    let texts = ["0 missing, 2 unexpected", "--leave 'bert.adapter.*' --leave 'topic_head.*'", "model.leave = ["];
    refused_by(&ALL, &fixture, "model/model.safetensors", &texts);
    // What the error offers helps, and what it does not name needs no help: the head of another task.
    fixture.write("text.jsonl", "{\"text\": \"the film was good\"}\n");
    let leave = ["--leave", "bert.adapter.*", "--leave", "topic_head.*"];
    let forward = ["--model", "model", "--inputs", "text.jsonl", "--out", "out.safetensors"];
    let unused = "warning: tensors of other heads are not used: ";
    let heads = "qa_outputs.bias, qa_outputs.weight";
    let outcome = fixture.forward(&[&forward[..], &leave].concat()).succeeded();
    assert!(outcome.stderr.contains(unused) && outcome.stderr.contains(heads), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    let outcome = fixture.convert(&[&["model", "new"][..], &leave].concat()).succeeded();
    assert!(outcome.stderr.contains(heads) && outcome.stdout.contains("left out: bert.adapter.weight"), "{outcome:?}");
    let setting = ["--set", "model.leave=[\"bert.adapter.*\", \"topic_head.*\"]"];
    let outcome = fixture.finetune(&[&setting[..], &["--dry-run"]].concat()).succeeded();
    assert!(outcome.stdout.contains("left out (model.leave): bert.adapter.weight, topic_head.weight"), "{outcome:?}");
    let outcome = fixture.plan(&setting).succeeded();
    assert!(outcome.stderr.contains(heads), "{outcome:?}");
    // The same by the option of all programs.
    let outcome = fixture.finetune(&[&leave[..], &["--dry-run"]].concat()).succeeded();
    assert!(outcome.stdout.contains("left out (model.leave): bert.adapter.weight, topic_head.weight"), "{outcome:?}");
    fixture.plan(&leave).succeeded();
    // A pattern without effect, and one too wide.
    for (pattern, text) in [("ner.*", "matches none"), ("bert.*", "which the model needs")] {
        let before = fixture.snapshot();
        let place = "model/model.safetensors";
        check(&fixture.forward(&[&forward[..], &["--leave", pattern]].concat()), DATA, place, &[pattern, text]);
        let setting = format!("model.leave=[\"{pattern}\"]");
        check(&fixture.finetune(&["--set", &setting]), DATA, place, &[pattern, text]);
        check(&fixture.plan(&["--set", &setting]), DATA, place, &[pattern, text]);
        check(&fixture.convert(&["model", "other", "--leave", pattern]), DATA, place, &[pattern, text]);
        assert_eq!(fixture.snapshot(), before, "{pattern}");
    }
}
