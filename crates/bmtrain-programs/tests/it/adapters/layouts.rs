//! Adapters in every layout of ranks: the updates, losses and texts of one rank.

use super::{ADAPTER, difference, losses, tensors, tune};
use crate::fixture::{Fixture, program};

#[test]
fn layouts_train_the_updates_of_one_rank() {
    let fixture = Fixture::decoder();
    let sets = ["adapter.dropout=0.1", "checkpoint.every=never", "checkpoint.minutes=0", "train.micro_batch_size=2"];
    let tune = |dir: &str, further: &[&str], more: &[&str]| {
        tune(&fixture, dir, further, &[&sets[..], more].concat()).succeeded();
        (tensors(&fixture, &format!("{dir}/{ADAPTER}")), losses(&fixture, dir))
    };
    let (alone, expected) = tune("alone", &[], &[]);
    assert!(expected[5] < expected[0], "{expected:?}");
    // Data-parallel ranks with elastic sums, and pipeline stages, have the bits of one rank.
    let fast = "train.gradient_sum=fast";
    let of_stages = tune("fast", &[], &[fast]);
    let of_one = (alone, expected);
    for (dir, further, more, expected) in [
        ("zero", &["--ranks", "2"][..], &["parallel.zero=3"][..], &of_one),
        ("stages", &["--ranks", "2"], &["parallel.pipeline=2", fast], &of_stages),
        ("offload", &[], &["train.offload=true", "train.recompute=blocks"], &of_one),
    ] {
        assert_eq!(&tune(dir, further, more), expected, "{dir}");
    }
    let (alone, expected) = of_one;
    for (dir, more) in
        [("tensor", &["parallel.tensor=2"][..]), ("tokens", &["parallel.tensor=2", "parallel.sequence=true"])]
    {
        let (ours, losses) = tune(dir, &["--ranks", "2"], more);
        for (ours, expected) in losses.iter().zip(&expected) {
            assert!((ours - expected).abs() <= 1e-5 * expected, "{dir}: {losses:?} for {expected:?}");
        }
        let apart = difference(&ours, &alone);
        assert!(apart <= 1e-3, "{dir}: {apart}");
    }
}

/// Keys and values of virtual tokens in each layer, and bottlenecks after layers: what cannot be merged.
#[test]
fn prefixes_and_bottlenecks_are_trained_in_every_layout_and_generated_with() {
    let prefix = ["adapter.method=prefix", "adapter.virtual_tokens=4", "train.lr=1e-1"];
    trained_in_every_layout(&prefix, "keys and values of 4 virtual tokens before a sequence, in 2 layers");
    let bottleneck = ["adapter.method=bottleneck", "adapter.bottleneck_size=3", "train.lr=1e-2"];
    trained_in_every_layout(&bottleneck, "bottlenecks of 3 values on 4 c_proj");
}

fn trained_in_every_layout(fixed: &[&str], described: &str) {
    let fixture = Fixture::decoder();
    let task = ["data.task=language", "data.max_length=12", "checkpoint.every=2 steps", "train.micro_batch_size=2"];
    let task = [&task[..], &["train.steps=6"]].concat();
    let elastic = "train.gradient_sum=elastic";
    let tune = |dir: &str, further: &[&str], more: &[&str]| {
        let dir = format!("output.dir={dir}");
        let all = fixed.iter().chain(&task).chain(more).copied().chain([dir.as_str()]);
        let arguments: Vec<&str> = further.iter().copied().chain(all.flat_map(|set| ["--set", set])).collect();
        fixture.finetune(&arguments)
    };
    let result = |dir: &str| (tensors(&fixture, &format!("{dir}/{ADAPTER}")), losses(&fixture, dir));
    let run = tune("whole", &[], &[elastic]).succeeded();
    assert!(run.stderr.contains(described), "{}", run.stderr);
    let whole = result("whole");
    let is_of_adapter = |name: &str| name == "prompt_embeddings" || name.contains(".c_proj.bottleneck.");
    assert!(whole.0.iter().all(|(name, _)| is_of_adapter(name)), "{:?}", whole.0);
    assert!(whole.1[5] < whole.1[0], "{:?}", whole.1);
    let died = tune("died", &["--fail-points", "save.mid_shard=kill@3"], &[elastic]);
    assert_eq!(died.code, -1, "{}", died.stderr);
    let again = tune("died", &[], &[elastic]).succeeded();
    assert!(again.stderr.contains("going on after step 4"), "{}", again.stderr);
    assert_eq!(result("died").0, whole.0);
    tune("fast", &[], &[]).succeeded();
    let of_stages = result("fast");
    for (dir, further, more, expected) in [
        ("zero", &["--ranks", "2"][..], &["parallel.zero=3", elastic][..], &whole),
        ("stages", &["--ranks", "2"], &["parallel.pipeline=2"], &of_stages),
        ("offload", &[], &["train.offload=true", "train.recompute=blocks", elastic], &whole),
        ("attention", &[], &["train.recompute=attention", elastic], &whole),
    ] {
        tune(dir, further, more).succeeded();
        assert_eq!(&result(dir), expected, "{dir}");
    }
    for (dir, more) in [("tensor", &[][..]), ("tokens", &["parallel.sequence=true"])] {
        tune(dir, &["--ranks", "2"], &[&["parallel.tensor=2", elastic], more].concat()).succeeded();
        let (ours, course) = result(dir);
        for (ours, expected) in course.iter().zip(&whole.1) {
            assert!((ours - expected).abs() <= 1e-5 * expected, "{dir}: {course:?} for {:?}", whole.1);
        }
        assert!(difference(&ours, &whole.0) <= 1e-3, "{dir}");
    }
    fixture.run(program("ckpt"), &["export", "whole/checkpoints", "exported"]).succeeded();
    assert_eq!(tensors(&fixture, "exported/adapter_model.safetensors"), whole.0);

    let text = ["--prompt", "it is a bad plot", "--max-new-tokens", "5", "--threads", "1"];
    let generate =
        |arguments: &[&str]| fixture.run(program("generate"), &[arguments, &text[..]].concat()).succeeded().stdout;
    let generated = generate(&["whole/model"]);
    assert_eq!(generate(&["model", "--adapter", "exported"]), generated);
    assert_ne!(generate(&["model"]), generated);
    let refused = fixture.convert(&["model", "merged", "--merge", "whole/model"]);
    assert!(refused.code != 0 && refused.stderr.contains("cannot be merged"), "{}", refused.stderr);
    let error = tune("out", &["--dry-run"], &["save.merged=true", "adapter.rank=4"]).refused();
    assert!(error.contains("`save.merged` writes a model alone") || error.contains("are not linear"), "{error}");
    assert!(error.contains("`adapter.rank` has no effect: it is for adapter.method = \"lora\""), "{error}");
}
