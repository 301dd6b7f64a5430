//! Functions in double precision, to compare kernels with.

use crate::kernel::Activation;

/// The distribution function of the standard normal, from its power series.
pub fn normal_cdf(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 3.0);
    while term.abs() > 1e-18 * sum.abs() {
        term *= x * x / n;
        sum += term;
        n += 2.0;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

/// An activation and its derivative.
pub fn activation(activation: Activation, x: f64) -> (f64, f64) {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Gelu => {
            let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            (x * normal_cdf(x), normal_cdf(x) + x * density)
        }
        Activation::GeluTanh => {
            let scale = (2.0 / std::f64::consts::PI).sqrt();
            let tanh = (scale * (x + 0.044715 * x.powi(3))).tanh();
            let inner = scale * (1.0 + 3.0 * 0.044715 * x * x);
            (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner)
        }
        Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        Activation::Silu => (x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))),
        Activation::Tanh => (x.tanh(), 1.0 - x.tanh().powi(2)),
        Activation::QuickGelu => {
            let sigmoid = 1.0 / (1.0 + (-1.702 * x).exp());
            (x * sigmoid, sigmoid * (1.0 + 1.702 * x * (1.0 - sigmoid)))
        }
    }
}
