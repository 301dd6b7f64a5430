//! Embeddings and permutations.

use super::*;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    embedding(bench, dtype)?;
    permute(bench, dtype)
}

fn embedding(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, columns, entries, size) = (sizes.rows(), sizes.hidden, sizes.vocabulary, dtype.size());
    let len = rows * columns;
    let (table, mut out) = (bench.tensor(entries * columns, dtype)?, bench.tensor(len, dtype)?);
    // Half of the tokens are among the hundred most frequent ones.
    let frequent = entries.min(100);
    let id = |i: usize| if i.is_multiple_of(2) { i * 7 % frequent } else { i * 7919 % entries } as i64;
    let ids: Vec<i64> = (0..rows).map(id).collect();
    let ids = Tensor::from_slice_in(bench.device, [rows], &ids, Segment::Data)?;
    bench.moving("embedding", dtype, 2 * size * len, |launch| {
        let (table, ids, out) = (table.view()?, ids.view()?, out.dest(false)?);
        launch(EmbeddingForward { entries, columns, table, ids, out }.into())
    })?;
    let mut dtable = bench.tensor(entries * columns, DType::F32)?;
    let dy = bench.tensor(len, dtype)?;
    bench.moving("embedding backward", dtype, (size + 8) * len, |launch| {
        let (dy, ids, dtable) = (dy.view()?, ids.view()?, dtable.dest(true)?);
        launch(EmbeddingBackward { entries, columns, ids, padding_index: None, dy, dtable }.into())
    })
}

fn permute(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (heads, len) = (sizes.hidden / sizes.head_size, sizes.rows() * sizes.hidden);
    let (x, mut y) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let cases = [
        ("permute heads", [sizes.batch, sizes.length, heads, sizes.head_size], [0, 2, 1, 3]),
        ("transpose", [1, 1, sizes.rows(), sizes.hidden], [0, 1, 3, 2]),
    ];
    for (name, four_dims, four_axes) in cases {
        let widened = |four: [usize; 4]| {
            let mut all = [0; MAX_RANK];
            all[..4].copy_from_slice(&four);
            all
        };
        bench.moving(name, dtype, 2 * dtype.size() * len, |launch| {
            let (dims, axes, rank) = (widened(four_dims), widened(four_axes), 4);
            launch(Permute { dims, axes, rank, x: x.view()?, out: y.dest(false)? }.into())
        })?;
    }
    Ok(())
}
