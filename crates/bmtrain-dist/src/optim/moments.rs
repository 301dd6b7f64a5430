//! The state of one flat storage in the device's memory.
//!
//! Called by [`DeviceOptimizer`](super::DeviceOptimizer).

use super::on_device::Rule;
use super::state::{DueUpdate, FlatState, stretches_of};
use super::{KeptForm, KeptSpec, KeptTensor, MASTER, ReadKept, StateStretch};
use crate::error::Result;
use crate::param::{Flat, FusedTensor, OwnedPart, Param, TensorRun};
use bmtrain_core::buffer::ViewMut;
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{Cast, Dest, Fill};
use bmtrain_core::{DType, Lane, Segment, Storage, Tensor};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// State of one flat storage.
#[derive(Debug)]
pub(super) struct Moments {
    /// The tensors of [`Rule::sharded`], laid out like the storage.
    sharded: Vec<(KeptSpec, Storage)>,
    /// The squares of what each parameter moved by in the last step, i64 [parameters, limbs of an exact sum], if that
    /// is recorded.
    pub(super) moved: Option<Storage>,
    /// Statistics that are kept whole, by the number of the parameter: of those that this rank owns a part of.
    pub(super) statistics: HashMap<usize, Vec<Storage>>,
}

/// A parameter's storage, its number there, and its tensors.
pub(super) type AtParam<'a> = (&'a Flat, usize, &'a [FusedTensor]);

impl Moments {
    pub(super) fn new(flat: &Flat, rule: &impl Rule) -> Result<Self> {
        flat.settle()?;
        let (values, len, count) = (flat.values()?, flat.state_len(), flat.layout().spans().len());
        let zeros = |len: usize, dtype: DType| Storage::zeros(values.device(), len, dtype, Segment::Optimizer);
        let moved = rule.records_delta().then(|| zeros(count * WORDS, DType::I64)).transpose()?;
        let mut sharded = Vec::new();
        for (spec, value) in rule.sharded(flat.dtype()) {
            let len = spec.form.range_of(&(0..len)).len();
            let tensor = zeros(len, spec.form.dtype())?;
            if value != 0.0 {
                values.device().launch(Fill { value, out: tensor.view_mut(0..len)? })?;
            }
            sharded.push((spec, tensor));
        }
        let moments = Moments { sharded, moved, statistics: HashMap::new() };
        if let Some(master) = moments.master() {
            for part in (0..count).map(|index| flat.owned(index)) {
                let out = Dest { view: master.view_mut(part.in_state)?, add: false };
                values.device().launch(Cast { x: values.view(part.in_values)?, out })?;
            }
        }
        Ok(moments)
    }

    /// The states of the rule, in the order of [`Rule::states`].
    pub(super) fn states(&self) -> impl Iterator<Item = &(KeptSpec, Storage)> {
        self.sharded.iter().filter(|(spec, _)| spec.name != MASTER)
    }

    /// Whether tensors of a parameter begin inside 8-bit blocks, with scales of their own.
    pub(super) fn has_part_scales(&self, index: usize) -> bool {
        self.has_blocks() && self.statistics.contains_key(&index)
    }

    fn has_blocks(&self) -> bool {
        self.states().any(|(spec, _)| spec.form == KeptForm::Blocks)
    }

    /// The states of a run of a parameter's elements, which are `range` of a storage: the scale of a block that a
    /// tensor begins in belongs to the tensor before, and these elements have one of [`super::part_scales`].
    pub(super) fn states_of(&self, index: usize, run: &TensorRun, range: &Range<usize>) -> Result<Vec<ViewMut<'_>>> {
        let mut scales = self.statistics.get(&index).into_iter().flatten().filter(|_| run.is_head());
        let mut views = Vec::new();
        for (spec, state) in self.states() {
            let scale = if spec.form == KeptForm::Blocks { scales.next() } else { None };
            views.push(match scale {
                Some(scale) => scale.view_mut(run.tensor.saturating_sub(1)..run.tensor)?,
                None => state.view_mut(spec.form.range_of(range))?,
            });
        }
        Ok(views)
    }

    /// f32 copies of 16-bit parameters.
    pub(super) fn master(&self) -> Option<&Storage> {
        self.sharded.iter().find(|(spec, _)| spec.name == MASTER).map(|(_, master)| master)
    }

    /// Statistics of parameter `index` that are kept whole, zeros at first, if this rank owns a part of it.
    pub(super) fn statistics_of(&mut self, rule: &impl Rule, (flat, index, tensors): AtParam<'_>) -> Result<()> {
        let statistics = rule.statistics(tensors);
        if statistics.is_empty() || self.statistics.contains_key(&index) || flat.owned(index).of_param.is_empty() {
            return Ok(());
        }
        let zeros = |(_, shape): (&str, Vec<usize>)| {
            Storage::zeros(flat.device(), shape.iter().product(), DType::F32, Segment::Optimizer)
        };
        let all = statistics.into_iter().map(zeros).collect::<bmtrain_core::Result<_>>()?;
        self.statistics.insert(index, all);
        Ok(())
    }

    /// All tensors of a parameter, on this rank.
    pub(super) fn kept(&self, rule: &impl Rule, index: usize, tensors: &[FusedTensor]) -> Vec<(KeptSpec, KeptTensor)> {
        let sharded = self.sharded.iter().map(|(spec, storage)| (spec.clone(), KeptTensor::Device(storage.clone())));
        let own = self.statistics.get(&index);
        let whole = rule.whole(tensors).into_iter().enumerate().map(|(number, spec)| {
            let storage = own.and_then(|own| own.get(number)).cloned();
            (spec, KeptTensor::Whole(storage))
        });
        sharded.chain(whole).collect()
    }

    /// Continue with the state of a parameter.
    pub(super) fn load(&mut self, rule: &impl Rule, at: AtParam<'_>, read: &mut ReadKept<'_>) -> Result<()> {
        self.statistics_of(rule, at)?;
        let (flat, index, tensors) = at;
        let OwnedPart { of_param, in_state, .. } = flat.owned(index);
        let backend = flat.device().backend();
        for (spec, storage) in &self.sharded {
            let values = read(spec, spec.form.range_of(&of_param))?;
            let view = storage.view_mut(spec.form.range_of(&in_state))?;
            match spec.form {
                KeptForm::Codes => {
                    let codes: Vec<u8> = values.into_iter().map(|code| code as u8).collect();
                    backend.upload(&codes, view, Lane::Compute)?;
                }
                _ => backend.upload(bytemuck::cast_slice(&values), view, Lane::Compute)?,
            }
        }
        let whole = self.statistics.get(&index).into_iter().flatten();
        for (spec, storage) in rule.whole(tensors).into_iter().zip(whole) {
            let values = read(&spec, 0..storage.len())?;
            backend.upload(bytemuck::cast_slice(&values), storage.view_mut(0..storage.len())?, Lane::Compute)?;
        }
        Ok(())
    }

    /// Show the state of parameters, as [`Optimizer::visit_stretches`](super::Optimizer::visit_stretches).
    pub(super) fn visit(
        &self,
        rule: &impl Rule,
        (state, params): (&FlatState<Moments>, &[(&Param, usize)]),
        visit: &mut dyn FnMut(StateStretch<'_>) -> Result<()>,
    ) -> Result<()> {
        let flat = &state.flat;
        for (spec, storage) in &self.sharded {
            // One tensor at a time is whole on the device, which has no room planned for more.
            let whole = match spec.form {
                KeptForm::Codes => flat.gather_state(&widened(storage)?)?,
                _ => flat.gather_state(storage)?,
            };
            for &(param, index) in params {
                let (range, steps) = (flat.layout().spans()[index].range(), state.steps[index]);
                match spec.form {
                    KeptForm::Elements | KeptForm::Codes => {
                        stretches_of(&whole, range, param, steps, spec.name, visit)?;
                    }
                    KeptForm::Blocks | KeptForm::Whole(_) => {
                        let range = spec.form.range_of(&range);
                        let values = whole.tensor(range.start, [range.len()])?.to_vec::<f32>()?;
                        visit(at_once(param, steps, spec.name, &values))?;
                    }
                }
            }
        }
        for &(param, index) in params {
            for (number, (name, shape)) in rule.statistics(&param.spec().tensors()).into_iter().enumerate() {
                let own = self.statistics.get(&index).and_then(|own| own.get(number));
                let values = on_all_ranks(flat, index, own, shape.iter().product())?.to_vec::<f32>()?;
                visit(at_once(param, state.steps[index], name, &values))?;
            }
        }
        Ok(())
    }
}

fn at_once<'v>(param: &'v Param, steps: u64, tensor: &'static str, values: &'v [f32]) -> StateStretch<'v> {
    StateStretch { param: param.name(), steps, tensor, len: values.len(), start: 0, values }
}

/// Codes as f32.
fn widened(codes: &Storage) -> Result<Storage> {
    let (device, all) = (codes.device(), 0..codes.len());
    let wide = Storage::empty(device, codes.len(), DType::F32, Segment::Workspace)?;
    let out = Dest { view: wide.view_mut(all.clone())?, add: false };
    device.launch(Cast { x: codes.view(all)?, out })?;
    Ok(wide)
}

/// Statistics of a parameter on all data-parallel ranks: from the owner of its first element.
fn on_all_ranks(flat: &Flat, index: usize, own: Option<&Storage>, len: usize) -> Result<Tensor> {
    let (device, part) = (flat.device(), flat.owned(index).of_param);
    let all = Storage::zeros(device, len, DType::F32, Segment::Workspace)?;
    if let Some(own) = own.filter(|_| part.start == 0 && !part.is_empty()) {
        device.backend().copy(own.view(0..len)?, all.view_mut(0..len)?, Lane::Compute)?;
    }
    let ranks = &flat.sharding().ranks;
    if flat.sharding().shards_state() && ranks.size() > 1 {
        let collective = Collective::AllReduce { data: all.view_mut(0..len)?, by: Reduction::Sum };
        ranks.launch(device.backend(), collective, Lane::Compute)?;
    }
    Ok(all.tensor(0, [len])?)
}

/// Bring the scales of blocks that tensors begin in from the ranks that updated them to all ranks that own parts of the
/// parameter, which keep them whole. Data-parallel ranks have to do the same.
pub(super) fn share_part_scales(state: &FlatState<Moments>, due: &[DueUpdate]) -> Result<()> {
    let FlatState { flat, moments, .. } = state;
    let ranks = &flat.sharding().ranks;
    if !moments.has_blocks() || !flat.sharding().shards_state() || ranks.size() == 1 {
        return Ok(());
    }
    let is_cut = |due: &&DueUpdate| Rc::ptr_eq(&due.flat, flat) && due.tensors.iter().any(FusedTensor::begins_in_block);
    let (due, of_each) =
        (due.iter().filter(is_cut), moments.states().filter(|(spec, _)| spec.form == KeptForm::Blocks));
    let (due, of_each): (Vec<&DueUpdate>, usize) = (due.collect(), of_each.count());
    let len = due.iter().map(|due| of_each * (due.tensors.len() - 1)).sum();
    if len == 0 {
        return Ok(());
    }
    let (device, backend) = (flat.device(), flat.device().backend());
    let all = Storage::zeros(device, len, DType::F32, Segment::Workspace)?;
    // Places of the scales of each kind and parameter, with this rank's, if it owns a part of the parameter.
    let (mut places, mut start) = (Vec::new(), 0);
    for DueUpdate { index, tensors, .. } in &due {
        for number in 0..of_each {
            let own = moments.statistics.get(index).and_then(|own| own.get(number));
            places.extend(own.map(|own| (own, start..start + own.len(), *index, tensors)));
            start += tensors.len() - 1;
        }
    }
    for (own, place, index, tensors) in &places {
        let owned = flat.owned(*index).of_param;
        for tensor in tensors.iter().filter(|tensor| tensor.number > 0 && owned.contains(&tensor.elements.start)) {
            let at = tensor.number - 1;
            let to = all.view_mut(place.start + at..place.start + at + 1)?;
            backend.copy(own.view(at..at + 1)?, to, Lane::Compute)?;
        }
    }
    let collective = Collective::AllReduce { data: all.view_mut(0..len)?, by: Reduction::Sum };
    ranks.launch(backend, collective, Lane::Compute)?;
    for (own, place, ..) in places {
        backend.copy(all.view(place)?, own.view_mut(0..own.len())?, Lane::Compute)?;
    }
    Ok(())
}
