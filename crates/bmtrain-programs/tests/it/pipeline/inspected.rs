//! `train.inspect_every` over stages: the tables of one rank, row by row and figure by figure.

use super::models::{BERT, Deep, GPT2, LLAMA, T5};
use super::{RUN, on_stages};
use crate::tensor::train;

/// What a run printed of the steps that it looked at.
fn tables(fixture: &crate::fixture::Fixture, dir: &str, ranks: usize, sets: &[&str]) -> String {
    let outcome = train(fixture, dir, ranks, sets).succeeded();
    let begin = outcome.stderr.find("hidden states of step").unwrap_or_else(|| panic!("{}", outcome.stderr));
    // What follows is the line of the step.
    outcome.stderr[begin..].lines().take_while(|line| !line.contains("loss ")).collect::<Vec<_>>().join("\n")
}

fn check(model: &Deep, more: &[&str]) {
    let fixture = model.fixture();
    let sets = [&RUN[..], &["train.steps=2", "train.inspect_every=2"], more].concat();
    let alone = tables(&fixture, "alone", 1, &sets);
    assert!(alone.contains("hidden states of step 2") && alone.contains("parameters before step 2"), "{alone}");
    assert!(alone.lines().filter(|line| line.contains(".hidden ")).count() > 3, "{alone}");
    for (stages, schedule) in [(2, "1f1b"), (2, "interleaved"), (2, "zb-v"), (4, "zb-1p")] {
        let layout = on_stages(stages, schedule);
        let layout = [&sets[..], &layout.each_ref().map(String::as_str)].concat();
        let staged = tables(&fixture, &format!("{stages}{schedule}"), stages, &layout);
        assert_eq!(staged, alone, "{stages} stages, {schedule}");
    }
}

#[test]
fn tables_of_a_tied_decoder_over_stages_are_those_of_one_rank() {
    check(&GPT2, &[]);
}

#[test]
fn tables_of_recomputed_blocks_over_stages_are_those_of_one_rank() {
    check(&LLAMA, &["train.recompute=true"]);
}

#[test]
fn tables_of_an_encoder_decoder_over_stages_are_those_of_one_rank() {
    check(&T5, &[]);
}

/// Beside tensor-parallel and data-parallel ranks: the same rows, as their sums have other terms.
#[test]
fn tables_over_three_dimensions_have_the_rows_of_one_rank() {
    let fixture = BERT.fixture();
    let sets = [&RUN[..], &["train.steps=2", "train.inspect_every=2"]].concat();
    let names = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let alone = tables(&fixture, "alone", 1, &sets);
    let layout = ["parallel.pipeline=2", "parallel.tensor=2", "parallel.zero=1"];
    let all = tables(&fixture, "all", 8, &[&sets[..], &layout].concat());
    assert_eq!(names(&all), names(&alone));
}
