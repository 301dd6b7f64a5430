//! A batch on the device, checked, with labels shifted for next-token prediction.
//!
//! Defines [`DeviceBatch`], made of a [`Batch`] by [`crate::model::Transformer`]'s `upload` and read by its layers.

pub(in crate::model) mod checks;
pub(in crate::model) mod decoder_inputs;
pub mod labels;
pub(in crate::model) mod loss_settings;

use crate::layer::{PositionsConfig, TokensRead};
use crate::model::architecture::position_table::{Count, PositionTable};
use crate::model::architecture::{Spec, StackSpec};
use crate::model::decode::decoding::last_columns;
use crate::model::head::pooling::PoolingMode;
use crate::model::head::{ClassifierInput, Head};
use crate::model::transformer::prefix;
use crate::model::transformer::prompt::PromptIds;
use bmtrain_core::comm::Communicator;
use bmtrain_core::limits::make_room;
use bmtrain_core::ops::{Documents, TokenShard};
use bmtrain_core::{Device, Segment, Tensor};
use checks::{check, longest_document};
use labels::{IGNORED, Targets, VerbalizerTensors, upload_class_weights, upload_mask};
use loss_settings::LossSettings;
use model_center_base::batch::{Batch, Labels, VerbalizerBatch};
use model_center_base::error::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// B sequences of L tokens, the input of one stack.
#[derive(Debug, Clone)]
pub struct Sequences {
    /// Token ids, i64 `[B, L]`.
    pub ids: Tensor,
    /// i64 `[B, L]`, rows of the position embedding; `None` without one.
    pub position_ids: Option<Tensor>,
    /// All positions are below this.
    pub reach: usize,
    /// i64 `[B, L]`; `None` without token types.
    pub token_type_ids: Option<Tensor>,
    /// u8 `[B, L]`, 1 for tokens and 0 for padding; `None` when nothing is padded. Where keys precede the sequences, in
    /// a cache or as [`Sequences::prefix`], it is of all keys.
    pub padding: Option<Tensor>,
    /// i64 `[B, L]`, the index of each token in its sequence or document; `None` if positions do not need it.
    pub numbers: Option<Tensor>,
    /// u8 `[B, L, L]`, 1 for a key that a query attends to; `None` for the stack's own attention mask.
    pub visible: Option<Tensor>,
    /// Documents packed into the sequences; `None` for one for each.
    pub documents: Option<Documents>,
    /// Which tokens this tensor-parallel rank has of the hidden states; `None` where it has all. All the above are of
    /// all tokens.
    pub tokens: Option<TokenShard>,
    /// Which hidden states are read after the last block.
    pub reads: TokensRead,
    /// i64 `[B, P]`, the numbers of virtual tokens whose trained keys and values precede the sequences; `None` without
    /// any, and where caches have them.
    pub prefix: Option<Tensor>,
    /// The ids of virtual tokens and of what follows; `None` without virtual tokens.
    pub prompt: Option<PromptIds>,
}

/// Sequences in host memory, before [`Sequences::upload`].
pub(in crate::model) struct SequenceInput<'a> {
    /// Token ids, B × L.
    pub ids: &'a [i64],
    /// B and L.
    pub shape: [usize; 2],
    /// B × L, 1 for tokens and 0 for padding, and what errors call it.
    pub mask: (&'static str, Option<&'a [u8]>),
    /// B × L, 1 for the tokens that positions count.
    pub counted: Option<&'a [u8]>,
    /// B × L, the index in its sequence of the first token of each token's document.
    pub documents: Option<&'a [u32]>,
    /// Tokens of the longest document, or of a sequence.
    pub longest: usize,
    /// P, keys and values before each sequence.
    pub prefix: usize,
}

impl<'a> SequenceInput<'a> {
    /// One document for each sequence; positions count what is not padding.
    pub(in crate::model) fn new(ids: &'a [i64], shape: [usize; 2], mask: (&'static str, Option<&'a [u8]>)) -> Self {
        SequenceInput { ids, shape, mask, counted: mask.1, documents: None, longest: shape[1], prefix: 0 }
    }
}

impl Sequences {
    /// Copies sequences to the device.
    pub(in crate::model) fn upload(device: &Device, stack: &StackSpec, input: SequenceInput<'_>) -> Result<Self> {
        let SequenceInput { ids, shape: [rows, length], mask: (name, mask), counted, documents, longest, .. } = input;
        let (prefix, keys) = (input.prefix, input.prefix + length);
        let grid =
            |columns: usize, values: &[i64]| Tensor::from_slice_in(device, [rows, columns], values, Segment::Data);
        let padding = upload_mask(device, name, [rows, length, prefix], mask)?;
        let table = stack.added.table();
        let by_token = PositionTable { first: 0, count: Count::Tokens };
        // Rotary positions are indices, whether or not there is padding before them.
        let (has_numbers, numbered) = match stack.positions {
            PositionsConfig::Alibi(_) => (padding.is_some() || documents.is_some(), mask),
            PositionsConfig::Rotary(_) => (documents.is_some(), None),
            PositionsConfig::None | PositionsConfig::Relative(_) => (false, None),
        };
        let position_ids = |table: PositionTable| {
            let counted = counted.map(|mask| prefix::masked(mask, length, prefix));
            let of_keys = table.rows_of([rows, keys], counted.as_deref(), documents);
            grid(length, &last_columns(&of_keys, keys, length))
        };
        let numbers = || {
            let numbered = numbered.map(|mask| prefix::masked(mask, length, prefix));
            grid(keys, &by_token.rows_of([rows, keys], numbered.as_deref(), documents))
        };
        Ok(Sequences {
            ids: grid(length, ids)?,
            position_ids: table.map(position_ids).transpose()?,
            reach: prefix + longest,
            token_type_ids: None,
            padding,
            numbers: has_numbers.then(numbers).transpose()?,
            visible: None,
            documents: documents.map(|starts| Documents::new(device, [rows, length], starts)).transpose()?,
            tokens: None,
            reads: TokensRead::All,
            prefix: prefix::rows(device, [rows, prefix])?,
            prompt: None,
        })
    }

    /// Tokens sharded over these ranks, if there are any.
    ///
    /// # Errors
    /// Ids that are not a matrix.
    pub(in crate::model) fn sharded(self, ranks: Option<&Arc<dyn Communicator>>) -> bmtrain_core::Result<Self> {
        let Some(ranks) = ranks else { return Ok(self) };
        let tokens = Some(TokenShard::new(Arc::clone(ranks), self.ids.dims("sequences")?));
        Ok(Sequences { tokens, ..self })
    }
}

/// A batch on the device.
#[derive(Debug, Clone)]
pub struct DeviceBatch {
    /// The input of each stack.
    pub sequences: Vec<Sequences>,
    /// i64 `[B]`: the position of each sequence's last token among all `B * L`, for a classifier that reads it.
    pub last: Option<Tensor>,
    /// f32 `[B, 1, L]`: the weight of each token for a classifier that reads their mean.
    pub weights: Option<Tensor>,
    /// Targets of the loss. For language modelling: the token to predict at each position, `[B, L]`, or `[P]` with
    /// [`DeviceBatch::predicted`].
    pub labels: Option<Targets>,
    /// i64 `[P]`: the positions among all `B * L` that a masked-LM head reads, where no others have labels and no
    /// logits are requested.
    pub predicted: Option<Tensor>,
    /// Label words and their positions; labels are indices of label words.
    pub verbalizer: Option<VerbalizerTensors>,
    /// i64 `[B, L]`, the next tokens of prompts with their label words, and the weight of their loss.
    pub prompt: Option<(Tensor, f32)>,
    /// i64 `[B]` each, the first and the last token of each sequence's answer.
    pub spans: Option<[Tensor; 2]>,
    /// i64 `[B]`, for pretraining.
    pub next_sentence: Option<Tensor>,
    /// Share of the target probability that is spread evenly over all classes.
    pub label_smoothing: f32,
    /// f32 `[C]`, the weight of each class; `None` for equal weights.
    pub class_weights: Option<Tensor>,
    /// Sequences of one sample of a multiple choice; 1 otherwise.
    pub choices: usize,
    /// Whether logits are requested; otherwise a language-modelling head computes the loss without storing them.
    pub wants_logits: bool,
}

impl DeviceBatch {
    /// Check a batch and copy it to a device.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit, no input for the decoder of an encoder-decoder.
    pub fn upload(
        device: &Device,
        batch: &Batch,
        (spec, head): (&Spec, Head),
        (wants_logits, settings): (bool, LossSettings<'_>),
    ) -> Result<Self> {
        check(spec, head, batch)?;
        let (rows, length, ids) = (batch.rows, batch.length, batch.input_ids.as_slice());
        let grid = |shape: [usize; 2], values: &[i64]| Tensor::from_slice_in(device, shape, values, Segment::Data);
        let vector = |values: &[i64]| Tensor::from_slice_in(device, [values.len()], values, Segment::Data);
        let mask = batch.attention_mask.as_deref();
        let pad = spec.pad_token_id.map(|id| id as i64);
        let mut sequences = Vec::with_capacity(spec.stacks.len());
        if let Some(stack) = spec.stacks.first() {
            let by_id = || ids.iter().map(|id| u8::from(Some(*id) != pad)).collect::<Vec<_>>();
            let counted = stack.counts_ids.then(by_id);
            let counted = counted.as_deref().or(mask);
            let input = SequenceInput::new(ids, [rows, length], ("attention_mask", mask));
            let (documents, longest) = (packed(batch), longest_document(batch));
            let input = SequenceInput { counted, documents, longest, prefix: spec.prefix, ..input };
            let first = Sequences::upload(device, stack, input)?;
            let types = stack.type_size.map(|_| batch.token_type_ids.clone().unwrap_or_else(|| vec![0; ids.len()]));
            let token_type_ids = types.map(|types| grid([rows, length], &types)).transpose()?;
            let visible = visible_keys(batch)?
                .map(|keys| Tensor::from_slice_in(device, [rows, length, length], &keys, Segment::Data))
                .transpose()?;
            sequences.push(Sequences { token_type_ids, visible, ..first });
        }
        let mut target = [rows, length];
        if let Some(stack) = spec.stacks.get(1) {
            let (shape, ids) = decoder_inputs::of(batch, spec, head)?;
            let mask = batch.decoder_attention_mask.as_deref();
            let input = SequenceInput::new(&ids, shape, ("decoder_attention_mask", mask));
            sequences.push(Sequences::upload(device, stack, input)?);
            target = shape;
        }
        if let [sequences] = sequences.as_mut_slice() {
            sequences.reads = spec.head.reads(head);
        }
        let last = match (head, spec.head.classifier) {
            (Head::Classifier { .. }, ClassifierInput::LastToken) => Some(last_tokens(ids, mask, length, pad)),
            (Head::Classifier { .. }, ClassifierInput::EosToken) => Some(decoder_inputs::eos_tokens(batch, spec)?),
            _ => None,
        };
        let pools_mean = matches!((head, spec.head.classifier), (Head::Classifier { .. }, ClassifierInput::MeanToken));
        let weights = pools_mean.then(|| PoolingMode::Mean.weights(batch, device)).transpose()?;
        let classes = match head {
            Head::Classifier { outputs } => Some(if batch.choices > 1 { batch.choices } else { outputs }),
            Head::TokenClassifier { outputs } => Some(outputs),
            _ => None,
        };
        let predicted = predictions(batch, head).filter(|_| !wants_logits);
        let labels = match &predicted {
            Some((_, tokens)) => Some(Targets::Classes(vector(tokens)?)),
            None => targets(device, batch, (spec, head), target)?,
        };
        let verbalizer = batch.verbalizer.as_ref();
        let prompt = prompt_tokens(batch, settings.prompt_loss)
            .map(|(tokens, weight)| Ok::<_, Error>((grid(target, &tokens)?, weight)));
        Ok(DeviceBatch {
            sequences,
            last: last.map(|last| vector(&last)).transpose()?,
            weights,
            labels,
            spans: spans(device, batch)?,
            predicted: predicted.map(|(positions, _)| vector(&positions)).transpose()?,
            verbalizer: verbalizer.map(|verbalizer| VerbalizerTensors::upload(device, verbalizer)).transpose()?,
            prompt: prompt.transpose()?,
            next_sentence: batch.next_sentence.as_deref().map(vector).transpose()?,
            label_smoothing: settings.label_smoothing,
            class_weights: upload_class_weights(device, settings, classes)?,
            choices: batch.choices,
            wants_logits,
        })
    }

    /// The same with the hidden states of every token after every block, whichever the head reads.
    pub(in crate::model) fn with_all_states(mut self) -> Self {
        self.sequences.iter_mut().for_each(|sequences| sequences.reads = TokensRead::All);
        self
    }

    /// Labels that are class indices or token ids.
    pub fn class_labels(&self) -> Option<&Tensor> {
        match &self.labels {
            Some(Targets::Classes(targets)) => Some(targets),
            _ => None,
        }
    }
}

/// The targets of the loss, for a decoder's tokens of this shape. Without a head there is no loss.
fn targets(device: &Device, batch: &Batch, (spec, head): (&Spec, Head), shape: [usize; 2]) -> Result<Option<Targets>> {
    let has_targets = !matches!(head, Head::None | Head::Span);
    let Some(labels) = batch.labels.as_ref().filter(|_| has_targets) else { return Ok(None) };
    let Some(ids) = token_targets(batch, (spec, head)) else {
        let samples = batch.rows / batch.choices.max(1);
        return Ok(Some(Targets::upload(device, labels, samples, spec.problem_type)?));
    };
    Ok(Some(Targets::Classes(Tensor::from_slice_in(device, shape, &ids, Segment::Data)?)))
}

/// The class or token that each position predicts; `None` of a head or labels that are not of tokens.
pub(in crate::model) fn token_targets<'b>(batch: &'b Batch, (spec, head): (&Spec, Head)) -> Option<Cow<'b, [i64]>> {
    let of_tokens = head.is_lm() || matches!(head, Head::TokenClassifier { .. });
    let labels = batch.labels.as_ref().filter(|_| of_tokens && batch.verbalizer.is_none())?;
    let ids = labels.ids()?;
    Some(match are_at_positions(labels, (spec, head)) {
        true => Cow::Borrowed(ids),
        false => Cow::Owned(next_tokens(ids, batch)),
    })
}

/// Predicted tokens belong to their positions; other labels of a decoder are the tokens of the sequence itself.
fn are_at_positions(labels: &Labels, (spec, head): (&Spec, Head)) -> bool {
    !matches!(head, Head::CausalLm { .. }) || spec.is_encoder_decoder() || matches!(labels, Labels::Predicted(_))
}

/// The first and the last tokens of answers, `[B]` each.
fn spans(device: &Device, batch: &Batch) -> Result<Option<[Tensor; 2]>> {
    let Some(Labels::Spans(spans)) = &batch.labels else { return Ok(None) };
    let side = |side: usize| {
        let tokens: Vec<i64> = spans.iter().map(|span| span[side]).collect();
        Tensor::from_slice_in(device, [tokens.len()], &tokens, Segment::Data)
    };
    Ok(Some([side(0)?, side(1)?]))
}

/// Positions among all tokens with a label, and these labels, for a head that predicts masked tokens; `None` for any
/// other head, and if no position or every one has a label.
fn predictions(batch: &Batch, head: Head) -> Option<(Vec<i64>, Vec<i64>)> {
    let Some(Labels::Predicted(labels)) = batch.labels.as_ref().filter(|_| head.is_masked_lm()) else { return None };
    let positions = labels.iter().zip(0..).filter(|(label, _)| **label != IGNORED);
    let (tokens, positions): (Vec<i64>, Vec<i64>) = positions.map(|(label, at)| (*label, at)).unzip();
    (!tokens.is_empty() && tokens.len() < labels.len()).then_some((positions, tokens))
}

/// The attention mask if there is a context or there are spans; 1 where a query sees a key. A query sees the context
/// keys of its own span and, if it is not in the context itself, the keys up to its own position. Padding keys are
/// masked. Without a context no token is in it; without spans each sequence is one span.
///
/// # Errors
/// Sequences too long to allocate the mask.
///
/// Source: ModelCenter's `CPM1`. There a padding query sees nothing if there is a context; here it sees what a token at
/// its position would see. Its output is not used.
pub(in crate::model) fn visible_keys(batch: &Batch) -> Result<Option<Vec<u8>>> {
    let Batch { attention_mask: mask, context, span, .. } = batch;
    let length = batch.length;
    if context.is_none() && span.is_none() {
        return Ok(None);
    }
    let is_context = |at: usize| context.as_ref().is_some_and(|context| context.get(at) == Some(&1));
    let is_token = |at: usize| mask.as_ref().is_none_or(|mask| mask.get(at) == Some(&1));
    let span_of = |at: usize| span.as_ref().and_then(|span| span.get(at));
    let sees = |query: usize, key: usize| {
        let is_shown = is_context(key) || (!is_context(query) && key <= query);
        u8::from(is_shown && is_token(key) && span_of(query) == span_of(key))
    };
    let count = batch.input_ids.len().saturating_mul(length);
    let mut keys = Vec::new();
    make_room(&mut keys, count, "the attention mask of a batch")?;
    for query in 0..batch.input_ids.len() {
        let row = query - query % length;
        keys.extend((row..row + length).map(|key| sees(query, key)));
    }
    Ok(Some(keys))
}

/// The documents of a batch, if sequences are packed with several.
fn packed(batch: &Batch) -> Option<&[u32]> {
    batch.document_starts.as_deref().filter(|starts| starts.iter().any(|start| *start != 0))
}

/// Next-token targets: the label of the position that follows. The last position of a sequence or of a document has
/// none, nor has padding: with padding on the left, the first token is not a target.
///
/// Source: transformers shifts labels the same way. It also counts predictions at padding positions, for which its
/// attention implementations disagree.
fn next_tokens(labels: &[i64], batch: &Batch) -> Vec<i64> {
    let (mask, starts) = (batch.attention_mask.as_ref(), batch.document_starts.as_ref());
    let is_token = |at: usize| mask.is_none_or(|mask| mask.get(at) == Some(&1));
    let starts_document = |at: usize| {
        let index = at % batch.length.max(1);
        index == 0 || starts.is_some_and(|starts| starts.get(at).is_some_and(|start| *start as usize == index))
    };
    let next = |at: usize| {
        let next = labels.get(at + 1).filter(|_| !starts_document(at + 1) && is_token(at));
        next.copied().unwrap_or(IGNORED)
    };
    (0..labels.len()).map(next).collect()
}

/// Next-token targets of prompts, with the label word at its position, and the weight of their loss; `None` if it has
/// no weight.
fn prompt_tokens(batch: &Batch, weight: f32) -> Option<(Vec<i64>, f32)> {
    let VerbalizerBatch { label_words, positions: places } = batch.verbalizer.as_ref()?;
    let classes = batch.labels.as_ref().filter(|_| weight > 0.0)?.ids()?;
    let mask = batch.attention_mask.as_deref();
    let is_token = |at: usize| mask.is_none_or(|mask| mask.get(at) == Some(&1));
    let ids = batch.input_ids.iter().enumerate();
    let own: Vec<i64> = ids.map(|(at, id)| if is_token(at) { *id } else { IGNORED }).collect();
    let mut next = next_tokens(&own, batch);
    for (place, class) in places.iter().zip(classes) {
        let (at, token) =
            (usize::try_from(*place).ok(), usize::try_from(*class).ok().and_then(|class| label_words.get(class)));
        if let (Some(next), Some(token)) = (at.and_then(|at| next.get_mut(at)), token) {
            *next = *token;
        }
    }
    Some((next, weight))
}

/// The index in the batch of each sequence's last token: the last one that the mask keeps and that is not the padding
/// token; the first position of a sequence without one.
///
/// Source: `GPT2ForSequenceClassification` of transformers, which looks only for the padding token and refuses a batch
/// of several sequences without one.
fn last_tokens(ids: &[i64], mask: Option<&[u8]>, length: usize, pad: Option<i64>) -> Vec<i64> {
    let is_token = |at: &usize| Some(ids[*at]) != pad && mask.is_none_or(|mask| mask.get(*at) == Some(&1));
    let rows = (0..ids.len()).step_by(length.max(1));
    rows.map(|row| (row..row + length).rev().find(is_token).unwrap_or(row) as i64).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{last_tokens, next_tokens, visible_keys};
    use crate::model::Batch;

    /// The keys that each query of a single sequence sees.
    fn keys(context: Option<Vec<u8>>, span: Option<Vec<i64>>, mask: Option<Vec<u8>>) -> Option<Vec<String>> {
        let batch = Batch { context, span, ..Batch::next_tokens(5, vec![1; 5], mask) };
        let row = |keys: &[u8]| keys.iter().map(|key| if *key == 1 { '#' } else { '.' }).collect();
        visible_keys(&batch).unwrap().map(|keys| keys.chunks(5).map(row).collect())
    }

    #[test]
    fn a_context_sees_itself_and_what_follows_sees_it_and_what_precedes() {
        assert_eq!(keys(None, None, Some(vec![1, 1, 1, 0, 0])), None);
        let both = keys(Some(vec![1, 1, 0, 1, 0]), None, None).unwrap();
        assert_eq!(both, ["##.#.", "##.#.", "####.", "##.#.", "#####"]);
        let spans = keys(Some(vec![1, 0, 1, 0, 0]), Some(vec![7, 7, -2, -2, -2]), None).unwrap();
        assert_eq!(spans, ["#....", "##...", "..#..", "..##.", "..###"]);
        let padded = keys(None, Some(vec![0; 5]), Some(vec![0, 1, 1, 1, 0])).unwrap();
        assert_eq!(padded, [".....", ".#...", ".##..", ".###.", ".###."]);
    }

    #[test]
    fn labels_move_by_one_and_neither_the_end_of_a_row_nor_padding_predicts() {
        let labels = [10, 11, 12, 20, 21, -100];
        let batch = |length, attention_mask| Batch { attention_mask, ..Batch::new(length, labels.to_vec()) };
        let next = |batch| next_tokens(&labels, &batch);
        assert_eq!(next(batch(3, None)), [11, 12, -100, 21, -100, -100]);
        assert_eq!(next(batch(3, Some(vec![0, 1, 1, 1, 1, 0]))), [-100, 12, -100, 21, -100, -100]);
        assert_eq!(next(batch(1, None)), [-100; 6]);
        let packed = Batch { document_starts: Some(vec![0, 0, 2, 2, 4, 4]), ..batch(6, None) };
        assert_eq!(next(packed), [11, -100, 20, -100, -100, -100]);
    }

    #[test]
    fn the_last_token_is_the_last_that_is_not_padding() {
        let ids = [5, 6, 0, 0, 5, 6, 5, 0, 6, 0, 0, 0];
        assert_eq!(last_tokens(&ids, None, 3, Some(0)), [1, 5, 8, 9]);
        assert_eq!(last_tokens(&ids, None, 3, None), [2, 5, 8, 11]);
        let mask = [1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0];
        assert_eq!(last_tokens(&ids, Some(&mask), 3, None), [1, 5, 6, 9]);
        assert_eq!(last_tokens(&ids, Some(&mask), 3, Some(6)), [0, 4, 6, 9]);
    }
}
