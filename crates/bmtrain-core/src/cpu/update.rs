//! One step of the optimizers of [`UpdateRule`](crate::kernel::UpdateRule).

use super::access::{read, write};
use super::floats::{Floats, FloatsMut};
use super::optimizer::{Elements, States, TileUpdate, step};
use crate::error::Result;
use crate::kernel::{Update, UpdateForm, UpdateNumbers};
use crate::simd::vectorised;
use crate::threads::Threads;

pub(super) fn update(threads: &Threads, a: Update<'_>) -> Result<()> {
    const NAME: &str = "update";
    let factor = read::<f32>(NAME, a.factor)?[0];
    let f32s = |view| Option::map(view, |view| write::<f32>(NAME, view)).transpose();
    let (master, states) = (f32s(a.master)?, [f32s(a.first)?, f32s(a.second)?, f32s(a.third)?]);
    let (parameter, grad) = (FloatsMut::of(NAME, a.parameter)?, Floats::of(NAME, a.grad)?);
    step(threads, a.settings.numbers(factor), factor, Elements { parameter, master, states, grad }, None);
    Ok(())
}

impl TileUpdate for UpdateNumbers {
    fn update(self, grad: &[f32], p: &mut [f32], states: States<'_>) {
        match (self.form, states) {
            (UpdateForm::Sgd, [None, ..]) => descend(self, grad, p),
            (UpdateForm::Sgd, [Some(b), ..]) => sgd(self, grad, p, b),
            (UpdateForm::Adagrad, [_, Some(s), _]) => adagrad(self, grad, p, s),
            (UpdateForm::RmsProp, [None, Some(s), None]) => rms_prop(self, grad, p, s),
            (UpdateForm::RmsProp, [Some(b), Some(s), None]) => rms_prop_momentum(self, grad, p, b, s),
            (UpdateForm::RmsProp, [None, Some(s), Some(a)]) => rms_prop_centered(self, grad, p, s, a),
            (UpdateForm::RmsProp, [Some(b), Some(s), Some(a)]) => rms_prop_all(self, grad, p, b, s, a),
            (UpdateForm::Adadelta, [_, Some(s), Some(u)]) => adadelta(self, grad, p, s, u),
            (UpdateForm::Adamax, [Some(m), Some(n), _]) => adamax(self, grad, p, m, n),
            (UpdateForm::NAdam, [Some(m), Some(v), _]) => nadam(self, grad, p, m, v),
            (UpdateForm::RAdam, [Some(m), Some(v), _]) => radam(self, grad, p, m, v),
            (UpdateForm::Lion, [Some(m), ..]) => lion(self, grad, p, m),
            (form, _) => debug_assert!(false, "the states of {form:?} were checked"),
        }
    }
}

/// RMSprop's average of squares and the change before momentum.
#[inline(always)]
fn scaled<I: crate::simd::Isa>(step: UpdateNumbers, g: f32, s: &mut f32) -> f32 {
    *s = I::mul_add(step.beta2, *s, step.rest2 * g * g);
    g / (s.sqrt() + step.epsilon)
}

/// The centered update, from the deviation.
#[inline(always)]
fn centered<I: crate::simd::Isa>(step: UpdateNumbers, g: f32, s: &mut f32, a: &mut f32) -> f32 {
    *s = I::mul_add(step.beta2, *s, step.rest2 * g * g);
    *a = I::mul_add(step.rest2, g - *a, *a);
    g / (I::mul_add(-*a, *a, *s).max(0.0).sqrt() + step.epsilon)
}

vectorised! {
    fn descend<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32]) {
        for (p, g) in p.iter_mut().zip(grad) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *p = I::mul_add(-step.rate, g, *p * step.keep);
        }
    }

    fn sgd<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], b: &mut [f32]) {
        for ((p, g), b) in p.iter_mut().zip(grad).zip(b) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *b = I::mul_add(step.beta1, *b, step.rest1 * g);
            let change = I::mul_add(step.rest2, *b, step.beta2 * g);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }

    fn adagrad<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], s: &mut [f32]) {
        for ((p, g), s) in p.iter_mut().zip(grad).zip(s) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *s = I::mul_add(g, g, *s);
            let change = g / (s.sqrt() + step.epsilon);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }

    fn rms_prop<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], s: &mut [f32]) {
        for ((p, g), s) in p.iter_mut().zip(grad).zip(s) {
            let change = scaled::<I>(step, I::mul_add(step.coupled, *p, step.factor * g), s);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }

    fn rms_prop_momentum<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], b: &mut [f32], s: &mut [f32]) {
        for (((p, g), b), s) in p.iter_mut().zip(grad).zip(b).zip(s) {
            let change = scaled::<I>(step, I::mul_add(step.coupled, *p, step.factor * g), s);
            *b = I::mul_add(step.beta1, *b, change);
            *p = I::mul_add(-step.rate, *b, *p * step.keep);
        }
    }

    fn rms_prop_centered<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], s: &mut [f32], a: &mut [f32]) {
        for (((p, g), s), a) in p.iter_mut().zip(grad).zip(s).zip(a) {
            let change = centered::<I>(step, I::mul_add(step.coupled, *p, step.factor * g), s, a);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }

    fn rms_prop_all<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], b: &mut [f32], s: &mut [f32], a: &mut [f32]) {
        for ((((p, g), b), s), a) in p.iter_mut().zip(grad).zip(b).zip(s).zip(a) {
            let change = centered::<I>(step, I::mul_add(step.coupled, *p, step.factor * g), s, a);
            *b = I::mul_add(step.beta1, *b, change);
            *p = I::mul_add(-step.rate, *b, *p * step.keep);
        }
    }

    fn adadelta<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], s: &mut [f32], u: &mut [f32]) {
        for (((p, g), s), u) in p.iter_mut().zip(grad).zip(s).zip(u) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *s = I::mul_add(step.beta2, *s, step.rest2 * g * g);
            let change = (*u + step.epsilon).sqrt() / (*s + step.epsilon).sqrt() * g;
            *u = I::mul_add(step.beta2, *u, step.rest2 * change * change);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }

    fn adamax<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], m: &mut [f32], n: &mut [f32]) {
        for (((p, g), m), n) in p.iter_mut().zip(grad).zip(m).zip(n) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *m = I::mul_add(step.beta1, *m, step.rest1 * g);
            *n = (step.beta2 * *n).max(g.abs() + step.epsilon);
            *p = I::mul_add(-step.rate, *m / *n, *p * step.keep);
        }
    }

    fn nadam<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        for (((p, g), m), v) in p.iter_mut().zip(grad).zip(m).zip(v) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *m = I::mul_add(step.beta1, *m, step.rest1 * g);
            *v = I::mul_add(step.beta2, *v, step.rest2 * g * g);
            let root = (*v * step.correction).sqrt() + step.epsilon;
            *p = I::mul_add(-step.rate, g / root, *p * step.keep);
            *p = I::mul_add(-step.moment_rate, *m / root, *p);
        }
    }

    fn radam<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        for (((p, g), m), v) in p.iter_mut().zip(grad).zip(m).zip(v) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *m = I::mul_add(step.beta1, *m, step.rest1 * g);
            *v = I::mul_add(step.beta2, *v, step.rest2 * g * g);
            let change = if step.correction > 0.0 { *m * step.correction / (v.sqrt() + step.epsilon) } else { *m };
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }

    fn lion<I>(step: UpdateNumbers, grad: &[f32], p: &mut [f32], m: &mut [f32]) {
        for ((p, g), m) in p.iter_mut().zip(grad).zip(m) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            let mixed = I::mul_add(step.beta1, *m, step.rest1 * g);
            *m = I::mul_add(step.beta2, *m, step.rest2 * g);
            // 0 of 0, where f32::signum is 1.
            let sign = f32::from(u8::from(mixed > 0.0)) - f32::from(u8::from(mixed < 0.0));
            *p = I::mul_add(-step.rate, sign, *p * step.keep);
        }
    }
}
