//! Rows of cross-entropies over shards and in chunks.

use super::*;
use crate::comm::Solo;
use crate::conformance::values::{self, Host};
use crate::kernel::Dest;
use crate::ops::{CrossEntropy, LinearCrossEntropy, Reduction, VocabularyShard};
use std::sync::Arc;

pub(super) fn rows(cases: &mut Vec<Case>) {
    heads(cases);
    on_one_rank(cases);
    // Rows, columns with padding, and the classes of each shard: also none, one, unaligned rows and rows longer than a
    // block.
    let parts: [(usize, usize, &[usize]); 8] = [
        (5, 8, &[8]),
        (7, 8, &[5, 3, 0, 8]),
        (3, 1, &[1, 0, 1]),
        (9, 13, &[13, 12, 1]),
        (4, 264, &[257, 264]),
        (2, 9001, &[9001, 8999]),
        (3, 17_000, &[16_999]),
        (4, 3, &[3, 3, 3, 3, 3, 3, 3, 2]),
    ];
    for (rows, columns, counts) in parts {
        for (smoothing, weighted) in [(0.0, false), (0.1, false), (0.2, true)] {
            cases.push(kernels(rows, columns, counts, Terms { smoothing, weighted, ..Terms::default() }));
        }
    }
    let capped = Terms { smoothing: 0.2, weighted: true, soft_cap: Some(2.5), ..Terms::default() };
    cases.push(kernels(7, 8, &[5, 3, 0, 8], capped));
    cases.push(kernels(4, 264, &[257, 264], Terms { smoothing: 0.0, weighted: false, ..capped }));
    cases.push(kernels(2, 9001, &[9001, 8999], capped));
    for (rows, columns, count) in [(7, 8, 5), (9, 13, 13), (4, 264, 257), (2, 17_000, 16_999)] {
        cases.push(in_place(rows, columns, count, capped));
        cases.push(in_place(rows, columns, count, Terms { smoothing: 0.0, weighted: false, ..capped }));
    }
    // Also rows in several packs of a thread, and without gaps between them, which then are not aligned.
    for (rows, columns, count) in
        [(7, 8, 5), (3, 2, 2), (9, 13, 13), (4, 264, 257), (2, 17_000, 16_999), (2, 20_001, 20_001)]
    {
        for (smoothing, weighted) in [(0.0, false), (0.1, false), (0.2, true)] {
            cases.push(in_place(rows, columns, count, Terms { smoothing, weighted, ..Terms::default() }));
        }
    }
    let mixed = Terms { smoothing: 0.1, mixed: true, ..Terms::default() };
    cases.push(kernels(6, 24, &[24, 20], Terms { weighted: true, ..mixed }));
    cases.push(kernels(300, 1000, &[999, 1000], mixed).large());
    unusual(cases);
    totals(cases);
    scaling(cases);
}

/// The head of a language model, in several chunks, or with all logits kept.
fn heads(cases: &mut Vec<Case>) {
    for (name, chunk_bytes) in [("chunks", 64), ("held", 1 << 20)] {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            for (smoothing, weighted, ignored) in [(0.0, false, false), (0.1, false, true), (0.2, true, true)] {
                let mut row = format!("linear_cross_entropy/{name}/{reduction:?}");
                for (on, word) in [(smoothing > 0.0, "/smoothing"), (weighted, "/weights"), (ignored, "/ignored")] {
                    row.push_str(if on { word } else { "" });
                }
                let body = head(chunk_bytes, reduction, smoothing);
                let case = Case::op(row, body).variable("hidden", [31, 3]).leaf("weight", [7, 3]).leaf("bias", [7]);
                let case = case.ids("targets", [31], 7, ignored.then_some(-100));
                let weights = Values::Uniform(0.2, 2.0);
                cases.push(match weighted {
                    true => case.constant("weights", [7]).holding(weights).of(DType::F32),
                    false => case,
                });
            }
        }
    }
    for (name, chunk_bytes) in [("chunks", 64), ("held", 1 << 20)] {
        for reduction in [Reduction::Mean, Reduction::None] {
            let body = move |cx: &Ctx, v: &[Var]| {
                let loss = CrossEntropy { soft_cap: Some(1.5), reduction, ..CrossEntropy::default() };
                let options = LinearCrossEntropy { loss, chunk_bytes, shard: None };
                Ok(vec![ops::linear_cross_entropy(cx, &v[0], &v[1], None, v[2].value(), &options)?])
            };
            let case = Case::op(format!("linear_cross_entropy/{name}/{reduction:?}/soft cap"), body);
            let case = case.variable("hidden", [31, 3]).leaf("weight", [7, 3]);
            cases.push(case.ids("targets", [31], 7, Some(-100)));
        }
    }
    let mean = |chunk_bytes| head(chunk_bytes, Reduction::Mean, 0.1);
    let named = |name: &str, chunk_bytes| Case::op(format!("linear_cross_entropy/{name}"), mean(chunk_bytes));
    let targets = |case: Case| case.ids("targets", [29], 11, Some(-100));
    let frozen = named("frozen weight", 128).variable("hidden", [29, 4]).constant("weight", [11, 4]);
    cases.push(targets(frozen.constant("bias", [11])));
    let frozen = named("frozen hidden", 128).constant("hidden", [29, 4]).leaf("weight", [11, 4]);
    cases.push(targets(frozen.leaf("bias", [11])));
    let bias = named("only bias", 128).constant("hidden", [29, 4]).constant("weight", [11, 4]);
    cases.push(targets(bias.leaf("bias", [11])));
    let tape = named("weight on the tape", 128).variable("hidden", [29, 4]).variable("weight", [11, 4]);
    cases.push(targets(tape.variable("bias", [11])));
    let wide = named("f32 weights", 128).variable("hidden", [29, 4]).leaf("weight", [11, 4]).of(DType::F32);
    cases.push(targets(wide.leaf("bias", [11]).of(DType::F32)).dtypes(&[DType::BF16, DType::F16]));
    let large =
        named("rows of 64", 64 * 1000 * 4).variable("hidden", [300, 16]).leaf("weight", [1000, 16]).deviation(0.25);
    cases.push(large.leaf("bias", [1000]).ids("targets", [300], 1000, Some(-100)).large());
}

fn head(chunk_bytes: usize, reduction: Reduction, smoothing: f32) -> impl Fn(&Ctx, &[Var]) -> Result<Vec<Var>> {
    move |cx, v| {
        let class_weights = v.get(4).map(|weights| weights.value().clone());
        let loss = CrossEntropy { label_smoothing: smoothing, class_weights, reduction, ..CrossEntropy::default() };
        let options = LinearCrossEntropy { loss, chunk_bytes, shard: None };
        Ok(vec![ops::linear_cross_entropy(cx, &v[0], &v[1], Some(&v[2]), v[3].value(), &options)?])
    }
}

/// A group of one rank has all classes.
fn on_one_rank(cases: &mut Vec<Case>) {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        for filling in [0, 3] {
            let body = move |cx: &Ctx, v: &[Var]| {
                let options = CrossEntropy { label_smoothing: 0.1, reduction, ..CrossEntropy::default() };
                let shard = VocabularyShard::new(Arc::new(Solo), 9);
                Ok(vec![ops::vocabulary_cross_entropy(cx, &v[0], v[1].value(), &shard, &options)?])
            };
            let case = Case::op(format!("vocabulary_cross_entropy/{reduction:?}/{filling} of filling"), body);
            let case = case.variable("logits", [2, 3, 9 + filling]).deviation(2.0);
            cases.push(case.ids("targets", [2, 3], 9, Some(-100)));
        }
    }
    let in_place = Case::op("vocabulary_cross_entropy/logits of its own", |cx, v| {
        let (logits, shard) = (ops::scale(cx, &v[0], 1.5)?, VocabularyShard::new(Arc::new(Solo), 6));
        Ok(vec![ops::vocabulary_cross_entropy(cx, &logits, v[1].value(), &shard, &CrossEntropy::default())?])
    });
    cases.push(in_place.variable("x", [4, 6]).ids("targets", [4], 6, None));
    // Rows of a table and of a head after the first 9 are padding: no loss depends on them.
    let padded = || VocabularyShard::new(Arc::new(Solo), 9).with_room(16);
    for (reduction, chunk_bytes) in [(Reduction::Mean, 128), (Reduction::Mean, 1 << 20), (Reduction::None, 128)] {
        let body = move |cx: &Ctx, v: &[Var]| {
            let loss = CrossEntropy { label_smoothing: 0.1, reduction, ..CrossEntropy::default() };
            let options = LinearCrossEntropy { loss, chunk_bytes, shard: Some(padded()?) };
            Ok(vec![ops::linear_cross_entropy(cx, &v[0], &v[1], Some(&v[2]), v[3].value(), &options)?])
        };
        let case = Case::op(format!("linear_cross_entropy/padded/{reduction:?}/{chunk_bytes}"), body);
        let case = case.variable("hidden", [29, 4]).leaf("weight", [16, 4]).leaf("bias", [16]);
        cases.push(case.ids("targets", [29], 9, Some(-100)));
    }
    let table = Case::op("vocabulary_embedding/padded", move |cx, v| {
        Ok(vec![ops::vocabulary_embedding(cx, v[1].value(), &v[0], &padded()?, None, None)?])
    });
    cases.push(table.variable("table", [16, 5]).ids("ids", [3, 7], 9, None));
    let logits = Case::op("gather_logits/padded", move |cx, v| Ok(vec![ops::gather_logits(cx, &v[0], &padded()?)?]));
    cases.push(logits.variable("logits", [2, 3, 16]));
}

/// Options of the losses in a row of the table.
#[derive(Clone, Copy, Default)]
struct Terms {
    smoothing: f32,
    weighted: bool,
    soft_cap: Option<f32>,
    /// The gradient is in f32, whatever the logits are in.
    mixed: bool,
}

impl Terms {
    fn named(self, mut name: String) -> String {
        let Terms { smoothing, weighted, soft_cap, mixed } = self;
        let words = [
            (smoothing > 0.0, "/smoothing"),
            (weighted, "/weights"),
            (soft_cap.is_some(), "/soft cap"),
            (mixed, "/mixed"),
        ];
        for (on, word) in words {
            name.push_str(if on { word } else { "" });
        }
        name
    }
}

/// The three kernels over the shards of one vocabulary: statistics, losses, gradients. Padding must not be read.
fn kernels(rows: usize, columns: usize, counts: &[usize], terms: Terms) -> Case {
    let (counts, total) = (counts.to_vec(), counts.iter().sum::<usize>());
    let name = terms.named(format!("vocabulary/{rows}x{columns}x{counts:?}"));
    let host_counts = counts.clone();
    let case = Case::kernel(name, move |device, t| {
        let sum = t[2].to_vec::<f32>()?.iter().map(|weight| f64::from(*weight)).sum::<f64>() as f32;
        let sum = Tensor::full_in(device, [1], DType::F32, sum, Segment::Activations)?;
        let weights = terms.weighted.then_some([&t[2], &sum]);
        parts(device, &t[0], (&t[1], weights), [rows, columns], &counts, terms)
    });
    let case = case.constant("logits", [host_counts.len(), rows, columns]).deviation(3.0);
    let case = case.ids("targets", [rows], total as i64, Some(-100));
    let case = case.constant("weights", [total]).holding(Values::Uniform(0.2, 2.0)).of(DType::F32);
    case.expecting(move |t| host(t, [rows, columns], &host_counts, terms))
}

/// Losses and the gradient of their sum in one kernel.
fn in_place(rows: usize, columns: usize, count: usize, terms: Terms) -> Case {
    let name = terms.named(format!("cross_entropy_in_place/{rows}x{columns}x{count}"));
    let case = Case::kernel(name, move |device, t| {
        let sum = t[2].to_vec::<f32>()?.iter().map(|weight| f64::from(*weight)).sum::<f64>() as f32;
        let sum = Tensor::full_in(device, [1], DType::F32, sum, Segment::Activations)?;
        let weights = match terms.weighted {
            true => Some(ClassWeights { each: t[2].view()?, sum: Some(sum.view()?) }),
            false => None,
        };
        let (classes, targets) = (ShardClasses::all(count), t[1].view()?);
        let Terms { smoothing, soft_cap, .. } = terms;
        let criterion = Criterion { classes, targets, ignore_index: -100, smoothing, weights, soft_cap };
        let (mut losses, mut dlogits) = (zeros(device, &[rows], DType::F32)?, copy(&t[0])?);
        let (of_rows, in_place) = (losses.view_mut()?, dlogits.view_mut()?);
        device.launch(CrossEntropyInPlace { rows, columns, criterion, losses: of_rows, dlogits: in_place })?;
        Ok(vec![losses, dlogits])
    });
    let case = case.constant("logits", [1, rows, columns]).deviation(3.0);
    let case = case.ids("targets", [rows], count as i64, Some(-100));
    let case = case.constant("weights", [count]).holding(Values::Uniform(0.2, 2.0)).of(DType::F32);
    case.expecting(move |t| {
        let mut all = host(t, [rows, columns], &[count], terms);
        // The gradient beside the logits has factor 1.
        all.truncate(3);
        all.remove(1);
        all
    })
}

type Targets<'t> = (&'t Tensor, Option<[&'t Tensor; 2]>);

fn parts(
    device: &Device,
    logits: &Tensor,
    (targets, weights): Targets<'_>,
    [rows, columns]: [usize; 2],
    counts: &[usize],
    Terms { smoothing, soft_cap, mixed, .. }: Terms,
) -> Result<Vec<Tensor>> {
    let (shards, total) = (counts.len(), counts.iter().sum());
    let weights = match weights {
        Some([each, sum]) => Some(ClassWeights { each: each.view()?, sum: Some(sum.view()?) }),
        None => None,
    };
    let criterion = |part: usize| {
        let classes = ShardClasses { first: counts[..part].iter().sum(), count: counts[part], total };
        let targets = targets.view()?;
        Ok::<_, Error>(Criterion { classes, targets, ignore_index: -100, smoothing, weights, soft_cap })
    };
    let mut statistics = zeros(device, &[shards, rows, 4], DType::F32)?;
    for part in 0..shards {
        device.launch(CrossEntropyStatistics {
            rows,
            columns,
            logits: logits.view()?.part(part * rows * columns, rows * columns)?,
            criterion: criterion(part)?,
            statistics: statistics.view_mut()?.part(part * rows * 4, rows * 4)?,
        })?;
    }
    let (mut losses, mut lse) = (zeros(device, &[rows], DType::F32)?, zeros(device, &[rows], DType::F32)?);
    device.launch(CrossEntropyLoss {
        rows,
        shards,
        statistics: statistics.view()?,
        criterion: criterion(0)?,
        losses: losses.view_mut()?,
        lse: lse.view_mut()?,
    })?;
    // Beside the logits with one factor, and in their place with one for each row.
    let dtype = if mixed { DType::F32 } else { logits.dtype() };
    let mut beside = Tensor::full_in(device, logits.shape(), dtype, 7.0, Segment::Activations)?;
    let mut in_place = copy(logits)?;
    let one = Tensor::full_in(device, [1], DType::F32, 1.5, Segment::Activations)?;
    for part in 0..shards {
        let (start, len) = (part * rows * columns, rows * columns);
        device.launch(CrossEntropyBackward {
            rows,
            columns,
            logits: Some(logits.view()?.part(start, len)?),
            criterion: criterion(part)?,
            lse: lse.view()?,
            dloss: one.view()?,
            divisor: Some(one.view()?),
            fused: false,
            dlogits: beside.view_mut()?.part(start, len)?,
        })?;
        device.launch(CrossEntropyBackward {
            rows,
            columns,
            logits: None,
            criterion: criterion(part)?,
            lse: lse.view()?,
            dloss: losses.view()?,
            divisor: None,
            fused: false,
            dlogits: in_place.view_mut()?.part(start, len)?,
        })?;
    }
    Ok(vec![losses, lse, beside, in_place])
}

/// Reference in doubles, over whole rows.
fn host(t: &[Vec<f64>], [rows, columns]: [usize; 2], counts: &[usize], terms: Terms) -> Vec<Vec<f64>> {
    let (smoothing, weighted, cap) = (f64::from(terms.smoothing), terms.weighted, terms.soft_cap.map(f64::from));
    let total = counts.iter().sum::<usize>();
    let places: Vec<(usize, usize)> =
        counts.iter().enumerate().flat_map(|(part, count)| (0..*count).map(move |column| (part, column))).collect();
    let weight = |class: usize| if weighted { t[2][class] } else { 1.0 };
    let (mut losses, mut lses) = (vec![0.0; rows], vec![0.0; rows]);
    let (mut beside, mut in_place) = (vec![0.0; t[0].len()], vec![0.0; t[0].len()]);
    for row in (0..rows).filter(|row| t[1][*row] != -100.0) {
        let index = |class: usize| (places[class].0 * rows + row) * columns + places[class].1;
        let capped = |x: f64| cap.map_or(x, |cap| cap * (x / cap).tanh());
        let x: Vec<f64> = (0..total).map(|class| capped(t[0][index(class)])).collect();
        let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + x.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
        let target = t[1][row] as usize;
        let share = |class: usize| {
            let hit = if class == target { 1.0 - smoothing } else { 0.0 };
            weight(class) * (hit + smoothing / total as f64)
        };
        let (shares, loss) =
            (0..total).fold((0.0, 0.0), |(s, l), class| (s + share(class), l + share(class) * (lse - x[class])));
        (losses[row], lses[row]) = (loss, lse);
        for class in 0..total {
            let slope = cap.map_or(1.0, |cap| 1.0 - (x[class] / cap).powi(2));
            let gradient = slope * (shares * (x[class] - lse).exp() - share(class));
            (beside[index(class)], in_place[index(class)]) = (gradient, loss * gradient);
        }
    }
    vec![losses, lses, beside, in_place]
}

/// Rows without any number above minus infinity, infinities, and what is not a number.
fn unusual(cases: &mut Vec<Case>) {
    let unusual = Case::kernel("vocabulary/unusual values", |device, t| {
        let (low, high, nan) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
        let mut numbers = vec![0.5f32; 2 * 6 * 16];
        // In rows: nothing in one part; nothing at all; one that is not a number; infinity; only such; one number.
        numbers[..16].fill(low);
        for part in [0, 1] {
            numbers[part * 96 + 16..part * 96 + 32].fill(low);
        }
        numbers[96 + 32 + 5] = nan;
        numbers[48 + 9] = high;
        numbers[64..80].fill(nan);
        numbers[80..96].fill(low);
        numbers[96 + 80..96 + 96].fill(low);
        numbers[83] = 2.0;
        let logits = values::upload(device, Shape::from([2, 6, 16]), &Host::Floats(numbers), t[0].dtype())?;
        parts(device, &logits, (&t[1], None), [6, 16], &[16, 15], Terms::default())
    });
    cases.push(unusual.constant("type", [1]).ids("targets", [6], 31, None));
    // Logits far from zero: sums of exponentials that would overflow or vanish.
    let far = Case::kernel("vocabulary/far from zero", |device, t| {
        let (rows, ids) = (t[0].reshape([400, 1])?.slice(0..0)?, t[1].slice(0..0)?);
        let smooth = Terms { smoothing: 0.1, ..Terms::default() };
        // Zero rows are allowed.
        let mut results = parts(device, &rows, (&ids, None), [0, 40], &[40, 33], smooth)?;
        results.extend(parts(device, &t[0], (&t[1], None), [5, 40], &[40, 33], smooth)?);
        Ok(results)
    });
    cases.push(far.constant("logits", [2, 5, 40]).holding(Values::Normal(300.0, 20.0)).ids("targets", [5], 73, None));
}

fn totals(cases: &mut Vec<Case>) {
    for (rows, weighted) in [(1, false), (37, false), (37, true), (5000, true)] {
        let name = format!("loss_totals/{rows}{}", if weighted { "/weights" } else { "" });
        let case = Case::kernel(name, move |device, t| {
            let mut totals = zeros(device, &[3], DType::F32)?;
            device.launch(LossTotals {
                losses: t[0].view()?,
                targets: t[1].view()?,
                ignore_index: -100,
                class_weights: if weighted { Some(t[2].view()?) } else { None },
                totals: totals.view_mut()?,
            })?;
            Ok(vec![totals])
        });
        let case = case.constant("losses", [rows]).holding(Values::Uniform(0.5, 4.0)).of(DType::F32);
        let case = case.ids("targets", [rows], 11, Some(-100)).constant("weights", [11]);
        let case = case.holding(Values::Uniform(0.2, 2.0)).of(DType::F32).dtypes(&[DType::F32]);
        cases.push(case.expecting(move |t| {
            let weight = |target: &f64| match *target {
                -100.0 => 0.0,
                target if weighted => t[2][target as usize],
                _ => 1.0,
            };
            let (loss, weight): (f64, f64) = (t[0].iter().sum(), t[1].iter().map(weight).sum());
            vec![vec![loss, weight, loss / weight]]
        }));
    }
}

fn scaling(cases: &mut Vec<Case>) {
    for len in [1, 7, 1025, 100_003] {
        let case = Case::kernel(format!("scale_by/{len}"), move |device, t| {
            let number = |value| Tensor::full_in(device, [1], DType::F32, value, Segment::Activations);
            let (factor, divisor, nothing) = (number(3.0)?, number(8.0)?, number(0.0)?);
            let (mut written, mut added) = (copy(&t[0])?, copy(&t[1])?);
            let (mut in_place, mut wide) = (copy(&t[0])?, zeros(device, &[len], DType::F32)?);
            let mut none = copy(&t[0])?;
            let scale = |divisor: Option<&Tensor>, x: Option<&Tensor>, out: &mut Tensor, add| {
                device.launch(ScaleBy {
                    factor: factor.view()?,
                    divisor: divisor.map(Tensor::view).transpose()?,
                    x: x.map(Tensor::view).transpose()?,
                    out: out.dest(add)?,
                })
            };
            scale(Some(&divisor), Some(&t[1]), &mut written, false)?;
            scale(Some(&divisor), Some(&t[0]), &mut added, true)?;
            scale(None, None, &mut in_place, false)?;
            scale(None, Some(&t[0]), &mut wide, true)?;
            scale(Some(&nothing), None, &mut none, false)?;
            Ok(vec![written, added, in_place, wide, none])
        });
        let case = case.constant("x", [len]).constant("y", [len]).expecting(|t| {
            let scaled = |x: &[f64], factor: f64| x.iter().map(|x| factor * x).collect::<Vec<_>>();
            let added = t[1].iter().zip(&t[0]).map(|(y, x)| y + 0.375 * x).collect();
            let [written, in_place] = [scaled(&t[1], 0.375), scaled(&t[0], 3.0)];
            vec![written, added, in_place.clone(), in_place, scaled(&t[0], 0.0)]
        });
        cases.push(if len > 100_000 { case.large() } else { case });
    }
    // Neither range starts at a multiple of 16 bytes.
    let apart = Case::kernel("scale_by/unaligned", |device, t| {
        let (factor, mut out) = (Tensor::full_in(device, [1], DType::F32, 3.0, Segment::Activations)?, copy(&t[0])?);
        let view = out.view_mut()?.part(3, 50)?;
        let (factor, x) = (factor.view()?, Some(t[0].view()?.part(1, 50)?));
        device.launch(ScaleBy { factor, divisor: None, x, out: Dest { view, add: true } })?;
        Ok(vec![out])
    });
    cases.push(apart.constant("x", [60]).expecting(|t| {
        let term = |i: usize| if (3..53).contains(&i) { 3.0 * t[0][i - 2] } else { 0.0 };
        vec![t[0].iter().enumerate().map(|(i, x)| x + term(i)).collect()]
    }));
}
