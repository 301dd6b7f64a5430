//! The names of metrics, what each judges, and which labels have which by default.

use super::{LabelSetCounts, PairStatistics};
use crate::{Error, Result};
use model_center_base::batch::{LabelSpace, Labels};

/// What evaluation reports.
pub const SPAN_METRICS: &[Metric] = &[Metric::TokenF1, Metric::ExactMatch];

/// What an evaluation reports, the first being what picks the best weights.
pub const RETRIEVAL_METRICS: &[Metric] = &[Metric::MeanReciprocalRank, Metric::RecallAt1, Metric::RecallAt10];

/// What evaluation reports.
pub const TAG_METRICS: &[Metric] =
    &[Metric::EntityF1, Metric::EntityPrecision, Metric::EntityRecall, Metric::TagAccuracy];

/// What evaluation reports, the first being what picks the best weights.
pub const MULTI_LABEL_METRICS: &[Metric] =
    &[Metric::F1Micro, Metric::F1Macro, Metric::PrecisionMacro, Metric::RecallMacro, Metric::Accuracy];

/// A figure of merit. Where a quotient has no defined value (0 / 0), it is 0, as in scikit-learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// Of judged completions, how far the model is from its reference: see [`super::PairStatistics`].
    Kl,
    /// Of embeddings, the mean reciprocal rank of the text that belongs to an anchor, among all texts.
    MeanReciprocalRank,
    /// Of embeddings, the share of anchors whose nearest text is the one that belongs to them.
    #[serde(rename = "recall_at_1")]
    RecallAt1,
    /// Of embeddings, the share of anchors with the text that belongs to them among the nearest ten.
    #[serde(rename = "recall_at_10")]
    RecallAt10,
}

/// What a metric judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
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

impl MetricKind {
    /// The kind of labels.
    pub fn of(labels: &LabelSpace) -> MetricKind {
        match labels {
            LabelSpace::Classes(_) | LabelSpace::Choices(_) | LabelSpace::Verbalizer(_) => MetricKind::Classes,
            LabelSpace::Value => MetricKind::Values,
            LabelSpace::NextTokens | LabelSpace::Target | LabelSpace::MaskedTokens { .. } => MetricKind::Tokens,
            LabelSpace::TokenClasses(_) => MetricKind::Tags,
            LabelSpace::Span => MetricKind::Questions,
            LabelSpace::Pairs | LabelSpace::Judged => MetricKind::Pairs,
            LabelSpace::Texts(_) => MetricKind::Embeddings,
            LabelSpace::LabelSets(_) => MetricKind::LabelSets,
        }
    }

    /// What these labels are compared with.
    pub(super) fn by(labels: &Labels) -> MetricKind {
        match labels {
            Labels::Classes(_) => MetricKind::Classes,
            Labels::Values(_) => MetricKind::Values,
            Labels::NextTokens(_) | Labels::Target(_) | Labels::Predicted(_) => MetricKind::Tokens,
            Labels::TokenClasses(_) => MetricKind::Tags,
            Labels::Spans(_) => MetricKind::Questions,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Classes => "classes",
            MetricKind::Values => "numbers",
            MetricKind::Tokens => "tokens",
            MetricKind::Questions => "questions",
            MetricKind::Tags => "tags of words",
            MetricKind::Pairs => "pairs of completions",
            MetricKind::Embeddings => "texts that belong together",
            MetricKind::LabelSets => "any number of labels",
        }
    }

    /// The names of the metrics that judge it.
    pub fn metrics(self) -> Vec<&'static str> {
        let of_sets = |metric: &Metric| self == MetricKind::LabelSets && LabelSetCounts::METRICS.contains(metric);
        let all = Metric::ALL.iter().filter(|metric| metric.kind() == self || of_sets(metric));
        all.map(|metric| metric.name()).collect()
    }
}

impl Metric {
    /// Every metric.
    pub const ALL: &[Metric] = &[
        Metric::Accuracy,
        Metric::Precision,
        Metric::Recall,
        Metric::F1,
        Metric::PrecisionMacro,
        Metric::RecallMacro,
        Metric::F1Macro,
        Metric::PrecisionMicro,
        Metric::RecallMicro,
        Metric::F1Micro,
        Metric::PrecisionWeighted,
        Metric::RecallWeighted,
        Metric::F1Weighted,
        Metric::Matthews,
        Metric::Pearson,
        Metric::Spearman,
        Metric::MeanSquaredError,
        Metric::Perplexity,
        Metric::ExactMatch,
        Metric::TokenF1,
        Metric::EntityF1,
        Metric::EntityPrecision,
        Metric::EntityRecall,
        Metric::TagAccuracy,
        Metric::RewardAccuracy,
        Metric::RewardMargin,
        Metric::RewardChosen,
        Metric::RewardRejected,
        Metric::LogProbChosen,
        Metric::LogProbRejected,
        Metric::Kl,
        Metric::MeanReciprocalRank,
        Metric::RecallAt1,
        Metric::RecallAt10,
    ];

    /// The name in recipes, logs and metric files.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Accuracy => "accuracy",
            Metric::Precision => "precision",
            Metric::Recall => "recall",
            Metric::F1 => "f1",
            Metric::PrecisionMacro => "precision_macro",
            Metric::RecallMacro => "recall_macro",
            Metric::F1Macro => "f1_macro",
            Metric::PrecisionMicro => "precision_micro",
            Metric::RecallMicro => "recall_micro",
            Metric::F1Micro => "f1_micro",
            Metric::PrecisionWeighted => "precision_weighted",
            Metric::RecallWeighted => "recall_weighted",
            Metric::F1Weighted => "f1_weighted",
            Metric::Matthews => "matthews",
            Metric::Pearson => "pearson",
            Metric::Spearman => "spearman",
            Metric::MeanSquaredError => "mean_squared_error",
            Metric::Perplexity => "perplexity",
            Metric::ExactMatch => "exact_match",
            Metric::TokenF1 => "token_f1",
            Metric::EntityF1 => "entity_f1",
            Metric::EntityPrecision => "entity_precision",
            Metric::EntityRecall => "entity_recall",
            Metric::TagAccuracy => "tag_accuracy",
            Metric::RewardAccuracy => "reward_accuracy",
            Metric::RewardMargin => "reward_margin",
            Metric::RewardChosen => "reward_chosen",
            Metric::RewardRejected => "reward_rejected",
            Metric::LogProbChosen => "log_prob_chosen",
            Metric::LogProbRejected => "log_prob_rejected",
            Metric::Kl => "kl",
            Metric::MeanReciprocalRank => "mean_reciprocal_rank",
            Metric::RecallAt1 => "recall_at_1",
            Metric::RecallAt10 => "recall_at_10",
        }
    }

    /// The metric of a name.
    pub fn parse(name: &str) -> Result<Metric> {
        Metric::ALL.iter().copied().find(|metric| metric.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
            Error::argument("eval.metric", format!("unknown metric {name:?}"), format!("use {}", names.join(", ")))
        })
    }

    /// Whether a larger figure is better.
    pub fn larger_is_better(self) -> bool {
        !matches!(
            self,
            Metric::MeanSquaredError
                | Metric::Perplexity
                | Metric::RewardRejected
                | Metric::LogProbRejected
                | Metric::Kl
        )
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

    /// What it judges.
    pub fn kind(self) -> MetricKind {
        match self {
            Metric::Pearson | Metric::Spearman | Metric::MeanSquaredError => MetricKind::Values,
            Metric::Perplexity => MetricKind::Tokens,
            Metric::ExactMatch | Metric::TokenF1 => MetricKind::Questions,
            Metric::EntityF1 | Metric::EntityPrecision | Metric::EntityRecall | Metric::TagAccuracy => MetricKind::Tags,
            Metric::RewardAccuracy
            | Metric::RewardMargin
            | Metric::RewardChosen
            | Metric::RewardRejected
            | Metric::LogProbChosen
            | Metric::LogProbRejected
            | Metric::Kl => MetricKind::Pairs,
            Metric::MeanReciprocalRank | Metric::RecallAt1 | Metric::RecallAt10 => MetricKind::Embeddings,
            _ => MetricKind::Classes,
        }
    }

    /// What is reported for labels of a kind if a recipe names no metric; the first picks the best checkpoint.
    pub fn defaults(labels: &LabelSpace) -> &'static [Metric] {
        match labels {
            LabelSpace::Value => &[Metric::Pearson, Metric::Spearman, Metric::MeanSquaredError],
            LabelSpace::NextTokens | LabelSpace::Target | LabelSpace::MaskedTokens { .. } => &[Metric::Perplexity],
            LabelSpace::TokenClasses(_) => TAG_METRICS,
            LabelSpace::Span => SPAN_METRICS,
            LabelSpace::Choices(_) => &[Metric::Accuracy],
            LabelSpace::Pairs => PairStatistics::OF_PAIRS,
            LabelSpace::Judged => PairStatistics::METRICS,
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
