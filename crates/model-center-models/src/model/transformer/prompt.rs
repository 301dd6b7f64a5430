//! Prompt tuning: virtual tokens before every sequence, with trained embeddings. They are tokens of a batch like others
//! but for their embeddings, so that masks, positions, KV caches and layouts need no code of their own.
//!
//! Defines [`Prompt`], which a [`crate::model::Transformer`] has where its builder's options ask for it.
//!
//! Source: Lester et al., 2021; for the encoder and the decoder of an encoder-decoder as in PEFT.

use crate::adapter::PROMPT_NAMES;
use crate::model::architecture::Spec;
use crate::model::batch::Sequences;
use crate::model::batch::decoder_inputs;
use crate::model::batch::labels::IGNORED;
use crate::model::head::Head;
use bmtrain_core::kernel::Distribution;
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::Builder;
use bmtrain_dist::nn::{
    PromptOptions,
    embedding::{Embedding, EmbeddingOptions},
};
use bmtrain_dist::param::Init;
use model_center_base::batch::{Batch, Labels};
use model_center_base::error::{Error, Result};

/// The virtual tokens of a model.
#[derive(Debug)]
pub(in crate::model) struct Prompt {
    /// Before each sequence.
    tokens: usize,
    /// Table of each stack that has virtual tokens, `[tokens, embedding_size]`.
    tables: Vec<Option<Embedding>>,
}

/// The ids of sequences that begin with virtual tokens.
#[derive(Debug, Clone)]
pub struct PromptIds {
    /// i64 `[B, P]`, rows of the table of virtual tokens.
    virtual_ids: Tensor,
    /// i64 `[B, L - P]`, what follows.
    own: Tensor,
}

impl Prompt {
    /// Declare the tables that the builder's options ask for.
    ///
    /// # Errors
    /// A model that is not a language model, or that shards tokens.
    pub(in crate::model) fn new(builder: &Builder, spec: &Spec, head: Head) -> Result<Option<Self>> {
        let asked = builder.options().adapters.as_ref().and_then(|adapters| adapters.prompt);
        let Some(PromptOptions { tokens, decoder }) = asked else { return Ok(None) };
        let refused = |reason: String, fix: &str| Err(Error::argument("adapter.method", reason, fix));
        if !matches!(head, Head::CausalLm { .. }) || spec.head.transform.is_some() {
            let reason = "prompt tuning is for decoders and encoder-decoders with a language-modelling head";
            return refused(reason.to_owned(), "set adapter.method = \"lora\", or use a language model");
        }
        if spec.has_spans {
            let reason = format!("{} has contexts and spans, which virtual tokens are no part of", spec.title);
            return refused(reason, "set adapter.method = \"lora\"");
        }
        if builder.token_ranks().is_some() {
            let reason = "virtual tokens are not sharded over tensor-parallel ranks".to_owned();
            return refused(reason, "set parallel.sequence = false");
        }
        let tables = (0..spec.stacks.len()).map(|number| {
            let is_prompted = number == 0 || decoder;
            // The initial values of PyTorch's embeddings.
            let init = Init::Random(Distribution::Normal(0.0, 1.0));
            let options = EmbeddingOptions { entries: tokens, size: spec.embedding_size, init, padding_index: None };
            let place = builder.adapter().at("prompt").at(PROMPT_NAMES[number.min(1)]);
            is_prompted.then(|| Embedding::new(&place, options)).transpose()
        });
        Ok(Some(Prompt { tokens, tables: tables.collect::<bmtrain_dist::Result<_>>()? }))
    }

    /// Virtual tokens before a sequence.
    pub(in crate::model) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The table of a stack.
    pub(in crate::model) fn table(&self, stack: usize) -> Option<&Embedding> {
        self.tables.get(stack).and_then(Option::as_ref)
    }

    /// The batch with virtual tokens before its sequences.
    ///
    /// # Errors
    /// Packed documents.
    pub(in crate::model) fn batch(&self, batch: &Batch, spec: &Spec, head: Head) -> Result<Batch> {
        let refused = |what: &str, reason: &str, fix: &str| Err(Error::data(what, reason, fix));
        if batch.document_starts.is_some() {
            let reason = "virtual tokens precede a sequence, and these are packed with several documents";
            return refused("document_starts", reason, "set data.packing = false");
        }
        let mut prompted = self.first(batch, spec);
        // What labels and the positions of label words belong to.
        let length = match (spec.stacks.len(), self.table(1)) {
            (1, _) => batch.length,
            (_, None) => return Ok(prompted),
            (_, Some(_)) => {
                let ([_, length], ids) = decoder_inputs::of(batch, spec, head)?;
                prompted.decoder_input_ids = Some(self.before(&ids, length, self.filler(spec)));
                let mask = batch.decoder_attention_mask.as_ref();
                prompted.decoder_attention_mask = mask.map(|mask| self.before(mask, length, 1));
                length
            }
        };
        match &mut prompted.verbalizer {
            // Positions count through all sequences; labels are of sequences.
            Some(verbalizer) => {
                let row = |position: i64| position.checked_div(length as i64).unwrap_or(0);
                let moved = |position: &mut i64| *position += (row(*position) + 1) * self.tokens as i64;
                verbalizer.positions.iter_mut().for_each(moved);
            }
            None => prompted.labels = self.labels(batch, length),
        }
        Ok(prompted)
    }

    /// The same for the first stack alone.
    pub(in crate::model) fn first(&self, batch: &Batch, spec: &Spec) -> Batch {
        let length = batch.length;
        Batch {
            length: length + self.tokens,
            input_ids: self.before(&batch.input_ids, length, self.filler(spec)),
            attention_mask: batch.attention_mask.as_ref().map(|mask| self.before(mask, length, 1)),
            token_type_ids: batch.token_type_ids.as_ref().map(|types| self.before(types, length, 0)),
            ..batch.clone()
        }
    }

    /// Labels of tokens with none before them.
    fn labels(&self, batch: &Batch, length: usize) -> Option<Labels> {
        let before = |ids: &[i64]| self.before(ids, length, IGNORED);
        match &batch.labels {
            Some(Labels::Classes(ids) | Labels::NextTokens(ids)) if ids.len() == batch.rows * length => {
                Some(Labels::Classes(before(ids)))
            }
            Some(Labels::Target(ids)) => Some(Labels::Target(before(ids))),
            Some(Labels::Predicted(ids)) => Some(Labels::Predicted(before(ids))),
            other => other.clone(),
        }
    }

    /// The id that virtual tokens have in a batch: any that is not padding.
    fn filler(&self, spec: &Spec) -> i64 {
        i64::from(spec.pad_token_id == Some(0))
    }

    /// `value` for each virtual token before each row of `length` values.
    fn before<T: Copy>(&self, values: &[T], length: usize, value: T) -> Vec<T> {
        let rows = values.chunks(length.max(1));
        rows.flat_map(|row| std::iter::repeat_n(value, self.tokens).chain(row.iter().copied())).collect()
    }

    /// Sequences of a stack that begin with its virtual tokens, if it has any.
    ///
    /// # Errors
    /// A failing device.
    pub(in crate::model) fn attach(
        &self,
        stack: usize,
        sequences: Sequences,
        ids: &[i64],
        device: &Device,
    ) -> Result<Sequences> {
        if self.table(stack).is_none() {
            return Ok(sequences);
        }
        let [rows, length] = sequences.ids.dims("prompt")?;
        let own: Vec<i64> = ids.chunks(length.max(1)).flat_map(|row| row.iter().skip(self.tokens).copied()).collect();
        let virtual_ids: Vec<i64> = (0..rows).flat_map(|_| 0..self.tokens as i64).collect();
        let grid = |columns: usize, ids: &[i64]| Tensor::from_slice_in(device, [rows, columns], ids, Segment::Data);
        let own = grid(length.saturating_sub(self.tokens), &own)?;
        let prompt = Some(PromptIds { virtual_ids: grid(self.tokens, &virtual_ids)?, own });
        Ok(Sequences { prompt, ..sequences })
    }

    /// Logits `[B, P + L, V]` without the logits of virtual tokens; others as they are.
    pub(in crate::model) fn trimmed(&self, logits: Var, stack: usize, cx: &Ctx) -> bmtrain_core::Result<Var> {
        let &[rows, length, columns] = logits.shape().dims() else { return Ok(logits) };
        if self.table(stack).is_none() || length <= self.tokens {
            return Ok(logits);
        }
        let flat = logits.reshape([rows, length * columns])?;
        let own = ops::slice_last(cx, &flat, self.tokens * columns..length * columns)?; // [B, L V]
        own.reshape([rows, length - self.tokens, columns])
    }
}

impl PromptIds {
    /// The ids that the table of the vocabulary has rows for.
    pub(in crate::model) fn own(&self) -> &Tensor {
        &self.own
    }

    /// The embeddings of virtual tokens before the others' embeddings, `[B, L - P, D]` to `[B, L, D]`.
    pub(in crate::model) fn join(&self, table: &Embedding, own: &Var, cx: &Ctx) -> bmtrain_dist::Result<Var> {
        let prompt = table.forward(&self.virtual_ids, cx)?; // [B, P, D]
        let prompt = if prompt.dtype() == own.dtype() { prompt } else { ops::cast(cx, &prompt, own.dtype())? };
        let [rows, before, size] = prompt.dims("prompt")?;
        let [_, length, _] = own.dims("prompt")?;
        let (prompt, own) = (prompt.reshape([rows, before * size])?, own.reshape([rows, length * size])?);
        Ok(ops::concat_last(cx, &[&prompt, &own])?.reshape([rows, before + length, size])?) // [B, L, D]
    }
}
