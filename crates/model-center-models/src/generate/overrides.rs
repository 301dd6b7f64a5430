//! [`GenerationOverrides`], the settings of a caller and of the command line.

use super::{Constraint, GenerationConfig, Patience};
use crate::{Error, Result};
use std::sync::Arc;

/// The origin of a setting that neither the caller nor the directory states.
pub(super) const DEFAULT: &str = "default";

/// The settings of a caller, which take precedence over the model directory's; by default none. Its fields are the
/// options of the command line.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct GenerationOverrides {
    /// Name of the caller's settings among the origins.
    #[cfg_attr(feature = "cli", arg(skip = "the command line"))]
    pub origin: &'static str,
    /// The most new tokens; 128 unless the model states it.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub max_new_tokens: Option<usize>,
    /// The fewest tokens before an end token.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub min_new_tokens: Option<usize>,
    /// Greedy decoding: the most probable token each time.
    #[cfg_attr(feature = "cli", arg(long, conflicts_with_all = ["sample", "beams"]))]
    pub greedy: bool,
    /// Sampling, which the six settings that follow select, too.
    #[cfg_attr(feature = "cli", arg(long, conflicts_with = "beams"))]
    pub sample: bool,
    /// Temperature: below 1 the distribution is sharper, above 1 flatter.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NUMBER"))]
    pub temperature: Option<f32>,
    /// Sample among this number of most probable tokens; 0 for all.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub top_k: Option<usize>,
    /// Sample among the most probable tokens whose probabilities sum to this.
    #[cfg_attr(feature = "cli", arg(long, value_name = "SHARE"))]
    pub top_p: Option<f32>,
    /// Sample among tokens with at least this fraction of the highest probability.
    #[cfg_attr(feature = "cli", arg(long, value_name = "SHARE"))]
    pub min_p: Option<f32>,
    /// Seed of sampling: equal seeds give equal texts. 0 by default.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub seed: Option<u64>,
    /// Texts of each prompt.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub texts: Option<usize>,
    /// Beam search with this number of beams.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub beams: Option<usize>,
    /// Log probabilities are divided by the length to this power: above 0 favours long texts.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NUMBER", allow_negative_numbers = true))]
    pub length_penalty: Option<f32>,
    /// Number of texts to return from a beam search.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub best: Option<usize>,
    /// Early stopping of beam search.
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "WHEN"))]
    pub patience: Option<Patience>,
    /// Repetition penalty: above 1 makes tokens of the text less probable.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NUMBER"))]
    pub repetition_penalty: Option<f32>,
    /// Number of last tokens that the repetition penalty includes; by default all.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub repetition_window: Option<usize>,
    /// Whether the repetition penalty includes the prompt; by default it does.
    #[cfg_attr(feature = "cli", arg(long = "penalise-prompt", value_name = "true|false"))]
    pub penalize_prompt: Option<bool>,
    /// N-grams of this size are not repeated; 0 for no such rule.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub no_repeat: Option<usize>,
    /// Stop string: the text ends before it; may be repeated. Without any, the model's own.
    #[cfg_attr(feature = "cli", arg(long = "stop", value_name = "TEXT"))]
    pub stop_strings: Vec<String>,
    /// Bidirectional attention over the prompt, for CPM-1.
    #[cfg_attr(feature = "cli", arg(long = "context"))]
    pub is_context: bool,
    /// Tokens that end a sequence; empty for the directory's.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub end_tokens: Vec<u32>,
    /// Forbidden tokens besides the directory's.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub forbidden: Vec<u32>,
    /// The form of every text; stop strings of the directory do not cut it.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub constraint: Option<Arc<Constraint>>,
    /// See [`GenerateOptions::prefix`](super::GenerateOptions::prefix).
    #[cfg_attr(feature = "cli", arg(skip))]
    pub prefix: Option<Vec<u32>>,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Greedy,
    Sampling,
    Beams,
}

impl GenerationOverrides {
    fn given_sampling(&self) -> Option<&'static str> {
        first_given(&[
            ("temperature", self.temperature.is_some()),
            ("top_k", self.top_k.is_some()),
            ("top_p", self.top_p.is_some()),
            ("min_p", self.min_p.is_some()),
            ("seed", self.seed.is_some()),
            ("texts", self.texts.is_some()),
        ])
    }

    fn given_beam_search(&self) -> Option<&'static str> {
        first_given(&[
            ("length_penalty", self.length_penalty.is_some()),
            ("best", self.best.is_some()),
            ("patience", self.patience.is_some()),
        ])
    }

    /// The method, and its origin.
    pub(super) fn kind(&self, config: &GenerationConfig) -> Result<(Kind, &'static str)> {
        let (sampling, search) = (self.given_sampling(), self.given_beam_search());
        let samples = config.do_sample.as_ref().filter(|sample| sample.value);
        let (kind, origin) = match (&config.num_beams, samples) {
            _ if self.greedy => (Kind::Greedy, self.origin),
            _ if self.beams.is_some() => (Kind::Beams, self.origin),
            _ if self.sample || sampling.is_some() => (Kind::Sampling, self.origin),
            (_, Some(samples)) => (Kind::Sampling, samples.origin),
            (Some(beams), None) => (Kind::Beams, beams.origin),
            (None, None) => (Kind::Greedy, DEFAULT),
        };
        match (kind, sampling, search) {
            (Kind::Greedy | Kind::Beams, Some(name), _) => {
                let fix = "leave it out, or leave `greedy` and `beams` out";
                Err(Error::argument(name, "it has no effect: no token is sampled", fix))
            }
            (Kind::Greedy | Kind::Sampling, _, Some(name)) => {
                Err(Error::argument(name, "it has no effect: there is no beam search", "add `beams`, or leave it out"))
            }
            _ => Ok((kind, origin)),
        }
    }
}

/// The first of these settings that is given.
pub(super) fn first_given(settings: &[(&'static str, bool)]) -> Option<&'static str> {
    settings.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name)
}
