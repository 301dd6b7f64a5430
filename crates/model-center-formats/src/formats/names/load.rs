//! Carry out a plan: read parameter after parameter, one in memory at a time.

use bmtrain_dist::param::ReadPart;

use super::finite::{self, CheckedTensor};
use super::plan::Step;
use super::{LoadPlan, NotFinite, TensorPart};
use crate::formats::safetensors::TensorSource;
use crate::{Error, Result};

/// Bytes compared at a time when a file holds a tied tensor twice.
const CHUNK: usize = 1 << 20;

impl LoadPlan {
    /// Read every planned parameter and hand it to `sink` with our name and all its values in our layout, row-major; a
    /// model whose parameters are shared among ranks is loaded by [`LoadPlan::load_parts`].
    ///
    /// Parameters of [`LoadPlan::fresh`] are not handed over. Memory: the largest parameter, and once more its largest
    /// part if that is transposed or interleaved.
    ///
    /// # Errors
    /// [`Error::Model`] for a tied tensor held twice with different values, and, after all are handed over, for values
    /// that are not finite.
    pub fn load(&self, source: &dyn TensorSource, mut sink: impl FnMut(&str, &[f32]) -> Result<()>) -> Result<()> {
        self.check_twins(source)?;
        let (mut values, mut theirs, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for step in &self.steps {
            step.read(source, &mut values, &mut theirs, &mut found)?;
            sink(&step.ours, &values)?;
        }
        NotFinite::refuse(&found)
    }

    /// As [`LoadPlan::load`] for those who need a part of each parameter: `sink` gets a reader, which fills what it is
    /// given with the values from an element of the whole on.
    ///
    /// For tensors whose rows are in our order, only the requested part is read from the file. A parameter with a
    /// transposed or interleaved part, or of a source that does not read parts, is read whole, once. Memory: such a
    /// parameter, nothing for others.
    pub fn load_parts(
        &self,
        source: &dyn TensorSource,
        sink: impl FnMut(&str, ReadPart<'_, Error>) -> Result<()>,
    ) -> Result<()> {
        let mut found = Vec::new();
        self.load_noting(source, &mut found, sink)?;
        NotFinite::refuse(&found)
    }

    /// As [`LoadPlan::load_parts`], with the tensors that are not finite added to `found` instead of an error, so that
    /// ranks can report them together. A rank checks what it reads.
    pub fn load_noting(
        &self,
        source: &dyn TensorSource,
        found: &mut Vec<NotFinite>,
        mut sink: impl FnMut(&str, ReadPart<'_, Error>) -> Result<()>,
    ) -> Result<()> {
        self.check_twins(source)?;
        let (mut values, mut theirs): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
        for step in &self.steps {
            let mut is_read = false;
            sink(&step.ours, &mut |start, out| {
                if step.pieces.iter().all(|piece| !piece.is_rearranged() && source.reads_parts(&piece.name)) {
                    return step.read_part(source, start, out, found);
                }
                if !is_read {
                    step.read(source, &mut values, &mut theirs, found)?;
                    is_read = true;
                }
                out.copy_from_slice(values.get(start..start + out.len()).ok_or_else(|| step.beyond(start))?);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether what the source holds twice is equal, bit for bit.
    pub fn check_twins(&self, source: &dyn TensorSource) -> Result<()> {
        let untied = self.twins.iter().filter(|twin| !source.are_tied(&twin.name, &twin.alias));
        untied.into_iter().try_for_each(|twin| require_equal(source, &twin.name, &twin.alias, twin.bytes))
    }

    /// Read the parameter that we call `ours` alone, for who wants them in an order of its own. Values that are not
    /// finite are read as they are; their tensors are returned.
    pub fn read(&self, source: &dyn TensorSource, ours: &str, values: &mut Vec<f32>) -> Result<Vec<NotFinite>> {
        let missing = || Error::model(format!("parameter {ours}"), "its values are in no file", "give it some first");
        let step = self.places.get(ours).and_then(|at| self.steps.get(*at)).ok_or_else(missing)?;
        let mut found = Vec::new();
        step.read(source, values, &mut Vec::new(), &mut found)?;
        Ok(found)
    }
}

impl Step {
    /// All values in our layout; `theirs` is room for one part in theirs.
    fn read(
        &self,
        source: &dyn TensorSource,
        values: &mut Vec<f32>,
        theirs: &mut Vec<f32>,
        found: &mut Vec<NotFinite>,
    ) -> Result<()> {
        values.resize(self.elements, 0.0);
        for piece in &self.pieces {
            let part = &mut values[piece.elements()];
            if piece.is_rearranged() {
                theirs.resize(part.len(), 0.0);
                finite::read(source, wanted(piece), 0, theirs, found)?;
                piece.arrange(theirs, part);
            } else {
                finite::read(source, wanted(piece), 0, part, found)?;
            }
        }
        Ok(())
    }

    /// Values from `start` on, of a parameter whose parts are all stored in our order.
    fn read_part(
        &self,
        source: &dyn TensorSource,
        start: usize,
        out: &mut [f32],
        found: &mut Vec<NotFinite>,
    ) -> Result<()> {
        if start.checked_add(out.len()).is_none_or(|end| end > self.elements) {
            return Err(self.beyond(start));
        }
        let (mut at, mut rest) = (start, out);
        for piece in &self.pieces {
            let of_piece = piece.elements();
            if !of_piece.contains(&at) {
                continue;
            }
            let (part, after) = rest.split_at_mut(rest.len().min(of_piece.end - at));
            finite::read(source, wanted(piece), at - of_piece.start, part, found)?;
            (at, rest) = (at + part.len(), after);
        }
        Ok(())
    }

    fn beyond(&self, start: usize) -> Error {
        let reason = format!("values from {start} on are asked for beyond its {}", self.elements);
        Error::model(format!("parameter {}", self.ours), reason, "ask for elements of the whole parameter")
    }
}

fn wanted(piece: &TensorPart) -> CheckedTensor<'_> {
    CheckedTensor { name: &piece.name, shape: &piece.shape }
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
                "set tie_word_embeddings to false in config.json if the model has an output projection of its own, or \
                 fetch the model again",
            ));
        }
        offset += length as u64;
    }
    Ok(())
}
