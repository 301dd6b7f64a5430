//! What a run leaves for people: the model card, and errors as they are shown.

use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::Resource;
use bmtrain_dist::Error as DistError;
use model_center::Error;
use model_center::run::{CardData, ExitStatus, ModelCard, render_error};

fn card() -> ModelCard {
    ModelCard {
        name: "reviews".into(),
        base_model: Some("org/mini".into()),
        license: Some("apache-2.0".into()),
        languages: vec!["en".into()],
        task: "classification".into(),
        pipeline_tag: "text-classification".into(),
        data: CardData {
            name: "movie reviews".into(),
            train_samples: 9072,
            train_fingerprint: "ab12".into(),
            eval_samples: 1000,
            eval_fingerprint: "cd34".into(),
            classes: vec!["negative".into(), "positive".into()],
        },
        results: vec![("accuracy".into(), 0.8625), ("loss".into(), f64::NAN)],
        results_before: vec![("accuracy".into(), 0.5)],
        steps: 284,
        best: Some(("accuracy".into(), 200)),
        epochs: 1.0,
        recipe: "[train]\nlr = 5e-5\n".into(),
        recipe_hash: "ff00".into(),
        made_by: "finetune 0.1.0".into(),
        is_adapter: false,
    }
}

#[test]
fn the_card_reads_as_expected() {
    let expected = r#"---
base_model: "org/mini"
license: "apache-2.0"
language:
- "en"
library_name: transformers
pipeline_tag: "text-classification"
tags:
- bmtrain-rs
metrics:
- "accuracy"
model-index:
- name: "reviews"
  results:
  - task:
      type: "text-classification"
    dataset:
      name: "movie reviews"
      type: "movie reviews"
    metrics:
    - type: "accuracy"
      value: 0.8625
---

# reviews

org/mini trained for the task classification by finetune 0.1.0.

## Results

On 1000 samples the model was not trained on.

| metric | before | after |
|---|---|---|
| accuracy | 0.5000 | 0.8625 |
| loss | | NaN |

## Data

movie reviews

| | samples | fingerprint |
|---|---|---|
| train | 9072 | `ab12` |
| evaluation | 1000 | `cd34` |

Classes, in the order of the outputs: "negative", "positive"

## Training

284 optimizer steps, 1.0 epochs; the weights are those after step 200, the best by accuracy, recipe `ff00`:

```toml
[train]
lr = 5e-5
```
"#;
    assert_eq!(card().render(), expected);
}

#[test]
fn hostile_names_cannot_leave_their_place() {
    let text = "x\n---\nlicense: \"mine\"\n|`".to_owned();
    let hostile = ModelCard { name: text.clone(), task: text.clone(), recipe: "# ```\n[train]\n".into(), ..card() };
    let rendered = hostile.render();
    assert_eq!(rendered.lines().filter(|line| *line == "---").count(), 2, "{rendered}");
    assert!(rendered.contains("- name: \"x\\n---\\nlicense: \\\"mine\\\"\\n|`\"\n"), "{rendered}");
    assert!(rendered.contains("````toml\n# ```\n[train]\n````\n"), "{rendered}");
}

#[test]
fn an_error_ends_with_its_exit_code() {
    let error = Error::data("a.jsonl:3:7", "the record has no \"label\"", "add it");
    let text =
        "error[data]: the record has no \"label\"\n  --> a.jsonl:3:7\n  fix: add it\n  exit 3: data or model files";
    assert_eq!(render_error(&error), text);
}

#[test]
fn every_error_group_has_its_code() {
    let io = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let of = |error: Error| ExitStatus::from(&error);
    assert_eq!(of(Error::recipe("", "", "")), ExitStatus::Usage);
    assert_eq!(of(Error::data("", "", "")), ExitStatus::Data);
    assert_eq!(of(Error::model("", "", "")), ExitStatus::Data);
    assert_eq!(of(Error::file("write", "x", io(), "")), ExitStatus::Resources);
    assert_eq!(of(Error::diverged("", "", "")), ExitStatus::Diverged);
    let codes: Vec<u8> = ExitStatus::ALL.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 75, 93, 130]);
    let again: Vec<u8> = ExitStatus::ALL.iter().filter(|s| s.should_requeue()).map(|s| s.code()).collect();
    assert_eq!(again, [6, 75]);
}

#[test]
fn errors_of_the_layers_below_have_place_and_fix_too() {
    let memory = || CoreError::OutOfMemory { backend: "cpu".into(), segment: "activations", requested: 8, in_use: 9 };
    let setting = DistError::setting("schedule", "it is wrong");
    let cases = [
        (Error::Core(memory()), "error[memory]: out of memory: ", "cpu, activations", "exit 5: memory or disk"),
        (Error::Dist(DistError::Core(memory())), "error[memory]: ", "cpu, activations", "train.micro_batch_size"),
        (
            Error::Core(CoreError::NoDevice {
                asked: "cuda".into(),
                reason: "there is none".into(),
                fix: "take cpu".into(),
            }),
            "error[device]: there is none\n",
            "device cuda",
            "fix: take cpu\n  exit 2: usage or recipe",
        ),
        (
            Error::Core(CoreError::Launch {
                place: "rank 0 of 2".into(),
                reason: "it came twice".into(),
                fix: "number them".into(),
            }),
            "error[launch]: it came twice\n",
            "rank 0 of 2",
            "fix: number them\n  exit 2: usage or recipe",
        ),
        (
            Error::Core(CoreError::RankEnded { rank: 1, code: 3, reason: "rank 1 ended: a label".into() }),
            "error[peer]: rank 1 ended: a label\n",
            "rank 1",
            "exit 3: data or model files",
        ),
        (
            Error::Core(CoreError::argument("gemm", "m is 0")),
            "error[internal]: gemm: m is 0\n",
            "operation gemm",
            "exit 1: ",
        ),
        (
            Error::Dist(CoreError::refused("thread of rank 1", Resource::Threads, "try again").into()),
            "error[limit]: the system refused this process: try again; ",
            "thread of rank 1",
            "use fewer ranks and threads (device.threads, --threads, --ranks)\n  exit 5: memory or disk",
        ),
        (Error::Dist(setting), "error[internal]: schedule: it is wrong\n", "schedule", "a defect of the program"),
        (Error::Dist(DistError::parameter("a.b", "has no values")), "error[internal]: ", "parameter a.b", "report it"),
    ];
    for (error, begin, place, further) in cases {
        let text = render_error(&error);
        assert!(text.starts_with(begin) && text.contains(&format!("\n  --> {place}\n  fix: ")), "{text}");
        assert!(text.contains(further) && text.lines().count() == 4, "{text}");
    }
}

#[test]
fn a_file_beyond_the_limit_has_the_limits_fix() {
    let error = |code| Error::file("write", "out", std::io::Error::from_raw_os_error(code), "make room");
    let too_large = render_error(&error(27));
    assert!(too_large.contains("File too large (os error 27); ") && too_large.contains("ulimit -f"), "{too_large}");
    assert!(too_large.ends_with("exit 5: memory or disk") && !too_large.contains("make room"), "{too_large}");
    assert!(render_error(&error(28)).contains("No space left on device (os error 28)\n  --> out\n  fix: make room\n"));
}

#[test]
fn a_long_error_fits_a_screen_and_keeps_its_fix() {
    let reason = (0..100).map(|i| format!("line {i}")).collect::<Vec<_>>().join("\n");
    let text = render_error(&Error::model("x".repeat(5000), reason, "the fix"));
    assert_eq!(text.lines().count(), 12);
    assert!(text.contains("  … 92 more lines\n"), "{text}");
    assert!(text.ends_with("  fix: the fix\n  exit 3: data or model files"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 400));
}
