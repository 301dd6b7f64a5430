//! Metrics of an evaluation.
//!
//! [`Metric`] names them; [`Evaluator`] collects predictions, merges them over ranks and computes. Its accumulators are
//! exact: counts are integers, and numbers are kept with their sample's index and summed in that order, so the result
//! has the same bits for any number of ranks and any batch order.
//! Called by the evaluation of a run; tasks name their metrics in [`crate::data::SUPERGLUE`] and
//! [`crate::data::PROMPTS`].

mod answers;
mod class_counts;
mod entities;
mod evaluator;
mod label_sets;
mod metric;
mod ordered;
mod pairs;
mod questions;
mod retrieval;
mod rouge;
mod spans;

pub use answers::{AnswerScores, answer_words, exact_match, token_f1};
pub use class_counts::{Average, ClassCounts};
pub use entities::{Entity, EntityCounts, entities};
pub use evaluator::{Evaluator, argmax};
pub use label_sets::{LabelSetCounts, logit};
pub use metric::{LabelKind, MULTI_LABEL_METRICS, Metric, OwnMetric, RETRIEVAL_METRICS, SPAN_METRICS, TAG_METRICS};
pub use ordered::{OrderedSum, ValuePairs};
pub use pairs::PairStatistics;
pub use questions::Questions;
pub use retrieval::{Retrieval, RetrievalScores};
pub use rouge::{RougeL, rouge_l};
pub use spans::{N_BEST, SpanAnswers, SpanCandidate, SpanSearch};
