//! `[data]` of a training: its lists of one entry for each data set.

use crate::import::ImportOptions;
use crate::import::account::is_left;
use crate::import::flags::{Flags, check_set, parse};
use crate::import::sheet::{NoteKind, Sheet, inline_tables};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_recipe::{key, quote};

/// Its classes of data, with ours.
const CLASSES: [(&str, &str); 5] = [
    ("JSONLinesDataset", "records"),
    ("SST2Dataset", "sst2"),
    ("AlpacaDataset", "alpaca"),
    ("DebugDataset", "debug"),
    ("DineshChitChatDataset", "chit-chat"),
];

/// The flags with an entry for each data set.
const LISTS: [&str; 8] = [
    "--data-path",
    "--data-class",
    "--data-config",
    "--data-sampling-proportion",
    "--input-format",
    "--output-format",
    "--max-input-tokens",
    "--max-output-tokens",
];

/// Writes data sets, lengths and whether they are evaluated.
pub(super) fn translate(flags: &Flags, is_seq2seq: bool, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    sheet.text(key!(data.task), "sft", "inputs are read, outputs are learned");
    let lists = ["--data-path", "--data-class"];
    let first = lists.into_iter().find(|name| flags.has(name));
    let Some(count) = first.and_then(|name| flags.values(name)).map(<[String]>::len) else {
        let fix = "give --data_path with a directory of train/*.jsonl and val/*.jsonl";
        return Err(Error::argument("--data-path", "there is no data set", fix));
    };
    let (mut sets, mut longest, mut longest_output, mut is_limited) = (Vec::new(), 0, 0, true);
    for at in 0..count {
        let mut fields = Vec::new();
        let of = |name| entry(flags, name, count, at);
        let class = of("--data-class")?.unwrap_or("JSONLinesDataset");
        let known = CLASSES.iter().find(|(theirs, ours)| *theirs == class || ours == &class);
        let Some((_, class)) = known else {
            let names: Vec<&str> = CLASSES.iter().map(|(theirs, _)| *theirs).collect();
            let reason = format!("the class {} is not available", printable(class, 60));
            let fix = format!("write its data as JSON lines of input and output; available are {}", names.join(", "));
            return Err(Error::argument("--data-class", reason, fix));
        };
        if let Some(path) = of("--data-path")? {
            fields.push(("path", quote(path)));
        }
        match *class {
            "records" => fields.push(("records", quote("input-output"))),
            class => fields.push(("class", quote(class))),
        }
        let config = of("--data-config")?.unwrap_or("{}").trim();
        if !["{}", ""].contains(&config) {
            let why = "classes have other names of settings here: `config` of data.sets, docs/sft.md";
            if !is_left(&options.leave, "--data-config") {
                let fix = "write `config` of data.sets into the recipe, and pass this over with --leave data-config";
                return Err(Error::argument("--data-config", why, fix));
            }
            sheet.note(NoteKind::Differs, format!("--data-config {}", printable(config, 80)), why);
        }
        if let Some(share) = of("--data-sampling-proportion")? {
            fields.push(("proportion", number("--data-sampling-proportion", share)?.to_string()));
        }
        for (name, field) in [("--input-format", "input_format"), ("--output-format", "output_format")] {
            if let Some(format) = of(name)? {
                fields.push((field, quote(format)));
            }
        }
        let mut total = 0;
        for (name, field) in [("--max-input-tokens", "max_input_tokens"), ("--max-output-tokens", "max_output_tokens")]
        {
            match of(name)? {
                Some(text) => {
                    let most = number(name, text)?;
                    fields.push((field, most.to_string()));
                    total = if is_seq2seq { total.max(most) } else { total + most };
                    longest_output = longest_output.max(if field == "max_output_tokens" { most } else { 0 });
                }
                None => is_limited = false,
            }
        }
        longest = longest.max(total);
        sets.push(fields);
    }
    let given: Vec<String> = LISTS.into_iter().filter(|name| flags.has(name)).map(|name| flags.shown(name)).collect();
    sheet.raw(key!(data.sets), inline_tables(&sets), given.join(" "));
    match is_limited {
        true => {
            let why = if is_seq2seq { "the longest input" } else { "the longest input and output, and BOS" };
            sheet.whole(key!(data.max_length), longest + u64::from(!is_seq2seq), why);
            if is_seq2seq {
                sheet.whole(key!(data.target_length), longest_output, "the longest output");
            }
        }
        false => {
            let why = "lengths have no limit there; here data.max_length cuts longer samples, 512 by default";
            sheet.note(NoteKind::Differs, "no --max-input-tokens or --max-output-tokens", why);
        }
    }
    if flags.is_given("--no-eval") {
        let why = "`val/` of a data set is evaluated after each epoch, and without that directory nothing is; \
                   eval.every = \"end\" evaluates once";
        sheet.note(NoteKind::Differs, "--no-eval", why);
    }
    Ok(())
}

/// The entry of a list for data set `at`; lists may be absent.
fn entry<'f>(flags: &'f Flags, name: &'static str, count: usize, at: usize) -> Result<Option<&'f str>> {
    let Some(values) = flags.values(name) else { return Ok(None) };
    if values.len() != count {
        let reason = format!("{} values for {count} data sets", values.len());
        return Err(Error::argument(name, reason, "give one for each data set"));
    }
    let Some(value) = values.get(at) else { return Ok(None) };
    check_set(name, value)?;
    Ok(Some(value))
}

fn number(name: &'static str, text: &str) -> Result<u64> {
    let value = parse(name, text)?;
    match value >= 1.0 && value.fract() == 0.0 && value < 1e9 {
        true => Ok(value as u64),
        false => {
            Err(Error::argument(name, format!("{value} is not a number of tokens"), "write a whole number above 0"))
        }
    }
}
