//! Rows of layer norm and RMS norm.

use super::*;
use crate::ops::NormRule;

/// Results of a residual norm that a case uses.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Used {
    Both,
    Normalised,
    Sum,
}

pub(super) fn rows(cases: &mut Vec<Case>) {
    for (kind, name) in [(NormKind::Layer, "layer"), (NormKind::Rms, "rms")] {
        for bias in [true, false] {
            cases.push(norm(kind, name, bias, 6, 7));
            for dropped in [true, false] {
                for used in [Used::Both, Used::Normalised, Used::Sum] {
                    cases.push(residual(kind, name, bias, dropped, used, 4, 9));
                }
            }
        }
        cases.push(norm(kind, name, true, 1, 33));
        cases.push(norm(kind, name, true, 7, 130));
        cases.push(norm(kind, name, true, 300, 65).large());
        // Short rows in more groups than a block of a device adds up.
        cases.push(norm(kind, name, true, 70, 8).large());
        cases.push(residual(kind, name, true, true, Used::Both, 300, 65).large());
        cases.push(residual(kind, name, true, true, Used::Normalised, 300, 65).large());
        // Rows of whole packs, and rows longer than a block of a device holds.
        for (rows, columns) in [(9, 520), (3, 8203), (2, 8208)] {
            cases.push(norm(kind, name, true, rows, columns).large());
        }
        cases.push(residual(kind, name, true, true, Used::Normalised, 6, 528).large());
        cases.push(residual(kind, name, true, true, Used::Normalised, 5, 8203).large());
        let body = move |cx: &Ctx, v: &[Var]| ops::norm(cx, NormRule::new(kind, 1e-5), &v[0], &v[1], None);
        cases.push(Case::one(format!("norm/{name}/only weight"), body).constant("x", [5, 8]).leaf("weight", [8]));
        cases.push(Case::one(format!("norm/{name}/frozen weight"), body).variable("x", [5, 8]).constant("weight", [8]));
        let case = Case::one(format!("norm/{name}/f32 weight"), body)
            .variable("x", [5, 40])
            .leaf("weight", [40])
            .of(DType::F32);
        cases.push(case.dtypes(&[DType::BF16, DType::F16]));
        partly_frozen(cases, kind, name);
        for (rows, columns) in [(3, 7), (5, 40), (2, 8203)] {
            cases.push(from_one(kind, name, rows, columns));
        }
    }
}

fn norm(kind: NormKind, name: &str, bias: bool, rows: usize, columns: usize) -> Case {
    let suffix = if bias { "/bias" } else { "" };
    let case = Case::one(format!("norm/{name}{suffix}/{rows}x{columns}"), move |cx, v| {
        ops::norm(cx, NormRule::new(kind, 1e-3), &v[0], &v[1], v.get(2))
    });
    let case = case.variable("x", [rows, columns]).holding(Values::Normal(0.5, 1.5)).leaf("weight", [columns]);
    if bias { case.leaf("bias", [columns]) } else { case }
}

/// Weights that are differences from 1, alone and after a residual.
fn from_one(kind: NormKind, name: &str, rows: usize, columns: usize) -> Case {
    let rule = NormRule { weight_offset: 1.0, ..NormRule::new(kind, 1e-3) };
    let case = Case::op(format!("norm/{name}/weight offset/{rows}x{columns}"), move |cx, v| {
        let (sum, y) = ops::residual_norm(cx, rule, &v[0], &v[1], Some(mask()), &v[2], None)?;
        Ok(vec![sum, ops::norm(cx, rule, &y, &v[2], None)?])
    });
    let case = case.variable("x", [rows, columns]).variable("residual", [rows, columns]);
    let case = case.leaf("weight", [columns]).holding(Values::Normal(0.0, 0.3));
    if columns > 1000 { case.large() } else { case }
}

fn mask() -> Dropout {
    Dropout {
        threshold: 1 << 30,
        scale: 4.0 / 3.0,
        key: Key::new(3, "norm"),
        step: 1,
        micro_batch: 0,
        offset: 0,
        row_stride: 0,
    }
}

fn residual(kind: NormKind, name: &str, bias: bool, dropped: bool, used: Used, rows: usize, columns: usize) -> Case {
    let suffix = [if bias { "/bias" } else { "" }, if dropped { "/dropout" } else { "" }].concat();
    let dropout = dropped.then(mask);
    let case = Case::op(format!("residual_norm/{name}{suffix}/{used:?}/{rows}x{columns}"), move |cx, v| {
        let (sum, y) = ops::residual_norm(cx, NormRule::new(kind, 1e-3), &v[0], &v[1], dropout, &v[2], v.get(3))?;
        Ok(match used {
            Used::Both => vec![sum, y],
            Used::Normalised => vec![y],
            Used::Sum => vec![sum],
        })
    });
    let case = case.variable("x", [rows, columns]).variable("residual", [rows, columns]);
    // Nothing flows back to scale and shift through the sum alone.
    let affine =
        |case: Case, name| if used == Used::Sum { case.constant(name, [columns]) } else { case.leaf(name, [columns]) };
    let case = affine(case, "weight");
    if bias { affine(case, "bias") } else { case }
}

fn partly_frozen(cases: &mut Vec<Case>, kind: NormKind, name: &str) {
    for dropout in [None, Some(mask())] {
        let suffix = if dropout.is_some() { "/dropout" } else { "" };
        let row = |what: &str, both: bool| {
            Case::op(format!("residual_norm/{name}{suffix}/{what}"), move |cx, v| {
                let (sum, y) =
                    ops::residual_norm(cx, NormRule::new(kind, 1e-3), &v[0], &v[1], dropout, &v[2], Some(&v[3]))?;
                Ok(if both { vec![sum, y] } else { vec![y] })
            })
        };
        for both in [false, true] {
            let which = if both { " of both" } else { "" };
            let case = row(&format!("frozen x{which}"), both).constant("x", [4, 6]).variable("residual", [4, 6]);
            cases.push(case.leaf("weight", [6]).leaf("bias", [6]));
            let case = row(&format!("frozen residual{which}"), both).variable("x", [4, 6]).constant("residual", [4, 6]);
            cases.push(case.constant("weight", [6]).constant("bias", [6]));
            let case = row(&format!("only bias{which}"), both).constant("x", [4, 6]).constant("residual", [4, 6]);
            cases.push(case.constant("weight", [6]).leaf("bias", [6]));
        }
    }
    let same = Case::op(format!("residual_norm/{name}/dropout/residual is x"), move |cx, v| {
        let (sum, y) = ops::residual_norm(cx, NormRule::new(kind, 1e-3), &v[0], &v[0], Some(mask()), &v[1], None)?;
        Ok(vec![sum, y])
    });
    cases.push(same.variable("x", [4, 6]).leaf("weight", [6]));
}
