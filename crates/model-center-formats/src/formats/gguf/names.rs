//! The tensors of a GGUF file under the names, and in the row order, of Hugging Face's models.
//!
//! Files of some architectures store the rows of each query and key head in the order of an interleaved rotary
//! embedding: Hugging Face's row `j H/2 + k` of a head of H rows (j is 0 or 1) is row `2 k + j` there. GPT-NeoX's have
//! all queries before all keys before all values, where Hugging Face has the three of each head together.

use std::collections::HashSet;

use bmtrain_core::quantised::BlockFormat;
use serde_json::{Map, Value};

use super::family::{HeadNorms, Layout, Shape};
use super::{Decoder, Family, GgmlType, GgufFile, rope, tensor_place};
use crate::formats::safetensors::{StoredDtype, TensorEntry, TensorSource};
use crate::{Error, Result};

/// The order of a tensor's rows in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOrder {
    /// Hugging Face's.
    Same,
    /// The two halves of each head of this many rows alternate.
    Alternating { rows: usize },
    /// Queries, keys and values of this many heads of this many rows, each one after another.
    ByPart { heads: usize, rows: usize },
}

impl RowOrder {
    /// Number of rows that keep their place as a whole, if any row does not.
    fn period(self) -> Option<usize> {
        match self {
            Self::Same => None,
            Self::Alternating { rows } => Some(rows),
            Self::ByPart { heads, rows } => Some(3 * heads * rows),
        }
    }

    /// The file's row of Hugging Face's `row`.
    fn stored(self, row: usize) -> usize {
        match self {
            Self::Same => row,
            Self::Alternating { rows } => {
                let (at, half) = (row % rows, rows / 2);
                row - at + 2 * (at % half) + at / half
            }
            Self::ByPart { heads, rows } => {
                let (head, at) = (row / (3 * rows), row % (3 * rows));
                (at / rows * heads + head) * rows + at % rows
            }
        }
    }
}

/// One tensor of the model: where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Its name and shape as Hugging Face has them.
    pub entry: TensorEntry,
    /// Its name in the GGUF file.
    pub theirs: String,
    /// Stored type.
    pub stored: GgmlType,
    /// The order of its rows there.
    order: RowOrder,
    /// Whether 1 is added to its values there.
    from_one: bool,
}

impl Mapped {
    /// Whether its rows are in another order there.
    pub fn is_reordered(&self) -> bool {
        self.order != RowOrder::Same
    }
}

/// A GGUF file that is read as if it were the weights of a Hugging Face directory.
#[derive(Debug)]
pub struct GgufAsHuggingFace {
    file: GgufFile,
    decoder: Decoder,
    /// Sorted by the name there.
    tensors: Vec<Mapped>,
}

impl GgufAsHuggingFace {
    /// Match a file's tensors with those that its metadata promise. A tensor without a place in the model is an error:
    /// leaving it out would make another model.
    pub fn new(file: GgufFile) -> Result<Self> {
        let decoder = Decoder::read(&file)?;
        let mut tensors = List { file: &file, tensors: Vec::new() };
        let (words, width, layout) = (decoder.vocab_size, decoder.dim_model, decoder.family.layout());
        let there = |name: &str| format!("{}{name}", layout.prefix);
        tensors.take("token_embd.weight", &there(&format!("{}.weight", layout.embedding)), &[words, width])?;
        tensors.take_norm("output_norm", &there(layout.last_norm), width, layout)?;
        if !decoder.is_tied {
            tensors.take("output.weight", layout.output, &[words, width])?;
        }
        for layer in 0..decoder.num_layers {
            take_block(&mut tensors, &decoder, layer)?;
        }
        let mut tensors = tensors.tensors;
        let known: HashSet<&str> = tensors.iter().map(|mapped| mapped.theirs.as_str()).collect();
        let is_scaling =
            |name: &str| name == rope::FACTORS || decoder.family == Family::Phi3 && rope::LONG.contains(&name);
        let place_for = |name: &str| known.contains(name) || is_scaling(name);
        let foreign: Vec<&TensorEntry> = file.entries().into_iter().filter(|entry| !place_for(&entry.name)).collect();
        if let Some(first) = foreign.first() {
            return Err(Error::model(
                tensor_place(file.place(), &first.name),
                format!("a {} model has no place for {} tensors of the file", decoder.family.name(), foreign.len()),
                "use a file of a plain model of this family",
            ));
        }
        tensors.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        Ok(Self { file, decoder, tensors })
    }

    /// The file.
    pub fn file(&self) -> &GgufFile {
        &self.file
    }

    /// The model's sizes.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The configuration as `config.json` has it, without the type of the weights.
    pub fn config(&self) -> Map<String, Value> {
        self.decoder.to_json()
    }

    /// Every tensor with where it comes from, sorted by name.
    pub fn mapped(&self) -> &[Mapped] {
        &self.tensors
    }

    fn require(&self, name: &str) -> Result<&Mapped> {
        let at = self.tensors.binary_search_by(|mapped| mapped.entry.name.as_str().cmp(name));
        at.map(|at| &self.tensors[at]).map_err(|_| {
            let reason = "the model has no tensor of this name";
            Error::model(tensor_place(self.place(), name), reason, "check the name against the model's list")
        })
    }
}

fn take_block(tensors: &mut List<'_>, decoder: &Decoder, layer: usize) -> Result<()> {
    let layout = decoder.family.layout();
    let here = |part: &str| format!("blk.{layer}.{part}");
    let there = |part: &str| format!("{}layers.{layer}.{part}", layout.prefix);
    let (width, head) = (decoder.dim_model, decoder.dim_head);
    // Sizes are below 2^31.
    let [queries, keys] = [decoder.num_heads, decoder.num_kv_heads].map(|heads| heads * head);
    for (ours, theirs) in layout.norms {
        tensors.take_norm(&here(ours), &there(theirs), width, layout)?;
    }
    let head_norms = match layout.head_norms {
        HeadNorms::None => None,
        HeadNorms::OfHeads => Some([head, head]),
        HeadNorms::OfAll => Some([queries, keys]),
    };
    for (part, size) in ["q", "k"].into_iter().zip(head_norms.into_iter().flatten()) {
        tensors.take_norm(
            &here(&format!("attn_{part}_norm")),
            &there(&format!("self_attn.{part}_norm")),
            size,
            layout,
        )?;
    }
    for (ours, theirs, kind) in layout.matrices {
        let [rows, columns] = match kind {
            Shape::Query => [queries, width],
            Shape::Key | Shape::Value => [keys, width],
            Shape::Fused { .. } => [queries + 2 * keys, width],
            Shape::Output => [width, queries],
            Shape::Up => [decoder.dim_ff, width],
            Shape::GateUp => [2 * decoder.dim_ff, width],
            Shape::Down => [width, decoder.dim_ff],
        };
        let order = match kind {
            Shape::Query | Shape::Key if decoder.family.interleaves_heads() => RowOrder::Alternating { rows: head },
            Shape::Fused { by_head: true } => RowOrder::ByPart { heads: decoder.num_heads, rows: head },
            _ => RowOrder::Same,
        };
        let weight = |name: String| format!("{name}.weight");
        tensors.take_in_order(&weight(here(ours)), &weight(there(theirs)), &[rows, columns], order)?;
        let has_bias = match kind {
            Shape::Query | Shape::Key | Shape::Value | Shape::Fused { .. } => decoder.attention_bias,
            // Two classes have biases at the first three alone, the others at all four.
            Shape::Output => decoder.attention_bias && !matches!(decoder.family, Family::Qwen2 | Family::Glm4),
            Shape::Up | Shape::GateUp | Shape::Down => decoder.mlp_bias,
        };
        if has_bias {
            let bias = |name: String| format!("{name}.bias");
            tensors.take_in_order(&bias(here(ours)), &bias(there(theirs)), &[rows], order)?;
        }
    }
    Ok(())
}

/// Tensors of a file that were found where they are needed.
struct List<'a> {
    file: &'a GgufFile,
    tensors: Vec<Mapped>,
}

impl List<'_> {
    fn take(&mut self, ours: &str, theirs: &str, shape: &[usize]) -> Result<()> {
        self.take_in_order(ours, theirs, shape, RowOrder::Same)
    }

    fn take_norm(&mut self, ours: &str, theirs: &str, size: usize, layout: &Layout) -> Result<()> {
        self.take(&format!("{ours}.weight"), &format!("{theirs}.weight"), &[size])?;
        if layout.from_one
            && let Some(mapped) = self.tensors.last_mut()
        {
            mapped.from_one = true;
            // The difference from 1 is not of the stored type.
            mapped.entry.dtype = StoredDtype::F32;
        }
        if layout.norm_bias {
            self.take(&format!("{ours}.bias"), &format!("{theirs}.bias"), &[size])?;
        }
        Ok(())
    }

    fn take_in_order(&mut self, ours: &str, theirs: &str, shape: &[usize], order: RowOrder) -> Result<()> {
        let bad = |reason: String| {
            let fix = "use a complete file of a plain model of this family";
            Error::model(tensor_place(self.file.place(), ours), reason, fix)
        };
        let (Some(entry), Some(stored)) = (self.file.entry(ours), self.file.stored(ours)) else {
            return Err(bad("the model needs this tensor, and the file does not have it".into()));
        };
        if entry.shape != shape {
            return Err(bad(format!("the tensor has shape {:?}, by the metadata it is {shape:?}", entry.shape)));
        }
        let entry = TensorEntry::new(theirs, entry.dtype, shape);
        self.tensors.push(Mapped { entry, theirs: ours.to_string(), stored, order, from_one: false });
        Ok(())
    }
}

impl TensorSource for GgufAsHuggingFace {
    fn place(&self) -> String {
        self.file.place()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.tensors.iter().map(|mapped| &mapped.entry).collect()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let mapped = self.require(name)?;
        self.file.read_f32(&mapped.theirs, out)?;
        if let Some(rows) = mapped.order.period() {
            let columns = mapped.entry.shape.get(1).copied().unwrap_or(1);
            let mut period = vec![0.0; rows * columns];
            for stored in out.chunks_exact_mut(rows * columns) {
                period.copy_from_slice(stored);
                for (row, values) in stored.chunks_exact_mut(columns).enumerate() {
                    values.copy_from_slice(&period[mapped.order.stored(row) * columns..][..columns]);
                }
            }
        }
        if mapped.from_one {
            out.iter_mut().for_each(|value| *value -= 1.0);
        }
        Ok(())
    }

    fn block_format(&self, name: &str) -> Option<BlockFormat> {
        self.file.block_format(&self.require(name).ok()?.theirs)
    }

    fn read_blocks_at(&self, name: &str, first: usize, out: &mut [u8]) -> Result<()> {
        let mapped = self.require(name)?;
        let columns = mapped.entry.shape.get(1).copied().unwrap_or(0);
        let row = self.block_format(name).and_then(|format| format.row_bytes(columns));
        let (RowOrder::Alternating { .. } | RowOrder::ByPart { .. }, Some(row)) = (mapped.order, row) else {
            return self.file.read_blocks_at(&mapped.theirs, first, out);
        };
        // Blocks are along a row, and whole rows are in another order.
        let mut stored = out.chunks_exact_mut(row);
        for (at, to) in (first..).zip(&mut stored) {
            self.file.read_blocks_at(&mapped.theirs, mapped.order.stored(at), to)?;
        }
        match stored.into_remainder() {
            [] => Ok(()),
            rest => self.file.read_blocks_at(&mapped.theirs, first, rest),
        }
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let mapped = self.require(name)?;
        let size = mapped.entry.bytes().unwrap_or(0) as u64;
        let is_inside = offset.checked_add(out.len() as u64).is_some_and(|end| end <= size);
        if mapped.from_one && is_inside {
            let mut values = vec![0.0; mapped.entry.elements().unwrap_or(0)];
            self.read_f32(name, &mut values)?;
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).skip(offset as usize);
            out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            return Ok(());
        }
        if mapped.order == RowOrder::Same || !is_inside {
            return self.file.read_raw_at(&mapped.theirs, offset, out);
        }
        let row_bytes = size as usize / mapped.entry.shape[0];
        let (mut at, mut rest) = (offset as usize, out);
        while !rest.is_empty() {
            let (row, skipped) = (at / row_bytes, at % row_bytes);
            let (part, after) = rest.split_at_mut(rest.len().min(row_bytes - skipped));
            let stored = mapped.order.stored(row) * row_bytes + skipped;
            self.file.read_raw_at(&mapped.theirs, stored as u64, part)?;
            (at, rest) = (at + part.len(), after);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_heads_are_found_by_part() {
        // Two heads of three rows; the file has q0 q1 k0 k1 v0 v1, Hugging Face q0 k0 v0 q1 k1 v1.
        let order = RowOrder::ByPart { heads: 2, rows: 3 };
        let found: Vec<usize> = (0..18).map(|row| order.stored(row)).collect();
        assert_eq!(found, [0, 1, 2, 6, 7, 8, 12, 13, 14, 3, 4, 5, 9, 10, 11, 15, 16, 17]);
    }

    #[test]
    fn rows_of_halves_alternate() {
        let order = RowOrder::Alternating { rows: 6 };
        let found: Vec<usize> = (0..12).map(|row| order.stored(row)).collect();
        assert_eq!(found, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
