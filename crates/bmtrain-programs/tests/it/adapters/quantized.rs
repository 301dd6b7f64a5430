//! Updates beside a quantized model.

use super::{ADAPTER, losses, tensors, tune, wide_decoder};
use crate::fixture::program;
use model_center::formats::SafetensorsFile;
use model_center::formats::TensorSource;

#[test]
fn updates_beside_a_quantised_model_are_trained_resumed_and_generated_with() {
    let fixture = wide_decoder();
    let quantised = ["model.path=wide/model", "adapter.quantize=nf4", "train.micro_batch_size=2"];
    let tune =
        |dir: &str, further: &[&str], more: &[&str]| tune(&fixture, dir, further, &[&quantised[..], more].concat());
    let planned = tune("planned", &["--dry-run"], &[]).succeeded();
    let printed = [planned.stdout, planned.stderr].concat();
    assert!(printed.contains("matrices are quantised (8 NF4)"), "{printed}");
    let run = tune("whole", &[], &[]).succeeded();
    assert!(run.stderr.contains("matrices are quantised (8 NF4)"), "{}", run.stderr);
    let whole = (tensors(&fixture, &format!("whole/{ADAPTER}")), losses(&fixture, "whole"));
    // Killed in its third save, and by the same command again: the model is quantised again.
    let died = tune("died", &["--fail-points", "save.mid_shard=kill@3"], &[]);
    assert_eq!(died.code, -1, "{}", died.stderr);
    let again = tune("died", &[], &[]).succeeded();
    assert!(again.stderr.contains("going on after step 4"), "{}", again.stderr);
    assert_eq!(tensors(&fixture, &format!("died/{ADAPTER}")), whole.0);
    // It is not the model in f32 that was trained beside.
    tune("unquantised", &[], &["adapter.quantize=none"]).succeeded();
    let unquantised = losses(&fixture, "unquantised");
    for (ours, f32) in whole.1.iter().zip(&unquantised) {
        assert!(ours != f32 && (ours - f32).abs() < 0.05 * f32, "{:?} for {unquantised:?}", whole.1);
    }
    let fast = "train.gradient_sum=fast";
    tune("fast", &[], &[fast]).succeeded();
    let of_stages = (tensors(&fixture, &format!("fast/{ADAPTER}")), losses(&fixture, "fast"));
    for (dir, further, more, expected) in [
        ("zero", &["--ranks", "2"][..], &["parallel.zero=3"][..], &whole),
        ("recomputed", &[], &["train.recompute=blocks"], &whole),
        ("stages", &["--ranks", "2"], &["parallel.pipeline=2", fast], &of_stages),
    ] {
        tune(dir, further, more).succeeded();
        let ours = (tensors(&fixture, &format!("{dir}/{ADAPTER}")), losses(&fixture, dir));
        assert_eq!(&ours, expected, "{dir}");
    }
    for further in [&["--ranks", "2"][..], &["--ranks", "2", "--dry-run"]] {
        let split = tune("split", further, &["parallel.tensor=2"]);
        assert_eq!(split.code, 2, "{}", split.stderr);
        assert!(split.stderr.contains("at column 32, inside a NF4 block of 64 values"), "{}", split.stderr);
    }
    let generate = |model: &[&str]| {
        let arguments = ["--prompt", "a bad film", "--max-new-tokens", "4", "--greedy"];
        fixture.run(program("generate"), &[model, &arguments].concat()).succeeded().stdout
    };
    assert_eq!(generate(&["whole/model"]), generate(&["wide/model", "--adapter", "whole/model"]));
    // Logits beside the quantised model are others than those beside the model itself.
    fixture.write("in.jsonl", "{\"text\": \"a bad film\"}\n");
    let logits = |out: &str, further: &[&str]| {
        let arguments = ["--model", "wide/model", "--adapter", "whole/model", "--inputs", "in.jsonl", "--out", out];
        fixture.forward(&[&arguments[..], further].concat()).succeeded();
        let file = SafetensorsFile::open(&fixture.path(out)).unwrap();
        let mut values = vec![0.0; file.entry("logits").unwrap().elements().unwrap()];
        file.read_f32("logits", &mut values).unwrap();
        values
    };
    assert_ne!(logits("own.safetensors", &[]), logits("nf4.safetensors", &["--quantize"]));
    let without = ["--model", "wide/model", "--inputs", "in.jsonl", "--out", "out.safetensors", "--quantize"];
    let refused = fixture.forward(&without);
    assert!(refused.code != 0 && refused.stderr.contains("for a model with an adapter"), "{}", refused.stderr);
}
