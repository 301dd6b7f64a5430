//! Infers from a directory's tensors what its `config.json` does not state: the head, and the number of classes.
//!
//! Defines [`FoundHeads`], called by [`crate::model::load`], and [`classifier_outputs`], called by programs that need a
//! classifier.

use model_center_base::error::{Error, Result};
use model_center_formats::config;
use model_center_formats::config::TextHead;
use model_center_formats::{NameTable, TensorSource, Weights};
use std::path::Path;

/// The last layer of a classifier in files of `transformers`, in any family.
const CLASSIFIERS: &[&str] =
    &["classifier.weight", "classifier.out_proj.weight", "score.weight", "classification_head.out_proj.weight"];

/// The heads whose tensors a directory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FoundHeads {
    /// For tokens, with a matrix of its own or, in an encoder, a dense layer before the tied one.
    pub(in crate::model) tokens: bool,
    /// For next-sentence prediction.
    pub(in crate::model) sentences: bool,
    /// For classes, with its outputs.
    pub(in crate::model) classes: Option<usize>,
}

impl FoundHeads {
    /// The heads of a directory. Arguments: for each head this crate's name of one of its matrices, and the name table.
    pub(in crate::model) fn of(
        directory: &Path,
        tokens: (&str, &NameTable),
        sentences: Option<(&str, &NameTable)>,
        classes: (&str, &NameTable),
    ) -> Result<Self> {
        let weights = Weights::open(directory)?;
        let rows = |(ours, table): (&str, &NameTable)| {
            let theirs = table.pieces(ours, &[1, 1], true).ok()?.into_iter().next()?.name;
            weights.entries().iter().find(|entry| entry.name == theirs).map(|entry| entry.shape.first().copied())
        };
        Ok(FoundHeads {
            tokens: rows(tokens).is_some(),
            sentences: sentences.and_then(rows).is_some(),
            classes: rows(classes).flatten(),
        })
    }

    /// The head of a directory whose `config.json` names no class: its only head, or, of several, the `asked` one. The
    /// pair holds the head for weights without tensors of any head, and the head for tokens. Adds what is inferred to
    /// `notes`.
    ///
    /// # Errors
    /// Several heads, and `asked` is not among them.
    pub(in crate::model) fn only(
        self,
        place: &str,
        asked: Option<TextHead>,
        (without, tokens): (TextHead, TextHead),
        notes: &mut Vec<String>,
    ) -> Result<TextHead> {
        let classes = self.classes.map(|outputs| TextHead::Classification { outputs });
        let head = match (self.tokens, self.sentences, classes, asked) {
            (_, _, Some(classes), Some(TextHead::Classification { .. })) => classes,
            // A classifier that the directory lacks is a new one.
            (_, _, None, Some(TextHead::Classification { .. })) => return Ok(TextHead::None),
            (_, _, _, Some(asked)) => return Ok(asked),
            (true, true, None, None) => TextHead::Pretraining,
            (true, false, None, None) => tokens,
            (false, true, None, None) => TextHead::NextSentence,
            (false, false, Some(classes), None) => classes,
            (false, false, None, None) => without,
            _ => {
                let name = if tokens == TextHead::CausalLm { "lm" } else { "mlm" };
                let found = [(self.tokens, name), (self.sentences, "nsp"), (self.classes.is_some(), "cls")];
                let found: Vec<&str> =
                    found.into_iter().filter_map(|(is_there, name)| is_there.then_some(name)).collect();
                let reason =
                    format!("the file names no class, and the weights have several heads: {}", found.join(", "));
                let fix = "choose one with --head, or name the class in config.json";
                return Err(Error::model(format!("{place}, field architectures"), reason, fix));
            }
        };
        notes.push(format!("config.json names no class; by its tensors the head is {}", described(head)));
        Ok(head)
    }

    /// Number of outputs of the classifier: as the configuration states it or, if it states none, as the weights have
    /// it. A number from the weights that is not the default is added to `notes`.
    pub(in crate::model) fn outputs(
        self,
        directory: &Path,
        stated: Option<usize>,
        notes: &mut Vec<String>,
    ) -> Result<usize> {
        let assumed = config::classes_are_assumed(&config::directory_fields(directory)?);
        let stated = stated.unwrap_or(2);
        let outputs = self.classes.filter(|_| assumed).unwrap_or(stated);
        if outputs != stated {
            let open = "config.json leaves the number of classes open";
            notes.push(format!("{open}; there are {outputs} classes by the rows of the classifier"));
        }
        Ok(outputs)
    }
}

/// The name that programs use for a head.
fn described(head: TextHead) -> String {
    let name = match head {
        TextHead::None => "none",
        TextHead::CausalLm => "lm",
        TextHead::MaskedLm => "mlm",
        TextHead::NextSentence => "nsp",
        TextHead::Pretraining => "mlm and nsp",
        TextHead::TokenClassification { .. } => "tokens",
        TextHead::QuestionAnswering => "qa",
        TextHead::Classification { outputs } => {
            return format!("cls, with {outputs} classes by the rows of the classifier");
        }
    };
    name.to_owned()
}

/// The outputs of the classifier in a directory of `transformers`, by its weights.
pub fn classifier_outputs(directory: &Path) -> Result<Option<usize>> {
    let weights = Weights::open(directory)?;
    let found = weights.entries().into_iter().find(|entry| CLASSIFIERS.contains(&entry.name.as_str()));
    Ok(found.and_then(|entry| entry.shape.first().copied()))
}
