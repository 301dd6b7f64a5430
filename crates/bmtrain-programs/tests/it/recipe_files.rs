//! The recipes in `examples/recipes` and the settings of docs/recipes.md: they load, are listed, name families that are
//! here, and train a tiny model of their family for two steps.

mod records;

use crate::fixture::{Fixture, golden, program};
use bmtrain_dist::optim::ScheduleKind;
use model_center::data::{PROMPTS, SUPERGLUE, TaskFiles};
use model_center::model::MODELS;
use model_center::recipe::{Recipe, Resolved};
use records::{data, with_answers, without_types};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of all recipes.
fn recipes() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("examples/recipes")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.iter().all(|name| name.ends_with(".toml")), "{names:?}");
    names
}

fn load(name: &str, sets: &[String]) -> Resolved {
    let text = read(&format!("examples/recipes/{name}"));
    Recipe::load_text(name, &text, sets).unwrap_or_else(|error| panic!("{name} {sets:?}: {error}"))
}

/// The family that a recipe is named for; two from before the others are for BERT.
fn family(name: &str) -> &str {
    match name {
        "quickstart.toml" | "classify_jsonl.toml" => "bert",
        "pretrain_gpt2_345m.toml" | "pretrain_yuan_4b.toml" => "gpt2",
        "pretrain_bert_345m.toml" => "bert",
        "pretrain_megatron_bert_345m.toml" => "megatron-bert",
        "pretrain_cpm_t5.toml" => "cpm_t5",
        _ => name.trim_end_matches(".toml").rsplit_once('_').map_or("", |(_, family)| family),
    }
}

#[test]
fn every_recipe_loads_shows_how_to_run_it_and_has_a_family_of_its_own() {
    let mut families = Vec::new();
    for name in recipes() {
        let resolved = load(&name, &[]);
        let text = read(&format!("examples/recipes/{name}"));
        let (comments, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        assert!(comments[0].ends_with(['.', '?']), "{name} begins with what it does");
        let run =
            ["finetune", "pretrain"].map(|program| format!("bmtrain -- {program} --recipe examples/recipes/{name}"));
        assert!(comments.iter().any(|line| run.iter().any(|run| line.contains(run))), "{name} shows how to run it");
        assert!(rest.len() < 60, "{name} is long");
        let family = family(&name);
        assert!(MODELS.iter().any(|entry| entry.model_type == family), "{name} is for no family: {family}");
        families.push(family.to_owned());
        let dir = resolved.output.dir.display().to_string();
        assert!(dir.starts_with("runs/"), "{name} writes to {dir}");
    }
    // Models of the same architecture as another share its recipe, further encoders BERT's, further decoders Llama's.
    let like_others = [
        "xlm-roberta",
        "camembert",
        "mt5",
        "distilbert",
        "electra",
        "mpnet",
        "albert",
        "gemma2",
        "gemma3_text",
        "modernbert",
        "granite",
        "ministral",
        "cwm",
        "seed_oss",
        "olmo2",
        "olmo3",
        "smollm3",
        "phi3",
        "glm4",
        "gpt_neox",
    ];
    for entry in MODELS.iter().filter(|entry| !like_others.contains(&entry.model_type)) {
        assert!(families.iter().any(|family| family == entry.model_type), "{} has no recipe", entry.model_type);
    }
}

/// Rows of the tables in docs/recipes.md whose cell of this number is a recipe: that cell and the next.
fn rows(cell: usize) -> Vec<(String, String)> {
    let text = read("docs/recipes.md");
    let rows = text.lines().filter(|line| line.starts_with("| ")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        (cells.get(cell).unwrap_or(&"").to_string(), cells.get(cell + 1).unwrap_or(&"").to_string())
    });
    rows.filter(|(recipe, _)| recipe.ends_with(".toml")).collect()
}

#[test]
fn the_page_lists_every_recipe_and_the_settings_it_shows_load() {
    let mut listed: Vec<String> = rows(0).into_iter().map(|(recipe, _)| recipe).collect();
    listed.sort();
    assert_eq!(listed, recipes());
    let examples = rows(1);
    assert_eq!(examples.len(), 19);
    let mut hashes = Vec::new();
    for (recipe, sets) in examples {
        let sets: Vec<String> = sets.split_whitespace().map(str::to_owned).collect();
        hashes.push(load(&recipe, &sets).recipe_hash());
    }
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 19, "two of the examples are the same");
}

#[test]
fn every_recipe_trains_a_tiny_model_of_its_family() {
    for name in recipes() {
        let fixture = Fixture::new();
        let family = family(&name);
        let head = match family {
            "bert" => "nsp",
            "megatron-bert" => "pretraining",
            "roberta" => "mlm",
            _ => "lm",
        };
        // The configuration of cpm2_a has no decoder start token, which fine-tuning needs.
        let number = if name == "lcqmc_cpm2.toml" || name == "texts_cpm2.toml" { "b" } else { "a" };
        let model = format!("{}_{number}", family.replace('-', "_"));
        let directory = golden(&model, head);
        for file in ["config.json", "model.safetensors"] {
            fixture.write_bytes(&format!("model/{file}"), &std::fs::read(directory.join(file)).unwrap());
        }
        let config: Value = serde_json::from_str(&fixture.read("model/config.json")).unwrap();
        let size = config["vocab_size"].as_u64().unwrap() as usize;
        match family {
            "roberta" => fixture.write("model/tokenizer.json", &without_types(size).to_string()),
            _ => fixture.write("model/vocab.txt", &with_answers(size)),
        }
        fixture.write("recipe.toml", &read(&format!("examples/recipes/{name}")));
        let resolved = load(&name, &[]);
        let mut sets = data(&fixture, &resolved, size);
        let is_pretraining = resolved.data.source.pretraining().is_some();
        let small = match is_pretraining {
            // After a warm-up of one step the learning rate is at its peak.
            true => &["train.steps=2", "train.lr=1e-3", "eval.iterations=1", "data.split=8,1,1"],
            false => &["model.path=model", "data.max_length=12", "train.epochs=2"][..],
        };
        let warmup = match resolved.train.schedule {
            ScheduleKind::RangeTest { .. } => "train.warmup=0",
            _ => "train.warmup=1",
        };
        sets.extend(small.iter().chain(&[warmup, "output.dir=run"]).map(|set| (*set).to_owned()));
        if name == "qlora_llama.toml" {
            // The tiny model's rows are not whole blocks; `adapters.rs` trains beside a quantised model.
            sets.push("adapter.quantize=none".into());
        }
        sets.extend(["train.batch_size=4", "train.micro_batch_size=2", "device.threads=1"].map(str::to_owned));
        if ["seq2seq", "SQuAD"].contains(&resolved.data.source.task().name()) {
            sets.push("data.target_length=6".into());
        }
        let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set.as_str()]).collect();
        let program = program(if is_pretraining { "pretrain" } else { "finetune" });
        let outcome = fixture.run(program, &[&["--recipe", "recipe.toml"], &arguments[..]].concat());
        assert_eq!(outcome.code, 0, "{name}: {}", outcome.stderr);
        assert!(outcome.stdout.contains("trained 2 steps"), "{name}: {}", outcome.stdout);
        fixture.plan(&arguments).succeeded();
    }
}

#[test]
fn every_task_is_on_both_pages_with_its_prompt_words_and_metrics() {
    let (recipes, tasks) = (read("docs/recipes.md"), read("docs/tasks.md"));
    let names = SUPERGLUE.iter().map(|entry| entry.name).chain(PROMPTS.iter().map(|entry| entry.name));
    for name in names.chain(["SQuAD"]) {
        assert!(recipes.contains(&format!("`{name}`")), "{name}");
        assert!(tasks.contains(name), "{name}");
    }
    for entry in PROMPTS.iter().filter(|entry| entry.files == TaskFiles::Jsonl) {
        let row = tasks.lines().find(|line| line.starts_with(&format!("| `{}`", entry.name))).unwrap();
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let words: Vec<&str> = entry.words.iter().map(|word| word.trim()).collect();
        let metrics: Vec<&str> = entry.metrics.iter().map(|metric| metric.name()).collect();
        assert_eq!((cells[4], cells[5]), (words.join(", ").as_str(), metrics.join(", ").as_str()), "{}", entry.name);
    }
}
