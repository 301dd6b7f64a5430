//! Decoders that write token by token.

use super::batch::visible_keys;
use super::{DecoderBatch, DecoderFamily, DecoderHead, DecoderModel};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::layer::BlockCache;
use crate::model::decoding::{Decoding, DecodingOptions, Past, check_tokens, gathered, join, last_places};
use crate::model::labels::{Numbers, check_length, refuse_spans};
use crate::model::text_model::PretrainedModel;
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::Model;

/// Rows of a decoder.
pub(super) struct DecoderRows<'a, C> {
    model: &'a DecoderModel<C>,
    caches: Vec<BlockCache>,
    past: Past,
    expected: usize,
    /// The ids of all tokens, `R x S`, with padding, where they may have to be read anew: beyond so many of a row.
    anew: Option<(usize, Vec<i64>)>,
}

impl<'a, C: DecoderFamily> DecoderRows<'a, C> {
    /// Before the first token.
    ///
    /// # Errors
    /// A model without a head for words; a text for an encoder.
    pub(super) fn new(model: &'a DecoderModel<C>, options: DecodingOptions<'_>) -> Result<Self> {
        if !matches!(model.head_kind(), DecoderHead::CausalLm { .. }) {
            let reason = "the model has no head for the next word";
            return Err(Error::recipe("the head asked for", reason, "open the directory with the head lm"));
        }
        if options.source.is_some() {
            let reason = format!("{} has no encoder that could read it", C::TITLE);
            return Err(Error::data("source", reason, "put the text in front of what is to be written"));
        }
        let anew = model.config().layout().positions.steady_length().map(|length| (length, Vec::new()));
        let mut rows =
            DecoderRows { model, caches: Vec::new(), past: Past::default(), expected: options.expected, anew };
        rows.forget();
        Ok(rows)
    }

    /// Nothing is kept of any token.
    fn forget(&mut self) {
        let caches = 0..self.model.stack().layers().len();
        self.caches = caches.map(|_| BlockCache::expecting(self.expected)).collect();
    }

    /// The ids `R x L` that are to be read, of rows `past`: the new ones, or those of the whole rows where what earlier
    /// ones were told of positions no longer holds. All states change then, so that there is nothing to keep.
    fn ids(&mut self, tokens: &Batch, past: &Past) -> Vec<i64> {
        let Some((steady, all)) = &mut self.anew else { return tokens.input_ids.clone() };
        *all = join(all, self.past.length(), &tokens.input_ids, tokens.length);
        if past.length() <= *steady {
            return tokens.input_ids.clone();
        }
        let all = all.clone();
        self.forget();
        all
    }

    fn check(&self, tokens: &Batch, past: &Past) -> Result<()> {
        let info = self.model.info();
        check_tokens(tokens)?;
        Numbers::grid("input_ids", &tokens.input_ids, tokens, info.vocab_size).check(false)?;
        check_length(past.longest(), info.max_length)?;
        if !C::HAS_SPANS {
            return refuse_spans(tokens);
        }
        if tokens.context.is_some() && self.past.length() > 0 {
            let reason = "a context is read from both sides, and what stands before it was read without it";
            return Err(Error::data("context", reason, "give it with the first tokens"));
        }
        Ok(())
    }
}

impl<C: DecoderFamily> Decoding for DecoderRows<'_, C> {
    fn extend(&mut self, tokens: &Batch, cx: &mut Ctx) -> Result<Tensor> {
        let (model, device) = (self.model, cx.device().clone());
        let past = self.past.with(tokens)?;
        self.check(tokens, &past)?;
        let rows = tokens.rows;
        let ids = self.ids(tokens, &past);
        let length = ids.len() / rows;
        let visible = match tokens.context {
            Some(_) => visible_keys(tokens)?,
            None => None,
        };
        let visible = visible.map(|keys| Tensor::from_slice_in(&device, [rows, length, length], &keys, Segment::Data));
        let batch = DecoderBatch {
            input_ids: Tensor::from_slice_in(&device, [rows, length], &ids, Segment::Data)?,
            position_ids: model.layout().table.map(|table| past.position_ids(table, length, &device)).transpose()?,
            numbers: past.numbers(&device)?,
            padding: past.padding(&device)?,
            visible: visible.transpose()?,
            last: None,
            labels: None,
            verbalizer: None,
            prompt: None,
            label_smoothing: 0.0,
            class_weights: None,
            choices: 1,
            wants_logits: true,
        };
        let hidden = model.embed(&batch, cx)?; // [R, L, D]
        let hidden = model.run(0..model.blocks(), hidden, &batch, Some(&mut self.caches), cx)?; // [R, L, word_size]
        let output = model.head(last_places(hidden, cx)?, &batch, cx)?;
        self.past = past;
        let missing = || Error::model(C::TITLE, "its head gives no logits", "open the directory with the head lm");
        let logits = output.logits.ok_or_else(missing)?; // [R, 1, V]
        Ok(logits.value().reshape([rows, logits.shape().last()])?)
    }

    fn reorder(&mut self, from: &[usize], cx: &Ctx) -> Result<()> {
        let length = self.past.length();
        self.past.reorder(from)?;
        if let Some((_, all)) = &mut self.anew {
            *all = gathered(all, length, from);
        }
        for cache in &mut self.caches {
            cache.reorder(from, true, cx)?;
        }
        Ok(())
    }

    fn past(&self) -> &Past {
        &self.past
    }
}
