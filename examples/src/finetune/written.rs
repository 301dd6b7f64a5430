//! Judging what a model writes: of every sample a text, against the answers that are known.
//!
//! Defines [`Written`], which a job has whose task knows answers; called by [`super::evaluate`].

use bmtrain_core::{Ctx, Device};
use bmtrain_dist::ControlGroup;
use model_center::data::{Dataset, Squad};
use model_center::generation::{Ending, GenerateOptions, Generator};
use model_center::metrics::{AnswerScores, Metric, exact_match, token_f1};
use model_center::model::TextModel;
use model_center::tokenizer::Tokenizer;
use model_center::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Numbers of a sample that ranks tell each other.
const NUMBERS: usize = 2;

/// How answers are written, and read.
#[derive(Debug, Clone)]
pub struct Written {
    tokenizer: Arc<dyn Tokenizer>,
    /// In front of an answer, and behind it.
    sentinels: [u32; 2],
    /// The most words of an answer.
    longest: usize,
}

impl Written {
    /// Of the task SQuAD; `target_length` counts the words around an answer too.
    ///
    /// # Errors
    /// A vocabulary without sentinels.
    pub fn of_squad(tokenizer: Arc<dyn Tokenizer>, target_length: usize) -> Result<Self> {
        let sentinels = Squad::sentinels(&*tokenizer)?;
        Ok(Written { tokenizer, sentinels, longest: target_length.max(1) })
    }

    /// Whether it is by these texts that a metric judges.
    pub fn judges(metric: Metric) -> bool {
        matches!(metric, Metric::ExactMatch | Metric::TokenF1)
    }

    /// The value of one of these metrics.
    pub fn value(scores: &AnswerScores, metric: Metric) -> Option<f64> {
        match metric {
            Metric::ExactMatch => Some(scores.exact_match()),
            Metric::TokenF1 => Some(scores.token_f1()),
            _ => None,
        }
    }

    /// Write an answer to every sample, by the likeliest words, so many at a time. The ranks take turns, and all come
    /// to the same scores, or to `None` because on one of them `is_stopped` says that somebody asks for an end.
    ///
    /// # Errors
    /// A failing device; a lost rank.
    pub fn judge(
        &self,
        model: &dyn TextModel,
        dataset: &Dataset,
        at_a_time: usize,
        (device, team): (&Device, &ControlGroup),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<AnswerScores>> {
        let [begin, end] = self.sentinels;
        let ends = [Some(end), self.tokenizer.special_ids().eos].into_iter().flatten().collect();
        let options =
            GenerateOptions { max_new_tokens: self.longest, ends, prefix: vec![begin], ..GenerateOptions::default() };
        let generator = Generator::new(model, None, options)?.on_ranks(Arc::clone(team.ranks()));
        let mut scores = AnswerScores::default();
        let at_a_time = at_a_time.max(1);
        for first in (0..dataset.len()).step_by(at_a_time * team.size()) {
            let part = |rank: usize| -> Range<usize> {
                let from = (first + rank * at_a_time).min(dataset.len());
                from..(from + at_a_time).min(dataset.len())
            };
            let own = part(team.rank());
            let mut numbers = self.rate(&generator, dataset, own, &mut Ctx::inference(device))?;
            numbers.resize(NUMBERS * at_a_time, 0.0);
            numbers.push(f32::from(u8::from(is_stopped())));
            let all = team.gather(&numbers)?;
            if all.iter().any(|numbers| numbers.last() == Some(&1.0)) {
                return Ok(None);
            }
            for (rank, numbers) in all.iter().enumerate() {
                for (sample, rated) in part(rank).zip(numbers.chunks(NUMBERS)) {
                    let [exact, f1] = [0, 1].map(|at| f64::from(rated.get(at).copied().unwrap_or(0.0)));
                    scores.add_rated(sample as u32, exact, f1);
                }
            }
        }
        Ok(Some(scores))
    }

    /// Exact match and F1 of what is written for these samples, in turn.
    fn rate(
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
                    let last = text.words.len() - usize::from(text.ending == Ending::Word);
                    self.tokenizer.decode(&text.words[..last], true)?
                }
            };
            let answers = dataset.references(sample);
            numbers.extend([exact_match(&text, answers) as f32, token_f1(&text, answers) as f32]);
        }
        Ok(numbers)
    }
}
