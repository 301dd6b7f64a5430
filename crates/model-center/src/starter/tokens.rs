//! Token files: how many tokens they have, and what follows for a run of one pass over them.

use super::files::data_and_eval;
use super::model::FoundModel;
use super::{Preset, Starter, StarterOptions, TrainingSamples};
use crate::corpus::{TokenFile, index_path};
use crate::import::keys;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// The longest samples that are proposed.
const LENGTH: usize = 1024;
/// Tokens for each parameter, by which training is about as good as its compute allows (Hoffmann et al., 2022).
const FOR_EACH: f64 = 20.0;
/// Fewer documents have a larger share evaluated.
const FEW_DOCUMENTS: u64 = 1000;

/// The most batches of an evaluation.
const MOST_BATCHES: u64 = 100;

/// Writes `[data]` and the length of an evaluation.
pub(super) fn write(
    preset: &Preset,
    (options, model): (&StarterOptions, &FoundModel),
    made: &mut Starter,
) -> Result<TrainingSamples> {
    let mut corpora = Vec::new();
    let (mut tokens, mut documents) = (0, 0);
    let (data, eval) = data_and_eval(options);
    for path in &data {
        let prefix = prefix(path, &model.name)?;
        let file = TokenFile::open(&prefix)?;
        tokens += file.tokens();
        documents += file.documents();
        corpora.push(prefix.display().to_string());
    }
    let sheet = &mut made.sheet;
    sheet.text(keys::TASK, "pretrain", "next tokens of token files");
    let ratio = tokens as f64 / model.parameters();
    let why = format!(
        "{tokens} tokens in {documents} documents: {ratio:.1} for each parameter, where {FOR_EACH:.0} are about optimal"
    );
    sheet.list(keys::CORPORA, &corpora, why);
    let (learned, evaluated) = match &eval {
        Some(eval) => {
            let valid = prefix(eval, &model.name)?;
            let evaluated = TokenFile::open(&valid)?.tokens();
            sheet.list(keys::VALID, &[valid.display().to_string()], format!("given: {evaluated} tokens"));
            sheet.text(keys::SPLIT, "100,0,0", "all documents of data.corpora are for training");
            (tokens as f64, evaluated as f64)
        }
        None => {
            let (split, share) = if documents < FEW_DOCUMENTS { ("90,10,0", 0.9) } else { ("969,30,1", 0.969) };
            sheet.text(keys::SPLIT, split, "shares of the documents for training, validation and test");
            (tokens as f64 * share, tokens as f64 * (1.0 - share))
        }
    };
    let length = model.positions.unwrap_or(LENGTH).min(LENGTH);
    let positions = model.positions.map_or_else(|| "any".to_owned(), |positions| positions.to_string());
    sheet.whole(
        keys::SEQUENCE_LENGTH,
        length as u64,
        format!("tokens of a sample; the model has {positions} positions"),
    );
    let count = (learned / length as f64) as usize;
    let batches = (evaluated / (length * preset.batch) as f64) as u64;
    let iterations = batches.clamp(1, MOST_BATCHES);
    let why = format!("batches of an evaluation: what the {evaluated:.0} tokens have, at most {MOST_BATCHES}");
    sheet.whole(keys::EVAL_ITERATIONS, iterations, why);
    Ok(TrainingSamples { count, length, sequences: 1, is_run: true })
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
            "make one: corpus build {} --tokenizer {model} --append-eod --out {}, then give --data {}",
            path.display(),
            out.display(),
            out.display()
        );
        return Err(Error::data(path.display().to_string(), reason, fix));
    }
    let reason = format!("there is no {}", index_path(&prefix).display());
    Err(Error::data(path.display().to_string(), reason, "give the --out of `corpus build`"))
}
