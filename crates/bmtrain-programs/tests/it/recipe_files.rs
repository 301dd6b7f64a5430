//! The recipes in `examples/recipes` and the settings of docs/recipes.md: they load, are listed, name families that are
//! here, and train a tiny model of their family for two steps.

use crate::fixture::program;
use crate::fixture::{Fixture, golden, vocabulary};
use bmtrain_dist::optim::ScheduleKind;
use model_center::data::{
    ColumnTask, EmbeddingTask, Format, LabelColumns, LanguageModelingColumns, LanguageModelingTask, MultiLabelTask,
    PROMPTS, SUPERGLUE, SftTask, TaskFiles, TemplateTask,
};
use model_center::model::MODELS;
use model_center::recipe::{DataFiles, DataSource, PretrainingObjective, Recipe, Resolved};
use serde_json::{Map, Value, json};
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
    // Models of the same architecture as another share its recipe.
    let like_others = ["xlm-roberta", "camembert", "mt5"];
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

/// Writes records that a recipe can learn from with a vocabulary of `size`, and the settings that lead there.
fn data(fixture: &Fixture, resolved: &Resolved, size: usize) -> Vec<String> {
    let texts = ["the film was good", "it is a bad plot ."];
    let source = &resolved.data.source;
    let answered = |text: &str, start: usize, at: usize| {
        let answers = json!([{"text": text, "answer_start": start}]);
        json!({"id": "x", "question": texts[at % 2], "answers": answers})
    };
    let question = |at: usize| match source.task().name() {
        "question-answering" => answered(["film", "good"][at % 2], [4, 13][at % 2], at),
        _ => answered(["fine", "poor"][at % 2], 0, at),
    };
    let record = |at: usize| record_of(source, texts[at % 2], at);
    let lines: String = (0..4).map(|at| format!("{}\n", record(at))).collect();
    let squad = |version: &str| {
        let paragraph = json!({"context": texts[0], "qas": (0..4).map(question).collect::<Vec<_>>()});
        json!({"version": version, "data": [{"title": "film", "paragraphs": [paragraph]}]}).to_string()
    };
    let both = |ending: &str, content: &str| {
        ["train", "eval"].iter().for_each(|split| fixture.write(&format!("{split}.{ending}"), content));
        ["train", "eval"].map(|split| format!("data.{split}={split}.{ending}")).to_vec()
    };
    match source.task().name() {
        // Four rows of the tests' length.
        "language" if takes_plain_text(source) => both("txt", &(texts[0].to_owned() + "\n").repeat(10)),
        "token-classification" => {
            let words = "the O\nfilm B-THING\nwas O\ngood O\n\nit O\nis O\na O\nbad B-KIND\nplot I-KIND\n\n";
            both("txt", &words.repeat(2))
        }
        "question-answering" => both("json", &squad("v2.0")),
        "pretrain" => pretraining_data(fixture, resolved, size),
        "sft" | "preference" | "reward" => {
            let template = "{% for m in messages %}{{ m.content + ' [SEP] ' }}{% endfor %}";
            fixture.write("model/chat_template.jinja", template);
            both("jsonl", &lines)
        }
        name if source.directory().is_some() => {
            let lines = match name {
                "SQuAD" => squad("1.1"),
                "LCQMC" => "text_a\ttext_b\tlabel\n".to_owned() + &"有\t无\t0\n关\t关\t1\n".repeat(2),
                _ => lines,
            };
            source.files_of_task().iter().for_each(|name| fixture.write(&format!("glue/{name}"), &lines));
            vec!["data.path=glue".into()]
        }
        _ => both("jsonl", &lines),
    }
}

fn takes_plain_text(source: &DataSource) -> bool {
    let DataFiles::Files { train, .. } = source.files() else { return false };
    source.task_as::<LanguageModelingTask>().is_some_and(|task| task.format_of(train).unwrap() == Format::Text)
}

/// A record of a task of files with columns.
fn record_of(source: &DataSource, text: &str, at: usize) -> Value {
    let (other, is_even) = (["fine", "poor"][at % 2], at.is_multiple_of(2));
    let mut record = json!({});
    if let Some(task) = source.task_as::<TemplateTask>() {
        task.template.columns().for_each(|column| record[column] = text.into());
        record[&task.label] = task.labels[at % task.labels.len()].clone().into();
    } else if let Some(columns) = source.task_as::<ColumnTask>() {
        record[&columns.text] = text.into();
        record[&columns.label] = ["negative", "positive"][at % 2].into();
        columns.text_pair.iter().for_each(|pair| record[pair] = text.into());
    } else if let Some(task) = source.task_as::<MultiLabelTask>() {
        record[&task.text] = text.into();
        match &task.columns {
            LabelColumns::List(column) => record[column] = json!([other]),
            LabelColumns::Flags(columns) => columns.iter().for_each(|column| record[column] = is_even.into()),
        }
    } else if let Some(task) = source.task_as::<EmbeddingTask>() {
        record[&task.anchor] = text.into();
        record[&task.positive] = other.into();
    } else if let Some(task) = source.task_as::<LanguageModelingTask>() {
        let (column, further) = match &task.columns {
            LanguageModelingColumns::Language { text, prompt } => (text, prompt.as_ref()),
            LanguageModelingColumns::Target { text, target } => (text, Some(target)),
        };
        record[column] = text.into();
        further.into_iter().for_each(|column| record[column] = other.into());
    } else if let Some(task) = source.task_as::<SftTask>() {
        let turn = |role: &str, text: &str| json!({"role": role, "content": text});
        let answer = |text: &str| json!([turn("assistant", text)]);
        record = match task.pairs {
            Some(_) => json!({"prompt": [turn("user", text)], "chosen": answer(other), "rejected": answer(text)}),
            None => json!({"messages": [turn("user", text), turn("assistant", other)]}),
        };
    } else if source.task().name() == "BoolQ" {
        record = json!({"question": text, "passage": text, "label": is_even});
    } else if source.directory().is_some() {
        let label = if is_even { "entailment" } else { "not_entailment" };
        record = json!({"premise": text, "hypothesis": text, "label": label});
    }
    record
}

/// Token files of documents with two sentences, and the settings of a tiny model with `size` tokens that is pretrained
/// on them.
fn pretraining_data(fixture: &Fixture, resolved: &Resolved, size: usize) -> Vec<String> {
    let document = json!({"text": "the film was good\nit is a bad plot ."});
    fixture.write("texts.jsonl", &format!("{document}\n").repeat(160));
    let build = ["build", "texts.jsonl", "--tokenizer", "model", "--out", "tokens"];
    let objective = resolved.data.source.pretraining().map(|settings| settings.objective.kind);
    let sentences = objective == Some(PretrainingObjective::Masked);
    let ends = if sentences { &["--split-lines"][..] } else { &["--eod-token", "<eod>"] };
    fixture.run(program("corpus"), &[&build, ends].concat()).succeeded();
    let mut sets = vec!["data.corpora=tokens".to_owned(), "data.sequence_length=12".to_owned()];
    if !sentences {
        sets.push("data.eod_token=<eod>".into());
    }
    let sizes: &[&str] = match resolved.model.family.as_deref() {
        None => &["path=model"],
        Some("t5") => &["layers=2", "hidden=16", "heads=2", "head_size=8", "feed_forward=32"],
        Some(_) => &["layers=2", "hidden=16", "heads=2", "positions=32"],
    };
    sets.extend(sizes.iter().map(|size| format!("model.{size}")));
    if resolved.model.family.is_some() {
        sets.extend(["model.tokenizer=model".to_owned(), format!("model.vocabulary={size}")]);
    }
    if resolved.parallel.tensor > 1 {
        sets.push("parallel.tensor=1".into());
    }
    sets
}

/// `vocab.txt` of the given size with the label words of prompts and their special tokens.
fn with_answers(size: usize) -> String {
    let own = vocabulary(size);
    let special = own.lines().take(5);
    let ends = ["</s>", "<eod>", "<s_0>", "<s_1>", "<s_2>", "<extra_id_2>", "<extra_id_1>", "<extra_id_0>"];
    let words = ["no", "yes", "bad", "good", "有", "无", "关"];
    let answers: Vec<&str> = ends.into_iter().chain(words).collect();
    let others = own.lines().skip(5).filter(|token| !answers.contains(token));
    special.chain(answers.iter().copied()).chain(others).take(size).map(|token| format!("{token}\n")).collect()
}

/// A tokenizer with the given number of tokens that joins pairs as RoBERTa's does, without token types.
fn without_types(size: usize) -> Value {
    let special = ["<s>", "<pad>", "</s>", "<unk>"];
    let known = special.into_iter().chain("the film was good it is a bad plot".split(' ')).map(str::to_owned);
    let all = known.chain((0..).map(|at| format!("token{at}"))).take(size);
    let vocabulary: Map<String, Value> = all.zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let piece = |kind: &str, id: &str| json!({kind: {"id": id, "type_id": 0}});
    let (open, close) = (piece("SpecialToken", "<s>"), piece("SpecialToken", "</s>"));
    let (first, second) = (piece("Sequence", "A"), piece("Sequence", "B"));
    let token = |name: &str, id: u32| json!({"id": name, "ids": [id], "tokens": [name]});
    json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [open, first, close],
            "pair": [open, first, close, close, second, close],
            "special_tokens": {"<s>": token("<s>", 0), "</s>": token("</s>", 2)},
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    })
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
