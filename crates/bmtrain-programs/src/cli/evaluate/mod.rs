//! The evaluate program: published evaluations of a model.
//!
//! What is computed is in [`model_center_train::evaluate`]; here are the command line (`options`, `setup`), the ranks
//! (`ranks`) and the output (`report`). The manual is `docs/evaluate.md`.

pub mod options;
mod ranks;
mod report;
mod setup;

use self::options::{LambadaOptions, LikelihoodOptions, MlmOptions, PerplexityOptions};
use self::ranks::{Wanted, score};
use self::setup::EvaluationSetup;
use crate::cli::{flags::with_flags, program};
use crate::{Error, Result};
use clap::{Parser, Subcommand};
use model_center_base::error::ExitStatus;
use model_center_formats::config::TextHead;
use model_center_models::Registry;
use model_center_train::evaluate::{
    EvalMasking, LambadaTotals, MaskedSet, MlmResult, PerplexityResult, SourceOptions, TokenSource, Windows,
    capped_perplexity, read_lambada, read_masked, read_requests,
};
use std::process::ExitCode;
use std::sync::Arc;

/// Evaluate a language model: perplexity, LAMBADA, log-likelihoods, masked tokens.
///
/// Example: bmtrain evaluate perplexity gpt2 wikitext-103/wiki.test.tokens --overlap 32
#[derive(Debug, Clone, Parser)]
#[command(name = "evaluate", version)]
pub struct Options {
    /// Evaluation to run.
    #[command(subcommand)]
    pub what: Evaluation,
}

/// The evaluations.
#[derive(Debug, Clone, Subcommand)]
pub enum Evaluation {
    /// Perplexity of a decoder on a text, by token, by word and in bits per byte; on a corpus; on a token file.
    Perplexity(Box<PerplexityOptions>),
    /// Whether a decoder predicts the last word of passages: its last token, and strictly all of its tokens.
    Lambada(Box<LambadaOptions>),
    /// Log-likelihoods of continuations by a decoder, for evaluation harnesses. A request has prompt and continuation,
    /// texts, or prompt_ids and continuation_ids; its result has log_likelihood, is_greedy and token_log_probs too.
    Likelihood(Box<LikelihoodOptions>),
    /// Perplexity of masked tokens by an encoder: of a fixed share of them, or of each token alone.
    Mlm(Box<MlmOptions>),
}

/// The program: what a binary's `main` calls, with the families of its registry.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// Options out of range; a model, a file or a line that cannot be used; an output that cannot be written.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let done = match &options.what {
        Evaluation::Perplexity(options) => perplexity(options, registry),
        Evaluation::Lambada(options) => lambada(options, registry),
        Evaluation::Likelihood(options) => likelihood(options, registry),
        Evaluation::Mlm(options) => mlm(options, registry),
    };
    done.map(|()| ExitStatus::Done)
}

fn perplexity(options: &PerplexityOptions, registry: Registry<'static>) -> Result<()> {
    let setup = EvaluationSetup::new(&options.model, &options.file, registry, TextHead::CausalLm)?;
    let (length, overlap) = (setup.length, options.overlap.unwrap_or(setup.length));
    Windows::new(0, length, overlap).map_err(with_flags)?;
    if options.iterations == Some(0) {
        return Err(Error::argument("--iterations", "0 batches", "use at least 1, or leave it out"));
    }
    let most = options.iterations.map(|batches| batches.saturating_mul(options.model.batch as u64));
    let vocabulary = setup.tokenizer_if_any()?.map_or(0, |tokenizer| tokenizer.vocab_size());
    let source = match TokenSource::is_token_file(&options.file) {
        true => TokenSource::of_token_file(&options.file)?,
        false => {
            let reading = SourceOptions {
                format: options.format,
                key: options.text_key.clone(),
                detokenizer: options.detokenizer,
                tokens: most.map(|windows| Windows::reach(length, overlap, windows)),
            };
            TokenSource::of_texts(&options.file, &*setup.tokenizer()?, &reading)?
        }
    };
    let windows = Windows::new(source.len(), length, overlap).map_err(with_flags)?;
    let count = windows.len().min(most.unwrap_or(u64::MAX));
    let (tokens, counts, detokenizer) = (source.len(), source.counts, source.detokenizer);
    let sequences = move |window| {
        let (range, scored) = windows.at(window);
        Ok(Windows::sequence(&source.read(range)?, scored))
    };
    let (json, batch) = (options.model.json, options.model.batch);
    let scores = score(setup, count, Box::new(sequences), Wanted::Losses)?;
    let result = PerplexityResult::new(&scores.losses, (tokens, scores.targets), counts, vocabulary);
    report::perplexity(&result, &report::WindowFigures { count, length, overlap, batch }, detokenizer, json)
}

fn lambada(options: &LambadaOptions, registry: Registry<'static>) -> Result<()> {
    let setup = EvaluationSetup::new(&options.model, &options.file, registry, TextHead::CausalLm)?;
    let passages = read_lambada(&options.file, &options.text_key, &*setup.tokenizer()?)?;
    let (count, length) = (passages.len() as u64, setup.length);
    // Before weights are read.
    passages.iter().try_for_each(|passage| passage.sequence(length).map(drop))?;
    let sequences = move |number| passages[number as usize].sequence(length);
    let scores = score(setup, count, Box::new(sequences), Wanted::Tokens)?;
    let mut totals = LambadaTotals::default();
    scores.tokens.iter().for_each(|(passage, scores)| totals.add(*passage, scores));
    report::figures(&totals.result(), options.model.json)
}

fn likelihood(options: &LikelihoodOptions, registry: Registry<'static>) -> Result<()> {
    let setup = EvaluationSetup::new(&options.model, &options.file, registry, TextHead::CausalLm)?;
    let tokenizer = setup.tokenizer_if_any()?;
    let requests = Arc::new(read_requests(&options.file, tokenizer.as_deref())?);
    let (count, length, splits) = (requests.len() as u64, setup.length, Arc::clone(&requests));
    // Before weights are read.
    requests.iter().try_for_each(|request| request.split.sequence(length).map(drop))?;
    let sequences = move |number| splits[number as usize].split.sequence(length);
    let scores = score(setup, count, Box::new(sequences), Wanted::Tokens)?;
    let results = requests.iter().zip(scores.tokens.values()).map(|(request, scores)| request.result(scores));
    report::likelihood(results.collect(), options.output.as_deref(), options.model.json)
}

fn mlm(options: &MlmOptions, registry: Registry<'static>) -> Result<()> {
    if !(options.mask_share > 0.0 && options.mask_share <= 1.0) {
        let reason = format!("{} of the tokens are masked", options.mask_share);
        return Err(Error::argument("--mask-share", reason, "use a number above 0 and at most 1"));
    }
    let setup = EvaluationSetup::new(&options.model, &options.file, registry, TextHead::MaskedLm)?;
    let tokenizer = if options.given_masks { None } else { Some(setup.tokenizer()?) };
    let mask = match &tokenizer {
        None => 0,
        Some(tokenizer) => tokenizer.special_ids().mask.ok_or_else(|| {
            Error::model(tokenizer.place(), "it has no mask token", "give masked ids, with --given-masks")
        })?,
    };
    let reading = (options.format, options.text_key.as_str(), setup.length);
    let sequences = read_masked(&options.file, tokenizer.as_deref(), reading)?;
    let masking = match options.pseudo {
        true => EvalMasking::Each,
        false => EvalMasking::Share { share: options.mask_share, seed: options.seed },
    };
    let set = MaskedSet::new(sequences, masking, mask);
    let (count, of_file) = (set.len(), set.sequences());
    let scores = score(setup, count, Box::new(move |number| Ok(set.at(number))), Wanted::Losses)?;
    let loss = scores.losses.mean();
    let result = MlmResult {
        sequences: of_file,
        masked_tokens: scores.targets,
        loss,
        perplexity: loss.exp(),
        perplexity_capped: capped_perplexity(loss),
    };
    report::figures(&result, options.model.json)
}
