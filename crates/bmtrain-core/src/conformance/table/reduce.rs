//! Rows of softmax, sums and norms of gradients.

use super::*;

pub(super) fn rows(cases: &mut Vec<Case>) {
    let softmax = |cx: &Ctx, v: &[Var]| ops::softmax(cx, &v[0]);
    let log_softmax = |cx: &Ctx, v: &[Var]| ops::log_softmax(cx, &v[0]);
    cases.push(Case::one("softmax/3x2x7", softmax).variable("x", [3, 2, 7]).deviation(2.0));
    cases.push(Case::one("softmax/1x33", softmax).variable("x", [1, 33]));
    cases.push(Case::one("softmax/300x101", softmax).variable("x", [300, 101]).large());
    cases.push(Case::one("log_softmax/3x2x7", log_softmax).variable("x", [3, 2, 7]).deviation(2.0));
    cases.push(Case::one("log_softmax/300x101", log_softmax).variable("x", [300, 101]).large());
    // Rows of whole packs, and rows longer than a block of a device holds.
    for (rows, columns) in [(9, 520), (3, 8203), (2, 8208)] {
        let shape = [rows, columns];
        cases.push(Case::one(format!("softmax/{rows}x{columns}"), softmax).variable("x", shape).large());
        cases.push(Case::one(format!("log_softmax/{rows}x{columns}"), log_softmax).variable("x", shape).large());
    }
    for log in [false, true] {
        cases.push(masked_softmax(log));
    }
    for shape in [[3, 11], [1, 5], [7, 1]] {
        let name = format!("{}x{}", shape[0], shape[1]);
        cases.push(Case::one(format!("sum/{name}"), |cx, v| ops::sum(cx, &v[0])).variable("x", shape));
        cases.push(Case::one(format!("mean/{name}"), |cx, v| ops::mean(cx, &v[0])).variable("x", shape));
    }
    // Of numbers whose mean is not nearly zero: the roundings of a sum are as large as its terms, not as the sum.
    let mean = Case::one("mean/300x101", |cx, v| ops::mean(cx, &v[0])).variable("x", [300, 101]);
    cases.push(mean.holding(Values::Normal(0.5, 1.0)).large());
    for (name, rows, columns) in
        [("5x7", 5, 7), ("1x9", 1, 9), ("0x5", 0, 5), ("700x66", 700, 66), ("5000x3", 5000, 3), ("70x600", 70, 600)]
    {
        for add in [false, true] {
            cases.push(column_sum(
                &format!("column_sum/{name}{}", if add { "/added" } else { "" }),
                rows,
                columns,
                add,
            ));
        }
    }
    grad_norms(cases);
}

/// Rows that are masked throughout or in part, or hold infinity or what is not a number; read from where no pack
/// begins.
fn masked_softmax(log: bool) -> Case {
    const ROWS: usize = 5;
    const COLUMNS: usize = 70;
    let name = if log { "log_softmax/masked" } else { "softmax/masked" };
    Case::kernel(name, move |device, t| {
        let mut x = copy(&t[0])?;
        let specials = [(0, COLUMNS, f32::NEG_INFINITY), (70, 40, f32::NEG_INFINITY), (199, 1, f32::INFINITY)];
        for (start, len, value) in specials.into_iter().chain([(280, 1, f32::NAN)]) {
            device.launch(Fill { value, out: x.view_mut()?.part(1 + start, len)? })?;
        }
        let (mut y, mut dx) = (zeros(device, &[ROWS, COLUMNS], x.dtype())?, copy(&t[2])?);
        let x = x.view()?.part(1, ROWS * COLUMNS)?;
        device.launch(Softmax { rows: ROWS, columns: COLUMNS, log, x, y: y.view_mut()? })?;
        let dest = dx.dest(true)?;
        let (rows, columns) = (ROWS, COLUMNS);
        device.launch(SoftmaxBackward { rows, columns, log, y: y.view()?, dy: t[1].view()?, dx: dest })?;
        Ok(vec![y, dx])
    })
    .constant("x", [ROWS * COLUMNS + 1])
    .constant("dy", [ROWS, COLUMNS])
    .constant("dx", [ROWS, COLUMNS])
}

fn column_sum(name: &str, rows: usize, columns: usize, add: bool) -> Case {
    Case::kernel(name, move |device, t| {
        let mut out = copy(&t[1])?;
        device.launch(ColumnSum { rows, columns, x: t[0].view()?, out: out.dest(add)? })?;
        Ok(vec![out])
    })
    .constant("x", [rows, columns])
    .constant("out", [columns])
    .of(DType::F32)
    .expecting(move |t| {
        let column = |c: usize| t[0].iter().skip(c).step_by(columns).sum::<f64>() + if add { t[1][c] } else { 0.0 };
        vec![(0..columns).map(column).collect()]
    })
}

fn norm_of(device: &Device, order: NormOrder, words: &Tensor) -> Result<Vec<Tensor>> {
    let (mut norm, mut factor) = (zeros(device, &[1], DType::F32)?, zeros(device, &[1], DType::F32)?);
    device.launch(ClipFactor {
        order,
        max_norm: f32::INFINITY,
        scale: 1.0,
        accumulated: words.view()?,
        norm: norm.view_mut()?,
        factor: factor.view_mut()?,
    })?;
    Ok(vec![norm])
}

fn grad_norms(cases: &mut Vec<Case>) {
    for (order, name) in [(NormOrder::Two, "2-norm"), (NormOrder::Infinity, "largest")] {
        for (n, more) in [(7, 0), (1001, 3), (300, 70_000)] {
            let case = Case::kernel(format!("grad_norm/{name}/{n} and {more}"), move |device, t| {
                let mut words = Tensor::full_in(device, [WORDS], DType::I64, 0.0, Segment::Workspace)?;
                for (x, add) in [(&t[0], false), (&t[1], true)] {
                    device.launch(GradNorm { order, xs: vec![x.view()?], out: words.dest(add)? })?;
                }
                norm_of(device, order, &words)
            });
            let case = case.constant("x", [n]).constant("more", [more]);
            cases.push(case.expecting(move |t| {
                let all = t[0].iter().chain(&t[1]);
                vec![vec![match order {
                    NormOrder::Two => all.map(|x| x * x).sum::<f64>().sqrt(),
                    NormOrder::Infinity => all.fold(0.0, |most, x| most.max(x.abs())),
                }]]
            }));
        }
    }
    for (name, factor, expected) in
        [("finite", 1.0, 0.0), ("infinite", f32::INFINITY, 1.0), ("not a number", f32::NAN, 1.0)]
    {
        let case = Case::kernel(format!("non_finite/{name}"), move |device, t| {
            // One element among many, far from the start.
            let mut x = copy(&t[0])?;
            let part = x.view_mut()?.part(40_001, 1)?;
            device.launch(Fill { value: factor, out: part })?;
            let mut flag = Tensor::full_in(device, [1], DType::I32, 0.0, Segment::Workspace)?;
            device.launch(NonFinite { x: x.view()?, flag: flag.view_mut()? })?;
            Ok(vec![flag])
        });
        cases.push(case.constant("x", [50_000]).expecting(move |_| vec![vec![expected]]));
    }
}
