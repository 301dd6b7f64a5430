//! The names of metrics, what each judges, and which labels have which by default.

use super::{Evaluator, LabelSetCounts, PairStatistics};
use crate::{Error, Result};
use model_center_base::batch::{LabelSpace, Labels};

/// Metrics of spans.
pub const SPAN_METRICS: &[Metric] = &[Metric::TokenF1, Metric::ExactMatch];

/// Metrics of retrieval; the first picks the best weights.
pub const RETRIEVAL_METRICS: &[Metric] = &[Metric::MeanReciprocalRank, Metric::RecallAt1, Metric::RecallAt10];

/// Metrics of tags.
pub const TAG_METRICS: &[Metric] =
    &[Metric::EntityF1, Metric::EntityPrecision, Metric::EntityRecall, Metric::TagAccuracy];

/// Metrics of several labels; the first picks the best weights.
pub const MULTI_LABEL_METRICS: &[Metric] =
    &[Metric::F1Micro, Metric::F1Macro, Metric::PrecisionMacro, Metric::RecallMacro, Metric::Accuracy];

/// A figure of merit. Where a quotient has no defined value (0 / 0), it is 0, as in scikit-learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Share of right predictions; of samples with any number of labels the share whose labels are all right.
    Accuracy,
    /// Precision of class 1, of two classes: scikit-learn's average `binary`.
    Precision,
    /// Recall of class 1, of two classes.
    Recall,
    /// Harmonic mean of precision and recall of class 1, of two classes.
    F1,
    /// Mean over classes of their precision.
    PrecisionMacro,
    /// Mean over classes of their recall.
    RecallMacro,
    /// Mean over classes of their F1.
    F1Macro,
    /// Precision of all decisions together; equals accuracy where every sample has one class.
    PrecisionMicro,
    /// Recall of all decisions together.
    RecallMicro,
    /// F1 of all decisions together; equals accuracy where every sample has one class.
    F1Micro,
    /// Mean over classes of their precision, each with the weight of its labels.
    PrecisionWeighted,
    /// The same of their recall.
    RecallWeighted,
    /// The same of their F1.
    F1Weighted,
    /// Matthews correlation coefficient, −1 to 1, for any number of classes.
    Matthews,
    /// Pearson correlation coefficient of numbers, −1 to 1.
    Pearson,
    /// Spearman rank correlation coefficient of numbers, −1 to 1; ties share the mean of their ranks.
    Spearman,
    /// Mean squared error of numbers; smaller is better.
    MeanSquaredError,
    /// Perplexity of token labels: exp of the mean loss per token; smaller is better.
    Perplexity,
    /// Share of questions that are answered rightly: with one of the known answers, or in all of their parts.
    ExactMatch,
    /// Mean over questions of the word-level F1 of an answer against the known answer that fits best.
    TokenF1,
    /// F1 of named entities: each is right if its type and both of its ends are.
    EntityF1,
    /// Share of predicted entities that are right.
    EntityPrecision,
    /// Share of labelled entities that are predicted.
    EntityRecall,
    /// Share of words with the right tag.
    TagAccuracy,
    /// Share of pairs whose chosen completion has the larger reward.
    RewardAccuracy,
    /// Mean difference between the rewards of chosen and rejected completions.
    RewardMargin,
    /// Mean reward of chosen completions.
    RewardChosen,
    /// Mean reward of rejected completions.
    RewardRejected,
    /// Mean log-probability of chosen completions.
    LogProbChosen,
    /// Mean log-probability of rejected completions.
    LogProbRejected,
    /// Distance of the model from its reference on rated completions: see [`super::PairStatistics`].
    Kl,
    /// Mean reciprocal rank of the text that belongs to an anchor, among all texts.
    MeanReciprocalRank,
    /// Share of anchors whose nearest text is the one that belongs to them.
    RecallAt1,
    /// Share of anchors with the text that belongs to them among the nearest ten.
    RecallAt10,
    /// One that a program adds.
    Own(&'static OwnMetric),
}

impl serde::Serialize for Metric {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A metric that a program adds: a figure of the predictions that an evaluation has collected.
#[derive(Debug, Clone, Copy)]
pub struct OwnMetric {
    /// The name in recipes, logs and metric files.
    pub name: &'static str,
    /// The kind of labels that it judges.
    pub kind: LabelKind,
    /// Whether a larger figure is better.
    pub larger_is_better: bool,
    /// The figure; `None` of predictions of another kind.
    pub value: fn(&Evaluator) -> Option<f64>,
}

/// By name, which identifies a metric.
impl PartialEq for OwnMetric {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for OwnMetric {}

/// Every metric of this crate with its name and what it judges.
const ROWS: [(Metric, &str, LabelKind); 34] = [
    (Metric::Accuracy, "accuracy", LabelKind::Classes),
    (Metric::Precision, "precision", LabelKind::Classes),
    (Metric::Recall, "recall", LabelKind::Classes),
    (Metric::F1, "f1", LabelKind::Classes),
    (Metric::PrecisionMacro, "precision_macro", LabelKind::Classes),
    (Metric::RecallMacro, "recall_macro", LabelKind::Classes),
    (Metric::F1Macro, "f1_macro", LabelKind::Classes),
    (Metric::PrecisionMicro, "precision_micro", LabelKind::Classes),
    (Metric::RecallMicro, "recall_micro", LabelKind::Classes),
    (Metric::F1Micro, "f1_micro", LabelKind::Classes),
    (Metric::PrecisionWeighted, "precision_weighted", LabelKind::Classes),
    (Metric::RecallWeighted, "recall_weighted", LabelKind::Classes),
    (Metric::F1Weighted, "f1_weighted", LabelKind::Classes),
    (Metric::Matthews, "matthews", LabelKind::Classes),
    (Metric::Pearson, "pearson", LabelKind::Values),
    (Metric::Spearman, "spearman", LabelKind::Values),
    (Metric::MeanSquaredError, "mean_squared_error", LabelKind::Values),
    (Metric::Perplexity, "perplexity", LabelKind::Tokens),
    (Metric::ExactMatch, "exact_match", LabelKind::Questions),
    (Metric::TokenF1, "token_f1", LabelKind::Questions),
    (Metric::EntityF1, "entity_f1", LabelKind::Tags),
    (Metric::EntityPrecision, "entity_precision", LabelKind::Tags),
    (Metric::EntityRecall, "entity_recall", LabelKind::Tags),
    (Metric::TagAccuracy, "tag_accuracy", LabelKind::Tags),
    (Metric::RewardAccuracy, "reward_accuracy", LabelKind::Pairs),
    (Metric::RewardMargin, "reward_margin", LabelKind::Pairs),
    (Metric::RewardChosen, "reward_chosen", LabelKind::Pairs),
    (Metric::RewardRejected, "reward_rejected", LabelKind::Pairs),
    (Metric::LogProbChosen, "log_prob_chosen", LabelKind::Pairs),
    (Metric::LogProbRejected, "log_prob_rejected", LabelKind::Pairs),
    (Metric::Kl, "kl", LabelKind::Pairs),
    (Metric::MeanReciprocalRank, "mean_reciprocal_rank", LabelKind::Embeddings),
    (Metric::RecallAt1, "recall_at_1", LabelKind::Embeddings),
    (Metric::RecallAt10, "recall_at_10", LabelKind::Embeddings),
];

/// Kind of predictions that a metric compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelKind {
    /// Classes and choices.
    Classes,
    /// Numbers.
    Values,
    /// Tokens.
    Tokens,
    /// Questions with several samples each.
    Questions,
    /// Tags of words.
    Tags,
    /// Pairs of completions.
    Pairs,
    /// Embeddings of texts.
    Embeddings,
    /// Any number of labels for each sample.
    LabelSets,
}

impl LabelKind {
    /// The kind of labels.
    pub fn of(labels: &LabelSpace) -> LabelKind {
        match labels {
            LabelSpace::Classes(_) | LabelSpace::Choices(_) | LabelSpace::Verbalizer(_) => LabelKind::Classes,
            LabelSpace::Value => LabelKind::Values,
            LabelSpace::NextTokens | LabelSpace::Target | LabelSpace::MaskedTokens { .. } => LabelKind::Tokens,
            LabelSpace::TokenClasses(_) => LabelKind::Tags,
            LabelSpace::Span => LabelKind::Questions,
            LabelSpace::Pairs | LabelSpace::Unpaired => LabelKind::Pairs,
            LabelSpace::Texts(_) => LabelKind::Embeddings,
            LabelSpace::LabelSets(_) => LabelKind::LabelSets,
        }
    }

    /// Kind of these labels.
    pub(super) fn by(labels: &Labels) -> LabelKind {
        match labels {
            Labels::Classes(_) => LabelKind::Classes,
            Labels::Values(_) => LabelKind::Values,
            Labels::NextTokens(_) | Labels::Target(_) | Labels::Predicted(_) => LabelKind::Tokens,
            Labels::TokenClasses(_) => LabelKind::Tags,
            Labels::Spans(_) => LabelKind::Questions,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            LabelKind::Classes => "classes",
            LabelKind::Values => "numbers",
            LabelKind::Tokens => "tokens",
            LabelKind::Questions => "questions",
            LabelKind::Tags => "tags of words",
            LabelKind::Pairs => "pairs of completions",
            LabelKind::Embeddings => "texts that belong together",
            LabelKind::LabelSets => "any number of labels",
        }
    }

    /// The names of the metrics that judge it.
    pub fn metrics(self) -> Vec<&'static str> {
        let of_sets = |metric: &Metric| self == LabelKind::LabelSets && LabelSetCounts::METRICS.contains(metric);
        Metric::all().filter(|metric| metric.kind() == self || of_sets(metric)).map(Metric::name).collect()
    }

    /// A metric that suits any labels of the kind.
    pub fn usual_metric(self) -> Metric {
        match self {
            LabelKind::Classes => Metric::Accuracy,
            LabelKind::Values => Metric::Pearson,
            LabelKind::Tokens => Metric::Perplexity,
            LabelKind::Questions => Metric::TokenF1,
            LabelKind::Tags => Metric::EntityF1,
            LabelKind::Pairs => Metric::RewardAccuracy,
            LabelKind::Embeddings => Metric::MeanReciprocalRank,
            LabelKind::LabelSets => Metric::F1Micro,
        }
    }
}

impl Metric {
    /// Every metric of this crate.
    pub fn all() -> impl Iterator<Item = Metric> {
        ROWS.iter().map(|(metric, ..)| *metric)
    }

    /// The name in recipes, logs and metric files.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Own(own) => own.name,
            _ => ROWS.iter().find(|(metric, ..)| *metric == self).map_or("", |(_, name, _)| *name),
        }
    }

    /// The metric of a name.
    pub fn parse(name: &str) -> Result<Metric> {
        Metric::all().find(|metric| metric.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Metric::all().map(Metric::name).collect();
            Error::argument("eval.metric", format!("unknown metric {name:?}"), format!("use {}", names.join(", ")))
        })
    }

    /// Whether a larger figure is better.
    pub fn larger_is_better(self) -> bool {
        match self {
            Metric::MeanSquaredError
            | Metric::Perplexity
            | Metric::RewardRejected
            | Metric::LogProbRejected
            | Metric::Kl => false,
            Metric::Own(own) => own.larger_is_better,
            _ => true,
        }
    }

    /// Whether it is of class 1 alone, which is not defined for three classes and more.
    pub fn is_binary(self) -> bool {
        matches!(self, Metric::Precision | Metric::Recall | Metric::F1)
    }

    /// Whether it has a value for labels of this number of classes; any number where they are no classes.
    ///
    /// # Errors
    /// A figure of class 1 for another number than two.
    pub fn check_classes(self, classes: Option<usize>) -> Result<()> {
        match classes {
            Some(classes) if self.is_binary() && classes != 2 => {
                let name = self.name();
                let reason = format!("{name:?} is the figure of the second of two classes, and there are {classes}");
                let fix = format!(
                    "use \"{name}_macro\" (every class counts alike), \"{name}_weighted\" (each by its labels) or \
                     \"{name}_micro\" (all decisions together)"
                );
                Err(Error::argument("eval.metric", reason, fix))
            }
            _ => Ok(()),
        }
    }

    /// Kind of predictions that it compares.
    pub fn kind(self) -> LabelKind {
        match self {
            Metric::Own(own) => own.kind,
            _ => ROWS.iter().find(|(metric, ..)| *metric == self).map_or(LabelKind::Classes, |(_, _, kind)| *kind),
        }
    }

    /// Metrics reported for labels of a kind if a recipe names none; the first picks the best checkpoint.
    pub fn defaults(labels: &LabelSpace) -> &'static [Metric] {
        match labels {
            LabelSpace::Value => &[Metric::Pearson, Metric::Spearman, Metric::MeanSquaredError],
            LabelSpace::NextTokens | LabelSpace::Target | LabelSpace::MaskedTokens { .. } => &[Metric::Perplexity],
            LabelSpace::TokenClasses(_) => TAG_METRICS,
            LabelSpace::Span => SPAN_METRICS,
            LabelSpace::Choices(_) => &[Metric::Accuracy],
            LabelSpace::Pairs => PairStatistics::OF_PAIRS,
            LabelSpace::Unpaired => PairStatistics::METRICS,
            LabelSpace::Texts(_) => RETRIEVAL_METRICS,
            LabelSpace::LabelSets(_) => MULTI_LABEL_METRICS,
            LabelSpace::Classes(_) | LabelSpace::Verbalizer(_) if labels.classes() == Some(2) => {
                &[Metric::Accuracy, Metric::Precision, Metric::Recall, Metric::F1, Metric::Matthews]
            }
            LabelSpace::Classes(_) | LabelSpace::Verbalizer(_) => {
                &[Metric::Accuracy, Metric::PrecisionMacro, Metric::RecallMacro, Metric::F1Macro, Metric::Matthews]
            }
        }
    }
}
