//! The forward program against PyTorch in 64-bit floats, through its files: hidden states, logits, loss and every gradient
//! of every head. The golden data are described in `crates/model-center/tests/golden/README.md`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use fixture::{Fixture, Input, golden, without_tensors, write_inputs, write_with_numbers};
use model_center::hf::{SafetensorsFile, StoredDtype};
use std::path::Path;

/// The largest relative error. f32 arithmetic over a few dozen terms stays near 1e-6.
const TOLERANCE: f64 = 1e-5;

/// A tensor of either float type as f64.
fn values(file: &SafetensorsFile, name: &str) -> Vec<f64> {
    let bytes = file.read_raw(name).unwrap();
    match file.entry(name).unwrap().dtype {
        StoredDtype::F64 => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        StoredDtype::F32 => {
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
        }
        other => panic!("{name} is {other:?}"),
    }
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn distance(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    norm(&ours.iter().zip(theirs).map(|(a, b)| a - b).collect::<Vec<_>>())
}

fn arguments<'a>(model: &'a Path, inputs: &'a Path, out: &'a str) -> Vec<&'a str> {
    vec!["--model", model.to_str().unwrap(), "--inputs", inputs.to_str().unwrap(), "--out", out, "--threads", "1"]
}

fn check_head(model: &str, head: &str, argument: &str) {
    let fixture = Fixture::new();
    let folder = golden(model, head);
    let inputs = folder.join("inputs.safetensors");
    let further = if argument.is_empty() { vec!["--grads"] } else { vec!["--grads", "--head", argument] };
    let run = [arguments(&folder, &inputs, "out.safetensors"), further].concat();
    let outcome = fixture.forward(&run).succeeded();
    assert_eq!(outcome.stderr, "", "{model} {head}");
    let ours = SafetensorsFile::open(&fixture.path("out.safetensors")).unwrap();
    let theirs = SafetensorsFile::open(&folder.join("golden.safetensors")).unwrap();
    let gradients = theirs.tensors().iter().filter(|entry| entry.name.starts_with("grad."));
    let all = norm(&gradients.flat_map(|entry| values(&theirs, &entry.name)).collect::<Vec<_>>());
    for entry in theirs.tensors() {
        let name = &entry.name;
        let got = ours.entry(name).unwrap_or_else(|| panic!("{model} {head}: {name} is not written"));
        assert_eq!(got.dtype, StoredDtype::F32, "{name}");
        if name != "loss" {
            assert_eq!(got.shape, entry.shape, "{name}");
        }
        let expected = values(&theirs, name);
        let mut bound = TOLERANCE * norm(&expected);
        if name.starts_with("grad.") {
            // For gradients that are zero in exact arithmetic, such as those of key biases.
            bound += 1e-8 * all;
        }
        let error = distance(&values(&ours, name), &expected);
        assert!(error <= bound, "{model} {head} {name}: error {error:e}, bound {bound:e}");
    }
    let known = |name: &str| theirs.entry(name).is_some();
    let further: Vec<_> = ours.tensors().iter().filter(|entry| !known(&entry.name)).map(|entry| &entry.name).collect();
    assert!(further.is_empty(), "{model} {head}: {further:?} have nothing to be compared with");
}

#[test]
fn every_head_equals_pytorch() {
    for model in ["bert_a", "bert_b"] {
        for (head, argument) in [("cls", "cls"), ("mlm", "mlm"), ("nsp", "nsp"), ("pretraining", "mlm")] {
            check_head(model, head, argument);
        }
    }
}

#[test]
fn every_head_of_a_decoder_equals_pytorch() {
    for (head, argument) in [("lm", "lm"), ("untied", "lm"), ("cls", "cls")] {
        check_head("gpt2_a", head, argument);
    }
}

#[test]
fn a_decoder_behind_an_encoder_equals_pytorch() {
    check_head("t5_a", "lm", "lm");
    check_head("t5_mt5", "lm", "");
}

#[test]
fn without_an_argument_the_head_is_that_of_the_folder() {
    for head in ["cls", "mlm", "nsp", "pretraining"] {
        check_head("bert_a", head, "");
    }
    for head in ["lm", "cls"] {
        check_head("gpt2_a", head, "");
    }
}

#[test]
fn absent_inputs_get_the_defaults_of_transformers() {
    let fixture = Fixture::new();
    let folder = golden("bert_a", "cls");
    let ids = [2i64, 7, 9, 3, 2, 8, 6, 3];
    let shape: &[usize] = &[2, 4];
    let full: [Input<'_>; 3] =
        [("input_ids", shape, &ids), ("attention_mask", shape, &[1; 8]), ("token_type_ids", shape, &[0; 8])];
    write_inputs(&fixture.path("full.safetensors"), &full);
    write_inputs(&fixture.path("ids.safetensors"), &full[..1]);
    for name in ["full", "ids"] {
        let (inputs, out) = (fixture.path(&format!("{name}.safetensors")), format!("{name}.out"));
        fixture.forward(&arguments(&folder, &inputs, &out)).succeeded();
    }
    assert_eq!(fixture.bytes("full.out"), fixture.bytes("ids.out"));
    let out = SafetensorsFile::open(&fixture.path("ids.out")).unwrap();
    assert!(out.entry("logits").is_some() && out.entry("loss").is_none());
}

#[test]
fn a_text_is_a_row_of_the_ids_of_the_models_tokenizer() {
    let fixture = Fixture::new();
    fixture.write("text", "the film\nwas GOOD");
    let model = ["--model", "model", "--threads", "1"];
    fixture.forward(&[&model[..], &["--text", "text", "--out", "a"]].concat()).succeeded();
    let out = SafetensorsFile::open(&fixture.path("a")).unwrap();
    let ids = out.read_i64("input_ids").unwrap();
    assert_eq!((&*out.entry("input_ids").unwrap().shape, ids[0], ids[5]), (&[1, 6][..], 2, 3), "[CLS] … [SEP]");
    write_inputs(&fixture.path("in"), &[("input_ids", &[1, 6], &ids)]);
    fixture.forward(&[&model[..], &["--inputs", "in", "--out", "b"]].concat()).succeeded();
    let same = SafetensorsFile::open(&fixture.path("b")).unwrap();
    assert!(same.entry("input_ids").is_none());
    assert_eq!(values(&same, "hidden.2"), values(&out, "hidden.2"));
    for wrong in [&["--text", "text", "--inputs", "in"][..], &["--text", "text", "--grads"], &[]] {
        fixture.forward(&[&model[..], wrong, &["--out", "c"]].concat()).refused();
    }
    fixture.write("text", "");
    // A tokenizer that puts nothing around a text makes nothing of an empty one; this one does.
    fixture.forward(&[&model[..], &["--text", "text", "--out", "c"]].concat()).succeeded();
}

#[test]
fn one_token_a_row_is_enough() {
    let fixture = Fixture::new();
    let folder = golden("bert_a", "cls");
    write_inputs(&fixture.path("in"), &[("input_ids", &[2, 1], &[2, 7]), ("labels", &[2], &[0, 1])]);
    let inputs = fixture.path("in");
    let run = [arguments(&folder, &inputs, "out"), vec!["--grads"]].concat();
    fixture.forward(&run).succeeded();
    let out = SafetensorsFile::open(&fixture.path("out")).unwrap();
    assert_eq!(out.entry("logits").unwrap().shape, [2, 2]);
    assert!(values(&out, "loss")[0].is_finite());
}

#[test]
fn a_regression_is_judged_by_its_squared_error() {
    let fixture = Fixture::new();
    for file in ["config.json", "model.safetensors"] {
        fixture.write_bytes(&format!("model/{file}"), &std::fs::read(golden("bert_a", "cls").join(file)).unwrap());
    }
    fixture.replace("model/config.json", "\"model_type\"", "\"problem_type\": \"regression\", \"model_type\"");
    let (model, inputs) = (fixture.path("model"), fixture.path("in"));
    let numbers = [0.5f32, -1.0, 2.0, 0.25];
    write_with_numbers(&inputs, &[("input_ids", &[2, 2], &[2, 7, 2, 9])], "labels", &[2, 2], &numbers);
    fixture.forward(&[arguments(&model, &inputs, "out"), vec!["--grads"]].concat()).succeeded();
    let out = SafetensorsFile::open(&fixture.path("out")).unwrap();
    let (logits, loss) = (values(&out, "logits"), values(&out, "loss")[0]);
    let squares = logits.iter().zip(numbers).map(|(ours, label)| (ours - f64::from(label)).powi(2));
    let expected = squares.sum::<f64>() / 4.0;
    // The sum of four squares in f32.
    assert!((loss - expected).abs() <= 1e-6 * expected, "{loss} for {expected}");
    // The bias' gradient is that of the mean: twice the sum of the column's differences over the number of logits.
    let bias = values(&out, "grad.classifier.bias");
    let slope: f64 = [0, 2].iter().map(|at| 2.0 * (logits[*at] - f64::from(numbers[*at])) / 4.0).sum();
    assert!((bias[0] - slope).abs() <= 1e-6 * slope.abs().max(1.0), "{} for {slope}", bias[0]);
}

#[test]
fn hidden_states_alone_need_no_head() {
    let fixture = Fixture::new();
    let (folder, inputs) = (golden("bert_a", "cls"), fixture.path("in"));
    without_tensors(&folder.join("inputs.safetensors"), &inputs, |name| name == "labels");
    let run = [arguments(&folder, &inputs, "out"), vec!["--head", "none"]].concat();
    fixture.forward(&run).succeeded();
    let out = SafetensorsFile::open(&fixture.path("out")).unwrap();
    let mut names: Vec<&str> = out.tensors().iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["hidden.0", "hidden.1", "hidden.2", "pooler"]);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let fixture = Fixture::new();
    let (folder, inputs) =
        (golden("bert_b", "pretraining"), golden("bert_b", "pretraining").join("inputs.safetensors"));
    for threads in ["1", "2"] {
        let run = ["--model", folder.to_str().unwrap(), "--inputs", inputs.to_str().unwrap(), "--out", threads];
        fixture.forward(&[&run[..], &["--grads", "--threads", threads]].concat()).succeeded();
    }
    assert_eq!(fixture.bytes("1"), fixture.bytes("2"));
}

#[test]
fn models_of_the_hubs_cache_go_by_their_names() {
    let fixture = Fixture::new();
    let (commit, other) = ("a".repeat(40), "b".repeat(40));
    let blob = |name: &str| format!("hf/hub/models--org--tiny/blobs/{name}");
    let snapshot = fixture.path(&format!("hf/hub/models--org--tiny/snapshots/{commit}"));
    std::fs::create_dir_all(&snapshot).unwrap();
    for name in ["config.json", "model.safetensors", "vocab.txt"] {
        fixture.write_bytes(&blob(name), &fixture.bytes(&format!("model/{name}")));
        std::os::unix::fs::symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    fixture.write("hf/hub/models--org--tiny/refs/main", &commit);
    write_inputs(&fixture.path("in.safetensors"), &[("input_ids", &[1, 3], &[2, 7, 3])]);
    let files = ["--inputs", "in.safetensors", "--threads", "1", "--out"];
    fixture.forward(&[&["--model", "model"], &files[..], &["path"]].concat()).succeeded();
    fixture.forward(&[&["--model", "org/tiny"], &files[..], &["name"]].concat()).succeeded();
    fixture.forward(&[&["--model", "org/tiny", "--revision", &commit], &files[..], &["commit"]].concat()).succeeded();
    assert_eq!(fixture.bytes("path"), fixture.bytes("name"));
    assert_eq!(fixture.bytes("path"), fixture.bytes("commit"));
    let outcome = fixture.forward(&[&["--model", "org/tiny", "--revision", &other], &files[..], &["other"]].concat());
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert!(outcome.stderr.contains(&format!("fetch -- org/tiny --revision {other}")), "{}", outcome.stderr);

    let outcome = fixture.finetune(&["--set", "model.path=org/tiny", "--dry-run"]).succeeded();
    assert!(outcome.stdout.contains(&format!("parameters from {}", snapshot.display())), "{}", outcome.stdout);
    let revision = format!("model.revision={commit}");
    fixture.plan(&["--set", "model.path=org/tiny", "--set", &revision]).succeeded();
    fixture.finetune(&["--set", "model.path=org/tiny", "--set", &revision]).succeeded();
    // The model that comes out has the tokenizer, and says what it was made from.
    assert_eq!(fixture.read("run/model/vocab.txt"), fixture.read("model/vocab.txt"));
    assert!(fixture.read("run/model/README.md").contains("org/tiny"));
}
