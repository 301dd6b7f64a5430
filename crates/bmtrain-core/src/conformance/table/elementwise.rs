//! Rows of elementwise ops and kernels.

use super::*;

pub(super) fn rows(cases: &mut Vec<Case>) {
    for activation in Activation::ALL {
        let step = if activation == Activation::Relu { 1e-3 } else { 1e-2 };
        let body = move |cx: &Ctx, v: &[Var]| ops::activation(cx, &v[0], activation);
        cases.push(
            Case::one(format!("activation/{}", activation.name()), body)
                .variable("x", [3, 37])
                .deviation(2.0)
                .step(step),
        );
        cases.push(
            Case::one(format!("activation/{}", activation.name()), body)
                .variable("x", [300, 257])
                .deviation(2.0)
                .large(),
        );
        let body = move |cx: &Ctx, v: &[Var]| ops::gated(cx, &v[0], activation);
        cases.push(Case::one(format!("gated/{}", activation.name()), body).variable("x", [2, 4, 26]).step(step));
        cases.push(Case::one(format!("gated/{}", activation.name()), body).variable("x", [300, 258]).large());
    }
    arithmetic(cases);
    kernels(cases);
    casts(cases);
    types_and_places(cases);
}

fn arithmetic(cases: &mut Vec<Case>) {
    let add = |cx: &Ctx, v: &[Var]| ops::add(cx, &v[0], &v[1]);
    cases.push(Case::one("add", add).variable("a", [3, 19]).leaf("b", [3, 19]));
    cases.push(Case::one("add", add).variable("a", [300, 211]).variable("b", [300, 211]).large());
    cases.push(Case::one("add/same variable twice", |cx, v| ops::add(cx, &v[0], &v[0])).variable("x", [23]));
    cases.push(Case::one("scale", |cx, v| ops::scale(cx, &v[0], -1.75)).variable("x", [5, 9]));
    let mul = |cx: &Ctx, v: &[Var]| ops::mul(cx, &v[0], &v[1]);
    cases.push(Case::one("mul", mul).variable("a", [3, 19]).leaf("b", [3, 19]));
    cases.push(Case::one("mul/constant", mul).variable("a", [3, 19]).constant("b", [3, 19]));
    cases.push(Case::one("mul", mul).variable("a", [300, 211]).variable("b", [300, 211]).large());
    cases.push(Case::one("mul/same variable twice", |cx, v| ops::mul(cx, &v[0], &v[0])).variable("x", [23]));
    let fan = Case::op("fan-out with an unused result", |cx, v| {
        let square = ops::mul(cx, &v[0], &v[0])?;
        ops::scale(cx, &square, 3.0)?;
        let (a, b) = (ops::add(cx, &square, &v[0])?, ops::scale(cx, &square, 0.5)?);
        Ok(vec![ops::mul(cx, &a, &b)?, a])
    });
    cases.push(fan.variable("x", [17]));
    let dropout = Dropout {
        threshold: 1 << 30,
        scale: 4.0 / 3.0,
        key: Key::new(7, "dropout"),
        step: 3,
        micro_batch: 1,
        offset: 0,
        row_stride: 0,
    };
    let body = move |cx: &Ctx, v: &[Var]| ops::dropout(cx, &v[0], Some(dropout));
    cases.push(Case::one("dropout/a quarter", body).variable("x", [3, 21]));
    cases.push(Case::one("dropout/a quarter", body).variable("x", [300, 211]).large());
    let shard = Dropout { offset: 5, row_stride: 50, threshold: 1 << 31, scale: 2.0, ..dropout };
    cases.push(
        Case::one("dropout/half of a shard", move |cx, v| ops::dropout(cx, &v[0], Some(shard))).variable("x", [3, 21]),
    );
    let body = move |cx: &Ctx, v: &[Var]| {
        let a = ops::dropout(cx, &v[0], Some(dropout))?;
        Ok(vec![ops::add(cx, &a, &v[0])?])
    };
    cases.push(Case::op("dropout/beside a residual", body).variable("x", [3, 21]));
    cases.push(Case::one("dropout/none", |cx, v| ops::dropout(cx, &v[0], None)).variable("x", [3, 7]));
}

fn kernels(cases: &mut Vec<Case>) {
    let row = |name: &str, alpha: f32, beta: f32, apart: bool| {
        Case::kernel(format!("add_scaled/{name}"), move |device, t| {
            let mut out = copy(&t[2])?;
            let b = if apart { Some(t[1].view()?) } else { None };
            device.launch(AddScaled { alpha, a: t[0].view()?, beta, b, out: out.view_mut()? })?;
            Ok(vec![out])
        })
        .constant("a", [201])
        .constant("b", [201])
        .constant("out", [201])
        .expecting(move |t| {
            let b = if apart { &t[1] } else { &t[2] };
            vec![t[0].iter().zip(b).map(|(a, b)| f64::from(alpha) * a + f64::from(beta) * b).collect()]
        })
    };
    cases.push(row("two terms", 0.5, 2.0, true));
    cases.push(row("into itself", 0.5, 2.0, false));
    cases.push(row("one term", 0.5, 0.0, true));
    let multiply = |name: &str, apart: bool, add: bool| {
        Case::kernel(format!("multiply/{name}"), move |device, t| {
            let mut out = copy(&t[2])?;
            let b = if apart { Some(t[1].view()?) } else { None };
            device.launch(Multiply { a: t[0].view()?, b, out: out.dest(add)? })?;
            Ok(vec![out])
        })
        .constant("a", [201])
        .constant("b", [201])
        .constant("out", [201])
        .expecting(move |t| {
            let b = if apart { &t[1] } else { &t[2] };
            let old = |i: usize| if add { t[2][i] } else { 0.0 };
            vec![t[0].iter().zip(b).enumerate().map(|(i, (a, b))| a * b + old(i)).collect()]
        })
    };
    cases.push(multiply("apart", true, false));
    cases.push(multiply("added", true, true));
    cases.push(multiply("in place", false, false));
    let fill = Case::kernel("fill", |device, t| {
        let mut outs = vec![copy(&t[0])?, zeros(device, &[7], DType::I32)?, zeros(device, &[7], DType::U8)?];
        outs.push(zeros(device, &[1001], DType::I64)?);
        for out in &mut outs {
            device.launch(Fill { value: 3.0, out: out.view_mut()? })?;
        }
        Ok(outs)
    });
    cases.push(
        fill.constant("out", [201]).expecting(|_| vec![vec![3.0; 201], vec![3.0; 7], vec![3.0; 7], vec![3.0; 1001]]),
    );
}

fn casts(cases: &mut Vec<Case>) {
    for to in [DType::F32, DType::BF16, DType::F16] {
        for add in [false, true] {
            let name = format!("cast/to {to}{}", if add { "/added" } else { "" });
            let case = Case::kernel(name, move |device, t| {
                let mut out = copy(&t[1])?;
                device.launch(Cast { x: t[0].view()?, out: out.dest(add)? })?;
                Ok(vec![out])
            });
            cases.push(case.constant("x", [333]).constant("out", [333]).of(to));
        }
    }
    let ids = Case::kernel("cast/from integers", |device, t| {
        let mut out = zeros(device, &[31], DType::F32)?;
        device.launch(Cast { x: t[0].view()?, out: out.dest(false)? })?;
        Ok(vec![out])
    });
    let ids = ids.ids("ids", [31], 1000, Some(-100)).expecting(|t| vec![t[0].clone()]);
    cases.push(ids.dtypes(&[DType::F32]));
    let mask = Case::kernel("cast/from bytes", |device, t| {
        let mut out = zeros(device, &[31], DType::F32)?;
        device.launch(Cast { x: t[0].view()?, out: out.dest(false)? })?;
        Ok(vec![out])
    });
    cases.push(mask.mask("mask", [31], 0).expecting(|t| vec![t[0].clone()]).dtypes(&[DType::F32]));
    // Rounding has no useful finite difference; in f32 the op is the identity.
    let op = Case::op("cast/op to f32 and back", |cx, v| {
        let wide = ops::cast(cx, &v[0], DType::F32)?;
        Ok(vec![ops::cast(cx, &wide, v[0].dtype())?, ops::scale(cx, &wide, 2.0)?])
    });
    cases.push(op.variable("x", [3, 11]).holding(Values::Uniform(-2.0, 2.0)));
}

/// Operands of different dtypes, operands that do not begin at a multiple of 16 bytes, rows with gaps between them.
fn types_and_places(cases: &mut Vec<Case>) {
    for add in [false, true] {
        let name = format!("activation/backward of mixed types{}", if add { "/added" } else { "" });
        let case = Case::kernel(name, move |device, t| {
            let mut out = copy(&t[2])?;
            let dx = out.dest(add)?;
            let activation = Activation::Silu;
            device.launch(ActivationBackward { activation, x: t[0].view()?, dy: t[1].view()?, dx })?;
            Ok(vec![out])
        });
        cases.push(case.constant("x", [77]).of(DType::F32).constant("dy", [77]).constant("dx", [77]).of(DType::BF16));
    }
    let sums = Case::kernel("add_scaled/parts of tensors of mixed types", |device, t| {
        let mut out = copy(&t[2])?;
        let (a, b) = (t[0].view()?.part(1, 4099)?, t[1].view()?.part(3, 4099)?);
        device.launch(AddScaled { alpha: 0.5, a, beta: -2.0, b: Some(b), out: out.view_mut()?.part(2, 4099)? })?;
        Ok(vec![out])
    });
    let sums = sums.constant("a", [4100]).constant("b", [4102]).of(DType::F32).constant("out", [4104]);
    cases.push(sums.expecting(|t| {
        let sum = |i: usize| match i.checked_sub(2) {
            Some(i) if i < 4099 => 0.5 * t[0][i + 1] - 2.0 * t[1][i + 3],
            _ => t[2][i],
        };
        vec![(0..4104).map(sum).collect()]
    }));
    for (columns, gap) in [(40, 8), (13, 5), (4104, 0)] {
        let (rows, ld) = (5, columns + gap);
        let case = Case::kernel(format!("gated/{columns} columns with gaps of {gap}"), move |device, t| {
            let mut y = zeros(device, &[rows, columns], t[0].dtype())?;
            let (activation, gate, up) = (Activation::Gelu, t[0].view()?, t[1].view()?);
            device.launch(GatedForward { activation, rows, columns, ld, gate, up, y: y.view_mut()? })?;
            Ok(vec![y])
        });
        let span = (rows - 1) * ld + columns;
        cases.push(case.constant("gate", [span]).constant("up", [span]));
    }
    let case = Case::kernel("cast/from large integers", |device, t| {
        let mut outs = Vec::new();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let mut out = zeros(device, &[999], dtype)?;
            device.launch(Cast { x: t[0].view()?, out: out.dest(true)? })?;
            outs.push(out);
        }
        Ok(outs)
    });
    // Up to the largest number of f16; about half of them need a rounding there, and -2049 has a tie.
    cases.push(case.ids("ids", [999], 65_504, Some(-2049)).dtypes(&[DType::F32]));
    let case = Case::kernel("cast/from i32", |device, _| {
        let mut x = zeros(device, &[999], DType::I32)?;
        device.launch(Fill { value: -70_001.0, out: x.view_mut()? })?;
        let mut out = zeros(device, &[999], DType::BF16)?;
        device.launch(Cast { x: x.view()?, out: out.dest(false)? })?;
        Ok(vec![out])
    });
    // Multiples of 512 there.
    cases.push(case.constant("unused", [1]).dtypes(&[DType::F32]).expecting(|_| vec![vec![-70_144.0; 999]]));
}
