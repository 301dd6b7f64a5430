//! `predict`: files of inputs in, results in their order out, with the metrics that the run's own evaluation had.

use crate::fixture::program;
use crate::fixture::{Fixture, Outcome};
use crate::tensor::{SHORT, records, train};
use serde_json::{Map, Value, json};

fn predict(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("predict"), &[arguments, &["--threads", "1"]].concat())
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Trains for some steps into `dir/model`; the metrics of the last evaluation.
fn trained(fixture: &Fixture, dir: &str, sets: &[&str]) -> Map<String, Value> {
    train(fixture, dir, 1, &[&SHORT[..], &["train.steps=6", "train.lr=3e-3"], sets].concat()).succeeded();
    let evals = records(fixture, dir, "eval");
    evals.last().unwrap()["metrics"].as_object().unwrap().clone()
}

/// The metrics of a run and of predictions: equal but for the loss, which predictions have none of.
fn assert_metrics(fixture: &Fixture, file: &str, of_run: &Map<String, Value>, count: usize) {
    let found: Value = serde_json::from_str(&fixture.read(file)).unwrap();
    assert_eq!(found["labelled"], count);
    let mut compared = 0;
    for (name, value) in of_run.iter().filter(|(name, _)| *name != "loss") {
        let [ours, of_run] = [&found[name], value].map(|value| value.as_f64().unwrap());
        // The order of sums in a batch of another size differs.
        assert!((ours - of_run).abs() < 1e-5, "{name}: {ours} and {of_run}");
        compared += 1;
    }
    assert!(compared > 0, "{of_run:?}");
}

#[test]
fn a_classifier_labels_files_of_every_format_with_the_metrics_of_its_run() {
    let fixture = Fixture::new();
    let of_run = trained(&fixture, "run", &[]);
    let all = ["run/model", "eval.jsonl", "--out", "out.jsonl", "--metrics-out", "metrics.json"];
    let outcome = predict(&fixture, &all).succeeded();
    assert!(outcome.stderr.contains("8 records") && outcome.stderr.contains("accuracy"), "{}", outcome.stderr);
    assert_metrics(&fixture, "metrics.json", &of_run, 8);
    let (inputs, results) = (lines(&fixture.read("eval.jsonl")), lines(&fixture.read("out.jsonl")));
    assert_eq!(inputs.len(), results.len());
    let mut right = 0;
    for (input, result) in inputs.iter().zip(&results) {
        assert_eq!(result["text"], input["text"], "in the order of the inputs");
        let probabilities = result["probabilities"].as_object().unwrap();
        let sum: f64 = probabilities.values().map(|value| value.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{result}");
        assert_eq!(probabilities[result["prediction"].as_str().unwrap()], result["score"]);
        right += u32::from(result["prediction"] == input["label"]);
    }
    assert_eq!(f64::from(right) / 8.0, of_run["accuracy"].as_f64().unwrap());

    // The same texts in a table, in lines and on the command line.
    let texts: Vec<&str> = inputs.iter().map(|input| input["text"].as_str().unwrap()).collect();
    let csv: String = texts.iter().enumerate().map(|(at, text)| format!("{at};\"{text}\"\n")).collect();
    fixture.write("in.csv", &format!("number;body\n{csv}"));
    predict(&fixture, &["run/model", "in.csv", "--delimiter", ";", "--text", "body", "--out", "out.csv"]).succeeded();
    let table = fixture.read("out.csv");
    let mut rows = table.lines();
    let header: Vec<&str> = rows.next().unwrap().split(',').collect();
    assert_eq!(header[..4], ["number", "body", "prediction", "score"]);
    assert!(header[4..].iter().all(|name| name.starts_with("probability ")), "{header:?}");
    for (row, result) in rows.zip(&results) {
        let cells: Vec<&str> = row.rsplitn(header.len() - 1, ',').collect();
        assert_eq!(cells[header.len() - 3], result["prediction"], "{row}");
        assert_eq!(cells[header.len() - 4].parse::<f32>().unwrap(), result["score"].as_f64().unwrap() as f32, "{row}");
    }
    fixture.write("in.txt", &texts.iter().map(|text| format!("{text}\n")).collect::<String>());
    let printed = predict(&fixture, &["run/model", "in.txt", "--only-predictions"]).succeeded();
    let predictions: Vec<&Value> = results.iter().map(|result| &result["prediction"]).collect();
    let printed = lines(&printed.stdout);
    assert_eq!(printed.iter().map(|line| &line["prediction"]).collect::<Vec<_>>(), predictions);
    assert!(printed.iter().all(|line| line.as_object().unwrap().keys().next().unwrap() == "prediction"));
    let sentence = predict(&fixture, &["run/model", "--sentence", texts[0], "--sentence", texts[1]]).succeeded();
    assert_eq!(lines(&sentence.stdout)[1]["prediction"], *predictions[1]);
}

#[test]
fn labels_numbers_words_and_answers_have_the_metrics_of_their_runs() {
    let fixture = Fixture::new();
    let labels = |at: usize| [vec!["good"], vec![], vec!["good", "film"]][at % 3].clone();
    let text = |at: usize| ["the film is good", "a poor plot", "very good end", "bad cast"][at % 4];
    let rows = |row: &dyn Fn(usize) -> Value| (0..12).map(|at| format!("{}\n", row(at))).collect::<String>();
    let tags = |at: usize| [["O", "O", "B-LOC", "I-LOC", "O"], ["O", "O", "O", "B-LOC", "O"]][at % 2];
    let words = |at: usize| json!({"tokens": ["she", "likes", "river", "bank", "."], "ner_tags": tags(at)});
    type Row<'r> = &'r dyn Fn(usize) -> Value;
    let sets: [(&str, Row<'_>); 3] = [
        ("multi-label-classification", &|at| json!({"text": text(at), "label": labels(at)})),
        ("regression", &|at| json!({"text": text(at), "label": at as f64 / 4.0})),
        ("token-classification", &words),
    ];
    for (task, row) in sets {
        fixture.write("train.jsonl", &rows(row));
        fixture.write("eval.jsonl", &rows(row));
        let key = format!("data.task={task}");
        let of_run = trained(&fixture, task, &[&key]);
        let model = format!("{task}/model");
        predict(&fixture, &[&model, "eval.jsonl", "--out", "out.jsonl", "--metrics-out", "metrics.json"]).succeeded();
        assert_metrics(&fixture, "metrics.json", &of_run, 12);
    }
    // Of CoNLL's text the words, their tags and the same classes.
    let conll: String = (0..12)
        .map(|at| {
            let row = words(at);
            let pairs = row["tokens"].as_array().unwrap().iter().zip(row["ner_tags"].as_array().unwrap());
            pairs
                .map(|(word, tag)| format!("{} {}\n", word.as_str().unwrap(), tag.as_str().unwrap()))
                .collect::<String>()
                + "\n"
        })
        .collect();
    fixture.write("eval.conll", &conll);
    predict(&fixture, &["token-classification/model", "eval.conll", "--out", "conll.jsonl"]).succeeded();
    assert_eq!(fixture.read("conll.jsonl"), fixture.read("out.jsonl").replace("\"ner_tags\"", "\"tags\""));
}

#[test]
fn questions_have_the_metrics_of_their_run_and_answers_at_their_places() {
    let fixture = Fixture::new();
    let passages =
        ["the man is in the park and she is not in the bank", "money is very good , he was fine in the river"];
    let asked = |at: usize, question: &str, answer: &str| {
        let start = passages[at].find(answer).unwrap();
        json!({"id": format!("q{at}{answer}"), "question": question,
            "answers": [{"text": answer, "answer_start": start}]})
    };
    let paragraph = |at: usize, qas: &[Value]| json!({"paragraphs": [{"context": passages[at], "qas": qas}]});
    let data = json!({"data": [
        paragraph(0, &[asked(0, "question the man ?", "the park"), asked(0, "question she ?", "the bank")]),
        paragraph(1, &[asked(1, "question he ?", "fine"), asked(1, "question money ?", "very good")]),
    ]});
    fixture.write("train.json", &data.to_string());
    let sets = ["data.task=question-answering", "data.train=train.json", "data.eval=train.json", "train.batch_size=2"];
    let of_run = trained(&fixture, "run", &[&sets[..], &["eval.batch_size=2"]].concat());
    let all = ["run/model", "train.json", "--format", "squad", "--max-length", "16"];
    let out = ["--out", "out.jsonl", "--metrics-out", "metrics.json"];
    predict(&fixture, &[&all[..], &out].concat()).succeeded();
    assert_metrics(&fixture, "metrics.json", &of_run, 4);
    for result in lines(&fixture.read("out.jsonl")) {
        let [start, end] = ["start", "end"].map(|name| result[name].as_u64().unwrap() as usize);
        assert_eq!(
            result["context"].as_str().unwrap()[start..end],
            *result["prediction"].as_str().unwrap(),
            "{result}"
        );
        assert!(result["id"].is_string() && result["score"].as_f64().unwrap() <= 1.0, "{result}");
    }
    // The same questions as records.
    let rows: String = lines(&fixture.read("out.jsonl"))
        .iter()
        .map(|row| format!("{}\n", json!({"question": row["question"], "context": row["context"]})))
        .collect();
    fixture.write("in.jsonl", &rows);
    let printed = predict(&fixture, &["run/model", "in.jsonl", "--max-length", "16", "--only-predictions"]).succeeded();
    let predictions = |text: &str| lines(text).iter().map(|one| one["prediction"].clone()).collect::<Vec<_>>();
    assert_eq!(predictions(&printed.stdout), predictions(&fixture.read("out.jsonl")));
}

#[test]
fn records_that_cannot_be_used_are_named_or_left_out_and_nothing_is_written_then() {
    let fixture = Fixture::new();
    trained(&fixture, "run", &[]);
    let label = lines(&fixture.read("eval.jsonl"))[0]["label"].clone();
    fixture.write(
        "in.jsonl",
        &format!(
            "{}\n{}\n{}\n",
            json!({"text": "good film", "label": label}),
            json!({"text": " "}),
            json!({"text": "bad", "label": "neither"})
        ),
    );
    let out = ["--out", "out.jsonl"];
    let error = predict(&fixture, &[&["run/model", "in.jsonl"], &out[..]].concat()).refused();
    assert!(error.contains("in.jsonl:2:") && error.contains("--skip-bad-records"), "{error}");
    assert!(!fixture.path("out.jsonl").exists());
    let outcome = predict(&fixture, &[&["run/model", "in.jsonl", "--skip-bad-records"], &out[..]].concat()).succeeded();
    assert!(
        outcome.stderr.contains("2 left out") && outcome.stderr.contains("unknown label \"neither\""),
        "{}",
        outcome.stderr
    );
    assert_eq!(lines(&fixture.read("out.jsonl")).len(), 1);
    let ignoring = ["run/model", "in.jsonl", "--skip-bad-records", "--without-labels", "--out", "out.jsonl"];
    predict(&fixture, &ignoring).succeeded();
    assert_eq!(lines(&fixture.read("out.jsonl")).len(), 2);

    fixture.write("taken.jsonl", "{\"text\": \"good\", \"score\": 1}\n");
    fixture.write("none.jsonl", "");
    for (arguments, reason) in [
        (&["run/model", "taken.jsonl"][..], "\"score\", and results have one too"),
        (&["run/model", "none.jsonl"], "there is no record"),
        (&["run/model", "train.jsonl", "--text", "body"], "no column \"body\"; columns: text"),
        (&["run/model", "train.jsonl", "--out", "out.xlsx"], "names no format of results"),
        (&["run/model", "train.jsonl", "--tokens", "text"], "the model does not classify words"),
        (&["run/model", "train.jsonl", "--metric", "pearson"], "\"pearson\" does not judge"),
        (&["run/model", "train.jsonl", "--max-length", "900"], "--max-length"),
        (&["run/model", "taken.jsonl", "--only-predictions", "--metrics-out", "m.json"], "there are no metrics"),
        (&["model", "train.jsonl"], "it is pretrained"),
    ] {
        let error = predict(&fixture, arguments).refused();
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
    // Not trained, but wanted.
    let embedded = predict(&fixture, &["model", "train.jsonl", "--embeddings", "--only-predictions"]).succeeded();
    assert_eq!(lines(&embedded.stdout)[0]["prediction"].as_array().unwrap().len(), 32);
}

#[test]
fn an_adapter_predicts_with_the_head_that_it_trained() {
    let fixture = Fixture::new();
    let of_run = trained(&fixture, "run", &["adapter.method=lora", "adapter.rank=2"]);
    let all = ["run/model", "eval.jsonl", "--out", "out.jsonl", "--metrics-out", "metrics.json"];
    // A directory of PEFT does not name the classes.
    assert!(predict(&fixture, &all).refused().contains("known: LABEL_0, LABEL_1"));
    let error = predict(&fixture, &[&all[..], &["--labels", "negative"]].concat()).refused();
    assert!(error.contains("--labels") && error.contains("has 2 classes"), "{error}");
    predict(&fixture, &[&all[..], &["--labels", "negative,positive"]].concat()).succeeded();
    assert_metrics(&fixture, "metrics.json", &of_run, 8);
}

#[test]
fn a_language_model_is_answered_with_what_to_run() {
    let fixture = Fixture::decoder();
    let error = predict(&fixture, &["model", "train.jsonl"]).refused();
    assert!(error.contains("it generates texts") && error.contains("generate"), "{error}");
}

#[test]
fn options_without_effect_and_files_that_would_be_lost_are_refused() {
    let fixture = Fixture::new();
    trained(&fixture, "run", &[]);
    fixture.write("in.csv.gz", "x");
    std::fs::write(fixture.path("zipped.jsonl.gz"), [0x1F, 0x8B, 8, 0]).unwrap();
    let before = fixture.read("eval.jsonl");
    for (arguments, texts) in [
        (&["--threshold", "0.9"][..], ["--threshold", "it has no effect"]),
        (&["--stride", "4"], ["--stride", "it has no effect"]),
        (&["--may-be-none"], ["--may-be-none", "the model answers no questions"]),
        (&["--prompt-name", "query"], ["--prompt-name", "embeds no texts"]),
        (&["--metric", "f1_weighted", "--without-labels"], ["--metric", "--without-labels"]),
        (&["--metrics-out", "m.json", "--embeddings"], ["--metrics-out", "compared with labels"]),
        (&["--delimiter", ";"], ["--delimiter", "not a file of columns"]),
        (&["--label", "text", "--text", "text"], ["--label", "is read as an input too"]),
        (&["--labels", "positive,negative"], ["--labels", "the model names its classes itself: negative, positive"]),
        (&["--out", "./eval.jsonl"], ["--out", "this is the file of the inputs"]),
    ] {
        let error = predict(&fixture, &[&["run/model", "eval.jsonl"], arguments].concat()).refused();
        assert!(texts.iter().all(|text| error.contains(text)), "{arguments:?}: {error}");
    }
    assert_eq!(fixture.read("eval.jsonl"), before);
    let error = predict(&fixture, &["run", "eval.jsonl"]).refused();
    assert!(error.contains("the directory of a run") && error.contains("fix: give run/model"), "{error}");
    let error = predict(&fixture, &["run/model", "zipped.jsonl.gz"]).refused();
    assert!(error.contains("compressed with gzip") && error.contains("gunzip"), "{error}");
    // The names that it has may be repeated.
    predict(&fixture, &["run/model", "eval.jsonl", "--labels", "negative,positive"]).succeeded();
}

#[cfg(unix)]
#[test]
fn a_stop_leaves_no_file_and_a_closed_pipe_no_metrics() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let fixture = Fixture::new();
    trained(&fixture, "run", &[]);
    let record = fixture.read("eval.jsonl").lines().next().unwrap().to_owned();
    fixture.write("many.jsonl", &format!("{record}\n").repeat(20_000));
    let start = |arguments: &[&str]| {
        let mut command = Command::new(program("predict"));
        command.current_dir(fixture.path("")).args(["run/model", "many.jsonl", "--threads", "1"]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = start(&["--metrics-out", "metrics.json"]);
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("prediction"), "{first}");
    assert!(child.wait().unwrap().success());
    assert!(!fixture.path("metrics.json").exists(), "metrics of the records that were read");

    let mut child = start(&["--out", "out.jsonl"]);
    let mut progress = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    // Signals are listened to before the model is opened on its device.
    while !line.contains("records") {
        line.clear();
        assert!(progress.read_line(&mut line).unwrap() > 0, "it ended by itself");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(75));
    let left: Vec<_> =
        fixture.snapshot().into_keys().filter(|name| name.to_string_lossy().contains("out.jsonl")).collect();
    assert!(left.is_empty(), "{left:?}");
}
