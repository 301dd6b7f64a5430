//! Averages of the weights in runs: what they change, and that a resumed run has the same; optimizers beside Adam in
//! the programs.

use crate::fixture::Fixture;
use crate::fixture::program;
use crate::tensor::records;
use serde_json::Value;

fn train(fixture: &Fixture, dir: &str, arguments: &[&str], sets: &[&str]) -> i32 {
    let dir = format!("output.dir={dir}");
    let base = ["train.steps=6", "log.every=1", "eval.every=2 steps", "save.which=both", dir.as_str()];
    let sets = base.iter().chain(sets).flat_map(|set| ["--set", *set]).collect::<Vec<_>>();
    fixture.finetune(&[arguments, &sets].concat()).code
}

/// Losses of the steps and of the evaluations.
fn course(fixture: &Fixture, dir: &str) -> [Vec<Value>; 2] {
    let of = |kind: &str, value: &dyn Fn(&Value) -> Value| records(fixture, dir, kind).iter().map(value).collect();
    [of("step", &|step| step["loss"].clone()), of("eval", &|eval| eval["metrics"]["loss"].clone())]
}

fn models(fixture: &Fixture, dir: &str) -> [Vec<u8>; 2] {
    ["model", "model-last"].map(|model| fixture.bytes(&format!("{dir}/{model}/model.safetensors")))
}

#[test]
fn averages_are_evaluated_and_written_resumed_and_exported() {
    for average in ["train.ema=0.75", "train.average_from=3"] {
        let fixture = Fixture::new();
        let lr = "train.lr=0.01";
        assert_eq!(train(&fixture, "plain", &[], &[lr]), 0);
        assert_eq!(train(&fixture, "averaged", &[], &[lr, average]), 0);
        let [plain, averaged] = ["plain", "averaged"].map(|dir| course(&fixture, dir));
        assert_eq!(plain[0], averaged[0], "{average}: training is the same");
        assert!(plain[1][0] == averaged[1][0] && plain[1][3] != averaged[1][3], "{average}: {plain:?} {averaged:?}");
        assert_ne!(models(&fixture, "plain")[1], models(&fixture, "averaged")[1]);
        // Cut off and continued, once on two ranks whose values are sharded.
        for (dir, more) in [("resumed", &[][..]), ("ranks", &["parallel.zero=3", "train.gradient_sum=elastic"])] {
            let ranks = if dir == "ranks" { ["--ranks", "2"] } else { ["--ranks", "1"] };
            let sets = [&[lr, average, "checkpoint.every=3 steps"], more].concat();
            let first = [&ranks[..], &["--exit-after-steps", "3"]].concat();
            assert_eq!(train(&fixture, dir, &first, &sets), 75);
            assert_eq!(train(&fixture, dir, &ranks, &sets), 0);
            if dir == "resumed" {
                assert_eq!(models(&fixture, dir), models(&fixture, "averaged"), "{average}");
                assert_eq!(course(&fixture, dir)[1].last(), averaged[1].last());
            }
        }
        // The last checkpoint as a model has the averages too.
        let end = ["checkpoint.every=6 steps", lr, average];
        assert_eq!(train(&fixture, "saved", &[], &end), 0);
        fixture.run(program("ckpt"), &["export", "saved", "exported"]).succeeded();
        let exported = fixture.bytes("exported/model.safetensors");
        assert!(exported == models(&fixture, "saved")[1] && exported == models(&fixture, "averaged")[1], "{average}");
    }
}

#[test]
fn every_new_optimizer_trains_resumes_and_is_planned() {
    let fixture = Fixture::new();
    let cases = [
        ("adafactor", &["train.optimizer=adafactor", "train.scale_parameter=true", "train.lr=0.05"][..]),
        ("adamw-8bit", &["train.optimizer=adamw-8bit", "train.lr=0.003"]),
        ("sgd", &["train.optimizer=sgd", "train.momentum=0.9", "train.lr=0.05", "train.offload=true"]),
    ];
    for (name, sets) in cases {
        assert_eq!(train(&fixture, name, &[], sets), 0, "{name}");
        let losses = |name: &str| -> Vec<f64> {
            course(&fixture, name)[1].iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let ours = losses(name);
        match name {
            "adamw-8bit" => {
                assert_eq!(train(&fixture, "adamw", &[], &["train.optimizer=adamw", "train.lr=0.003"]), 0);
                for (ours, expected) in ours.iter().zip(losses("adamw")) {
                    assert!((ours - expected).abs() <= 0.01 * expected, "{ours} for AdamW's {expected}");
                }
            }
            "sgd" => {
                let sets = [&sets[..3], &["train.offload=false"]].concat();
                assert_eq!(train(&fixture, "on-device", &[], &sets), 0);
                assert_eq!(ours, losses("on-device"), "offloading changes no bit");
            }
            _ => assert!(ours.last() < ours.first(), "{name} learns: {ours:?}"),
        }
        let resumed = format!("{name}-resumed");
        assert_eq!(train(&fixture, &resumed, &["--exit-after-steps", "3"], sets), 75);
        assert_eq!(train(&fixture, &resumed, &[], sets), 0);
        assert_eq!(models(&fixture, &resumed), models(&fixture, name), "{name}");
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let plan = fixture.plan(&sets).succeeded().stdout;
        assert!(plan.contains("optimizer"), "{plan}");
    }
}
