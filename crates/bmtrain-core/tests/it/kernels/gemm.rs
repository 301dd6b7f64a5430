//! Matrix products with epilogues and batches against plain loops in doubles.

use super::{FLOATS, assert_close, filled, rounding, sampled, with_any_threads};
use bmtrain_core::conformance::reference::activation as exact;
use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::*;

/// The four transposes, with leading dimensions above the width.
#[test]
fn products_with_bias_and_activation_agree_with_doubles() {
    for (m, n, k) in [(1, 1, 1), (5, 7, 3), (33, 40, 600), (3, 2, 0), (64, 130, 70)] {
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            for dtype in FLOATS {
                let (a_rows, a_ld) = if transpose_a { (k, m + 2) } else { (m, k + 2) };
                let (b_rows, b_ld) = if transpose_b { (n, k + 3) } else { (k, n + 3) };
                let [a, b, bias, c, copy, old] = with_any_threads(|device| {
                    let a = sampled(device, dtype, a_rows * a_ld, 1);
                    let b = sampled(device, dtype, b_rows * b_ld, 2);
                    let bias = sampled(device, DType::F32, n, 3);
                    let [mut c, old] = [(); 2].map(|()| sampled(device, dtype, m * n, 4));
                    let mut copy = filled(device, DType::F32, m * n, 0.0);
                    let left = Matrix { view: a.view()?, ld: a_ld, transposed: transpose_a, batch: [0, 0] };
                    let right = Matrix { view: b.view()?, ld: b_ld, transposed: transpose_b, batch: [0, 0] };
                    let epilogue = Epilogue {
                        bias: Some(bias.view()?),
                        activation: Some(Activation::Gelu),
                        pre_activation: Some(copy.view_mut()?),
                        ..Epilogue::default()
                    };
                    let gemm = Gemm::single([m, n, k], left, right, c.dest(false)?);
                    device.launch(Gemm { alpha: 0.5, beta: 2.0, epilogue, ..gemm })?;
                    Ok([a, b, bias, c, copy, old])
                });
                let at_a = |i: usize, p: usize| if transpose_a { a[p * a_ld + i] } else { a[i * a_ld + p] };
                let at_b = |p: usize, j: usize| if transpose_b { b[j * b_ld + p] } else { b[p * b_ld + j] };
                let value = |i: usize| {
                    let (row, column) = (i / n, i % n);
                    let sum: f64 = (0..k).map(|p| at_a(row, p) * at_b(p, column)).sum();
                    0.5 * sum + 2.0 * old[i] + bias[column]
                };
                let before: Vec<f64> = (0..m * n).map(value).collect();
                let after: Vec<f64> = before.iter().map(|x| exact(Activation::Gelu, *x).0).collect();
                // Sums of 600 terms as large as 4.
                assert_close("pre-activation", &copy, &before, 2e-5);
                assert_close("result", &c, &after, rounding(dtype) + 2e-5);
            }
        }
    }
}

/// Scores of every head, read in place from rows that hold all heads, and written back the same way.
#[test]
fn batches_over_sequences_and_heads_are_read_and_written_in_place() {
    let (batch, heads, rows, size) = (3, 4, 6, 5);
    let width = heads * size;
    let [x, weight, y] = with_any_threads(|device| {
        let x = sampled(device, DType::F32, batch * rows * width, 1);
        let weight = sampled(device, DType::F32, size * size, 2);
        let mut y = filled(device, DType::F32, batch * rows * width, 0.0);
        let strides = [rows * width, size];
        let heads_of_x = Matrix { view: x.view()?, ld: width, transposed: false, batch: strides };
        let right = Matrix::plain(weight.view()?, size);
        let mut gemm = Gemm::single([rows, size, size], heads_of_x, right, y.dest(false)?);
        (gemm.c.ld, gemm.c.batch) = (width, strides);
        device.launch(Gemm { batch: Batch { outer: batch, inner: heads }, ..gemm })?;
        Ok([x, weight, y])
    });
    let value = |i: usize| {
        let (row, head, column) = (i / width, i % width / size, i % size);
        (0..size).map(|p| x[row * width + head * size + p] * weight[p * size + column]).sum()
    };
    assert_close("heads", &y, &(0..x.len()).map(value).collect::<Vec<_>>(), 2e-6);
}
