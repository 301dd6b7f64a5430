//! Whether the fields of a batch are valid for a model, with errors that name the field.

use super::labels::{Numbers, Wanted};
use crate::model::architecture::Spec;
use crate::model::head::Head;
use model_center_base::batch::{Batch, VerbalizerBatch};
use model_center_base::error::{Error, Result};

/// Whether ids and labels are valid for the model.
pub(in crate::model) fn check(spec: &Spec, head: Head, batch: &Batch) -> Result<()> {
    let is_encoder_decoder = spec.is_encoder_decoder();
    check_length(spec.prefix + longest_document(batch), spec.max_length)?;
    check_documents(spec, head, batch)?;
    if !is_encoder_decoder {
        refuse_decoder_inputs(batch)?;
    }
    Numbers::grid("input_ids", &batch.input_ids, batch, spec.vocab_size).check(false)?;
    let types = spec.stacks.first().and_then(|stack| stack.type_size);
    if let (Some(rows), Some(types)) = (types, &batch.token_type_ids) {
        Numbers::grid("token_type_ids", types, batch, rows).check(false)?;
    }
    match spec.has_spans {
        true => check_spans(batch)?,
        false => refuse_spans(batch)?,
    }
    if !matches!(head, Head::CausalLm { .. }) {
        refuse_verbalizer(batch)?;
    }
    check_next_sentence(spec, head, batch)?;
    if is_encoder_decoder {
        return check_one_choice(head, batch);
    }
    if matches!(head, Head::TokenClassifier { .. } | Head::Span) {
        check_one_choice(head, batch)?;
    }
    let wanted = match (head, &batch.verbalizer) {
        (Head::CausalLm { .. }, Some(verbalizer)) => {
            check_verbalizer(verbalizer, (batch.rows, batch.input_ids.len()), spec.vocab_size)?;
            Wanted::Classes(verbalizer.label_words.len())
        }
        (Head::None, _) => Wanted::Nothing,
        (Head::NextSentence, _) => Wanted::Classes(2),
        (Head::MaskedLm | Head::Pretraining | Head::CausalLm { .. }, _) => Wanted::Tokens,
        (Head::TokenClassifier { outputs }, _) => Wanted::TokenClasses(outputs),
        (Head::Span, _) => Wanted::Spans,
        (Head::Classifier { outputs }, _) => Wanted::of_classifier(outputs, batch.choices, spec.problem_type),
    };
    wanted.check(batch, spec.vocab_size)
}

fn check_next_sentence(spec: &Spec, head: Head, batch: &Batch) -> Result<()> {
    let Some(labels) = &batch.next_sentence else { return Ok(()) };
    let is_encoder = spec.head.classifier.is_of_encoder();
    let (reason, fix) = match head {
        Head::Pretraining => return Numbers::flat("next_sentence_label", labels, batch.rows, 2).check(true),
        Head::None if is_encoder => return Ok(()),
        _ if is_encoder => (
            "it is for pretraining, and this model has another head",
            "leave it out; the labels of every other head are called labels",
        ),
        _ => ("it is for the pretraining of encoders, and this model has a decoder", "leave it out"),
    };
    Err(Error::data("next_sentence_label", reason, fix))
}

/// The decoder of an encoder-decoder, its classifier included, and heads of tokens take one sequence per sample.
fn check_one_choice(head: Head, batch: &Batch) -> Result<()> {
    if batch.choices <= 1 {
        return Ok(());
    }
    let what = match head {
        Head::Classifier { .. } => "this classifier reads one sequence",
        _ => "this model predicts tokens",
    };
    let reason = format!("{} choices of a sample, and {what}", batch.choices);
    Err(Error::data("batch", reason, "give one sequence for each sample"))
}

/// Checks the verbalizer's token ids against the vocabulary size, and its positions, one per sequence, against the
/// number of tokens in the batch.
///
/// # Errors
/// [`Error::Data`] naming what is out of range.
pub(in crate::model) fn check_verbalizer(
    verbalizer: &VerbalizerBatch,
    (rows, tokens): (usize, usize),
    vocab_size: usize,
) -> Result<()> {
    let VerbalizerBatch { label_words, positions: places } = verbalizer;
    Numbers::flat("verbalizer.label_words", label_words, label_words.len(), vocab_size).check(false)?;
    Numbers::flat("verbalizer.positions", places, rows, tokens).check(false)?;
    if label_words.len() < 2 {
        return Err(Error::data(
            "verbalizer",
            format!("{} label words", label_words.len()),
            "give at least two label words",
        ));
    }
    Ok(())
}

pub(in crate::model) fn refuse_given<const N: usize>(given: [(&str, bool); N], reason: &str) -> Result<()> {
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => Err(Error::data(*name, reason, "leave it out")),
    }
}

/// Checks context and spans, one value for each token.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(in crate::model) fn check_spans(batch: &Batch) -> Result<()> {
    let (context, span) = (batch.context.as_ref(), batch.span.as_ref());
    for (name, values) in [("context", context.map(Vec::len)), ("span", span.map(Vec::len))] {
        values.map_or(Ok(()), |values| check_count(name, values, batch.input_ids.len()))?;
    }
    match context.is_some_and(|context| context.iter().any(|&value| value > 1)) {
        false => Ok(()),
        true => {
            let fix = "use 1 for tokens of the context and 0 for all others";
            Err(Error::data("batch", "context has values other than 0 and 1", fix))
        }
    }
}

/// Refuses decoder inputs, for a model that is not an encoder-decoder.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(in crate::model) fn refuse_decoder_inputs(batch: &Batch) -> Result<()> {
    let given = [
        ("decoder_input_ids", batch.decoder_input_ids.is_some()),
        ("decoder_attention_mask", batch.decoder_attention_mask.is_some()),
    ];
    refuse_given(given, "it is for models with an encoder and a decoder, and this model has one stack")
}

/// Tokens of the longest document, or of a sequence where none are packed.
pub(in crate::model) fn longest_document(batch: &Batch) -> usize {
    let Some(starts) = &batch.document_starts else { return batch.length };
    let length = batch.length.max(1);
    starts.iter().enumerate().map(|(at, start)| (at % length + 1).saturating_sub(*start as usize)).max().unwrap_or(0)
}

/// Whether packed documents have a place in a model with this head.
///
/// # Errors
/// [`Error::Data`] with what reads or predicts one thing for each sequence.
fn check_documents(spec: &Spec, head: Head, batch: &Batch) -> Result<()> {
    if spec.is_encoder_decoder() {
        return refuse_documents(batch, "a decoder attends to the encoder's whole sequence");
    }
    if spec.prefix > 0 {
        return refuse_documents(batch, "virtual tokens precede a sequence, and these are packed with several texts");
    }
    match head {
        Head::Classifier { .. } | Head::NextSentence => {
            refuse_documents(batch, "this model's head classifies sequences, and these are packed with several texts")
        }
        Head::Pretraining if batch.next_sentence.is_some() => {
            refuse_documents(batch, "the next sentence is predicted once for each sequence")
        }
        _ => Ok(()),
    }
}

/// Refuses packed documents.
///
/// # Errors
/// [`Error::Data`] with this reason.
pub(in crate::model) fn refuse_documents(batch: &Batch, reason: &str) -> Result<()> {
    match &batch.document_starts {
        None => Ok(()),
        Some(_) => Err(Error::data("document_starts", reason, "give each document as a sequence of its own")),
    }
}

/// Refuses fields that only families with contexts and spans support.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(in crate::model) fn refuse_spans(batch: &Batch) -> Result<()> {
    let given = [("context", batch.context.is_some()), ("span", batch.span.is_some())];
    refuse_given(given, "it selects the attention mask of models such as CPM-1, and this model has one mask")
}

/// Refuses fields that only a language-modelling head supports.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(in crate::model) fn refuse_verbalizer(batch: &Batch) -> Result<()> {
    let given = [("verbalizer", batch.verbalizer.is_some())];
    refuse_given(given, "they are compared by a language-modelling head, and this model has none")
}

/// Whether a sequence is no longer than the model's maximum.
///
/// # Errors
/// [`Error::Data`] with both lengths.
pub(in crate::model) fn check_length(length: usize, positions: usize) -> Result<()> {
    if length <= positions {
        return Ok(());
    }
    let reason = format!("{length} tokens in a row, the model has {positions} positions");
    Err(Error::data("batch", reason, "shorten the rows or set data.max_length"))
}

/// Whether there are as many values as ids.
///
/// # Errors
/// [`Error::Data`] with both counts.
pub(in crate::model) fn check_count(name: &str, values: usize, ids: usize) -> Result<()> {
    if values == ids {
        return Ok(());
    }
    let reason = format!("{name} has {values} values for {ids} input ids");
    Err(Error::data("batch", reason, "give one value for each token"))
}
