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
pub mod gemm;
pub mod loss;
pub mod norm;
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
    ClassWeights, Criterion, CrossEntropyBackward, CrossEntropyForward, CrossEntropyLoss, CrossEntropyStatistics,
    ShardClasses,
};
pub use elementwise::{
    Activation, ActivationBackward, ActivationForward, ActivationSplit, AddScaled, Cast, Fill, GatedBackward,
    GatedForward, Multiply,
};
pub use gemm::{Batch, Epilogue, Gemm, Matrix, MatrixMut};
pub use loss::{
    LossTotals, Pointwise, PointwiseBackward, PointwiseForward, ScaleBy, SquaredErrorBackward, SquaredErrorForward,
};
pub use norm::{NormBackward, NormForward, NormKind};
pub use optimizer::{Adam, AdamSettings, ClipFactor, NormOrder};
pub(crate) use optimizer::{AdamNumbers, check_step};
pub use quantised::{QuantisedInputGradient, QuantisedLinear, QuantisedRows};
pub use random::{Distribution, Dropout, DropoutApply, FillRandom};
pub use reduce::{ColumnSum, GradNorm, NORM_CHUNK, NonFinite, Softmax, SoftmaxBackward};
pub use rotary::{RotaryApply, RotaryLayout};
pub use rows::{EmbeddingBackward, EmbeddingForward, Permute, RowCopy};
pub use update::{Update, UpdateRule, UpdateSettings};
pub(crate) use update::{UpdateForm, UpdateNumbers};

use crate::backend::{DeviceId, Lane};
use crate::buffer::{Range, Ranged, View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// How much work a kernel is: what a benchmark and a profile divide time by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations, a multiply-add counted as two.
    pub flops: u64,
    /// Bytes read and written at least once.
    pub bytes: u64,
}

/// Where a gradient goes: overwrite what is there, or add to it.
#[derive(Debug)]
pub struct Dest<'a> {
    /// The range written.
    pub view: ViewMut<'a>,
    /// Add to the present content instead of replacing it. Without it the old content is not read.
    pub add: bool,
}

/// One view of a kernel's arguments, as listed by [`Arguments::visit`].
#[derive(Debug, Clone, Copy)]
pub enum Access<'v> {
    /// Read only.
    Read(&'v View<'v>),
    /// Written, and read too where the kernel works in place.
    Write(&'v ViewMut<'v>),
    /// Written in rows: of every `stride` elements only the first `width` belong to the argument. Heads of a fused
    /// projection are interleaved in this way.
    WriteRows {
        /// From the first element to the last.
        view: &'v ViewMut<'v>,
        /// Elements from one row to the next.
        stride: usize,
        /// Elements of a row that are written.
        width: usize,
    },
}

/// The bytes an argument covers.
#[derive(Debug, Clone, Copy)]
struct Footprint {
    range: Range,
    writes: bool,
    /// Stride and width of rows, in bytes.
    rows: Option<(u64, u64)>,
}

impl Footprint {
    fn collides(&self, other: &Footprint) -> bool {
        if !(self.writes || other.writes) || !self.range.overlaps(&other.range) {
            return false;
        }
        match (self.rows, other.rows) {
            // Rows of one pitch are disjoint if their columns are.
            (Some((stride, width)), Some((other_stride, other_width))) if stride == other_stride && stride > 0 => {
                let start = self.range.address % stride;
                let other_start = other.range.address % stride;
                let ahead = (other_start + stride - start) % stride;
                let behind = (start + stride - other_start) % stride;
                ahead < width || behind < other_width
            }
            _ => true,
        }
    }
}

impl Access<'_> {
    fn footprint(&self) -> Footprint {
        match self {
            Access::Read(view) => Footprint { range: view.range, writes: false, rows: None },
            Access::Write(view) => Footprint { range: view.range, writes: true, rows: None },
            Access::WriteRows { view, stride, width } => {
                let size = view.dtype().size() as u64;
                let rows = Some((*stride as u64 * size, *width as u64 * size));
                Footprint { range: view.range, writes: true, rows }
            }
        }
    }
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
    /// Value and derivative of an activation in one pass.
    ActivationSplit,
    /// `activation(gate) * up`.
    GatedForward,
    /// Its gradients.
    GatedBackward,
    /// Fused softmax and cross-entropy over a whole vocabulary.
    CrossEntropyForward,
    /// Contribution of a shard of the classes to the losses of rows.
    CrossEntropyStatistics,
    /// Losses of rows from the contributions of all shards.
    CrossEntropyLoss,
    /// Gradient of the logits of a shard or of a whole vocabulary.
    CrossEntropyBackward,
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
    /// One Adam step over a run of elements.
    Adam,
    /// The same with moments in 8 bits.
    Adam8bit,
    /// One step of another optimizer over a run of elements.
    Update,
    /// Addressed random values.
    FillRandom,
}

impl<'a> Kernel<'a> {
    /// The same kernel for as long as one likes: for backends that run work after the call returned.
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
        let name = self.name();
        let mut seen: [Option<Footprint>; 16] = [None; 16];
        let mut count = 0;
        let mut fault = None;
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
            if seen.iter().flatten().any(|other| other.collides(&footprint)) {
                fault = Some(Error::argument(name, "a range that is written overlaps another argument"));
            }
            match seen.get_mut(count) {
                Some(slot) => *slot = Some(footprint),
                None => fault = Some(Error::argument(name, "more than 16 views")),
            }
            count += 1;
        });
        fault.map_or(Ok(()), Err)
    }

    /// Floating-point operations and bytes of this call.
    pub fn cost(&self) -> Cost {
        let mut bytes = 0;
        self.visit(&mut |access| bytes += access.footprint().range.bytes() as u64);
        Cost { flops: self.flops(), bytes }
    }
}

/// Require an exact element count.
pub(crate) fn expect_len(op: &'static str, what: &str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::shape(op, what, format!("{expected} elements"), got)) }
}

/// Require one dtype.
pub(crate) fn expect_dtype(op: &'static str, what: &str, expected: DType, got: DType) -> Result<()> {
    if expected == got {
        Ok(())
    } else {
        Err(Error::DType { op, what: what.into(), expected: expected.name().into(), got })
    }
}

/// Require a floating-point type.
pub(crate) fn expect_float(op: &'static str, what: &str, got: DType) -> Result<()> {
    if got.is_float() {
        Ok(())
    } else {
        Err(Error::DType { op, what: what.into(), expected: "a floating-point type".into(), got })
    }
}

/// Require length and dtype.
pub(crate) fn expect_operand(
    op: &'static str,
    what: &str,
    len: usize,
    dtype: DType,
    operand: &impl Ranged,
) -> Result<()> {
    expect_len(op, what, len, operand.range().len)?;
    expect_dtype(op, what, dtype, operand.range().dtype)
}

/// Require length and a floating-point type.
pub(crate) fn expect_float_operand(op: &'static str, what: &str, len: usize, operand: &impl Ranged) -> Result<()> {
    expect_len(op, what, len, operand.range().len)?;
    expect_float(op, what, operand.range().dtype)
}

/// Require a type whose elements each have a place of their own; in a quantised block several share bytes.
pub(crate) fn expect_single(op: &'static str, what: &str, got: DType) -> Result<()> {
    match got {
        DType::Blocks(_) => {
            Err(Error::DType { op, what: what.into(), expected: "a type of single elements".into(), got })
        }
        _ => Ok(()),
    }
}

/// What an operand consists of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Elements {
    Any,
    Float,
    F32,
    I64,
    I32,
    U8,
}

/// Require the elements of an operand, if it is there, and their number if one is given.
fn expect(op: &'static str, what: &str, operand: &impl Operand, elements: Elements, len: Option<usize>) -> Result<()> {
    let Some(range) = operand.range() else { return Ok(()) };
    if let Some(len) = len {
        expect_len(op, what, len, range.len)?;
    }
    match elements {
        Elements::Any => expect_single(op, what, range.dtype),
        Elements::Float => expect_float(op, what, range.dtype),
        Elements::F32 => expect_dtype(op, what, DType::F32, range.dtype),
        Elements::I64 => expect_dtype(op, what, DType::I64, range.dtype),
        Elements::I32 => expect_dtype(op, what, DType::I32, range.dtype),
        Elements::U8 => expect_dtype(op, what, DType::U8, range.dtype),
    }
}

/// Refuse to add what is computed in place.
fn expect_replaced(op: &'static str, x: Option<&View<'_>>, out: &Dest<'_>, message: &str) -> Result<()> {
    if x.is_none() && out.add { Err(Error::argument(op, message)) } else { Ok(()) }
}

/// A field of a kernel's arguments that holds views.
pub(crate) trait Operand {
    /// Every view, written or read.
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>));

    /// The only range of the operand, if there is one.
    fn range(&self) -> Option<&Range> {
        None
    }
}

impl Operand for View<'_> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        visit(Access::Read(self));
    }

    fn range(&self) -> Option<&Range> {
        Some(&self.range)
    }
}

impl Operand for ViewMut<'_> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        visit(Access::Write(self));
    }

    fn range(&self) -> Option<&Range> {
        Some(&self.range)
    }
}

impl Operand for Dest<'_> {
    visits!(view);

    fn range(&self) -> Option<&Range> {
        Some(&self.view.range)
    }
}

impl<T: Operand> Operand for Option<T> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.iter().for_each(|operand| operand.visit(visit));
    }

    fn range(&self) -> Option<&Range> {
        self.as_ref().and_then(Operand::range)
    }
}
