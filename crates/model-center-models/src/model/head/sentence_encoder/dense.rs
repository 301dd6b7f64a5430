//! A linear map with an activation over embeddings: the module `Dense`, as the server computes it.

use super::dense_layer::{DenseFile, DenseSettings};
use crate::Result;
use serde_json::Value;
use std::path::Path;

/// The map.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dense {
    pub(super) file: DenseFile,
    /// `[outputs, inputs]`, row by row.
    weight: Vec<f32>,
    /// `[outputs]`; empty without one.
    bias: Vec<f32>,
}

impl Dense {
    /// Reads the module in a directory of the model's, counted from 0 among the modules `Dense`; `inputs` is the size
    /// of embeddings before it.
    ///
    /// # Errors
    /// A setting that is not supported; weights that are missing or of another size.
    pub(super) fn read(directory: &Path, (path, number): (&str, usize), inputs: Option<usize>) -> Result<Self> {
        let file = DenseFile::new(path, number, DenseSettings::read(directory, path, inputs)?);
        let (weight, bias) = file.values(directory)?;
        Ok(Dense { file, weight, bias })
    }

    /// The embedding after the map.
    pub(super) fn apply(&self, embedding: &[f64]) -> Vec<f64> {
        let DenseSettings { inputs, activation, .. } = self.file.settings;
        let rows = self.weight.chunks_exact(inputs.max(1));
        let bias = self.bias.iter().copied().chain(std::iter::repeat(0.0));
        rows.zip(bias)
            .map(|(row, bias)| {
                let sum: f64 = row.iter().zip(embedding).map(|(weight, x)| f64::from(*weight) * x).sum();
                activation.apply(sum + f64::from(bias))
            })
            .collect()
    }
}

/// The name of a class without its module, and whether it is one of sentence-transformers' own.
pub(super) fn class_of(module: &Value) -> (String, bool) {
    let name = module.get("type").and_then(Value::as_str).unwrap_or_default();
    let short = name.rsplit('.').next().unwrap_or_default();
    (short.to_owned(), name.starts_with("sentence_transformers."))
}
