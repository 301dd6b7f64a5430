//! The forward program against PyTorch in 64-bit floats, through its files: hidden states, logits, loss and every
//! gradient of every head. The golden data are described in `crates/model-center/tests/golden/README.md`.

mod lines;

use crate::fixture::{Fixture, Input, add_tensors, golden, without_tensors, write_inputs, write_with_numbers};
use model_center::formats::{SafetensorsFile, StoredDtype};
use model_center::tokenizer::{HfTokenizer, Tokenizer};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

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
    let directory = golden(model, head);
    let inputs = directory.join("inputs.safetensors");
    let further = if argument.is_empty() { vec!["--grads"] } else { vec!["--grads", "--head", argument] };
    let run = [arguments(&directory, &inputs, "out.safetensors"), further].concat();
    let outcome = fixture.forward(&run).succeeded();
    assert_eq!(outcome.stderr, "", "{model} {head}");
    let ours = SafetensorsFile::open(&fixture.path("out.safetensors")).unwrap();
    let theirs = SafetensorsFile::open(&directory.join("golden.safetensors")).unwrap();
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
            // For gradients that are zero in exact arithmetic, such as key biases'.
            bound += if head == "qa" { 6e-8 } else { 1e-8 } * all;
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
        for (head, argument) in
            [("cls", "cls"), ("mlm", "mlm"), ("nsp", "nsp"), ("pretraining", "mlm"), ("tokens", "tokens"), ("qa", "qa")]
        {
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
fn an_encoder_decoder_equals_pytorch() {
    check_head("t5_a", "lm", "lm");
    check_head("t5_mt5", "lm", "");
}

/// Every directory of golden data with a model, its inputs and what it computes.
fn golden_directories() -> Vec<PathBuf> {
    let subdirectories = |directory: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    };
    let has = |directory: &Path, name: &str| directory.join(name).is_file();
    let is_model = |directory: &PathBuf| {
        ["config.json", "inputs.safetensors", "golden.safetensors"].iter().all(|name| has(directory, name))
    };
    let models = subdirectories(&golden("", ""));
    let mut directories: Vec<PathBuf> =
        models.iter().flat_map(|model| subdirectories(model)).filter(is_model).collect();
    directories.sort();
    directories
}

/// Values of logits at tokens: they are undefined where only padding precedes.
fn at_tokens(values: Vec<f64>, shape: &[usize], inputs: &SafetensorsFile) -> Vec<f64> {
    let &[rows, length, words] = shape else { return values };
    let masks = ["decoder_attention_mask", "attention_mask"];
    let mask = masks.into_iter().find(|name| inputs.entry(name).is_some_and(|entry| entry.shape == [rows, length]));
    let Some(mask) = mask.map(|name| inputs.read_i64(name).unwrap()) else { return values };
    values.chunks(words).zip(mask).filter(|(_, mask)| *mask == 1).flat_map(|(row, _)| row.to_vec()).collect()
}

#[test]
fn every_golden_model_opens_with_its_head_and_without() {
    let fixture = Fixture::new();
    let directories = golden_directories();
    assert!(directories.len() > 50, "{directories:?}");
    for directory in directories {
        let (inputs, shown) = (directory.join("inputs.safetensors"), directory.display());
        fixture.forward(&arguments(&directory, &inputs, "out")).succeeded();
        let ours = SafetensorsFile::open(&fixture.path("out")).unwrap();
        let theirs = SafetensorsFile::open(&directory.join("golden.safetensors")).unwrap();
        let given = SafetensorsFile::open(&inputs).unwrap();
        for name in ["logits", "seq_relationship_logits", "loss"] {
            let Some(entry) = theirs.entry(name) else { continue };
            let [ours, theirs] = [&ours, &theirs].map(|file| at_tokens(values(file, name), &entry.shape, &given));
            let (error, bound) = (distance(&ours, &theirs), TOLERANCE * norm(&theirs));
            assert!(error <= bound, "{shown} {name}: error {error:e}, bound {bound:e}");
        }
        // The decoder of BART's classifier reads the encoder's input, a bare model's decoder its own input.
        if shown.to_string().contains("bart_") && directory.ends_with("cls") {
            continue;
        }
        // Decoder inputs may have to be made from labels, which count for nothing without a head.
        fixture.forward(&[arguments(&directory, &inputs, "bare"), vec!["--head", "none"]].concat()).succeeded();
        let bare = SafetensorsFile::open(&fixture.path("bare")).unwrap();
        assert!(bare.entry("logits").is_none() && bare.entry("loss").is_none(), "{shown}");
        let hidden = ours.tensors().iter().filter(|entry| entry.name.starts_with("hidden."));
        for name in hidden.map(|entry| &entry.name) {
            assert_eq!(ours.read_raw(name).unwrap(), bare.read_raw(name).unwrap(), "{shown} {name}");
        }
    }
}

/// The rows of a file of tensors as lines of JSON.
fn as_lines(inputs: &Path) -> String {
    let file = SafetensorsFile::open(inputs).unwrap();
    let rows = file.entry("input_ids").unwrap().shape[0];
    let mut lines = vec![Map::new(); rows];
    for entry in file.tensors() {
        let values: Vec<Value> = match entry.is_float() {
            true => values(&file, &entry.name).into_iter().map(Value::from).collect(),
            false => file.read_i64(&entry.name).unwrap().into_iter().map(Value::from).collect(),
        };
        for (line, row) in lines.iter_mut().zip(values.chunks(values.len() / rows)) {
            let value = if entry.shape.len() == 1 { row[0].clone() } else { Value::from(row.to_vec()) };
            line.insert(entry.name.clone(), value);
        }
    }
    lines.into_iter().map(|line| Value::Object(line).to_string() + "\n").collect()
}

#[test]
fn lines_of_json_are_read_as_tensors_are() {
    let fixture = Fixture::new();
    let models = [
        ("bert_a", "pretraining"),
        ("bert_b", "cls"),
        ("gpt2_b", "cls"),
        ("llama_a", "lm"),
        ("t5_a", "lm"),
        ("t5_b", "lm"),
    ];
    for (model, head) in models {
        let directory = golden(model, head);
        let inputs = directory.join("inputs.safetensors");
        fixture.write("in.jsonl", &as_lines(&inputs));
        for (inputs, out) in [(inputs, "tensors"), (fixture.path("in.jsonl"), "lines")] {
            fixture.forward(&[arguments(&directory, &inputs, out), vec!["--grads"]].concat()).succeeded();
        }
        assert!(fixture.bytes("tensors") == fixture.bytes("lines"), "{model} {head}");
    }
}

#[test]
fn contexts_and_spans_are_inputs_too() {
    check_head("cpm1_a", "untied", "");
    check_head("cpm1_c", "lm", "lm");
}

#[test]
fn without_an_argument_the_head_is_that_of_the_directory() {
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
    let directory = golden("bert_a", "cls");
    let ids = [2i64, 7, 9, 3, 2, 8, 6, 3];
    let shape: &[usize] = &[2, 4];
    let full: [Input<'_>; 3] =
        [("input_ids", shape, &ids), ("attention_mask", shape, &[1; 8]), ("token_type_ids", shape, &[0; 8])];
    write_inputs(&fixture.path("full.safetensors"), &full);
    write_inputs(&fixture.path("ids.safetensors"), &full[..1]);
    for name in ["full", "ids"] {
        let (inputs, out) = (fixture.path(&format!("{name}.safetensors")), format!("{name}.out"));
        fixture.forward(&arguments(&directory, &inputs, &out)).succeeded();
    }
    assert_eq!(fixture.bytes("full.out"), fixture.bytes("ids.out"));
    let out = SafetensorsFile::open(&fixture.path("ids.out")).unwrap();
    assert!(out.entry("logits").is_some() && out.entry("loss").is_none());
}

#[test]
fn a_text_is_a_row_of_the_ids_of_the_models_tokenizer() {
    let fixture = Fixture::new();
    fixture.write("text.jsonl", "{\"text\": \"the film\\nwas GOOD\"}\n");
    let model = ["--model", "model", "--threads", "1"];
    fixture.forward(&[&model[..], &["--inputs", "text.jsonl", "--out", "a"]].concat()).succeeded();
    let out = SafetensorsFile::open(&fixture.path("a")).unwrap();
    let ids = out.read_i64("input_ids").unwrap();
    assert_eq!((&*out.entry("input_ids").unwrap().shape, ids[0], ids[5]), (&[1, 6][..], 2, 3), "[CLS] … [SEP]");
    write_inputs(&fixture.path("in"), &[("input_ids", &[1, 6], &ids)]);
    fixture.forward(&[&model[..], &["--inputs", "in", "--out", "b"]].concat()).succeeded();
    let same = SafetensorsFile::open(&fixture.path("b")).unwrap();
    assert!(same.entry("input_ids").is_none());
    assert_eq!(values(&same, "hidden.2"), values(&out, "hidden.2"));
}

#[test]
fn outputs_that_are_not_finite_are_written_with_a_warning_that_names_them() {
    let fixture = Fixture::new();
    let directory = golden("bert_a", "mlm");
    let inputs = fixture.path("in");
    let ids: Input<'_> = ("input_ids", &[1, 3], &[2, 7, 3]);
    write_inputs(&inputs, &[ids, ("labels", &[1, 3], &[-100, 7, -100])]);
    assert_eq!(fixture.forward(&arguments(&directory, &inputs, "out")).succeeded().stderr, "");
    // As in PyTorch the mean over no label is NaN.
    write_inputs(&inputs, &[ids, ("labels", &[1, 3], &[-100, -100, -100])]);
    let outcome = fixture.forward(&arguments(&directory, &inputs, "out")).succeeded();
    assert!(outcome.stderr.starts_with("warning: not finite: loss (1 of 1 values)\n"), "{}", outcome.stderr);
    assert!(values(&SafetensorsFile::open(&fixture.path("out")).unwrap(), "loss")[0].is_nan());
}

#[test]
fn gradients_of_adapters_have_pefts_names_and_values() {
    for (model, adapter) in [
        ("llama_a", "llama"),
        ("llama_a", "prompt_llama"),
        ("t5_b", "prompt_t5_both"),
        ("llama_a", "prefix_llama"),
        ("bloom_a", "prefix_bloom"),
    ] {
        let fixture = Fixture::new();
        let (model, adapter) = (golden(model, "lm"), golden("adapters", adapter));
        let inputs = model.join("inputs.safetensors");
        let further = vec!["--adapter", adapter.to_str().unwrap(), "--grads"];
        fixture.forward(&[arguments(&model, &inputs, "out.safetensors"), further].concat()).succeeded();
        let ours = SafetensorsFile::open(&fixture.path("out.safetensors")).unwrap();
        let theirs = SafetensorsFile::open(&adapter.join("golden.safetensors")).unwrap();
        let names = |file: &SafetensorsFile| -> Vec<String> {
            let mut names: Vec<String> = file.tensors().iter().map(|entry| entry.name.clone()).collect();
            names.retain(|name| name.starts_with("grad."));
            names.sort();
            names
        };
        assert_eq!(names(&ours), names(&theirs), "{}", adapter.display());
        let all = norm(&names(&theirs).iter().flat_map(|name| values(&theirs, name)).collect::<Vec<_>>());
        for name in names(&theirs) {
            assert_eq!(ours.entry(&name).unwrap().shape, theirs.entry(&name).unwrap().shape, "{name}");
            let (got, expected) = (values(&ours, &name), values(&theirs, &name));
            let bound = TOLERANCE * norm(&expected) + 1e-7 * all;
            assert!(distance(&got, &expected) <= bound, "{}: {name}", adapter.display());
        }
    }
}

#[test]
fn one_token_a_row_is_enough() {
    let fixture = Fixture::new();
    let directory = golden("bert_a", "cls");
    write_inputs(&fixture.path("in"), &[("input_ids", &[2, 1], &[2, 7]), ("labels", &[2], &[0, 1])]);
    let inputs = fixture.path("in");
    let run = [arguments(&directory, &inputs, "out"), vec!["--grads"]].concat();
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
    // The bias' gradient is the mean's: twice the sum of the column's differences over the number of logits.
    let bias = values(&out, "grad.classifier.bias");
    let slope: f64 = [0, 2].iter().map(|at| 2.0 * (logits[*at] - f64::from(numbers[*at])) / 4.0).sum();
    assert!((bias[0] - slope).abs() <= 1e-6 * slope.abs().max(1.0), "{} for {slope}", bias[0]);
}

#[test]
fn hidden_states_alone_need_no_head() {
    let fixture = Fixture::new();
    let (directory, inputs) = (golden("bert_a", "cls"), fixture.path("in"));
    without_tensors(&directory.join("inputs.safetensors"), &inputs, |name| name == "labels");
    let run = [arguments(&directory, &inputs, "out"), vec!["--head", "none"]].concat();
    fixture.forward(&run).succeeded();
    let out = SafetensorsFile::open(&fixture.path("out")).unwrap();
    let mut names: Vec<&str> = out.tensors().iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["hidden.0", "hidden.1", "hidden.2", "pooler"]);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let fixture = Fixture::new();
    let (directory, inputs) =
        (golden("bert_b", "pretraining"), golden("bert_b", "pretraining").join("inputs.safetensors"));
    for threads in ["1", "2"] {
        let run = ["--model", directory.to_str().unwrap(), "--inputs", inputs.to_str().unwrap(), "--out", threads];
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
    assert!(outcome.stderr.contains(&format!("bmtrain fetch org/tiny --revision {other}")), "{}", outcome.stderr);

    let outcome = fixture.finetune(&["--set", "model.path=org/tiny", "--dry-run"]).succeeded();
    assert!(outcome.stdout.contains(&format!("parameters from {}", snapshot.display())), "{}", outcome.stdout);
    let revision = format!("model.revision={commit}");
    fixture.plan(&["--set", "model.path=org/tiny", "--set", &revision]).succeeded();
    fixture.finetune(&["--set", "model.path=org/tiny", "--set", &revision]).succeeded();
    // The resulting model has the tokenizer, and names its base model.
    assert_eq!(fixture.read("run/model/vocab.txt"), fixture.read("model/vocab.txt"));
    assert!(fixture.read("run/model/README.md").contains("org/tiny"));
}

/// The bytes of the logits of `model` in the fixture on golden inputs of BERT, and the messages on standard error.
fn logits(fixture: &Fixture, model: &str, further: &[&str]) -> (Vec<u8>, String) {
    let inputs = golden("bert_a", "mlm").join("inputs.safetensors");
    let run = [arguments(Path::new(model), &inputs, "out.safetensors"), further.to_vec()].concat();
    let outcome = fixture.forward(&run).succeeded();
    let logits = SafetensorsFile::open(&fixture.path("out.safetensors")).unwrap().read_raw("logits").unwrap();
    (logits, outcome.stderr)
}

/// Copies a golden directory's configuration and weights into the fixture.
fn copied(fixture: &Fixture, head: &str, to: &str) {
    for file in ["config.json", "model.safetensors"] {
        fixture.write_bytes(&format!("{to}/{file}"), &std::fs::read(golden("bert_a", head).join(file)).unwrap());
    }
}

#[test]
fn a_head_is_reached_beside_three_others_whatever_the_configuration_names() {
    let fixture = Fixture::new();
    copied(&fixture, "mlm", "plain");
    copied(&fixture, "mlm", "several");
    let expected = logits(&fixture, "plain", &[]).0;
    let ten: Vec<String> = (0..10).map(|i| format!("cls.seq_relationship.{i}")).collect();
    let shape: &[usize] = &[2];
    let mut heads: Vec<(&str, &[usize])> = ten.iter().map(|name| (name.as_str(), shape)).collect();
    heads.extend([("topic.weight", &[7, 32][..]), ("ner.weight", &[9, 32]), ("qa_outputs.weight", &[2, 32])]);
    add_tensors(&fixture.path("several/model.safetensors"), &heads);
    let leave = ["--leave", "topic.*", "--leave", "ner.*"];
    let (got, message) = logits(&fixture, "several", &leave);
    assert!(got == expected, "other heads change nothing");
    assert!(message.contains("cls.seq_relationship.0, ") && message.contains(" and 3 more"), "{message}");
    // A class that is not known, and none at all.
    fixture.replace("several/config.json", "BertForMaskedLM", "BertForEverything");
    assert!(logits(&fixture, "several", &[&leave[..], &["--head", "mlm"]].concat()).0 == expected);
    fixture.replace("plain/config.json", "\"architectures\"", "\"other\"");
    fixture.replace("plain/config.json", "\"model_type\": \"bert\",", "");
    let (got, message) = logits(&fixture, "plain", &[]);
    assert!(
        got == expected && message.contains("by the names of its tensors the model is of family bert"),
        "{message}"
    );
}

#[test]
fn of_a_directory_without_a_class_one_head_is_asked_for_by_name() {
    let fixture = Fixture::new();
    copied(&fixture, "mlm", "two");
    add_tensors(&fixture.path("two/model.safetensors"), &[("classifier.weight", &[5, 32]), ("classifier.bias", &[5])]);
    let pooler: [(&str, &[usize]); 2] = [("bert.pooler.dense.weight", &[32, 32]), ("bert.pooler.dense.bias", &[32])];
    add_tensors(&fixture.path("two/model.safetensors"), &pooler);
    fixture.replace("two/config.json", "\"architectures\"", "\"other\"");
    let inputs = golden("bert_a", "mlm").join("inputs.safetensors");
    let run = arguments(Path::new("two"), &inputs, "out.safetensors");
    let error = fixture.forward(&run).refused();
    assert!(error.contains("several heads: mlm, cls") && error.contains("--head"), "{error}");
    fixture.write("text.jsonl", "{\"input_ids\": [2, 7, 3]}\n");
    let run = arguments(Path::new("two"), Path::new("text.jsonl"), "out.safetensors");
    let outcome = fixture.forward(&[&run[..], &["--head", "cls"]].concat()).succeeded();
    assert!(outcome.stdout.contains("logits [1, 5]"), "{}", outcome.stdout);
    copied(&fixture, "mlm", "one");
    fixture.replace("one/config.json", "\"architectures\"", "\"other\"");
    let run = arguments(Path::new("one"), Path::new("text.jsonl"), "out.safetensors");
    let error = fixture.forward(&[&run[..], &["--head", "cls"]].concat()).refused();
    assert!(error.contains("config.json names no class, and the weights have no classifier"), "{error}");
}

#[test]
fn a_model_runs_in_the_dtype_that_it_is_stored_in() {
    let fixture = Fixture::new();
    copied(&fixture, "mlm", "wide");
    let wide = logits(&fixture, "wide", &[]).0;
    assert!(wide == logits(&fixture, "wide", &["--dtype", "f32"]).0);
    for dtype in ["bf16", "f16"] {
        fixture.convert(&["wide", dtype, "--dtype", dtype]).succeeded();
        let stored = logits(&fixture, dtype, &[]).0;
        assert!(stored == logits(&fixture, dtype, &["--dtype", dtype]).0, "{dtype}");
        assert!(stored != logits(&fixture, dtype, &["--dtype", "f32"]).0, "{dtype}");
        assert!(stored != wide, "{dtype}");
        // Gradients are computed in f32 unless another dtype is asked for.
        let with_grads = |more: &[&str]| logits(&fixture, dtype, &[&["--grads"], more].concat()).0;
        assert!(with_grads(&[]) == with_grads(&["--dtype", "f32"]), "{dtype}");
        assert!(with_grads(&["--dtype", dtype]) == stored, "{dtype}");
    }
}
