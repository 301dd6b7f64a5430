//! Stages that a run divides by the times of its blocks: which list it records, and what a resumed run does with it.

use super::models::{BERT, GPT2, LLAMA};
use super::{RUN, assert_same, course};
use crate::fixture::{Fixture, Outcome};
use crate::tensor::train;

const BY_TIME: &str = "parallel.partition=time";
const MEASURES: &str = "timing the blocks of the model";

/// The list that a run recorded in its recipe.
fn recorded(fixture: &Fixture, dir: &str) -> Vec<usize> {
    let recipe = fixture.read(&format!("{dir}/recipe.toml"));
    let line = recipe.lines().find(|line| line.starts_with("partition = ")).unwrap_or_else(|| panic!("{recipe}"));
    let list = line.trim_start_matches("partition = [").trim_end_matches(']');
    list.split(", ").map(|count| count.parse().unwrap()).collect()
}

fn on_ranks(fixture: &Fixture, dir: &str, ranks: usize, arguments: &[&str], sets: &[&str]) -> Outcome {
    let (dir, ranks) = (format!("output.dir={dir}"), ranks.to_string());
    let sets = sets.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    fixture.finetune(&["--ranks", &ranks].into_iter().chain(arguments.iter().copied()).chain(sets).collect::<Vec<_>>())
}

#[test]
fn a_partition_by_time_is_recorded_and_trains_as_the_same_list_and_as_one_rank() {
    let fixture = LLAMA.fixture();
    let alone = course(&fixture, "alone", 1, &RUN);
    for (dir, ranks, chunks, layout) in [
        ("1f1b", 2, 2, &["parallel.pipeline=2"][..]),
        ("zb-v", 2, 4, &["parallel.pipeline=2", "parallel.schedule=zb-v"]),
    ] {
        let timed = [layout, &[BY_TIME]].concat();
        assert_same(&fixture, (&alone, &RUN), dir, ranks, &timed);
        let counts = recorded(&fixture, dir);
        assert_eq!((counts.len(), counts.iter().sum::<usize>()), (chunks, 4), "{counts:?}");
        let given = format!("parallel.partition={counts:?}");
        let listed = format!("{dir}-listed");
        assert_same(&fixture, (&alone, &RUN), &listed, ranks, &[layout, &[&given]].concat());
        assert_eq!(recorded(&fixture, &listed), counts);
    }
    // Every rank measures, and all divide alike: ranks that did not would disagree on what crosses their edges.
    let sets = [&RUN[..], &["parallel.pipeline=2", "parallel.tensor=2", "parallel.zero=1", BY_TIME]].concat();
    let fixture = GPT2.fixture();
    let outcome = train(&fixture, "all", 8, &sets).succeeded();
    assert_eq!(outcome.stderr.matches(MEASURES).count(), 1, "one rank speaks: {}", outcome.stderr);
    assert_eq!(recorded(&fixture, "all").iter().sum::<usize>(), 4);
}

#[test]
fn a_resumed_run_takes_the_recorded_list_and_measures_for_other_stages() {
    let fixture = BERT.fixture();
    let saves = ["save.which=last", "train.steps=4", "checkpoint.every=2 steps", "parallel.pipeline=2"];
    let sets = [&RUN[3..], &saves, &[BY_TIME]].concat();
    let whole = on_ranks(&fixture, "whole", 2, &[], &sets).succeeded();
    assert!(whole.stderr.contains(MEASURES), "{}", whole.stderr);
    let weights = |dir: &str| fixture.bytes(&format!("{dir}/model/model.safetensors"));
    // A list that times would hardly choose shows where it came from.
    let chosen = format!("partition = {:?}", recorded(&fixture, "whole"));
    fixture.replace("whole/recipe.toml", &chosen, "partition = [1, 3]");
    let resumed = on_ranks(&fixture, "resumed", 2, &["--resume", "whole@2"], &sets).succeeded();
    assert!(resumed.stderr.contains("going on after step 2"), "{}", resumed.stderr);
    assert!(!resumed.stderr.contains(MEASURES), "{}", resumed.stderr);
    assert_eq!(recorded(&fixture, "resumed"), [1, 3]);
    assert!(weights("resumed") == weights("whole"));
    // A list of two numbers is none for four stages, nor for another number of blocks.
    let four = [&sets[..], &["parallel.pipeline=4", "train.micro_batch_size=2"]].concat();
    let other = on_ranks(&fixture, "other", 4, &["--resume", "whole@2"], &four).succeeded();
    assert!(other.stderr.contains(MEASURES), "{}", other.stderr);
    assert_eq!(recorded(&fixture, "other"), [1, 1, 1, 1]);
    fixture.replace("whole/recipe.toml", "partition = [1, 3]", "partition = [65536, 3]");
    let unfit = on_ranks(&fixture, "unfit", 2, &["--resume", "whole@2"], &sets).succeeded();
    assert!(unfit.stderr.contains(MEASURES), "{}", unfit.stderr);
    assert!(weights("unfit") == weights("whole"));
}

#[test]
fn a_plan_of_a_partition_by_time_says_that_the_run_chooses_it() {
    let fixture = BERT.fixture();
    let sets = ["parallel.pipeline=2", BY_TIME, "train.batch_size=8"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    for arguments in [&["--ranks", "2"][..], &["--ranks", "2", "--layout"]] {
        let plan = fixture.plan(&[arguments, &sets[..]].concat()).succeeded().stdout;
        assert!(plan.contains("by the times that it measures at its start"), "{plan}");
    }
}
