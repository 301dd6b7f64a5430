//! Texts of tensor-parallel ranks.

use super::models::{FAMILIES, divisible};
use crate::fixture::{Fixture, program};
use serde_json::Value;

#[test]
fn texts_are_those_of_one_rank_by_every_method() {
    let fixture = Fixture::new();
    let rows = ["[5, 6, 7]", "[20, 8]", "[11, 12, 13, 14]", "[3]", "[9, 2, 31]"];
    fixture.write("rows.jsonl", &rows.map(|ids| format!("{{\"input_ids\": {ids}}}\n")).concat());
    let methods: [&[&str]; 3] =
        [&[], &["--sample", "--seed", "5", "--top-p", "0.9", "--texts", "2"], &["--beams", "3", "--best", "2"]];
    for (model, head, cuts) in FAMILIES.into_iter().filter(|(model, ..)| ["gpt2_a", "llama_a", "t5_a"].contains(model))
    {
        let directory = divisible(&fixture, (model, head, cuts));
        for method in methods {
            let generate = |out: &str, more: &[&str]| {
                let fixed = ["--input", "rows.jsonl", "--max-new-tokens", "6", "--batch", "2", "--threads", "1"];
                let model = [directory.to_str().unwrap()];
                let arguments = [&model[..], &fixed, &["--output", out, "--overwrite"], method, more].concat();
                fixture.run(program("generate"), &arguments).succeeded();
                let lines = fixture.read(out);
                lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
            };
            let alone = generate("alone.jsonl", &[]);
            assert_eq!(alone.len(), rows.len());
            for layout in [&["--tensor", "2"][..], &["--tensor", "2", "--ranks", "4"]] {
                let shared = generate("shared.jsonl", layout);
                assert_eq!(without_scores(&shared), without_scores(&alone), "{model} {method:?} {layout:?}");
            }
        }
    }
}

/// The rows without scores, which are rounded.
fn without_scores(rows: &[Value]) -> Vec<Value> {
    fn strip(value: &Value) -> Value {
        match value {
            Value::Object(fields) => fields
                .iter()
                .filter(|(name, _)| *name != "score")
                .map(|(name, value)| (name.clone(), strip(value)))
                .collect(),
            Value::Array(items) => items.iter().map(strip).collect(),
            other => other.clone(),
        }
    }
    rows.iter().map(strip).collect()
}

#[test]
fn a_text_is_streamed_once() {
    let fixture = Fixture::decoder();
    let prompt = ["--prompt", "the film was", "--max-new-tokens", "8"];
    let alone = fixture.generate(&prompt).succeeded();
    for tensor in ["2", "4"] {
        let shared = fixture.generate(&[&prompt[..], &["--tensor", tensor]].concat()).succeeded();
        assert_eq!(shared.stdout, alone.stdout);
    }
}
