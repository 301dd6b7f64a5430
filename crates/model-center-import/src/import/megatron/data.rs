//! `[data]` and `[eval]` of a command of Megatron-LM.

use super::{Program, Translation};
use crate::import::flags::check_set;
use crate::import::sheet::{NoteKind, Sheet, inline_tables};
use crate::{Error, Result};
use model_center_recipe::{key, quote};

/// `configure_data.py` hands the number to `make_dataset`, which hands it to no data set of texts.
const MASKED_TOKENS: &str = "Megatron-LM does not hand it to its data of texts; 15 in 100 tokens are masked, as there";
const SENTENCE_PAIRS: &str = "`bmtrain corpus build --split-lines` makes a sequence of each sentence";

impl Translation<'_> {
    pub(super) fn data(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        sheet.text(key!(data.task), "pretrain", "Megatron-LM pretrains");
        let objective = match self.program {
            Program::Gpt => "causal",
            Program::Bert => "masked",
            Program::T5 => "span-corruption",
        };
        sheet.text(key!(data.objective), objective, self.objective_from());
        match self.program {
            Program::T5 if self.is_cpm_t5() => sheet.text(key!(data.spans.preset), "cpm2", "samples of CPM-Pretrain"),
            Program::T5 => sheet.text(key!(data.spans.preset), "megatron", "samples of Megatron-LM"),
            Program::Gpt | Program::Bert => {}
        }
        self.corpora(sheet)?;
        let split = match flags.values("--split") {
            Some(parts) => {
                check_set("--split", parts.last().map_or("", String::as_str))?;
                let text: String = parts.concat().split_whitespace().collect();
                (text, flags.shown("--split"))
            }
            None if self.is_2019 => ("1000,1,1".to_owned(), "--split, default 1000,1,1".to_owned()),
            None => ("969,30,1".to_owned(), "--split, default 969,30,1".to_owned()),
        };
        let has_eval = split.0.split([',', '/']).nth(1).is_some_and(|share| share.trim().parse() != Ok(0.0))
            || sheet.get(key!(data.valid)).is_some();
        sheet.text(key!(data.split), &split.0.replace('/', ","), split.1);
        if self.is_2019 {
            sheet.flag(key!(data.permute_documents), true, "the list of 2019 splits a random order of documents");
        } else {
            let (order, from) = match (self.is_cpm, self.is_version_1()) {
                (true, _) => ("megatron-v1", "order of CPM-Pretrain"),
                (false, true) => ("megatron-v1", "order of Megatron-LM before version 2"),
                (false, false) => ("megatron", "order of Megatron-LM"),
            };
            sheet.text(key!(data.sample_order), order, from);
        }
        self.lengths(sheet)?;
        let workers = flags.whole("--num-workers", 2)?;
        sheet.whole(key!(data.loading_threads), workers.value.clamp(1, 64), workers.from);
        if flags.is_given("--shuffle") {
            let why = "samples always have a random order; here each comes once in an epoch";
            sheet.note(NoteKind::Unused, "--shuffle", why);
        }
        self.documents(sheet);
        self.shares(sheet)?;
        if let Some(found) = flags.maybe_whole("--max-preds-per-seq")? {
            let why = match self.program {
                Program::Bert => MASKED_TOKENS,
                _ => "it is for masked tokens",
            };
            sheet.note(NoteKind::Unused, found.from, why);
        }
        self.eval(has_eval, sheet)
    }

    /// Whether documents of a sample are apart, and whether the token after the end of one is predicted.
    fn documents(&self, sheet: &mut Sheet) {
        let flags = self.flags;
        let (positions, mask, end) = ("--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss");
        let is_gpt = self.program == Program::Gpt;
        let (has_positions, has_mask) = (flags.is_given(positions), flags.is_given(mask));
        if is_gpt && has_positions && has_mask {
            sheet.flag(key!(data.document_mask), true, format!("{positions}, {mask}"));
        }
        if is_gpt && flags.is_given(end) {
            sheet.flag(key!(data.eod_mask_loss), true, end);
        }
        let is_alone = is_gpt && has_positions != has_mask;
        for name in [positions, mask].into_iter().filter(|name| is_alone && flags.is_given(name)) {
            let why = "documents of a sample see those before them, and positions go on: data.document_mask does both";
            sheet.note(NoteKind::Differs, name, why);
        }
        for name in [positions, mask, end].into_iter().filter(|name| !is_gpt && flags.is_given(name)) {
            sheet.note(NoteKind::Unused, name, "it is for the prediction of next tokens");
        }
    }

    /// Shares of masked tokens and of short samples.
    fn shares(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        if let Some(found) = flags.maybe_number("--mask-prob")? {
            match self.program {
                Program::Gpt => sheet.note(NoteKind::Unused, found.from, "GPT-2 masks nothing"),
                Program::Bert => sheet.number(key!(data.masking.share), found.value, found.from),
                Program::T5 => sheet.number(key!(data.spans.share), found.value, found.from),
            }
        }
        if let Some(found) = flags.maybe_number("--short-seq-prob")? {
            match self.program {
                Program::Bert => sheet.number(key!(data.masking.short), found.value, found.from),
                Program::Gpt => sheet.note(NoteKind::Unused, found.from, "samples of GPT-2 have one length"),
                Program::T5 if found.value == 0.0 => sheet.note(NoteKind::Unused, found.from, "no row is short"),
                Program::T5 => sheet.note(NoteKind::Differs, found.from, "no row is short"),
            }
        }
        Ok(())
    }

    fn objective_from(&self) -> &'static str {
        match self.program {
            Program::Gpt => "next tokens",
            Program::Bert => "masked tokens and sentence order",
            Program::T5 => "masked spans",
        }
    }

    fn corpora(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let is_npy = flags.is_given("--use-npy-data-loader");
        if is_npy {
            let why = "the token file of this name takes the place of the directory of arrays";
            sheet.note(NoteKind::Unused, "--use-npy-data-loader", why);
        }
        let names = match is_npy {
            true => ["--data-path", "--train-data-path", "--train-data"],
            false => ["--data-path", "--train-data", "--train-data-path"],
        };
        let Some(name) = self.first(&names) else {
            let fix = "give --data-path, or --set data.corpora=[\"data/books\"] with the token files of `bmtrain corpus
            \
                       build`";
            sheet.note(NoteKind::Differs, "no --data-path", format!("there is nothing to learn from: {fix}"));
            return Ok(());
        };
        let values = flags.values(name).unwrap_or_default();
        self.corpus_list(key!(data.corpora), name, values, sheet)?;
        self.note_others(name, &names, sheet);
        let mut further = [
            (key!(data.valid), ["--valid-data", "--valid-data-path", "--val-data-path"].as_slice()),
            (key!(data.test), ["--test-data", "--test-data-path"].as_slice()),
        ];
        if is_npy {
            further = [
                (key!(data.valid), ["--valid-data-path", "--val-data-path", "--valid-data"].as_slice()),
                (key!(data.test), ["--test-data-path", "--test-data"].as_slice()),
            ];
        }
        for (key, names) in further {
            if let Some(name) = self.first(names) {
                self.note_others(name, names, sheet);
                let values = flags.values(name).unwrap_or_default();
                // An empty text is the default of the npy loader.
                match values.iter().any(|value| !value.is_empty()) {
                    true => self.corpus_list(key, name, values, sheet)?,
                    false => sheet.note(NoteKind::Unused, name, "it names no file"),
                }
            }
        }
        if name != "--data-path" && !is_npy {
            let end = if self.program == Program::Bert { SENTENCE_PAIRS } else { "with --append-eod" };
            let why = format!(
                "text is tokenized once, by `bmtrain corpus build FILE --tokenizer DIR --out \
                               NAME`; {end}"
            );
            sheet.note(NoteKind::Unused, name, why);
        }
        Ok(())
    }

    /// Data that is named beside the data that is read: the program reads one of its kinds.
    fn note_others(&self, name: &str, names: &[&'static str], sheet: &mut Sheet) {
        for other in names.iter().filter(|other| **other != name && self.flags.has(other)) {
            self.flags.is_given(other);
            sheet.note(NoteKind::Unused, self.flags.shown(other), format!("{name} names the data that is read"));
        }
    }

    /// A list of token files, `[weight] path …`.
    fn corpus_list(&self, key: &str, name: &'static str, values: &[String], sheet: &mut Sheet) -> Result<()> {
        values.iter().try_for_each(|value| check_set(name, value))?;
        let from = self.flags.shown(name);
        let is_number = |value: &String| name == "--data-path" && value.parse::<f64>().is_ok();
        let paths: Vec<String> = values.iter().filter(|value| !is_number(value)).map(|path| token_file(path)).collect();
        if paths.is_empty() {
            return Err(Error::argument(name, "it names no file", "name token files without .bin and .idx"));
        }
        let has_weights = name == "--data-path" && values.len() > 1 && is_number(&values[0]);
        if !has_weights {
            sheet.list(key, &paths, from);
            return Ok(());
        }
        let (pairs, rest) = values.as_chunks::<2>();
        let is_pair = |[weight, path]: &[String; 2]| is_number(weight) && !is_number(path);
        if !rest.is_empty() || !pairs.iter().all(is_pair) {
            let reason = "weights and paths do not alternate";
            return Err(Error::argument(name, reason, "write --data-path 0.3 data/a 0.7 data/b"));
        }
        let fields = |[weight, path]: &[String; 2]| {
            let weight = weight.parse::<f64>().unwrap_or(1.0);
            vec![("path", quote(&token_file(path))), ("weight", format!("{weight:?}"))]
        };
        sheet.raw(key, inline_tables(&pairs.iter().map(fields).collect::<Vec<_>>()), from);
        Ok(())
    }

    fn lengths(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let reads_encoder = self.program != Program::Gpt || !flags.has("--seq-length");
        let encoder = if reads_encoder { self.first(&["--encoder-seq-length", "--enc-seq-length"]) } else { None };
        let decoder = self.first(&["--decoder-seq-length", "--dec-seq-length"]);
        let found = match encoder {
            Some(name) => flags.whole(name, 512)?,
            None => flags.whole("--seq-length", if self.is_2019 { 512 } else { 1024 })?,
        };
        if sheet.count(key!(model.positions)).is_some_and(|positions| positions < found.value) {
            let reason = format!("{} is more than --max-position-embeddings", found.from);
            return Err(Error::argument("--seq-length", reason, "give at most the number of positions"));
        }
        sheet.whole(key!(data.sequence_length), found.value, found.from);
        if let Some(name) = decoder {
            let found = flags.whole(name, 512)?;
            match self.program {
                Program::T5 => {
                    let why = "targets have the length that the masked spans of a sample give";
                    sheet.note(NoteKind::Differs, found.from, why);
                }
                _ => sheet.note(NoteKind::Unused, found.from, "there is no decoder apart"),
            }
        }
        Ok(())
    }

    fn eval(&self, has_eval: bool, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let every = flags.whole("--eval-interval", 1000)?;
        let iterations = flags.whole("--eval-iters", 100)?;
        let batch = flags.maybe_whole("--eval-batch-size")?;
        if !has_eval || iterations.value == 0 {
            let what = format!("{}, {}", every.from, iterations.from);
            let why = "there is nothing to evaluate on, or no iteration";
            sheet.note(NoteKind::Unused, what, why);
            return Ok(());
        }
        sheet.text(key!(eval.every), &format!("{} steps", every.value.max(1)), every.from);
        sheet.whole(key!(eval.iterations), iterations.value, iterations.from);
        if let Some(batch) = batch {
            sheet.whole(key!(eval.batch_size), batch.value, batch.from);
        }
        if let Some(length) = flags.maybe_whole("--eval-seq-length")? {
            let is_same = sheet.count(key!(data.sequence_length)) == Some(length.value);
            let kind = if is_same { NoteKind::Unused } else { NoteKind::Differs };
            sheet.note(kind, length.from, "evaluation has sequences of the length of training");
        }
        Ok(())
    }
}

/// The name that the token file of a text has: without the ending of a data file.
fn token_file(path: &str) -> String {
    let endings = [".jsonl", ".json", ".csv", ".tsv", ".txt", ".bin", ".idx"];
    let end = endings.iter().find_map(|end| path.strip_suffix(end));
    end.unwrap_or(path.trim_end_matches('/')).to_owned()
}
