//! Weights that are not finite, found while they are read.
//!
//! Defines [`NotFinite`], and [`read`], by which `load` and the reader of GGUF files read values. A model with such a
//! value outputs NaN or never trains, and a later symptom, a NaN loss or skipped steps, does not show the cause.
//! Tensors that a model does not use, such as masks with minus infinity, are not read and not checked.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::formats::{safetensors::TensorSource, stored::tensor_place};
use crate::{Error, Result};
use model_center_base::file::printable;

/// Elements that are read and then checked while the processor has them in its cache.
const HOT: usize = 1 << 18;
/// The exponent of f32. NaN and the infinities have all its bits.
const EXPONENT: u32 = 0x7f80_0000;
/// Names that an error lists beside the first.
const LISTED: usize = 4;

/// A tensor with values that are NaN or infinite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFinite {
    /// The file, or the container of several.
    pub file: String,
    /// Its name there.
    pub tensor: String,
    /// Elements in all.
    pub elements: usize,
    /// Number of values that are not finite.
    pub count: usize,
    /// Index of the first on each axis.
    pub first: Vec<usize>,
    /// The value: `NaN`, `inf` or `-inf`.
    pub value: String,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotFinite { count, elements, first, value, .. } = self;
        match count {
            1 => write!(f, "1 of {elements} values is not finite: {value} at {first:?}"),
            _ => write!(f, "{count} of {elements} values are not finite, the first is {value} at {first:?}"),
        }
    }
}

impl NotFinite {
    /// The error for all that were found; `Ok` for none.
    pub fn refuse(found: &[NotFinite]) -> Result<()> {
        let Some((first, others)) = found.split_first() else { return Ok(()) };
        let mut reason = format!("the weights of the model are damaged: {first}");
        if !others.is_empty() {
            let names: Vec<&str> = others.iter().take(LISTED).map(|other| other.tensor.as_str()).collect();
            let dots = if others.len() > LISTED { ", ..." } else { "" };
            let further = match others.len() {
                1 => "1 further tensor has".to_owned(),
                count => format!("{count} further tensors have"),
            };
            reason += &format!("; {further} such values: {}{dots}", names.join(", "));
        }
        Err(Error::model(
            tensor_place(&first.file, &first.tensor),
            printable(&reason, 600),
            "get the file again from its source, or save the model from a checkpoint before its training diverged",
        ))
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckedTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: &'a [usize],
}

/// Read elements of a tensor from `first` on, and add the tensor to `found` if some are not finite.
pub(crate) fn read(
    source: &dyn TensorSource,
    wanted: CheckedTensor<'_>,
    first: usize,
    out: &mut [f32],
    found: &mut Vec<NotFinite>,
) -> Result<()> {
    let is_known = found.iter().any(|known| known.tensor == wanted.name);
    let is_whole = out.len() == wanted.elements();
    let mut is_finite = true;
    if source.reads_parts(wanted.name) {
        for (number, part) in out.chunks_mut(HOT).enumerate() {
            source.read_f32_at(wanted.name, first + number * HOT, part)?;
            is_finite &= all_finite(part);
        }
    } else {
        match is_whole {
            true => source.read_f32(wanted.name, out)?,
            false => source.read_f32_at(wanted.name, first, out)?,
        }
        is_finite = all_finite(out);
    }
    if is_finite || is_known {
        return Ok(());
    }
    // The same message on every rank, whichever part it reads.
    let mut seen = Seen::default();
    if is_whole {
        seen.add(out);
    } else {
        let step = if source.reads_parts(wanted.name) { HOT } else { wanted.elements() };
        let mut part = vec![0.0; step.min(wanted.elements())];
        for start in (0..wanted.elements()).step_by(step) {
            let part = &mut part[..step.min(wanted.elements() - start)];
            source.read_f32_at(wanted.name, start, part)?;
            seen.add(part);
        }
    }
    found.extend(seen.of(source, wanted));
    Ok(())
}

impl CheckedTensor<'_> {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Whether there is neither NaN nor an infinity, at the speed of memory.
pub(super) fn all_finite(values: &[f32]) -> bool {
    let has_all_bits = |value: &f32| u32::from(value.to_bits() & EXPONENT == EXPONENT);
    values.iter().fold(0, |any, value| any | has_all_bits(value)) == 0
}

#[derive(Debug, Default)]
struct Seen {
    passed: usize,
    count: usize,
    first: Option<(usize, f32)>,
}

impl Seen {
    fn add(&mut self, values: &[f32]) {
        for (at, value) in values.iter().enumerate().filter(|(_, value)| !value.is_finite()) {
            self.count += 1;
            self.first.get_or_insert((self.passed + at, *value));
        }
        self.passed += values.len();
    }

    fn of(self, source: &dyn TensorSource, wanted: CheckedTensor<'_>) -> Option<NotFinite> {
        let (mut rest, value) = self.first?;
        let mut first = vec![0; wanted.shape.len()];
        for (index, size) in first.iter_mut().zip(wanted.shape).rev() {
            (*index, rest) = (rest % size, rest / size);
        }
        Some(NotFinite {
            file: source.place_of(wanted.name),
            tensor: wanted.name.to_owned(),
            elements: wanted.elements(),
            count: self.count,
            first,
            value: value.to_string(),
        })
    }
}
