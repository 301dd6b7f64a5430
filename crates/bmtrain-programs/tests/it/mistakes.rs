//! More than sixty mistakes, each made on purpose in a recipe, a data file, a model directory or on the command line:
//! the dry run names each with place, reason and fix, before weights are read, and leaves every file as it was.

use crate::bad_input::check;
use crate::fixture::{Fixture, VOCABULARY, sentences, vocabulary};
use std::collections::BTreeSet;

/// What the dry run is given.
enum Kind {
    /// BERT with a classification.
    Encoder,
    /// GPT-2 with conversations, prompts and completions, or texts.
    Decoder,
}

/// A mistake: its name, the run, what is changed, arguments, and the exit code, place and texts of the message.
struct Mistake {
    name: &'static str,
    kind: Kind,
    make: fn(&Fixture),
    arguments: &'static [&'static str],
    code: i32,
    place: &'static str,
    texts: &'static [&'static str],
}

const USAGE: i32 = 2;
const DATA: i32 = 3;
const UNQUOTED: &str = "{\"text\": good}\n";
const CHAT: &str = "{\"messages\": [{\"role\": \"user\", \"content\": \"he\"}]}\n";
const ANSWERED: &str = "{\"messages\": [{\"role\": \"user\", \"content\": \"he\"}, \
                        {\"role\": \"assistant\", \"content\": \"she\"}]}\n";
const LONG: &str = "{\"prompt\": \"the film was very good and the plot\", \"completion\": \"yes\"}\n";
/// Lines of the recipe.
const FILES: &str = "train = \"train.jsonl\"\neval = \"eval.jsonl\"\n";
const SFT: &str = "task = \"sft\"\ntrain = \"train.jsonl\"\neval = \"eval.jsonl\"\nmax_length = 16";

const fn set(
    name: &'static str,
    arguments: &'static [&'static str],
    place: &'static str,
    texts: &'static [&'static str],
) -> Mistake {
    Mistake { name, kind: Kind::Encoder, make: |_| {}, arguments, code: USAGE, place, texts }
}

const fn file(name: &'static str, make: fn(&Fixture), place: &'static str, texts: &'static [&'static str]) -> Mistake {
    Mistake { name, kind: Kind::Encoder, make, arguments: &[], code: DATA, place, texts }
}

const fn sft(
    name: &'static str,
    make: fn(&Fixture),
    arguments: &'static [&'static str],
    place: &'static str,
    texts: &'static [&'static str],
) -> Mistake {
    Mistake { name, kind: Kind::Decoder, make, arguments, code: DATA, place, texts }
}

fn recipe(fixture: &Fixture, from: &str, to: &str) {
    fixture.replace("recipe.toml", from, to);
}

fn config(fixture: &Fixture, from: &str, to: &str) {
    fixture.replace("model/config.json", from, to);
}

fn remove(fixture: &Fixture, name: &str) {
    std::fs::remove_file(fixture.path(name)).unwrap();
}

/// Trains on another file of these contents.
fn trains_on(fixture: &Fixture, name: &str, text: &str) {
    fixture.write(name, text);
    recipe(fixture, "train = \"train.jsonl\"", &format!("train = \"{name}\""));
}

const MISTAKES: &[Mistake] = &[
    // The recipe and the command line.
    Mistake {
        code: USAGE,
        ..file("a key with a typo", |f| recipe(f, "batch_size", "batch_szie"), "recipe.toml:12:", &["train.batch_size"])
    },
    Mistake { code: USAGE, ..file("a table with a typo", |f| recipe(f, "[log]", "[lgo]"), "recipe.toml:", &["[log]"]) },
    Mistake {
        code: USAGE,
        ..file("a key twice", |f| recipe(f, "steps = 3", "steps = 3\nsteps = 4"), "recipe.toml:12:", &["set twice"])
    },
    Mistake { code: USAGE, ..file("no TOML", |f| recipe(f, "steps = 3", "steps = = 3"), "recipe.toml:11:", &["TOML"]) },
    Mistake {
        code: USAGE,
        ..file("no end", |f| recipe(f, "steps = 3\n", ""), "recipe.toml:", &["no limit", "train.epochs"])
    },
    Mistake {
        code: USAGE,
        ..file("no task", |f| recipe(f, "task = \"classification\"\n", ""), "recipe.toml", &["data.task"])
    },
    Mistake { code: USAGE, ..file("no output", |f| recipe(f, "dir = \"run\"", ""), "recipe.toml", &["output.dir"]) },
    Mistake {
        code: USAGE,
        ..file("no training file", |f| recipe(f, "train = \"train.jsonl\"\n", ""), "recipe.toml", &["data.train"])
    },
    Mistake { code: USAGE, ..file("no recipe", |f| remove(f, "recipe.toml"), "recipe.toml", &["No such file"]) },
    set("an argument without a value", &["--set", "train.lr"], "train.lr", &["key=value"]),
    set("another trainer's name", &["--set", "train.learning_rate=1e-4"], "train.learning_rate", &["train.lr"]),
    set("a text for a number", &["--set", "train.lr=fast"], "train.lr=fast", &["a number above 0"]),
    set("a negative rate", &["--set", "train.lr=-1"], "train.lr=-1", &["above 0"]),
    set("no batch", &["--set", "train.batch_size=0"], "train.batch_size=0", &["from 1"]),
    set("a schedule with a typo", &["--set", "train.schedule=lineer"], "lineer", &["did you mean \"linear\"?"]),
    set("an interval of weeks", &["--set", "eval.every=\"1 week\""], "eval.every", &["200 steps"]),
    set(
        "a micro-batch that does not divide",
        &["--set", "train.micro_batch_size=3"],
        "micro_batch_size=3",
        &["does not divide"],
    ),
    set("a batch larger than the data", &["--set", "train.batch_size=17"], "train.batch_size=17", &["16 samples"]),
    set("a warm-up as long as the run", &["--set", "train.warmup=3"], "train.warmup=3", &["as long as the run"]),
    set(
        "a scale that is not a power of two",
        &["--set", "model.dtype=f16", "train.loss_scale_start=1000"],
        "1000",
        &["power of two"],
    ),
    set("a metric of numbers", &["--set", "eval.metric=pearson"], "eval.metric=pearson", &["accuracy"]),
    set("a setting without effect", &["--set", "train.gamma=0.9"], "train.gamma=0.9", &["no effect", "exponential"]),
    set("a class twice", &["--set", "data.labels=[\"positive\", \"positive\"]"], "data.labels", &["twice"]),
    set("one class", &["--set", "data.labels=[\"positive\"]"], "data.labels", &["needs two"]),
    set("two columns of one name", &["--set", "data.columns.text_pair=text"], "text_pair", &["name two columns"]),
    set("a file of unknown format", &["--set", "data.train=train.bin"], "data.train=train.bin", &["data.format"]),
    set("a rank without updates", &["--set", "adapter.rank=8"], "adapter.rank=8", &["adapter.method"]),
    set("groups without a factor", &["--set", "train.groups=[{ params = [\"*\"] }]"], "train.groups", &["lr_factor"]),
    set(
        "order kept and grouped",
        &["--set", "data.shuffle=false", "data.length_grouped=true"],
        "length_grouped",
        &["keeps the order"],
    ),
    set(
        "offload without ZeRO-3",
        &["--set", "train.offload=true", "train.offload_parameters=true", "parallel.zero=1"],
        "parallel.zero=1",
        &["parallel.zero = 3"],
    ),
    set("output into the model", &["--set", "output.dir=model"], "output.dir=model", &["model.path"]),
    set("a log above its directory", &["--set", "log.metrics=../m.jsonl"], "log.metrics", &["plain file name"]),
    set(
        "a limit of bad records without leaving any out",
        &["--set", "data.bad_record_limit=0.1"],
        "bad_record_limit",
        &["no effect"],
    ),
    set("positions exceeded", &["--set", "data.max_length=25"], "data.max_length=25", &["24 positions"]),
    // Ranks.
    set("a batch that ranks do not divide", &["--ranks", "3"], "recipe.toml:12:14", &["3 ranks", "train.batch_size"]),
    set(
        "heads that tensor ranks do not divide",
        &["--ranks", "3", "parallel.tensor=3", "train.batch_size=3"],
        "parallel.tensor=3",
        &["4 attention heads"],
    ),
    set("ranks that tensor ranks do not divide", &["--ranks", "3", "parallel.tensor=2"], "parallel.tensor=2", &["3"]),
    set(
        "more stages than blocks",
        &["--ranks", "3", "parallel.pipeline=3", "train.batch_size=3"],
        "parallel.pipeline=3",
        &["2 blocks"],
    ),
    set(
        "a zero-bubble schedule with ZeRO-3",
        &["--ranks", "4", "parallel.pipeline=2", "parallel.schedule=zb-1p"],
        "parallel.",
        &["1f1b"],
    ),
    set(
        "a sequence sharded over one rank",
        &["--set", "parallel.sequence=true"],
        "parallel.sequence=true",
        &["parallel.tensor"],
    ),
    // Data.
    file("a training file that is not there", |f| remove(f, "train.jsonl"), "recipe.toml:6:", &["train.jsonl"]),
    file("an evaluation file that is not there", |f| remove(f, "eval.jsonl"), "recipe.toml:7:", &["eval.jsonl"]),
    file("an empty file", |f| f.write("train.jsonl", ""), "recipe.toml:6:", &["empty"]),
    file("broken JSON", |f| f.write("train.jsonl", &(sentences(2) + UNQUOTED)), "train.jsonl:3:", &["JSON"]),
    file(
        "a file cut off",
        |f| f.write("train.jsonl", &(sentences(8) + "{\"text\": \"go")),
        "train.jsonl:9:",
        &["cut off"],
    ),
    file(
        "bytes that are not text",
        |f| f.write_bytes("train.jsonl", b"{\"text\": \"\xFF\", \"label\": \"a\"}\n"),
        "train.jsonl:1:",
        &["UTF-8"],
    ),
    file(
        "a record without its text",
        |f| f.write("train.jsonl", "{\"txt\": \"good\", \"label\": \"a\"}\n"),
        "train.jsonl:1:",
        &["no column \"text\"", "data.columns"],
    ),
    Mistake {
        arguments: &["--set", "data.columns.label=topic"],
        ..file("a column that is not there", |_| {}, "train.jsonl:1:", &["no column \"topic\"", "label"])
    },
    file(
        "one label in all records",
        |f| f.write("train.jsonl", &sentences(16).replace("negative", "positive")),
        "train.jsonl",
        &["same label"],
    ),
    file(
        "a label that training has not",
        |f| f.write("eval.jsonl", &sentences(8).replace("\"negative\"", "\"neutral\"")),
        "eval.jsonl:2:",
        &["neutral", "positive"],
    ),
    Mistake {
        arguments: &["--set", "data.labels=[\"no\", \"yes\"]"],
        ..file(
            "a label beyond the list",
            |f| f.write("train.jsonl", "{\"text\": \"good\", \"label\": 2}\n"),
            "train.jsonl:1:",
            &["out of range"],
        )
    },
    Mistake {
        arguments: &["--set", "data.max_length=6", "data.too_long=error"],
        ..file("a text too long", |_| {}, "train.jsonl:", &["data.max_length = 6"])
    },
    file(
        "a row with a field too many",
        |f| trains_on(f, "train.csv", "text,label\ngood, very,a\n"),
        "train.csv:2:",
        &["3 fields", "quotes"],
    ),
    file(
        "a quote that is not closed",
        |f| trains_on(f, "train.csv", "text,label\n\"good,a\nbad,b\n"),
        "train.csv:2:1",
        &["not closed"],
    ),
    file(
        "a header with a column twice",
        |f| trains_on(f, "train.csv", "text,text\ngood,a\n"),
        "train.csv:1:6",
        &["twice"],
    ),
    file("text of UTF-16", |f| f.write_bytes("train.jsonl", b"\xFF\xFE{\0}\0"), "train.jsonl", &["UTF-16", "iconv"]),
    file(
        "conversations for a classifier",
        |f| f.write("train.jsonl", CHAT),
        "train.jsonl:1:",
        &["data.task = \"sft\""],
    ),
    Mistake {
        code: USAGE,
        arguments: &["--set", "data.class_weights={ positive = 1.0 }"],
        ..file("a class without a weight", |_| {}, "data.class_weights", &["\"negative\" has no weight"])
    },
    // The model.
    Mistake {
        arguments: &["--set", "model.path=./modle"],
        ..file("a path with a typo", |_| {}, "model.path=./modle", &["./model"])
    },
    Mistake {
        arguments: &["--set", "model.path=org/nothing"],
        ..file("a model that was not fetched", |_| {}, "model.path=org/nothing", &["bmtrain fetch org/nothing"])
    },
    Mistake {
        arguments: &["--set", "model.path=lawformer"],
        ..file(
            "a model of a family that is not there",
            |_| {},
            "model.path=lawformer",
            &["family longformer is not available"],
        )
    },
    file("no configuration", |f| remove(f, "model/config.json"), "recipe.toml:2:", &["config.json"]),
    file("no weights", |f| remove(f, "model/model.safetensors"), "model", &["model.safetensors"]),
    file("no tokenizer", |f| remove(f, "model/vocab.txt"), "model", &["vocab.txt"]),
    file(
        "a configuration that is not JSON",
        |f| config(f, "\"hidden_size\": 32,", "\"hidden_size\": 32"),
        "model/config.json",
        &["JSON"],
    ),
    file(
        "an unknown family",
        |f| config(f, "\"model_type\": \"bert\"", "\"model_type\": \"mamba\""),
        "model/config.json",
        &["mamba", "supported are"],
    ),
    file("an unknown activation", |f| config(f, "\"gelu\"", "\"swirl\""), "model", &["swirl"]),
    file(
        "heads that do not divide",
        |f| config(f, "\"num_attention_heads\": 4", "\"num_attention_heads\": 5"),
        "model/config.json",
        &["num_attention_heads"],
    ),
    file(
        "weights of another size",
        |f| config(f, "\"intermediate_size\": 64", "\"intermediate_size\": 96"),
        "model.safetensors",
        &["expected [96"],
    ),
    file(
        "weights cut off",
        |f| {
            let all = f.bytes("model/model.safetensors");
            f.write_bytes("model/model.safetensors", &all[..all.len() / 2]);
        },
        "model.safetensors",
        &["again"],
    ),
    file(
        "a tokenizer of another vocabulary",
        |f| f.write("model/vocab.txt", &vocabulary(VOCABULARY + 1)),
        "model/vocab.txt",
        &["102 tokens", "101 rows"],
    ),
    Mistake {
        arguments: &["--set", "model.leave=[\"ner.*\"]"],
        ..file("a pattern that matches nothing", |_| {}, "model.safetensors", &["ner.*", "matches none"])
    },
    Mistake {
        code: USAGE,
        arguments: &["--set", "adapter.method=lora", "adapter.targets=[\"q_prj\"]"],
        ..file("updates of no layer", |_| {}, "adapter.targets", &["q_prj"])
    },
    Mistake {
        arguments: &["--set", "adapter.method=lora", "adapter.path=nowhere"],
        ..file("an adapter that is not there", |_| {}, "nowhere", &["adapter"])
    },
    set("an encoder for next tokens", &["--set", "data.task=language"], "data.task=language", &["BERT is an encoder"]),
    // Conversations and token files.
    sft(
        "records of unknown form",
        |f| f.write("train.jsonl", "{\"q\": \"he\", \"a\": \"she\"}\n"),
        &[],
        "train.jsonl:1:",
        &["no known form", "data.columns"],
    ),
    Mistake {
        code: USAGE,
        ..sft(
            "conversations without a template",
            |f| f.write("train.jsonl", ANSWERED),
            &[],
            "data.task",
            &["chat template"],
        )
    },
    sft(
        "a prompt that leaves nothing to learn",
        |f| f.write("train.jsonl", &LONG.repeat(8)),
        &["--set", "data.max_length=5"],
        "train.jsonl:1:",
        &["data.max_length"],
    ),
    Mistake {
        code: USAGE,
        ..sft(
            "a format without its text",
            |_| {},
            &["--set", "data.input_format=\"Q: \""],
            "data.input_format",
            &["__input__"],
        )
    },
    sft(
        "a data set that is not there",
        |f| {
            recipe(f, FILES, "sets = [{ path = \"none\" }]\n");
        },
        &[],
        "recipe.toml:6:",
        &["none"],
    ),
    Mistake {
        code: USAGE,
        ..sft(
            "pretraining without corpora",
            |f| recipe(f, SFT, "task = \"pretrain\""),
            &[],
            "recipe.toml",
            &["data.corpora"],
        )
    },
    sft(
        "a corpus that is not there",
        |f| {
            f.write("books.bin", "tokens without an index");
            recipe(f, SFT, "task = \"pretrain\"\ncorpora = [\"books\"]");
        },
        &[],
        "recipe.toml:6:",
        &["books.idx", "corpus build"],
    ),
];

#[test]
fn each_of_sixty_mistakes_is_named_by_the_dry_run_with_place_reason_and_fix() {
    let names: BTreeSet<&str> = MISTAKES.iter().map(|mistake| mistake.name).collect();
    assert!(names.len() == MISTAKES.len() && names.len() >= 60, "{} mistakes", names.len());
    let mut wrong = Vec::new();
    for mistake in MISTAKES {
        let found = std::panic::catch_unwind(|| {
            let fixture = match mistake.kind {
                Kind::Encoder => Fixture::new(),
                Kind::Decoder => {
                    let fixture = Fixture::decoder();
                    recipe(&fixture, "\"classification\"", "\"sft\"");
                    let record = "{\"prompt\": \"is it good ?\", \"completion\": \"yes\"}\n";
                    fixture.write("train.jsonl", &record.repeat(8));
                    fixture.write("eval.jsonl", &record.repeat(4));
                    fixture
                }
            };
            (mistake.make)(&fixture);
            let before = fixture.snapshot();
            let outcome = fixture.finetune(&[mistake.arguments, &["--dry-run"]].concat());
            check(&outcome, mistake.code, mistake.place, mistake.texts);
            assert_eq!(fixture.snapshot(), before, "files were changed");
        });
        if let Err(panic) = found {
            let text = panic.downcast_ref::<String>().cloned();
            wrong.push(format!("{}: {}", mistake.name, text.unwrap_or_default()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), MISTAKES.len(), wrong.join("\n"));
}
