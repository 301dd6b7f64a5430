//! ModelCenter's file of weights: its recognition, and writing it. Families in `model-center-models` have the names
//! of its parameters.

use super::safetensors::stored;
use super::{NameTable, ParamShape, TensorEntry, TensorPart, TensorSource, write_pickle};
use crate::{Error, Result};
use bmtrain_core::DType;
use std::path::Path;

/// The file that ModelCenter keeps weights in, beside its `config.json`.
pub const WEIGHTS_FILE: &str = "pytorch_model.pt";

/// Whether these are weights of ModelCenter, whose names differ from all of Hugging Face's.
pub fn is_model_center(weights: &dyn TensorSource) -> bool {
    weights.entries().iter().any(|entry| entry.name == "input_embedding.weight")
}

/// Checks the rows of the weights' embedding against `vocab_size`.
///
/// # Errors
/// [`Error::Model`] with the two numbers if they differ; one more row, as its converter of GPT-2 adds, has its own fix.
pub fn check_vocab_size(weights: &dyn TensorSource, vocab_size: usize) -> Result<()> {
    let name = "input_embedding.weight";
    let rows = weights.entries().iter().find(|entry| entry.name == name).and_then(|entry| entry.shape.first().copied());
    match rows {
        Some(rows) if Some(rows) == vocab_size.checked_add(1) => {
            let reason = format!(
                "{rows} rows for a vocab_size of {vocab_size}: ModelCenter's converter of GPT-2 adds a row of zeros, \
                 which is a token like any other to the model"
            );
            let fix = format!("set vocab_size to {rows} in config.json");
            Err(Error::model(format!("{}, tensor {name}", weights.place()), reason, fix))
        }
        _ => Ok(()),
    }
}

/// Write all parameters, and what ModelCenter stores twice under both names. `fill` is called once for each parameter.
pub(crate) fn write_weights(
    names: &NameTable,
    params: &[ParamShape],
    path: &Path,
    dtype: DType,
    mut fill: impl FnMut(&str, &mut Vec<f32>) -> Result<()>,
) -> Result<()> {
    // Of each tensor: its parameter and which piece of that it is.
    let mut tensors: Vec<(TensorEntry, usize, TensorPart)> = Vec::new();
    let kind = stored(dtype)?;
    for (index, param) in params.iter().enumerate() {
        for piece in names.pieces(&param.name, &param.shape, true)? {
            let twins =
                names.aliases.iter().filter(|alias| alias.of() == piece.name).map(|alias| alias.name().to_owned());
            for name in std::iter::once(piece.name.clone()).chain(twins) {
                tensors.push((TensorEntry::new(name, kind, piece.shape.clone()), index, piece.clone()));
            }
        }
    }
    let entries: Vec<TensorEntry> = tensors.iter().map(|(entry, ..)| entry.clone()).collect();
    let (mut next, mut held, mut values) = (tensors.iter(), None, Vec::new());
    write_pickle(path, &entries, |name, out| {
        let Some((_, index, piece)) = next.next() else {
            let reason = "it is not a tensor of the model";
            return Err(Error::model(format!("tensor {name}"), reason, "write the plan's tensors"));
        };
        if held != Some(*index) {
            values.clear();
            fill(&params[*index].name, &mut values)?;
            held = Some(*index);
        }
        out.extend_from_slice(&piece.of(&values)?);
        Ok(())
    })
}
