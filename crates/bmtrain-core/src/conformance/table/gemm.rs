//! Rows of projections and products as ops: linear, feed-forward, matmul.

use super::*;

pub(super) fn rows(cases: &mut Vec<Case>) {
    for activation in [None].into_iter().chain(Activation::ALL.map(Some)) {
        for bias in [true, false] {
            cases.push(linear(activation, bias, &[2, 3], 7, 5));
        }
    }
    cases.push(linear(None, true, &[1], 1, 1));
    cases.push(linear(Some(Activation::Gelu), true, &[1], 33, 17));
    cases.push(linear(None, true, &[3, 5], 64, 31));
    cases.push(linear(Some(Activation::Gelu), true, &[2, 96], 72, 160).large());
    cases.push(linear(None, true, &[1, 2], 256, 160).large());
    mixed(cases);
    frozen(cases);
    residuals(cases);
    low_rank(cases);
    scaling(cases);
    for activation in Activation::ALL {
        cases.push(feed_forward(activation, true, &[2, 3], [5, 9, 4]));
    }
    cases.push(feed_forward(Activation::Gelu, false, &[7], [6, 8, 6]));
    cases.push(feed_forward(Activation::Gelu, true, &[2, 64], [48, 130, 48]).large());
    for (activation, bias) in [(Activation::Silu, false), (Activation::GeluTanh, true), (Activation::Relu, false)] {
        cases.push(gated_feed_forward(activation, bias, &[2, 3], [5, 9, 4]));
    }
    cases.push(gated_feed_forward(Activation::Silu, true, &[1], [1, 1, 1]));
    cases.push(gated_feed_forward(Activation::Silu, false, &[2, 64], [48, 130, 48]).large());
    matmul(cases);
}

/// The deviation that keeps a sum of `terms` products of unit numbers at unit size.
fn unit(terms: usize) -> f32 {
    1.0 / (terms as f32).sqrt()
}

fn linear(activation: Option<Activation>, bias: bool, outer: &[usize], k: usize, n: usize) -> Case {
    let name = activation.map_or("none", Activation::name);
    let suffix = if bias { "/bias" } else { "" };
    let (m, outer) = (outer.iter().product::<usize>(), [outer, &[k]].concat());
    let case = Case::one(format!("linear/{name}{suffix}/{m}x{n}x{k}"), move |cx, v| {
        ops::linear(cx, &v[0], &v[1], v.get(2), activation)
    });
    let case = with_shape(case, "x", &outer).leaf("weight", [n, k]).deviation(unit(k));
    let case = if bias { case.leaf("bias", [n]) } else { case };
    kinked(case, activation)
}

fn with_shape(case: Case, name: &'static str, dims: &[usize]) -> Case {
    match *dims {
        [a, b, c] => case.variable(name, [a, b, c]),
        [a, b] => case.variable(name, [a, b]),
        _ => case.variable(name, [dims.iter().product::<usize>()]),
    }
}

/// Steps over the kink of a rectifier must be rare: within a small step none of the few inputs of these rows crosses
/// it.
fn kinked(case: Case, activation: Option<Activation>) -> Case {
    if activation == Some(Activation::Relu) { case.step(5e-4) } else { case }
}

/// Weights in f32 under activations of 16 bits.
fn mixed(cases: &mut Vec<Case>) {
    let case = Case::one("linear/gelu/bias/f32 weights", |cx, v| {
        ops::linear(cx, &v[0], &v[1], Some(&v[2]), Some(Activation::Gelu))
    });
    let case = case.variable("x", [6, 20]).leaf("weight", [9, 20]).deviation(unit(20)).of(DType::F32);
    cases.push(case.leaf("bias", [9]).of(DType::F32).dtypes(&[DType::BF16, DType::F16]));
}

/// Updates of all columns, of some, and of y where it is shared, is a constant, or is all that has a gradient.
fn low_rank(cases: &mut Vec<Case>) {
    let of_scaled = |first: usize, factor: f32| {
        move |cx: &Ctx, v: &[Var]| ops::add_low_rank(cx, ops::scale(cx, &v[0], 0.5)?, &v[1], &v[2], first, factor)
    };
    let all = Case::one("add_low_rank/all columns", of_scaled(0, 2.0)).variable("y", [2, 3, 5]);
    cases.push(all.variable("t", [2, 3, 4]).leaf("b", [5, 4]));
    let middle = Case::one("add_low_rank/middle", of_scaled(2, -0.5)).variable("y", [7, 9]);
    cases.push(middle.variable("t", [7, 3]).leaf("b", [4, 3]));
    let shared = Case::op("add_low_rank/shared y", |cx, v| {
        Ok(vec![ops::add_low_rank(cx, v[0].clone(), &v[1], &v[2], 1, 3.0)?, ops::scale(cx, &v[0], 2.0)?])
    });
    cases.push(shared.variable("y", [4, 6]).variable("t", [4, 2]).leaf("b", [3, 2]));
    let frozen_y = Case::one("add_low_rank/frozen y", of_scaled(0, 1.0)).constant("y", [4, 6]);
    cases.push(frozen_y.variable("t", [4, 2]).leaf("b", [3, 2]));
    let only_y = Case::one("add_low_rank/only y", of_scaled(3, 1.0)).variable("y", [4, 6]);
    cases.push(only_y.constant("t", [4, 2]).constant("b", [3, 2]));
    let large = Case::one("add_low_rank/large", of_scaled(64, 0.25)).variable("y", [150, 192]);
    cases.push(large.variable("t", [150, 16]).leaf("b", [96, 16]).large());
}

/// Columns times factors, in one band of rows and in several, in place and not; lengths of updated rows.
fn scaling(cases: &mut Vec<Case>) {
    let scale = |cx: &Ctx, v: &[Var]| ops::scale_columns(cx, v[0].clone(), &v[1], v.get(2));
    let plain = Case::one("scale_columns/2x3x7", scale).variable("x", [2, 3, 7]);
    cases.push(plain.leaf("factors", [7]));
    let biased = Case::one("scale_columns/bias", scale).variable("x", [5, 9]);
    cases.push(biased.leaf("factors", [9]).leaf("bias", [9]));
    let in_place = Case::one("scale_columns/in place", |cx, v| {
        ops::scale_columns(cx, ops::scale(cx, &v[0], 0.5)?, &v[1], Some(&v[2]))
    });
    cases.push(in_place.variable("x", [4, 6]).constant("factors", [6]).leaf("bias", [6]));
    let frozen_x = Case::one("scale_columns/frozen x", scale).constant("x", [4, 6]);
    cases.push(frozen_x.leaf("factors", [6]));
    let f32 = Case::one("scale_columns/f32 factors", scale).variable("x", [6, 20]);
    cases.push(f32.leaf("factors", [20]).of(DType::F32).dtypes(&[DType::BF16, DType::F16]));
    let bands = Case::one("scale_columns/several bands", scale).variable("x", [300, 1100]);
    cases.push(bands.leaf("factors", [1100]).leaf("bias", [1100]).large());
    let divide = Case::one("divide_by_norms", |cx, v| {
        let norms = ops::row_norms(cx, v[1].value())?;
        ops::divide_by_norms(cx, &v[0], &norms)
    });
    cases.push(divide.variable("values", [7]).constant("rows", [7, 12]));
    for (rows, columns, rank) in [(5, 7, 2), (300, 1100, 3)] {
        let (first, factor) = (2, 0.5);
        let case = Case::kernel(format!("updated_row_norms/{rows}x{columns}"), move |device, t| {
            let update = ops::RowUpdate { a: &t[1], b: &t[2], factor };
            let cx = Ctx::inference(device);
            let norms = ops::updated_row_norms(&cx, &t[0], first..first + rows, Some(update))?;
            Ok(vec![norms, ops::row_norms(&cx, &t[0])?])
        });
        let case = case.constant("weight", [rows + 4, columns]).constant("a", [rank, columns]);
        let case = case.constant("b", [rows, rank]).expecting(move |t| {
            let updated = |row: usize, column: usize| {
                let update = (0..rank).map(|r| t[2][row * rank + r] * t[1][r * columns + column]).sum::<f64>();
                t[0][(first + row) * columns + column] + f64::from(factor) * update
            };
            let updated = (0..rows).map(|row| (0..columns).map(|k| updated(row, k).powi(2)).sum::<f64>().sqrt());
            let plain = t[0].chunks(columns).map(|row| row.iter().map(|value| value * value).sum::<f64>().sqrt());
            vec![updated.collect(), plain.collect()]
        });
        cases.push(if rows > 100 { case.large() } else { case });
    }
}

/// Only some gradients are wanted.
fn frozen(cases: &mut Vec<Case>) {
    let body = |cx: &Ctx, v: &[Var]| Ok(vec![ops::linear(cx, &v[0], &v[1], Some(&v[2]), Some(Activation::Silu))?]);
    cases.push(Case::op("linear/frozen x", body).constant("x", [5, 6]).leaf("weight", [4, 6]).leaf("bias", [4]));
    cases.push(
        Case::op("linear/frozen weight", body).variable("x", [5, 6]).constant("weight", [4, 6]).leaf("bias", [4]),
    );
    cases.push(Case::op("linear/only bias", body).constant("x", [5, 6]).constant("weight", [4, 6]).leaf("bias", [4]));
    let variables = Case::op("linear/weight on the tape", body).variable("x", [5, 6]);
    cases.push(variables.variable("weight", [4, 6]).variable("bias", [4]));
    let body = |cx: &Ctx, v: &[Var]| {
        let (inner, outer) = (Some(&v[2]), Some(&v[4]));
        Ok(vec![ops::feed_forward(cx, &v[0], &v[1], inner, Activation::Gelu, &v[3], outer)?])
    };
    let case = Case::op("feed_forward/frozen w_out", body).variable("x", [4, 5]).leaf("w_in", [6, 5]).leaf("b_in", [6]);
    cases.push(case.constant("w_out", [3, 6]).constant("b_out", [3]));
    let case = Case::op("feed_forward/only w_out", body).constant("x", [4, 5]).constant("w_in", [6, 5]);
    cases.push(case.constant("b_in", [6]).leaf("w_out", [3, 6]).leaf("b_out", [3]));
    let case = Case::op("feed_forward/only x", body).variable("x", [4, 5]).constant("w_in", [6, 5]);
    cases.push(case.constant("b_in", [6]).constant("w_out", [3, 6]).constant("b_out", [3]));
    let body = |cx: &Ctx, v: &[Var]| {
        let (inner, outer) = (Some(&v[2]), Some(&v[4]));
        Ok(vec![ops::gated_feed_forward(cx, &v[0], &v[1], inner, Activation::Silu, &v[3], outer)?])
    };
    let case = Case::op("gated_feed_forward/frozen w_out", body).variable("x", [4, 5]).leaf("w_in", [12, 5]);
    cases.push(case.leaf("b_in", [12]).constant("w_out", [3, 6]).constant("b_out", [3]));
    let case = Case::op("gated_feed_forward/only w_out", body).constant("x", [4, 5]).constant("w_in", [12, 5]);
    cases.push(case.constant("b_in", [12]).leaf("w_out", [3, 6]).leaf("b_out", [3]));
    let case = Case::op("gated_feed_forward/only x", body).variable("x", [4, 5]).constant("w_in", [12, 5]);
    cases.push(case.constant("b_in", [12]).constant("w_out", [3, 6]).constant("b_out", [3]));
}

/// Results that are added to hidden states; also where these are what is multiplied, and where they alone have a
/// gradient.
fn residuals(cases: &mut Vec<Case>) {
    let linear = |cx: &Ctx, v: &[Var]| {
        let weight = ops::ProductWeight::from(&v[1]).plus(&v[2]);
        Ok(vec![ops::linear(cx, &v[0], weight, v.get(3), None)?])
    };
    let case = Case::op("linear/residual", linear).variable("x", [5, 6]).leaf("weight", [4, 6]);
    cases.push(case.variable("residual", [5, 4]).leaf("bias", [4]));
    let case = Case::op("linear/residual, packs", linear).variable("x", [2, 9, 16]).leaf("weight", [24, 16]);
    cases.push(case.deviation(unit(16)).variable("residual", [2, 9, 24]));
    let case = Case::op("linear/only residual", linear).constant("x", [5, 6]).constant("weight", [4, 6]);
    cases.push(case.variable("residual", [5, 4]));
    cases.push(
        Case::op("linear/onto x", |cx, v| {
            let weight = ops::ProductWeight::from(&v[1]).plus(&v[0]);
            Ok(vec![ops::linear(cx, &v[0], weight, None, None)?])
        })
        .variable("x", [5, 6])
        .leaf("weight", [6, 6]),
    );
    let case = Case::op("feed_forward/residual", |cx, v| {
        let (w_out, b_in, b_out) = (ops::ProductWeight::from(&v[3]).plus(&v[5]), Some(&v[2]), Some(&v[4]));
        Ok(vec![ops::feed_forward(cx, &v[0], &v[1], b_in, Activation::GeluTanh, w_out, b_out)?])
    });
    let case = case.variable("x", [4, 5]).leaf("w_in", [8, 5]).leaf("b_in", [8]).leaf("w_out", [3, 8]);
    cases.push(case.leaf("b_out", [3]).variable("residual", [4, 3]));
    let case = Case::op("gated_feed_forward/residual", |cx, v| {
        let w_out = ops::ProductWeight::from(&v[2]).plus(&v[3]);
        Ok(vec![ops::gated_feed_forward(cx, &v[0], &v[1], None, Activation::Silu, w_out, None)?])
    });
    let case = case.variable("x", [4, 5]).leaf("w_in", [12, 5]).leaf("w_out", [3, 6]);
    cases.push(case.variable("residual", [4, 3]));
}

fn feed_forward(activation: Activation, bias: bool, outer: &[usize], [d, f, e]: [usize; 3]) -> Case {
    let suffix = if bias { "/bias" } else { "" };
    let m = outer.iter().product::<usize>();
    let name = format!("feed_forward/{}{suffix}/{m}x{d}x{f}x{e}", activation.name());
    let case = Case::op(name, move |cx, v| {
        let (inner, outer) = if bias { (Some(&v[3]), Some(&v[4])) } else { (None, None) };
        Ok(vec![ops::feed_forward(cx, &v[0], &v[1], inner, activation, &v[2], outer)?])
    });
    let case = with_shape(case, "x", &[outer, &[d]].concat());
    let case = case.leaf("w_in", [f, d]).deviation(unit(d)).leaf("w_out", [e, f]).deviation(unit(f));
    let case = if bias { case.leaf("b_in", [f]).leaf("b_out", [e]) } else { case };
    kinked(case, Some(activation))
}

/// With weights and biases in the order of the op.
fn gated_feed_forward(activation: Activation, bias: bool, outer: &[usize], [d, f, e]: [usize; 3]) -> Case {
    let suffix = if bias { "/bias" } else { "" };
    let m = outer.iter().product::<usize>();
    let name = format!("gated_feed_forward/{}{suffix}/{m}x{d}x{f}x{e}", activation.name());
    let case = Case::op(name, move |cx, v| {
        let (inner, outer) = if bias { (Some(&v[3]), Some(&v[4])) } else { (None, None) };
        Ok(vec![ops::gated_feed_forward(cx, &v[0], &v[1], inner, activation, &v[2], outer)?])
    });
    let case = with_shape(case, "x", &[outer, &[d]].concat());
    let case = case.leaf("w_in", [2 * f, d]).deviation(unit(d)).leaf("w_out", [e, f]).deviation(unit(f));
    let case = if bias { case.leaf("b_in", [2 * f]).leaf("b_out", [e]) } else { case };
    kinked(case, Some(activation))
}

fn matmul(cases: &mut Vec<Case>) {
    let (m, n, k) = (3, 5, 7);
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let letters = format!("{}{}", if transpose_a { 't' } else { 'n' }, if transpose_b { 't' } else { 'n' });
        let row = |kind: &str| {
            Case::one(format!("matmul/{letters}/{kind}"), move |cx, v| {
                ops::matmul(cx, &v[0], &v[1], transpose_a, transpose_b)
            })
        };
        let [a, b] = [if transpose_a { [k, m] } else { [m, k] }, if transpose_b { [n, k] } else { [k, n] }];
        cases.push(row("single").variable("a", a).variable("b", b));
        cases.push(row("batched").variable("a", [2, 4, a[0], a[1]]).variable("b", [2, 4, b[0], b[1]]));
        cases.push(row("shared").variable("a", [4, a[0], a[1]]).leaf("b", b));
        let side = |rows: usize, columns: usize, swap: bool| if swap { [columns, rows] } else { [rows, columns] };
        let (a, b) = (side(96, 60, transpose_a), side(60, 130, transpose_b));
        let case = row("batched").variable("a", [3, a[0], a[1]]).variable("b", [3, b[0], b[1]]).deviation(unit(60));
        cases.push(case.large());
    }
    let square = Case::one("matmul/same variable twice", |cx, v| ops::matmul(cx, &v[0], &v[0], false, true));
    cases.push(square.variable("x", [2, 4, 3]));
}
