//! Conjugate operators: a computation whose columns are divided over ranks against the same computation on one rank.

use crate::ranks::{options, threads};
use crate::token_shards::{Group, tensor, walk, whole};
use bmtrain_core::comm::Communicator;
use bmtrain_core::{Ctx, DType, Device, Error, Segment, Tensor, Var, ops};
use half::bf16;
use std::sync::Arc;

const ROWS: usize = 3;
/// Divisible by 1, 2 and 4.
const COLUMNS: usize = 8;

/// Columns of this rank, of rows of [`COLUMNS`].
fn cut(rows: &[f32], rank: usize, size: usize) -> Vec<f32> {
    let each = COLUMNS / size;
    rows.chunks(COLUMNS).flat_map(|row| row[rank * each..(rank + 1) * each].to_vec()).collect()
}

#[test]
fn a_column_and_a_row_parallel_product_are_the_two_products_of_one_rank_bit_for_bit() {
    const WIDTH: usize = 4;
    let device = Device::cpu(1).unwrap();
    let (x, up) = (whole(1, ROWS * WIDTH), whole(2, COLUMNS * WIDTH));
    let (down, bias) = (whole(3, WIDTH * COLUMNS), whole(4, WIDTH));
    let inputs = |device: &Device, up: &[f32], down: &[f32], each: usize| {
        let (x, bias) = (tensor(device, [ROWS, WIDTH], &x), tensor(device, [WIDTH], &bias));
        vec![x, tensor(device, [each, WIDTH], up), tensor(device, [WIDTH, each], down), bias]
    };
    let [y, dx, dup, ddown, dbias]: [Vec<f32>; 5] = walk(&device, inputs(&device, &up, &down, COLUMNS), |cx, v| {
        let hidden = ops::linear(cx, &v[0], &v[1], None, None)?;
        ops::linear(cx, &hidden, &v[2], Some(&v[3]), None)
    })
    .try_into()
    .unwrap();
    for size in [1, 2, 4] {
        let each = COLUMNS / size;
        let of_rank = |all: &[f32], rank: usize| all[rank * each * WIDTH..(rank + 1) * each * WIDTH].to_vec();
        let found = threads(size, options(), |rank| {
            let (own, group, device): (_, Group, _) = (rank.rank(), Arc::new(rank), Device::cpu(1).unwrap());
            let (up, down) = (of_rank(&up, own), cut(&down, own, size));
            walk(&device, inputs(&device, &up, &down, each), |cx, v| {
                let x = ops::copy_to_ranks(cx, &group, &v[0]);
                let hidden = ops::linear(cx, &x, &v[1], None, None)?;
                let term = ops::linear(cx, &hidden, &v[2], None, None)?;
                ops::sum_over_ranks(cx, &group, term, Some(&v[3]))
            })
        });
        for (rank, found) in found.into_iter().enumerate() {
            let own_ddown = cut(&ddown, rank, size);
            let expected = [y.clone(), dx.clone(), of_rank(&dup, rank), own_ddown, dbias.clone()];
            assert_eq!(found, expected, "rank {rank} of {size}");
        }
    }
}

#[test]
fn gathered_and_split_columns_have_the_gradient_of_the_identity() {
    for size in [1, 2, 4] {
        let (x, factors) = (whole(6, ROWS * COLUMNS), whole(7, ROWS * COLUMNS));
        let seed = whole(50, ROWS * COLUMNS);
        // y = factors * x, and dx = factors * seed: each rank multiplies its columns, and has all of dx.
        let multiply = |a: &[f32]| -> Vec<f32> { a.iter().zip(&factors).map(|(a, b)| a * b).collect() };
        let found = threads(size, options(), |rank| {
            let (own, group, device): (_, Group, _) = (rank.rank(), Arc::new(rank), Device::cpu(1).unwrap());
            let own_factors = tensor(&device, [ROWS, COLUMNS / size], &cut(&factors, own, size));
            walk(&device, vec![tensor(&device, [ROWS, COLUMNS], &x)], |cx, v| {
                let part = ops::split_last(cx, &group, &v[0])?;
                let product = ops::mul(cx, &part, &Var::constant(own_factors))?;
                ops::gather_last(cx, &group, &product)
            })
        });
        for (rank, found) in found.iter().enumerate() {
            assert_eq!(*found, [multiply(&x), multiply(&seed)], "rank {rank} of {size}");
        }
        // The other way round every rank has its own input, and the gradient of its own columns.
        let found = threads(size, options(), |rank| {
            let (own, group, device): (_, Group, _) = (rank.rank(), Arc::new(rank), Device::cpu(1).unwrap());
            let part = tensor(&device, [ROWS, COLUMNS / size], &cut(&x, own, size));
            walk(&device, vec![part], |cx, v| ops::gather_last(cx, &group, &v[0]))
        });
        for (rank, found) in found.iter().enumerate() {
            assert_eq!(*found, [x.clone(), cut(&seed, rank, size)], "rank {rank} of {size}");
        }
    }
}

#[test]
fn gradients_of_a_copy_are_summed_once_and_those_of_a_sum_are_passed_on() {
    let found = threads(4, options(), |rank| {
        let (own, group, device): (_, Group, _) = (rank.rank(), Arc::new(rank), Device::cpu(1).unwrap());
        let copied = walk(&device, vec![tensor(&device, [2], &[1.0, 2.0])], |cx, v| {
            let x = ops::copy_to_ranks(cx, &group, &v[0]);
            ops::sum_over_ranks(cx, &group, ops::scale(cx, &x, own as f32)?, None)
        });
        let summed = walk(&device, vec![tensor(&device, [2], &[own as f32, 1.0])], |cx, v| {
            ops::sum_over_ranks(cx, &group, v[0].clone(), None)
        });
        (copied, summed)
    });
    let seed = whole(50, 2);
    for (copied, summed) in found {
        // 0 + 1 + 2 + 3 times x.
        assert_eq!(copied, [vec![6.0, 12.0], vec![6.0 * seed[0], 6.0 * seed[1]]]);
        assert_eq!(summed, [vec![6.0, 4.0], seed.clone()]);
    }
}

#[test]
fn values_travel_in_their_dtype_and_nothing_is_recorded_without_a_gradient() {
    threads(2, options(), |rank| {
        let (group, device): (Group, _) = (Arc::new(rank), Device::cpu(1).unwrap());
        let cx = Ctx::gradients(&device);
        let x = [1.5f32, -2.0, 0.25, 3.0].map(bf16::from_f32);
        let x = Var::constant(Tensor::from_slice_in(&device, [1, 4], &x, Segment::Activations).unwrap());
        let part = ops::split_last(&cx, &group, &x).unwrap();
        let whole = ops::gather_last(&cx, &group, &part).unwrap();
        assert_eq!((part.dtype(), whole.dtype(), part.shape().last()), (DType::BF16, DType::BF16, 2));
        assert_eq!(whole.value().to_vec::<bf16>().unwrap(), x.value().to_vec::<bf16>().unwrap());
        let sum = ops::sum_over_ranks(&cx, &group, ops::copy_to_ranks(&cx, &group, &x), None).unwrap();
        assert_eq!(sum.value().to_vec::<bf16>().unwrap(), [3.0f32, -4.0, 0.5, 6.0].map(bf16::from_f32));
        // Its input is still what it was: the sum took a copy of memory that it did not own alone.
        assert_eq!(x.value().to_vec::<bf16>().unwrap()[3], bf16::from_f32(3.0));
        assert!(!sum.needs_grad() && !whole.needs_grad());
    });
}

#[test]
fn shapes_that_do_not_fit_are_refused_before_anything_is_sent() {
    let device = Device::cpu(1).unwrap();
    let group: Group = Arc::new(bmtrain_core::comm::CountingRank::new(0, 2).unwrap());
    let cx = Ctx::inference(&device);
    let x = Var::constant(tensor(&device, [1, 3], &[1.0; 3]));
    assert!(matches!(ops::split_last(&cx, &group, &x), Err(Error::Shape { .. })));
    let bias = Var::constant(tensor(&device, [2], &[1.0; 2]));
    assert!(matches!(ops::sum_over_ranks(&cx, &group, x, Some(&bias)), Err(Error::Shape { .. })));
}
