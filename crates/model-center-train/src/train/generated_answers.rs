//! Metrics of generated text: an answer is generated for every sample and compared with its references.

use super::evaluate::EvalContext;
use crate::{Error, Result};
use bmtrain_core::Ctx;
use model_center_data::Dataset;
use model_center_data::metrics::{AnswerScores, Metric, exact_match, token_f1};
use model_center_formats::tokenizer::Tokenizer;
use model_center_models::generate::{FinishReason, GenerateOptions, Generator};
use model_center_recipe::Resolved;
use std::ops::Range;
use std::sync::Arc;

/// Numbers of each sample in the all-gather: exact match and F1.
const NUMBERS: usize = 2;

/// How answers are generated and compared.
#[derive(Debug, Clone)]
pub struct GeneratedAnswers {
    tokenizer: Arc<dyn Tokenizer>,
    /// The sentinels before and after an answer.
    sentinels: [u32; 2],
    /// The most tokens of an answer.
    longest: usize,
}

impl GeneratedAnswers {
    /// For a task whose answers are generated; `data.target_length` includes the tokens around an answer.
    pub(super) fn of(resolved: &Resolved, tokenizer: Arc<dyn Tokenizer>) -> Result<Option<Self>> {
        let marks = resolved.data.source.task().answer_marks(&*tokenizer)?;
        let longest = resolved.data.target_length.max(1);
        Ok(marks.map(|sentinels| GeneratedAnswers { tokenizer, sentinels, longest }))
    }

    /// Whether a metric compares generated texts.
    pub fn rates(metric: Metric) -> bool {
        matches!(metric, Metric::ExactMatch | Metric::TokenF1)
    }

    /// Generate an answer to every sample by greedy decoding, `batch_size` at a time. The data-parallel ranks take
    /// batches in turn, and all return the same scores, or `None` because one of them is asked to stop.
    pub(super) fn rate(
        &self,
        dataset: &Dataset,
        batch_size: usize,
        context: EvalContext<'_>,
    ) -> Result<Option<AnswerScores>> {
        let EvalContext { model, device, ranks, is_stopped, .. } = context;
        let [begin, end] = self.sentinels;
        let end_tokens = [Some(end), self.tokenizer.special_ids().eos].into_iter().flatten().collect();
        let options = GenerateOptions {
            max_new_tokens: self.longest,
            end_tokens,
            prefix: vec![begin],
            ..GenerateOptions::default()
        };
        let generator = Generator::new(model, None, options)?.on_ranks(Arc::clone(ranks.ranks()));
        let mut scores = AnswerScores::default();
        let batch_size = batch_size.max(1);
        for first in (0..dataset.len()).step_by(batch_size * ranks.data_size()) {
            let samples_of = |rank: usize| -> Range<usize> {
                let from = (first + rank * batch_size).min(dataset.len());
                from..(from + batch_size).min(dataset.len())
            };
            let own = samples_of(ranks.data_rank());
            let mut numbers = self.rate_samples(&generator, dataset, own, &mut Ctx::inference(device))?;
            numbers.resize(NUMBERS * batch_size, 0.0);
            numbers.push(f32::from(u8::from(is_stopped())));
            let all = ranks.gather(&numbers)?;
            if all.iter().any(|numbers| numbers.last() == Some(&1.0)) {
                return Ok(None);
            }
            for (rank, numbers) in ranks.of_data_ranks(&all).enumerate() {
                for (sample, rated) in samples_of(rank).zip(numbers.chunks(NUMBERS)) {
                    let [exact, f1] = [0, 1].map(|at| f64::from(rated.get(at).copied().unwrap_or(0.0)));
                    scores.add_rated(sample as u32, exact, f1);
                }
            }
        }
        Ok(Some(scores))
    }

    /// Exact match and F1 of the texts generated for these samples, in turn.
    fn rate_samples(
        &self,
        generator: &Generator<'_>,
        dataset: &Dataset,
        samples: Range<usize>,
        cx: &mut Ctx,
    ) -> Result<Vec<f32>> {
        let prompt = |sample: usize| {
            let row = dataset.inputs(sample).next().map(|row| row.input_ids.to_vec());
            row.ok_or_else(|| Error::data("evaluation", format!("sample {sample} has no text"), "check the data"))
        };
        let prompts = samples.clone().map(prompt).collect::<Result<Vec<_>>>()?;
        let written = generator.generate(&prompts, samples.start as u64, cx, &mut |_| Ok(()))?;
        let mut numbers = Vec::with_capacity(NUMBERS * prompts.len());
        for (sample, texts) in samples.zip(written) {
            let text = match texts.first() {
                None => String::new(),
                Some(text) => {
                    let last = text.tokens.len() - usize::from(text.finish_reason == FinishReason::EndToken);
                    self.tokenizer.decode(&text.tokens[..last], true)?
                }
            };
            let answers = dataset.references(sample);
            numbers.extend([exact_match(&text, answers) as f32, token_f1(&text, answers) as f32]);
        }
        Ok(numbers)
    }
}
