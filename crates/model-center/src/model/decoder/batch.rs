//! A batch on the device, with what the next word is compared with.

use super::{DecoderFamily, DecoderHead, DecoderModel};
use crate::data::{Batch, Labels, VerbalizerBatch};
use crate::error::{Error, Result};
use crate::model::labels::{
    IGNORED, Numbers, Targets, VerbalizerTensors, Wanted, check_length, check_spans, check_verbalizer,
    refuse_decoder_inputs, refuse_spans, refuse_verbalizer, upload_class_weights, upload_padding,
};
use crate::model::position_table::{Count, PositionTable};
use crate::model::text_model::PretrainedModel;
use bmtrain_core::limits::make_room;
use bmtrain_core::{Device, Segment, Tensor};

/// Ids and mask of B sequences of L tokens.
#[derive(Debug, Clone)]
pub struct DecoderBatch {
    /// i64 `[B, L]`.
    pub input_ids: Tensor,
    /// i64 `[B, L]`, rows of the table of positions; `None` for a model without one.
    pub position_ids: Option<Tensor>,
    /// i64 `[B, L]`, the number of each token among those of its row, 0 for padding; `None` when nothing is padded.
    pub numbers: Option<Tensor>,
    /// u8 `[B, L]`, 1 for tokens; `None` when nothing is padded.
    pub padding: Option<Tensor>,
    /// u8 `[B, L, L]`, 1 for a key that a query sees; `None` where that are those in front of it, without padding.
    pub visible: Option<Tensor>,
    /// i64 `[B]`: the place of each row's last token among all `B * L`, for a classifier.
    pub last: Option<Tensor>,
    /// What the loss compares with. Words are those that each position should predict: `[B, L]`, moved by one.
    pub labels: Option<Targets>,
    /// Words and places of answers, whose classes the labels are; `None` where they are none.
    pub verbalizer: Option<VerbalizerTensors>,
    /// i64 `[B, L]`, the next words of prompts with their answers, and how much their loss counts beside that of the
    /// answers.
    pub prompt: Option<(Tensor, f32)>,
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// f32 `[C]`, what each class weighs; `None` where all samples weigh the same.
    pub class_weights: Option<Tensor>,
    /// Rows that belong to one sample of a multiple choice; 1 otherwise.
    pub choices: usize,
    /// Whether logits are asked for; otherwise a head may leave them out where it makes the loss without them.
    pub wants_logits: bool,
}

impl DecoderBatch {
    /// Check a batch and copy it to a device. The labels of a language-modelling head are shifted here, see
    /// [`next_words`].
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit, a mask of other numbers than 0 and 1.
    pub(super) fn upload<C: DecoderFamily>(
        device: &Device,
        batch: &Batch,
        model: &DecoderModel<C>,
        wants_logits: bool,
    ) -> Result<Self> {
        check(model, batch)?;
        let (head, table) = (model.head_kind(), model.layout().table);
        let pad = model.config().text().pad_token_id.map(|id| id as i64);
        let (rows, length, mask) = (batch.rows, batch.length, batch.attention_mask.as_deref());
        let grid = |values: &[i64]| Tensor::from_slice_in(device, [rows, length], values, Segment::Data);
        let padding = upload_padding(device, [rows, length], batch.input_ids.len(), mask)?;
        let position_ids = table.map(|table| grid(&table.rows_of(rows, length, mask))).transpose()?;
        let by_token = PositionTable { first: 0, count: Count::Tokens };
        let numbers = match &padding {
            None => None,
            Some(_) => Some(grid(&by_token.rows_of(rows, length, mask))?),
        };
        let visible = visible_keys(batch)?
            .map(|keys| Tensor::from_slice_in(device, [rows, length, length], &keys, Segment::Data))
            .transpose()?;
        let last = last_tokens(&batch.input_ids, mask, length, pad);
        let ids = batch.labels.as_ref().and_then(Labels::ids);
        let labels = match &batch.labels {
            None => None,
            // Without a head there is nothing that they could be compared with.
            Some(_) if head == DecoderHead::None => None,
            Some(_) if ids.is_some() && batch.verbalizer.is_none() && matches!(head, DecoderHead::CausalLm { .. }) => {
                Some(Targets::Classes(grid(&next_words(ids.unwrap_or_default(), mask, length))?))
            }
            Some(labels) => Some(Targets::upload(device, labels, rows / batch.choices.max(1))?),
        };
        let classes = match head {
            DecoderHead::Classifier { outputs } => Some(if batch.choices > 1 { batch.choices } else { outputs }),
            _ => None,
        };
        Ok(DecoderBatch {
            input_ids: grid(&batch.input_ids)?,
            position_ids,
            numbers,
            padding,
            visible,
            last: Some(Tensor::from_slice_in(device, [rows], &last, Segment::Data)?),
            labels,
            verbalizer: batch
                .verbalizer
                .as_ref()
                .map(|verbalizer| VerbalizerTensors::upload(device, verbalizer))
                .transpose()?,
            prompt: match prompt_words(batch) {
                Some((words, weight)) => Some((grid(&words)?, weight)),
                None => None,
            },
            label_smoothing: batch.label_smoothing,
            class_weights: upload_class_weights(device, batch, classes)?,
            choices: batch.choices,
            wants_logits,
        })
    }
}

/// Whether ids and labels are those of this model.
fn check<C: DecoderFamily>(model: &DecoderModel<C>, batch: &Batch) -> Result<()> {
    check_length(batch.length, model.info().max_length)?;
    refuse_decoder_inputs(batch)?;
    Numbers::grid("input_ids", &batch.input_ids, batch, model.info().vocab_size).check(false)?;
    match C::HAS_SPANS {
        true => check_spans(batch)?,
        false => refuse_spans(batch)?,
    }
    let wanted = match (model.head_kind(), &batch.verbalizer) {
        (DecoderHead::CausalLm { .. }, Some(verbalizer)) => {
            check_verbalizer(verbalizer, (batch.rows, batch.input_ids.len()), model.info().vocab_size)?;
            Wanted::Classes(verbalizer.label_words.len())
        }
        _ => {
            refuse_verbalizer(batch)?;
            wanted_by(model, batch)
        }
    };
    wanted.check(batch, model.info().vocab_size)?;
    if batch.next_sentence.is_some() {
        let reason = "it is for the pretraining of encoders, and this model is a decoder";
        return Err(Error::data("next_sentence_label", reason, "leave it out"));
    }
    Ok(())
}

/// What labels are without answers.
fn wanted_by<C: DecoderFamily>(model: &DecoderModel<C>, batch: &Batch) -> Wanted {
    match model.head_kind() {
        DecoderHead::None => Wanted::Nothing,
        DecoderHead::CausalLm { .. } => Wanted::Words,
        DecoderHead::Classifier { outputs } => {
            Wanted::of_classifier(outputs, batch.choices, model.config().text().problem_type)
        }
    }
}

/// Which keys each query sees where there is a context or there are spans: those of its own span that are context, and,
/// if it is no context itself, those up to its own. Padding is seen by nobody. Without a context nothing is one, and
/// without spans each row is one.
///
/// # Errors
/// Rows so long that there is no memory for it.
///
/// Source: ModelCenter's `CPM1`. With a context its padding sees nothing, ours what a token in its place would see;
/// nobody asks padding.
pub(super) fn visible_keys(batch: &Batch) -> Result<Option<Vec<u8>>> {
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

/// What each position should predict: the label of the position behind it. The last position of a row predicts nothing,
/// nor does padding: where a row is padded on the left, its first token is nobody's next word.
///
/// Source: transformers moves labels the same way. It also counts a prediction that padding makes, of which its
/// implementations of attention have different opinions.
fn next_words(labels: &[i64], mask: Option<&[u8]>, length: usize) -> Vec<i64> {
    let is_token = |at: usize| mask.is_none_or(|mask| mask.get(at) == Some(&1));
    let next = |at: usize| {
        let ends_row = (at + 1).is_multiple_of(length);
        let next = labels.get(at + 1).filter(|_| !ends_row && is_token(at));
        next.copied().unwrap_or(IGNORED)
    };
    (0..labels.len()).map(next).collect()
}

/// What each position of a prompt should predict, the answer at its place, and how much that counts; `None` where it
/// does not.
fn prompt_words(batch: &Batch) -> Option<(Vec<i64>, f32)> {
    let VerbalizerBatch { label_words: words, positions: places, prompt_loss } = batch.verbalizer.as_ref()?;
    let classes = batch.labels.as_ref().filter(|_| *prompt_loss > 0.0)?.ids()?;
    let mask = batch.attention_mask.as_deref();
    let is_token = |at: usize| mask.is_none_or(|mask| mask.get(at) == Some(&1));
    let ids = batch.input_ids.iter().enumerate();
    let own: Vec<i64> = ids.map(|(at, id)| if is_token(at) { *id } else { IGNORED }).collect();
    let mut next = next_words(&own, mask, batch.length);
    for (place, class) in places.iter().zip(classes) {
        let (at, word) =
            (usize::try_from(*place).ok(), usize::try_from(*class).ok().and_then(|class| words.get(class)));
        if let (Some(next), Some(word)) = (at.and_then(|at| next.get_mut(at)), word) {
            *next = *word;
        }
    }
    Some((next, *prompt_loss))
}

/// The place of each row's last token among all: the last that the mask shows and that is not the padding word. The
/// first of a row that has none.
///
/// Source: `GPT2ForSequenceClassification` of transformers, which goes by the padding word alone and refuses several
/// rows without one.
fn last_tokens(ids: &[i64], mask: Option<&[u8]>, length: usize, pad: Option<i64>) -> Vec<i64> {
    let is_token = |at: &usize| Some(ids[*at]) != pad && mask.is_none_or(|mask| mask.get(*at) == Some(&1));
    let rows = (0..ids.len()).step_by(length.max(1));
    rows.map(|row| (row..row + length).rev().find(is_token).unwrap_or(row) as i64).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{last_tokens, next_words, visible_keys};
    use crate::model::Batch;

    /// What each query of a single row sees.
    fn keys(context: Option<Vec<u8>>, span: Option<Vec<i64>>, mask: Option<Vec<u8>>) -> Option<Vec<String>> {
        let batch = Batch { context, span, ..Batch::next_tokens(5, vec![1; 5], mask) };
        let row = |keys: &[u8]| keys.iter().map(|key| if *key == 1 { '#' } else { '.' }).collect();
        visible_keys(&batch).unwrap().map(|keys| keys.chunks(5).map(row).collect())
    }

    #[test]
    fn a_context_sees_itself_and_what_follows_sees_it_and_what_stands_before() {
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
        assert_eq!(next_words(&labels, None, 3), [11, 12, -100, 21, -100, -100]);
        assert_eq!(next_words(&labels, Some(&[0, 1, 1, 1, 1, 0]), 3), [-100, 12, -100, 21, -100, -100]);
        assert_eq!(next_words(&[7, 8], None, 1), [-100, -100]);
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
