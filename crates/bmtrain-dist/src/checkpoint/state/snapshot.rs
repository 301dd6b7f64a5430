//! This rank's part of a checkpoint, copied to the host while the next step computes.

use super::runs::{SavedRuns, saved_runs};
use super::{kept_shape, kind_of};
use crate::checkpoint::disk::{Kind, PieceSpec, TensorPiece};
use crate::error::{Error, Result};
use crate::optim::{HostTensor, KeptForm, KeptTensor, OptimManager};
use crate::param::{AtRest, Flat, Parameters};
use bmtrain_core::limits::make_room;
use bmtrain_core::{Device, Lane};
use std::sync::mpsc::{Receiver, channel};

/// Copies to the host in progress. They overlap on [`Lane::Copy`] with the forward and backward passes of the next
/// step; [`OptimManager::step`], the first to change what is being copied, waits for them on the device.
#[derive(Debug)]
pub struct Snapshot {
    device: Device,
    specs: Vec<PieceSpec>,
    copied: Receiver<(usize, Vec<u8>)>,
}

impl Snapshot {
    /// Begin to copy this rank's part of the parameters that [are saved](Parameters::is_saved) and of the state of
    /// `optim`, if it is given: a pipeline stage copies what it holds. The buffers of an earlier snapshot are reused.
    pub fn begin(
        device: &Device,
        params: &Parameters,
        optim: Option<&OptimManager>,
        buffers: Vec<TensorPiece>,
    ) -> Result<Self> {
        let mut sources = Vec::new();
        for param in params.iter().filter(|param| params.is_saved(param)) {
            let flat = param.place()?.0;
            let values = (Kind::Parameter, flat.dtype(), KeptForm::Elements, values_of(flat));
            let mut tensors = vec![values];
            for (optimizer, _) in optim.into_iter().flat_map(OptimManager::parts) {
                let kept = optimizer.kept(param)?.into_iter().flat_map(|kept| kept.tensors);
                tensors.extend(kept.map(|(spec, tensor)| (kind_of(spec.name), spec.form.dtype(), spec.form, tensor)));
            }
            for part in param.counted()? {
                let runs = saved_runs(param, &part.of_param);
                for (kind, dtype, form, tensor) in &tensors {
                    let whole = PieceSpec::whole(param.name(), kind.clone(), *dtype, &kept_shape(param, form));
                    let at = if *kind == Kind::Parameter { &part.in_values } else { &part.in_state };
                    match form {
                        KeptForm::Elements | KeptForm::Codes => {
                            for SavedRuns { start, at: offset, length, runs, stride } in runs.iter().copied() {
                                let spec = whole.strided(start as u64, length as u64, runs as u64, stride as u64);
                                let start = at.start + offset;
                                sources.push((spec, tensor.clone(), start..start + length * runs));
                            }
                        }
                        KeptForm::Blocks if !part.of_param.is_empty() => {
                            let blocks = form.range_of(&part.of_param);
                            let spec = whole.part(blocks.start as u64, blocks.len() as u64);
                            sources.push((spec, tensor.clone(), form.range_of(at)));
                        }
                        // The rank with the first element saves what all have.
                        KeptForm::Whole(_) if part.of_param.start == 0 && !part.of_param.is_empty() => {
                            let range = 0..whole.length as usize;
                            sources.push((whole, tensor.clone(), range));
                        }
                        KeptForm::Blocks | KeptForm::Whole(_) => {}
                    }
                }
            }
        }
        let backend = device.backend();
        backend.wait(Lane::Copy, backend.mark(Lane::Compute)?)?;
        let (sender, copied) = channel();
        let mut buffers = buffers.into_iter().map(|piece| piece.bytes);
        let mut specs = Vec::new();
        for (number, (spec, tensor, range)) in sources.into_iter().enumerate() {
            let mut buffer = buffers.next().unwrap_or_default();
            let bytes = range.len() * spec.dtype.size();
            buffer.clear();
            make_room(&mut buffer, bytes, "a copy of the state to save, on the host")?;
            let sender = sender.clone();
            let (view, host) = match &tensor {
                KeptTensor::Device(storage) | KeptTensor::Whole(Some(storage)) => {
                    (Some(storage.view_on(range, Lane::Copy)?), None)
                }
                KeptTensor::Whole(None) => {
                    let reason = format!("this rank has no {} of {}", spec.kind, spec.name);
                    return Err(Error::setting("snapshot", reason));
                }
                KeptTensor::Host(tensor) => (None, Some((tensor.clone(), range))),
            };
            let work = move |bytes: &[u8], _: &mut [u8]| {
                match host {
                    Some((tensor, range)) => tensor.append_to(&mut buffer, range)?,
                    None => buffer.extend_from_slice(bytes),
                }
                // The receiver is gone if the snapshot was given up.
                let _ = sender.send((number, buffer));
                Ok(())
            };
            backend.on_host(view, None, Box::new(work), Lane::Copy)?;
            specs.push(spec);
        }
        Ok(Snapshot { device: device.clone(), specs, copied })
    }

    /// The complete pieces. Waits for the copies.
    pub fn finish(self) -> Result<Vec<TensorPiece>> {
        self.device.backend().sync(Lane::Copy)?;
        let mut copies: Vec<(usize, Vec<u8>)> = self.copied.try_iter().collect();
        if copies.len() != self.specs.len() {
            let reason = format!("{} of {} copies came back from the device", copies.len(), self.specs.len());
            return Err(Error::setting("snapshot", reason));
        }
        copies.sort_unstable_by_key(|(number, _)| *number);
        Ok(self.specs.into_iter().zip(copies).map(|(spec, (_, bytes))| TensorPiece { spec, bytes }).collect())
    }
}

/// The values of a storage at rest.
fn values_of(flat: &Flat) -> KeptTensor {
    match flat.values_at_rest() {
        AtRest::Device(values) => KeptTensor::Device(values.clone()),
        AtRest::Host(values) => KeptTensor::Host(HostTensor::of_values(values.shared())),
    }
}
