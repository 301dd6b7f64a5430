//! Rows of ops that move rows: embeddings, permutations, slices, joins.

use super::*;
use crate::kernel::Dest;

pub(super) fn rows(cases: &mut Vec<Case>) {
    embeddings(cases);
    for (name, dims, axes) in [
        ("0213", [2, 3, 4, 5], [0, 2, 1, 3]),
        ("3210", [2, 3, 4, 5], [3, 2, 1, 0]),
        ("0132", [3, 1, 7, 9], [0, 1, 3, 2]),
        ("0123", [2, 3, 4, 5], [0, 1, 2, 3]),
    ] {
        cases.push(
            Case::one(format!("permute/{name}"), move |cx, v| ops::permute(cx, &v[0], &axes)).variable("x", dims),
        );
    }
    cases.push(
        Case::one("permute/0213", |cx, v| ops::permute(cx, &v[0], &[0, 2, 1, 3])).variable("x", [3, 40, 4, 64]).large(),
    );
    let body = |cx: &Ctx, v: &[Var]| ops::permute(cx, &v[0], &[1, 0]);
    cases.push(Case::one("permute/10", body).variable("x", [5, 7]));
    cases.push(Case::one("permute/10", body).variable("x", [200, 131]).large());
    slices(cases);
    many_rows(cases);
    permutations(cases);
    copies_of_rows(cases);
    for (add, gap) in [(false, 0), (false, 3), (true, 3)] {
        let name = format!("row_copy/gap {gap}{}", if add { "/added" } else { "" });
        let (rows, columns) = (6, 9);
        let (x_ld, out_ld) = (columns + gap, columns + 2 * gap);
        let span = move |ld: usize| (rows - 1) * ld + columns;
        let case = Case::kernel(name, move |device, t| {
            let mut out = copy(&t[1])?;
            device.launch(RowCopy { rows, columns, x_ld, x: t[0].view()?, out_ld, out: out.dest(add)? })?;
            Ok(vec![out])
        });
        cases.push(case.constant("x", [span(x_ld)]).constant("out", [span(out_ld)]).expecting(move |t| {
            let mut out = t[1].clone();
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let place = &mut out[row * out_ld + column];
                *place = t[0][row * x_ld + column] + if add { *place } else { 0.0 };
            }
            vec![out]
        }));
    }
}

fn embeddings(cases: &mut Vec<Case>) {
    // Rows that the padding index leaves out of the gradient, rows that it happens not to meet, and no padding index.
    for (padding, met) in [(None, false), (Some(5), false), (Some(0), true), (Some(3), true)] {
        let name = padding.map_or("".into(), |index: i64| format!("/padding {index}"));
        let (bound, special) = if met { (6, padding) } else { (5, None) };
        let case = Case::one(format!("embedding{name}"), move |cx, v| ops::embedding(cx, v[0].value(), &v[1], padding));
        let case = case.ids("ids", [3, 8], bound, special).leaf("table", [6, 5]);
        cases.push(if met { case.inexact() } else { case });
        let case = Case::op(format!("add_embedding{name}"), move |cx, v| {
            let x = ops::scale(cx, &v[0], 1.5)?;
            Ok(vec![ops::add_embedding(cx, x, v[1].value(), &v[2], padding)?])
        });
        let case = case.variable("x", [3, 8, 5]).ids("ids", [3, 8], bound, special).leaf("table", [6, 5]);
        cases.push(if met { case.inexact() } else { case });
        for add in [false, true] {
            cases.push(embedding_backward(
                &format!("{name}{}", if add { "/added" } else { "" }),
                padding,
                special,
                add,
            ));
        }
    }
    let body = |cx: &Ctx, v: &[Var]| ops::embedding(cx, v[0].value(), &v[1], None);
    cases.push(Case::one("embedding/table on the tape", body).ids("ids", [4], 9, None).variable("table", [9, 3]));
    cases.push(Case::one("embedding", body).ids("ids", [20, 31], 200, None).leaf("table", [200, 65]).large());
    let wide = Case::one("add_embedding/f32 x", |cx, v| {
        let x = ops::scale(cx, &v[0], 1.5)?;
        ops::add_embedding(cx, x, v[1].value(), &v[2], None)
    });
    let wide = wide.variable("x", [3, 8, 5]).of(DType::F32).ids("ids", [3, 8], 6, None).leaf("table", [6, 5]);
    cases.push(wide.dtypes(&[DType::BF16, DType::F16]));
    let shared = Case::op("add_embedding/shared x", |cx, v| {
        Ok(vec![ops::add_embedding(cx, v[0].clone(), v[1].value(), &v[2], None)?, ops::scale(cx, &v[0], 2.0)?])
    });
    cases.push(shared.variable("x", [8, 5]).ids("ids", [8], 6, None).leaf("table", [6, 5]));
}

fn embedding_backward(name: &str, padding_index: Option<i64>, special: Option<i64>, add: bool) -> Case {
    let (entries, columns) = (6, 5);
    Case::kernel(format!("embedding_backward{name}"), move |device, t| {
        let mut out = copy(&t[2])?;
        let dtable = out.dest(add)?;
        let (ids, dy) = (t[0].view()?, t[1].view()?);
        device.launch(EmbeddingBackward { entries, columns, ids, padding_index, dy, dtable })?;
        Ok(vec![out])
    })
    .ids("ids", [24], 6, special)
    .constant("dy", [24, columns])
    .constant("dtable", [entries, columns])
    .of(DType::F32)
    .expecting(move |t| {
        let mut table = if add { t[2].clone() } else { vec![0.0; entries * columns] };
        for (row, &id) in t[0].iter().enumerate().filter(|(_, id)| padding_index != Some(**id as i64)) {
            for column in 0..columns {
                table[id as usize * columns + column] += t[1][row * columns + column];
            }
        }
        vec![table]
    })
}

/// Sorts of several blocks and digits, runs of one id that are divided.
fn many_rows(cases: &mut Vec<Case>) {
    // Rows, entries, columns. Two entries are all rows in two runs; 70000 entries have ids of three digits.
    for (rows, entries, columns) in [(5000, 2, 24), (4500, 300, 13), (2100, 70_000, 8), (33, 1, 2056)] {
        for add in [false, true] {
            let name = format!("embedding_backward/{rows} of {entries}{}", if add { "/added" } else { "" });
            let case = Case::kernel(name, move |device, t| {
                let mut out = copy(&t[2])?;
                let dtable = out.dest(add)?;
                let (ids, dy) = (t[0].view()?, t[1].view()?);
                device.launch(EmbeddingBackward { entries, columns, ids, padding_index: None, dy, dtable })?;
                Ok(vec![out])
            });
            let case = case.ids("ids", [rows], entries as i64, None).constant("dy", [rows, columns]);
            let dtypes: &[DType] = if add { &[DType::BF16] } else { &[DType::F32, DType::F16] };
            cases.push(case.constant("dtable", [entries, columns]).dtypes(dtypes));
        }
    }
    let case = Case::kernel("embedding/an f32 table into parts", |device, t| {
        let mut out = copy(&t[2])?;
        let dest = Dest { view: out.view_mut()?.part(3, 70 * 24)?, add: true };
        device.launch(EmbeddingForward {
            entries: 9,
            columns: 24,
            table: t[1].view()?,
            ids: t[0].view()?,
            out: dest,
        })?;
        Ok(vec![out])
    });
    let case = case.ids("ids", [70], 9, None).constant("table", [9, 24]).of(DType::F32);
    cases.push(case.constant("out", [70 * 24 + 5]));
}

/// Every dtype, tiles of a transposition that are not full, sums.
fn permutations(cases: &mut Vec<Case>) {
    let launch = |device: &crate::Device, x: &crate::Tensor, out: &mut crate::Tensor, axes: [usize; 3], add| {
        let (mut all, mut order) = ([1; 6], [0, 1, 2, 3, 4, 5]);
        all[..3].copy_from_slice(&[3, 70, 67]);
        order[..3].copy_from_slice(&axes);
        device.launch(Permute { dims: all, axes: order, rank: 3, x: x.view()?, out: out.dest(add)? })
    };
    for axes in [[0, 2, 1], [2, 0, 1], [1, 0, 2]] {
        for add in [false, true] {
            let name = format!("permute/3x70x67 to {axes:?}{}", if add { "/added" } else { "" });
            let case = Case::kernel(name, move |device, t| {
                let mut out = copy(&t[1])?;
                launch(device, &t[0], &mut out, axes, add)?;
                Ok(vec![out])
            });
            cases.push(case.constant("x", [3, 70, 67]).constant("out", [3, 70, 67]));
        }
        let case = Case::kernel(format!("permute/integers to {axes:?}"), move |device, t| {
            let mut outs = vec![zeros(device, &[3 * 70 * 67], DType::I64)?, zeros(device, &[3 * 70 * 67], DType::U8)?];
            for (x, out) in t.iter().zip(&mut outs) {
                launch(device, x, out, axes, false)?;
            }
            Ok(outs)
        });
        let case = case.ids("ids", [3, 70, 67], 1 << 20, None).mask("mask", [3, 70, 67], 0);
        cases.push(case.dtypes(&[DType::F32]));
    }
    cases.push(
        Case::one("permute/531420", |cx, v| ops::permute(cx, &v[0], &[5, 3, 1, 4, 2, 0]))
            .variable("x", [2, 3, 2, 3, 2, 3]),
    );
}

fn copies_of_rows(cases: &mut Vec<Case>) {
    for (rows, columns, x_ld, out_ld, start) in
        [(5, 64, 72, 80, 8), (5, 64, 72, 80, 1), (1, 5000, 5000, 5000, 0), (700, 3, 3, 4, 0), (9, 1028, 1028, 1030, 0)]
    {
        let span = move |ld: usize| (rows - 1) * ld + columns;
        for add in [false, true] {
            let added = if add { "/added" } else { "" };
            let name = format!("row_copy/{rows}x{columns} from {start} on, {x_ld} to {out_ld} apart{added}");
            let case = Case::kernel(name, move |device, t| {
                let mut out = copy(&t[1])?;
                let dest = Dest { view: out.view_mut()?.part(start, span(out_ld))?, add };
                let x = t[0].view()?.part(start, span(x_ld))?;
                device.launch(RowCopy { rows, columns, x_ld, x, out_ld, out: dest })?;
                Ok(vec![out])
            });
            cases.push(case.constant("x", [start + span(x_ld)]).constant("out", [start + span(out_ld)]));
        }
        let case = Case::kernel(format!("row_copy/integers {rows}x{columns} from {start} on"), move |device, t| {
            let mut outs = Vec::new();
            for x in t {
                let mut out = zeros(device, &[start + span(out_ld)], x.dtype())?;
                let dest = Dest { view: out.view_mut()?.part(start, span(out_ld))?, add: false };
                let x = x.view()?.part(start, span(x_ld))?;
                device.launch(RowCopy { rows, columns, x_ld, x, out_ld, out: dest })?;
                outs.push(out);
            }
            Ok(outs)
        });
        let len = start + span(x_ld);
        cases.push(case.ids("ids", [len], 1 << 20, None).mask("mask", [len], 0).dtypes(&[DType::F32]));
    }
}

fn slices(cases: &mut Vec<Case>) {
    let one = Case::one("slice_last/middle", |cx, v| ops::slice_last(cx, &v[0], 2..5));
    cases.push(one.variable("x", [3, 2, 9]));
    let three = Case::op("slice_last/in three", |cx, v| {
        [0..3, 3..8, 8..9].into_iter().map(|range| ops::slice_last(cx, &v[0], range)).collect()
    });
    cases.push(three.variable("x", [4, 9]));
    cases.push(Case::one("slice_last/leaf", |cx, v| ops::slice_last(cx, &v[0], 1..4)).leaf("x", [4, 5]));
    for index in [0, 3] {
        let case = Case::one(format!("select_row/{index}"), move |cx, v| ops::select_row(cx, &v[0], index));
        cases.push(case.variable("x", [3, 4, 7]));
    }
    let concat = |cx: &Ctx, v: &[Var]| ops::concat_last(cx, &[&v[0], &v[1], &v[2]]);
    let case = Case::one("concat_last/three", concat).variable("a", [2, 3, 4]).constant("b", [2, 3, 1]);
    cases.push(case.leaf("c", [2, 3, 5]));
    let same = Case::one("concat_last/same variable twice", |cx, v| ops::concat_last(cx, &[&v[0], &v[0]]));
    cases.push(same.variable("x", [3, 4]));
    let case = Case::one("concat_last/three", concat).variable("a", [200, 64]).variable("b", [200, 33]);
    cases.push(case.variable("c", [200, 65]).large());
}
