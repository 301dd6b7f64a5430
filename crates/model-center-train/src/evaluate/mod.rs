//! Published evaluations of language models: perplexity, LAMBADA, log-likelihoods of continuations, masked tokens.
//!
//! ```text
//! file ─▶ ScoredSequence (an input and the tokens to predict at its positions) ─▶ Scorer ─▶ result
//! ```
//!
//! A [`Scorer`] runs batches of sequences on one rank; data-parallel ranks take batches in turn. The losses alone
//! ([`Scorer::losses`]) need no logits in memory; [`Scorer::tokens`] also reports whether each token is the most
//! probable one. The program `evaluate` is the caller, `docs/evaluate.md` its manual.

mod continuation;
mod detokenize;
mod lambada;
mod likelihood;
mod masked;
mod perplexity;
mod scorer;
mod source;
mod windows;

pub use continuation::{SplitText, TextSplitter};
pub use detokenize::Detokenizer;
pub use lambada::{LambadaResult, LambadaTotals, read_lambada};
pub use likelihood::{LikelihoodRequest, read_requests};
pub use masked::{EvalMasking, MaskedSequence, MaskedSet, MlmResult, read_masked};
pub use model_center_models::generate::{TokenScore, token_score};
pub use perplexity::{PerplexityResult, Reference};
pub use scorer::{ScoredSequence, ScoredTarget, Scorer};
pub use source::{SourceOptions, TextCounts, TokenSource};
pub use windows::Windows;

/// The largest loss whose exponential Megatron-LM prints.
const CAPPED_LOSS: f64 = 20.0;

/// Megatron-LM's perplexity, `exp(min(20, loss))`.
pub fn capped_perplexity(loss: f64) -> f64 {
    loss.min(CAPPED_LOSS).exp()
}
