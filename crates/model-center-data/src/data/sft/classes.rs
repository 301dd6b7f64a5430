//! The classes of data sets that recipes know: the predecessor's, besides records of any form.
//!
//! Defines [`DATA_CLASSES`].

use std::path::Path;

use serde_json::{Map, Value};

use super::class::{ClassSource, DataClass, SampleSink};
use super::files::{has_directory, record_files};
use super::record::{self, RecordForm, RecordReading, SftColumns, each_record};
use super::sample::Sample;
use crate::data::Split;
use crate::{Error, Result};
use model_center_base::file::read_text;
use model_center_formats::io::input::of_data;

/// MultiDoc2Dial's documents have 11 MB.
const MAX_BYTES: u64 = 1 << 30;

/// The classes of this crate.
pub static DATA_CLASSES: &[DataClass] = &[
    DataClass {
        name: "sst2",
        doc: "SST-2: `sentence` and `label`, which becomes \"negative\" or \"positive\"; GLUE's train.tsv and dev.tsv, \
              or files of records.",
        has_split: |path, split| has_directory(path, split) || path.join(glue_file(split)).is_file(),
        read: sst2,
    },
    DataClass {
        name: "alpaca",
        doc: "Stanford Alpaca: alpaca_data.json, with its own prompts unless they are turns of a chat. Training data \
              alone.",
        has_split: |_, split| split == Split::Train,
        read: alpaca,
    },
    DataClass {
        name: "debug",
        doc: "`config.examples` inputs and outputs of \" Hello\", of the most tokens that the data set may have.",
        has_split: |_, _| true,
        read: debug,
    },
    DataClass {
        name: "chit-chat",
        doc: "MultiDoc2Dial: an agent's turn, given the document that it is grounded in and the turns before.",
        has_split: |path, split| path.join(dialogue_file(split)).is_file(),
        read: chit_chat,
    },
];

fn glue_file(split: Split) -> &'static str {
    match split {
        Split::Train => "train.tsv",
        Split::Validation => "dev.tsv",
    }
}

fn dialogue_file(split: Split) -> &'static str {
    match split {
        Split::Train => "multidoc2dial_dial_train.json",
        Split::Validation => "multidoc2dial_dial_validation.json",
    }
}

fn sst2(source: &ClassSource<'_>, samples: &mut SampleSink<'_>) -> Result<()> {
    let glue = source.path.join(glue_file(source.split));
    let files = if glue.is_file() { vec![glue] } else { record_files(source.path, source.split)? };
    for file in files {
        let mut take = |record: Result<crate::data::Record<'_>>| {
            let place = record.as_ref().map_or_else(|_| String::new(), |record| record.place());
            let sample = record.and_then(|record| {
                let label = record.choice("label", &["0", "1"])?;
                Ok(Sample::pair(record.text("sentence")?, ["negative", "positive"][label]))
            });
            samples.push(place, sample)
        };
        if !each_record(&file, None, source.max_line_bytes, &mut take)? {
            break;
        }
    }
    Ok(())
}

fn alpaca(source: &ClassSource<'_>, samples: &mut SampleSink<'_>) -> Result<()> {
    let file = source.path.join("alpaca_data.json");
    let path: &Path = if file.is_file() { &file } else { source.path };
    let source = ClassSource { path, ..*source };
    let reading = RecordReading {
        form: Some(RecordForm::Alpaca),
        columns: &SftColumns::default(),
        format: None,
        as_chat: source.as_chat,
        has_rewards: false,
        unused: source.unused,
    };
    record::read(&source, &reading, samples)
}

fn debug(source: &ClassSource<'_>, samples: &mut SampleSink<'_>) -> Result<()> {
    let hello = |tokens: Option<usize>| " Hello".repeat(tokens.unwrap_or(1).max(1));
    let (input, output) = (hello(source.max_input_tokens), hello(source.max_output_tokens));
    for at in 0..source.whole("examples", 100)? {
        if !samples.push(format!("example {at}"), Ok(Sample::pair(input.clone(), output.clone())))? {
            break;
        }
    }
    Ok(())
}

/// A turn of a dialogue.
struct Turn<'a> {
    is_agent: bool,
    text: &'a str,
    /// The document that it refers to.
    document: Option<&'a str>,
}

fn chit_chat(source: &ClassSource<'_>, samples: &mut SampleSink<'_>) -> Result<()> {
    let document_tokens = source.whole("document_tokens", 700)?;
    let grounded_alone = source.flag("grounded_alone", true)?;
    let documents = source.path.join(source.text("documents", "multidoc2dial_doc.json")?);
    let documents = read_json(&documents, "doc_data")?;
    let documents: Map<String, Value> = documents.into_iter().flat_map(|(_, of_domain)| object(of_domain)).collect();
    let path = source.path.join(source.text(source.split.file_stem(), dialogue_file(source.split))?);
    let dialogues = read_json(&path, "dial_data")?;
    let dialogues = dialogues.values().filter_map(Value::as_array).flatten();
    for (number, dialogue) in dialogues.enumerate() {
        let turns: Vec<Turn<'_>> =
            dialogue["turns"].as_array().into_iter().flatten().filter_map(|turn| turn_of(turn, &documents)).collect();
        for at in (1..turns.len()).filter(|at| turns[*at].is_agent) {
            let document = turns[at].document.or_else(|| turns[..at].iter().rev().find_map(|turn| turn.document));
            if grounded_alone && turns[at].document.is_none() {
                continue;
            }
            let document = last_or_first(source, document.unwrap_or_default(), document_tokens, true)?;
            let context = turns[..at]
                .iter()
                .map(|turn| format!("{}: {}\n", if turn.is_agent { "agent" } else { "user" }, turn.text.trim()));
            let context = context.collect::<String>() + "agent:";
            let room = match source.max_input_tokens {
                Some(most) => most.saturating_sub(tokens_of(source, &document)?.len() + 1),
                None => usize::MAX,
            };
            let input = document + "\n\n" + &last_or_first(source, &context, room, false)?;
            let place = format!("{}, dialogue {}, turn {}", path.display(), number + 1, at + 1);
            if !samples.push(place, Ok(Sample::pair(input, format!(" {}", turns[at].text.trim()))))? {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn turn_of<'a>(turn: &'a Value, documents: &'a Map<String, Value>) -> Option<Turn<'a>> {
    let references = turn["references"].as_array().into_iter().flatten();
    let mut documents =
        references.filter_map(|reference| documents.get(reference["doc_id"].as_str()?)?["doc_text"].as_str());
    Some(Turn { is_agent: turn["role"] == "agent", text: turn["utterance"].as_str()?, document: documents.next() })
}

fn tokens_of(source: &ClassSource<'_>, text: &str) -> Result<Vec<u32>> {
    Ok(source.tokenizer.tokenize(&[text])?.concat())
}

/// The first or the last tokens of a text.
fn last_or_first(source: &ClassSource<'_>, text: &str, most: usize, is_first: bool) -> Result<String> {
    let ids = tokens_of(source, text)?;
    if ids.len() <= most {
        return Ok(text.to_owned());
    }
    let kept = if is_first { &ids[..most] } else { &ids[ids.len() - most..] };
    source.tokenizer.decode(kept, false)
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(fields) = value { fields } else { Map::new() }
}

/// An object in a JSON file.
fn read_json(path: &Path, member: &str) -> Result<Map<String, Value>> {
    let text = read_text(path, MAX_BYTES).map_err(of_data)?;
    let wrong = |reason: String| {
        let fix = "fetch the files of MultiDoc2Dial, or name others in the data set's config";
        Error::data(path.display().to_string(), reason, fix)
    };
    let mut file: Value = serde_json::from_str(&text).map_err(|error| wrong(format!("broken JSON: {error}")))?;
    match file.get_mut(member).map(Value::take) {
        Some(Value::Object(fields)) => Ok(fields),
        _ => Err(wrong(format!("there is no object {member:?}"))),
    }
}
