//! Inputs as the tensors of a safetensors file, whose names, shapes and dtypes are checked.

use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::{SafetensorsFile, TensorEntry, TensorSource};
use model_center_models::{Batch, Labels};

/// Tensors that are read, with their shapes.
const KNOWN: [(&str, &str); 11] = [
    ("input_ids", "[B, L]"),
    ("attention_mask", "[B, L]"),
    ("token_type_ids", "[B, L]"),
    ("decoder_input_ids", "[B, T]"),
    ("decoder_attention_mask", "[B, T]"),
    ("context", "[B, L]"),
    ("span", "[B, L]"),
    ("labels", "[B], [B, L] or, for an encoder-decoder, [B, T]; for a regression f32 [B] or [B, outputs]"),
    ("next_sentence_label", "[B]"),
    ("start_positions", "[B]"),
    ("end_positions", "[B]"),
];

/// Read a batch.
pub(super) fn read(inputs: &SafetensorsFile) -> Result<Batch> {
    refuse_unknown(inputs)?;
    let (rows, length) = size(inputs)?;
    let ints = |name: &str| inputs.entry(name).map(|_| inputs.read_i64(name)).transpose();
    for name in ["attention_mask", "token_type_ids", "context", "span"] {
        require_shape(inputs, name, &[&[rows, length]])?;
    }
    for name in ["next_sentence_label", "start_positions", "end_positions"] {
        require_shape(inputs, name, &[&[rows]])?;
    }
    let target = target_shape(inputs, rows)?;
    require_shape(inputs, "decoder_attention_mask", &[&target])?;
    let mask = |name: &str| {
        let mask = ints(name)?.map(|mask| {
            let bytes: Option<Vec<u8>> = mask.into_iter().map(|value| u8::try_from(value).ok()).collect();
            let reason = format!("{name} has values other than 0 and 1");
            let what = if name == "context" { "the context and 0 for all others" } else { "tokens and 0 for padding" };
            bytes.ok_or_else(|| wrong(inputs, reason, &format!("use 1 for {what}")))
        });
        mask.transpose()
    };
    Ok(Batch {
        rows,
        attention_mask: mask("attention_mask")?,
        token_type_ids: ints("token_type_ids")?,
        decoder_input_ids: ints("decoder_input_ids")?,
        decoder_attention_mask: mask("decoder_attention_mask")?,
        context: mask("context")?,
        span: ints("span")?,
        labels: labels(inputs, rows, length)?,
        next_sentence: ints("next_sentence_label")?,
        ..Batch::new(length, inputs.read_i64("input_ids")?)
    })
}

fn wrong(inputs: &SafetensorsFile, reason: String, fix: &str) -> Error {
    Error::data(inputs.path().display().to_string(), reason, fix)
}

/// An unknown tensor is most likely a misspelled name; without it the run would use a default instead.
fn refuse_unknown(inputs: &SafetensorsFile) -> Result<()> {
    let is_unknown = |entry: &&TensorEntry| !KNOWN.iter().any(|(name, _)| *name == entry.name);
    let Some(entry) = inputs.tensors().iter().find(is_unknown) else { return Ok(()) };
    let known: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
    let fix = format!("correct the name or leave the tensor out; known are {}", known.join(", "));
    Err(wrong(inputs, format!("there is no input {}", printable(&entry.name, 80)), &fix))
}

/// B and L.
fn size(inputs: &SafetensorsFile) -> Result<(usize, usize)> {
    let Some(entry) = inputs.entry("input_ids") else {
        return Err(wrong(inputs, "there is no tensor input_ids".into(), "write input_ids as i64 [B, L]"));
    };
    let &[rows, length] = entry.shape.as_slice() else {
        return Err(wrong(inputs, format!("input_ids has shape {:?}", entry.shape), "write input_ids as i64 [B, L]"));
    };
    if rows == 0 || length == 0 {
        let reason = format!("input_ids has shape {:?}, which holds no token", entry.shape);
        return Err(wrong(inputs, reason, "write at least one row of at least one token"));
    }
    Ok((rows, length))
}

/// B and T: the shape of the decoder's ids, or of the labels that they are made from.
fn target_shape(inputs: &SafetensorsFile, rows: usize) -> Result<Vec<usize>> {
    if let Some(entry) = inputs.entry("decoder_input_ids") {
        let length = entry.shape.get(1).copied().unwrap_or(1);
        require_shape(inputs, "decoder_input_ids", &[&[rows, length]])?;
    }
    let entry = inputs.entry("decoder_input_ids").or_else(|| inputs.entry("labels"));
    Ok(entry.map_or_else(|| vec![rows], |entry| entry.shape.clone()))
}

fn require_shape(inputs: &SafetensorsFile, name: &str, shapes: &[&[usize]]) -> Result<()> {
    let Some(entry) = inputs.entry(name).filter(|entry| !shapes.contains(&entry.shape.as_slice())) else {
        return Ok(());
    };
    let wanted: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
    let reason = format!("{name} has shape {:?}, with these input_ids it is {}", entry.shape, wanted.join(" or "));
    let form = KNOWN.iter().find(|(known, _)| *known == name).map_or("", |(_, form)| form);
    Err(wrong(inputs, reason, &format!("write {name} as {form}")))
}

/// First and last tokens of answers.
fn spans(inputs: &SafetensorsFile) -> Result<Option<Labels>> {
    let side = |name: &str| inputs.entry(name).map(|_| inputs.read_i64(name)).transpose();
    match (side("start_positions")?, side("end_positions")?) {
        (None, None) => Ok(None),
        (Some(starts), Some(ends)) => {
            Ok(Some(Labels::Spans(starts.into_iter().zip(ends).map(|(start, end)| [start, end]).collect())))
        }
        _ => {
            let reason = "one of start_positions and end_positions is missing".to_owned();
            Err(wrong(inputs, reason, "give both, or leave both out"))
        }
    }
}

/// Integer labels are classes, floating-point ones the targets of a regression.
fn labels(inputs: &SafetensorsFile, rows: usize, length: usize) -> Result<Option<Labels>> {
    let Some(entry) = inputs.entry("labels") else { return spans(inputs) };
    if !entry.is_float() {
        // Any length T: whether the model has a decoder is checked by the model.
        if !matches!(entry.shape.as_slice(), &[count, of_decoder] if count == rows && of_decoder > 0) {
            require_shape(inputs, "labels", &[&[rows], &[rows, length]])?;
        }
        return Ok(Some(Labels::Classes(inputs.read_i64("labels")?)));
    }
    // The number of outputs is checked by the model.
    let outputs = if entry.shape.len() == 2 { entry.shape[1] } else { 1 };
    require_shape(inputs, "labels", &[&[rows], &[rows, outputs]])?;
    let mut values = vec![0.0; rows.saturating_mul(outputs)];
    inputs.read_f32("labels", &mut values)?;
    Ok(Some(Labels::Values(values)))
}
