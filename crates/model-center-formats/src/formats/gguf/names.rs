//! The tensors of a GGUF file under the names, and in the row order, of Hugging Face's Llama and Qwen models.
//!
//! Files of architecture `llama` store the rows of each query and key head in the order of an interleaved rotary
//! embedding: Hugging Face's row `j H/2 + k` of a head of H rows (j is 0 or 1) is row `2 k + j` there.

use std::collections::HashSet;

use bmtrain_core::quantised::BlockFormat;
use serde_json::{Map, Value};

use super::{Decoder, Family, GgmlType, GgufFile, rope, tensor_place};
use crate::formats::safetensors::{TensorEntry, TensorSource};
use crate::{Error, Result};

/// The parts of a block that are matrices: name here, name there, and the kind of its shape.
const MATRICES: [(&str, &str, Shape); 7] = [
    ("attn_q", "self_attn.q_proj", Shape::Query),
    ("attn_k", "self_attn.k_proj", Shape::Key),
    ("attn_v", "self_attn.v_proj", Shape::Value),
    ("attn_output", "self_attn.o_proj", Shape::Output),
    ("ffn_gate", "mlp.gate_proj", Shape::Up),
    ("ffn_up", "mlp.up_proj", Shape::Up),
    ("ffn_down", "mlp.down_proj", Shape::Down),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Query,
    Key,
    Value,
    Output,
    Up,
    Down,
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
    /// Rows of a head, if those are in the other order.
    head_rows: Option<usize>,
}

impl Mapped {
    /// Whether its rows are in another order there.
    pub fn is_reordered(&self) -> bool {
        self.head_rows.is_some()
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
        let (words, width) = (decoder.vocab_size, decoder.dim_model);
        tensors.take("token_embd.weight", "model.embed_tokens.weight", &[words, width], None)?;
        tensors.take("output_norm.weight", "model.norm.weight", &[width], None)?;
        if !decoder.is_tied {
            tensors.take("output.weight", "lm_head.weight", &[words, width], None)?;
        }
        for layer in 0..decoder.num_layers {
            take_block(&mut tensors, &decoder, layer)?;
        }
        let mut tensors = tensors.tensors;
        let known: HashSet<&str> = tensors.iter().map(|mapped| mapped.theirs.as_str()).collect();
        let place_for = |name: &str| known.contains(name) || name == rope::FACTORS;
        let foreign: Vec<&TensorEntry> = file.entries().into_iter().filter(|entry| !place_for(&entry.name)).collect();
        if let Some(first) = foreign.first() {
            return Err(Error::model(
                tensor_place(file.place(), &first.name),
                format!("a {} model has no place for {} tensors of the file", decoder.family.name(), foreign.len()),
                "use a file of a plain Llama, Mistral, Qwen2 or Qwen3 model",
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
    let here = |part: &str| format!("blk.{layer}.{part}");
    let there = |part: &str| format!("model.layers.{layer}.{part}");
    let (width, head) = (decoder.dim_model, decoder.dim_head);
    let norms =
        [("attn_norm.weight", "input_layernorm.weight"), ("ffn_norm.weight", "post_attention_layernorm.weight")];
    for (ours, theirs) in norms {
        tensors.take(&here(ours), &there(theirs), &[width], None)?;
    }
    if decoder.family == Family::Qwen3 {
        tensors.take(&here("attn_q_norm.weight"), &there("self_attn.q_norm.weight"), &[head], None)?;
        tensors.take(&here("attn_k_norm.weight"), &there("self_attn.k_norm.weight"), &[head], None)?;
    }
    for (ours, theirs, kind) in MATRICES {
        // Sizes are below 2^31.
        let size = |heads: usize| heads * head;
        let [rows, columns] = match kind {
            Shape::Query => [size(decoder.num_heads), width],
            Shape::Key | Shape::Value => [size(decoder.num_kv_heads), width],
            Shape::Output => [width, size(decoder.num_heads)],
            Shape::Up => [decoder.dim_ff, width],
            Shape::Down => [width, decoder.dim_ff],
        };
        let interleaved = decoder.family.interleaves_heads() && matches!(kind, Shape::Query | Shape::Key);
        let head_rows = interleaved.then_some(head);
        let weight = |name: String| format!("{name}.weight");
        tensors.take(&weight(here(ours)), &weight(there(theirs)), &[rows, columns], head_rows)?;
        let has_bias = match kind {
            Shape::Query | Shape::Key | Shape::Value => decoder.attention_bias,
            // Qwen2's class has biases at the first three alone, the others' at all four.
            Shape::Output => decoder.attention_bias && decoder.family != Family::Qwen2,
            Shape::Up | Shape::Down => decoder.mlp_bias,
        };
        if has_bias {
            let bias = |name: String| format!("{name}.bias");
            tensors.take(&bias(here(ours)), &bias(there(theirs)), &[rows], head_rows)?;
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
    fn take(&mut self, ours: &str, theirs: &str, shape: &[usize], head_rows: Option<usize>) -> Result<()> {
        let bad = |reason: String| {
            let fix = "use a complete file of a plain Llama, Mistral, Qwen2 or Qwen3 model";
            Error::model(tensor_place(self.file.place(), ours), reason, fix)
        };
        let (Some(entry), Some(stored)) = (self.file.entry(ours), self.file.stored(ours)) else {
            return Err(bad("the model needs this tensor, and the file does not have it".into()));
        };
        if entry.shape != shape {
            return Err(bad(format!("the tensor has shape {:?}, by the metadata it is {shape:?}", entry.shape)));
        }
        let entry = TensorEntry::new(theirs, entry.dtype, shape);
        self.tensors.push(Mapped { entry, theirs: ours.to_string(), stored, head_rows });
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
        if let Some(rows) = mapped.head_rows {
            let columns = mapped.entry.shape.get(1).copied().unwrap_or(1);
            let mut head = vec![0.0; rows * columns];
            for stored in out.chunks_exact_mut(rows * columns) {
                head.copy_from_slice(stored);
                for (row, values) in stored.chunks_exact_mut(columns).enumerate() {
                    values.copy_from_slice(&head[stored_row(row, rows) * columns..][..columns]);
                }
            }
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
        let (Some(rows), Some(row)) = (mapped.head_rows, row) else {
            return self.file.read_blocks_at(&mapped.theirs, first, out);
        };
        // Blocks are along a row, and whole rows are in another order.
        let mut stored = out.chunks_exact_mut(row);
        for (at, to) in (first..).zip(&mut stored) {
            self.file.read_blocks_at(&mapped.theirs, at / rows * rows + stored_row(at % rows, rows), to)?;
        }
        match stored.into_remainder() {
            [] => Ok(()),
            rest => self.file.read_blocks_at(&mapped.theirs, first, rest),
        }
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let mapped = self.require(name)?;
        let size = mapped.entry.bytes().unwrap_or(0) as u64;
        let (Some(rows), true) =
            (mapped.head_rows, offset.checked_add(out.len() as u64).is_some_and(|end| end <= size))
        else {
            return self.file.read_raw_at(&mapped.theirs, offset, out);
        };
        let row_bytes = size as usize / mapped.entry.shape[0];
        let (mut at, mut rest) = (offset as usize, out);
        while !rest.is_empty() {
            let (row, skipped) = (at / row_bytes, at % row_bytes);
            let stored = row / rows * rows + stored_row(row % rows, rows);
            let (part, after) = rest.split_at_mut(rest.len().min(row_bytes - skipped));
            self.file.read_raw_at(&mapped.theirs, (stored * row_bytes + skipped) as u64, part)?;
            (at, rest) = (at + part.len(), after);
        }
        Ok(())
    }
}

/// Row in which a head of `rows` rows keeps what Hugging Face has in `row`.
fn stored_row(row: usize, rows: usize) -> usize {
    let half = rows / 2;
    2 * (row % half) + row / half
}
