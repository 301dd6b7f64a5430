//! Embeddings, permutations and strided copies against plain loops.

use super::{
    FLOATS, assert_close, device, filled, integers, numbers, rounding, sampled, tensor, values, with_any_threads,
};
use bmtrain_core::dtype::DType;
use bmtrain_core::error::Error;
use bmtrain_core::kernel::*;
use bmtrain_core::pool::Segment;
use bmtrain_core::tensor::Tensor;

fn ids(rows: usize, entries: usize) -> Vec<i64> {
    values(rows, 9).iter().map(|x| ((x.abs() * x.abs() / 4.0) * entries as f32) as i64).collect()
}

const TABLES: [(usize, usize, usize); 5] = [(1, 1, 1), (7, 33, 12), (300, 1500, 40), (2, 64, 700), (1000, 8, 0)];

#[test]
fn embeddings_copy_or_add_table_rows() {
    for (entries, columns, rows) in TABLES {
        for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
            for add in [false, true] {
                let ids = ids(rows, entries);
                let [table, old, out] = with_any_threads(|device| {
                    let (table, ids) = (sampled(device, from, entries * columns, 1), integers(device, &ids));
                    let [old, mut sum] = [(); 2].map(|()| sampled(device, to, rows * columns, 2));
                    let (view, ids, out) = (table.view()?, ids.view()?, sum.dest(add)?);
                    device.launch(EmbeddingForward { entries, columns, table: view, ids, out })?;
                    Ok([table, old, sum])
                });
                let at = |i: usize| table[ids[i / columns] as usize * columns + i % columns];
                let expected: Vec<f64> = (0..out.len()).map(|i| at(i) + if add { old[i] } else { 0.0 }).collect();
                assert_close("embedding", &out, &expected, rounding(to));
            }
        }
    }
}

#[test]
fn table_gradients_are_sums_in_f32_without_the_padding_row() {
    for (entries, columns, rows) in TABLES {
        for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
            for (add, padding_index) in [(false, None), (true, None), (false, Some(0)), (true, Some(1))] {
                let ids = ids(rows, entries);
                let [dy, old, dtable] = with_any_threads(|device| {
                    let (dy, ids) = (sampled(device, from, rows * columns, 1), integers(device, &ids));
                    let [old, mut sum] = [(); 2].map(|()| sampled(device, to, entries * columns, 2));
                    let (view, ids, dtable) = (dy.view()?, ids.view()?, sum.dest(add)?);
                    device.launch(EmbeddingBackward { entries, columns, ids, padding_index, dy: view, dtable })?;
                    Ok([dy, old, sum])
                });
                let mut expected = if add { old } else { vec![0.0; entries * columns] };
                for (row, id) in ids.iter().enumerate().filter(|(_, id)| Some(**id) != padding_index) {
                    for column in 0..columns {
                        expected[*id as usize * columns + column] += dy[row * columns + column];
                    }
                }
                // Up to 700 terms in one entry.
                assert_close("gradient", &dtable, &expected, rounding(to) + 1e-5);
            }
        }
    }
}

#[test]
fn an_id_outside_the_table_is_an_error_before_anything_is_written() {
    let device = device(2);
    for bad in [-1, 3, i64::MAX, i64::MIN] {
        let (table, ids) = (tensor(&device, DType::F32, &[1.0; 6]), integers(&device, &[0, 2, bad]));
        let mut out = tensor(&device, DType::F32, &[7.0; 6]);
        let dest = out.dest(false).unwrap();
        let (entries, columns, ids) = (3, 2, ids.view().unwrap());
        let forward = EmbeddingForward { entries, columns, table: table.view().unwrap(), ids, out: dest };
        let error = device.launch(forward).unwrap_err();
        assert_eq!(error, Error::Index { op: "embedding_forward", position: 2, index: bad, bound: 3 });
        assert_eq!(numbers(&out), [7.0; 6]);
        let dest = out.dest(false).unwrap();
        let dy = table.view().unwrap();
        let backward = EmbeddingBackward { entries, columns, ids, padding_index: None, dy, dtable: dest };
        let error = device.launch(backward).unwrap_err();
        assert_eq!(error, Error::Index { op: "embedding_backward", position: 2, index: bad, bound: 3 });
        assert_eq!(numbers(&out), [7.0; 6]);
    }
}

#[test]
fn strided_rows_are_copied_or_added_and_gaps_left_alone() {
    for (rows, columns, x_ld, out_ld) in
        [(1, 1, 1, 1), (5, 3, 7, 4), (40, 1500, 1500, 3000), (70, 33, 99, 33), (0, 4, 4, 4)]
    {
        let span = |ld: usize| if rows == 0 { 0 } else { (rows - 1) * ld + columns };
        for (dtype, add) in FLOATS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
            let [x, mut expected, out] = with_any_threads(|device| {
                let x = sampled(device, dtype, span(x_ld), 1);
                let [old, mut out] = [(); 2].map(|()| sampled(device, dtype, span(out_ld), 2));
                device.launch(RowCopy { rows, columns, x_ld, x: x.view()?, out_ld, out: out.dest(add)? })?;
                Ok([x, old, out])
            });
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let slot = &mut expected[row * out_ld + column];
                *slot = x[row * x_ld + column] + if add { *slot } else { 0.0 };
            }
            assert_close("rows", &out, &expected, if add { rounding(dtype) } else { 0.0 });
        }
    }
    let device = device(1);
    let x = Tensor::from_slice_in(&device, [4], &[1i64, 2, 3, 4], Segment::Data).unwrap();
    let mut out = Tensor::from_slice_in(&device, [2], &[0i64, 0], Segment::Data).unwrap();
    let dest = out.dest(false).unwrap();
    let x = x.view().unwrap().part(1, 3).unwrap();
    device.launch(RowCopy { rows: 2, columns: 1, x_ld: 2, x, out_ld: 1, out: dest }).unwrap();
    assert_eq!(out.to_vec::<i64>().unwrap(), [2, 4]);
}

fn orders(rank: usize) -> Vec<Vec<usize>> {
    if rank == 0 {
        return vec![vec![]];
    }
    let shorter = orders(rank - 1);
    shorter
        .iter()
        .flat_map(|order| (0..rank).map(move |at| [&order[..at], &[rank - 1], &order[at..]].concat()))
        .collect()
}

fn permuted(x: &[f64], dims: &[usize], axes: &[usize]) -> Vec<f64> {
    let mut expected = Vec::new();
    for i in 0..x.len() {
        let (mut rest, mut from) = (i, 0);
        for axis in axes.iter().rev() {
            from += rest % dims[*axis] * dims[axis + 1..].iter().product::<usize>();
            rest /= dims[*axis];
        }
        expected.push(x[from]);
    }
    expected
}

fn six(values: &[usize]) -> [usize; 6] {
    std::array::from_fn(|i| values.get(i).copied().unwrap_or(0))
}

#[test]
fn every_order_of_the_axes_is_right() {
    let shapes: [&[usize]; 7] =
        [&[], &[5], &[33, 70], &[3, 17, 40], &[2, 5, 3, 18], &[2, 1, 3, 1, 20], &[2, 3, 2, 4, 1, 3]];
    for dims in shapes {
        for axes in orders(dims.len()) {
            for (dtype, add) in [(DType::F32, false), (DType::BF16, true)] {
                let len = dims.iter().product();
                let [x, old, out] = with_any_threads(|device| {
                    let x = sampled(device, dtype, len, 1);
                    let [old, mut out] = [(); 2].map(|()| sampled(device, dtype, len, 2));
                    let (dims, axes, rank) = (six(dims), six(&axes), axes.len());
                    device.launch(Permute { dims, axes, rank, x: x.view()?, out: out.dest(add)? })?;
                    Ok([x, old, out])
                });
                let moved = permuted(&x, dims, &axes);
                let expected: Vec<f64> =
                    moved.iter().zip(old).map(|(x, old)| x + if add { old } else { 0.0 }).collect();
                assert_close(&format!("{dims:?} {axes:?}"), &out, &expected, if add { rounding(dtype) } else { 0.0 });
            }
        }
    }
}

#[test]
fn large_transpositions_are_divided_among_threads_without_loss() {
    for (dims, axes) in
        [([300, 500, 1], [1, 0, 2]), ([4, 300, 90], [0, 2, 1]), ([90, 4, 300], [2, 0, 1]), ([64, 50, 40], [1, 0, 2])]
    {
        let len = dims.iter().product();
        let [x, out] = with_any_threads(|device| {
            let (x, mut out) = (sampled(device, DType::F32, len, 1), filled(device, DType::F32, len, 0.0));
            let (dims, axes, rank) = (six(&dims), six(&axes), 3);
            device.launch(Permute { dims, axes, rank, x: x.view()?, out: out.dest(false)? })?;
            Ok([x, out])
        });
        assert_eq!(out, permuted(&x, &dims, &axes));
    }
}
