//! The best weights of a run, and what its card and its last lines report of them.

use super::{Fixture, records, train};

#[test]
fn best_and_last_weights_are_both_kept_on_request() {
    let fixture = Fixture::new();
    let more = ["save.which=both", "eval.every=1 steps", "train.lr=3e-2", "train.steps=8", "checkpoint.every=3 steps"];
    train(&fixture, "run", &more);
    let evals = records(&fixture, "run", "eval");
    let best = evals.iter().rfind(|eval| eval["best"] == true).unwrap();
    let last = evals.last().unwrap();
    assert_ne!(best["step"], last["step"], "no evaluation here is better than the last one");
    for (model, eval) in [("model", best), ("model-last", last)] {
        assert!(!fixture.bytes(&format!("run/{model}/model.safetensors")).is_empty());
        let card = fixture.read(&format!("run/{model}/README.md"));
        for metric in ["accuracy", "f1", "loss"] {
            let row = card.lines().find(|line| line.starts_with(&format!("| {metric} |"))).unwrap();
            let shown = format!(" {:.4} |", eval["metrics"][metric].as_f64().unwrap());
            assert!(row.ends_with(&shown), "{model}: {row} does not end with {shown}");
        }
        let is_named = card.contains(&format!("the weights are those after step {}", best["step"]));
        assert_eq!(is_named, model == "model", "{card}");
        assert!(card.contains("Classes, in the order of the outputs: \"negative\", \"positive\""), "{card}");
    }
}

#[test]
fn the_results_of_the_best_weights_are_known_after_a_resume() {
    let fixture = Fixture::new();
    let more = ["eval.every=1 steps", "train.lr=3e-2", "train.steps=8", "checkpoint.every=1 steps"];
    train(&fixture, "whole", &more);
    let sets: Vec<String> = more.iter().map(|set| (*set).to_owned()).chain(["output.dir=parts".to_owned()]).collect();
    let mut arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set.as_str()]).collect();
    arguments.extend(["--exit-after-steps", "7"]);
    assert_eq!(fixture.finetune(&arguments).code, 75);
    arguments.truncate(arguments.len() - 2);
    let outcome = fixture.finetune(&arguments).succeeded();
    assert!(outcome.stdout.contains("best:   accuracy"), "{}", outcome.stdout);
    assert_eq!(fixture.read("whole/model/README.md"), fixture.read("parts/model/README.md"));
}
