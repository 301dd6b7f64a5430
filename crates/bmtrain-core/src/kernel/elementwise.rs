//! Arguments of elementwise kernels: activations, sums, products, casts.

use super::{Arguments, Dest, expect_float_operand, expect_replaced};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

/// An elementwise function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * Phi(x)` with the exact normal distribution function (Hendrycks and Gimpel, 2016).
    Gelu,
    /// The tanh approximation of it, called `gelu_new` by GPT-2.
    GeluTanh,
    /// `max(x, 0)`; the derivative at 0 is 0.
    Relu,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// `x / (1 + exp(-1.702 x))`, which CLIP takes for [`Activation::Gelu`].
    QuickGelu,
}

impl Activation {
    /// Every activation, for tables and tests.
    pub const ALL: [Activation; 6] = [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::Silu,
        Activation::Tanh,
        Activation::QuickGelu,
    ];

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Relu => "relu",
            Activation::Silu => "silu",
            Activation::Tanh => "tanh",
            Activation::QuickGelu => "quick_gelu",
        }
    }
}

/// Whether cuBLASLt multiplies a product with a result of `dtype` by the derivative of `activation`.
pub(crate) fn library_has_derivative(activation: Activation, dtype: DType) -> bool {
    activation == Activation::GeluTanh && dtype != DType::F32
}

/// `y = activation(x)`, elementwise.
#[derive(Debug)]
pub struct ActivationForward<'a> {
    /// The function.
    pub activation: Activation,
    /// Input.
    pub x: View<'a>,
    /// Output, of the same length.
    pub y: ViewMut<'a>,
}

arguments! {
    ActivationForward, "activation_forward", |a| { x: Float, y: Float[a.x.len()] }
}

/// `dx (+)= dy * activation'(x)`, elementwise.
#[derive(Debug)]
pub struct ActivationBackward<'a> {
    /// The function.
    pub activation: Activation,
    /// The function's input.
    pub x: View<'a>,
    /// Gradient of its output.
    pub dy: View<'a>,
    /// Gradient of its input.
    pub dx: Dest<'a>,
}

arguments! {
    ActivationBackward, "activation_backward", |a| { x: Float, dy: Float[a.x.len()], dx: Float[a.x.len()] }
}

/// The value of an activation again and the gradient of its input, each in place of what it is made of: in one pass,
/// and without memory of its own, for the backward pass of a feed-forward layer.
#[derive(Debug)]
pub struct ActivationInPlace<'a> {
    /// The function.
    pub activation: Activation,
    /// Input, replaced by `activation(x)`.
    pub x: ViewMut<'a>,
    /// Gradient of the output, replaced by `dy * activation'(x)`.
    pub dy: ViewMut<'a>,
}

arguments! {
    ActivationInPlace, "activation_in_place", |a| { x: Float, dy: Float[a.x.len()] }
}

/// `y = activation(gate) * up` over `rows` rows of `columns`; `gate` and `up` may be halves of one wider matrix.
#[derive(Debug)]
pub struct GatedForward<'a> {
    /// The function applied to the gate.
    pub activation: Activation,
    /// Rows.
    pub rows: usize,
    /// Columns of the output.
    pub columns: usize,
    /// Elements from one row of `gate` and of `up` to the next.
    pub ld: usize,
    /// Gate, from its first element to its last.
    pub gate: View<'a>,
    /// Factor, likewise.
    pub up: View<'a>,
    /// Output `[rows, columns]`.
    pub y: ViewMut<'a>,
}

impl Arguments for GatedForward<'_> {
    const NAME: &'static str = "gated_forward";

    fn check(&self) -> Result<()> {
        let span = row_span(Self::NAME, self.rows, self.columns, self.ld)?;
        expect_float_operand(Self::NAME, "gate", span, &self.gate)?;
        expect_float_operand(Self::NAME, "up", span, &self.up)?;
        expect_float_operand(Self::NAME, "y", self.rows * self.columns, &self.y)
    }

    visits!(gate, up, y);
}

/// Gradients of [`GatedForward`]. Both gradients go into one matrix `[rows, 2 * columns]`, gate first, which is the
/// gradient of a fused input projection; `gate` and `up` are the halves of such a matrix too.
#[derive(Debug)]
pub struct GatedBackward<'a> {
    /// The function applied to the gate.
    pub activation: Activation,
    /// Rows.
    pub rows: usize,
    /// Columns of each half.
    pub columns: usize,
    /// Gate and factor side by side, `[rows, 2 * columns]`.
    pub x: View<'a>,
    /// Gradient of the output, `[rows, columns]`.
    pub dy: View<'a>,
    /// Gradient of `x`.
    pub dx: Dest<'a>,
}

arguments! {
    GatedBackward, "gated_backward", |a| {
        x: Float[2 * a.rows * a.columns], dy: Float[a.rows * a.columns], dx: Float[a.x.len()]
    }
}

/// The output of [`GatedForward`] again and the gradients of its inputs, each in place of what it is made of.
#[derive(Debug)]
pub struct GatedInPlace<'a> {
    /// The function applied to the gate.
    pub activation: Activation,
    /// Rows.
    pub rows: usize,
    /// Columns of each half.
    pub columns: usize,
    /// Gate and factor side by side, `[rows, 2 * columns]`, replaced by their gradients.
    pub x: ViewMut<'a>,
    /// Gradient of the output, `[rows, columns]`, replaced by the output.
    pub dy: ViewMut<'a>,
}

arguments! {
    GatedInPlace, "gated_in_place", |a| { x: Float[2 * a.rows * a.columns], dy: Float[a.rows * a.columns] }
}

/// `out = alpha * a + beta * b`. Without `b`, `out` itself stands for it: `out = alpha * a + beta * out`.
#[derive(Debug)]
pub struct AddScaled<'a> {
    /// Factor of `a`.
    pub alpha: f32,
    /// First term.
    pub a: View<'a>,
    /// Factor of the second term; with 0 it is not read.
    pub beta: f32,
    /// Second term; `None` for the old content of `out`.
    pub b: Option<View<'a>>,
    /// Result.
    pub out: ViewMut<'a>,
}

arguments! {
    AddScaled, "add_scaled", |k| { a: Float, b: Float[k.a.len()], out: Float[k.a.len()] }
}

/// `out (+)= a * b`, elementwise. Without `b` the old content of `out` is the second factor.
#[derive(Debug)]
pub struct Multiply<'a> {
    /// First factor.
    pub a: View<'a>,
    /// Second factor; `None` for the old content of `out`, which then must not be added to.
    pub b: Option<View<'a>>,
    /// Result.
    pub out: Dest<'a>,
}

arguments! {
    Multiply, "multiply", |k| { a: Float, b: Float[k.a.len()], out: Float[k.a.len()] },
    expect_replaced(Self::NAME, k.b.as_ref(), &k.out, "an in-place product cannot be added")
}

/// Write one value everywhere. For integer types the value is converted, saturating.
#[derive(Debug)]
pub struct Fill<'a> {
    /// The value.
    pub value: f32,
    /// The range written.
    pub out: ViewMut<'a>,
}

arguments! {
    Fill, "fill", |a| { out: Any }
}

/// `out (+)= x` in another dtype. Between floating-point types rounding is to nearest, ties to even; integers become
/// floats by the same rule and floats are not turned into integers.
#[derive(Debug)]
pub struct Cast<'a> {
    /// Source.
    pub x: View<'a>,
    /// Destination; adding is for floating-point sources.
    pub out: Dest<'a>,
}

arguments! {
    Cast, "cast", |a| { x: Any, out: Float[a.x.len()] }
}

/// Elements from the first to the last of `rows` rows of `columns`, `ld` apart.
pub(crate) fn row_span(op: &'static str, rows: usize, columns: usize, ld: usize) -> Result<usize> {
    if ld < columns {
        return Err(Error::shape(op, "leading dimension", format!("at least {columns}"), ld));
    }
    if rows == 0 {
        return Ok(0);
    }
    (rows - 1)
        .checked_mul(ld)
        .and_then(|span| span.checked_add(columns))
        .ok_or_else(|| Error::shape(op, "rows", "a span below 2^64", rows))
}
