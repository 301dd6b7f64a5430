//! What programs need of a model of text, whatever its family: ids in, logits and loss out, weights by name.
//!
//! [`crate::model::registry`] opens a directory as a boxed [`TextModel`]; the finetune and forward programs call it.

use crate::config::model_center::no_model_center;
use crate::data::{AnswerPlace, Batch, Labels};
use crate::error::{Error, Result};
use crate::formats::{DirectoryLayout, NameTable};
use crate::model::decoding::{Decoding, DecodingOptions};
use crate::model::labels::IGNORED;
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

/// Labels of a batch in host memory.
#[derive(Debug, Clone, PartialEq)]
pub enum TextLabels {
    /// A class for each sample, or for each token of each row, of a model with two stacks its decoder's; -100 counts
    /// for nothing.
    Classes(Vec<i64>),
    /// Numbers to predict: one for each output of each sample.
    Values(Vec<f32>),
}

/// Prompts that are answered by one of a few words: what a head for words then compares is these words at one place of
/// each row. Labels are the classes that the words stand for, one for each row.
#[derive(Debug, Clone, PartialEq)]
pub struct TextAnswers {
    /// The word of each class.
    pub words: Vec<i64>,
    /// For each row the place, among all tokens of all rows, whose output is the answer; of a model with two stacks
    /// among those of its decoder.
    pub places: Vec<i64>,
    /// How much the mean loss of a decoder's next words counts beside that of the answers: those of the prompt, and the
    /// answer as one word of all. 0 for none.
    pub prompt_loss: f32,
}

/// Rows of token ids in host memory, padded to one length.
#[derive(Debug, Clone, PartialEq)]
pub struct TextBatch {
    /// R, number of rows.
    pub rows: usize,
    /// L, tokens of a row.
    pub length: usize,
    /// `R x L`.
    pub input_ids: Vec<i64>,
    /// `R x L`, 1 for tokens and 0 for padding; `None` for tokens only.
    pub attention_mask: Option<Vec<u8>>,
    /// `R x L`; `None` for all zero.
    pub token_type_ids: Option<Vec<i64>>,
    /// `R x T`, for a model with two stacks: what its decoder reads, of a length of its own. `None` where it reads the
    /// labels behind a first word of the model's.
    pub decoder_input_ids: Option<Vec<i64>>,
    /// `R x T`, 1 for the decoder's tokens and 0 for padding; `None` for tokens only.
    pub decoder_attention_mask: Option<Vec<u8>>,
    /// `R x L`, for a model that reads one part of a row from both sides and goes on with another: 1 for tokens of the
    /// context, which all of their span see, and 0 for those that see what stands before them. `None` for no context.
    pub context: Option<Vec<u8>>,
    /// `R x L`, for the same models: a number for each token, and only those with equal numbers see each other. `None`
    /// where all tokens of a row do.
    pub span: Option<Vec<i64>>,
    /// What the loss compares with.
    pub labels: Option<TextLabels>,
    /// Where rows are answered by words, if they are.
    pub answers: Option<TextAnswers>,
    /// For pretraining: 1 for each row whose second text is a random one.
    pub next_sentence: Option<Vec<i64>>,
    /// Rows that belong to one sample; above 1 for multiple choice.
    pub choices: usize,
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// C, what each class weighs in the mean of a classifier's loss; `None` where all samples weigh the same.
    pub class_weights: Option<Vec<f32>>,
}

impl TextBatch {
    /// Rows of `length` tokens whose labels are the tokens themselves, for a head that predicts the next word: padding,
    /// where the mask is 0, is none of them.
    pub fn next_words(length: usize, input_ids: Vec<i64>, attention_mask: Option<Vec<u8>>) -> Self {
        let is_token = |at: usize| attention_mask.as_ref().is_none_or(|mask| mask.get(at) == Some(&1));
        let labels = input_ids.iter().enumerate().map(|(at, id)| if is_token(at) { *id } else { IGNORED }).collect();
        TextBatch {
            rows: input_ids.len().checked_div(length).unwrap_or(0),
            length,
            input_ids,
            attention_mask,
            token_type_ids: None,
            decoder_input_ids: None,
            decoder_attention_mask: None,
            context: None,
            span: None,
            labels: Some(TextLabels::Classes(labels)),
            answers: None,
            next_sentence: None,
            choices: 1,
            label_smoothing: 0.0,
            class_weights: None,
        }
    }

    /// A batch of a loader.
    pub fn of(batch: Batch, label_smoothing: f32) -> Self {
        let samples = batch.samples.len().max(1);
        let choices = (batch.rows / samples).max(1);
        let labels = match batch.labels {
            Labels::Class(labels) => TextLabels::Classes(labels),
            Labels::Value(values) => TextLabels::Values(values),
            // A decoder behind an encoder reads its labels moved by one; padding behind them is seen by none of them.
            Labels::NextTokens(words) | Labels::Target(words) => TextLabels::Classes(words),
        };
        let (mut decoder_input_ids, mut context) = (None, None);
        let answers = batch.answers.map(|answers| {
            (decoder_input_ids, context) = (answers.decoder_input_ids, answers.context);
            TextAnswers { words: answers.words, places: answers.places, prompt_loss: 0.0 }
        });
        TextBatch {
            rows: batch.rows,
            length: batch.len,
            input_ids: batch.input_ids,
            attention_mask: Some(batch.attention_mask),
            token_type_ids: Some(batch.token_type_ids),
            decoder_input_ids,
            decoder_attention_mask: None,
            context,
            span: None,
            labels: Some(labels),
            answers,
            next_sentence: None,
            choices,
            label_smoothing,
            class_weights: None,
        }
    }
}

/// The error of a model that answers no prompts; `title` is its name for people.
pub(super) fn no_answers(title: &str) -> Error {
    let reason = format!("{title} answers no prompts with the head that it has");
    Error::recipe("the head asked for", reason, "take a model that predicts words, such as GPT-2 or T5")
}

/// What a forward pass yields.
#[derive(Debug, Clone)]
pub struct Scores {
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

    /// Whether the types of tokens mean anything to it. Where they do not, [`TextModel::score`] passes over those that
    /// a loader gives for all families.
    fn has_token_types(&self) -> bool {
        true
    }

    /// Whether labels are what a second stack is to write behind what the first has read. Those of a classifier are
    /// not, however many stacks it has.
    fn writes_targets(&self) -> bool {
        false
    }

    /// Whether it can make what its second stack reads from any targets, where it [writes](TextModel::writes_targets)
    /// them.
    ///
    /// # Errors
    /// A word for it that the configuration does not say.
    fn check_targets(&self) -> Result<()> {
        Ok(())
    }

    /// The word that the second stack of a model that [writes](TextModel::writes_targets) targets reads in front of its
    /// first, if the configuration says it.
    fn first_word(&self) -> Option<i64> {
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
    fn answer_place(&self) -> Result<AnswerPlace> {
        Err(no_answers("this model"))
    }

    /// Whether its classifier may judge rows of one sample against each other, as multiple choice takes.
    fn compares_choices(&self) -> bool {
        true
    }

    /// Parameter values that a token is multiplied with: all but the tables in which rows are looked up. By the usual
    /// rule a training step does six floating-point operations for each of them and each token.
    fn multiplied_values(&self) -> usize {
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
    fn score(&self, batch: &TextBatch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<Scores>;

    /// The loss alone, `[1]`, for training: as [`TextModel::score`], where a model may save the memory of what nobody
    /// asks for. Logits over a vocabulary are most of it.
    ///
    /// # Errors
    /// As [`TextModel::score`].
    fn loss(&self, batch: &TextBatch, cx: &mut Ctx) -> Result<Option<Var>> {
        Ok(self.score(batch, None, cx)?.loss)
    }
}
