//! Cross-entropy over a part of a vocabulary, as a head in chunks and ranks that divide their classes use it.

use super::Bench;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Criterion, ShardClasses, VocabularyGradient, VocabularyStatistics};
use crate::pool::Segment;
use crate::tensor::Tensor;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let (device, sizes) = (bench.device, bench.sizes());
    let (rows, classes) = (sizes.rows().div_ceil(4), sizes.vocabulary);
    // As a head lays out its logits: rows start at whole vectors.
    let columns = classes.next_multiple_of(8);
    let (len, size) = (rows * columns, dtype.size());
    let (logits, mut dlogits) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let targets = Tensor::from_slice_in(device, [rows], &vec![17i64; rows], Segment::Data)?;
    let mut statistics = bench.tensor(4 * rows, DType::F32)?;
    let lse = Tensor::full_in(device, [rows], DType::F32, 20.0, Segment::Data)?;
    let dloss = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Data)?;
    let classes = ShardClasses::all(classes);
    let criterion = Criterion { classes, targets: targets.view()?, ignore_index: -100, smoothing: 0.0, weights: None };
    bench.moving("vocabulary statistics", dtype, size * len, |launch| {
        let (logits, statistics) = (logits.view()?, statistics.view_mut()?);
        launch(VocabularyStatistics { rows, columns, logits, criterion, statistics }.into())
    })?;
    bench.moving("vocabulary gradient", dtype, 2 * size * len, |launch| {
        let kernel = VocabularyGradient {
            rows,
            columns,
            logits: Some(logits.view()?),
            criterion,
            lse: lse.view()?,
            dloss: dloss.view()?,
            divisor: None,
            dlogits: dlogits.view_mut()?,
        };
        launch(kernel.into())
    })
}
