//! Rows of the matrix product's parts for gradients: a derivative that the result is multiplied by, and sums of the
//! rows of the left factor, against sums in f64.

use super::product::{normal_distribution, with_type};
use super::*;
use crate::kernel::Dest;

/// A product of these sizes. With sums the left factor is stored as its transpose, which is how the gradient of a
/// weight has it.
#[derive(Clone, Copy)]
struct Product {
    m: usize,
    n: usize,
    k: usize,
    beta: f32,
    derivative: Option<Activation>,
    /// The sums are wanted, and whether they are added to what is there.
    sums: Option<bool>,
}

const PLAIN: Product = Product { m: 9, n: 18, k: 7, beta: 0.0, derivative: None, sums: None };
/// Rows of whole packs.
const PACKS: Product = Product { m: 9, n: 24, k: 16, ..PLAIN };

pub(super) fn rows(cases: &mut Vec<Case>) {
    for activation in Activation::ALL {
        let with = |product| Product { derivative: Some(activation), ..product };
        let mut row = |kind: &str, product| {
            cases.push(case(&format!("nn/{kind} {}'", activation.name()), with(product)));
        };
        row("times", PLAIN);
        row("packs times", PACKS);
        row("beta 0.5 times", Product { beta: 0.5, ..PACKS });
        row("empty sums times", Product { k: 0, beta: 0.5, ..PLAIN });
    }
    let gelu = Product { derivative: Some(Activation::GeluTanh), ..PACKS };
    for name in ["a", "b", "c", "points"] {
        cases.push(with_type(case(&format!("nn/f32 {name} times gelu_tanh'"), gelu), name, DType::F32));
    }
    cases.push(case("nn/times gelu_tanh'", Product { m: 130, n: 264, k: 200, ..gelu }).large());
    for add in [false, true] {
        let with = |product| Product { sums: Some(add), ..product };
        let mut row = |kind: &str, product| cases.push(sums(&format!("tn/{kind}"), with(product)));
        row("sums", PLAIN);
        row("packs and sums", PACKS);
        row("beta 1 and sums", Product { m: 24, n: 16, k: 33, beta: 1.0, ..PLAIN });
        row("one and its sum", Product { m: 1, n: 1, k: 1, ..PLAIN });
        row("empty sums and sums", Product { k: 0, beta: 0.5, ..PLAIN });
        row("no column and sums", Product { n: 0, ..PLAIN });
        row("derivative and sums", Product { derivative: Some(Activation::Gelu), ..PLAIN });
        row("long sums and sums", Product { m: 17, n: 9, k: 1100, ..PLAIN });
        let gradient = with(Product { m: 24, n: 17, k: 41, beta: 1.0, ..PLAIN });
        // The gradient of a 16-bit weight, and of its bias in either type.
        let narrow = with_type(sums("tn/f32 result and sums", gradient), "c", DType::F32);
        cases.push(with_type(narrow, "sums", DType::F32));
        cases.push(with_type(sums("tn/f32 result, narrow sums", gradient), "c", DType::F32));
        cases.push(with_type(sums("tn/f32 sums", gradient), "sums", DType::F32));
        cases.push(with_type(sums("tn/f32 b and sums", gradient), "b", DType::F32));
    }
}

fn sums(name: &str, product: Product) -> Case {
    let add = if product.sums == Some(true) { " added" } else { "" };
    case(&format!("{name}{add}"), product)
}

/// The derivative in f64, from the definitions.
fn slope(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Gelu => normal_distribution(x) + x * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt(),
        Activation::GeluTanh => {
            let scale = (2.0 / std::f64::consts::PI).sqrt();
            let t = (scale * (x + 0.044_715 * x.powi(3))).tanh();
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * scale * (1.0 + 3.0 * 0.044_715 * x * x)
        }
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        Activation::Silu => {
            let s = 1.0 / (1.0 + (-x).exp());
            s * (1.0 + x * (1.0 - s))
        }
        Activation::Tanh => 1.0 - x.tanh().powi(2),
        Activation::QuickGelu => {
            let s = 1.0 / (1.0 + (-1.702 * x).exp());
            s * (1.0 + 1.702 * x * (1.0 - s))
        }
    }
}

impl Product {
    /// Inputs are a, b, c, and, where they are wanted, points and sums.
    fn launch(&self, t: &[Tensor]) -> Result<Vec<Tensor>> {
        let Product { m, n, k, beta, derivative, sums } = *self;
        let (mut out, mut total) = (super::copy(&t[2])?, sums.map(|_| super::copy(&t[t.len() - 1])).transpose()?);
        let device = out.device().clone();
        let points = derivative.map(|_| t[3].view()).transpose()?;
        let view = total.as_mut().map(Tensor::view_mut).transpose()?;
        let (a, b) = (t[0].view()?, Matrix::plain(t[1].view()?, n));
        let a = if sums.is_some() { Matrix::transposed(a, m) } else { Matrix::plain(a, k) };
        let epilogue = Epilogue {
            derivative: derivative.zip(points),
            sums_of_a: sums.zip(view).map(|(add, view)| Dest { view, add }),
            ..Epilogue::default()
        };
        device.launch(Gemm { beta, epilogue, ..Gemm::single([m, n, k], a, b, out.dest(false)?) })?;
        Ok((n > 0).then_some(out).into_iter().chain(total).collect())
    }

    fn host(&self, t: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Product { m, n, k, beta, derivative, sums } = *self;
        let a = |row: usize, i: usize| if sums.is_some() { t[0][i * m + row] } else { t[0][row * k + i] };
        let element = |index: usize| {
            let (row, column) = (index / n, index % n);
            let sum: f64 = (0..k).map(|i| a(row, i) * t[1][i * n + column]).sum();
            let value = sum + if beta == 0.0 { 0.0 } else { f64::from(beta) * t[2][index] };
            value * derivative.map_or(1.0, |activation| slope(activation, t[3][index]))
        };
        let out: Vec<f64> = (0..m * n).map(element).collect();
        let total = sums.map(|add| {
            let old = |row: usize| if add { t[t.len() - 1][row] } else { 0.0 };
            (0..m).map(|row| old(row) + (0..k).map(|i| a(row, i)).sum::<f64>()).collect()
        });
        (n > 0).then_some(out).into_iter().chain(total).collect()
    }
}

fn case(name: &str, product: Product) -> Case {
    let Product { m, n, k, .. } = product;
    let case = Case::kernel(format!("gemm/{name}/{m}x{n}x{k}"), move |_, t| product.launch(t))
        .constant("a", [m * k])
        .constant("b", [k * n])
        .deviation(1.0 / (k.max(1) as f32).sqrt())
        .constant("c", [m * n]);
    let case = if product.derivative.is_some() { case.constant("points", [m * n]) } else { case };
    let case = if product.sums.is_some() { case.constant("sums", [m]) } else { case };
    case.expecting(move |t| product.host(t))
}
