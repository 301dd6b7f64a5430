//! The samples of a pretraining run: token files, their parts for training, validation and test, and the objective.
//!
//! Defines [`open`], which the [`Setup`](super::Setup) of a run calls.

use super::run_data::{EvalSet, RunData, Samples};
use crate::corpus::{DocumentSet, MixtureWeight, SampleOptions, TokenFile};
use crate::pretraining::{CausalSamples, CorpusPart, PretrainingSamples};
use crate::recipe::{Corpus, PretrainingObjective, PretrainingSettings, Resolved};
use crate::{Error, Result};
use std::sync::Arc;

/// The parts of a corpus, as in the names of map files.
const PARTS: [&str; 3] = ["train", "valid", "test"];

/// A part of the corpora with its name.
struct Part<'a> {
    name: &'a str,
    number: usize,
    samples: u64,
}

/// Opens the token files of a recipe for a run of `steps` steps.
///
/// # Errors
/// Token files that are missing or malformed, parts without documents, samples beyond 64 bits.
pub(super) fn open(resolved: &Resolved, settings: &PretrainingSettings, steps: u64) -> Result<Samples> {
    let batch = resolved.train.batch_size as u64;
    let (samples, _) = resolved.batch_ramp().at(steps);
    if samples == u64::MAX {
        let reason = format!("{steps} steps of {batch} samples are beyond 64 bits");
        return Err(Error::recipe(resolved.place("train.steps"), reason, "set fewer steps"));
    }
    let shares = settings.shares().map_err(|error| of_key(resolved, "data.split", error))?;
    let files = open_files(resolved, "data.corpora", &settings.corpora)?;
    let split = |part: Part<'_>| {
        let parts = files.iter().zip(&settings.corpora).filter_map(|(file, corpus)| {
            let range = shares.ranges(file.sequences())[part.number].clone();
            let documents = match settings.permute_documents {
                true => DocumentSet::permuted(range, file.sequences(), settings.seed),
                false => DocumentSet::range(range),
            };
            // Of a small corpus, a small part may be empty.
            let weight = corpus.weight.map_or(MixtureWeight::Size(file.tokens().max(1)), MixtureWeight::Number);
            (!documents.is_empty()).then(|| CorpusPart { file: Arc::clone(file), documents, weight })
        });
        let parts: Vec<CorpusPart> = parts.collect();
        if parts.is_empty() {
            let reason = format!("the {} part has no documents", PARTS[part.number]);
            let fix = "give it a larger share in data.split, or files of its own";
            return Err(Error::recipe(resolved.place("data.split"), reason, fix));
        }
        objective(settings, &parts, &part).map_err(|error| of_key(resolved, "data.corpora", error))
    };
    let evaluated = settings.iterations.saturating_mul(batch);
    let of_part = |number: usize, key: &'static str, own: &[Corpus]| -> Result<Vec<EvalSet>> {
        if !own.is_empty() {
            return own_sets(resolved, settings, (number, key, own), evaluated);
        }
        if shares.shares()[number] == 0.0 {
            return Ok(Vec::new());
        }
        let name = PARTS[number];
        let data = split(Part { name, number, samples: evaluated })?;
        Ok(vec![EvalSet { name: name.to_owned(), data: RunData::Pretraining { samples: data, count: evaluated } }])
    };
    let train = split(Part { name: PARTS[0], number: 0, samples })?;
    Ok(Samples {
        train: RunData::Pretraining { samples: train, count: samples },
        eval: of_part(1, "data.valid", &settings.valid)?,
        test: of_part(2, "data.test", &settings.test)?,
    })
}

/// Sets with files of their own, each named by its path.
fn own_sets(
    resolved: &Resolved,
    settings: &PretrainingSettings,
    (number, key, corpora): (usize, &'static str, &[Corpus]),
    samples: u64,
) -> Result<Vec<EvalSet>> {
    let files = open_files(resolved, key, corpora)?;
    let set = |(file, corpus): (Arc<TokenFile>, &Corpus)| {
        let documents = DocumentSet::range(0..file.sequences());
        let parts = [CorpusPart { file, documents, weight: MixtureWeight::Number(1.0) }];
        let part = Part { name: PARTS[number], number, samples };
        let data = objective(settings, &parts, &part).map_err(|error| of_key(resolved, key, error))?;
        let name = corpus.path.display().to_string();
        Ok(EvalSet { name, data: RunData::Pretraining { samples: data, count: samples } })
    };
    files.into_iter().zip(corpora).map(set).collect()
}

/// The samples of the recipe's objective.
fn objective(
    settings: &PretrainingSettings,
    parts: &[CorpusPart],
    part: &Part<'_>,
) -> Result<Arc<dyn PretrainingSamples>> {
    let options = SampleOptions {
        sequence_length: settings.sequence_length as u64,
        samples: part.samples,
        seed: settings.seed,
        order: settings.order,
        part: part.name.to_owned(),
        cache: settings.maps.clone(),
        threads: 0,
    };
    match settings.objective {
        PretrainingObjective::Causal => Ok(Arc::new(CausalSamples::open(parts, &options)?)),
    }
}

fn open_files(resolved: &Resolved, key: &'static str, corpora: &[Corpus]) -> Result<Vec<Arc<TokenFile>>> {
    let open = |corpus: &Corpus| {
        let file = TokenFile::open(&corpus.path).map_err(|error| of_key(resolved, key, error))?;
        Ok(Arc::new(file))
    };
    corpora.iter().map(open).collect()
}

/// An argument of the library, which is a setting of the recipe here.
fn of_key(resolved: &Resolved, key: &'static str, error: Error) -> Error {
    match error {
        Error::Argument { place, reason, fix } => {
            Error::recipe(resolved.place(key), format!("`{key}`: {place}: {reason}"), fix)
        }
        other => other,
    }
}
