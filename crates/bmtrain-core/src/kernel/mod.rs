//! The table of contents of all arithmetic: every kernel is a value, its arguments are named fields that hold views.
//!
//! A kernel as a value, rather than a method, means that a wrapper (late execution, counting, profiling, tracing) is
//! one function and not forty. Arguments are checked here once, for every backend: lengths, types, that no written
//! range overlaps another one, that every view belongs to this device and lane.

/// [`Operand::visit`] or [`Arguments::visit`] for a structure whose operands are these fields.
macro_rules! visits {
    ($($field:tt),+) => {
        fn visit(&self, visit: &mut dyn FnMut($crate::kernel::Access<'_>)) {
            $($crate::kernel::Operand::visit(&self.$field, visit);)+
        }
    };
}

/// Implements [`Arguments`]: the kernel's name, its operands in the order in which they are checked and visited, the
/// [`Elements`] of each and optionally their number, and further checks.
///
/// `arguments! { Kernel, "name", |a| { x: Float[a.rows], y as "name in errors": F32 }, further(a) }`
macro_rules! arguments {
    (
        $arguments:ident, $name:literal,
        |$this:ident| { $($field:ident $(as $what:literal)?: $elements:ident $([$len:expr])?),+ }
        $(, $further:expr)?
    ) => {
        impl $crate::kernel::Arguments for $arguments<'_> {
            const NAME: &'static str = $name;

            #[allow(unused_variables)]
            fn check(&self) -> $crate::error::Result<()> {
                let $this = self;
                $(
                    let what = [$($what,)? stringify!($field)][0];
                    let len: Option<usize> = None $(.or(Some($len)))?;
                    $crate::kernel::expect(Self::NAME, what, &self.$field, $crate::kernel::Elements::$elements, len)?;
                )+
                $($further?;)?
                Ok(())
            }

            visits!($($field),+);
        }
    };
}

pub mod adam_8bit;
pub mod attention;
pub mod cross_entropy;
pub mod elementwise;
mod expect;
pub mod gemm;
pub mod loss;
pub mod norm;
mod operand;
pub mod optimizer;
pub mod quantised;
pub mod random;
pub mod reduce;
pub mod rotary;
pub mod rows;
pub mod update;

pub use adam_8bit::{Adam8bit, STATE_BLOCK};
pub use attention::{
    AttentionBackward, AttentionForward, AttentionInputs, AttentionShape, Bias, Heads, HeadsMut, Mask,
};
pub use cross_entropy::{
    ClassWeights, Criterion, CrossEntropyBackward, CrossEntropyForward, CrossEntropyInPlace, CrossEntropyLoss,
    CrossEntropyStatistics, ShardClasses,
};
pub use elementwise::{
    Activation, ActivationBackward, ActivationForward, ActivationInPlace, AddScaled, Cast, Fill, GatedBackward,
    GatedForward, GatedInPlace, Multiply,
};
pub(crate) use expect::{
    Elements, expect, expect_dtype, expect_float, expect_float_operand, expect_len, expect_operand, expect_replaced,
    expect_single, expect_soft_cap,
};
pub use gemm::{Batch, Epilogue, Gemm, Matrix, MatrixMut};
pub use loss::{
    LossTotals, Pointwise, PointwiseBackward, PointwiseForward, ScaleBy, SquaredErrorBackward, SquaredErrorForward,
};
pub use norm::{NormBackward, NormForward, NormKind};
pub(crate) use operand::Operand;
pub use operand::{Access, Dest};
pub use optimizer::{Adam, AdamRun, AdamSettings, ClipFactor, NormOrder};
pub(crate) use optimizer::{AdamNumbers, check_step};
pub use quantised::{QuantisedInputGradient, QuantisedLinear, QuantisedRows};
pub use random::{Distribution, Dropout, DropoutApply, FillRandom};
pub use reduce::{ColumnSum, GradNorm, NORM_CHUNK, NonFinite, Softmax, SoftmaxBackward};
pub use rotary::{RotaryApply, RotaryLayout};
pub use rows::{EmbeddingBackward, EmbeddingForward, Permute, RowCopy};
pub use update::{Update, UpdateRule, UpdateSettings};
pub(crate) use update::{UpdateForm, UpdateNumbers};

use crate::error::{Error, Result};
use crate::lane::{DeviceId, Lane};
use operand::{Footprint, any_collides};

/// Amount of work of a kernel: what a benchmark and a profile divide time by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations, a multiply-add counted as two.
    pub flops: u64,
    /// Bytes read and written at least once.
    pub bytes: u64,
}

/// Name, checks and views of the arguments of a kernel.
pub trait Arguments {
    /// The kernel's name: the stem of its files.
    const NAME: &'static str;

    /// Lengths, types and settings that fit together.
    fn check(&self) -> Result<()>;

    /// Every view, written or read.
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>));

    /// Floating-point operations; 0 where only the bytes moved matter.
    fn flops(&self) -> u64 {
        0
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Every kernel there is. A backend matches on it and answers
        /// [`Error::Unsupported`] for what it does not have.
        #[derive(Debug)]
        #[non_exhaustive]
        #[allow(clippy::large_enum_variant)]
        pub enum Kernel<'a> {
            $($(#[$doc])* $name($name<'a>),)*
        }

        $(impl<'a> From<$name<'a>> for Kernel<'a> {
            fn from(arguments: $name<'a>) -> Self {
                Kernel::$name(arguments)
            }
        })*

        impl Kernel<'_> {
            /// The names of all kernels, in the order of the table.
            pub const NAMES: &'static [&'static str] = &[$(<$name<'static> as Arguments>::NAME),*];

            /// Stem of the kernel's files, and its name in profiles and errors.
            pub fn name(&self) -> &'static str {
                match self { $(Kernel::$name(_) => <$name as Arguments>::NAME,)* }
            }

            /// Every view of the arguments.
            pub fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
                match self { $(Kernel::$name(arguments) => arguments.visit(visit),)* }
            }

            fn check_arguments(&self) -> Result<()> {
                match self { $(Kernel::$name(arguments) => arguments.check(),)* }
            }

            fn flops(&self) -> u64 {
                match self { $(Kernel::$name(arguments) => arguments.flops(),)* }
            }
        }
    };
}

kernels! {
    /// Matrix products, batched over heads, with bias and activation.
    Gemm,
    /// Products with a matrix in quantised blocks.
    QuantisedLinear,
    /// Gradients of the inputs of these products.
    QuantisedInputGradient,
    /// Layer norm or RMS norm, after dropout and residual.
    NormForward,
    /// Its gradients.
    NormBackward,
    /// Streaming attention.
    AttentionForward,
    /// Its gradients, from the saved log-sum-exp.
    AttentionBackward,
    /// Rows to probabilities.
    Softmax,
    /// Its gradient.
    SoftmaxBackward,
    /// Multiply by an addressed random mask; the same kernel is its own gradient.
    DropoutApply,
    /// Table rows by id.
    EmbeddingForward,
    /// Rows, by id, of a table in quantised blocks.
    QuantisedRows,
    /// Gradient of the table.
    EmbeddingBackward,
    /// `out = alpha * a + beta * b`.
    AddScaled,
    /// `out = a * b`.
    Multiply,
    /// A constant everywhere.
    Fill,
    /// Another dtype.
    Cast,
    /// Another order of the axes.
    Permute,
    /// Turn the heads of rows by the angles of their positions.
    RotaryApply,
    /// Rows between places with different leading dimensions.
    RowCopy,
    /// Elementwise activation.
    ActivationForward,
    /// Its gradient.
    ActivationBackward,
    /// Its value again and its gradient, in place.
    ActivationInPlace,
    /// `activation(gate) * up`.
    GatedForward,
    /// Its gradients.
    GatedBackward,
    /// Its value again and its gradients, in place.
    GatedInPlace,
    /// Fused softmax and cross-entropy over a whole vocabulary.
    CrossEntropyForward,
    /// Contribution of a shard of the classes to the losses of rows.
    CrossEntropyStatistics,
    /// Losses of rows from the contributions of all shards.
    CrossEntropyLoss,
    /// Gradient of the logits of a shard or of a whole vocabulary.
    CrossEntropyBackward,
    /// Losses over a whole vocabulary, and the gradient of their sum in the place of the logits.
    CrossEntropyInPlace,
    /// Mean squared error of a regression.
    SquaredErrorForward,
    /// Its gradient.
    SquaredErrorBackward,
    /// A function of single elements that losses are made of.
    PointwiseForward,
    /// Its gradient.
    PointwiseBackward,
    /// Sum and mean of the losses of rows.
    LossTotals,
    /// `out = factor / divisor * x`, both on the device.
    ScaleBy,
    /// Sum over rows: the gradient of a bias.
    ColumnSum,
    /// Sum of squares or largest magnitude, for gradient norms.
    GradNorm,
    /// Whether anything is infinite or not a number.
    NonFinite,
    /// From norm to clipping factor, without the host.
    ClipFactor,
    /// One Adam step over runs of elements.
    Adam,
    /// Adam with moments in 8 bits.
    Adam8bit,
    /// One step of another optimizer over a run of elements.
    Update,
    /// Addressed random values.
    FillRandom,
}

impl<'a> Kernel<'a> {
    /// This kernel for as long as one likes: for backends that run work after the call returned.
    ///
    /// # Safety
    /// The caller runs the kernel, or drops it, before the memory of its views is released by the backend: that is,
    /// before a `sync` of the lane it was given to returns.
    #[allow(unsafe_code)]
    pub unsafe fn detach(self) -> Kernel<'static> {
        // SAFETY: lifetimes are the only difference, and the caller keeps the memory valid.
        unsafe { std::mem::transmute::<Kernel<'a>, Kernel<'static>>(self) }
    }
}

impl Kernel<'_> {
    /// Check the arguments for one device and lane.
    ///
    /// # Errors
    /// Arguments that do not fit together, views of another device or lane, a written range that overlaps another
    /// range.
    pub fn check(&self, device: DeviceId, on: Lane) -> Result<()> {
        self.check_arguments()?;
        /// Views that are held against each other without memory for a list of them.
        const FEW: usize = 16;
        let name = self.name();
        let (mut seen, mut more) = ([const { None::<Footprint> }; FEW], Vec::new());
        let mut count = 0;
        let mut fault = None;
        let overlap = || Error::argument(name, "a range that is written overlaps another argument");
        self.visit(&mut |access| {
            let footprint = access.footprint();
            if footprint.range.device != device {
                let (expected, got) = (format!("{device:?}"), format!("{:?}", footprint.range.device));
                fault = Some(Error::WrongDevice { op: name, expected, got });
            }
            if footprint.range.lane != on {
                let lane = footprint.range.lane;
                fault = Some(Error::argument(name, format!("a view of lane {lane:?} was given to lane {on:?}")));
            }
            if count < FEW && seen.iter().flatten().any(|other| other.collides(&footprint)) {
                fault = Some(overlap());
            }
            match seen.get_mut(count) {
                Some(slot) => *slot = Some(footprint),
                None => more.push(footprint),
            }
            count += 1;
        });
        if !more.is_empty() && any_collides(seen.into_iter().flatten().chain(more).collect()) {
            fault = Some(overlap());
        }
        fault.map_or(Ok(()), Err)
    }

    /// Floating-point operations and bytes of this call.
    pub fn cost(&self) -> Cost {
        let mut bytes = 0;
        self.visit(&mut |access| bytes += access.footprint().range.bytes() as u64);
        Cost { flops: self.flops(), bytes }
    }
}
