//! The samples of a pretraining run: token files, their parts for training, validation and test, and the objective.
//!
//! Defines [`open`], which the [`Setup`](super::Setup) of a run calls.

use super::run_data::{EvalSet, RunData, Samples};
use crate::{Error, Result};
use model_center_data::corpus::{DocumentSet, GroupOptions, MixtureWeight, SampleOptions, TokenFile};
use model_center_data::pretraining::{
    CausalLm, CausalOptions, CorpusPart, Infilling, InfillingOptions, MaskTokens, MaskedLm, MaskedLmOptions, Masking,
    PretrainingSamples, RowOptions, Sentinels, SpanCorruption, SpanLengths, SpanOptions, continuations,
};
use model_center_formats::tokenizer::Tokenizer;
use model_center_recipe::{Corpus, PretrainingObjective, PretrainingSettings, Resolved, SpanPreset};
use std::sync::Arc;

/// Documents with a longer sentence are left out of pairs of sentences, in tokens, as in Megatron-LM.
const LONGEST_SENTENCE: u32 = 512;
/// The parts of a corpus, as in the names of map files.
const PARTS: [&str; 3] = ["train", "valid", "test"];

/// A part of the corpora, by its place in [`PARTS`].
struct Part {
    number: usize,
    samples: u64,
}

impl Part {
    fn name(&self) -> &'static str {
        PARTS[self.number]
    }
}

/// Opens the token files of a recipe; `tokenizer` is the one that they were built with.
///
/// # Errors
/// Token files that are missing or malformed, parts without documents, samples beyond 64 bits.
pub(super) fn open(resolved: &Resolved, settings: &PretrainingSettings, tokenizer: &dyn Tokenizer) -> Result<Samples> {
    let steps = resolved.train.steps.unwrap_or(0);
    let objective = Objective { resolved, settings, tokenizer };
    let batch = resolved.train.batch_size as u64;
    let (samples, _) = resolved.batch_ramp().at(steps);
    if samples == u64::MAX {
        let reason = format!("{steps} steps of {batch} samples are beyond 64 bits");
        return Err(Error::recipe(resolved.place("train.steps"), reason, "set fewer steps"));
    }
    let shares = settings.shares().map_err(|error| of_key(resolved, "data.split", error))?;
    let files = open_files(resolved, "data.corpora", &settings.corpora)?;
    let split = |part: Part| {
        let parts = files.iter().zip(&settings.corpora).filter_map(|(file, corpus)| {
            let count = objective.documents(file);
            let range = shares.ranges(count)[part.number].clone();
            let documents = match settings.permute_documents {
                true => DocumentSet::permuted(range, count, settings.seed),
                false => DocumentSet::range(range),
            };
            // Of a small corpus, a small part may be empty.
            let weight = corpus.weight.map_or(MixtureWeight::Size(file.tokens().max(1)), MixtureWeight::Number);
            (!documents.is_empty()).then(|| CorpusPart { file: Arc::clone(file), documents, weight })
        });
        let parts: Vec<CorpusPart> = parts.collect();
        if parts.is_empty() {
            let reason = format!("the {} part has no documents", part.name());
            let fix = "give it a larger share in data.split, or files of its own";
            return Err(Error::recipe(resolved.place("data.split"), reason, fix));
        }
        objective.open(&parts, &part).map_err(|error| of_key(resolved, "data.corpora", error))
    };
    let evaluated = settings.iterations.saturating_mul(batch);
    let of_part = |number: usize, key: &'static str, own: &[Corpus]| -> Result<Vec<EvalSet>> {
        if !own.is_empty() {
            return own_sets(&objective, (number, key, own), evaluated);
        }
        if shares.shares()[number] == 0.0 {
            return Ok(Vec::new());
        }
        let part = Part { number, samples: evaluated };
        let name = part.name().to_owned();
        Ok(vec![EvalSet { name, data: RunData::Pretraining { samples: split(part)?, count: evaluated } }])
    };
    let train = split(Part { number: 0, samples })?;
    Ok(Samples {
        train: RunData::Pretraining { samples: train, count: samples },
        eval: of_part(1, "data.valid", &settings.valid)?,
        test: of_part(2, "data.test", &settings.test)?,
    })
}

/// Sets with files of their own, each named by its path.
fn own_sets(
    objective: &Objective<'_>,
    (number, key, corpora): (usize, &'static str, &[Corpus]),
    samples: u64,
) -> Result<Vec<EvalSet>> {
    let resolved = objective.resolved;
    let files = open_files(resolved, key, corpora)?;
    let set = |(file, corpus): (Arc<TokenFile>, &Corpus)| {
        let documents = DocumentSet::range(0..objective.documents(&file));
        let parts = [CorpusPart { file, documents, weight: MixtureWeight::Number(1.0) }];
        let part = Part { number, samples };
        let data = objective.open(&parts, &part).map_err(|error| of_key(resolved, key, error))?;
        let name = corpus.path.display().to_string();
        Ok(EvalSet { name, data: RunData::Pretraining { samples: data, count: samples } })
    };
    files.into_iter().zip(corpora).map(set).collect()
}

/// The recipe's objective.
struct Objective<'a> {
    resolved: &'a Resolved,
    settings: &'a PretrainingSettings,
    tokenizer: &'a dyn Tokenizer,
}

impl Objective<'_> {
    /// The samples of these documents.
    fn open(&self, parts: &[CorpusPart], part: &Part) -> Result<Arc<dyn PretrainingSamples>> {
        let of = &self.settings.objective;
        Ok(match of.kind {
            PretrainingObjective::Causal => {
                let options = CausalOptions { eod_mask_loss: of.eod_mask_loss, reset_documents: of.document_mask };
                Arc::new(CausalLm::open(parts, &self.rows(part)?, options)?)
            }
            PretrainingObjective::Infilling => {
                Arc::new(Infilling::open(parts, &self.rows(part)?, InfillingOptions::default())?)
            }
            PretrainingObjective::Masked => Arc::new(MaskedLm::open(parts, &self.masking(part)?)?),
            PretrainingObjective::SpanCorruption => {
                Arc::new(SpanCorruption::open(parts, &self.rows(part)?, &self.spans()?)?)
            }
        })
    }

    /// How many documents a file has: objectives over sentences number those, and all others the sequences.
    fn documents(&self, file: &TokenFile) -> u64 {
        let of = &self.settings.objective;
        match (of.kind, of.spans.preset) {
            (PretrainingObjective::Masked, _) | (PretrainingObjective::SpanCorruption, SpanPreset::Megatron) => {
                file.documents()
            }
            _ => file.sequences(),
        }
    }

    /// How rows of tokens are cut.
    fn rows(&self, part: &Part) -> Result<RowOptions> {
        let settings = self.settings;
        Ok(RowOptions {
            samples: SampleOptions {
                sequence_length: settings.sequence_length as u64,
                samples: part.samples,
                seed: settings.seed,
                order: settings.order,
                part: part.name().to_owned(),
                cache: settings.maps.clone(),
                threads: 0,
            },
            sampler: settings.objective.row_sampler,
            eod: self.eod()?,
            vocabulary: self.vocabulary(),
        })
    }

    fn masking(&self, part: &Part) -> Result<MaskedLmOptions> {
        let (settings, of) = (self.settings, self.settings.objective.masking);
        let words = of.whole_words || of.longest_ngram > 1;
        let lengths = match of.longest_ngram {
            1 => SpanLengths::One,
            longest => SpanLengths::Inverse(longest),
        };
        let bert = Masking::bert(settings.sequence_length);
        let most = (settings.sequence_length as f64 * of.share).ceil() as usize;
        Ok(MaskedLmOptions {
            sequence_length: settings.sequence_length,
            samples: part.samples,
            tokens: MaskTokens::of(self.tokenizer)?,
            masking: Masking {
                share: of.share,
                most: bert.most.max(most),
                lengths,
                continuations: words.then(|| continuations(self.tokenizer)),
            },
            second: of.second_sentence,
            sampler: of.pair_sampler,
            groups: GroupOptions {
                target_tokens: 0,
                fewest: 0,
                short: of.short,
                longest_sentence: LONGEST_SENTENCE,
                seed: settings.seed,
                part: part.name().to_owned(),
                cache: settings.maps.clone(),
                threads: 0,
            },
        })
    }

    fn spans(&self) -> Result<SpanOptions> {
        let of = self.settings.objective.spans;
        let sentinels = Sentinels::of(self.tokenizer)?;
        let pad = self.special(self.tokenizer.special_ids().pad, "PAD")?;
        let eos = || self.special(self.tokenizer.special_ids().eos, "EOS");
        let options = match of.preset {
            SpanPreset::T5 => SpanOptions::t5(sentinels, eos()?, pad),
            SpanPreset::Megatron => SpanOptions::megatron(sentinels, eos()?, pad),
            SpanPreset::Cpm2 => SpanOptions::cpm2(sentinels, pad),
        };
        Ok(SpanOptions { density: of.share, ..options })
    }

    /// The token that ends documents, if there is one.
    fn eod(&self) -> Result<Option<u32>> {
        let Some(token) = &self.settings.objective.eod_token else { return Ok(self.tokenizer.special_ids().eos) };
        let missing = || {
            let reason = format!("the tokenizer has no token {token:?}");
            let fix = "name the token that `bmtrain corpus build` ended documents with";
            Error::recipe(self.resolved.place("data.eod_token"), reason, fix)
        };
        self.tokenizer.id(token).map(Some).ok_or_else(missing)
    }

    fn special(&self, id: Option<u32>, name: &str) -> Result<u32> {
        id.ok_or_else(|| {
            let reason = format!("the vocabulary has no {name} token, which span corruption needs");
            Error::model(self.tokenizer.place(), reason, "use a tokenizer such as T5's, or another objective")
        })
    }

    fn vocabulary(&self) -> u32 {
        u32::try_from(self.tokenizer.vocab_size()).unwrap_or(u32::MAX)
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
