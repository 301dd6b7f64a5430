//! Decoders that write token by token.

use super::batch::visible_keys;
use super::{Decoder, DecoderBatch, DecoderFamily, DecoderHead, DecoderModel};
use crate::error::{Error, Result};
use crate::layer::BlockCache;
use crate::model::decoding::{Decoding, DecodingOptions, Past, check_tokens, last_places};
use crate::model::flow::TextFlow;
use crate::model::labels::{Numbers, check_length, refuse_spans};
use crate::model::text::TextBatch;
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::Model;

/// Rows of a decoder.
pub(super) struct DecoderRows<'a, C> {
    model: &'a DecoderModel<C>,
    caches: Vec<BlockCache>,
    past: Past,
}

impl<'a, C: DecoderFamily> DecoderRows<'a, C> {
    /// Before the first token.
    ///
    /// # Errors
    /// A model without a head for words; a text for an encoder.
    pub(super) fn new(model: &'a DecoderModel<C>, options: DecodingOptions<'_>) -> Result<Self> {
        if !matches!(model.head_kind(), DecoderHead::CausalLm { .. }) {
            let reason = "the model has no head for the next word";
            return Err(Error::recipe("the head asked for", reason, "open the folder with the head lm"));
        }
        if options.source.is_some() {
            let reason = format!("{} has no encoder that could read it", C::TITLE);
            return Err(Error::data("source", reason, "put the text in front of what is to be written"));
        }
        let caches = model.blocks().layers().len();
        let caches = (0..caches).map(|_| BlockCache::expecting(options.expected)).collect();
        Ok(DecoderRows { model, caches, past: Past::default() })
    }

    fn check(&self, tokens: &TextBatch, past: &Past) -> Result<()> {
        let facts = self.model.facts();
        check_tokens(tokens)?;
        Numbers::grid("input_ids", &tokens.input_ids, tokens, facts.vocab_size).check(false)?;
        check_length(past.longest(), facts.max_length)?;
        if !facts.has_spans {
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
    fn extend(&mut self, tokens: &TextBatch, cx: &mut Ctx) -> Result<Tensor> {
        let (model, facts, device) = (self.model, self.model.facts(), cx.device().clone());
        let past = self.past.with(tokens)?;
        self.check(tokens, &past)?;
        let TextBatch { rows, length, .. } = *tokens;
        let visible = match tokens.context {
            Some(_) => visible_keys(tokens)?,
            None => None,
        };
        let visible = visible.map(|keys| Tensor::from_slice(&device, [rows, length, length], &keys, Segment::Data));
        let batch = DecoderBatch {
            input_ids: Tensor::from_slice(&device, [rows, length], &tokens.input_ids, Segment::Data)?,
            position_ids: facts.table.map(|table| past.position_ids(table, length, &device)).transpose()?,
            numbers: past.numbers(&device)?,
            padding: past.padding(&device)?,
            visible: visible.transpose()?,
            last: None,
            labels: None,
            label_smoothing: 0.0,
            choices: 1,
            wants_logits: true,
        };
        let flow = model.embed(&batch, cx)?;
        let stack = model.blocks();
        let flow = stack.run_behind(0..stack.layers().len(), flow, &batch, Some(&mut self.caches), cx)?;
        let last = TextFlow { hidden: last_places(flow.hidden, cx)?, padding: None }; // [R, 1, word_size]
        let output = model.head(last, &batch, cx)?;
        self.past = past;
        let missing = || Error::model(C::TITLE, "its head gives no logits", "open the folder with the head lm");
        let logits = output.logits.ok_or_else(missing)?; // [R, 1, V]
        Ok(logits.value().reshape([rows, logits.shape().last()])?)
    }

    fn reorder(&mut self, from: &[usize], cx: &Ctx) -> Result<()> {
        self.past.reorder(from)?;
        for cache in &mut self.caches {
            cache.reorder(from, true, cx)?;
        }
        Ok(())
    }

    fn past(&self) -> &Past {
        &self.past
    }
}
