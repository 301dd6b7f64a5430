//! Rows of rotary positions.

use super::*;
use crate::ops::Rotary;

#[derive(Debug, Clone, Copy)]
struct Call {
    batch: usize,
    length: usize,
    heads: usize,
    head_size: usize,
    dims: usize,
    /// Elements of a row after the heads.
    tail: usize,
    layout: RotaryLayout,
    /// Rows have positions of their own.
    placed: bool,
}

const ENTRIES: usize = 70;

pub(super) fn rows(cases: &mut Vec<Case>) {
    for layout in [RotaryLayout::Halves, RotaryLayout::Pairs] {
        let small = Call { batch: 2, length: 5, heads: 2, head_size: 8, dims: 8, tail: 0, layout, placed: false };
        let mut row = |name: &str, call: Call| cases.push(case(name, call));
        row("whole heads", small);
        row("parts of heads", Call { dims: 6, ..small });
        row("parts of rows", Call { tail: 8, ..small });
        row("parts of heads and rows, placed", Call { head_size: 7, dims: 4, tail: 3, placed: true, ..small });
        row("one pair", Call { batch: 1, length: 1, heads: 1, head_size: 2, dims: 2, placed: true, ..small });
        row("nothing turns", Call { dims: 0, ..small });
        row("no head", Call { heads: 0, tail: 5, ..small });
        let wide = Call { length: 33, heads: 3, head_size: 64, dims: 64, tail: 64, ..small };
        cases.push(case("fused", wide).large());
        cases.push(case("fused, placed", Call { head_size: 80, dims: 32, placed: true, ..wide }).large());
        cases.push(case("odd", Call { head_size: 35, dims: 22, tail: 13, placed: true, ..wide }).large());
        cases.push(case("a head of many tiles", Call { heads: 1, head_size: 4500, dims: 4400, ..small }).large());
        kernels(cases, Call { head_size: 20, dims: 18, tail: 5, placed: true, ..small });
        kernels(cases, Call { length: 40, head_size: 64, dims: 32, tail: 64, ..small });
    }
    let shared = Case::op("rotary/shared x", |cx, v| {
        let options = Rotary {
            heads: 1,
            head_size: 6,
            dims: 6,
            layout: RotaryLayout::Halves,
            table: v[1].value(),
            positions: None,
        };
        Ok(vec![ops::rotary(cx, v[0].clone(), &options)?, ops::scale(cx, &v[0], 2.0)?])
    });
    cases.push(shared.variable("x", [2, 3, 6]).constant("table", [3, 6]).of(DType::F32));
}

fn name_of(name: &str, layout: RotaryLayout) -> String {
    match layout {
        RotaryLayout::Halves => format!("rotary/halves/{name}"),
        RotaryLayout::Pairs => format!("rotary/pairs/{name}"),
    }
}

/// The inputs after x: table, and positions if there are any. Any numbers are a table; between -1 and 1 they are like
/// one.
fn inputs(case: Case, call: &Call) -> Case {
    let case = case.constant("table", [ENTRIES, call.dims]).holding(Values::Uniform(-1.0, 1.0)).of(DType::F32);
    if call.placed { case.ids("positions", [call.batch, call.length], ENTRIES as i64, None) } else { case }
}

/// The op, on a value of its own that it may turn in place.
fn case(name: &str, call: Call) -> Case {
    let Call { batch, length, heads, head_size, dims, tail, layout, .. } = call;
    let case = Case::op(name_of(name, layout), move |cx, v| {
        let (table, positions) = (v[1].value(), v.get(2).map(|positions| positions.value()));
        let x = ops::scale(cx, &v[0], 1.5)?;
        let turned = ops::rotary(cx, x, &Rotary { heads, head_size, dims, layout, table, positions })?;
        Ok(vec![ops::scale(cx, &turned, 0.5)?])
    });
    inputs(case.variable("x", [batch, length, heads * head_size + tail]), &call)
}

/// The kernel alone: added, in place, turned back, against plain arithmetic.
fn kernels(cases: &mut Vec<Case>, call: Call) {
    let Call { batch, length, heads, head_size, dims, tail, layout, placed } = call;
    let (rows, columns) = (batch * length, heads * head_size + tail);
    for (label, in_place, add, inverse) in
        [("added", false, true, false), ("in place", true, false, false), ("turned back", false, false, true)]
    {
        let case = Case::kernel(name_of(&format!("{label}, heads of {head_size}"), layout), move |device, t| {
            let mut y = copy(&t[1])?;
            device.launch(RotaryApply {
                rows,
                length,
                columns,
                heads,
                head_size,
                dims,
                layout,
                inverse,
                entries: ENTRIES,
                table: t[2].view()?,
                positions: t.get(3).map(|positions| positions.view()).transpose()?,
                x: if in_place { None } else { Some(t[0].view()?) },
                y: y.dest(add)?,
            })?;
            Ok(vec![y])
        });
        let case = inputs(case.constant("x", [rows, columns]).constant("y", [rows, columns]), &call);
        cases.push(case.expecting(move |t| {
            let (x, mut y) = (if in_place { t[1].clone() } else { t[0].clone() }, t[1].clone());
            let mut put = |at: usize, value: f64| y[at] = if add { y[at] + value } else { value };
            for at in 0..rows * columns {
                let (row, column) = (at / columns, at % columns);
                let (element, half) = (column % head_size, dims / 2);
                if column >= heads * head_size || element >= dims {
                    put(at, x[at]);
                    continue;
                }
                let (angle, other, sign) = match layout {
                    RotaryLayout::Halves if element < half => (element, at + half, -1.0),
                    RotaryLayout::Halves => (element - half, at - half, 1.0),
                    RotaryLayout::Pairs if element % 2 == 0 => (element / 2, at + 1, -1.0),
                    RotaryLayout::Pairs => (element / 2, at - 1, 1.0),
                };
                let position = if placed { t[3][row] as usize } else { row % length };
                let (cosine, sine) = (t[2][position * dims + angle], t[2][position * dims + half + angle]);
                let sine = if inverse { -sine } else { sine };
                put(at, x[at] * cosine + sign * sine * x[other]);
            }
            vec![y]
        }));
    }
}
