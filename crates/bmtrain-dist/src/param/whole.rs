//! Full parameters and full optimizer state on the host, from the parts of data-parallel and tensor-parallel ranks and
//! from pipeline stages, one tensor at a time: for files and fingerprints. Defines [`WholeReader`].

use super::{Flat, Param, Parameters, Split, widen};
use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::param::STRETCH;
use crate::stages::StageGroup;
use bmtrain_core::comm::tensors;
use bmtrain_core::limits::make_room;
use bmtrain_core::{DType, Device, Segment, Storage, Tensor};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Reads full parameters one after the other with one storage gathered at a time: a block is gathered once for all its
/// parameters. Collective: every rank reads or passes the same parameters in the same order.
///
/// Over tensor-parallel ranks the device gathers a few megabytes of a parameter at a time, and the host of the rank
/// that reads holds the full one. Over pipeline stages the first of all ranks reads; a stage that holds a parameter
/// sends it as f32, a few megabytes at a time.
///
/// The default reads the parameters of this rank's stage alone, [`WholeReader::of`] all parameters of the model.
#[derive(Debug, Default)]
pub struct WholeReader {
    held: Option<Rc<Flat>>,
    stages: Option<Stages>,
}

/// The stages between which parameters are sent.
#[derive(Debug)]
struct Stages {
    group: StageGroup,
    /// Among the data-parallel and the tensor-parallel ranks of this stage, the one whose values are sent.
    is_first: bool,
    device: Device,
}

impl WholeReader {
    /// A reader of all parameters of a model ([`Parameters::declared`]), whichever pipeline stages hold them.
    ///
    /// # Errors
    /// One of several stages that holds no parameter.
    pub fn of(parameters: &Parameters) -> Result<Self> {
        let group = parameters.stages();
        if group.stages() == 1 {
            return Ok(WholeReader::default());
        }
        let Some(flat) = parameters.flats().first() else {
            let reason = format!("stage {} of {} holds no parameter", group.ranks().rank(), group.stages());
            return Err(Error::setting("pipeline", reason));
        };
        let is_first = flat.sharding().ranks.rank() == 0 && flat.tensor_ranks().rank() == 0;
        let stages = Stages { group: group.clone(), is_first, device: flat.device().clone() };
        Ok(WholeReader { held: None, stages: Some(stages) })
    }

    /// The full values, widened. Waits for the device.
    ///
    /// # Errors
    /// Over pipeline stages, another rank than the first one of all.
    pub fn read(&mut self, param: &Param) -> Result<Vec<f32>> {
        let Some(stages) = &self.stages else { return self.read_own(param) };
        let holder = stages.begin(param)?;
        if !stages.is_first || stages.own() != 0 {
            let reason = "over pipeline stages the first of all ranks reads parameters; the others pass them";
            return Err(Error::parameter(param.name(), reason));
        }
        if holder == 0 { self.read_own(param) } else { stages.receive(param, holder) }
    }

    /// Take part in another rank's [`WholeReader::read`] of a parameter.
    pub fn pass(&mut self, param: &Param) -> Result<()> {
        let Some(stages) = &self.stages else { return self.pass_own(param) };
        let (holder, own, is_first) = (stages.begin(param)?, stages.own(), stages.is_first);
        match (holder == own, is_first) {
            (true, true) if own > 0 => {
                let values = self.read_own(param)?;
                self.stages.as_ref().map_or(Ok(()), |stages| stages.send(&values))
            }
            (true, _) => self.pass_own(param),
            (false, true) if own == 0 => stages.receive(param, holder).map(drop),
            (false, _) => Ok(()),
        }
    }

    fn read_own(&mut self, param: &Param) -> Result<Vec<f32>> {
        self.hold(param)?;
        let value = param.value()?;
        if !param.is_divided()? {
            return widen(&value);
        }
        gathered(param, &mut slices_of(&value)?)
    }

    fn pass_own(&mut self, param: &Param) -> Result<()> {
        self.hold(param)?;
        if param.is_divided()? { gather_parts(param, &mut slices_of(&param.value()?)?, None) } else { Ok(()) }
    }

    fn hold(&mut self, param: &Param) -> Result<()> {
        let flat = param.place()?.0;
        if !self.held.as_ref().is_some_and(|held| Rc::ptr_eq(held, flat)) {
            self.release();
            flat.gather()?;
            if !flat.sharding().shards_values() {
                // Without a gather to wait for, the others would run far ahead of a rank that writes to a slow disk.
                ControlGroup::new(Arc::clone(&flat.sharding().ranks), flat.device()).gather(&[0.0])?;
            }
            self.held = Some(Rc::clone(flat));
        }
        Ok(())
    }

    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            held.release();
        }
    }
}

impl Drop for WholeReader {
    fn drop(&mut self) {
        self.release();
    }
}

impl Stages {
    fn own(&self) -> usize {
        self.group.ranks().rank()
    }

    /// Wait for the other stages: none runs ahead of a rank that writes to a slow disk, and none waits for longer than
    /// a parameter takes. Returns the stage that holds the parameter first.
    fn begin(&self, param: &Param) -> Result<usize> {
        ControlGroup::new(Arc::clone(self.group.ranks()), &self.device).gather(&[0.0])?;
        Ok(self.group.stage_of(param.part()))
    }

    /// Send values to the first stage.
    fn send(&self, values: &[f32]) -> Result<()> {
        values.chunks(STRETCH).try_for_each(|part| {
            let part = Tensor::from_slice_in(&self.device, [part.len()], part, Segment::Workspace)?;
            Ok(tensors::send(&**self.group.ranks(), &part, 0)?)
        })
    }

    /// The full values that another stage sends.
    fn receive(&self, param: &Param, from: usize) -> Result<Vec<f32>> {
        let (elements, mut whole) = (param.spec().shape.elements(), Vec::new());
        make_room(&mut whole, elements, format_args!("the full tensor {}", param.name()))?;
        for start in (0..elements).step_by(STRETCH) {
            let length = STRETCH.min(elements - start);
            let part = tensors::recv(&**self.group.ranks(), &self.device, [length], DType::F32, from)?;
            whole.extend(part.to_vec::<f32>()?);
        }
        Ok(whole)
    }
}

impl Param {
    /// Whether tensor-parallel ranks have different parts of it, or it is padded. The same on all of them.
    pub(crate) fn is_divided(&self) -> Result<bool> {
        let is_replicated = matches!(self.spec().split, Split::Replicated | Split::ReplicatedTerms);
        let is_whole = self.local_shape() == self.spec().shape;
        Ok(!is_replicated && (self.place()?.0.tensor_ranks().size() > 1 || !is_whole))
    }
}

/// Gives elements of this rank's tensor-parallel part of a tensor, on the device.
type ReadElements<'a> = &'a mut dyn FnMut(Range<usize>) -> Result<Tensor>;

fn slices_of(value: &Tensor) -> Result<impl FnMut(Range<usize>) -> Result<Tensor> + use<>> {
    let line = value.reshape([value.elements()])?;
    Ok(move |range| Ok(line.slice(range)?))
}

/// All elements of a tensor that is divided as `param` is, widened, from the parts of the tensor-parallel ranks.
fn gathered(param: &Param, part: ReadElements<'_>) -> Result<Vec<f32>> {
    let (elements, mut whole) = (param.spec().shape.elements(), Vec::new());
    make_room(&mut whole, elements, format_args!("the full tensor {}", param.name()))?;
    whole.resize(elements, 0.0);
    gather_parts(param, part, Some(&mut whole))?;
    Ok(whole)
}

/// Gather a tensor that is divided as `param` is from the parts of the tensor-parallel ranks, a few megabytes at a
/// time: `part` gives elements of this rank's. `whole` gets all elements, widened; without it this rank only takes
/// part. Collective over the tensor-parallel ranks. Waits for the device where there is a `whole`.
fn gather_parts(param: &Param, part: ReadElements<'_>, mut whole: Option<&mut [f32]>) -> Result<()> {
    let (spec, ranks) = (param.spec(), param.place()?.0.tensor_ranks());
    let (count, len) = (ranks.size(), param.local_shape().elements());
    let mut runs = Vec::new();
    if whole.is_some() {
        for rank in 0..count {
            runs.push(spec.split.local(&spec.name, spec.shape, count, rank)?.runs(spec.shape));
        }
    }
    let each = (STRETCH / count).max(1);
    for start in (0..len).step_by(each) {
        let range = start..len.min(start + each);
        let all = tensors::all_gather(&**ranks, &part(range.clone())?)?; // [ranks x elements]
        let Some(whole) = whole.as_deref_mut() else { continue };
        let values = widen(&all)?;
        for (values, runs) in values.chunks(range.len()).zip(&runs) {
            // Runs are in the order of the part.
            let first = runs.partition_point(|(_, at, len)| at + len <= range.start);
            for &(global, at, len) in runs.iter().skip(first).take_while(|(_, at, _)| *at < range.end) {
                let (from, until) = (at.max(range.start), (at + len).min(range.end));
                let to = global + from - at;
                if let Some(to) = whole.get_mut(to..to + until - from) {
                    to.copy_from_slice(&values[from - range.start..until - range.start]);
                }
            }
        }
    }
    Ok(())
}

/// Show all elements of a f32 storage that is laid out as `param` is in its own, in order, in stretches: first element
/// and values. `at` is the range of this rank's part. Collective over the tensor-parallel ranks, if they have different
/// parts; then the host holds the full tensor. Waits for the device.
pub(crate) fn visit_whole(
    param: &Param,
    storage: &Storage,
    at: Range<usize>,
    visit: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
) -> Result<()> {
    let line = storage.tensor(0, [storage.len()])?;
    if !param.is_divided()? {
        // An empty tensor is visited once too.
        for start in (0..at.len().max(1)).step_by(STRETCH) {
            let from = at.start + start;
            visit(start, &widen(&line.slice(from..at.end.min(from + STRETCH))?)?)?;
        }
        return Ok(());
    }
    let whole = gathered(param, &mut |range| Ok(line.slice(at.start + range.start..at.start + range.end)?))?;
    for (number, values) in whole.chunks(STRETCH).enumerate() {
        visit(number * STRETCH, values)?;
    }
    Ok(())
}
