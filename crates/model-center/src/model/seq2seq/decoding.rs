//! Models with two stacks that write token by token behind what their encoder has read.

use super::{Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::layer::{BlockCache, Memory, Visible, cache};
use crate::model::decoding::{Decoding, DecodingOptions, Past, check_mask, check_tokens, gathered, last_places};
use crate::model::labels::{Numbers, check_length, refuse_spans};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};

/// Rows of the decoder.
pub(super) struct Seq2SeqRows<'a, C> {
    model: &'a Seq2SeqModel<C>,
    source: Source,
    caches: Vec<BlockCache>,
    past: Past,
}

/// What the encoder has read.
struct Source {
    /// `[R, S, D]`.
    hidden: Var,
    /// `R x S`, 1 for tokens; `None` where nothing is padded.
    mask: Option<Vec<u8>>,
    /// The same on the device.
    visible: Visible,
    /// Which of the texts each row goes by.
    texts: Vec<usize>,
}

impl Source {
    fn visible(device: &Device, shape: [usize; 2], mask: Option<&[u8]>) -> Result<Visible> {
        let upload = |mask| Tensor::from_slice_in(device, shape, mask, Segment::Data);
        Ok(Visible::but(mask.map(upload).transpose()?.as_ref()))
    }
}

impl<'a, C: Seq2SeqFamily> Seq2SeqRows<'a, C> {
    /// Read the source. What is written begins with a word that the caller gives, see
    /// [`TextModel::decoder_start_token`](crate::model::TextModel::decoder_start_token).
    ///
    /// # Errors
    /// A model without a head for words; no source; ids out of range; a failing device.
    pub(super) fn new(model: &'a Seq2SeqModel<C>, options: DecodingOptions<'_>, cx: &mut Ctx) -> Result<Self> {
        if !matches!(model.head_kind(), Seq2SeqHead::Words { .. }) {
            let reason = "the model has no head for the next word";
            return Err(Error::recipe("the head asked for", reason, "open the directory with the head lm"));
        }
        let missing = || Error::data("source", "there is nothing for the encoder to read", "give a text to read");
        let batch = options.source.ok_or_else(missing)?;
        check_tokens(batch)?;
        Numbers::grid("input_ids", &batch.input_ids, batch, model.config().text().vocab_size).check(false)?;
        refuse_spans(batch)?;
        check_mask(batch)?;
        check_length(batch.length, model.config().text().position_size)?;
        let (rows, mask) = (batch.rows, batch.attention_mask.clone().filter(|mask| mask.contains(&0)));
        let visible = Source::visible(cx.device(), [rows, batch.length], mask.as_deref())?;
        let hidden = model.encode(batch, visible.clone(), cx)?; // [R, S, D]
        let source = Source { hidden, mask, visible, texts: (0..rows).collect() };
        let caches = (0..model.config().decoder_layers()).map(|_| BlockCache::expecting(options.expected)).collect();
        let past = Past::of_rows(rows);
        Ok(Seq2SeqRows { model, source, caches, past })
    }
}

impl<C: Seq2SeqFamily> Decoding for Seq2SeqRows<'_, C> {
    fn extend(&mut self, tokens: &Batch, cx: &mut Ctx) -> Result<Tensor> {
        let (model, device) = (self.model, cx.device().clone());
        let past = self.past.with(tokens)?;
        check_tokens(tokens)?;
        refuse_spans(tokens)?;
        Numbers::grid("input_ids", &tokens.input_ids, tokens, model.config().text().vocab_size).check(false)?;
        check_length(past.longest(), model.config().text().position_size)?;
        let ids = Tensor::from_slice_in(&device, [tokens.rows, tokens.length], &tokens.input_ids, Segment::Data)?;
        let memory = Memory { hidden: self.source.hidden.clone(), visible: self.source.visible.clone() };
        let hidden = model.decode(&ids, &past, memory, &mut self.caches, cx)?; // [R, L, D]
        let logits = model.word_logits(&last_places(hidden, cx)?, cx)?; // [R, 1, V]
        self.past = past;
        Ok(logits.value().reshape([tokens.rows, logits.shape().last()])?)
    }

    fn reorder(&mut self, from: &[usize], cx: &Ctx) -> Result<()> {
        self.past.reorder(from)?;
        let texts: Vec<usize> = from.iter().map(|&row| self.source.texts[row]).collect();
        let moves_memory = texts != self.source.texts;
        if moves_memory {
            let source = &mut self.source;
            let length = source.hidden.shape().dims()[1];
            source.hidden = cache::rows(&source.hidden, from, cx)?; // [R, S, D]
            source.mask = source.mask.as_ref().map(|mask| gathered(mask, length, from));
            source.visible = Source::visible(cx.device(), [from.len(), length], source.mask.as_deref())?;
            source.texts = texts;
        }
        for cache in &mut self.caches {
            cache.reorder(from, moves_memory, cx)?;
        }
        Ok(())
    }

    fn past(&self) -> &Past {
        &self.past
    }
}
