//! Records of tiny datasets, in the form that each recipe reads.

use crate::fixture::{Fixture, program, vocabulary};
use model_center::data::{
    ColumnTask, EmbeddingTask, Format, LabelColumns, LabelSpec, LanguageModelingColumns, LanguageModelingTask,
    MultiLabelTask, SftTask, TemplateTask,
};
use model_center::recipe::{DataFiles, DataSource, PretrainingObjective, Resolved};
use serde_json::{Map, Value, json};

/// Writes records that a recipe can learn from with a vocabulary of `size`, and the settings that lead there.
pub fn data(fixture: &Fixture, resolved: &Resolved, size: usize) -> Vec<String> {
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
        record[&columns.label] = match columns.labels {
            LabelSpec::Probability => u8::from(is_even).into(),
            _ => ["negative", "positive"][at % 2].into(),
        };
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
pub fn with_answers(size: usize) -> String {
    let own = vocabulary(size);
    let special = own.lines().take(5);
    let ends = ["</s>", "<eod>", "<s_0>", "<s_1>", "<s_2>", "<extra_id_2>", "<extra_id_1>", "<extra_id_0>"];
    let words = ["no", "yes", "bad", "good", "有", "无", "关"];
    let answers: Vec<&str> = ends.into_iter().chain(words).collect();
    let others = own.lines().skip(5).filter(|token| !answers.contains(token));
    special.chain(answers.iter().copied()).chain(others).take(size).map(|token| format!("{token}\n")).collect()
}

/// A tokenizer with the given number of tokens that joins pairs as RoBERTa's does, without token types.
pub fn without_types(size: usize) -> Value {
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
