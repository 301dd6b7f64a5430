//! Arithmetic operators on [`Var`]s: `(&a + &b)?`, `(&x * 0.5)?`, `(-&x)?`.
//!
//! An operator has no [`Ctx`] argument: it records on the tape of its operands. It computes, and differentiates, like
//! [`add`](super::add), [`mul`](super::mul) and [`scale`](super::scale), in f32, f16 and bf16. Shapes have to be equal:
//! nothing is broadcast.

use super::elementwise;
use crate::autograd::{Ctx, Var};
use crate::error::{Error, Result};
use std::ops::{Add, Div, Mul, Neg, Sub};

fn context(operator: &'static str, operands: &[&Var]) -> Result<Ctx> {
    let device = operands[0].device();
    let tape = operands.iter().find_map(|operand| operand.tape());
    if tape.is_none() && operands.iter().any(|operand| operand.needs_grad()) {
        let reason =
            "an operand needs a gradient and no operand is on a live tape: use the function of `ops` with a Ctx";
        return Err(Error::argument(operator, reason));
    }
    Ok(Ctx::inference(device).with_tape(tape))
}

impl Add for &Var {
    type Output = Result<Var>;

    fn add(self, other: &Var) -> Result<Var> {
        elementwise::add(&context("operator +", &[self, other])?, self, other)
    }
}

impl Sub for &Var {
    type Output = Result<Var>;

    fn sub(self, other: &Var) -> Result<Var> {
        let cx = context("operator -", &[self, other])?;
        elementwise::add(&cx, self, &elementwise::scale(&cx, other, -1.0)?)
    }
}

impl Mul for &Var {
    type Output = Result<Var>;

    fn mul(self, other: &Var) -> Result<Var> {
        elementwise::mul(&context("operator *", &[self, other])?, self, other)
    }
}

impl Mul<f32> for &Var {
    type Output = Result<Var>;

    fn mul(self, factor: f32) -> Result<Var> {
        elementwise::scale(&context("operator *", &[self])?, self, factor)
    }
}

impl Div<f32> for &Var {
    type Output = Result<Var>;

    fn div(self, divisor: f32) -> Result<Var> {
        elementwise::scale(&context("operator /", &[self])?, self, 1.0 / divisor)
    }
}

impl Neg for &Var {
    type Output = Result<Var>;

    fn neg(self) -> Result<Var> {
        elementwise::scale(&context("operator -", &[self])?, self, -1.0)
    }
}
