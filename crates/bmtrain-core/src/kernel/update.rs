//! Arguments of the optimizers that update each element by itself, Adam apart.

use super::optimizer::check_step;
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

/// One step of an optimizer over a run of elements that share their weight decay.
///
/// With `g = factor * grad`, negated to climb, to which coupled weight decay adds `decay * p` and from which decoupled
/// decay differs by `p = p - lr * decay * p` before the step, [`UpdateRule`] has the formulas.
///
/// Numerics: f32 throughout; `p` is the f32 master where there is one, and the parameter is its value rounded to
/// nearest, ties to even. What all elements share is computed in f64.
#[derive(Debug)]
pub struct Update<'a> {
    /// Parameter, any floating-point type.
    pub parameter: ViewMut<'a>,
    /// f32 copy of a parameter of another type.
    pub master: Option<ViewMut<'a>>,
    /// State of the rule, f32, if [`UpdateRule::states`] has a name for it.
    pub first: Option<ViewMut<'a>>,
    /// As `first`.
    pub second: Option<ViewMut<'a>>,
    /// As `first`.
    pub third: Option<ViewMut<'a>>,
    /// Gradient, any floating-point type.
    pub grad: View<'a>,
    /// f32 `[1]`: multiplied into the gradient; if it is not finite nothing is changed.
    pub factor: View<'a>,
    /// The numbers of the step.
    pub settings: UpdateSettings,
}

/// The formulas of an optimizer, as in `torch.optim` and, for Lion, in `lion-pytorch`. `t` is the number of the step
/// from 1; averages begin with 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UpdateRule {
    /// `b = momentum b + (1 - dampening) g`, at the first step `b = g`; `p = p - lr b`, with Nesterov
    /// `p = p - lr (g + momentum b)`, without momentum `p = p - lr g`.
    Sgd {
        /// Decay of `b`; 0 for none.
        momentum: f64,
        /// Reduction of the gradient's weight in `b`.
        dampening: f64,
        /// Nesterov's momentum.
        nesterov: bool,
    },
    /// `s = s + g^2`, `p = p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + epsilon)` (Duchi et al., 2011).
    Adagrad {
        /// Decay of the learning rate.
        lr_decay: f64,
        /// Added to the root.
        epsilon: f64,
    },
    /// `s = rho s + (1 - rho) g^2`, `d = g / (sqrt(s) + epsilon)`; centered `a = rho a + (1 - rho) g` and
    /// `d = g / (sqrt(s - a^2) + epsilon)`, where rounding cannot make the difference negative as in PyTorch;
    /// `p = p - lr d`, with momentum `b = momentum b + d` and `p = p - lr b` (Hinton, 2012).
    RmsProp {
        /// Decay of the averages, PyTorch's alpha.
        rho: f64,
        /// Added to the root.
        epsilon: f64,
        /// Decay of `b`; 0 for none.
        momentum: f64,
        /// Divide by the deviation rather than the root of the squares.
        centered: bool,
    },
    /// `s = rho s + (1 - rho) g^2`, `d = sqrt(u + epsilon) / sqrt(s + epsilon) g`, `u = rho u + (1 - rho) d^2`,
    /// `p = p - lr d` (Zeiler, 2012).
    Adadelta {
        /// Decay of the averages.
        rho: f64,
        /// Added under the roots.
        epsilon: f64,
    },
    /// `m = b1 m + (1 - b1) g`, `n = max(b2 n, |g| + epsilon)`, `p = p - lr / (1 - b1^t) m / n` (Kingma and Ba, 2015).
    Adamax {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the infinity norm.
        beta2: f64,
        /// Added to the gradient's magnitude.
        epsilon: f64,
    },
    /// `m` and `v` of [`Adam`](super::Adam), `mu(t) = b1 (1 - 0.96^(t momentum_decay) / 2)`, `M` the product of
    /// `mu(1)` to `mu(t)`, `r = sqrt(v / (1 - b2^t)) + epsilon`,
    /// `p = p - lr (1 - mu(t)) / (1 - M) g / r - lr mu(t + 1) / (1 - M mu(t + 1)) m / r` (Dozat, 2016).
    NAdam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root.
        epsilon: f64,
        /// Speed at which the momentum grows to `beta1`.
        momentum_decay: f64,
    },
    /// `m` and `v` of [`Adam`](super::Adam), `R = 2 / (1 - b2) - 1`, `k = R - 2 t b2^t / (1 - b2^t)`; where `k > 5`,
    /// `p = p - lr m / (1 - b1^t) sqrt(1 - b2^t) / (sqrt(v) + epsilon) sqrt((k - 4) (k - 2) R / ((R - 4) (R - 2) k))`,
    /// else `p = p - lr m / (1 - b1^t)` (Liu et al., 2020).
    RAdam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root.
        epsilon: f64,
    },
    /// `p = p - lr sign(b1 m + (1 - b1) g)`, then `m = b2 m + (1 - b2) g` (Chen et al., 2023).
    Lion {
        /// Weight of the moment in the step.
        beta1: f64,
        /// Decay of the moment.
        beta2: f64,
    },
}

impl UpdateRule {
    /// The names of the states, as they are in checkpoints: of `first`, `second` and `third`.
    pub fn states(&self) -> [Option<&'static str>; 3] {
        let momentum = |factor: f64| (factor != 0.0).then_some("momentum");
        match *self {
            UpdateRule::Sgd { momentum: factor, .. } => [momentum(factor), None, None],
            UpdateRule::Adagrad { .. } => [None, Some("sum"), None],
            UpdateRule::RmsProp { momentum: factor, centered, .. } => {
                [momentum(factor), Some("square-average"), centered.then_some("gradient-average")]
            }
            UpdateRule::Adadelta { .. } => [None, Some("square-average"), Some("delta-average")],
            UpdateRule::Adamax { .. } => [Some("m"), Some("infinity-norm"), None],
            UpdateRule::NAdam { .. } | UpdateRule::RAdam { .. } => [Some("m"), Some("v"), None],
            UpdateRule::Lion { .. } => [Some("m"), None, None],
        }
    }

    /// Whether every number is in its range.
    ///
    /// # Errors
    /// One that is not; Nesterov's momentum without momentum or with dampening.
    pub fn check(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::argument("update", reason));
        let (mut decays, mut positive) = (Vec::new(), Vec::new());
        match *self {
            UpdateRule::Sgd { momentum, dampening, nesterov } => {
                decays.push(("momentum", momentum));
                positive.push(("dampening", dampening));
                if nesterov && (momentum == 0.0 || dampening != 0.0) {
                    return refuse("Nesterov's momentum needs a momentum above 0 and no dampening".into());
                }
            }
            UpdateRule::Adagrad { lr_decay, epsilon } => {
                positive.extend([("lr_decay", lr_decay), ("epsilon", epsilon)]);
            }
            UpdateRule::RmsProp { rho, epsilon, momentum, .. } => {
                decays.extend([("rho", rho), ("momentum", momentum)]);
                positive.push(("epsilon", epsilon));
            }
            UpdateRule::Adadelta { rho, epsilon } => {
                decays.push(("rho", rho));
                positive.push(("epsilon", epsilon));
            }
            UpdateRule::Adamax { beta1, beta2, epsilon } | UpdateRule::RAdam { beta1, beta2, epsilon } => {
                decays.extend([("beta1", beta1), ("beta2", beta2)]);
                positive.push(("epsilon", epsilon));
            }
            UpdateRule::NAdam { beta1, beta2, epsilon, momentum_decay } => {
                decays.extend([("beta1", beta1), ("beta2", beta2)]);
                positive.extend([("epsilon", epsilon), ("momentum_decay", momentum_decay)]);
            }
            UpdateRule::Lion { beta1, beta2 } => decays.extend([("beta1", beta1), ("beta2", beta2)]),
        }
        if let Some((name, value)) = decays.iter().find(|(_, value)| !(0.0..1.0).contains(value)) {
            return refuse(format!("{name} {value} is not in [0, 1)"));
        }
        match positive.iter().find(|(_, value)| !(*value >= 0.0 && value.is_finite())) {
            Some((name, value)) => refuse(format!("{name} {value} is not a number at or above 0")),
            None => Ok(()),
        }
    }
}

/// The numbers of an [`Update`], without what it works on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateSettings {
    /// The formulas.
    pub rule: UpdateRule,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay of this run.
    pub decay: f64,
    /// Decay the parameter itself rather than adding to the gradient.
    pub decoupled: bool,
    /// Climb instead of descend.
    pub maximize: bool,
    /// Number of this step, from 1.
    pub step: u64,
}

/// Formulas that a backend runs, with the numbers of update.cu.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::NoUninit)]
#[repr(i32)]
pub(crate) enum UpdateForm {
    Sgd = 0,
    Adagrad = 1,
    RmsProp = 2,
    Adadelta = 3,
    Adamax = 4,
    NAdam = 5,
    RAdam = 6,
    Lion = 7,
}

/// Numbers that all elements of a step share. Made here for every backend, so that all have the same bits; laid out as
/// the structure of the same name in update.cu, which begins as [`AdamNumbers`](super::AdamNumbers). A number that a
/// form has no use for is 0.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub(crate) struct UpdateNumbers {
    /// Multiplied into the gradient; negative to climb.
    pub(crate) factor: f32,
    /// Decay of the first state, and the weight of what is added to it.
    pub(crate) beta1: f32,
    pub(crate) rest1: f32,
    /// Decay and weight of the other states; of SGD, the weights of gradient and momentum in the change.
    pub(crate) beta2: f32,
    pub(crate) rest2: f32,
    pub(crate) epsilon: f32,
    /// Learning rate, with the corrections of the rule.
    pub(crate) rate: f32,
    /// NAdam's factor of `v`; RAdam's rectification, 0 for a step that does not divide.
    pub(crate) correction: f32,
    /// Added to the gradient, times the parameter.
    pub(crate) coupled: f32,
    /// Factor of the parameter before the update.
    pub(crate) keep: f32,
    pub(crate) form: UpdateForm,
    /// NAdam's learning rate of the moment.
    pub(crate) moment_rate: f32,
}

impl UpdateSettings {
    /// The numbers of the step for a factor of the gradient.
    pub(crate) fn numbers(&self, factor: f32) -> UpdateNumbers {
        let (lr, t) = (self.lr, self.step as f64);
        let [mut epsilon, mut rate, mut moment_rate, mut correction] = [0.0, lr, 0.0, 0.0];
        let (form, [beta1, rest1], [beta2, rest2]) = match self.rule {
            UpdateRule::Sgd { momentum, dampening, nesterov } => {
                let first = if self.step == 1 { 1.0 } else { 1.0 - dampening };
                (UpdateForm::Sgd, [momentum, first], if nesterov { [1.0, momentum] } else { [0.0, 1.0] })
            }
            UpdateRule::Adagrad { lr_decay, epsilon: added } => {
                (epsilon, rate) = (added, lr / (1.0 + (t - 1.0) * lr_decay));
                (UpdateForm::Adagrad, [0.0; 2], [0.0; 2])
            }
            UpdateRule::RmsProp { rho, epsilon: added, momentum, .. } => {
                epsilon = added;
                (UpdateForm::RmsProp, [momentum, 1.0], with_rest(rho))
            }
            UpdateRule::Adadelta { rho, epsilon: added } => {
                epsilon = added;
                (UpdateForm::Adadelta, [0.0; 2], with_rest(rho))
            }
            UpdateRule::Adamax { beta1, beta2, epsilon: added } => {
                (epsilon, rate) = (added, lr / (1.0 - beta1.powf(t)));
                (UpdateForm::Adamax, with_rest(beta1), with_rest(beta2))
            }
            UpdateRule::NAdam { beta1, beta2, epsilon: added, momentum_decay } => {
                let (mu, next, product) = momenta(beta1, momentum_decay, self.step);
                (epsilon, correction) = (added, 1.0 / (1.0 - beta2.powf(t)));
                (rate, moment_rate) = (lr * (1.0 - mu) / (1.0 - product), lr * next / (1.0 - product * next));
                (UpdateForm::NAdam, with_rest(beta1), with_rest(beta2))
            }
            UpdateRule::RAdam { beta1, beta2, epsilon: added } => {
                (epsilon, rate) = (added, lr / (1.0 - beta1.powf(t)));
                correction = rectification(beta2, t);
                (UpdateForm::RAdam, with_rest(beta1), with_rest(beta2))
            }
            UpdateRule::Lion { beta1, beta2 } => (UpdateForm::Lion, with_rest(beta1), with_rest(beta2)),
        };
        let [beta1, rest1, beta2, rest2] = [beta1, rest1, beta2, rest2].map(|number: f64| number as f32);
        UpdateNumbers {
            factor: if self.maximize { -factor } else { factor },
            beta1,
            rest1,
            beta2,
            rest2,
            epsilon: epsilon as f32,
            rate: rate as f32,
            correction: correction as f32,
            coupled: if self.decoupled { 0.0 } else { self.decay as f32 },
            keep: if self.decoupled { (1.0 - lr * self.decay) as f32 } else { 1.0 },
            form,
            moment_rate: moment_rate as f32,
        }
    }
}

fn with_rest(decay: f64) -> [f64; 2] {
    [decay, 1.0 - decay]
}

/// NAdam's momenta of a step and of the next one, and the product of all until this one.
fn momenta(beta1: f64, momentum_decay: f64, step: u64) -> (f64, f64, f64) {
    let falling = 0.96f64.powf(momentum_decay);
    let mu = |share: f64| beta1 * (1.0 - 0.5 * share);
    let (mut product, mut share) = (1.0, 1.0);
    for _ in 0..step {
        share *= falling;
        product *= mu(share);
        // Nothing of it is left in 1 - product.
        if product < 1e-18 {
            break;
        }
    }
    let at = |step: f64| mu(0.96f64.powf(step * momentum_decay));
    (at(step as f64), at(step as f64 + 1.0), product)
}

/// RAdam's factor of `m / (sqrt(v) + epsilon)`; 0 where the variance is not known yet.
fn rectification(beta2: f64, t: f64) -> f64 {
    let (power, most) = (beta2.powf(t), 2.0 / (1.0 - beta2) - 1.0);
    let known = most - 2.0 * t * power / (1.0 - power);
    if known <= 5.0 {
        return 0.0;
    }
    let ratio = (known - 4.0) * (known - 2.0) * most / ((most - 4.0) * (most - 2.0) * known);
    ratio.sqrt() * (1.0 - power).sqrt()
}

arguments! {
    Update, "update", |a| {
        grad: Float[a.parameter.len()], factor: F32[1], parameter: Float, master: F32[a.parameter.len()],
        first: F32[a.parameter.len()], second: F32[a.parameter.len()], third: F32[a.parameter.len()]
    },
    {
        check_step(Self::NAME, a.parameter.dtype(), a.master.is_some(), a.settings.step)?;
        let given = [a.first.is_some(), a.second.is_some(), a.third.is_some()];
        match a.settings.rule.states().map(|state| state.is_some()) == given {
            true => Ok(()),
            false => Err(Error::argument(Self::NAME, format!("{:?} has other states", a.settings.rule))),
        }
    }
}
