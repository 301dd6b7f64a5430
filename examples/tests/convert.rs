//! The convert program: to ModelCenter's files and back bit for bit, from GGUF, and what it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use bmtrain_core::{Ctx, Device};
use fixture::{Fixture, golden};
use model_center::hf::{PickleFile, SafetensorsFile, TensorSource};
use model_center::model::{OpenOptions, Registry, TextBatch};
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

fn weights(folder: &Path) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    bits(&SafetensorsFile::open(&folder.join("model.safetensors")).unwrap())
}

fn loss(folder: &Path) -> f32 {
    let device = Device::cpu(1).unwrap();
    let model = Registry::default().open(folder, &OpenOptions::new(&device)).unwrap().model;
    let ids = (0..12).map(|at| (at * at * 5 + 3 * at) % 40).collect();
    let batch = TextBatch::next_words(6, ids, None);
    model.loss(&batch, &mut Ctx::inference(&device)).unwrap().unwrap().value().item().unwrap()
}

#[test]
fn there_and_back_through_model_centers_files_every_bit_is_the_same() {
    for (model, head) in [
        ("gpt2_a", "lm"),
        ("gpt2_a", "untied"),
        ("llama_b", "lm"),
        ("llama_b", "untied"),
        ("gptj_a", "lm"),
        ("opt_a", "lm"),
    ] {
        let fixture = Fixture::new();
        let from = golden(model, head);
        let (own, back) = (fixture.path("own"), fixture.path("back"));
        let path = |path: &Path| path.display().to_string();
        let layout = ["--layout", "model-center", "--dtype", "f32"];
        let said = fixture.convert(&[&[path(&from).as_str(), "own"][..], &layout].concat()).succeeded();
        assert!(said.stdout.contains("written as F32") || said.stdout.contains("written as f32"), "{}", said.stdout);
        let pickle = PickleFile::open(&own.join("pytorch_model.pt")).unwrap();
        let names: Vec<String> = pickle.tensors().iter().map(|entry| entry.name.clone()).collect();
        let stack = if model == "opt_a" { "decoder" } else { "encoder" };
        let query = format!("{stack}.layers.0.self_att.self_attention.project_q.weight");
        for name in ["input_embedding.weight", &query] {
            assert!(names.iter().any(|known| known == name), "{model} {head}: {names:?}");
        }
        assert_eq!(loss(&own).to_bits(), loss(&from).to_bits(), "{model} {head}");
        fixture.convert(&["own", "back", "--dtype", "f32"]).succeeded();
        assert_eq!(weights(&back), weights(&from), "{model} {head}");
    }
}

#[test]
fn a_gguf_file_becomes_a_folder_that_opens() {
    let fixture = Fixture::new();
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model-center/tests/golden/gguf/llama.gguf");
    let said = fixture.convert(&[gguf.to_str().unwrap(), "llama", "--dtype", "f32"]).succeeded();
    assert!(said.stdout.contains("tensors written as"), "{}", said.stdout);
    let written = loss(&fixture.path("llama"));
    assert!(written.is_finite() && written > 0.0, "{written}");
    let error = fixture.convert(&[gguf.to_str().unwrap(), "other", "--dtype", "f32", "--layout", "model-center"]);
    let error = error.refused();
    assert!(error.contains("--layout") && error.contains("second step"), "{error}");
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
        let folder = golden(model, "lm");
        let layout = ["new", "--dtype", "f32", "--layout", "model-center"];
        let error = fixture.convert(&[&[folder.to_str().unwrap()][..], &layout].concat()).refused();
        assert!(error.contains(&format!("a {family} like this is not written in ModelCenter's layout")), "{error}");
    }
    let error = fixture.convert(&["no/such/model", "new", "--dtype", "f32"]).refused();
    assert!(error.contains("no/such/model"), "{error}");
    assert!(!fixture.path("new").exists());
    // Of a head that the class does not have nothing is written unless it is left behind on purpose.
    let folder = fixture.path("headless");
    std::fs::create_dir(&folder).unwrap();
    let from = golden("gpt2_a", "untied");
    std::fs::copy(from.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    std::fs::write(folder.join("config.json"), config.replace("GPT2LMHeadModel", "GPT2Model")).unwrap();
    let error = fixture.convert(&["headless", "new", "--dtype", "f32"]).refused();
    assert!(error.contains("lm_head.weight") && error.contains("--leave"), "{error}");
    let said = fixture.convert(&["headless", "new", "--dtype", "bf16", "--leave"]).succeeded();
    assert!(said.stdout.contains("left behind lm_head.weight"), "{}", said.stdout);
}
