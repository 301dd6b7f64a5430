//! What a resumed run reads again beside its checkpoint: another content is refused or used by name, never in silence.

use super::{Fixture, Outcome, result, train};
use crate::fixture::program;
use serde_json::Value;

const LORA: [&str; 5] =
    ["data.task=language", "adapter.method=lora", "adapter.rank=2", "log.every=1", "train.micro_batch_size=4"];

fn refused(fixture: &Fixture, sets: &[&str], file: &str, what: &str) {
    let outcome = train(fixture, "run", &[], sets);
    assert_eq!(outcome.code, 3, "{file}: {}", outcome.stderr);
    let named = outcome.stderr.contains(file) && outcome.stderr.contains(what);
    assert!(named && outcome.stderr.contains("--accept-change"), "{file}, {what}: {}", outcome.stderr);
}

fn stop(fixture: &Fixture, dir: &str, sets: &[&str]) {
    let stopped = train(fixture, dir, &["--exit-after-steps", "2"], sets);
    assert_eq!(stopped.code, 75, "{}", stopped.stderr);
}

#[test]
fn other_files_of_the_model_are_refused_by_name_and_accepted_on_request_alone() {
    let fixture = Fixture::decoder();
    train(&fixture, "whole", &[], &LORA).succeeded();
    stop(&fixture, "run", &LORA);
    let before = fixture.snapshot();
    // Weights of the same size, whatever their time; a field; files that are new or longer.
    let weights = fixture.bytes("model/model.safetensors");
    fixture.set_value("model/model.safetensors", "transformer.wte.weight", 5, 0.5);
    refused(&fixture, &LORA, "model/model.safetensors", "BLAKE3 hash");
    fixture.write_bytes("model/model.safetensors", &weights);
    let config = fixture.read("model/config.json");
    let mut other: Value = serde_json::from_str(&config).unwrap();
    other["layer_norm_epsilon"] = 0.5.into();
    fixture.write("model/config.json", &other.to_string());
    fixture.write("model/chat_template.jinja", "{{ messages }}");
    refused(
        &fixture,
        &LORA,
        "--> model/chat_template.jinja",
        "it was not there, or not read, then; also model/config.json: it ",
    );
    std::fs::remove_file(fixture.path("model/chat_template.jinja")).unwrap();
    // Nothing was touched, and the files as they were are the run that it was.
    let accepted = fixture.read("model/config.json");
    fixture.write("model/config.json", &config);
    assert!(fixture.snapshot() == before);
    std::fs::create_dir(fixture.path("copy")).unwrap();
    super::best::copy(&fixture.path("run"), &fixture.path("copy/run"));
    train(&fixture, "run", &[], &LORA).succeeded();
    let tensors = |dir: &str| fixture.bytes(&format!("{dir}/model/adapter_model.safetensors"));
    assert!(tensors("run") == tensors("whole"));
    fixture.write("model/config.json", &accepted);
    let again = train(&fixture, "copy/run", &["--accept-change"], &LORA).succeeded();
    assert!(again.stderr.contains("warning: another file than before: model/config.json"), "{}", again.stderr);
    assert!(fixture.read("copy/run/metrics.jsonl").contains("\"changed\":\"model/config.json: it has "));
    assert!(tensors("copy/run") != tensors("whole"));
}

#[test]
fn full_runs_read_no_weights_again_and_refuse_another_configuration_and_test_data() {
    let fixture = Fixture::new();
    train(&fixture, "whole", &[], &[]).succeeded();
    stop(&fixture, "run", &[]);
    let config = fixture.read("model/config.json");
    fixture.write("model/config.json", &config.replace("1e-12", "1e-2"));
    assert_ne!(fixture.read("model/config.json"), config);
    refused(&fixture, &[], "model/config.json", "bytes, and had");
    fixture.write("model/config.json", &config);
    fixture.set_value("model/model.safetensors", "bert.embeddings.word_embeddings.weight", 5, 0.5);
    train(&fixture, "run", &[], &[]).succeeded();
    assert!(result(&fixture, "run").0 == result(&fixture, "whole").0);
    let fixture = crate::pretrain::fixture();
    let pretrain = |further: &[&str]| {
        let arguments = ["--recipe", "recipe.toml", "--set", "data.test=web", "--set", "data.split=8,2,0"];
        fixture.run(program("pretrain"), &[&arguments[..], further].concat())
    };
    let stopped = pretrain(&["--exit-after-steps", "2"]);
    assert_eq!(stopped.code, 75, "{}", stopped.stderr);
    let mut ids = fixture.bytes("web.bin");
    ids[2] ^= 1;
    fixture.write_bytes("web.bin", &ids);
    let error = pretrain(&[]).refused();
    assert!(error.contains("test data") && error.contains("its samples are others"), "{error}");
}

#[test]
fn an_end_that_nothing_confirms_and_lost_metrics_are_said_and_the_run_continues() {
    let fixture = Fixture::new();
    let sets = ["checkpoint.every=never"];
    train(&fixture, "whole", &[], &sets).succeeded();
    stop(&fixture, "run", &sets);
    fixture.replace("run/run.json", "\"finished\": false", "\"finished\": true");
    fixture.write("run/metrics.jsonl", "");
    let again: Outcome = train(&fixture, "run", &[], &sets).succeeded();
    for part in [
        "warning: run.json states that the run is finished, but neither it nor the metrics record an end",
        "run/metrics.jsonl has 0 bytes, and had ",
        "going on after step 2",
    ] {
        assert!(again.stderr.contains(part), "no {part:?} in {}", again.stderr);
    }
    assert!(fixture.bytes("run/model/model.safetensors") == fixture.bytes("whole/model/model.safetensors"));
    // An earlier version's: the metrics confirm the end.
    let marker = fixture.read("run/run.json");
    let mut old: Value = serde_json::from_str(&marker).unwrap();
    assert_eq!(old["ended"], serde_json::json!({"step": 8, "reason": "steps"}));
    old.as_object_mut().unwrap().remove("ended");
    fixture.write("run/run.json", &old.to_string());
    assert!(train(&fixture, "run", &[], &sets).succeeded().stderr.contains("is finished"));
}
