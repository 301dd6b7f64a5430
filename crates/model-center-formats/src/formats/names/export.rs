//! Write our parameters under their names.

use std::path::Path;

use bmtrain_core::dtype::DType;

use super::{NameTable, ParamShape};
use crate::formats::safetensors::{TensorEntry, stored};
use crate::formats::shards::ShardedWriter;
use crate::{Error, Result};

/// Write the weights of a model into `directory`, which exists: one file, or shards of at most `shard_bytes` and an
/// index.
///
/// `fill` puts the values of the named parameter into the vector it is given, which is empty; it is called once for
/// each, in the order of `params`. With `prefixed`, tensors of the base model carry the table's prefix. Aliases
/// are not written. Memory: the largest parameter, and once more its largest part if that is transposed or interleaved.
/// An error before all values are on the disk leaves the directory as it was.
pub fn export(
    table: &NameTable,
    params: &[ParamShape],
    directory: &Path,
    dtype: DType,
    prefixed: bool,
    shard_bytes: u64,
    mut fill: impl FnMut(&str, &mut Vec<f32>) -> Result<()>,
) -> Result<()> {
    let bad = |ours: &str, reason: String| {
        Error::model(format!("parameter {ours}"), reason, "write all values of each parameter")
    };
    if !dtype.is_float() {
        let reason = format!("weights are not stored as {dtype}");
        return Err(Error::model(directory.display().to_string(), reason, "use f32, f16 or bf16"));
    }
    let stored = stored(dtype)?;
    let pieces: Vec<_> =
        params.iter().map(|p| table.pieces(&p.name, &p.shape, prefixed)).collect::<Result<Vec<_>>>()?;
    let tensors: Vec<TensorEntry> = pieces
        .iter()
        .flatten()
        .map(|piece| TensorEntry::new(piece.name.clone(), stored, piece.shape.clone()))
        .collect();
    let mut writer = ShardedWriter::create(directory, &tensors, shard_bytes)?;
    let mut values = Vec::new();
    for (param, pieces) in params.iter().zip(&pieces) {
        values.clear();
        fill(&param.name, &mut values)?;
        let want: usize = param.shape.iter().product();
        if values.len() != want {
            return Err(bad(&param.name, format!("got {} values, shape {:?} has {want}", values.len(), param.shape)));
        }
        for piece in pieces {
            writer.write_f32(&piece.name, &piece.of(&values)?)?;
        }
    }
    writer.finish()
}
