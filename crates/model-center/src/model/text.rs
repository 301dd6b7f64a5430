//! What programs need of a model of text, whatever its family: ids in, logits and loss out, weights by name.
//!
//! [`crate::model::registry`] opens a directory as a boxed [`TextModel`]; the finetune and forward programs call it.

use crate::config::model_center::no_model_center;
use crate::data::{Batch, VerbalizerPosition};
use crate::error::{Error, Result};
use crate::formats::{DirectoryLayout, NameTable};
use crate::model::decoding::{Decoding, DecodingOptions};
use crate::model::opening::{Fill, from_parameters};
use crate::model::registry::SaveOptions;
use bmtrain_core::{Ctx, Tensor, Var};
use bmtrain_dist::Parameters;
use std::borrow::Cow;
use std::path::Path;

/// Which head a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextHead {
    /// The hidden states alone.
    None,
    /// Classes, choices or a value: so many outputs per row.
    Classification {
        /// Outputs.
        outputs: usize,
    },
    /// Words at masked positions.
    MaskedLm,
    /// Whether the second text follows the first.
    NextSentence,
    /// Masked words and next sentence.
    Pretraining,
    /// The next word at every position; of a model with two stacks, at those of its decoder.
    CausalLm,
}

/// The error of a model that answers no prompts; `title` is its name for people.
pub(super) fn no_verbalizer(title: &str) -> Error {
    let reason = format!("{title} answers no prompts with the head that it has");
    Error::recipe("the head asked for", reason, "take a model that predicts words, such as GPT-2 or T5")
}

/// What a forward pass yields.
#[derive(Debug, Clone)]
pub struct ModelOutput {
    /// Logits of the head: `[R, outputs]`, `[samples, choices]`, `[R, L, V]`; of answers `[R, words]`.
    pub logits: Option<Var>,
    /// Further outputs by name, such as `pooler`.
    pub extra: Vec<(&'static str, Var)>,
    /// `[1]`, when there were labels.
    pub loss: Option<Var>,
}

/// Called with the number and value of each hidden state: 0 for what enters the first block.
pub type Observe<'a> = &'a mut dyn FnMut(usize, &Tensor) -> bmtrain_dist::Result<()>;

/// A model of text.
pub trait TextModel {
    /// All parameters.
    fn parameters(&self) -> &Parameters;

    /// Rows of the word embedding: ids are below this.
    fn vocab_size(&self) -> usize;

    /// The longest row, in tokens.
    fn max_length(&self) -> usize;

    /// How parameters are called in Hugging Face files.
    fn names(&self) -> &NameTable;

    /// How parameters are called in files of this layout.
    ///
    /// # Errors
    /// A layout that the family does not have.
    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        match layout {
            DirectoryLayout::HuggingFace => Ok(Cow::Borrowed(self.names())),
            DirectoryLayout::ModelCenter => Err(no_model_center("model")),
        }
    }

    /// Names of the classes in the order of the head's outputs; empty where they have none.
    fn label_names(&self) -> &[String] {
        &[]
    }

    /// Whether the types of tokens mean anything to it. Where they do not, [`TextModel::forward`] passes over those that
    /// a loader gives for all families.
    fn has_token_types(&self) -> bool {
        true
    }

    /// Whether labels are what a second stack is to write behind what the first has read. Those of a classifier are
    /// not, however many stacks it has.
    fn generates_targets(&self) -> bool {
        false
    }

    /// Whether it can make what its second stack reads from any targets, where it [writes](TextModel::generates_targets)
    /// them.
    ///
    /// # Errors
    /// A word for it that the configuration does not say.
    fn check_targets(&self) -> Result<()> {
        Ok(())
    }

    /// The word that the second stack of a model that [writes](TextModel::generates_targets) targets reads in front of its
    /// first, if the configuration says it.
    fn decoder_start_token(&self) -> Option<i64> {
        None
    }

    /// Begin rows of text that the model goes on with token by token.
    ///
    /// # Errors
    /// A model that writes no text, or has no head for it; what is wrong with the source; a failing device.
    fn decoding<'a>(&'a self, _options: DecodingOptions<'_>, _cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        let reason = "its family reads texts and does not write any";
        Err(Error::model("the model", reason, "use a decoder, or a model with an encoder and a decoder"))
    }

    /// Where it answers a prompt by a word, with the head that it was opened with.
    ///
    /// # Errors
    /// It does not: it predicts no words, or a word that it takes is not in its configuration.
    fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        Err(no_verbalizer("this model"))
    }

    /// Whether its classifier may judge rows of one sample against each other, as multiple choice takes.
    fn compares_choices(&self) -> bool {
        true
    }

    /// Parameter values that a token is multiplied with: all but the tables in which rows are looked up. By the usual
    /// rule a training step does six floating-point operations for each of them and each token.
    fn matmul_parameters(&self) -> usize {
        self.parameters().count()
    }

    /// Whether [`TextModel::save`] would refuse the model's configuration or its tokenizer files. Needs no values.
    ///
    /// # Errors
    /// What `save` would say at the end of the training.
    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()>;

    /// Names of what the model's configuration says and the written one has no place for.
    ///
    /// # Errors
    /// As [`TextModel::check_save`].
    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>> {
        self.check_save(options).map(|()| Vec::new())
    }

    /// Write a complete directory: configuration, weights, tokenizer files. `fill` puts the values of the named
    /// parameter into a vector; it is called once for each, in their order.
    ///
    /// # Errors
    /// The disk refuses; a layout that the family does not have; what `fill` returns.
    fn write(&self, directory: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()>;

    /// [`TextModel::write`] with the model's own values. Where parameters are shared among ranks one of them writes; it
    /// reads all parameters, in their order, through one [`WholeReader`](bmtrain_dist::param::WholeReader), and the
    /// others take part in that.
    ///
    /// # Errors
    /// As [`TextModel::write`]; a failing device.
    fn save(&self, directory: &Path, options: &SaveOptions<'_>) -> Result<()> {
        self.write(directory, options, &mut from_parameters(self.parameters()))
    }

    /// The batch to logits and, with labels, the loss. With `observe` the hidden states are shown on the way.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit, a failing device.
    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput>;

    /// The loss alone, `[1]`, for training: as [`TextModel::forward`], where a model may save the memory of what nobody
    /// asks for. Logits over a vocabulary are most of it.
    ///
    /// # Errors
    /// As [`TextModel::forward`].
    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>> {
        Ok(self.forward(batch, None, cx)?.loss)
    }
}
