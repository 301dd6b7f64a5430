//! The convert program: to ModelCenter's files and back bit for bit, from GGUF, and what it refuses.

use crate::fixture::{Fixture, add_tensors, golden, write_inputs};
use bmtrain_core::{Ctx, Device};
use model_center::formats::{
    GgufFile, PickleFile, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource,
};
use model_center::model::{Batch, OpenOptions, Registry, TextHead};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Every tensor of a file with the bits of its values.
fn bits(file: &dyn TensorSource) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    let read = |name: &str, shape: &[usize]| {
        let mut values = vec![0.0; shape.iter().product()];
        file.read_f32(name, &mut values).unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    file.entries().iter().map(|e| (e.name.clone(), e.shape.clone(), read(&e.name, &e.shape))).collect()
}

fn weights(directory: &Path) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    bits(&SafetensorsFile::open(&directory.join("model.safetensors")).unwrap())
}

fn loss(directory: &Path) -> f32 {
    loss_as(directory, None)
}

/// The loss of a directory that may be of a family which its files do not name.
fn loss_as(directory: &Path, family: Option<&str>) -> f32 {
    let device = Device::cpu(1).unwrap();
    let options = OpenOptions { family: family.map(str::to_owned), ..OpenOptions::new(&device) };
    let model = Registry::default().open(directory, &options).unwrap().model;
    let words = model.info().vocab_size.min(40) as i64;
    let ids: Vec<i64> = (0..12).map(|at| (at * at * 5 + 3 * at) % words).collect();
    // ModelCenter's T5 is told what its decoder reads.
    let decoder_input_ids = model.parameters().get("decoder.relative_attention_bias.weight").map(|_| ids.clone());
    let batch = Batch { decoder_input_ids, ..Batch::next_tokens(6, ids, None) };
    model.loss(&batch, &mut Ctx::inference(&device)).unwrap().unwrap().value().item().unwrap()
}

#[test]
fn there_and_back_through_model_centers_files_every_bit_is_the_same() {
    // Some files fit several families, so the family has to be given.
    for (model, head, family) in [
        ("bert_a", "mlm", Some("bert")),
        ("roberta_a", "mlm", Some("roberta")),
        ("gpt2_a", "lm", Some("gpt2")),
        ("gpt2_a", "untied", Some("gpt2")),
        ("llama_b", "lm", None),
        ("llama_b", "untied", None),
        ("gptj_a", "lm", None),
        ("opt_a", "lm", None),
        ("t5_b", "lm", None),
        ("t5_mt5", "lm", Some("mt5")),
    ] {
        let fixture = Fixture::new();
        let from = golden(model, head);
        let (own, back) = (fixture.path("own"), fixture.path("back"));
        let path = |path: &Path| path.display().to_string();
        let layout = ["--layout", "model-center", "--dtype", "f32"];
        let outcome = fixture.convert(&[&[path(&from).as_str(), "own"][..], &layout].concat()).succeeded();
        assert!(
            outcome.stdout.contains("written as F32") || outcome.stdout.contains("written as f32"),
            "{}",
            outcome.stdout
        );
        let pickle = PickleFile::open(&own.join("pytorch_model.pt")).unwrap();
        let names: Vec<String> = pickle.tensors().iter().map(|entry| entry.name.clone()).collect();
        let stack = if model == "opt_a" { "decoder" } else { "encoder" };
        let query = format!("{stack}.layers.0.self_att.self_attention.project_q.weight");
        for name in ["input_embedding.weight", &query] {
            assert!(names.iter().any(|known| known == name), "{model} {head}: {names:?}");
        }
        assert_eq!(loss_as(&own, family).to_bits(), loss(&from).to_bits(), "{model} {head}");
        let asked: Vec<&str> = family.iter().flat_map(|family| ["--family", family]).collect();
        fixture.convert(&[&["own", "back", "--dtype", "f32"][..], &asked].concat()).succeeded();
        fixture.convert(&[path(&from).as_str(), "plain", "--dtype", "f32"]).succeeded();
        assert_eq!(weights(&back), weights(&fixture.path("plain")), "{model} {head}");
        fixture.convert(&[&["back", "again"][..], &layout].concat()).succeeded();
        let again = PickleFile::open(&fixture.path("again").join("pytorch_model.pt")).unwrap();
        assert_eq!(bits(&again), bits(&pickle), "{model} {head}");
    }
}

/// ModelCenter multiplies the logits of T5 1.0 with 100, which no division undoes exactly: the decoder's last norm
/// takes it.
#[test]
fn of_a_scaled_t5_one_vector_differs_in_its_last_bit_at_most() {
    let fixture = Fixture::new();
    let from = golden("t5_a", "lm");
    let layout = ["--layout", "model-center", "--dtype", "f32"];
    let outcome = fixture.convert(&[&[from.to_str().unwrap(), "own"][..], &layout].concat()).succeeded();
    assert!(outcome.stdout.contains("config.json has no place for decoder_start_token_id"), "{}", outcome.stdout);
    let (own, back) = (fixture.path("own"), fixture.path("back"));
    let config = std::fs::read_to_string(own.join("config.json")).unwrap();
    assert!(config.contains("\"scale\": true") && !config.contains("model_type"), "{config}");
    let (theirs, ours) = (loss(&own), loss(&from));
    assert!((theirs - ours).abs() <= 1e-6 * ours, "{theirs} {ours}");
    fixture.convert(&["own", "back", "--dtype", "f32"]).succeeded();
    fixture.convert(&[from.to_str().unwrap(), "plain", "--dtype", "f32"]).succeeded();
    for (got, want) in weights(&back).iter().zip(&weights(&fixture.path("plain"))) {
        assert_eq!((&got.0, &got.1), (&want.0, &want.1));
        let apart = got.2.iter().zip(&want.2).map(|(got, want)| got.abs_diff(*want)).max().unwrap_or(0);
        assert!(apart <= u32::from(got.0 == "decoder.final_layer_norm.weight"), "{} {apart}", got.0);
    }
    let refused = fixture.convert(&[from.to_str().unwrap(), "half", "--layout", "model-center", "--dtype", "f16"]);
    assert!(refused.refused().contains("compute in f16"));
    assert!(!fixture.path("half").exists());
}

#[test]
fn heads_that_its_encoders_do_not_have_are_refused_in_both_directions() {
    let fixture = Fixture::new();
    let layout = ["--layout", "model-center", "--dtype", "f32"];
    for (model, head, want) in [
        ("bert_a", "cls", "no head for classes that reads"),
        ("bert_a", "nsp", "no head for the next sentence"),
        ("bert_a", "pretraining", "no head for the next sentence"),
        ("roberta_a", "cls", "no head for classes that reads"),
    ] {
        let from = golden(model, head);
        let error = fixture.convert(&[&[from.to_str().unwrap(), "own"][..], &layout].concat()).refused();
        assert!(error.contains(want) && !fixture.path("own").exists(), "{error}");
    }
    let from = golden("bert_a", "mlm");
    fixture.convert(&[&[from.to_str().unwrap(), "own"][..], &layout].concat()).succeeded();
    let error = fixture.convert(&["own", "back", "--dtype", "f32"]).refused();
    assert!(error.contains("this can be bert, roberta, longformer") && error.contains("--family"), "{error}");
    let config = std::fs::read_to_string(fixture.path("own/config.json")).unwrap();
    fixture.write("own/config.json", &config.replace("\"cls_head\": null", "\"cls_head\": 3"));
    let device = Device::cpu(1).unwrap();
    let head = Some(TextHead::Classification { outputs: 3 });
    let options = OpenOptions { head, family: Some("bert".into()), ..OpenOptions::new(&device) };
    let error = Registry::default().open(&fixture.path("own"), &options).err().unwrap().to_string();
    assert!(error.contains("cls_head") && error.contains("reads hidden states"), "{error}");
}

#[test]
fn nothing_is_left_of_a_directory_whose_weights_cannot_be_written() {
    let fixture = Fixture::new();
    let from = fixture.path("large");
    std::fs::create_dir(&from).unwrap();
    std::fs::copy(golden("gpt2_a", "lm").join("config.json"), from.join("config.json")).unwrap();
    std::fs::write(from.join("tekken.json"), "{}").unwrap();
    std::fs::write(from.join("chat_template.json"), "{}").unwrap();
    let golden = SafetensorsFile::open(&golden("gpt2_a", "lm").join("model.safetensors")).unwrap();
    let entries: Vec<TensorEntry> = golden.tensors().to_vec();
    let mut writer = SafetensorsWriter::create(&from.join("model.safetensors"), &entries).unwrap();
    for entry in &entries {
        // A value that f16 does not have.
        let values = vec![1e6; entry.shape.iter().product()];
        writer.write_f32(&entry.name, &values).unwrap();
    }
    writer.finish().unwrap();
    for layout in ["model-center", "hugging-face"] {
        let error = fixture.convert(&["large", "new", "--layout", layout, "--dtype", "f16"]).refused();
        assert!(error.contains("the value 1e6 does not fit f16"), "{error}");
        assert!(!fixture.path("new").exists());
        fixture.convert(&["large", layout, "--layout", layout, "--dtype", "f32"]).succeeded();
        for name in ["tekken.json", "chat_template.json"] {
            assert!(fixture.path(layout).join(name).is_file(), "{name}");
        }
    }
}

#[test]
fn values_that_are_not_finite_are_converted_with_a_warning() {
    let fixture = Fixture::decoder();
    fixture.set_value("model/model.safetensors", "transformer.wte.weight", 1, f32::NEG_INFINITY);
    let outcome = fixture.convert(&["model", "new", "--dtype", "f32"]).succeeded();
    let warned = &outcome.stderr;
    for part in ["warning: 1 of ", "values is not finite: -inf at [0, 1]; written as it is", "transformer.wte.weight"] {
        assert!(warned.contains(part), "no {part:?} in {warned}");
    }
    assert!(weights(&fixture.path("model")) == weights(&fixture.path("new")), "other bits");
    // Programs that run the model refuse it.
    for outcome in [fixture.generate(&["--prompt", "the film", "--max-new-tokens", "1", "--greedy"]), {
        write_inputs(&fixture.path("in"), &[("input_ids", &[1, 2], &[2, 7])]);
        fixture.forward(&["--model", "new", "--inputs", "in", "--out", "out", "--threads", "1"])
    }] {
        let error = outcome.refused();
        assert!(error.contains("error[model]: the weights of the model are damaged: 1 of "), "{error}");
    }
}

#[test]
fn a_gguf_file_becomes_a_directory_that_opens() {
    let fixture = Fixture::new();
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-center/tests/golden/gguf/llama.gguf");
    let outcome = fixture.convert(&[gguf.to_str().unwrap(), "llama", "--dtype", "f32"]).succeeded();
    assert!(outcome.stdout.contains("tensors written as"), "{}", outcome.stdout);
    let written = loss(&fixture.path("llama"));
    assert!(written.is_finite() && written > 0.0, "{written}");
    let error = fixture.convert(&[gguf.to_str().unwrap(), "other", "--dtype", "f32", "--layout", "model-center"]);
    let error = error.refused();
    assert!(error.contains("--layout") && error.contains("second step"), "{error}");
}

#[test]
fn a_checkpoint_of_torch_distributed_becomes_the_model_that_was_divided() {
    let fixture = Fixture::new();
    let (from, model) = (golden("distributed", "llama"), golden("llama_a", "lm"));
    let (from, shown) = (from.to_str().unwrap(), model.to_str().unwrap());
    let outcome = fixture.convert(&[from, "new", "--config", shown]).succeeded();
    assert!(weights(&model) == weights(&fixture.path("new")), "other bits");
    assert_eq!(loss(&model).to_bits(), loss(&fixture.path("new")).to_bits());
    let noted = "left out of the checkpoint: 6 tensors under app.optim, values under step";
    assert!(outcome.stderr.contains(noted), "{}", outcome.stderr);
    let error = fixture.convert(&[from, "other"]).refused();
    assert!(
        error.contains("a checkpoint of torch.distributed.checkpoint") && error.contains("--config DIR"),
        "{error}"
    );
    let error = fixture.convert(&[shown, "other", "--config", shown]).refused();
    assert!(error.contains("--config") && error.contains("leave it out"), "{error}");
}

#[test]
fn checkpoints_of_torchtitan_become_what_its_adapter_writes() {
    let fixture = Fixture::new();
    for (name, reordered) in [("llama", "4 reordered"), ("llama_tied", "4 reordered"), ("qwen3", "copied")] {
        let (run, model) = (golden("torchtitan", name).join("checkpoint"), golden("torchtitan", name).join("model"));
        let step = run.join("step-2");
        let ask = [step.to_str().unwrap(), name, "--config", model.to_str().unwrap()];
        let outcome = fixture.convert(&ask).succeeded();
        assert!(weights(&model) == weights(&fixture.path(name)), "{name}: other bits");
        assert!(outcome.stdout.contains(reordered), "{}", outcome.stdout);
        // The directory of a run names its newest checkpoint.
        let error = fixture.convert(&[run.to_str().unwrap(), "other"]).refused();
        assert!(error.contains("checkpoint/step-2 OUT --config DIR"), "{error}");
    }
}

#[test]
fn what_would_be_lost_or_overwritten_is_refused() {
    let fixture = Fixture::new();
    let model = golden("gpt2_a", "lm");
    let model = model.to_str().unwrap();
    std::fs::create_dir(fixture.path("used")).unwrap();
    std::fs::write(fixture.path("used/notes.txt"), "mine").unwrap();
    let error = fixture.convert(&[model, "used", "--dtype", "f32"]).refused();
    assert!(error.contains("used") && error.contains("not empty"), "{error}");
    // ModelCenter has no BLOOM, and computes the scores of no GPT-2 and the angles of no Llama like these.
    for (model, family) in [("bloom_a", "BLOOM"), ("gpt2_b", "GPT-2"), ("llama_a", "Llama")] {
        let directory = golden(model, "lm");
        let layout = ["new", "--dtype", "f32", "--layout", "model-center"];
        let error = fixture.convert(&[&[directory.to_str().unwrap()][..], &layout].concat()).refused();
        assert!(error.contains(&format!("a {family} like this is not written in ModelCenter's layout")), "{error}");
    }
    let error = fixture.convert(&["no/such/model", "new", "--dtype", "f32"]).refused();
    assert!(error.contains("no/such/model"), "{error}");
    assert!(!fixture.path("new").exists());
    // A head that the class does not have is not written, with a warning.
    let directory = fixture.path("headless");
    std::fs::create_dir(&directory).unwrap();
    let from = golden("gpt2_a", "untied");
    std::fs::copy(from.join("model.safetensors"), directory.join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    std::fs::write(directory.join("config.json"), config.replace("GPT2LMHeadModel", "GPT2Model")).unwrap();
    let outcome = fixture.convert(&["headless", "new", "--dtype", "bf16"]).succeeded();
    assert!(
        outcome.stderr.contains("warning: tensors of other heads are not used: lm_head.weight"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stdout.contains("left out, of other heads: lm_head.weight"), "{}", outcome.stdout);
    // With the class unknown a head can be named.
    let other = config.replace("GPT2LMHeadModel", "GPT2ForEverything");
    std::fs::write(directory.join("config.json"), other).unwrap();
    assert!(fixture.convert(&["headless", "lm"]).refused().contains("GPT2ForEverything"));
    fixture.convert(&["headless", "lm", "--head", "lm"]).succeeded();
    assert_eq!(loss(&fixture.path("lm")).to_bits(), loss(&from).to_bits());
}

/// What became of every tensor, by the report: what was done, and the names of the tensors written.
fn report(text: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let names = |to: &Value| to["tensor"].as_str().unwrap().to_owned();
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let to = line["to"].as_array().unwrap().iter().map(names).collect();
        (line["tensor"].as_str().unwrap().to_owned(), (line["action"].as_str().unwrap().to_owned(), to))
    };
    text.lines().map(line).collect()
}

#[test]
fn a_directory_keeps_its_dtype_unless_another_is_asked_for() {
    let fixture = Fixture::new();
    let from = golden("gpt2_a", "lm");
    for dtype in ["bf16", "f16", "f32"] {
        let outcome = fixture.convert(&[from.to_str().unwrap(), dtype, "--dtype", dtype]).succeeded();
        assert!(outcome.stdout.to_lowercase().contains(&format!("written as {dtype}")), "{}", outcome.stdout);
        let again = format!("{dtype}-again");
        let outcome = fixture.convert(&[dtype, &again]).succeeded();
        assert!(outcome.stdout.to_lowercase().contains(&format!("written as {dtype}")), "{}", outcome.stdout);
        let bytes = |directory: &str| fixture.bytes(&format!("{directory}/model.safetensors"));
        assert!(bytes(dtype) == bytes(&again), "{dtype}");
        assert!(!outcome.stderr.contains("warning") && !outcome.stdout.contains("narrowed"), "{outcome:?}");
    }
    // Tensors of more bits than most lose some, which a warning states where no dtype is asked for.
    std::fs::create_dir(fixture.path("mixed")).unwrap();
    std::fs::copy(fixture.path("bf16/config.json"), fixture.path("mixed/config.json")).unwrap();
    let file = SafetensorsFile::open(&fixture.path("bf16/model.safetensors")).unwrap();
    let mixed = |entry: &TensorEntry| match entry.name.contains("ln_f") {
        true => TensorEntry { dtype: StoredDtype::F32, ..entry.clone() },
        false => entry.clone(),
    };
    let entries: Vec<TensorEntry> = file.tensors().iter().map(mixed).collect();
    let mut writer = SafetensorsWriter::create(&fixture.path("mixed/model.safetensors"), &entries).unwrap();
    for (name, _, values) in bits(&file) {
        writer.write_f32(&name, &values.into_iter().map(f32::from_bits).collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
    let warning = "warning: 2 tensors are stored in f32 and written as bf16; --dtype f32 keeps them";
    for (to, further, is_warned) in [("narrow", &[][..], true), ("asked", &["--dtype", "bf16"], false)] {
        let outcome = fixture.convert(&[&["mixed", to][..], further].concat()).succeeded();
        assert!(
            outcome.stderr.contains(warning) == is_warned && outcome.stdout.contains("; 2 narrowed"),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_report_lists_what_became_of_every_tensor() {
    let fixture = Fixture::new();
    let from = golden("gpt2_a", "lm");
    let to = ["own", "--layout", "model-center", "--report", "report.jsonl"];
    let outcome = fixture.convert(&[&[from.to_str().unwrap()][..], &to].concat()).succeeded();
    assert!(outcome.stdout.contains("tensors: ") && outcome.stdout.contains(" copied"), "{}", outcome.stdout);
    let lines = report(&fixture.read("report.jsonl"));
    let source = SafetensorsFile::open(&from.join("model.safetensors")).unwrap();
    let names: Vec<&str> = source.tensors().iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(lines.keys().map(String::as_str).collect::<Vec<_>>(), names);
    let block = |part: &str| lines[&format!("transformer.h.0.{part}")].clone();
    let own = |part: &str| format!("encoder.layers.0.self_att.self_attention.{part}");
    let queries = ["project_q.weight", "project_k.weight", "project_v.weight"].map(own).to_vec();
    assert_eq!(block("attn.c_attn.weight"), ("split".to_owned(), queries));
    assert_eq!(block("attn.c_proj.weight"), ("transposed".to_owned(), vec![own("attention_out.weight")]));
    assert_eq!(block("attn.c_proj.bias"), ("copied".to_owned(), vec![own("attention_out.bias")]));
    // The backward pass, to standard output.
    let outcome = fixture.convert(&["own", "back", "--family", "gpt2", "--report", "-"]).succeeded();
    let back = report(&outcome.stdout);
    assert_eq!(
        back[&own("project_k.weight")],
        ("merged".to_owned(), vec!["transformer.h.0.attn.c_attn.weight".to_owned()])
    );
    assert!(outcome.stderr.contains("tensors: "), "{}", outcome.stderr);
    // What is left out is in it too, and nothing is overwritten.
    let several = fixture.path("several");
    std::fs::create_dir(&several).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), several.join(file)).unwrap();
    }
    let further: [(&str, &[usize]); 2] = [("score.weight", &[2, 20]), ("topic.weight", &[3, 20])];
    add_tensors(&several.join("model.safetensors"), &further);
    let error = fixture.convert(&["several", "new", "--leave", "topic.*", "--report", "report.jsonl"]).refused();
    assert!(error.contains("--report") && !fixture.path("new").exists(), "{error}");
    // A report has a place before anything is written, which the directory of the model is and its path is not.
    for (path, want) in
        [("new", "new is the directory"), ("./new/", "is the directory"), ("no/report", "directory no\n")]
    {
        let error = fixture.convert(&["several", "new", "--leave", "topic.*", "--report", path]).refused();
        assert!(error.contains("--report") && error.contains(want) && !fixture.path("new").exists(), "{error}");
    }
    fixture.convert(&["several", "beside", "--leave", "topic.*", "--report", "beside/report.jsonl"]).succeeded();
    assert_eq!(report(&fixture.read("beside/report.jsonl")).len(), names.len() + 2);
    fixture.convert(&["several", "over", "--leave", "topic.*", "--report", "over/config.json"]).refused();
    assert!(!fixture.read("over/config.json").contains("score.weight"));
    let outcome = fixture.convert(&["several", "new", "--leave", "topic.*", "--report", "-"]).succeeded();
    let lines = report(&outcome.stdout);
    assert_eq!(lines["score.weight"], ("left out, of another head".to_owned(), Vec::new()));
    assert_eq!(lines["topic.weight"], ("left out".to_owned(), Vec::new()));
}

#[test]
fn a_gguf_file_with_an_output_table_makes_the_model_untied() {
    let fixture = Fixture::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-center/tests/golden/gguf");
    let mut untied = 0;
    for name in ["llama", "qwen2", "qwen3"] {
        let file = golden.join(format!("{name}.gguf"));
        let file = file.to_str().unwrap();
        let outcome =
            fixture.convert(&[file, name, "--dtype", "f32", "--report", &format!("{name}.jsonl")]).succeeded();
        let config: Value = serde_json::from_str(&fixture.read(&format!("{name}/config.json"))).unwrap();
        let is_untied = config["tie_word_embeddings"] == false;
        untied += usize::from(is_untied);
        let size = |key: &str| config[key].as_u64().unwrap();
        let note = format!("{} more parameters are kept", size("vocab_size") * size("hidden_size"));
        assert_eq!(outcome.stdout.contains(&note), is_untied, "{name}: {}", outcome.stdout);
        let lines = report(&fixture.read(&format!("{name}.jsonl")));
        assert_eq!(lines["token_embd.weight"].1, ["model.embed_tokens.weight"], "{name}");
        assert_eq!(lines.contains_key("output.weight"), is_untied, "{name}");
        let is_quantised = lines.values().any(|(action, _)| action.starts_with("dequantised"));
        let silent = fixture.convert(&[file, &format!("{name}-again")]);
        assert_eq!(silent.stderr.contains("quantised"), is_quantised, "{}", silent.stderr);
    }
    assert!(untied > 0);
}

/// A GGUF file whose quantised tensors are zeros of f16, which follow the data that there were.
fn without_quantised(from: &Path, to: &Path) {
    let mut bytes = std::fs::read(from).unwrap();
    let file = GgufFile::open(from).unwrap();
    // After its name: the number of dimensions, each of them, the type and the offset.
    let type_at = |entry: &TensorEntry, bytes: &[u8]| {
        let name = [&(entry.name.len() as u64).to_le_bytes(), entry.name.as_bytes()].concat();
        let start = bytes.windows(name.len()).position(|window| window == name).unwrap();
        start + name.len() + 4 + 8 * entry.shape.len()
    };
    let entries = file.entries();
    let data = entries.iter().map(|entry| type_at(entry, &bytes) + 12).max().unwrap().next_multiple_of(32);
    for entry in entries {
        if !file.stored(&entry.name).unwrap().is_plain() {
            let at = type_at(entry, &bytes);
            bytes.resize(data + (bytes.len() - data).next_multiple_of(32), 0);
            let offset = (bytes.len() - data) as u64;
            bytes[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
            bytes[at + 4..at + 12].copy_from_slice(&offset.to_le_bytes());
            bytes.resize(bytes.len() + 2 * entry.elements().unwrap(), 0);
        }
    }
    std::fs::write(to, bytes).unwrap();
}

#[test]
fn a_gguf_file_of_f16_whose_norms_are_f32_is_narrowed_with_a_warning() {
    let fixture = Fixture::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-center/tests/golden/gguf/llama.gguf");
    without_quantised(&golden, &fixture.path("plain.gguf"));
    let outcome = fixture.convert(&["plain.gguf", "new", "--report", "report.jsonl"]).succeeded();
    let lines = fixture.read("report.jsonl");
    let wide = lines.lines().filter(|line| serde_json::from_str::<Value>(line).unwrap()["dtype"] == "f32").count();
    let warning = format!("warning: {wide} tensors are stored in f32 and written as f16; --dtype f32 keeps them");
    assert!(wide > 1 && outcome.stderr.contains(&warning), "{outcome:?}");
    assert!(outcome.stdout.contains(&format!("; {wide} narrowed")), "{outcome:?}");
    let outcome = fixture.convert(&["plain.gguf", "wide", "--dtype", "f32"]).succeeded();
    assert!(!outcome.stderr.contains("warning") && !outcome.stdout.contains("narrowed"), "{outcome:?}");
}
