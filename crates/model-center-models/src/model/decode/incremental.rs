//! Incremental decoding of a transformer with a KV cache, given the encoder's output if it has an encoder. Tokens are
//! not sharded over tensor-parallel ranks here: a step has few of them, and keeps no activations.
//! Of several pipeline stages each keeps the KV cache of its blocks, and all get the logits.

use super::decoding::{Decoding, DecodingOptions, Past, check_mask, check_tokens, gathered, join, last_places};
use crate::layer::{BlockCache, Memory, PositionsConfig, TokensRead, Visible, cache};
use crate::model::architecture::position_table::{Count, PositionTable};
use crate::model::batch::checks::{check_length, refuse_documents, refuse_spans};
use crate::model::batch::labels::Numbers;
use crate::model::batch::{SequenceInput, Sequences, visible_keys};
use crate::model::head::Head;
use crate::model::transformer::modules::{Modules, StackBlock};
use crate::model::transformer::prefix;
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::pipeline::ModelPart;
use model_center_base::batch::Batch;
use model_center_base::error::{Error, Result};

/// Why documents are refused.
const GENERATED_ALONE: &str = "generation continues one text for each sequence, and these are packed with several";

/// Sequences in incremental decoding.
pub(in crate::model) struct Incremental<'a, B: StackBlock> {
    model: &'a Modules<B>,
    source: Option<Source>,
    caches: Vec<BlockCache>,
    past: Past,
    expected: usize,
    /// The ids of all tokens, `R x S`, with padding, if sequences of some lengths must be recomputed.
    again: Option<Vec<i64>>,
}

/// The encoder's output.
struct Source {
    /// `[R, S, D]`.
    hidden: Var,
    /// `R x S`, 1 for tokens; `None` if nothing is padded.
    mask: Option<Vec<u8>>,
    /// The same on the device.
    visible: Visible,
    /// The index of each sequence's text.
    texts: Vec<usize>,
}

impl Source {
    /// Runs the encoder.
    fn read<B: StackBlock>(model: &Modules<B>, batch: &Batch, cx: &mut Ctx) -> Result<Self> {
        let (spec, device) = (&model.spec, cx.device().clone());
        let prompted = model.prompt.as_ref().map(|prompt| prompt.first(batch, spec));
        let batch = prompted.as_ref().unwrap_or(batch);
        check_tokens(batch)?;
        Numbers::grid("input_ids", &batch.input_ids, batch, spec.vocab_size).check(false)?;
        refuse_spans(batch)?;
        refuse_documents(batch, GENERATED_ALONE)?;
        check_mask(batch)?;
        check_length(batch.length, spec.max_length)?;
        let shape = [batch.rows, batch.length];
        let mask = batch.attention_mask.as_deref();
        let input = SequenceInput::new(&batch.input_ids, shape, ("attention_mask", mask));
        let mut sequences = Sequences::upload(&device, &spec.stacks[0], input)?;
        if let Some(prompt) = &model.prompt {
            sequences = prompt.attach(0, sequences, &batch.input_ids, &device)?;
        }
        let visible = Visible::but(sequences.padding.as_ref());
        let encoded = model.run_staged_stack(0, (&sequences, None), None, cx)?;
        // Every stage with blocks of the decoder attends to it.
        let shape = [batch.rows, batch.length, spec.output_size()];
        let hidden = model.on_all_stages(encoded.hidden, encoded.stage, shape, cx)?; // [R, S, output_size]
        let mask = batch.attention_mask.clone().filter(|mask| mask.contains(&0));
        Ok(Source { hidden, mask, visible, texts: (0..batch.rows).collect() })
    }

    fn visible(device: &Device, shape: [usize; 2], mask: Option<&[u8]>) -> Result<Visible> {
        let upload = |mask| Tensor::from_slice_in(device, shape, mask, Segment::Data);
        Ok(Visible::but(mask.map(upload).transpose()?.as_ref()))
    }

    /// Lets sequence `i` have the text of sequence `from[i]`. Returns whether any text moved.
    fn reorder(&mut self, from: &[usize], cx: &Ctx) -> Result<bool> {
        let texts: Vec<usize> = from.iter().map(|&row| self.texts[row]).collect();
        if texts == self.texts {
            return Ok(false);
        }
        let length = self.hidden.shape().dims()[1];
        self.hidden = cache::rows(&self.hidden, from, cx)?; // [R, S, D]
        self.mask = self.mask.as_ref().map(|mask| gathered(mask, length, from));
        self.visible = Source::visible(cx.device(), [from.len(), length], self.mask.as_deref())?;
        self.texts = texts;
        Ok(true)
    }
}

impl<'a, B: StackBlock> Incremental<'a, B> {
    /// The state before the first token; runs the encoder on the source.
    ///
    /// # Errors
    /// A model without a head for next-token prediction; a source without an encoder, or an encoder without a source.
    pub(in crate::model) fn new(model: &'a Modules<B>, options: DecodingOptions<'_>, cx: &mut Ctx) -> Result<Self> {
        let spec = &model.spec;
        if !matches!(model.heads.kind(), Head::CausalLm { .. }) {
            if spec.head.transform.is_some() {
                let reason = "its family is an encoder and does not generate text";
                return Err(Error::model("the model", reason, "use a decoder or an encoder-decoder"));
            }
            let reason = "the model has no language-modelling head";
            return Err(Error::argument("the head asked for", reason, "open the directory with the head lm"));
        }
        let source = match (spec.is_encoder_decoder(), options.source) {
            (true, Some(batch)) => Some(Source::read(model, batch, cx)?),
            (true, None) => {
                return Err(Error::data("source", "there is nothing for the encoder to read", "give a text to read"));
            }
            (false, Some(_)) => {
                let reason = format!("{} has no encoder that could read it", spec.title);
                return Err(Error::data("source", reason, "put the text into the prompt"));
            }
            (false, None) => None,
        };
        let begin = || Past::after(spec.prefix);
        let past = source.as_ref().map_or_else(begin, |source| Past::of_rows(source.texts.len()));
        let steady = spec.stacks.last().and_then(|stack| stack.positions.steady_length());
        let again = steady.map(|_| Vec::new());
        let mut rows = Incremental { model, source, caches: Vec::new(), past, expected: options.expected, again };
        rows.clear();
        Ok(rows)
    }

    /// Empty the cache.
    fn clear(&mut self) {
        let blocks = self.model.spec.stacks.last().map_or(0, |stack| stack.layers);
        let expected = self.expected.saturating_add(self.model.spec.prefix);
        self.caches = (0..blocks).map(|_| BlockCache::expecting(expected)).collect();
    }

    /// The ids `R x L` to process: the new ones, or the whole sequences if the positions of cached tokens are no longer
    /// valid. All hidden states change in that case, so the cache is cleared.
    fn ids(&mut self, tokens: &Batch, past: &Past) -> Vec<i64> {
        let Some(all) = &mut self.again else { return tokens.input_ids.clone() };
        let before = self.past.length() - self.model.spec.prefix;
        *all = join(all, before, &tokens.input_ids, tokens.length);
        let positions = self.model.spec.stacks.last().map(|stack| &stack.positions);
        if positions.is_none_or(|positions| positions.is_same(self.past.length(), past.length())) {
            return tokens.input_ids.clone();
        }
        let all = all.clone();
        self.clear();
        all
    }

    fn check(&self, tokens: &Batch, past: &Past) -> Result<()> {
        let spec = &self.model.spec;
        check_tokens(tokens)?;
        Numbers::grid("input_ids", &tokens.input_ids, tokens, spec.vocab_size).check(false)?;
        check_length(past.longest(), spec.max_length)?;
        refuse_documents(tokens, GENERATED_ALONE)?;
        if !spec.has_spans {
            return refuse_spans(tokens);
        }
        if tokens.context.is_some() && self.past.length() > 0 {
            let reason = "a context has bidirectional attention, and the cached tokens were computed without it";
            return Err(Error::data("context", reason, "give it with the first tokens"));
        }
        Ok(())
    }

    /// The next tokens of all sequences, with masks and position indices that include the cached tokens.
    fn sequences(&mut self, tokens: &Batch, past: &Past, device: &Device) -> Result<Sequences> {
        let ids = self.ids(tokens, past);
        let (rows, length) = (tokens.rows, ids.len() / tokens.rows);
        let stack = self.model.spec.stacks.last();
        let table = stack.and_then(|stack| stack.added.table());
        let prefix = self.model.spec.prefix;
        let begins = length + prefix == past.length();
        let numbers = match stack.map(|stack| &stack.positions) {
            Some(PositionsConfig::Alibi(_)) => past.numbers(device)?,
            // Keys of virtual tokens are not rotated: their distances from tokens may not depend on padding.
            Some(PositionsConfig::Rotary(_)) if prefix > 0 => {
                Some(past.position_ids(PositionTable { first: 0, count: Count::Tokens }, length, device)?)
            }
            _ => None,
        };
        let visible = match tokens.context {
            Some(_) => visible_keys(tokens)?,
            None => None,
        };
        let visible = visible.map(|keys| Tensor::from_slice_in(device, [rows, length, length], &keys, Segment::Data));
        let sequences = Sequences {
            ids: Tensor::from_slice_in(device, [rows, length], &ids, Segment::Data)?,
            position_ids: table.map(|table| past.position_ids(table, length, device)).transpose()?,
            reach: past.length(),
            token_type_ids: None,
            padding: past.padding(device)?,
            numbers,
            visible: visible.transpose()?,
            documents: None,
            tokens: None,
            reads: TokensRead::All,
            prefix: if begins { prefix::rows(device, [rows, prefix])? } else { None },
            prompt: None,
        };
        self.with_prompt(sequences, (&ids, past), device)
    }

    /// Sequences of all tokens so far, if there are no others in the cache, with the ids of virtual tokens.
    fn with_prompt(&self, sequences: Sequences, (ids, past): (&[i64], &Past), device: &Device) -> Result<Sequences> {
        let is_first = sequences.ids.shape().last() == past.length();
        match self.model.prompt.as_ref().filter(|_| is_first) {
            Some(prompt) => prompt.attach(self.model.spec.stacks.len() - 1, sequences, ids, device),
            None => Ok(sequences),
        }
    }
}

impl<B: StackBlock> Decoding for Incremental<'_, B> {
    fn extend(&mut self, tokens: &Batch, cx: &mut Ctx) -> Result<Tensor> {
        let stack = self.model.spec.stacks.len() - 1;
        let prompt = self.model.prompt.as_ref().filter(|prompt| prompt.table(stack).is_some());
        let prompt = prompt.filter(|_| self.past.length() == 0);
        let prompted = prompt.map(|prompt| prompt.first(tokens, &self.model.spec));
        let tokens = prompted.as_ref().unwrap_or(tokens);
        let past = self.past.with(tokens)?;
        self.check(tokens, &past)?;
        let device = cx.device().clone();
        let sequences = self.sequences(tokens, &past, &device)?;
        let model = self.model;
        let memory = self.source.as_ref().map(|source| Memory {
            hidden: source.hidden.clone(),
            tokens: None,
            visible: source.visible.clone(),
        });
        let decoded = model.run_staged_stack(stack, (&sequences, memory.as_ref()), Some(&mut self.caches), cx)?;
        let (rows, spec) = (tokens.rows, &model.spec);
        let head = model.parameters.stages().stage_of(ModelPart::Head);
        let last = decoded.hidden.map(|hidden| last_places(hidden, cx)).transpose()?; // [R, 1, output_size]
        let last = model.send(last, (decoded.stage, head), [rows, 1, spec.output_size()], cx)?;
        let missing = || Error::model(spec.title, "its head gives no logits", "open the directory with the head lm");
        let logits = match last {
            Some(last) => Some(model.lm_logits(&last, cx)?.ok_or_else(missing)?), // [R, 1, V]
            None => None,
        };
        // Every stage chooses the same tokens by them.
        let logits = model.on_all_stages(logits, head, [rows, 1, spec.vocab_size], cx)?; // [R, 1, V]
        self.past = past;
        Ok(logits.value().reshape([rows, logits.shape().last()])?) // [R, V]
    }

    fn reorder(&mut self, from: &[usize], cx: &Ctx) -> Result<()> {
        let length = self.past.length();
        self.past.reorder(from)?;
        if let Some(all) = &mut self.again {
            *all = gathered(all, length - self.model.spec.prefix, from);
        }
        let moves_memory = match &mut self.source {
            Some(source) => source.reorder(from, cx)?,
            None => true,
        };
        for cache in &mut self.caches {
            cache.reorder(from, moves_memory, cx)?;
        }
        Ok(())
    }

    fn past(&self) -> &Past {
        &self.past
    }
}
