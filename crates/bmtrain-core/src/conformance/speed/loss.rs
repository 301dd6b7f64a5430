//! Cross-entropy over a vocabulary.

use super::Bench;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CrossEntropyBackward, CrossEntropyForward};
use crate::pool::Segment;
use crate::tensor::Tensor;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let (device, sizes) = (bench.device, bench.sizes());
    // A part of the tokens: a head works on rows in chunks.
    let (rows, classes) = (sizes.rows().div_ceil(4), sizes.vocabulary);
    let (len, size) = (rows * classes, dtype.size());
    let (logits, mut dlogits) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let targets = Tensor::from_slice_in(device, [rows], &vec![17i64; rows], Segment::Data)?;
    let (mut losses, mut lse) = (bench.tensor(rows, DType::F32)?, bench.tensor(rows, DType::F32)?);
    let mut totals = bench.tensor(3, DType::F32)?;
    let dloss = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Data)?;
    let (ignore_index, smoothing, class_weights) = (-100, 0.0, None);
    bench.moving("cross_entropy", dtype, size * len, |launch| {
        let kernel = CrossEntropyForward {
            rows,
            classes,
            logits: logits.view()?,
            targets: targets.view()?,
            ignore_index,
            smoothing,
            class_weights,
            losses: losses.view_mut()?,
            lse: lse.view_mut()?,
            totals: totals.view_mut()?,
        };
        launch(kernel.into())
    })?;
    bench.moving("cross_entropy backward", dtype, 2 * size * len, |launch| {
        let kernel = CrossEntropyBackward {
            rows,
            classes,
            logits: Some(logits.view()?),
            targets: targets.view()?,
            ignore_index,
            smoothing,
            class_weights,
            lse: lse.view()?,
            totals: totals.view()?,
            dloss: dloss.view()?,
            mean: true,
            dlogits: dlogits.view_mut()?,
        };
        launch(kernel.into())
    })
}
