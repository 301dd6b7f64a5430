//! Checked products: what is left of [`Product`] and [`BatchedProduct`] once every length and stride is known to fit.

use super::operand::{Matrix, Source, check_extent};
use super::shared::Shared;
use super::{Activation, BatchedProduct, Combination, Product};
use crate::error::{Error, Result};
use crate::shape::expect_apart;

#[derive(Clone, Copy)]
pub(super) struct GemmJob<'a> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) alpha: f32,
    pub(super) a: Matrix<'a>,
    pub(super) b: Matrix<'a>,
    pub(super) beta: f32,
    pub(super) c: Shared<'a>,
    pub(super) c_start: usize,
    pub(super) ldc: usize,
    pub(super) bias: Option<Source<'a>>,
    pub(super) pre_activation: Option<(Shared<'a>, usize)>,
    pub(super) activation: Option<Activation<'a>>,
    pub(super) combination: Option<(Source<'a>, usize, Combination<'a>)>,
}

impl<'a> GemmJob<'a> {
    pub(super) fn new(product: Product<'a>) -> Result<Self> {
        Self::with_reach(product, "gemm", [0; 3])
    }

    /// As [`GemmJob::new`], for products that move by up to `reach` elements in A, B and C.
    fn with_reach(product: Product<'a>, op: &'static str, reach: [usize; 3]) -> Result<Self> {
        let Product { m, n, k, alpha, a, b, beta, c, ldc, epilogue } = product;
        let a = Matrix::new(a, (m, k), reach[0], op, "A")?;
        let b = Matrix::new(b, (k, n), reach[1], op, "B")?;
        check_rows(c.len(), (m, n), ldc, reach[2], op, "C")?;
        if let Some(bias) = &epilogue.bias
            && bias.len() != n
        {
            return Err(Error::shape(op, "length of the bias", n, bias.len()));
        }
        if let Some((target, leading)) = &epilogue.pre_activation {
            check_rows(target.len(), (m, n), *leading, 0, op, "the pre-activation")?;
        }
        if let Some((source, leading, _)) = &epilogue.combination {
            check_rows(source.len(), (m, n), *leading, 0, op, "the saved pre-activation")?;
        }
        Ok(GemmJob {
            m,
            n,
            k,
            alpha,
            a,
            b,
            beta,
            c: Shared::new(c),
            c_start: 0,
            ldc,
            bias: epilogue.bias,
            pre_activation: epilogue.pre_activation.map(|(target, leading)| (Shared::new(target), leading)),
            activation: epilogue.activation,
            combination: epilogue.combination,
        })
    }

    pub(super) fn operations(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    pub(super) fn has_epilogue(&self) -> bool {
        self.bias.is_some() || self.changes_values()
    }

    /// Whether there is more to the epilogue than a bias.
    pub(super) fn changes_values(&self) -> bool {
        self.pre_activation.is_some() || self.activation.is_some() || self.combination.is_some()
    }
}

/// Checks a row-major matrix that is written: long enough, rows apart.
fn check_rows(
    len: usize,
    (m, n): (usize, usize),
    leading: usize,
    reach: usize,
    op: &'static str,
    name: &str,
) -> Result<()> {
    if m > 1 && leading < n {
        return Err(Error::shape(op, format!("row distance of {name}"), format!("at least {n}"), leading));
    }
    check_extent(len, &[(m, leading), (n, 1)], reach, op, name)
}

pub(super) struct Batch<'a> {
    pub(super) first: GemmJob<'a>,
    count: [usize; 3],
    a_stride: [usize; 3],
    b_stride: [usize; 3],
    c_stride: [usize; 3],
}

impl<'a> Batch<'a> {
    /// Checks every length, and that no two products write the same element.
    pub(super) fn new(batch: BatchedProduct<'a>) -> Result<Self> {
        const OP: &str = "gemm_batch";
        let BatchedProduct { first, count, a_stride, b_stride, c_stride } = batch;
        if first.epilogue.pre_activation.is_some() || first.epilogue.combination.is_some() {
            return Err(Error::argument(OP, "the epilogue of a batch may hold a bias and an activation only"));
        }
        let overflow =
            || Error::shape(OP, "size of the batch", "counts and strides that fit the address space", "more");
        count.iter().try_fold(1usize, |all, c| all.checked_mul(*c)).ok_or_else(overflow)?;
        let reach = |stride: [usize; 3]| {
            let far = |sum: usize, (c, s): (&usize, &usize)| sum.checked_add(c.saturating_sub(1).checked_mul(*s)?);
            count.iter().zip(&stride).try_fold(0, far).ok_or_else(overflow)
        };
        let reach = [reach(a_stride)?, reach(b_stride)?, reach(c_stride)?];
        let [outer, middle, inner] = [0, 1, 2].map(|level| (c_stride[level], count[level]));
        expect_apart([(1, first.n), (first.ldc, first.m), outer, middle, inner])
            .map_err(|got| Error::shape(OP, "strides of C", "no element written twice", got))?;
        Ok(Batch { first: GemmJob::with_reach(first, OP, reach)?, count, a_stride, b_stride, c_stride })
    }

    pub(super) fn count(&self) -> usize {
        self.count.iter().product()
    }

    /// Product `index`, the last level counting fastest.
    pub(super) fn job(&self, index: usize) -> GemmJob<'a> {
        let [_, y, z] = self.count;
        let at = [index / (y * z), index / z % y, index % z];
        let distance = |stride: &[usize; 3]| at.iter().zip(stride).map(|(i, s)| i * s).sum::<usize>();
        GemmJob {
            a: self.first.a.moved(distance(&self.a_stride)),
            b: self.first.b.moved(distance(&self.b_stride)),
            c_start: distance(&self.c_stride),
            ..self.first
        }
    }
}
