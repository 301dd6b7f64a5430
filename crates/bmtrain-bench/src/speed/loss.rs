//! Cross-entropy over a vocabulary: fused, and over a shard as heads in chunks and tensor-parallel ranks use it.

use super::*;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let (device, sizes) = (bench.device, bench.sizes());
    // A quarter of the tokens: a head computes logits in chunks of rows.
    let (rows, classes, size) = (sizes.rows().div_ceil(4), sizes.vocabulary, dtype.size());
    let targets = Tensor::from_slice_in(device, [rows], &vec![17i64; rows], Segment::Data)?;
    let all = ShardClasses::all(classes);
    let criterion = Criterion {
        classes: all,
        targets: targets.view()?,
        ignore_index: -100,
        smoothing: 0.0,
        weights: None,
        soft_cap: None,
    };
    let (mut losses, mut totals) = (bench.tensor(rows, DType::F32)?, bench.tensor(3, DType::F32)?);
    let mut statistics = bench.tensor(4 * rows, DType::F32)?;
    let dloss = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Data)?;
    // A head pads the rows of its logits to whole vectors.
    for (fused, columns) in [(true, classes), (false, classes.next_multiple_of(8))] {
        let len = rows * columns;
        let (logits, mut dlogits) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
        let mut lse = Tensor::full_in(device, [rows], DType::F32, 20.0, Segment::Data)?;
        let names = if fused {
            ["cross_entropy", "cross_entropy backward"]
        } else {
            ["vocabulary statistics", "vocabulary gradient"]
        };
        bench.moving(names[0], dtype, size * len, |launch| {
            let logits = logits.view()?;
            if !fused {
                let statistics = statistics.view_mut()?;
                return launch(CrossEntropyStatistics { rows, columns, logits, criterion, statistics }.into());
            }
            let (losses, lse, totals) = (losses.view_mut()?, lse.view_mut()?, totals.view_mut()?);
            launch(CrossEntropyForward { rows, columns, logits, criterion, losses, lse, totals }.into())
        })?;
        bench.moving(names[1], dtype, 2 * size * len, |launch| {
            let kernel = CrossEntropyBackward {
                rows,
                columns,
                logits: Some(logits.view()?),
                criterion,
                lse: lse.view()?,
                dloss: dloss.view()?,
                divisor: if fused { Some(totals.view()?.part(1, 1)?) } else { None },
                fused,
                dlogits: dlogits.view_mut()?,
            };
            launch(kernel.into())
        })?;
        if !fused {
            bench.moving("losses and gradient", dtype, 2 * size * len, |launch| {
                let (losses, dlogits) = (losses.view_mut()?, dlogits.view_mut()?);
                launch(CrossEntropyInPlace { rows, columns, criterion, losses, dlogits }.into())
            })?;
        }
    }
    Ok(())
}
