//! Kind of a model's predictions, by its head and its configuration.

use crate::{Error, Result};
use model_center_base::batch::LabelSpace;
use model_center_formats::config::{ProblemType, TextHead};
use model_center_models::{ModelInfo, SentenceEncoder};
use std::path::Path;

/// Prediction of a model for an input.
#[derive(Debug, Clone, PartialEq)]
pub enum PredictionKind {
    /// One of these classes.
    Class(Vec<String>),
    /// Any number of these labels.
    Labels(Vec<String>),
    /// This many numbers: of a regression, a reranker or a reward model one.
    Numbers(usize),
    /// A class of each word, such as `B-PER`.
    Words(Vec<String>),
    /// The span of a passage that answers a question.
    Answer,
    /// A vector.
    Embedding(Box<SentenceEncoder>),
}

impl PredictionKind {
    /// Kind of predictions of a directory's model with the head that it was opened with.
    ///
    /// # Errors
    /// [`Error::Model`] for a head that predicts tokens or sentences, and for settings of embeddings that are not
    /// supported.
    pub fn of(info: &ModelInfo, directory: &Path) -> Result<Self> {
        let names = |outputs: usize| match info.label_names.len() == outputs {
            true => info.label_names.clone(),
            // As transformers names them.
            false => (0..outputs).map(|class| format!("LABEL_{class}")).collect(),
        };
        Ok(match (info.head, info.problem) {
            (TextHead::Classification { outputs }, Some(ProblemType::Regression)) => PredictionKind::Numbers(outputs),
            (TextHead::Classification { outputs: 1 }, None | Some(ProblemType::SingleLabel)) => {
                PredictionKind::Numbers(1)
            }
            // Of a reranker, whose labels are probabilities.
            (TextHead::Classification { outputs: 1 }, Some(ProblemType::MultiLabel)) if names(1) == ["LABEL_0"] => {
                PredictionKind::Numbers(1)
            }
            (TextHead::Classification { outputs }, Some(ProblemType::MultiLabel)) => {
                PredictionKind::Labels(names(outputs))
            }
            (TextHead::Classification { outputs }, _) => PredictionKind::Class(names(outputs)),
            (TextHead::TokenClassification { outputs }, _) => PredictionKind::Words(names(outputs)),
            (TextHead::QuestionAnswering, _) => PredictionKind::Answer,
            (TextHead::None, _) => {
                let encoder = SentenceEncoder::from_directory(directory)?.within(info.max_length);
                PredictionKind::Embedding(Box::new(encoder))
            }
            (TextHead::CausalLm, _) => {
                let fix = "generate texts with bmtrain generate, or give the directory of a classifier";
                return Err(refuse(directory, "it generates texts", fix));
            }
            (TextHead::MaskedLm | TextHead::NextSentence | TextHead::Pretraining, _) => {
                let fix = "fine-tune it first, or ask for embeddings with `embeddings`";
                return Err(refuse(directory, "it is pretrained: it predicts masked tokens", fix));
            }
        })
    }

    /// The same with these names of its classes or labels: a directory of PEFT has none.
    ///
    /// # Errors
    /// [`Error::Argument`] for another number of names than the model has outputs, for names that repeat, and for a
    /// model that has other names.
    pub fn named(self, names: Vec<String>) -> Result<Self> {
        let outputs = self.names().len();
        let distinct = names.iter().collect::<std::collections::HashSet<_>>().len();
        if names.len() != outputs || distinct != outputs {
            let reason =
                format!("{} names, {distinct} of them distinct, and the model has {outputs} classes", names.len());
            return Err(Error::argument(
                "labels",
                reason,
                "name every class once, in the order of the model's outputs",
            ));
        }
        if !self.is_unnamed() && names != self.names() {
            let reason = format!("the model names its classes itself: {}", self.names().join(", "));
            return Err(Error::argument("labels", reason, "leave it out"));
        }
        Ok(match self {
            PredictionKind::Class(_) => PredictionKind::Class(names),
            PredictionKind::Labels(_) => PredictionKind::Labels(names),
            PredictionKind::Words(_) => PredictionKind::Words(names),
            other => other,
        })
    }

    /// Whether it has classes, and the model no names of them.
    pub fn is_unnamed(&self) -> bool {
        let names = self.names();
        !names.is_empty() && names.iter().enumerate().all(|(class, name)| *name == format!("LABEL_{class}"))
    }

    /// Names of the classes or labels; none of numbers, answers and embeddings.
    pub fn names(&self) -> &[String] {
        match self {
            PredictionKind::Class(names) | PredictionKind::Labels(names) | PredictionKind::Words(names) => names,
            PredictionKind::Numbers(_) | PredictionKind::Answer | PredictionKind::Embedding(_) => &[],
        }
    }

    /// The labels that it is rated against; `None` of embeddings and of several numbers.
    pub fn labels(&self) -> Option<LabelSpace> {
        match self {
            PredictionKind::Class(names) => Some(LabelSpace::Classes(names.clone())),
            PredictionKind::Labels(names) => Some(LabelSpace::LabelSets(names.clone())),
            PredictionKind::Numbers(1) => Some(LabelSpace::Value),
            PredictionKind::Words(names) => Some(LabelSpace::TokenClasses(names.clone())),
            PredictionKind::Answer => Some(LabelSpace::Span),
            PredictionKind::Numbers(_) | PredictionKind::Embedding(_) => None,
        }
    }
}

fn refuse(directory: &Path, reason: &str, fix: &str) -> Error {
    Error::model(directory.display().to_string(), format!("the model has no predictions of inputs: {reason}"), fix)
}
