//! Carry out a plan: read parameter after parameter, one in memory at a time.

use super::Plan;
use crate::hf::safetensors::TensorSource;
use crate::{Error, Result};

/// Bytes compared at a time when a file holds a tied tensor twice.
const CHUNK: usize = 1 << 20;

impl Plan {
    /// Read every planned parameter and hand it to `sink` with our name and all its values in our layout, row-major.
    ///
    /// Parameters that the plan calls [`Plan::fresh`] are not handed over. Memory: the largest parameter, and once more
    /// its largest part if that is transposed or interleaved.
    ///
    /// # Errors
    /// [`Error::Model`] if the source is not the planned one any more, or holds a tied tensor twice with different
    /// values; what `sink` returns.
    pub fn load(&self, source: &dyn TensorSource, mut sink: impl FnMut(&str, &[f32]) -> Result<()>) -> Result<()> {
        for twin in &self.twins {
            require_equal(source, &twin.name, &twin.alias, twin.bytes)?;
        }
        let (mut values, mut theirs): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
        for step in &self.steps {
            values.resize(step.elements, 0.0);
            for piece in &step.pieces {
                let part = &mut values[piece.elements()];
                if piece.is_rearranged() {
                    theirs.resize(part.len(), 0.0);
                    source.read_f32(&piece.name, &mut theirs)?;
                    piece.arrange(&theirs, part);
                } else {
                    source.read_f32(&piece.name, part)?;
                }
            }
            sink(&step.ours, &values)?;
        }
        Ok(())
    }
}

fn require_equal(source: &dyn TensorSource, name: &str, alias: &str, bytes: u64) -> Result<()> {
    let (mut first, mut second) = (vec![0u8; CHUNK], vec![0u8; CHUNK]);
    let mut offset = 0;
    while offset < bytes {
        let length = (CHUNK as u64).min(bytes - offset) as usize;
        source.read_raw_at(name, offset, &mut first[..length])?;
        source.read_raw_at(alias, offset, &mut second[..length])?;
        if first[..length] != second[..length] {
            return Err(Error::model(
                format!("{}, tensor {alias}", source.place()),
                format!("it should be {name} under another name, but holds other values: the model was not tied"),
                "use a model whose output projection is its word embedding",
            ));
        }
        offset += length as u64;
    }
    Ok(())
}
