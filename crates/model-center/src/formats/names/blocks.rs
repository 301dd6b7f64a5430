//! Matrices that stay in the quantised blocks that a file stores them in.
//!
//! Defines [`BlockPlan`], which parameters of a plan these are, and [`LoadPlan::load_blocks`], which reads one. Called
//! where a model is opened.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use bmtrain_core::quantised::{BlockFormat, dequantise};
use bmtrain_dist::param::Param;

use super::finite::{self, CheckedTensor};
use super::plan::Step;
use super::{LoadPlan, NotFinite, TensorPart};
use crate::file::printable;
use crate::formats::safetensors::TensorSource;
use crate::{Error, Result};

/// Matrices that a note lists by name.
const LISTED: usize = 3;

/// Which matrices of a model can be held as they are stored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BlockPlan {
    /// Those in blocks of one format, by our names.
    pub formats: HashMap<String, BlockFormat>,
    /// Those in blocks that have to be dequantised, with the reason.
    pub dequantised: Vec<(String, String)>,
    /// How many are stored as plain floats.
    pub plain: usize,
}

impl BlockPlan {
    fn new(plan: &LoadPlan, source: &dyn TensorSource) -> Self {
        let mut blocks = BlockPlan::default();
        for step in &plan.steps {
            if step.pieces.iter().any(|piece| piece.shape.len() != 2) {
                continue;
            }
            let formats: Vec<_> = step.pieces.iter().map(|piece| source.block_format(&piece.name)).collect();
            match formats.first().copied().flatten() {
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
}

/// One sentence with the counts.
impl fmt::Display for BlockPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockPlan { formats, dequantised, plain } = self;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for format in formats.values() {
            *counts.entry(format.name()).or_default() += 1;
        }
        let counts: Vec<String> = counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
        let all = formats.len() + dequantised.len() + plain;
        write!(f, "{} of {all} matrices are held as stored ({})", formats.len(), counts.join(", "))?;
        if !dequantised.is_empty() {
            let one = |(name, reason): &(String, String)| format!("{} ({reason})", printable(name, 80));
            let names: Vec<String> = dequantised.iter().take(LISTED).map(one).collect();
            let dots = if dequantised.len() > LISTED { ", ..." } else { "" };
            write!(f, "; dequantised are {}: {}{dots}", dequantised.len(), names.join(", "))?;
        }
        match plain {
            0 => Ok(()),
            plain => write!(f, "; stored as plain floats are {plain}"),
        }
    }
}

impl LoadPlan {
    /// Which matrices can be held in the blocks that `source` stores them in: those whose parts all have one format.
    pub fn blocks(&self, source: &dyn TensorSource) -> BlockPlan {
        BlockPlan::new(self, source)
    }

    /// Read a parameter that is held in blocks. Tensors with values that are not finite are added to `found`.
    ///
    /// # Errors
    /// A parameter that is not in the plan or not held in blocks; a file that cannot be read.
    pub fn load_blocks(&self, source: &dyn TensorSource, param: &Param, found: &mut Vec<NotFinite>) -> Result<()> {
        let missing =
            || Error::model(format!("parameter {}", param.name()), "its blocks are in no file", "dequantise it");
        let step = self.places.get(param.name()).and_then(|at| self.steps.get(*at)).ok_or_else(missing)?;
        let format = param.block_format().ok_or_else(missing)?;
        let mut values = Vec::new();
        param.load_blocks(&mut |first, out: &mut [u8]| {
            step.read_blocks(source, (first, format), out, &mut values, found)
        })
    }
}

impl Step {
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
            _ => Err(Error::model(
                format!("parameter {}", self.ours),
                format!("rows from {at} on are in no tensor"),
                "compare the model's configuration with the weights",
            )),
        }
    }
}
