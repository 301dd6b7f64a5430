//! Task `sft` in the programs: conversations, packed and padded, on any layout of ranks; data sets; the preview.

use crate::fixture::program;
use crate::fixture::{Fixture, Outcome};
use crate::packing::assert_same_course;
use crate::tensor::{UNSAVED, records, train};
use serde_json::{Value, json};

/// A token of BERT's vocabulary ends a turn; the generation prompt is the assistant's name.
const TEMPLATE: &str = "{% for m in messages %}{{ ('he ' if m.role == 'assistant' else 'she ') + m.content + ' [SEP] ' \
     }}{% endfor %}{% if add_generation_prompt %}{{ 'he ' }}{% endif %}";

const WORDS: [&str; 11] = ["good", "the", "film", "bad", "plot", "is", "a", "very", "end", "cast", "of"];

fn text(first: usize, count: usize) -> String {
    (0..count).map(|at| WORDS[(first + at * at) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

/// A conversation of one or two turns.
fn chat(at: usize) -> Value {
    let turn = |at: usize| {
        [
            json!({"role": "user", "content": text(at, 1 + at % 3)}),
            json!({"role": "assistant", "content": text(at + 5, 1 + at * 5 % 3)}),
        ]
    };
    let turns = if at.is_multiple_of(2) { turn(at).to_vec() } else { [turn(at), turn(at + 1)].concat() };
    json!({"messages": turns})
}

fn lines(count: usize, record: impl Fn(usize) -> Value) -> String {
    (0..count).map(|at| record(at).to_string() + "\n").collect()
}

/// Conversations for a tiny GPT-2 with a chat template.
fn fixture() -> Fixture {
    let fixture = Fixture::decoder();
    fixture.write("model/chat_template.jinja", TEMPLATE);
    fixture.write("train.jsonl", &lines(24, chat));
    fixture.write("eval.jsonl", &lines(8, chat));
    fixture.replace("recipe.toml", "\"classification\"", "\"sft\"");
    fixture
}

fn data(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("data"), arguments)
}

/// Without dropout, whose masks are addressed by position in the batch.
const SETS: [&str; 5] = [
    "model.hidden_dropout=0",
    "model.attention_dropout=0",
    "train.batch_size=8",
    "train.micro_batch_size=4",
    "eval.every=2 steps",
];

#[test]
fn packed_conversations_train_as_padded_ones_on_one_rank_and_on_two() {
    let fixture = fixture();
    let sets = [&UNSAVED[..], &SETS].concat();
    train(&fixture, "padded", 1, &sets).succeeded();
    let steps = records(&fixture, "padded", "step");
    assert!(steps[3]["loss"].as_f64().unwrap() < steps[0]["loss"].as_f64().unwrap());
    train(&fixture, "packed", 1, &[&sets[..], &["data.packing=true"]].concat()).succeeded();
    assert_same_course(&fixture, "packed", "padded", 1e-6);
    train(&fixture, "two", 2, &[&sets[..], &["data.packing=true", "parallel.zero=3"]].concat()).succeeded();
    assert_same_course(&fixture, "two", "padded", 1e-6);
    let evals = ["padded", "packed"].map(|dir| records(&fixture, dir, "eval"));
    let loss = |record: &Value| record["metrics"]["loss"].as_f64().unwrap();
    assert!((loss(&evals[0][0]) - loss(&evals[1][0])).abs() < 1e-5 * loss(&evals[0][0]));
}

#[test]
fn what_is_learned_changes_the_loss_and_a_model_without_a_template_is_refused() {
    let fixture = fixture();
    let sets = [&UNSAVED[..], &SETS].concat();
    let loss = |dir: &str, set: &str| {
        train(&fixture, dir, 1, &[&sets[..], &[set]].concat()).succeeded();
        records(&fixture, dir, "step")[0]["loss"].as_f64().unwrap()
    };
    let losses = [loss("a", "data.loss_on=assistant"), loss("b", "data.loss_on=last"), loss("c", "data.loss_on=all")];
    assert!(losses[0] != losses[1] && losses[1] != losses[2] && losses[0] != losses[2], "{losses:?}");
    std::fs::remove_file(fixture.path("model/chat_template.jinja")).unwrap();
    let error = fixture.finetune(&["--dry-run"]).refused();
    assert!(error.contains("the model has no chat template"), "{error}");
}

#[test]
fn data_sets_of_a_recipe_are_mixed_in_the_same_order_on_any_number_of_ranks_and_after_a_resume() {
    let fixture = fixture();
    let recipe = fixture.read("recipe.toml");
    let pair = |at: usize| json!({"input": text(at, 2), "output": text(at + 1, 2)});
    fixture.write("pairs/train/a.jsonl", &lines(20, pair));
    fixture.write("pairs/val/a.jsonl", &lines(4, pair));
    let sets = "[[data.sets]]\npath = \"train.jsonl\"\neval = \"eval.jsonl\"\nproportion = 3\n\n[[data.sets]]\n\
                path = \"pairs\"\ninput_format = \"__input__ yes\"\nmax_output_tokens = 2\n\n[train]";
    let files = "train = \"train.jsonl\"\neval = \"eval.jsonl\"\n";
    fixture.write("recipe.toml", &recipe.replace(files, "").replace("[train]", sets));
    let fixed = ["train.steps=8", "train.batch_size=4", "train.micro_batch_size=1", "train.gradient_sum=elastic"];
    let run = |dir: &str, ranks: &str, more: &[&str]| {
        let out = format!("output.dir={dir}");
        let arguments = [&fixed[..], &[out.as_str(), "--ranks", ranks], more].concat();
        fixture.finetune(&arguments)
    };
    run("one", "1", &[]).succeeded();
    let course = |dir: &str| {
        let steps = records(&fixture, dir, "step");
        steps
            .iter()
            .map(|step| (step["step"].clone(), step["loss"].clone(), step["tokens"].clone()))
            .collect::<Vec<_>>()
    };
    let alone = course("one");
    assert_eq!(alone.len(), 8);
    for ranks in ["2", "4"] {
        run(ranks, ranks, &[]).succeeded();
        assert_eq!(course(ranks), alone, "{ranks} ranks");
    }
    assert_eq!(run("cut", "2", &["--exit-after-steps", "3"]).code, 75);
    run("cut", "1", &[]).succeeded();
    assert_eq!(course("cut"), alone);
    // The recipe of a run is complete.
    let kept = fixture.read("one/recipe.toml");
    assert!(kept.contains("input_format = \"__input__ yes\"") && kept.contains("proportion = 3.0"), "{kept}");
    let again = fixture.run(program("finetune"), &["--recipe", "one/recipe.toml", "--dry-run", "--overwrite"]);
    again.succeeded();
}

#[test]
fn the_preview_shows_ids_text_and_mask_without_escape_codes_where_it_is_piped() {
    let fixture = fixture();
    let shown = data(&fixture, &["preview", "2", "--recipe", "recipe.toml"]).succeeded().stdout;
    assert!(!shown.contains('\u{1b}'), "{shown}");
    assert!(shown.contains("sample 0: ") && shown.contains("sample 1: ") && !shown.contains("sample 2: "), "{shown}");
    assert!(shown.contains("she good [SEP] he[[is [SEP]]]"), "{shown}");
    assert!(
        shown.contains("24 samples, ") && shown.contains("16.7 % truncated") && shown.contains("  up to "),
        "{shown}"
    );
    let short = ["preview", "1", "--recipe", "recipe.toml", "data.max_length=7", "data.on_bad_record=skip"];
    let short = [&short[..], &["data.bad_record_limit=1", "train.batch_size=1", "--part", "eval"]].concat();
    let shown = data(&fixture, &short).succeeded().stdout;
    assert!(shown.contains(" 75.0 % truncated, 0 records"), "{shown}");
    let json = data(&fixture, &["preview", "3", "--recipe", "recipe.toml", "--json"]).succeeded().stdout;
    let objects: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 4);
    let (ids, labels) = (objects[0]["input_ids"].as_array().unwrap(), objects[0]["labels"].as_array().unwrap());
    assert!(ids.iter().zip(labels).all(|(id, label)| label == id || *label == json!(-100)));
    assert_eq!(objects[3]["samples"], 24);
    let missing = data(&fixture, &["preview", "1", "--recipe", "recipe.toml", "data.train=none.jsonl"]).refused();
    assert!(missing.contains("none.jsonl"), "{missing}");
}

#[test]
fn an_encoder_decoder_reads_inputs_and_learns_outputs() {
    let fixture = Fixture::seq2seq();
    let pair = |at: usize| json!({"prompt": text(at, 3), "completion": text(at + 1, 2)});
    fixture.write("train.jsonl", &lines(16, pair));
    fixture.write("eval.jsonl", &lines(4, pair));
    fixture.replace("recipe.toml", "\"classification\"", "\"sft\"");
    train(&fixture, "run", 1, &[&UNSAVED[..], &["data.target_length=8"]].concat()).succeeded();
    let steps = records(&fixture, "run", "step");
    assert!(steps[3]["loss"].as_f64().unwrap() < steps[0]["loss"].as_f64().unwrap());
}

#[test]
fn the_text_around_inputs_is_kept_with_the_model_and_an_output_is_gone_on_with() {
    let fixture = fixture();
    let pair = |at: usize| json!({"input": text(at, 2), "output": text(at + 1, 2)});
    fixture.write("train.jsonl", &lines(16, pair));
    fixture.write("eval.jsonl", &lines(4, pair));
    let sets = ["--set", "data.input_format=__input__ yes", "--set", "save.which=last"];
    fixture.finetune(&sets).succeeded();
    let kept: Value = serde_json::from_str(&fixture.read("run/model/text_formats.json")).unwrap();
    assert_eq!(kept, json!([{"input_format": "__input__ yes", "output_format": "__output__"}]));
    let row = |at: usize| json!({"input": text(at, 1 + at % 3), "id": at, "note": ["kept", null]});
    fixture.write("rows.jsonl", &lines(7, row));
    let generate = |more: &[&str]| {
        let fixed = ["run/model", "--threads", "1", "--input", "rows.jsonl", "--max-new-tokens", "4", "--batch", "2"];
        fixture.run(program("generate"), &[&fixed[..], more].concat())
    };
    let plain = generate(&["--output", "out.jsonl"]).succeeded();
    assert!(
        plain.stderr.contains("prompts are put into \"{prompt} yes\", as inputs were in training"),
        "{}",
        plain.stderr
    );
    let same = generate(&["--output", "same.jsonl", "--template", "{prompt} yes"]).succeeded();
    assert!(!same.stderr.contains("note:"), "{}", same.stderr);
    assert_eq!(fixture.read("out.jsonl"), fixture.read("same.jsonl"));
    let other = generate(&["--output", "other.jsonl", "--template", "{prompt}"]).succeeded();
    assert!(other.stderr.contains("the model was trained with \"{prompt} yes\""), "{}", other.stderr);
    assert_ne!(fixture.read("out.jsonl"), fixture.read("other.jsonl"));
    let first: Value = serde_json::from_str(fixture.read("out.jsonl").lines().next().unwrap()).unwrap();
    assert!(
        first["generated_text"].is_string() && first["id"] == 0 && first["note"] == json!(["kept", null]),
        "{first}"
    );
    // After any cut the same command goes on, on any number of ranks.
    let whole = fixture.read("out.jsonl");
    let third = whole.match_indices('\n').nth(2).unwrap().0 + 1;
    for (end, ranks) in [(0, "1"), (third, "2"), (third + 9, "1"), (whole.len(), "1")] {
        fixture.write("cut.jsonl", &whole[..end]);
        generate(&["--output", "cut.jsonl", "--append", "--ranks", ranks]).succeeded();
        assert_eq!(fixture.read("cut.jsonl"), whole, "cut at {end}");
    }
    fixture.write("cut.jsonl", &whole[third..]);
    let error = generate(&["--output", "cut.jsonl", "--append"]).refused();
    assert!(error.contains("cut.jsonl:1") && error.contains("not the result of rows.jsonl:1"), "{error}");
    // Trained again without a text around inputs, a model has none.
    let again = ["--set", "model.path=run/model", "--set", "output.dir=again", "--set", "save.which=last"];
    fixture.finetune(&again).succeeded();
    assert!(!fixture.path("again/model/text_formats.json").exists());
}

#[test]
fn sample_texts_are_recorded_before_at_and_after_training_and_reported() {
    let fixture = fixture();
    let samples = ["log.samples=[\"good film\", \"the end\"]", "log.sample_tokens=3"];
    let sets = [&UNSAVED[..], &SETS, &samples].concat();
    train(&fixture, "one", 1, &sets).succeeded();
    let texts = |dir: &str| -> Vec<(Value, Value, Value)> {
        let all = records(&fixture, dir, "sample");
        all.into_iter()
            .map(|sample| (sample["step"].clone(), sample["prompt"].clone(), sample["text"].clone()))
            .collect()
    };
    let one = texts("one");
    let steps: Vec<u64> = one.iter().map(|(step, ..)| step.as_u64().unwrap()).collect();
    assert_eq!(steps, [0, 0, 2, 2, 4, 4]);
    assert!(one[0].1 == "good film" && one[1].1 == "the end" && one.iter().all(|(.., text)| text.is_string()));
    train(&fixture, "two", 2, &[&sets[..], &["parallel.zero=3"]].concat()).succeeded();
    assert_eq!(texts("two"), one);
    train(&fixture, "without", 1, &[&UNSAVED[..], &SETS].concat()).succeeded();
    let losses = |dir: &str| records(&fixture, dir, "step").iter().map(|step| step["loss"].clone()).collect::<Vec<_>>();
    assert_eq!(losses("one"), losses("without"), "samples change nothing");
    let report = ["report", "one", "--output", "out.html"];
    fixture.run(program("runs"), &report).succeeded();
    let markdown = fixture.read("out.md");
    for part in ["last sample text", "| good film | after step 0: ", "instruction set", "physical cores"] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    let start = &records(&fixture, "one", "start")[0]["time"];
    assert!(start["cores"].as_u64() >= Some(1) && start["commit"].is_null(), "{start}");
}
