//! Rows of the matrix product as a kernel: every transpose, leading dimension, batch stride, factor and epilogue,
//! against sums in f64.

use super::*;
use crate::fp8::{Fp8Factors, Fp8Format};

/// One product with everything that can vary.
#[derive(Clone, Copy)]
struct Product {
    m: usize,
    n: usize,
    k: usize,
    transposed: [bool; 2],
    alpha: f32,
    beta: f32,
    /// Added to each leading dimension.
    gap: usize,
    batch: Batch,
    /// Batch entries side by side within the rows, as heads are, instead of one after the other.
    interleaved: bool,
    /// The right factor is the same for all entries.
    shared: bool,
    epilogue: Option<Activation>,
    /// The argument of the activation is kept.
    copies: bool,
    /// Formats of the rounded factors.
    fp8: Option<Fp8Factors>,
}

const PLAIN: Product = Product {
    m: 5,
    n: 7,
    k: 3,
    transposed: [false, false],
    alpha: 1.0,
    beta: 0.0,
    gap: 0,
    batch: Batch::ONE,
    interleaved: false,
    shared: false,
    epilogue: None,
    copies: true,
    fp8: None,
};

pub(super) fn rows(cases: &mut Vec<Case>) {
    for (letters, a, b) in [("nn", false, false), ("nt", false, true), ("tn", true, false), ("tt", true, true)] {
        let with = |product: Product| Product { transposed: [a, b], ..product };
        let mut row = |kind: &str, product| cases.push(case(&format!("{letters}/{kind}"), with(product)));
        row("plain", PLAIN);
        row("beta 1", Product { beta: 1.0, ..PLAIN });
        row("beta 0.5", Product { m: 19, n: 33, k: 21, beta: 0.5, alpha: 1.5, ..PLAIN });
        row("gaps", Product { m: 17, n: 9, k: 11, gap: 3, beta: 0.5, ..PLAIN });
        row("batched", Product { m: 6, n: 10, k: 9, batch: Batch { outer: 2, inner: 3 }, ..PLAIN });
        row("heads", Product { m: 6, n: 8, k: 8, batch: Batch { outer: 2, inner: 3 }, interleaved: true, ..PLAIN });
        row(
            "shared",
            Product { m: 6, n: 10, k: 9, batch: Batch { outer: 1, inner: 4 }, shared: true, beta: 1.0, ..PLAIN },
        );
        row("one", Product { m: 1, n: 1, k: 1, ..PLAIN });
        row("row", Product { m: 1, n: 70, k: 130, ..PLAIN });
        row("column", Product { m: 67, n: 1, k: 129, beta: 1.0, ..PLAIN });
        row("empty sums", Product { k: 0, beta: 0.5, ..PLAIN });
        row("empty sums", Product { m: 4, n: 128, k: 0, beta: 0.0, ..PLAIN });
        row("long sums", Product { m: 9, n: 6, k: 700, ..PLAIN });
    }
    for activation in Activation::ALL {
        let epilogue = Some(activation);
        cases.push(case(
            &format!("nt/bias {}", activation.name()),
            Product { m: 9, n: 18, transposed: [false, true], epilogue, ..PLAIN },
        ));
    }
    epilogues(cases);
    for (letters, a, b) in [("nn", false, false), ("nt", false, true), ("tn", true, false)] {
        let product = Product { m: 130, n: 258, k: 200, transposed: [a, b], ..PLAIN };
        cases.push(case(&format!("{letters}/beta 1"), Product { beta: 1.0, ..product }).large());
        cases.push(case(&format!("{letters}/thin"), Product { m: 4, n: 700, ..product }).large());
    }
    let narrow = case("tn/f32 result", Product { m: 20, n: 30, k: 25, transposed: [true, false], beta: 1.0, ..PLAIN });
    // The gradient of a 16-bit weight.
    cases.push(with_type(narrow, "c", DType::F32));
    mixed(cases);
    residuals(cases);
    in_8_bits(cases);
}

/// Factors in 8 bits: every transpose, sizes that the library multiplies and sizes that it refuses, epilogues.
fn in_8_bits(cases: &mut Vec<Case>) {
    let both = [("e4m3", Fp8Factors::FORWARD), ("e5m2", Fp8Factors::BACKWARD)];
    for (name, factors) in both {
        for (letters, a, b) in [("nn", false, false), ("nt", false, true), ("tn", true, false), ("tt", true, true)] {
            let product = Product { transposed: [a, b], fp8: Some(factors), ..PLAIN };
            let mut row = |kind: &str, product| cases.push(case(&format!("{letters}/{name} {kind}"), product));
            row("plain", Product { m: 24, n: 32, k: 48, ..product });
            row("sums of odd length", Product { m: 16, n: 80, k: 69, beta: 1.0, ..product });
            row("odd sizes", Product { m: 5, n: 7, k: 3, beta: 0.5, alpha: 1.5, ..product });
            row("gaps", Product { m: 17, n: 9, k: 33, gap: 3, ..product });
            row("empty sums", Product { k: 0, beta: 0.5, ..product });
        }
        let product = Product { m: 80, n: 144, k: 208, fp8: Some(factors), beta: 1.0, ..PLAIN };
        cases.push(case(&format!("tn/{name} tiles"), Product { transposed: [true, false], ..product }).large());
    }
    let forward = Product { m: 9, n: 32, k: 16, transposed: [false, true], fp8: Some(Fp8Factors::FORWARD), ..PLAIN };
    for activation in [Activation::GeluTanh, Activation::Relu, Activation::Silu] {
        let product = Product { epilogue: Some(activation), ..forward };
        cases.push(case(&format!("nt/e4m3 bias {}", activation.name()), product));
        cases
            .push(case(&format!("nt/e4m3 without a copy {}", activation.name()), Product { copies: false, ..product }));
    }
    for name in ["a", "b", "c"] {
        cases.push(with_type(case(&format!("nt/e4m3 f32 {name}"), forward), name, DType::F32));
    }
}

/// Products to which a matrix is added that is not the old content, of factors of one type and of two, of sums of
/// nothing.
fn residuals(cases: &mut Vec<Case>) {
    let row = |name: &str, [m, n, k]: [usize; 3], has_bias: bool| {
        let case = Case::kernel(format!("gemm/nt/{name}/{m}x{n}x{k}"), move |_, t| {
            let mut out = zeros(t[0].device(), &[m, n], t[2].dtype())?;
            let bias = if has_bias { Some(t[3].view()?) } else { None };
            let epilogue = Epilogue { bias, residual: Some(t[2].view()?), ..Epilogue::default() };
            let (a, b) = (Matrix::plain(t[0].view()?, k), Matrix::transposed(t[1].view()?, k));
            let device = out.device().clone();
            device.launch(Gemm { epilogue, ..Gemm::single([m, n, k], a, b, out.dest(false)?) })?;
            Ok(vec![out])
        });
        let case = case.constant("a", [m * k]).constant("b", [n * k]).deviation(1.0 / (k.max(1) as f32).sqrt());
        let case = case.constant("residual", [m * n]);
        let case = if has_bias { case.constant("bias", [n]) } else { case };
        case.expecting(move |t| {
            let element = |index: usize| {
                let (row, column) = (index / n, index % n);
                let sum: f64 = (0..k).map(|i| t[0][row * k + i] * t[1][column * k + i]).sum();
                sum + t[2][index] + if has_bias { t[3][column] } else { 0.0 }
            };
            vec![(0..m * n).map(element).collect()]
        })
    };
    cases.push(row("residual", [5, 7, 3], false));
    cases.push(row("residual and bias", [9, 24, 16], true));
    cases.push(row("residual, empty sums", [4, 8, 0], true));
    cases.push(row("residual", [130, 264, 200], true).large());
    for name in ["a", "b", "bias"] {
        cases.push(with_type(row(&format!("f32 {name} and residual"), [9, 24, 16], true), name, DType::F32));
    }
    cases.push(with_type(row("f32 residual and result", [9, 24, 16], false), "residual", DType::F32));
}

/// Activations of rows of whole packs, which some libraries apply themselves; after old content; and without a copy.
fn epilogues(cases: &mut Vec<Case>) {
    for activation in [Activation::GeluTanh, Activation::Relu, Activation::Silu] {
        let product = Product { m: 9, n: 24, k: 16, transposed: [false, true], epilogue: Some(activation), ..PLAIN };
        let mut row = |kind: &str, product| cases.push(case(&format!("nt/{kind} {}", activation.name()), product));
        row("packs and bias", product);
        row("without a copy", Product { copies: false, ..product });
        row("beta 0.5 and bias", Product { beta: 0.5, ..product });
        row("empty sums and bias", Product { k: 0, ..product });
    }
    let product = Product { m: 5, n: 16, k: 9, epilogue: Some(Activation::GeluTanh), copies: false, ..PLAIN };
    let heads = Product { batch: Batch { outer: 2, inner: 3 }, interleaved: true, ..product };
    cases.push(case("nn/heads without a copy gelu_tanh", heads));
    cases.push(case("nn/gaps without a copy gelu_tanh", Product { gap: 3, beta: 1.0, ..product }));
}

/// Operands of different types.
fn mixed(cases: &mut Vec<Case>) {
    let product = Product { m: 7, n: 18, k: 20, transposed: [false, true], beta: 0.5, ..PLAIN };
    let heads = Product { m: 6, n: 8, k: 8, batch: Batch { outer: 2, inner: 3 }, interleaved: true, ..PLAIN };
    let shared = Product { m: 6, n: 10, k: 9, batch: Batch { outer: 2, inner: 2 }, shared: true, ..PLAIN };
    for name in ["a", "b"] {
        cases.push(with_type(case(&format!("nt/f32 {name}"), product), name, DType::F32));
        cases.push(with_type(case(&format!("nn/heads f32 {name}"), heads), name, DType::F32));
        cases.push(with_type(case(&format!("nn/shared f32 {name}"), shared), name, DType::F32));
    }
    let bias = Product { beta: 0.0, epilogue: Some(Activation::Gelu), ..product };
    cases.push(with_type(case("nt/f32 bias gelu", bias), "bias", DType::F32));
    cases.push(with_type(case("nt/f32 b gelu", bias), "b", DType::F32));
    let factors = with_type(case("nt/f32 factors", product), "a", DType::F32);
    cases.push(with_type(factors, "b", DType::F32));
}

/// One operand stays in a type of its own where the others have 16 bits.
pub(super) fn with_type(mut case: Case, name: &str, dtype: DType) -> Case {
    for input in case.inputs.iter_mut().filter(|input| input.name == name) {
        input.dtype = Some(dtype);
    }
    case.dtypes(&[DType::BF16, DType::F16])
}

/// The layout of a matrix: elements between rows and between batch entries, and the total.
#[derive(Clone, Copy)]
struct MatrixLayout {
    ld: usize,
    batch: [usize; 2],
    len: usize,
}

impl Product {
    fn layout(&self, rows: usize, columns: usize) -> MatrixLayout {
        let Batch { outer, inner } = self.batch;
        if self.interleaved {
            let ld = columns * inner + self.gap;
            return MatrixLayout { ld, batch: [rows * ld, columns], len: outer * rows * ld };
        }
        let ld = columns + self.gap;
        MatrixLayout { ld, batch: [inner * rows * ld, rows * ld], len: outer * inner * rows * ld }
    }

    fn layouts(&self) -> [MatrixLayout; 3] {
        let stored = |rows, columns, transposed| {
            if transposed { self.layout(columns, rows) } else { self.layout(rows, columns) }
        };
        let mut b = stored(self.k, self.n, self.transposed[1]);
        if self.shared {
            b.batch = [0, 0];
        }
        [stored(self.m, self.k, self.transposed[0]), b, self.layout(self.m, self.n)]
    }

    fn launch(&self, t: &[Tensor]) -> Result<Vec<Tensor>> {
        let [a, b, c] = self.layouts();
        let mut out = super::copy(&t[2])?;
        let device = out.device().clone();
        let mut pre = match self.epilogue {
            Some(_) if self.copies => Some(zeros(&device, &[self.m, self.n], t[0].dtype())?),
            _ => None,
        };
        let epilogue = match self.epilogue {
            None => Epilogue::default(),
            activation => Epilogue {
                bias: Some(t[3].view()?),
                activation,
                pre_activation: pre.as_mut().map(Tensor::view_mut).transpose()?,
                ..Epilogue::default()
            },
        };
        device.launch(Gemm {
            m: self.m,
            n: self.n,
            k: self.k,
            alpha: self.alpha,
            a: Matrix { view: t[0].view()?, ld: a.ld, transposed: self.transposed[0], batch: a.batch },
            b: Matrix { view: t[1].view()?, ld: b.ld, transposed: self.transposed[1], batch: b.batch },
            beta: self.beta,
            c: MatrixMut { view: out.view_mut()?, ld: c.ld, batch: c.batch },
            batch: self.batch,
            epilogue,
            fp8: self.fp8,
        })?;
        Ok([Some(out), pre].into_iter().flatten().collect())
    }

    /// The sums in f64; elements between the rows of `c` are unchanged.
    fn host(&self, t: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let [a, b, c] = self.layouts();
        let at = |layout: &MatrixLayout, transposed: bool, [outer, inner]: [usize; 2], row: usize, column: usize| {
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            outer * layout.batch[0] + inner * layout.batch[1] + row * layout.ld + column
        };
        let places = |rows: usize, columns: usize| (0..rows).flat_map(move |r| (0..columns).map(move |c| (r, c)));
        let of_a = places(self.m, self.k).map(|(row, i)| at(&a, self.transposed[0], [0, 0], row, i));
        let of_b = places(self.k, self.n).map(|(i, column)| at(&b, self.transposed[1], [0, 0], i, column));
        let factors = match self.fp8 {
            None => [t[0].clone(), t[1].clone()],
            Some(formats) => [rounded(&t[0], formats.a, of_a), rounded(&t[1], formats.b, of_b)],
        };
        let (mut out, mut pre) = (t[2].clone(), Vec::new());
        for entry in (0..self.batch.outer).flat_map(|outer| (0..self.batch.inner).map(move |inner| [outer, inner])) {
            for (row, column) in (0..self.m).flat_map(|row| (0..self.n).map(move |column| (row, column))) {
                let sum: f64 = (0..self.k)
                    .map(|i| {
                        factors[0][at(&a, self.transposed[0], entry, row, i)]
                            * factors[1][at(&b, self.transposed[1], entry, i, column)]
                    })
                    .sum();
                let place = &mut out[at(&c, false, entry, row, column)];
                let old = if self.beta == 0.0 { 0.0 } else { f64::from(self.beta) * *place };
                *place = f64::from(self.alpha) * sum + old;
                if let Some(activation) = self.epilogue {
                    *place += t[3][column];
                    if self.copies {
                        pre.push(*place);
                    }
                    *place = activate(activation, *place);
                }
            }
        }
        if pre.is_empty() { vec![out] } else { vec![out, pre] }
    }
}

/// The values with those at `places`, a matrix, in 8 bits: multiplied by its scale, rounded, and divided by it.
fn rounded(values: &[f64], format: Fp8Format, places: impl Iterator<Item = usize>) -> Vec<f64> {
    let places: Vec<usize> = places.collect();
    let largest = places.iter().map(|place| values[*place].abs()).fold(0.0, f64::max);
    let scale = format.scale(largest as f32);
    let mut rounded = values.to_vec();
    for place in places {
        let code = format.encode(values[place] as f32 * scale);
        rounded[place] = f64::from(format.decode(code)) / f64::from(scale);
    }
    rounded
}

/// Activations in f64, from their definitions.
fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Gelu => x * normal_distribution(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
    }
}

/// `Phi(x)` by its power series `1/2 + phi(x) (x + x^3/3 + x^5/15 + ..)`, exact to f64 for the few units it is used on.
pub(super) fn normal_distribution(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for i in 1..200 {
        term *= x * x / f64::from(2 * i + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

fn case(name: &str, product: Product) -> Case {
    let [a, b, c] = product.layouts();
    let b_len = if product.shared { b.len / (product.batch.outer * product.batch.inner) } else { b.len };
    let case =
        Case::kernel(format!("gemm/{name}/{}x{}x{}", product.m, product.n, product.k), move |_, t| product.launch(t))
            .constant("a", [a.len])
            .constant("b", [b_len])
            .deviation(1.0 / (product.k.max(1) as f32).sqrt())
            .constant("c", [c.len]);
    let case = if product.epilogue.is_some() { case.constant("bias", [product.n]) } else { case };
    case.expecting(move |t| product.host(t))
}
