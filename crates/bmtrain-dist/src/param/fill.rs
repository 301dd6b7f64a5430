//! Initial values of a parameter: from its initializer, or from a loader, which gives those that this rank stores.

use super::{Init, InitElements, InitFunction, Param, ReadPart, ReadRuns, StorageSlot};
use crate::error::{Error, Result};
use bmtrain_core::kernel::{Fill, FillRandom};
use bmtrain_core::limits::make_room;
use bmtrain_core::philox::Key;
use bmtrain_core::{DType, Float, Lane, Storage};
use half::{bf16, f16};
use std::ops::Range;

/// Values that are read or rounded at a time on their way to a storage: 1 MiB of f32.
const CHUNK: usize = 1 << 18;

impl Param {
    /// Initialize the values of this rank's part.
    pub fn initialize(&self, seed: u64) -> Result<()> {
        let home = self.home()?;
        home.flat.write_values(|values| self.initialize_in(values, home, seed))?;
        self.inner.initialized.set(true);
        Ok(())
    }

    fn initialize_in(&self, values: &Storage, home: &StorageSlot, seed: u64) -> Result<()> {
        let device = values.device();
        match self.inner.spec.init {
            // Padding keeps its zeros.
            Init::Constant(value) if self.inner.local.is_padded() => {
                for (_, to) in self.runs(home) {
                    device.launch(Fill { value, out: values.view_mut(to)? })?;
                }
            }
            Init::Constant(value) => {
                device.launch(Fill { value, out: values.view_mut(home.flat.at_rest(home.index).1)? })?
            }
            Init::Random(distribution) => {
                let key = Key::new(seed, self.name());
                for (global, to) in self.runs(home) {
                    let out = values.view_mut(to)?;
                    device.launch(FillRandom { distribution, key, offset: global as u64, out })?;
                }
            }
            Init::Function(InitFunction(fill)) => {
                let (name, shape, mut filled) = (self.name(), self.inner.spec.shape, Vec::new());
                for (first, to) in self.chunks(home) {
                    filled.clear();
                    filled.resize(to.len(), 0.0);
                    fill(InitElements { seed, name, shape, first }, &mut filled);
                    upload_as(values, &filled, to)?;
                }
            }
        }
        Ok(())
    }

    /// Set this rank's part of the values from the full parameter, rounded to nearest.
    pub fn load(&self, whole: &[f32]) -> Result<()> {
        let home = self.home()?;
        let expected = self.inner.spec.shape.elements();
        if whole.len() != expected {
            let reason = format!("expected {expected} values for shape {}, got {}", self.inner.spec.shape, whole.len());
            return Err(Error::parameter(self.name(), reason));
        }
        home.flat.write_values(|storage| {
            for (global, to) in self.chunks(home) {
                let Some(values) = whole.get(global..global + to.len()) else { continue };
                upload_as(storage, values, to)?;
            }
            Ok::<_, Error>(())
        })?;
        self.inner.initialized.set(true);
        Ok(())
    }

    /// As [`Param::load`], but reads only the values that this rank stores: `read` fills the values from an element of
    /// the full parameter on. Memory: a chunk of 1 MiB, and half as much for a 16-bit dtype.
    pub fn load_part<E: From<Error>>(&self, read: ReadPart<'_, E>) -> Result<(), E> {
        let home = self.home()?;
        home.flat.write_values(|storage| {
            let mut values = Vec::new();
            for (global, to) in self.chunks(home) {
                values.resize(to.len(), 0.0);
                read(global, &mut values)?;
                upload_as(storage, &values, to)?;
            }
            Ok::<_, E>(())
        })?;
        self.inner.initialized.set(true);
        Ok(())
    }

    /// Set the values that this rank stores at rest from the values of its tensor-parallel part, in order.
    pub(crate) fn load_local(&self, part: &[f32]) -> Result<()> {
        let home = self.home()?;
        let (owned, to) = home.flat.at_rest(home.index);
        let values = part.get(owned).ok_or_else(|| {
            let reason = format!("expected {} values, got {}", self.local_shape().elements(), part.len());
            Error::parameter(self.name(), reason)
        })?;
        home.flat.write_values(|storage| upload_as(storage, values, to))?;
        self.inner.initialized.set(true);
        Ok(())
    }

    /// Set the values that this rank stores at rest from bytes in the dtype of the parameter. `read` gets the runs of
    /// the full parameter, as [`Param::runs_of`] returns them, and zeros to fill; what no run fills is padding.
    pub(crate) fn load_bits(&self, read: ReadRuns<'_, u8>) -> Result<()> {
        let home = self.home()?;
        let (owned, to) = home.flat.at_rest(home.index);
        let bytes = self.filled(to.len() * home.flat.dtype().size(), &owned, read)?;
        home.flat.write_values(|storage| upload(storage, &bytes, to))?;
        self.inner.initialized.set(true);
        Ok(())
    }

    /// As [`Param::load_bits`], from f32 values, rounded to nearest.
    pub(crate) fn load_runs(&self, read: ReadRuns<'_, f32>) -> Result<()> {
        let home = self.home()?;
        let (owned, to) = home.flat.at_rest(home.index);
        let values = self.filled(to.len(), &owned, read)?;
        home.flat.write_values(|storage| upload_as(storage, &values, to))?;
        self.inner.initialized.set(true);
        Ok(())
    }

    /// Values that `read` fills of the elements `owned` of this rank's tensor-parallel part.
    fn filled<T: Clone + Default>(&self, len: usize, owned: &Range<usize>, read: ReadRuns<'_, T>) -> Result<Vec<T>> {
        let mut values = Vec::new();
        make_room(&mut values, len, format_args!("parameter {}", self.name()))?;
        values.resize(len, T::default());
        read(&self.runs_of(owned), &mut values)?;
        Ok(values)
    }

    /// Runs of the full parameter in the order of this rank's values: where each begins in the full parameter, and its
    /// range in the storage.
    fn runs(&self, home: &StorageSlot) -> Vec<(usize, Range<usize>)> {
        let (owned, at_rest) = home.flat.at_rest(home.index);
        let place = |(global, at, len): (usize, usize, usize)| (global, at_rest.start + at..at_rest.start + at + len);
        self.runs_of(&owned).into_iter().map(place).collect()
    }

    /// [`Param::runs`], cut into chunks.
    fn chunks(&self, home: &StorageSlot) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.runs(home).into_iter().flat_map(|(global, to)| {
            let chunk = move |start| (global + start - to.start, start..to.end.min(start + CHUNK));
            to.clone().step_by(CHUNK).map(chunk)
        })
    }
}

/// Values in the dtype of a storage, rounded to nearest.
fn upload_as(storage: &Storage, values: &[f32], to: Range<usize>) -> Result<()> {
    match storage.dtype() {
        DType::F16 => upload(storage, &narrow::<f16>(values), to),
        DType::BF16 => upload(storage, &narrow::<bf16>(values), to),
        _ => upload(storage, values, to),
    }
}

fn upload<T: bytemuck::NoUninit>(storage: &Storage, values: &[T], to: Range<usize>) -> Result<()> {
    let view = storage.view_mut(to)?;
    Ok(storage.device().backend().upload(bytemuck::cast_slice(values), view, Lane::Compute)?)
}

fn narrow<T: Float>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&value| T::from_f32(value)).collect()
}
