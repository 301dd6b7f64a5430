//! Parameters: their declaration, initialization and loading, and the storages of their values and gradients.

pub mod adapters;
mod blocks;
pub mod builder;
mod builder_options;
mod census;
mod counted;
mod deferred;
mod fill;
mod finite;
pub mod flat;
pub mod freeze;
pub mod fusion;
mod parameters;
mod precision;
mod sink;
pub mod spec;
pub mod split;
mod whole;

pub use adapters::{
    Adapters, BottleneckOptions, LinearLayer, LowRankOptions, PrefixOptions, PromptOptions, ScaledSide, ScalingOptions,
    TensorSplit,
};
use blocks::BlockValues;
pub use blocks::ReadRows;
pub use builder::Builder;
pub use builder_options::{BuilderOptions, InitMode, TensorGroup};
pub(crate) use census::MAX_GATHERED_BLOCKS;
pub(crate) use counted::outside;
pub(crate) use flat::AtRest;
use flat::GradientUse;
pub use flat::{Flat, OwnedPart};
pub(crate) use freeze::matches_whole;
pub use freeze::{FreezeMask, NamePatterns};
pub use fusion::{FusedTensor, Fusion, FusionTable};
pub(crate) use fusion::{TensorRun, runs_of_tensors};
pub use parameters::Parameters;
pub use precision::F32Parameters;
use precision::{Rounded, rounded};
use sink::TiedSink;
pub use spec::{Init, InitElements, InitFunction, ParamSpec};
pub use split::{LocalPart, SharedRange, Split, SplitPart, divided_block};
pub use whole::WholeReader;
pub(crate) use whole::visit_whole;

use crate::error::{Error, Result};
use crate::stages::ModelPart;
use bmtrain_core::autograd::{GradSink, Recall};
use bmtrain_core::{Ctx, DType, Float, Shape, Tensor, Var};
use half::{bf16, f16};
use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::rc::Rc;

/// Elements that optimizers copy to the host at a time (4 MiB).
pub(crate) const STRETCH: usize = 1 << 20;

/// A parameter. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Param {
    inner: Rc<Inner>,
    /// Sum of gradients to which a use adds.
    gradient_use: GradientUse,
}

#[derive(Debug)]
struct Inner {
    spec: ParamSpec,
    local: LocalPart,
    part: ModelPart,
    /// The pipeline stage that holds it, if it is another one, and this rank's stage.
    elsewhere: Option<(usize, usize)>,
    home: OnceCell<StorageSlot>,
    /// In place of a home: a matrix in quantised blocks.
    blocks: Option<BlockValues>,
    trainable: Rc<Cell<bool>>,
    /// Counts uses of the model's trained parameters, by which a block list knows whether a block used any.
    asked: Rc<Cell<u64>>,
    initialized: Cell<bool>,
}

#[derive(Debug)]
struct StorageSlot {
    flat: Rc<Flat>,
    index: usize,
}

/// Fills the slice with the values of a parameter from the given element of the full parameter on.
pub type ReadPart<'a, E = Error> = &'a mut dyn FnMut(usize, &mut [f32]) -> Result<(), E>;

/// Fills values of a parameter, or their bytes, from these runs of the full one: the first element of each, its place,
/// its length.
pub(crate) type ReadRuns<'a, T> = &'a mut dyn FnMut(&[(usize, usize, usize)], &mut [T]) -> Result<()>;

impl Param {
    fn new(
        spec: ParamSpec,
        local: LocalPart,
        part: ModelPart,
        elsewhere: Option<(usize, usize)>,
        blocks: Option<BlockValues>,
        asked: &Rc<Cell<u64>>,
    ) -> Self {
        let (trainable, asked) = (Rc::new(Cell::new(spec.trainable)), Rc::clone(asked));
        let (home, initialized) = (OnceCell::new(), Cell::new(false));
        let inner = Inner { spec, local, part, elsewhere, home, blocks, trainable, asked, initialized };
        Param { inner: Rc::new(inner), gradient_use: GradientUse::Own }
    }

    /// This parameter for its second use, in the head of a model with tied embeddings. Gradients of this use are summed
    /// apart and added to the gradients of the first use once, before they are reduced over the ranks: so the sum is
    /// the same where two pipeline stages hold the parameter.
    pub fn tied(&self) -> Param {
        Param { inner: Rc::clone(&self.inner), gradient_use: GradientUse::Tied }
    }

    /// Whether the other one is a handle of the same parameter.
    pub fn is_same(&self, other: &Param) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Part of the model in which it is used.
    pub fn part(&self) -> ModelPart {
        self.inner.part
    }

    /// Its declaration.
    pub fn spec(&self) -> &ParamSpec {
        &self.inner.spec
    }

    /// Full name.
    pub fn name(&self) -> &str {
        &self.inner.spec.name
    }

    /// Shape of this tensor-parallel rank's part.
    pub fn local_shape(&self) -> Shape {
        self.inner.local.shape
    }

    /// This tensor-parallel rank's part of the full parameter.
    pub fn local_part(&self) -> &LocalPart {
        &self.inner.local
    }

    /// The elements of this rank's part that neighbouring tensor-parallel ranks have too, each with a term of their
    /// gradient; the terms are summed before the optimizer step.
    pub fn shared_ranges(&self) -> Vec<SharedRange> {
        let ranks = self.inner.home.get().map_or(1, |home| home.flat.tensor_ranks().size());
        self.inner.spec.split.shared(&self.inner.local, ranks)
    }

    /// Whether it is trained now.
    pub fn is_trainable(&self) -> bool {
        self.inner.trainable.get()
    }

    /// Freeze or unfreeze. No memory moves: a frozen parameter gets no gradient and the optimizer skips it. A parameter
    /// in quantised blocks stays frozen.
    pub fn set_trainable(&self, trainable: bool) {
        self.inner.trainable.set(trainable && self.inner.blocks.is_none());
    }

    /// Whether the values were initialized or loaded.
    pub fn is_initialized(&self) -> bool {
        self.inner.initialized.get()
    }

    fn home(&self) -> Result<&StorageSlot> {
        self.inner.home()
    }

    /// Whether this rank's pipeline stage holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.inner.elsewhere.is_none()
    }

    /// Its storage and its number there.
    pub fn place(&self) -> Result<(&Rc<Flat>, usize)> {
        self.home().map(|home| (&home.flat, home.index))
    }

    /// Whether it is a matrix in quantised blocks, which are neither trained nor written.
    pub fn is_in_blocks(&self) -> bool {
        self.inner.blocks.is_some()
    }

    /// The gathered value, a tensor that sees later updates. A parameter outside of blocks is gathered on demand, which
    /// is collective. [`Error::NotGathered`] where the block of the parameter is not gathered. Of a parameter in
    /// quantised blocks it is the tensor of the blocks, see [`bmtrain_core::DType::Blocks`].
    pub fn value(&self) -> Result<Tensor> {
        self.inner.value()
    }

    /// The value for a computation: with a gradient if the parameter is trained and ops are recorded.
    pub fn var(&self, cx: &Ctx) -> Result<Var> {
        self.used(self.value()?, self.inner.clone(), cx)
    }

    /// As [`Param::var`], rounded to another dtype, for products with values of that dtype. The gradient is not rounded
    /// so: it goes to the parameter as it is computed. A parameter in quantised blocks stays in them.
    pub fn var_as(&self, dtype: DType, cx: &Ctx) -> Result<Var> {
        if self.inner.blocks.is_some() || self.inner.spec.dtype == dtype {
            return self.var(cx);
        }
        let origin = Rounded { param: self.inner.clone(), dtype };
        self.used(rounded(self.value()?, dtype)?, Rc::new(origin), cx)
    }

    /// A use of these values, which `origin` finds again.
    fn used(&self, value: Tensor, origin: Rc<dyn Recall>, cx: &Ctx) -> Result<Var> {
        if self.is_trainable() {
            self.inner.asked.set(self.inner.asked.get() + 1);
        }
        let var = if self.is_trainable() && cx.is_recording() {
            let sink: Rc<dyn GradSink> = match self.gradient_use {
                GradientUse::Own => self.inner.clone(),
                GradientUse::Tied => Rc::new(TiedSink(Rc::clone(&self.inner))),
            };
            cx.leaf(value, sink)
        } else {
            Var::constant(value)
        };
        // Ops must not keep gathered values alive until the backward pass.
        let is_sharded = cx.is_recording() && self.inner.blocks.is_none() && self.home()?.flat.is_gathered_to_use();
        Ok(if is_sharded { var.recalled_from(origin) } else { var })
    }

    /// The gradient of this rank's micro-batch, if there is one: a tensor that sees later contributions, or the present
    /// sum of the two uses of a tied parameter.
    pub fn grad(&self) -> Result<Option<Tensor>> {
        if self.inner.blocks.is_some() {
            return Ok(None);
        }
        let home = self.home()?;
        home.flat.grad_tensor(home.index, self.local_shape())
    }

    /// The elements `part` of this rank's tensor-parallel part as runs of the full parameter: where each begins in the
    /// full parameter, where in `part`, and its length.
    pub fn runs_of(&self, part: &Range<usize>) -> Vec<(usize, usize, usize)> {
        let inside = |(global, local, len): (usize, usize, usize)| {
            let (start, end) = (local.max(part.start), (local + len).min(part.end));
            (start < end).then(|| (global + start - local, start - part.start, end - start))
        };
        self.inner.local.runs(self.inner.spec.shape).into_iter().filter_map(inside).collect()
    }

    /// The full values (of this rank's tensor-parallel part), widened. Collective. Waits for the device.
    pub fn read(&self) -> Result<Vec<f32>> {
        let flat = &self.home()?.flat;
        flat.gather()?;
        let values = self.value().and_then(|value| widen(&value));
        flat.release();
        values
    }

    /// The values of [`Param::read`] in chunks of a few megabytes, so that no second copy of a large parameter is made
    /// on the host. Collective. Waits for the device.
    pub fn read_stretches(&self, visit: &mut dyn FnMut(&[f32])) -> Result<()> {
        let flat = &self.home()?.flat;
        flat.gather()?;
        let visited = self.value().and_then(|value| {
            let len = value.elements();
            let value = value.reshape([len])?;
            (0..len).step_by(STRETCH).try_for_each(|start| {
                visit(&widen(&value.slice(start..len.min(start + STRETCH))?)?);
                Ok(())
            })
        });
        flat.release();
        visited
    }
}

impl Inner {
    fn home(&self) -> Result<&StorageSlot> {
        if let Some(blocks) = &self.blocks {
            let reason = format!(
                "is held in {} blocks, which are neither trained nor written: open the model with dequantised weights",
                blocks.format()
            );
            return Err(Error::parameter(self.spec.name.clone(), reason));
        }
        if let Some((holder, stage)) = self.elsewhere {
            let reason = format!(
                "is on pipeline stage {holder}, and stage {stage} uses it: declare in which part of the model it is \
                 used (Builder::part)"
            );
            return Err(Error::parameter(self.spec.name.clone(), reason));
        }
        self.home.get().ok_or_else(|| Error::NotGathered { name: self.spec.name.clone() })
    }

    fn value(&self) -> Result<Tensor> {
        if self.blocks.is_none() {
            self.home()?;
        }
        if !self.initialized.get() {
            return Err(Error::parameter(self.spec.name.clone(), "has no values yet: initialize or load it first"));
        }
        if let Some(blocks) = &self.blocks {
            return blocks.tensor();
        }
        let home = self.home()?;
        let whole = home.flat.gather_on_demand()?.ok_or_else(|| Error::NotGathered { name: self.spec.name.clone() })?;
        Ok(whole.tensor(home.flat.span(home.index).start, self.local.shape)?)
    }
}

impl Recall for Inner {
    fn recall(&self) -> bmtrain_core::Result<Tensor> {
        self.value().map_err(|error| bmtrain_core::Error::argument("backward", error.to_string()))
    }
}

/// The values of a floating-point tensor on the host, widened to f32. Waits for the device.
pub fn widen(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(match tensor.dtype() {
        DType::F16 => tensor.to_vec::<f16>()?.into_iter().map(Float::to_f32).collect(),
        DType::BF16 => tensor.to_vec::<bf16>()?.into_iter().map(Float::to_f32).collect(),
        _ => tensor.to_vec::<f32>()?,
    })
}
