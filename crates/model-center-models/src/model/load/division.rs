//! Whether tensor-parallel ranks and pipeline stages divide a model, before memory is taken for it.
//!
//! Defines [`Division`], made of the parameters of a model that was only checked
//! ([`OpenMode::Check`](super::super::OpenMode::Check)). Called by the programs, whose one error names all that does
//! not divide.

use bmtrain_dist::Parameters;
use bmtrain_dist::param::{Split, SplitPart};
use bmtrain_dist::pipeline::ModelPart;
use std::collections::BTreeSet;

/// Parts of a model that ranks have to divide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Division {
    parts: Vec<DividedPart>,
    /// Blocks of all stacks.
    pub blocks: usize,
    /// A parameter that is used both before the first block and in the head.
    pub tied: Option<String>,
}

/// Units along a split axis, such as heads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DividedPart {
    what: String,
    units: usize,
    part: SplitPart,
    /// Whether several ranks may have the same unit.
    is_shared: bool,
}

impl DividedPart {
    fn fits(&self, ranks: usize) -> bool {
        self.units.is_multiple_of(ranks) || (self.is_shared && self.part.fits(ranks))
    }
}

impl Division {
    /// Division of the parameters of a model, which may be a sketch of it.
    pub fn of(parameters: &Parameters) -> Self {
        let (mut parts, mut blocks): (Vec<DividedPart>, _) = (Vec::new(), BTreeSet::new());
        for param in parameters {
            blocks.extend(block_of(param.name()));
            // A bias is split as its weight is, and the columns of a row-parallel weight as the rows before it.
            let Split::Axis { axis: 0, parts: split } = &param.spec().split else { continue };
            if param.name().ends_with(".bias") {
                continue;
            }
            for (number, part) in split.iter().enumerate() {
                let units = part.size / part.unit.max(1);
                let (what, is_shared) = describe(param.name(), number);
                let part = DividedPart { what, units, part: *part, is_shared };
                if !parts.iter().any(|known| (&known.what, known.units) == (&part.what, part.units)) {
                    parts.push(part);
                }
            }
        }
        let tied = parameters.declared().iter().find(|param| param.part() == ModelPart::Tied);
        Division { parts, blocks: blocks.len(), tied: tied.map(|param| param.name().to_owned()) }
    }

    /// Parts that this number of tensor-parallel ranks does not divide, such as `6 attention heads`; empty where it
    /// divides everything. (A vocabulary is padded.)
    pub fn undivided(&self, ranks: usize) -> Vec<String> {
        let parts = self.parts.iter().filter(|part| !part.fits(ranks));
        parts.map(|part| format!("{} {}", part.units, part.what)).collect()
    }
}

/// Name of the units of a part of a weight, and whether ranks may have the same one.
fn describe(name: &str, part: usize) -> (String, bool) {
    let layer = name.rsplit('.').nth(1).unwrap_or(name);
    match (layer, part) {
        ("project_qkv" | "project_q", 0) => ("attention heads".to_owned(), false),
        ("project_qkv" | "project_kv", _) => ("kv heads".to_owned(), true),
        ("w_in", _) => ("feed-forward columns".to_owned(), true),
        _ => (format!("units of {name}"), true),
    }
}

/// The block that a parameter is in: its name up to the number of the block.
fn block_of(name: &str) -> Option<String> {
    let (before, rest) = name.split_once("layers.")?;
    let number = rest.split('.').next()?;
    number.parse::<usize>().ok().map(|number| format!("{before}{number}"))
}
