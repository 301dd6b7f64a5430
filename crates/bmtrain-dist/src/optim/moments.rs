//! The state of one flat storage in the device's memory, and the directions of whole parameters.
//!
//! Called by [`DeviceOptimizer`](super::DeviceOptimizer).

use super::on_device::{DirectionElements, Rule, WholeDirection, WholeRule};
use super::state::{DueUpdate, FlatState, stretches_of};
use super::{KeptForm, KeptSpec, KeptTensor, MASTER, ReadKept, StateStretch};
use crate::error::Result;
use crate::param::{Flat, OwnedPart, Param};
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{AddScaled, Cast, Dest, Fill, GradNorm, NormOrder};
use bmtrain_core::{DType, Lane, Segment, Shape, Storage, Tensor};
use std::collections::HashMap;

/// State of one flat storage.
#[derive(Debug)]
pub(super) struct Moments {
    /// The tensors of [`Rule::sharded`], laid out like the storage.
    sharded: Vec<(KeptSpec, Storage)>,
    /// The squares of what each parameter moved by in the last step, i64 [parameters, limbs of an exact sum], if that
    /// is recorded.
    pub(super) moved: Option<Storage>,
    /// What is kept whole, by the number of the parameter: of those that this rank owns a part of.
    statistics: HashMap<usize, Vec<Storage>>,
}

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

    /// f32 copies of 16-bit parameters.
    pub(super) fn master(&self) -> Option<&Storage> {
        self.sharded.iter().find(|(spec, _)| spec.name == MASTER).map(|(_, master)| master)
    }

    /// What is kept whole for parameter `index`, zeros at first, if this rank owns a part of it.
    fn statistics_of(&mut self, rule: &impl Rule, (flat, index, shape): (&Flat, usize, &Shape)) -> Result<()> {
        if self.statistics.contains_key(&index) || flat.owned(index).of_param.is_empty() {
            return Ok(());
        }
        let zeros = |(_, shape): (&str, Vec<usize>)| {
            Storage::zeros(flat.device(), shape.iter().product(), DType::F32, Segment::Optimizer)
        };
        let all = rule.statistics(shape).into_iter().map(zeros).collect::<bmtrain_core::Result<_>>()?;
        self.statistics.insert(index, all);
        Ok(())
    }

    /// All tensors of a parameter, on this rank.
    pub(super) fn kept(&self, rule: &impl Rule, index: usize, shape: &Shape) -> Vec<(KeptSpec, KeptTensor)> {
        let sharded = self.sharded.iter().map(|(spec, storage)| (spec.clone(), KeptTensor::Device(storage.clone())));
        let own = self.statistics.get(&index);
        let whole = rule.whole(shape).into_iter().enumerate().map(|(number, spec)| {
            let storage = own.and_then(|own| own.get(number)).cloned();
            (spec, KeptTensor::Whole(storage))
        });
        sharded.chain(whole).collect()
    }

    /// Continue with the state of a parameter.
    pub(super) fn load(&mut self, rule: &impl Rule, at: (&Flat, usize, &Shape), read: &mut ReadKept<'_>) -> Result<()> {
        self.statistics_of(rule, at)?;
        let (flat, index, shape) = at;
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
        for (spec, storage) in rule.whole(shape).into_iter().zip(whole) {
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
                        stretches_of(&whole, range, (param, steps, spec.name), visit)?;
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
            for (number, (name, shape)) in rule.statistics(&param.spec().shape).into_iter().enumerate() {
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

/// What the ranks that own parts of a parameter keep for it, on all data-parallel ranks: of the owner of its first
/// element.
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

/// What the parameters of a storage move by.
pub(super) struct Directions {
    /// f32, laid out like the whole storage; transformed where this rank owns a part of the parameter.
    pub(super) whole: Storage,
    /// f32 `[1]`: 1, or NaN if the step is to change nothing.
    pub(super) one: Tensor,
    /// What the learning rate is multiplied by, for those parameters that have such a factor.
    pub(super) rates: HashMap<usize, Tensor>,
}

/// The directions of a storage's parameters. Data-parallel ranks that share the storage have to do the same.
pub(super) fn directions(
    (rule, settings): (&dyn WholeRule, &impl Rule),
    state: &mut FlatState<Moments>,
    due: &[DueUpdate],
    factor: &Tensor,
) -> Result<Directions> {
    let (device, flat) = (factor.device(), std::rc::Rc::clone(&state.flat));
    let one = one_of(factor)?;
    let direction = Storage::zeros(device, flat.state_len(), DType::F32, Segment::Workspace)?;
    let owned = || due.iter().map(|due| (due, flat.owned(due.index))).filter(|(_, part)| !part.of_param.is_empty());
    for (DueUpdate { grads, .. }, OwnedPart { in_state: range, .. }) in owned() {
        let states = state.moments.states().map(|(_, state)| state).collect();
        rule.direct(DirectionElements { states, grads, factor, range, direction: &direction })?;
    }
    let squares = if rule.measures_parameters() { Some(squares(&flat, &state.moments, due)?) } else { None };
    let (whole, mut rates) = (flat.gather_state(&direction)?, HashMap::new());
    for (DueUpdate { index, shape, .. }, _) in owned() {
        state.moments.statistics_of(settings, (&flat, *index, shape))?;
        let squares = squares.as_ref().map(|squares| squares.view(index * WORDS..(index + 1) * WORDS));
        let rate = rule.transform(WholeDirection {
            storage: &whole,
            range: flat.layout().spans()[*index].range(),
            shape: *shape,
            statistics: state.moments.statistics.get(index).into_iter().flatten().collect(),
            squares: squares.transpose()?,
            one: &one,
            step: state.steps[*index] + 1,
        })?;
        rates.extend(rate.map(|rate| (*index, rate)));
    }
    Ok(Directions { whole, one, rates })
}

/// f32 `[1]`: 1 where the factor of a step is finite, else NaN.
pub(super) fn one_of(factor: &Tensor) -> Result<Tensor> {
    let device = factor.device();
    let mut one = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Workspace)?;
    // 0 times what is not finite is not a number.
    device.launch(AddScaled { alpha: 0.0, a: factor.view()?, beta: 1.0, b: None, out: one.view_mut()? })?;
    Ok(one)
}

/// The sum of the squares of each parameter before the step, over all data-parallel ranks: of its f32 master where
/// there is one.
fn squares(flat: &Flat, moments: &Moments, due: &[DueUpdate]) -> Result<Storage> {
    let (device, len) = (flat.device(), flat.layout().spans().len() * WORDS);
    let words = Storage::zeros(device, len, DType::I64, Segment::Workspace)?;
    for index in due.iter().map(|due| due.index) {
        let part = flat.counted(index);
        if part.of_param.is_empty() {
            continue;
        }
        let x = match moments.master() {
            Some(master) => master.view(part.in_state)?,
            None => flat.values()?.view(part.in_values)?,
        };
        let out = Dest { view: words.view_mut(index * WORDS..(index + 1) * WORDS)?, add: true };
        device.launch(GradNorm { order: NormOrder::Two, xs: vec![x], out })?;
    }
    let ranks = &flat.sharding().ranks;
    if ranks.size() > 1 {
        let collective = Collective::AllReduce { data: words.view_mut(0..len)?, by: Reduction::Sum };
        ranks.launch(device.backend(), collective, Lane::Compute)?;
    }
    Ok(words)
}
