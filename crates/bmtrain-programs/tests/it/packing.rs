//! `data.packing`: samples of mixed lengths joined to one sequence train as the padded ones do, on any layout of ranks.

use crate::fixture::Fixture;
use crate::tensor::{UNSAVED, records, train};
use serde_json::{Value, json};

/// Texts of 1 to 9 tokens after prompts of 1 to 4, for a tiny GPT-2 with 19 positions.
fn fixture() -> Fixture {
    let fixture = Fixture::decoder();
    let words = ["good", "the", "film", "bad", "plot", "is", "a", "very", "end", "cast", "of"];
    let text = |first: usize, count: usize| {
        (0..count).map(|at| words[(first + at * at) % words.len()]).collect::<Vec<_>>().join(" ")
    };
    let line = |i: usize| json!({"prompt": text(i, 1 + i % 4), "text": text(i + 3, 1 + i * 5 % 9)}).to_string() + "\n";
    for (file, count) in [("train.jsonl", 24), ("eval.jsonl", 8)] {
        fixture.write(file, &(0..count).map(line).collect::<String>());
    }
    fixture.replace("recipe.toml", "\"classification\"", "\"language\"");
    fixture.replace("recipe.toml", "max_length = 16\n", "max_length = 16\ncolumns.prompt = \"prompt\"\n");
    fixture
}

/// Without dropout, whose masks are addressed by position in the batch.
const SETS: [&str; 5] = [
    "model.hidden_dropout=0",
    "model.attention_dropout=0",
    "train.batch_size=8",
    "train.micro_batch_size=4",
    "eval.every=2 steps",
];

fn assert_close(what: &str, ours: &Value, theirs: &Value, tolerance: f64) {
    let (a, b) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
    assert!((a - b).abs() <= tolerance * b.abs(), "{what}: {a} and {b}");
}

/// The same steps and evaluations, up to sums in another order.
pub fn assert_same_course(fixture: &Fixture, dir: &str, other: &str, tolerance: f64) {
    let (ours, theirs) = (records(fixture, dir, "step"), records(fixture, other, "step"));
    assert_eq!((ours.len(), theirs.len()), (4, 4));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        for exact in ["step", "samples", "tokens", "batch"] {
            assert_eq!(ours[exact], theirs[exact], "{dir}: {exact}");
        }
        for name in ["loss", "grad_norm"] {
            // From the second step on the optimizer has divided differences by small gradients.
            let tolerance = if theirs["step"] == 1 { tolerance } else { 1e-5 };
            assert_close(&format!("{dir}: {name} of step {}", theirs["step"]), &ours[name], &theirs[name], tolerance);
        }
    }
    let (ours, theirs) = (records(fixture, dir, "eval"), records(fixture, other, "eval"));
    assert!(!theirs.is_empty() && ours.len() == theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_close(&format!("{dir}: evaluation"), &ours["metrics"]["loss"], &theirs["metrics"]["loss"], 1e-5);
    }
}

#[test]
fn packed_samples_train_as_padded_ones() {
    let fixture = fixture();
    let sets = [&UNSAVED[..], &SETS].concat();
    train(&fixture, "padded", 1, &sets).succeeded();
    for (dir, recompute) in [("packed", "none"), ("blocks", "blocks"), ("attention", "attention")] {
        let recompute = format!("train.recompute={recompute}");
        train(&fixture, dir, 1, &[&sets[..], &["data.packing=true", &recompute]].concat()).succeeded();
        assert_same_course(&fixture, dir, "padded", 1e-6);
    }
}

#[test]
fn packed_samples_train_alike_on_every_layout() {
    let fixture = fixture();
    let sets = [&UNSAVED[..], &SETS, &["data.packing=true"]].concat();
    train(&fixture, "alone", 1, &sets).succeeded();
    let layouts: [(&str, usize, &[&str]); 4] = [
        ("zero", 2, &["parallel.zero=3"]),
        ("tensor", 2, &["parallel.tensor=2"]),
        ("sequence", 2, &["parallel.tensor=2", "parallel.sequence=true"]),
        ("pipeline", 2, &["parallel.pipeline=2", "train.recompute=blocks"]),
    ];
    for (dir, ranks, layout) in layouts {
        train(&fixture, dir, ranks, &[&sets[..], layout].concat()).succeeded();
        assert_same_course(&fixture, dir, "alone", 1e-5);
    }
}
