//! Activations, sums, products, casts, one value everywhere: the launches of `elementwise.cu`.
#![allow(unsafe_code)]

use super::driver::{Grid, Pattern};
use super::launch::{In, Launch, Out, PACK, Typed, arguments, long, threads_for, typed, whole};
use super::modules::Name;
use crate::dtype::{DType, Float};
use crate::error::Result;
use crate::kernel::{
    Activation, ActivationBackward, ActivationForward, ActivationInPlace, AddScaled, Arguments as _, Cast, Fill,
    GatedBackward, GatedForward, GatedInPlace, Multiply,
};
use crate::view::{View, ViewMut};
use half::{bf16, f16};

/// `kElementwiseThreads`.
const THREADS: usize = 256;

const ACTIVATION_FORWARD: Typed = typed!("elementwise", "activation_forward");
const ACTIVATION_BACKWARD: Typed = typed!("elementwise", "activation_backward");
const ACTIVATION_IN_PLACE: Typed = typed!("elementwise", "activation_in_place");
const GATED_FORWARD: Typed = typed!("elementwise", "gated_forward");
const GATED_BACKWARD: Typed = typed!("elementwise", "gated_backward");
const GATED_IN_PLACE: Typed = typed!("elementwise", "gated_in_place");
const ADD_SCALED: Typed = typed!("elementwise", "add_scaled");
const MULTIPLY: Typed = typed!("elementwise", "multiply");
const CAST: Typed = typed!("elementwise", "cast");
const CAST_INTEGERS: Name = Name { unit: "elementwise", kernel: c"cast_integers" };
const FILL_I64: Name = Name { unit: "elementwise", kernel: c"fill_i64" };

/// The number of an activation in `with_activation`.
pub(super) fn activation_number(activation: Activation) -> i32 {
    match activation {
        Activation::Gelu => 0,
        Activation::GeluTanh => 1,
        Activation::Relu => 2,
        Activation::Silu => 3,
        Activation::Tanh => 4,
        Activation::QuickGelu => 5,
    }
}

/// The grid that takes the packs of `count` elements in turn.
fn packs(launch: &Launch<'_>, count: usize) -> Grid {
    Grid::line(launch.blocks(count.div_ceil(PACK * THREADS)), THREADS as u32)
}

/// The grid that takes rows in turn, with a thread for each pack of a row but at most [`THREADS`].
fn rows(launch: &Launch<'_>, rows: usize, columns: usize) -> Grid {
    let blocks = if columns == 0 { 0 } else { launch.blocks(rows) };
    Grid::line(blocks, threads_for(columns.div_ceil(PACK), THREADS))
}

/// The policy and whether packs are moved whole, for large operands of one length.
fn operands(names: &Typed, views: &[View<'_>], strides: &[usize]) -> (Name, i32) {
    let name = names.of(views.iter().map(View::dtype));
    (name, whole(views.iter().map(View::address), strides))
}

/// `In` of what is also written.
fn old(out: &ViewMut<'_>) -> In {
    In::of(&out.as_view())
}

pub(super) fn activation_forward(launch: &Launch<'_>, a: ActivationForward<'_>) -> Result<()> {
    let (name, whole) = operands(&ACTIVATION_FORWARD, &[a.x, a.y.as_view()], &[]);
    let arguments = arguments!(ActivationForwardArguments {
        x: In = In::of(&a.x),
        y: Out = Out::of(&a.y),
        count: i64 = long(ActivationForward::NAME, "x", a.x.len())?,
        activation: i32 = activation_number(a.activation),
        whole: i32 = whole,
    });
    // SAFETY: laid out as in elementwise.cu; `check` saw that x and y have `count` elements and do not overlap. The
    // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, packs(launch, a.x.len()), arguments) }
}

pub(super) fn activation_backward(launch: &Launch<'_>, a: ActivationBackward<'_>) -> Result<()> {
    let (name, whole) = operands(&ACTIVATION_BACKWARD, &[a.x, a.dy, a.dx.view.as_view()], &[]);
    let arguments = arguments!(ActivationBackwardArguments {
        x: In = In::of(&a.x),
        dy: In = In::of(&a.dy),
        dx: Out = Out::into(&a.dx),
        count: i64 = long(ActivationBackward::NAME, "x", a.x.len())?,
        activation: i32 = activation_number(a.activation),
        whole: i32 = whole,
    });
    // SAFETY: as in `activation_forward`, with three operands of `count` elements.
    unsafe { launch.run(name, packs(launch, a.x.len()), arguments) }
}

pub(super) fn activation_in_place(launch: &Launch<'_>, a: ActivationInPlace<'_>) -> Result<()> {
    let (name, whole) = operands(&ACTIVATION_IN_PLACE, &[a.x.as_view(), a.dy.as_view()], &[]);
    let arguments = arguments!(ActivationInPlaceArguments {
        x: Out = Out::of(&a.x),
        dy: Out = Out::of(&a.dy),
        count: i64 = long(ActivationInPlace::NAME, "x", a.x.len())?,
        activation: i32 = activation_number(a.activation),
        whole: i32 = whole,
    });
    // SAFETY: as in `activation_forward`; both are read before they are written, by the same thread.
    unsafe { launch.run(name, packs(launch, a.x.len()), arguments) }
}

pub(super) fn gated_forward(launch: &Launch<'_>, a: GatedForward<'_>) -> Result<()> {
    const NAME: &str = GatedForward::NAME;
    let (name, whole) = operands(&GATED_FORWARD, &[a.gate, a.up, a.y.as_view()], &[a.columns, a.ld]);
    let arguments = arguments!(GatedForwardArguments {
        gate: In = In::of(&a.gate),
        up: In = In::of(&a.up),
        y: Out = Out::of(&a.y),
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        stride: i64 = long(NAME, "leading dimension", a.ld)?,
        activation: i32 = activation_number(a.activation),
        whole: i32 = whole,
    });
    // SAFETY: as in `activation_forward`; `check` saw that gate and up reach from the first to the last of `rows` rows
    // that are `stride` apart, and that y holds rows x columns elements.
    unsafe { launch.run(name, rows(launch, a.rows, a.columns), arguments) }
}

pub(super) fn gated_backward(launch: &Launch<'_>, a: GatedBackward<'_>) -> Result<()> {
    const NAME: &str = GatedBackward::NAME;
    let (name, whole) = operands(&GATED_BACKWARD, &[a.x, a.dy, a.dx.view.as_view()], &[a.columns]);
    let arguments = arguments!(GatedBackwardArguments {
        x: In = In::of(&a.x),
        dy: In = In::of(&a.dy),
        dx: Out = Out::into(&a.dx),
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        activation: i32 = activation_number(a.activation),
        whole: i32 = whole,
    });
    // SAFETY: as in `activation_forward`; `check` saw that x and dx hold rows x 2 columns elements and dy rows x
    // columns.
    unsafe { launch.run(name, rows(launch, a.rows, a.columns), arguments) }
}

pub(super) fn gated_in_place(launch: &Launch<'_>, a: GatedInPlace<'_>) -> Result<()> {
    const NAME: &str = GatedInPlace::NAME;
    let (name, whole) = operands(&GATED_IN_PLACE, &[a.x.as_view(), a.dy.as_view()], &[a.columns]);
    let arguments = arguments!(GatedInPlaceArguments {
        x: Out = Out::of(&a.x),
        dy: Out = Out::of(&a.dy),
        rows: i64 = long(NAME, "rows", a.rows)?,
        columns: i64 = long(NAME, "columns", a.columns)?,
        activation: i32 = activation_number(a.activation),
        whole: i32 = whole,
    });
    // SAFETY: as in `gated_backward`; each element is read before it is written, by the same thread.
    unsafe { launch.run(name, rows(launch, a.rows, a.columns), arguments) }
}

pub(super) fn add_scaled(launch: &Launch<'_>, a: AddScaled<'_>) -> Result<()> {
    let out = a.out.as_view();
    // What is not read does not choose the dtype either.
    let second = (a.beta != 0.0).then(|| a.b.unwrap_or(out));
    let (name, whole) = operands(&ADD_SCALED, &[a.a, second.unwrap_or(out), out], &[]);
    let arguments = arguments!(AddScaledArguments {
        a: In = In::of(&a.a),
        b: In = In::maybe(second.as_ref()),
        out: Out = Out::of(&a.out),
        count: i64 = long(AddScaled::NAME, "a", a.a.len())?,
        alpha: f32 = a.alpha,
        beta: f32 = a.beta,
        whole: i32 = whole,
        unused: i32 = 0,
    });
    // SAFETY: as in `activation_forward`, with operands of `count` elements; where b is out, each element is read
    // before it is written, by the same thread.
    unsafe { launch.run(name, packs(launch, a.a.len()), arguments) }
}

pub(super) fn multiply(launch: &Launch<'_>, a: Multiply<'_>) -> Result<()> {
    let out = a.out.view.as_view();
    let (name, whole) = operands(&MULTIPLY, &[a.a, a.b.unwrap_or(out), out], &[]);
    let arguments = arguments!(MultiplyArguments {
        a: In = In::of(&a.a),
        b: In = a.b.as_ref().map_or_else(|| old(&a.out.view), In::of),
        out: Out = Out::into(&a.out),
        count: i64 = long(Multiply::NAME, "a", a.a.len())?,
        whole: i32 = whole,
        unused: i32 = 0,
    });
    // SAFETY: as in `add_scaled`.
    unsafe { launch.run(name, packs(launch, a.a.len()), arguments) }
}

pub(super) fn cast(launch: &Launch<'_>, a: Cast<'_>) -> Result<()> {
    let (name, whole) = operands(&CAST, &[a.x, a.out.view.as_view()], &[]);
    let count = a.x.len();
    let arguments = arguments!(CastArguments {
        x: In = In::of(&a.x),
        out: Out = Out::into(&a.out),
        count: i64 = long(Cast::NAME, "x", count)?,
        whole: i32 = whole,
        unused: i32 = 0,
    });
    let (name, grid) = match a.x.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => (name, packs(launch, count)),
        DType::I64 | DType::I32 | DType::U8 | DType::Blocks(_) => (CAST_INTEGERS, elements(launch, count)),
    };
    // SAFETY: as in `activation_forward`.
    unsafe { launch.run(name, grid, arguments) }
}

/// The grid that takes single elements in turn.
fn elements(launch: &Launch<'_>, count: usize) -> Grid {
    Grid::line(launch.blocks(count.div_ceil(THREADS)), THREADS as u32)
}

/// Queue [`Fill`]: the driver's own fill where it has the pattern.
pub(super) fn fill(launch: &Launch<'_>, a: Fill<'_>) -> Result<()> {
    let count = a.out.len();
    if count == 0 {
        return Ok(());
    }
    let Some((pattern, repeats)) = pattern_of(a.value, a.out.dtype()) else {
        let count = long(Fill::NAME, "out", count)?;
        let arguments =
            arguments!(FillArguments { out: u64 = a.out.address(), value: i64 = a.value as i64, count: i64 = count });
        // SAFETY: laid out as in elementwise.cu; only i64 lacks a pattern. The memory stays valid until the lane has
        // run the kernel, because the pool gives it out in lane order.
        return unsafe { launch.run(FILL_I64, elements(launch, a.out.len()), arguments) };
    };
    // SAFETY: the view was checked against its buffer and is this device's; its start is a multiple of its elements'
    // size; the memory stays valid until the lane has run the fill, as above.
    unsafe { launch.stream.fill(a.out.address(), pattern, count * repeats) }
}

/// The pattern that fills elements of a type with a value, and how often it goes into one element.
fn pattern_of(value: f32, dtype: DType) -> Option<(Pattern, usize)> {
    // `as` from float to integer saturates and turns NaN into 0, as in the CPU backend.
    match dtype {
        DType::F32 => Some((Pattern::Word(value.to_bits()), 1)),
        DType::F16 => Some((Pattern::Half(<f16 as Float>::from_f32(value).to_bits()), 1)),
        DType::BF16 => Some((Pattern::Half(<bf16 as Float>::from_f32(value).to_bits()), 1)),
        DType::I32 => Some((Pattern::Word((value as i32).cast_unsigned()), 1)),
        DType::U8 | DType::Blocks(_) => Some((Pattern::Byte(value as u8), 1)),
        // The driver has no 8-byte pattern: two equal halves are needed.
        DType::I64 => {
            let bits = (value as i64).cast_unsigned();
            let (low, high) = (bits as u32, (bits >> 32) as u32);
            (low == high).then_some((Pattern::Word(low), 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_pattern_is_the_value_in_the_number_type_of_the_elements() {
        assert_eq!(pattern_of(1.0, DType::F32), Some((Pattern::Word(0x3f80_0000), 1)));
        assert_eq!(pattern_of(1.0, DType::F16), Some((Pattern::Half(0x3c00), 1)));
        assert_eq!(pattern_of(1.0, DType::BF16), Some((Pattern::Half(0x3f80), 1)));
        assert_eq!(pattern_of(-2.0, DType::I32), Some((Pattern::Word(0xffff_fffe), 1)));
        assert_eq!(pattern_of(7.0, DType::U8), Some((Pattern::Byte(7), 1)));
        assert_eq!(pattern_of(0.0, DType::I64), Some((Pattern::Word(0), 2)));
        assert_eq!(pattern_of(-1.0, DType::I64), Some((Pattern::Word(u32::MAX), 2)));
        assert_eq!(pattern_of(1.0, DType::I64), None);
    }
}
