//! Jobs of connections for the model's thread, and their results.

use super::api::ApiError;
use super::queue::Ticket;
use model_center_formats::tokenizer::Encoding;
use model_center_models::generate::{FinishReason, GenerateOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Work for the model's thread.
#[derive(Debug)]
pub(super) enum Job {
    Generate(Box<GenerateJob>),
    Rows(RowsJob),
}

/// Prompts to continue.
#[derive(Debug)]
pub(super) struct GenerateJob {
    /// Token ids, none of them empty.
    pub(super) prompts: Vec<Vec<u32>>,
    /// The most new tokens of each prompt; 0 to score prompts alone.
    pub(super) limits: Vec<usize>,
    /// Sequences of each prompt.
    pub(super) choices: usize,
    pub(super) options: GenerateOptions,
    /// Special tokens that appear in texts.
    pub(super) kept: Vec<(u32, String)>,
    /// Whether tokens have scores, and the number of most probable tokens with each.
    pub(super) scores: Option<usize>,
    /// Whether tokens of prompts have scores too.
    pub(super) scores_prompts: bool,
    pub(super) events: Sender<Event>,
    pub(super) cancelled: Cancelled,
    /// Its place in the queue.
    pub(super) ticket: Option<Ticket>,
}

/// Progress of a job.
#[derive(Debug)]
pub(super) enum Event {
    /// The tokens of a prompt with scores.
    Prompt { prompt: usize, tokens: Vec<ScoredToken> },
    /// A further token of sequence `prompt * choices + choice`.
    Token { sequence: usize, token: ScoredToken, text: String, finish_reason: Option<FinishReason> },
    /// All sequences have ended.
    Done,
    /// The job ends without a result.
    Failed(ApiError),
}

/// A token, with its score where one was asked for. The first token of a prompt has none.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScoredToken {
    pub(super) token: u32,
    pub(super) score: Option<Score>,
}

/// Log probabilities of a token and of the most probable ones, best first, by the model's logits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Score {
    pub(super) log_prob: f64,
    pub(super) top: Vec<(u32, f64)>,
}

/// Rows of tokens whose outputs are asked for.
#[derive(Debug)]
pub(super) struct RowsJob {
    /// None of them empty.
    pub(super) rows: Vec<Encoding>,
    /// Outputs of the model for each row: see [`model_center_train::predict::Predictor::outputs`].
    pub(super) result: Sender<Result<Vec<Vec<f32>>, ApiError>>,
    pub(super) cancelled: Cancelled,
    /// Its place in the queue.
    pub(super) ticket: Option<Ticket>,
}

/// Whether a job is no longer wanted; shared by the connection and the model's thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
