//! Activations, their gradients, and gated activations.

use super::each;
use crate::cpu::floats::{Floats, FloatsMut, Spare, tiles};
use crate::cpu::math::{Function, activate, with_function};
use crate::error::Result;
use crate::kernel::{
    Activation, ActivationBackward, ActivationForward, ActivationInPlace, GatedBackward, GatedForward, GatedInPlace,
};
use crate::simd::vectorised;
use crate::threads::Threads;

pub(in crate::cpu) fn activation_forward(threads: &Threads, a: ActivationForward<'_>) -> Result<()> {
    const NAME: &str = "activation_forward";
    let (x, y) = (Floats::of(NAME, a.x)?, FloatsMut::of(NAME, a.y)?);
    each(threads, [x], y, false, |[x], y| {
        y.copy_from_slice(x);
        activate(a.activation, y);
    });
    Ok(())
}

pub(in crate::cpu) fn activation_backward(threads: &Threads, a: ActivationBackward<'_>) -> Result<()> {
    const NAME: &str = "activation_backward";
    let (x, dy) = (Floats::of(NAME, a.x)?, Floats::of(NAME, a.dy)?);
    let (add, dx) = (a.dx.add, FloatsMut::of(NAME, a.dx.view)?);
    each(threads, [x, dy], dx, add, |[x, dy], dx| gradient(a.activation, x, dy, add, dx));
    Ok(())
}

pub(in crate::cpu) fn activation_in_place(threads: &Threads, a: ActivationInPlace<'_>) -> Result<()> {
    const NAME: &str = "activation_in_place";
    let (x, dy) = (FloatsMut::of(NAME, a.x)?, FloatsMut::of(NAME, a.dy)?);
    let len = dy.len();
    threads.for_each_part((x.rows(1), dy.rows(1)), len, super::PIECE, |_, len, (mut x, mut dy)| {
        let (mut x_spare, mut dy_spare) = (Spare::new(), Spare::new());
        for (start, len) in tiles(len) {
            x.data.update(start, len, true, &mut x_spare, |x| {
                dy.data.update(start, len, true, &mut dy_spare, |dy| in_place(a.activation, x, dy));
            });
        }
    });
    Ok(())
}

vectorised! {
    fn gradient<I>(activation: Activation, x: &[f32], dy: &[f32], add: bool, dx: &mut [f32]) {
        with_function!(activation, F => if add {
            for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                *dx = I::mul_add(F::both::<I>(*x).1, *dy, *dx);
            }
        } else {
            for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                *dx = F::both::<I>(*x).1 * dy;
            }
        });
    }

    fn in_place<I>(activation: Activation, x: &mut [f32], dy: &mut [f32]) {
        with_function!(activation, F => for (x, dy) in x.iter_mut().zip(dy) {
            let (value, slope) = F::both::<I>(*x);
            (*x, *dy) = (value, slope * *dy);
        });
    }

    fn gated<I>(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) {
        with_function!(activation, F => for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = F::both::<I>(*gate).0 * up;
        });
    }

    fn gated_gradient<I>(
        activation: Activation,
        gate: &[f32],
        up: &[f32],
        dy: &[f32],
        add: bool,
        dgate: &mut [f32],
        dup: &mut [f32],
    ) {
        let inputs = gate.iter().zip(up).zip(dy);
        with_function!(activation, F => for ((dgate, dup), ((gate, up), dy)) in dgate.iter_mut().zip(dup).zip(inputs) {
            let (value, slope) = F::both::<I>(*gate);
            let (old_gate, old_up) = if add { (*dgate, *dup) } else { (0.0, 0.0) };
            *dgate = I::mul_add(dy * up, slope, old_gate);
            *dup = I::mul_add(*dy, value, old_up);
        });
    }
}

vectorised! {
    fn gated_in_place_of<I>(activation: Activation, gate: &mut [f32], up: &mut [f32], dy: &mut [f32]) {
        with_function!(activation, F => for ((gate, up), dy) in gate.iter_mut().zip(up).zip(dy) {
            let (value, slope) = F::both::<I>(*gate);
            let factor = *up;
            *gate = *dy * factor * slope;
            *up = *dy * value;
            *dy = value * factor;
        });
    }
}

fn rows_at_once(columns: usize) -> usize {
    (super::PIECE / columns.max(1)).max(1)
}

pub(in crate::cpu) fn gated_forward(threads: &Threads, a: GatedForward<'_>) -> Result<()> {
    const NAME: &str = "gated_forward";
    let (columns, ld) = (a.columns, a.ld);
    let (gate, up, y) = (Floats::of(NAME, a.gate)?, Floats::of(NAME, a.up)?, FloatsMut::of(NAME, a.y)?);
    threads.for_each_part(y.rows(columns), a.rows, rows_at_once(columns), |first, rows, mut y| {
        let (mut gate_spare, mut up_spare, mut y_spare) = (Spare::new(), Spare::new(), Spare::new());
        for row in 0..rows {
            for (start, len) in tiles(columns) {
                let from = (first + row) * ld + start;
                let (gate, up) = (gate.tile(from, len, &mut gate_spare), up.tile(from, len, &mut up_spare));
                y.data.update(row * columns + start, len, false, &mut y_spare, |y| gated(a.activation, gate, up, y));
            }
        }
    });
    Ok(())
}

pub(in crate::cpu) fn gated_backward(threads: &Threads, a: GatedBackward<'_>) -> Result<()> {
    const NAME: &str = "gated_backward";
    let (columns, add) = (a.columns, a.dx.add);
    let (x, dy, dx) = (Floats::of(NAME, a.x)?, Floats::of(NAME, a.dy)?, FloatsMut::of(NAME, a.dx.view)?);
    threads.for_each_part(dx.rows(2 * columns), a.rows, rows_at_once(2 * columns), |first, rows, mut dx| {
        let [mut gate_spare, mut up_spare, mut dy_spare] = [const { Spare::new() }; 3];
        let [mut dgate_spare, mut dup_spare] = [const { Spare::new() }; 2];
        for row in 0..rows {
            let (mut dgate, mut dup) = dx.data.part(row * 2 * columns, 2 * columns).split_at(columns);
            for (start, len) in tiles(columns) {
                let from = (first + row) * 2 * columns + start;
                let gate = x.tile(from, len, &mut gate_spare);
                let up = x.tile(from + columns, len, &mut up_spare);
                let dy = dy.tile((first + row) * columns + start, len, &mut dy_spare);
                dgate.update(start, len, add, &mut dgate_spare, |dgate| {
                    dup.update(start, len, add, &mut dup_spare, |dup| {
                        gated_gradient(a.activation, gate, up, dy, add, dgate, dup);
                    });
                });
            }
        }
    });
    Ok(())
}

pub(in crate::cpu) fn gated_in_place(threads: &Threads, a: GatedInPlace<'_>) -> Result<()> {
    const NAME: &str = "gated_in_place";
    let columns = a.columns;
    let (x, dy) = (FloatsMut::of(NAME, a.x)?, FloatsMut::of(NAME, a.dy)?);
    let parts = (x.rows(2 * columns), dy.rows(columns));
    threads.for_each_part(parts, a.rows, rows_at_once(2 * columns), |_, rows, (mut x, mut dy)| {
        let [mut gate_spare, mut up_spare, mut dy_spare] = [const { Spare::new() }; 3];
        for row in 0..rows {
            let (mut gate, mut up) = x.data.part(row * 2 * columns, 2 * columns).split_at(columns);
            for (start, len) in tiles(columns) {
                gate.update(start, len, true, &mut gate_spare, |gate| {
                    up.update(start, len, true, &mut up_spare, |up| {
                        dy.data.update(row * columns + start, len, true, &mut dy_spare, |dy| {
                            gated_in_place_of(a.activation, gate, up, dy);
                        });
                    });
                });
            }
        }
    });
    Ok(())
}
