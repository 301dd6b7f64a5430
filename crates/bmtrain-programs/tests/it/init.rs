//! The init program: a newcomer's files and a model in, a recipe out that runs as it is.

use crate::adapters::wide_decoder;
use crate::fixture::program;
use crate::fixture::{Fixture, Outcome, sentences};

fn init(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("init"), arguments)
}

fn finetune(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("finetune"), arguments)
}

fn has_lines(recipe: &str, lines: &[&str]) {
    for line in lines {
        assert!(recipe.contains(line), "{line} is not in\n{recipe}");
    }
}

/// Tickets of five queues with 120, 60, 24, 12 and 5 records, in a file with a header of its own.
fn tickets() -> String {
    let words = ["good", "bad", "fine", "poor", "not"];
    let queues = [("billing", 120), ("delivery", 60), ("returns", 24), ("other, general", 12), ("legal", 5)];
    let mut text = String::from("ticket,body,queue,created\n");
    let mut number = 0;
    for (at, (queue, count)) in queues.into_iter().enumerate() {
        for _ in 0..count {
            let (end, more) = (number % 7, number / 7);
            let tail = ["", " in the end", " and it is very poor", " of the cast", " to her", " he is", " they"][end];
            let body = format!("the {} film was {}{tail} {}", words[at], words[at], "the ".repeat(more % 4));
            text += &format!("{number},\"{body}number {number}\",\"{queue}\",2026-01-{:02}\n", 1 + number % 28);
            number += 1;
        }
    }
    text
}

#[test]
fn five_uneven_classes_of_a_csv_are_trained_on_in_three_commands() {
    let fixture = Fixture::new();
    fixture.write("tickets.csv", &tickets());
    let ask = ["--preset", "classify", "--model", "model", "--data", "tickets.csv", "--out", "tickets.toml"];
    let outcome = init(&fixture, &ask).succeeded();
    assert!(outcome.stdout.contains("finetune --recipe tickets.toml"), "{}", outcome.stdout);
    let recipe = fixture.read("tickets.toml");
    let lines = [
        "task = \"classification\" # column \"queue\" has 5 classes",
        "text = \"body\" # ",
        "label = \"queue\" # 5 different values",
        "labels = [\"billing\", \"delivery\", \"legal\", \"other, general\", \"returns\"] # records of each: billing",
        "class_weights = \"balanced\" # the largest class has 24.0 times",
        "metric = \"f1_macro\" # ",
        "max_length = 24 # ",
        "train = \"tickets_data/train.jsonl\" # 199 of the records of tickets.csv",
        "batch_size = 32 # usual",
        "lr = 0.0005 # ",
        "dir = \"runs/tickets-classify\"",
    ];
    has_lines(&recipe, &lines);
    // Every line has its reason.
    let is_setting = |line: &&str| line.contains(" = ") && !line.starts_with('#');
    assert!(recipe.lines().filter(is_setting).all(|line| line.contains(" # ")), "{recipe}");
    let eval = fixture.read("tickets_data/eval.jsonl");
    assert_eq!(eval.lines().count() + fixture.read("tickets_data/train.jsonl").lines().count(), 221);
    assert!(["billing", "delivery", "legal", "other, general", "returns"].iter().all(|queue| eval.contains(queue)));

    finetune(&fixture, &["--recipe", "tickets.toml", "--dry-run"]).succeeded();
    // The figure of one of two classes is not defined for five.
    let refused = finetune(&fixture, &["--recipe", "tickets.toml", "--dry-run", "eval.metric=f1"]).refused();
    assert!(refused.contains("there are 5") && refused.contains("use \"f1_macro\""), "{refused}");
    let outcome = finetune(&fixture, &["--recipe", "tickets.toml"]).succeeded();
    assert!(fixture.path("runs/tickets-classify/model/config.json").exists(), "{}", outcome.stderr);
    let report = fixture.run(program("runs"), &["report", "runs/tickets-classify"]).succeeded();
    assert!(report.stdout.contains("report"), "{}", report.stdout);
    // Nothing is overwritten.
    let refused = init(&fixture, &ask).refused();
    assert!(refused.contains("exists, and nothing is overwritten"), "{refused}");
}

#[test]
fn records_without_a_text_or_a_label_are_counted_and_other_delimiters_are_found() {
    let fixture = Fixture::new();
    let row = |at: usize| format!("the film number {at} was good;{}\n", ["yes", "no", "yes "][at % 3]);
    let rows: String = (0..30).map(row).collect();
    // Some tools quote the header, and texts have commas.
    let others = ";no\n;yes\nthe film;\nbad; \n\"fine, very\";Yes\nwas, too;Yes\n";
    fixture.write("answers.csv", &format!("\"text\";\"label\"\n{rows}{others}"));
    let ask = |name: &'static str, data: &'static str| {
        ["--preset", "classify", "--model", "model", "--data", data, "--out", name]
    };
    let noted = init(&fixture, &ask("a.toml", "answers.csv")).succeeded().stderr;
    for remark in [
        "2 records have no label in column \"label\"",
        "2 records have no text in column \"text\"",
        "the classes Yes, yes differ in their case alone",
    ] {
        assert!(noted.contains(remark), "{remark}: {noted}");
    }
    let recipe = fixture.read("a.toml");
    has_lines(&recipe, &["labels = [\"Yes\", \"no\", \"yes\"] # records of each: Yes 2, no 11, yes 21"]);
    finetune(&fixture, &["--recipe", "a.toml", "--dry-run"]).succeeded();
    // A file that the recipe names has its delimiter there.
    fixture.write("small.csv", "text;label\ngood;a\nbad;b\nfine;a\npoor;b\n");
    init(&fixture, &ask("small.toml", "small.csv")).succeeded();
    has_lines(&fixture.read("small.toml"), &["train = \"small.csv\"", "delimiter = \";\" # "]);
    finetune(&fixture, &["--recipe", "small.toml", "--dry-run"]).succeeded();
}

/// A template with a system turn where the conversation has none, as SmolLM2's and Qwen 2.5's.
const WITH_SYSTEM: &str = "{% for m in messages %}{% if loop.first and m.role != 'system' %}system the film was very \
    good and fine and not poor [SEP]{% endif %}{{ m.role }} {{ m.content }} [SEP]{% endfor %}\
    {% if add_generation_prompt %}assistant {% endif %}";

#[test]
fn lengths_are_counted_with_the_turns_of_the_template_and_short_data_pass_their_own_dry_run() {
    // A model that reads rows of any length.
    let fixture = Fixture::bloom();
    fixture.write("model/chat_template.jinja", WITH_SYSTEM);
    let pair = |at: usize| format!("{{\"prompt\": \"good {at} ?\", \"completion\": \"bad {at}\"}}\n");
    let chosen = |at: usize| format!("{{\"prompt\": \"is {at} ?\", \"chosen\": \"good\", \"rejected\": \"bad\"}}\n");
    let message = |role: &str, text: String| format!("{{\"role\": \"{role}\", \"content\": \"{text}\"}}");
    let chat = |at: usize| {
        let messages = [message("user", format!("film {at} ?")), message("assistant", "good".into())].join(", ");
        format!("{{\"messages\": [{messages}]}}\n")
    };
    let broken = "{\"prompt\": \"good ?\", \"completion\": \"\"}\n".to_owned();
    for (name, preset, text) in [
        ("pairs", "sft", (0..12).map(pair).collect::<String>() + &broken),
        ("few", "sft", (0..4).map(pair).collect()),
        ("chats", "sft", (0..12).map(chat).collect()),
        ("chosen", "dpo", (0..12).map(chosen).collect()),
        // A prompt of many more tokens than 99 of 100 samples have.
        ("long", "sft", (0..200).map(pair).chain([pair(0).replace("good", &"good ".repeat(20))]).collect()),
    ] {
        let (data, recipe) = (format!("{name}.jsonl"), format!("{name}.toml"));
        fixture.write(&data, &text);
        let ask = ["--preset", preset, "--model", "model", "--data", &data, "--out", &recipe];
        let noted = init(&fixture, &ask).succeeded().stderr;
        assert_eq!(noted.contains("1 records cannot be used"), name == "pairs", "{noted}");
        finetune(&fixture, &["--recipe", &recipe, "--dry-run"]).succeeded();
        let length =
            fixture.read(&recipe).lines().find_map(|line| line.strip_prefix("max_length = ").map(str::to_owned));
        let length: usize = length.unwrap().split(' ').next().unwrap().parse().unwrap();
        // The system turn has 13 tokens.
        assert!(length > 13, "{name}: {length}");
    }
}

#[test]
fn instructions_with_columns_of_their_own_become_a_run_of_updates() {
    let fixture = Fixture::decoder();
    let record =
        |at: usize| format!("{{\"question\": \"is film {at} good ?\", \"answer\": \"it is very good and {at}\"}}\n");
    fixture.write("faq.jsonl", &(0..40).map(record).collect::<String>());
    let ask = ["--preset", "lora", "--model", "model", "--data", "faq.jsonl", "--out", "faq.toml"];
    init(&fixture, &[&ask[..], &["--set", "device.threads=1"]].concat()).succeeded();
    let recipe = fixture.read("faq.toml");
    let lines = [
        "method = \"lora\" # ",
        "records = \"prompt-completion\" # columns question, answer",
        "prompt = \"question\" # ",
        "completion = \"answer\" # ",
        "train = \"faq_data/train.jsonl\"",
        "eval = \"faq_data/eval.jsonl\"",
        "lr = 0.0002 # ",
        "threads = 1 # --set",
    ];
    has_lines(&recipe, &lines);
    finetune(&fixture, &["--recipe", "faq.toml", "--dry-run"]).succeeded();
    finetune(&fixture, &["--recipe", "faq.toml", "train.epochs=1"]).succeeded();
    assert!(fixture.path("runs/faq-lora/model/adapter_config.json").exists());
}

#[test]
fn updates_beside_a_model_in_4_bits_are_trained_and_reported() {
    let fixture = wide_decoder();
    let record =
        |at: usize| format!("{{\"question\": \"is film {at} good ?\", \"answer\": \"it is very good and {at}\"}}\n");
    fixture.write("faq.jsonl", &(0..40).map(record).collect::<String>());
    let ask = ["--preset", "qlora", "--model", "wide/model", "--data", "faq.jsonl", "--out", "faq.toml"];
    init(&fixture, &ask).succeeded();
    let recipe = fixture.read("faq.toml");
    has_lines(
        &recipe,
        &["method = \"lora\" # ", "rank = 16 # ", "alpha = 32 # ", "quantize = \"nf4\" # ", "lr = 0.0002 # "],
    );
    finetune(&fixture, &["--recipe", "faq.toml", "train.epochs=1"]).succeeded();
    assert!(fixture.path("runs/faq-qlora/model/adapter_config.json").exists());
    fixture.run(program("runs"), &["report", "runs/faq-qlora"]).succeeded();
}

#[test]
fn pairs_of_completions_are_trained_on_by_preferences_and_reported() {
    let fixture = Fixture::decoder();
    let record = |at: usize| {
        format!("{{\"question\": \"is film {at} ?\", \"chosen\": \"good it is\", \"rejected\": \"bad he was {at}\"}}\n")
    };
    fixture.write("pairs.jsonl", &(0..40).map(record).collect::<String>());
    let ask = ["--preset", "dpo", "--model", "model", "--data", "pairs.jsonl", "--out", "pairs.toml"];
    init(&fixture, &ask).succeeded();
    let recipe = fixture.read("pairs.toml");
    let lines = [
        "task = \"preference\" # ",
        "prompt = \"question\" # the file's name of it",
        "loss = \"dpo\" # ",
        "beta = 0.1 # ",
        "method = \"lora\" # ",
        "train = \"pairs_data/train.jsonl\"",
        "eval = \"pairs_data/eval.jsonl\"",
        "batch_size = 32 # ",
        "lr = 2e-5 # ",
    ];
    has_lines(&recipe, &lines);
    assert!(!recipe.contains("chosen = "), "{recipe}");
    finetune(&fixture, &["--recipe", "pairs.toml", "train.batch_size=8", "train.micro_batch_size=4"]).succeeded();
    assert!(fixture.path("runs/pairs-dpo/model/adapter_config.json").exists());
    fixture.run(program("runs"), &["report", "runs/pairs-dpo"]).succeeded();
    // Columns of other names are named, and two columns that are not a pair are refused with all names.
    fixture.write("other.csv", "q,a,b\nis it ?,good,bad\nwas it ?,fine,poor\n");
    let ask = ["--preset", "dpo", "--model", "model", "--data", "other.csv", "--out", "other.toml"];
    let refused = init(&fixture, &ask).refused();
    assert!(refused.contains("--column chosen=NAME") && refused.contains("columns are q, a, b"), "{refused}");
    let columns = ["--column", "prompt=q", "--column", "chosen=a", "--column", "rejected=b"];
    let outcome = init(&fixture, &[&ask[..], &columns].concat()).succeeded();
    assert!(outcome.stderr.contains("2 records are too few to split (at least 10)"), "{}", outcome.stderr);
    assert!(fixture.read("other.toml").contains("chosen = \"a\""));
}

#[test]
fn texts_that_belong_together_are_embedded_and_reported() {
    let fixture = Fixture::new();
    let record = |at: usize| format!("is film {at} good ?,the film was good and {at},a bad film\n");
    let faq: String = (0..40).map(record).collect();
    fixture.write("faq.csv", &format!("question,answer,hard_negative\n{faq}"));
    let ask = ["--preset", "embed", "--model", "model", "--data", "faq.csv", "--out", "faq.toml"];
    init(&fixture, &ask).succeeded();
    let recipe = fixture.read("faq.toml");
    let lines = [
        "task = \"embedding\" # \"question\" is to be near \"answer\", and far from \"hard_negative\"",
        "anchor = \"question\" # the file's name of it",
        "positive = \"answer\" # the file's name of it",
        "negative = \"hard_negative\" # ",
        "train = \"faq_data/train.jsonl\"",
        "eval = \"faq_data/eval.jsonl\"",
        "temperature = 0.05 # ",
        "lr = 2e-5 # ",
    ];
    has_lines(&recipe, &lines);
    finetune(&fixture, &["--recipe", "faq.toml", "train.batch_size=8", "train.micro_batch_size=4"]).succeeded();
    assert!(fixture.path("runs/faq-embed/model/modules.json").exists());
    fixture.run(program("runs"), &["report", "runs/faq-embed"]).succeeded();
    // Two columns of texts need no names; a column of judgements is reported as ignored; an encoder-decoder is refused.
    fixture.write("two.csv", "left,right\nis it ?,good\nwas it ?,fine\n");
    init(&fixture, &["--preset", "embed", "--model", "model", "--data", "two.csv", "--out", "two.toml"]).succeeded();
    assert!(fixture.read("two.toml").contains("positive = \"right\""));
    fixture.write("judged.csv", "sentence1,sentence2,score\nis it ?,good,0.1\nwas it ?,fine,0.9\n");
    let scored = ["--preset", "embed", "--model", "model", "--data", "judged.csv", "--out", "judged.toml"];
    let noted = init(&fixture, &scored).succeeded().stderr;
    assert!(noted.contains("column \"score\" is not read"), "{noted}");
    fixture.write("three.csv", "a,b,c\nis it ?,good,x\nwas it ?,fine,y\n");
    let three = ["--preset", "embed", "--model", "model", "--data", "three.csv", "--out", "three.toml"];
    let refused = init(&fixture, &three).refused();
    assert!(refused.contains("--column anchor=NAME") && refused.contains("columns are a, b, c"), "{refused}");
    let seq2seq = Fixture::seq2seq();
    seq2seq.write("two.csv", "left,right\nis it ?,good\nwas it ?,fine\n");
    let ask = ["--preset", "embed", "--model", "model", "--data", "two.csv", "--out", "two.toml"];
    let refused = init(&seq2seq, &ask).refused();
    assert!(refused.contains("models with one stack"), "{refused}");
}

#[test]
fn data_that_cannot_be_split_have_no_empty_file_of_evaluation_data() {
    let fixture = Fixture::new();
    // Ten classes of three records: a tenth of all of them.
    let ticket = |at: usize| format!("the film number {at} was good,class {}\n", at % 10);
    fixture.write("small.csv", &format!("text,label\n{}", (0..30).map(ticket).collect::<String>()));
    let ask = |name: &'static str| ["--preset", "classify", "--model", "model", "--out", "s.toml", "--data", name];
    init(&fixture, &ask("small.csv")).succeeded();
    assert_eq!(fixture.read("s_data/eval.jsonl").lines().count(), 3);
    finetune(&fixture, &["--recipe", "s.toml", "--dry-run"]).succeeded();
    // What exists is found before anything is read.
    let refused = init(&fixture, &ask("none.csv")).refused();
    assert!(refused.contains("s_data/train.jsonl exists, and nothing is overwritten"), "{refused}");
    // Four records are all for training, and no key of evaluations is without effect.
    fixture.write("four.csv", "text,label\ngood,a\nbad,b\nfine,a\npoor,b\n");
    let ask = ["--preset", "classify", "--model", "model", "--out", "four.toml", "--data", "four.csv"];
    let outcome = init(&fixture, &ask).succeeded();
    assert!(outcome.stderr.contains("too few different records to split"), "{}", outcome.stderr);
    let recipe = fixture.read("four.toml");
    assert!(recipe.contains("train = \"four.csv\"") && !recipe.contains("eval = "), "{recipe}");
    assert!(!fixture.path("four_data").exists());
    finetune(&fixture, &["--recipe", "four.toml", "--dry-run"]).succeeded();
}

#[test]
fn the_help_has_a_line_for_each_preset() {
    let fixture = Fixture::new();
    let help = init(&fixture, &["--help"]).succeeded().stdout;
    // Long lines are wrapped.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for preset in model_center::starter::PRESETS {
        assert!(help.contains(preset.name) && help.contains(preset.doc), "{} is not in {help}", preset.name);
    }
}

#[test]
fn texts_of_a_decoder_and_given_evaluation_data_are_found() {
    let fixture = Fixture::bloom();
    let record =
        |at: usize| format!("{{\"instruction\": \"is film {at} good ?\", \"input\": \"\", \"output\": \"yes {at}\"}}");
    let list = |from: usize| format!("[{}]", (from..from + 12).map(record).collect::<Vec<_>>().join(",\n"));
    fixture.write("train.json", &list(0));
    fixture.write("dev.json", &list(20));
    let ask = ["--preset", "sft", "--model", "model", "--out", "alpaca.toml", "--data", "train.json", "dev.json"];
    init(&fixture, &ask).succeeded();
    let recipe = fixture.read("alpaca.toml");
    let lines = [
        "records = \"alpaca\"",
        "train = \"train.json\" # 12 records",
        "eval = \"dev.json\" # given",
        "batch_size = 8",
    ];
    has_lines(&recipe, &lines);
    // The text around an instruction is longer than the rows of another model.
    let short = Fixture::decoder();
    short.write("train.json", &list(0));
    let refused = init(&short, &ask[..8]).refused();
    assert!(refused.contains("no record has a token to learn: a prompt has more than"), "{refused}");
}

#[test]
fn token_files_are_pretrained_on_and_texts_are_answered_by_the_command_that_makes_them() {
    let fixture = Fixture::decoder();
    let ask = ["--preset", "pretrain", "--model", "model", "--data"];
    let refused = init(&fixture, &[&ask[..], &["train.jsonl", "--out", "t.toml"]].concat()).refused();
    assert!(refused.contains("corpus build train.jsonl --tokenizer model"), "{refused}");
    let build = ["build", "train.jsonl", "--tokenizer", "model", "--out", "books", "--eod-token", "[SEP]"];
    fixture.write("train.jsonl", &sentences(200));
    fixture.run(program("corpus"), &build).succeeded();
    let sets = ["--set", "data.eod_token=[SEP]", "--out", "p.toml"];
    init(&fixture, &[&ask[..], &["books.bin"], &sets].concat()).succeeded();
    let recipe = fixture.read("p.toml");
    let lines = [
        "init = \"random\"",
        "corpora = [\"books\"] # ",
        "split = \"90,10,0\"",
        "lr = 0.0006",
        "schedule = \"cosine\"",
    ];
    has_lines(&recipe, &lines);
    fixture.run(program("pretrain"), &["--recipe", "p.toml", "--dry-run"]).succeeded();
    // Ids of a small part of the model's vocabulary may be another tokenizer's, and ids beyond it are.
    let words: Vec<String> = fixture.read("model/vocab.txt").lines().map(str::to_owned).collect();
    fixture.write("few/vocab.txt", &(words[..5].join("\n") + "\ngood\nbad\n"));
    fixture.write(
        "many/vocab.txt",
        &(words.join("\n") + "\n" + &(0..99).map(|at| format!("w{at}\n")).collect::<String>()),
    );
    fixture.write("of_few.jsonl", &"{\"text\": \"good bad\"}\n".repeat(40));
    fixture.write("of_many.jsonl", &"{\"text\": \"w90 w97\"}\n".repeat(40));
    for name in ["few", "many"] {
        let (data, out) = (format!("of_{name}.jsonl"), format!("of_{name}"));
        let build = ["build", &data, "--tokenizer", name, "--out", &out, "--eod-token", "[SEP]"];
        fixture.run(program("corpus"), &build).succeeded();
    }
    let sets = ["--set", "data.eod_token=[SEP]", "--out", "s.toml"];
    let small = init(&fixture, &[&ask[..], &["of_few"], &sets].concat()).succeeded();
    assert!(small.stderr.contains("the largest token id seen is 6, and model has"), "{}", small.stderr);
    let sets = ["--set", "data.eod_token=[SEP]", "--out", "t.toml"];
    let refused = init(&fixture, &[&ask[..], &["of_many"], &sets].concat()).refused();
    assert!(refused.contains("the vocabulary of model has") && refused.contains("--tokenizer model"), "{refused}");
    // Token files of their own are evaluated on, as far as they go, whichever way they are named.
    fixture.write("valid.jsonl", &sentences(3000));
    let build = ["build", "valid.jsonl", "--tokenizer", "model", "--out", "books_valid", "--eod-token", "[SEP]"];
    fixture.run(program("corpus"), &build).succeeded();
    for (name, data) in [("q", &["books", "--eval", "books_valid"][..]), ("r", &["books.bin", "books_valid.bin"])] {
        let out = format!("{name}.toml");
        let sets = ["--set", "data.eod_token=[SEP]", "--out", &out];
        init(&fixture, &[&ask[..], data, &sets].concat()).succeeded();
        let recipe = fixture.read(&out);
        has_lines(&recipe, &["corpora = [\"books\"] # ", "valid = [\"books_valid\"] # given: ", "split = \"100,0,0\""]);
        let iterations = recipe.lines().find_map(|line| line.strip_prefix("iterations = ")).unwrap();
        let iterations: u64 = iterations.split(' ').next().unwrap().parse().unwrap();
        assert!(iterations > 1, "{recipe}");
        fixture.run(program("pretrain"), &["--recipe", &out, "--dry-run"]).succeeded();
    }
}

#[test]
fn what_no_recipe_can_be_made_of_is_named_with_a_way_out() {
    let fixture = Fixture::new();
    fixture.write("one.csv", "text,label\ngood,a\nbad,a\nfine,a\n");
    fixture.write("tables.csv", "a,b\n1,2\n3,4\n");
    fixture.write("table.xlsx", "PK");
    let message = |role: &str| format!("{{\"role\": \"{role}\", \"content\": \"he\"}}");
    let chat = format!("{{\"messages\": [{}, {}]}}\n", message("user"), message("assistant"));
    fixture.write("chats.jsonl", &chat.repeat(3));
    let with = |preset: &'static str, data: &'static str, more: &[&'static str]| {
        let ask = ["--preset", preset, "--model", "model", "--out", "new.toml", "--data", data];
        [&ask[..], more].concat()
    };
    for (arguments, texts) in [
        (with("classify", "one.csv", &[]), vec!["no column looks like a label", "--column label=NAME", "text, label"]),
        (with("classify", "one.csv", &["--column", "label=label"]), vec!["has the same value in all records"]),
        (with("classify", "tables.csv", &[]), vec!["--column label=NAME; columns are a, b"]),
        (with("classify", "none.csv", &[]), vec!["none.csv"]),
        (with("classify", "one.csv", &["--column", "tag=label"]), vec!["names no column", "WHAT=NAME"]),
        (with("classify", "one.csv", &["--column", "label=labl"]), vec!["no record of one.csv has this column"]),
        (with("sft", "chats.jsonl", &[]), vec!["is an encoder", "name a language model"]),
        (with("classify", "train.jsonl", &["--set", "train.lrr=1"]), vec!["train.lrr", "train.lr"]),
        (with("classify", "train.jsonl", &["--memory", "0"]), vec!["--memory"]),
        (with("classify", "table.xlsx", &[]), vec!["does not determine the format", "save a spreadsheet as .csv"]),
    ] {
        let outcome = init(&fixture, &arguments);
        assert!(matches!(outcome.code, 2 | 3), "{arguments:?}: {outcome:?}");
        for text in texts {
            assert!(outcome.stderr.contains(text), "{arguments:?}: {text} is not in {}", outcome.stderr);
        }
    }
    let chat = Fixture::decoder();
    chat.write("chats.jsonl", &fixture.read("chats.jsonl"));
    let refused = init(&chat, &with("sft", "chats.jsonl", &[])).refused();
    assert!(refused.contains("no chat template"), "{refused}");
    chat.write("tok/vocab.txt", &chat.read("model/vocab.txt"));
    let ask = ["--preset", "sft", "--model", "tok", "--out", "none.toml", "--data", "train.jsonl"];
    let refused = init(&chat, &ask).refused();
    assert!(
        refused.contains("there is a tokenizer, and no config.json") && refused.contains("pretraining.md"),
        "{refused}"
    );
    // A model of the cache's that is not there, and the preset's own, which may come later.
    let ask = ["--preset", "sft", "--model", "org/none", "--out", "none.toml", "--data", "train.jsonl"];
    let refused = init(&chat, &ask).refused();
    assert!(refused.contains("bmtrain fetch org/none"), "{refused}");
    let outcome = init(&chat, &["--preset", "classify", "--data", "train.jsonl", "--out", "later.toml"]).succeeded();
    assert!(outcome.stderr.contains("`bmtrain fetch google-bert/bert-base-uncased`"), "{}", outcome.stderr);
    assert!(chat.read("later.toml").contains("estimated: 4 characters a token"));
}

#[test]
fn every_program_prints_completions_and_a_manual_page() {
    let fixture = Fixture::new();
    let programs = [
        program("bench"),
        program("ckpt"),
        program("convert"),
        program("corpus"),
        program("data"),
        program("doctor"),
        program("evaluate"),
        program("finetune"),
        program("forward"),
        program("generate"),
        program("import"),
        program("init"),
        program("plan"),
        program("pretrain"),
        program("runs"),
        program("serve"),
        program("simulate"),
        program("tokenizer"),
    ];
    for program in programs {
        let name = program.rsplit('/').next().unwrap();
        for shell in ["bash", "zsh", "fish"] {
            let text = fixture.run(program, &["--completions", shell]).succeeded().stdout;
            assert!(text.contains(name) && text.contains("help"), "{name}, {shell}: {text}");
        }
        let text = fixture.run(program, &["--man"]).succeeded().stdout;
        assert!(text.contains(&format!(".TH {name} 1")) && text.contains(".SH DESCRIPTION"), "{name}: {text}");
        let refused = fixture.run(program, &["--completions", "command.com"]).refused();
        assert!(refused.contains("write one of bash"), "{name}: {refused}");
    }
}
