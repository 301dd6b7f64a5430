//! Token files: how many tokens they have, and what follows for a run of one pass over them.

use super::files::data_and_eval;
use super::model::FoundModel;
use super::{Preset, Starter, StarterOptions, TrainingSamples};
use crate::{Error, Result};
use model_center_data::corpus::{TokenFile, index_path};
use model_center_recipe::key;
use std::path::{Path, PathBuf};

/// The longest samples that are proposed.
const LENGTH: usize = 1024;
/// Tokens for each parameter, by which training is about as good as its compute allows (Hoffmann et al., 2022).
const FOR_EACH: f64 = 20.0;
/// Fewer documents have a larger share evaluated.
const FEW_DOCUMENTS: u64 = 1000;

/// Token ids that are compared with the vocabulary.
const SEEN_IDS: u64 = 1 << 20;
/// The most batches of an evaluation.
const MAX_BATCHES: u64 = 100;

/// Writes `[data]` and the length of an evaluation.
pub(super) fn write(
    preset: &Preset,
    (options, model): (&StarterOptions, &FoundModel),
    made: &mut Starter,
) -> Result<TrainingSamples> {
    let mut corpora = Vec::new();
    let (mut tokens, mut documents, mut largest) = (0, 0, 0);
    let (data, eval) = data_and_eval(options);
    for path in &data {
        let prefix = prefix(path, &model.name)?;
        let file = TokenFile::open(&prefix)?;
        tokens += file.tokens();
        documents += file.documents();
        largest = largest.max(largest_id(&file)?);
        corpora.push(prefix.display().to_string());
    }
    check_vocabulary(model, (largest, &data), made)?;
    let sheet = &mut made.sheet;
    sheet.text(key!(data.task), "pretrain", "next tokens of token files");
    let ratio = tokens as f64 / model.parameters();
    let why = format!(
        "{tokens} tokens in {documents} documents: {ratio:.1} for each parameter, where {FOR_EACH:.0} are about optimal"
    );
    sheet.list(key!(data.corpora), &corpora, why);
    let (learned, evaluated) = match &eval {
        Some(eval) => {
            let valid = prefix(eval, &model.name)?;
            let evaluated = TokenFile::open(&valid)?.tokens();
            sheet.list(key!(data.valid), &[valid.display().to_string()], format!("given: {evaluated} tokens"));
            sheet.text(key!(data.split), "100,0,0", "all documents of data.corpora are for training");
            (tokens as f64, evaluated as f64)
        }
        None => {
            let (split, share) = if documents < FEW_DOCUMENTS { ("90,10,0", 0.9) } else { ("969,30,1", 0.969) };
            sheet.text(key!(data.split), split, "shares of the documents for training, validation and test");
            (tokens as f64 * share, tokens as f64 * (1.0 - share))
        }
    };
    let length = model.positions.unwrap_or(LENGTH).min(LENGTH);
    let positions = match (model.positions, &model.tokenizer) {
        (Some(positions), _) => format!("the model has {positions} positions"),
        (None, Some(_)) => "the model has no table of positions".to_owned(),
        (None, None) => "the number of the model's positions is unknown".to_owned(),
    };
    sheet.whole(key!(data.sequence_length), length as u64, format!("tokens of a sample; {positions}"));
    let count = (learned / length as f64) as usize;
    let batches = (evaluated / (length * preset.batch) as f64) as u64;
    let iterations = batches.clamp(1, MAX_BATCHES);
    let why = format!("batches of an evaluation: what the {evaluated:.0} tokens have, at most {MAX_BATCHES}");
    sheet.whole(key!(eval.iterations), iterations, why);
    Ok(TrainingSamples { count, length, sequences: 1, is_run: true })
}

/// The largest of the first token ids of a file.
fn largest_id(file: &TokenFile) -> Result<u32> {
    let mut ids = vec![0; file.tokens().min(SEEN_IDS) as usize];
    file.read_ids(0, &mut ids)?;
    Ok(ids.into_iter().max().unwrap_or(0))
}

/// Compares the ids of token files with the vocabulary of the model's tokenizer, from which they have to be.
///
/// # Errors
/// [`Error::Data`] for an id that the vocabulary does not have. Ids of a small part of it are remarked on.
fn check_vocabulary(model: &FoundModel, (largest, data): (u32, &[PathBuf]), made: &mut Starter) -> Result<()> {
    let Some(size) = model.tokenizer.as_ref().map(|tokenizer| tokenizer.vocab_size()) else { return Ok(()) };
    let place = data.first().map_or_else(String::new, |path| path.display().to_string());
    let fix = format!("give --model the tokenizer's model, or build the token files with --tokenizer {}", model.name);
    if largest as usize >= size {
        let reason = format!("there is a token id {largest}, and the vocabulary of {} has {size} tokens", model.name);
        return Err(Error::data(place, reason, fix));
    }
    if (largest as usize + 1) * 2 < size {
        let reason = format!("the largest token id seen is {largest}, and {} has {size} tokens", model.name);
        made.remark(&place, format!("{reason}; if another tokenizer wrote the files, {fix}"));
    }
    Ok(())
}

/// The path of a token file without `.bin` and `.idx`.
fn prefix(path: &Path, model: &str) -> Result<PathBuf> {
    let is_part = path.extension().is_some_and(|ending| ending == "bin" || ending == "idx");
    let prefix = if is_part { path.with_extension("") } else { path.to_owned() };
    if index_path(&prefix).is_file() {
        return Ok(prefix);
    }
    if path.exists() {
        let out = path.with_extension("");
        let reason = "pretraining reads token files, and this is none";
        let fix = format!(
            "make one: bmtrain corpus build {} --tokenizer {model} --append-eod --out {}, then give --data {}",
            path.display(),
            out.display(),
            out.display()
        );
        return Err(Error::data(path.display().to_string(), reason, fix));
    }
    let reason = format!("there is no {}", index_path(&prefix).display());
    Err(Error::data(path.display().to_string(), reason, "give the --out of `bmtrain corpus build`"))
}
