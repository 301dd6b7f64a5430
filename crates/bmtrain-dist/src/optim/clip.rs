//! Clipping by the true norm of gradients, over all ranks that share or split them: of all optimizers of a manager
//! together, and apart of those with a clip of their own. Called by [`OptimManager`](super::OptimManager).

use super::ParamGroup;
use crate::error::{Error, Result};
use crate::param::Flat;
use bmtrain_core::buffer::View;
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{AddScaled, ClipFactor, Dest, GradNorm, NormOrder};
use bmtrain_core::{DType, Device, Lane, Segment, Storage, Tensor};
use std::ops::Range;
use std::rc::Rc;

/// Upper bound of the gradients' norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// Norm that is clipped.
    pub order: NormOrder,
    /// The bound; infinity only measures.
    pub max_norm: f32,
}

impl Default for Clip {
    fn default() -> Self {
        Clip { order: NormOrder::Two, max_norm: f32::INFINITY }
    }
}

impl Clip {
    fn check(&self) -> Result<()> {
        if self.max_norm.is_nan() || self.max_norm <= 0.0 {
            return Err(Error::setting("clip", format!("norm bound {} must be above 0", self.max_norm)));
        }
        Ok(())
    }
}

/// Gradients that are clipped together.
#[derive(Debug)]
struct ClipGroup {
    clip: Clip,
    accumulated: Tensor,
    norm: Tensor,
    factor: Tensor,
}

impl ClipGroup {
    fn new(device: &Device, clip: Clip) -> Result<Self> {
        clip.check()?;
        let scalar = || Tensor::full_in(device, [1], DType::F32, 0.0, Segment::Optimizer);
        let accumulated = Tensor::full_in(device, [WORDS], DType::I64, 0.0, Segment::Optimizer)?;
        Ok(ClipGroup { clip, accumulated, norm: scalar()?, factor: scalar()? })
    }

    /// Norm and factor of these ranges of reduced gradients and of what the other ranks have.
    fn measure(
        &mut self,
        device: &Device,
        ranges: &[(Storage, Range<usize>)],
        (of_ranks, scale): (&Flat, f32),
    ) -> Result<()> {
        let mut by_type: Vec<(DType, Vec<View<'_>>)> = Vec::new();
        for (grads, range) in ranges {
            let view = grads.view(range.clone())?;
            match by_type.iter_mut().find(|(dtype, _)| *dtype == view.dtype()) {
                Some((_, xs)) => xs.push(view),
                None => by_type.push((view.dtype(), vec![view])),
            }
        }
        if by_type.is_empty() {
            // All that this rank has is counted by another one.
            by_type.push((DType::F32, Vec::new()));
        }
        for (number, (_, xs)) in by_type.into_iter().enumerate() {
            let out = Dest { view: self.accumulated.view_mut()?, add: number > 0 };
            device.launch(GradNorm { order: self.clip.order, xs, out })?;
        }
        let by = match self.clip.order {
            NormOrder::Two => Reduction::Sum,
            NormOrder::Infinity => Reduction::Max,
        };
        let groups = [&of_ranks.sharding().ranks, of_ranks.tensor_ranks(), of_ranks.stage_ranks()];
        for ranks in groups.into_iter().filter(|ranks| ranks.size() > 1) {
            let collective = Collective::AllReduce { data: self.accumulated.view_mut()?, by };
            ranks.launch(device.backend(), collective, Lane::Compute)?;
        }
        device.launch(ClipFactor {
            order: self.clip.order,
            max_norm: self.clip.max_norm,
            scale,
            accumulated: self.accumulated.view()?,
            norm: self.norm.view_mut()?,
            factor: self.factor.view_mut()?,
        })?;
        Ok(())
    }
}

/// The clips of a manager.
#[derive(Debug)]
pub(super) struct Clipping {
    together: ClipGroup,
    /// By the number of the optimizer.
    apart: Vec<(usize, ClipGroup)>,
}

impl Clipping {
    pub(super) fn new(device: &Device, clip: Clip) -> Result<Self> {
        Ok(Clipping { together: ClipGroup::new(device, clip)?, apart: Vec::new() })
    }

    /// Clip the gradients of an optimizer by a norm of their own.
    pub(super) fn add(&mut self, device: &Device, optimizer: usize, clip: Clip) -> Result<()> {
        if self.apart.iter().any(|(known, _)| *known == optimizer) {
            return Err(Error::setting("clip", format!("optimizer {optimizer} has a clip of its own already")));
        }
        self.apart.push((optimizer, ClipGroup::new(device, clip)?));
        Ok(())
    }

    /// Factor of the gradients of an optimizer.
    pub(super) fn factor_of(&self, optimizer: usize) -> &Tensor {
        let apart = self.apart.iter().find(|(known, _)| *known == optimizer);
        &apart.map_or(&self.together, |(_, group)| group).factor
    }

    /// The norms: of what is clipped together, then those apart.
    pub(super) fn norms(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.together).chain(self.apart.iter().map(|(_, group)| group)).map(|group| &group.norm)
    }

    /// The optimizers whose gradients are clipped apart.
    pub(super) fn apart(&self) -> impl Iterator<Item = usize> {
        self.apart.iter().map(|(optimizer, _)| *optimizer)
    }

    /// The true norms and the factors of all gradients, on the device. `optimizers` are the groups of each, `scale`
    /// what the loss was multiplied by.
    pub(super) fn measure(
        &mut self,
        device: &Device,
        flats: &[Rc<Flat>],
        optimizers: &[&[ParamGroup]],
        scale: f32,
    ) -> Result<()> {
        let mut has_grad = false;
        // In the order of `norms`.
        let mut ranges = vec![Vec::new(); 1 + self.apart.len()];
        for (number, groups) in optimizers.iter().enumerate() {
            let at = self.apart().position(|known| known == number).map_or(0, |at| at + 1);
            let params = groups.iter().flat_map(|group| &group.params);
            for param in params.filter(|param| param.is_trainable()) {
                let (flat, index) = param.place()?;
                if let Some(grads) = flat.reduced().filter(|_| flat.has_grad(index)) {
                    has_grad = true;
                    ranges[at].extend(param.counted()?.into_iter().map(|part| (grads.clone(), part.in_state)));
                }
            }
        }
        // A pipeline stage may be frozen as a whole, and others wait for it.
        let Some(flat) = flats.first().filter(|flat| has_grad || flat.stage_ranks().size() > 1) else {
            return Err(Error::setting("step", "no parameter has a gradient: call backward first"));
        };
        let all = std::iter::once(&mut self.together).chain(self.apart.iter_mut().map(|(_, group)| group));
        for (group, ranges) in all.zip(ranges) {
            group.measure(device, &ranges, (flat, scale))?;
        }
        self.agree(device)
    }

    /// A norm that is not finite keeps all optimizers from a step: its factor is not a number, and neither is 0 times
    /// it. Everything else stays as it is to the last bit.
    fn agree(&mut self, device: &Device) -> Result<()> {
        if self.apart.is_empty() {
            return Ok(());
        }
        let mut sum = Tensor::full_in(device, [1], DType::F32, 0.0, Segment::Workspace)?;
        let add = |a: &Tensor, sum: &mut Tensor| -> Result<()> {
            device.launch(AddScaled { alpha: 0.0, a: a.view()?, beta: 1.0, b: None, out: sum.view_mut()? })?;
            Ok(())
        };
        add(&self.together.factor, &mut sum)?;
        for (_, group) in &self.apart {
            add(&group.factor, &mut sum)?;
        }
        add(&sum, &mut self.together.factor)?;
        for (_, group) in &mut self.apart {
            add(&sum, &mut group.factor)?;
        }
        Ok(())
    }
}
