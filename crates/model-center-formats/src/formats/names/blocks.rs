//! Matrices that stay in the quantised blocks that a file stores them in, or are quantised while they are read.
//!
//! Defines [`BlockPlan`], which parameters of a plan these are, and [`LoadPlan::load_blocks`], which reads one. Called
//! where a model is opened.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use bmtrain_core::quantised::{BlockFormat, Nf4, dequantise};
use bmtrain_dist::param::Param;

use super::finite::{self, CheckedTensor};
use super::plan::Step;
use super::{LoadPlan, NotFinite, TensorPart};
use crate::formats::safetensors::TensorSource;
use crate::{Error, Result};
use model_center_base::file::printable;

/// Matrices that a note lists by name.
const LISTED: usize = 3;

/// Matrices of a model that are held in quantised blocks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BlockPlan {
    /// Those in blocks of one format, by our names.
    pub formats: HashMap<String, BlockFormat>,
    /// Those in blocks that have to be dequantised, or that cannot be quantised, with the reason.
    pub dequantised: Vec<(String, String)>,
    /// Number of other matrices.
    pub plain: usize,
    /// Whether they are quantised when they are read.
    pub is_quantised: bool,
}

impl BlockPlan {
    /// The matrices that are stored in blocks, of `layers` or of the whole model.
    fn stored(plan: &LoadPlan, source: &dyn TensorSource, layers: Option<&HashSet<String>>) -> Self {
        let mut blocks = BlockPlan::default();
        for step in plan.matrices() {
            let formats: Vec<_> = step.pieces.iter().map(|piece| source.block_format(&piece.name)).collect();
            match formats.first().copied().flatten() {
                Some(first) if layers.is_some_and(|layers| !layers.contains(&step.ours)) => {
                    blocks.dequantised.push((step.ours.clone(), format!("{first}, and no linear layer of a block")));
                }
                Some(first) if step.pieces.iter().any(TensorPart::is_rearranged) => {
                    let reason = format!("{first} in another order of elements");
                    blocks.dequantised.push((step.ours.clone(), reason));
                }
                Some(first) if formats.iter().all(|format| *format == Some(first)) => {
                    blocks.formats.insert(step.ours.clone(), first);
                }
                _ if formats.iter().any(Option::is_some) => {
                    let name = |format: &Option<BlockFormat>| format.map_or("plain floats", BlockFormat::name);
                    let names: Vec<&str> = formats.iter().map(name).collect();
                    let reason = format!("parts in {}", names.join(", "));
                    blocks.dequantised.push((step.ours.clone(), reason));
                }
                _ => blocks.plain += 1,
            }
        }
        blocks
    }

    /// The matrices of `layers` whose rows are whole blocks of NF4.
    fn nf4(plan: &LoadPlan, layers: &HashSet<String>) -> Self {
        let mut blocks = BlockPlan { is_quantised: true, ..BlockPlan::default() };
        let format = BlockFormat::NF4;
        for step in plan.matrices() {
            let columns = step.pieces.first().map_or(0, TensorPart::columns);
            if !layers.contains(&step.ours) {
                blocks.plain += 1;
            } else if format.row_bytes(columns).is_some_and(|bytes| bytes > 0) {
                blocks.formats.insert(step.ours.clone(), format);
            } else {
                let reason = format!("rows of {columns} values, not whole blocks of {}", format.elements());
                blocks.dequantised.push((step.ours.clone(), reason));
            }
        }
        blocks
    }
}

/// One sentence with the counts.
impl fmt::Display for BlockPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockPlan { formats, dequantised, plain, is_quantised } = self;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for format in formats.values() {
            *counts.entry(format.name()).or_default() += 1;
        }
        let counts: Vec<String> = counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
        let all = formats.len() + dequantised.len() + plain;
        let held = if *is_quantised { "quantised" } else { "held as stored" };
        write!(f, "{} of {all} matrices are {held} ({})", formats.len(), counts.join(", "))?;
        if !dequantised.is_empty() {
            let one = |(name, reason): &(String, String)| format!("{} ({reason})", printable(name, 80));
            let names: Vec<String> = dequantised.iter().take(LISTED).map(one).collect();
            let dots = if dequantised.len() > LISTED { ", ..." } else { "" };
            let others = if *is_quantised { "kept in numbers" } else { "dequantised" };
            write!(f, "; {others} are {}: {}{dots}", dequantised.len(), names.join(", "))?;
        }
        match plain {
            0 => Ok(()),
            plain if *is_quantised => write!(f, "; {plain} are no linear layers of a block"),
            plain => write!(f, "; stored as plain floats are {plain}"),
        }
    }
}

impl LoadPlan {
    /// Matrices that can be held in the blocks that `source` stores them in: those whose parts all have one format, of
    /// `layers` where these are given.
    pub fn blocks(&self, source: &dyn TensorSource, layers: Option<&HashSet<String>>) -> BlockPlan {
        BlockPlan::stored(self, source, layers)
    }

    /// Matrices of `layers`, our names of their weights, that can be quantised to NF4.
    pub fn quantised(&self, layers: &HashSet<String>) -> BlockPlan {
        BlockPlan::nf4(self, layers)
    }

    fn matrices(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.pieces.iter().all(|piece| piece.shape.len() == 2))
    }

    /// Read a parameter that is held in blocks, or quantise it to NF4 if these are its blocks: each of the file's
    /// tensors by itself, in the order of its rows, as `[outputs, inputs]`. Tensors with values that are not finite are
    /// added to `found`. Memory: a row, or the largest of the tensors, which is quantised as a whole.
    ///
    /// # Errors
    /// A parameter that is not in the plan or not held in blocks; a file that cannot be read.
    pub fn load_blocks(&self, source: &dyn TensorSource, param: &Param, found: &mut Vec<NotFinite>) -> Result<()> {
        let missing =
            || Error::model(format!("parameter {}", param.name()), "its blocks are in no file", "dequantise it");
        let step = self.places.get(param.name()).and_then(|at| self.steps.get(*at)).ok_or_else(missing)?;
        let format = param.block_format().ok_or_else(missing)?;
        if format == BlockFormat::NF4 {
            let mut held = Quantised::default();
            return param.load_blocks(&mut |first, out: &mut [u8]| step.quantise(source, first, out, &mut held, found));
        }
        let mut values = Vec::new();
        param.load_blocks(&mut |first, out: &mut [u8]| {
            step.read_blocks(source, (first, format), out, &mut values, found)
        })
    }
}

/// The blocks of one tensor, while its rows are asked for.
#[derive(Default)]
struct Quantised {
    /// Its number among the parts of the parameter.
    part: Option<usize>,
    bytes: Vec<u8>,
}

impl TensorPart {
    /// The rows of ours in NF4.
    fn quantised(&self, source: &dyn TensorSource, found: &mut Vec<NotFinite>) -> Result<Vec<u8>> {
        let mut values = vec![0.0; self.elements().len()];
        finite::read(source, CheckedTensor { name: &self.name, shape: &self.shape }, 0, &mut values, found)?;
        if self.transposed {
            let mut ours = vec![0.0; values.len()];
            self.arrange(&values, &mut ours);
            values = ours;
        }
        let bytes = Nf4::quantise(&values).blocks();
        let Some(order) = &self.interleaved else { return Ok(bytes) };
        // Which blocks share a scale follows from the file's order of rows.
        let row = bytes.len() / self.rows.len().max(1);
        let (mut ours, mut rest) = (vec![0; bytes.len()], bytes.as_slice());
        for run in order.runs() {
            let (rows, after) = rest.split_at(run.len() * row);
            ours[run.start * row..run.end * row].copy_from_slice(rows);
            rest = after;
        }
        Ok(ours)
    }
}

impl Step {
    /// The blocks of rows from `first` on, each part quantised when the first of its rows is asked for.
    fn quantise(
        &self,
        source: &dyn TensorSource,
        first: usize,
        out: &mut [u8],
        held: &mut Quantised,
        found: &mut Vec<NotFinite>,
    ) -> Result<()> {
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let number = self.pieces.iter().position(|piece| piece.rows.contains(&at));
            let number = number.ok_or_else(|| self.in_no_tensor(at))?;
            let piece = &self.pieces[number];
            if held.part != Some(number) {
                // The blocks of two tensors are never in memory together.
                held.bytes = Vec::new();
                *held = Quantised { bytes: piece.quantised(source, found)?, part: Some(number) };
            }
            let start = (at - piece.rows.start) * (held.bytes.len() / piece.rows.len());
            let count = rest.len().min(held.bytes.len() - start);
            let (part, after) = rest.split_at_mut(count);
            part.copy_from_slice(&held.bytes[start..start + count]);
            at = piece.rows.end;
            rest = after;
        }
        Ok(())
    }

    fn in_no_tensor(&self, row: usize) -> Error {
        let (place, reason) = (format!("parameter {}", self.ours), format!("rows from {row} on are in no tensor"));
        Error::model(place, reason, "compare the model's configuration with the weights")
    }

    /// The blocks of rows from `first` on, each part from its own tensor; `values` is room for their values, which are
    /// checked.
    fn read_blocks(
        &self,
        source: &dyn TensorSource,
        (first, format): (usize, BlockFormat),
        out: &mut [u8],
        values: &mut Vec<f32>,
        found: &mut Vec<NotFinite>,
    ) -> Result<()> {
        let (mut at, mut rest) = (first, out);
        for piece in self.pieces.iter().filter(|piece| !piece.rows.is_empty()) {
            let [_, columns] = piece.matrix();
            let Some(row) = format.row_bytes(columns).filter(|row| *row > 0) else { continue };
            if !piece.rows.contains(&at) {
                continue;
            }
            let count = (piece.rows.end - at).min(rest.len() / row);
            let (part, after) = rest.split_at_mut(count * row);
            source.read_blocks_at(&piece.name, at - piece.rows.start, part)?;
            values.resize(count * columns, 0.0);
            dequantise(format, part, values);
            if !finite::all_finite(values) && !found.iter().any(|known| known.tensor == piece.name) {
                // Once for a tensor: `read` counts all of it, in parts.
                let wanted = CheckedTensor { name: &piece.name, shape: &piece.shape };
                finite::read(source, wanted, (at - piece.rows.start) * columns, values, found)?;
            }
            (at, rest) = (at + count, after);
            if rest.is_empty() {
                break;
            }
        }
        match rest {
            [] => Ok(()),
            _ => Err(self.in_no_tensor(at)),
        }
    }
}
