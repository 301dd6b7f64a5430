//! Collectives with gradients, against the slopes of the sum of all ranks' losses and against plain arithmetic.

use crate::ranks::{REDUCTIONS, options, threads};
use bmtrain_core::comm::{Communicator, Reduction};
use bmtrain_core::{Ctx, DType, Device, Float, Result, Segment, Tensor, Var, ops};
use half::{bf16, f16};
use std::sync::Arc;

type Group = Arc<dyn Communicator>;
type Op = fn(&Ctx, &Group, &Var) -> Result<Var>;

/// Every op; with one rank set apart, that rank is the last.
const OPS: [(&str, Op); 10] = [
    ("all_gather", |cx, group, x| ops::all_gather(cx, group, x)),
    ("reduce_scatter sum", |cx, group, x| ops::reduce_scatter(cx, group, x, Reduction::Sum)),
    ("reduce_scatter average", |cx, group, x| ops::reduce_scatter(cx, group, x, Reduction::Average)),
    ("all_reduce sum", |cx, group, x| ops::all_reduce(cx, group, x, Reduction::Sum)),
    ("all_reduce average", |cx, group, x| ops::all_reduce(cx, group, x, Reduction::Average)),
    ("all_reduce max", |cx, group, x| ops::all_reduce(cx, group, x, Reduction::Max)),
    ("all_reduce min", |cx, group, x| ops::all_reduce(cx, group, x, Reduction::Min)),
    ("all_reduce product", |cx, group, x| ops::all_reduce(cx, group, x, Reduction::Product)),
    ("broadcast", |cx, group, x| ops::broadcast(cx, group, x, group.size() - 1)),
    ("all_to_all", |cx, group, x| ops::all_to_all(cx, group, x)),
];

/// A number between -1 and 1 for each place.
fn noise(salt: usize, index: usize) -> f32 {
    let word = ((index + 977 * salt) as u32).wrapping_mul(0x9e37_79b9) >> 8;
    word as f32 / (1 << 23) as f32 - 1.0
}

/// Each rank's result and the gradient of its input, where the loss is the projection of the result on its seed. A rank
/// without a seed has no loss.
fn walk(op: Op, inputs: &[Vec<f32>], seeds: &[Option<Vec<f32>>], dtype: DType) -> Vec<(Vec<f32>, Option<Vec<f32>>)> {
    threads(inputs.len(), options(), |rank| {
        let own = rank.rank();
        let (group, device): (Group, _) = (Arc::new(rank), Device::cpu(1).unwrap());
        let cx = Ctx::gradients(&device);
        let x = cx.tape().unwrap().input(tensor(&device, &inputs[own], dtype));
        let y = op(&cx, &group, &x).unwrap();
        let seeds = seeds[own].as_ref().map(|seed| {
            let seed = tensor(&device, &seed[..y.shape().elements()], dtype).reshape(y.shape()).unwrap();
            (y.clone(), seed)
        });
        let dx = cx.tape().unwrap().backward(&device, seeds.into_iter().collect(), &[&x]).unwrap().pop().unwrap();
        (values(y.value()), dx.as_ref().map(values))
    })
}

fn tensor(device: &Device, values: &[f32], dtype: DType) -> Tensor {
    let shape = [values.len()];
    match dtype {
        DType::F16 => {
            let values: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
            Tensor::from_slice_in(device, shape, &values, Segment::Activations).unwrap()
        }
        DType::BF16 => {
            let values: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            Tensor::from_slice_in(device, shape, &values, Segment::Activations).unwrap()
        }
        _ => Tensor::from_slice_in(device, shape, values, Segment::Activations).unwrap(),
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::F16 => tensor.to_vec::<f16>().unwrap().into_iter().map(Float::to_f32).collect(),
        DType::BF16 => tensor.to_vec::<bf16>().unwrap().into_iter().map(Float::to_f32).collect(),
        _ => tensor.to_vec().unwrap(),
    }
}

fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// The sum of the losses of all ranks.
fn loss(op: Op, inputs: &[Vec<f32>], seeds: &[Option<Vec<f32>>]) -> f64 {
    let project = |((y, _), seed): (&(Vec<f32>, _), &Option<Vec<f32>>)| -> f64 {
        y.iter().zip(seed.iter().flatten()).map(|(y, seed)| f64::from(*y) * f64::from(*seed)).sum()
    };
    walk(op, inputs, seeds, DType::F32).iter().zip(seeds).map(project).sum()
}

#[test]
fn gradients_are_the_slopes_of_the_sum_of_all_losses_on_one_to_four_ranks() {
    const STEP: f32 = 1.0 / 128.0;
    for world in 1..=4 {
        let (elements, salts) = (world * 2, 0..world);
        let inputs: Vec<Vec<f32>> = salts.map(|salt| (0..elements).map(|i| 2.0 * noise(salt, i)).collect()).collect();
        // A gather has the longest result.
        let seed = |salt: usize| (0..elements * world).map(|i| noise(salt + 100, i)).collect();
        let seeds: Vec<Option<Vec<f32>>> = (0..world).map(|salt| Some(seed(salt))).collect();
        for (name, op) in OPS {
            let found = walk(op, &inputs, &seeds, DType::F32);
            for rank in 0..world {
                for element in 0..elements {
                    let at = |by: f32| {
                        let mut moved = inputs.clone();
                        moved[rank][element] += by;
                        loss(op, &moved, &seeds)
                    };
                    let slope = (at(STEP) - at(-STEP)) / f64::from(2.0 * STEP);
                    let dx = found[rank].1.as_ref().map_or(0.0, |dx| f64::from(dx[element]));
                    // All results are linear in one element, or choose it: what is left is the rounding of f32 over the
                    // step.
                    assert!((slope - dx).abs() < 2e-4 * (1.0 + slope.abs()), "{name}, {world} ranks: {slope} {dx}");
                }
            }
        }
    }
}

#[test]
fn a_value_that_several_ranks_have_is_the_first_ones() {
    let inputs = vec![vec![1.0, 5.0, 2.0, 0.0], vec![3.0, 5.0, 2.0, -0.0], vec![3.0, 4.0, 2.0, 0.0]];
    let seeds = vec![Some(vec![1.0, 10.0, 100.0, 1000.0]); 3];
    let dx = |op: Op| walk(op, &inputs, &seeds, DType::F32).into_iter().map(|(_, dx)| dx.unwrap()).collect::<Vec<_>>();
    assert_eq!(dx(OPS[5].1), [[0.0, 30.0, 300.0, 3000.0], [3.0, 0.0, 0.0, 0.0], [0.0; 4]], "max");
    assert_eq!(dx(OPS[6].1), [[3.0, 0.0, 300.0, 3000.0], [0.0; 4], [0.0, 30.0, 0.0, 0.0]], "min");
    let inputs = vec![vec![1.0, f32::INFINITY], vec![f32::NAN, f32::INFINITY]];
    let found = walk(OPS[5].1, &inputs, &[Some(vec![1.0; 2]), Some(vec![1.0; 2])], DType::F32);
    assert!(found[0].0[0].is_nan() && found[0].0[1] == f32::INFINITY);
    assert_eq!([found[0].1.clone().unwrap(), found[1].1.clone().unwrap()], [[0.0; 2]; 2], "not finite");
}

#[test]
fn zeros_in_a_product_need_no_division() {
    let inputs = vec![vec![2.0, 0.0, 0.0, -1.0], vec![3.0, 3.0, 0.0, 0.5], vec![5.0, 5.0, 5.0, 4.0]];
    let found = walk(OPS[7].1, &inputs, &vec![Some(vec![1.0; 4]); 3], DType::F32);
    let dx: Vec<_> = found.into_iter().map(|(_, dx)| dx.unwrap()).collect();
    // Three ranks have the result in their losses: three times the product of the others.
    assert_eq!(dx, [[45.0, 45.0, 0.0, 6.0], [30.0, 0.0, 0.0, -12.0], [18.0, 0.0, 0.0, -1.5]]);
}

#[test]
fn one_loss_on_all_ranks_is_counted_once_for_each_unless_they_share_the_seed() {
    for world in 1..=4 {
        let inputs = vec![vec![0.5]; world];
        for (seed, expected) in [(1.0, world as f32), (1.0 / world as f32, 1.0)] {
            let found = walk(OPS[3].1, &inputs, &vec![Some(vec![seed]); world], DType::F32);
            assert!(found.iter().all(|(_, dx)| (dx.as_ref().unwrap()[0] - expected).abs() < 1e-6), "{found:?}");
        }
    }
}

#[test]
fn a_rank_whose_loss_does_not_use_the_result_takes_part_in_the_way_back() {
    for (name, op) in OPS {
        let inputs: Vec<Vec<f32>> = (0..3).map(|salt| (0..6).map(|i| noise(salt, i)).collect()).collect();
        let seed = |salt: usize| Some((0..18).map(|i| noise(salt, i)).collect::<Vec<f32>>());
        let without = walk(op, &inputs, &[seed(5), None, seed(7)], DType::F32);
        let zeros = walk(op, &inputs, &[seed(5), Some(vec![0.0; 18]), seed(7)], DType::F32);
        assert_eq!(without, zeros, "{name}");
        assert!(without.iter().any(|(_, dx)| dx.iter().flatten().any(|dx| *dx != 0.0)), "{name}");
    }
}

#[test]
fn sixteen_bit_gradients_are_summed_in_f32_and_rounded_once() {
    for dtype in [DType::F16, DType::BF16] {
        let world = 3;
        let of = |salt: usize, len: usize| (0..len).map(|i| rounded(4.0 * noise(salt, i), dtype)).collect::<Vec<f32>>();
        let inputs: Vec<Vec<f32>> = (0..world).map(|salt| of(salt, 6)).collect();
        let seeds: Vec<Option<Vec<f32>>> = (0..world).map(|salt| Some(of(salt + 9, 18))).collect();
        let dy = |rank: usize, element: usize| seeds[rank].as_ref().unwrap()[element];
        let sum = |element: usize| rounded(dy(0, element) + dy(1, element) + dy(2, element), dtype);
        let x = |rank: usize, element: usize| inputs[rank][element];
        for (name, op) in OPS {
            for (rank, (_, dx)) in walk(op, &inputs, &seeds, dtype).into_iter().enumerate() {
                for element in 0..6 {
                    let (part, place) = (element / 2, element % 2);
                    let others: Vec<f32> = (0..world).filter(|other| *other != rank).map(|r| x(r, element)).collect();
                    let all = (0..world).map(|rank| x(rank, element));
                    let wins = |by: fn(f32, f32) -> f32| all.clone().reduce(by).unwrap() == x(rank, element);
                    let expected = match name {
                        "all_gather" => sum(rank * 6 + element),
                        "reduce_scatter sum" => dy(part, place),
                        "reduce_scatter average" => rounded(dy(part, place) * (1.0 / 3.0), dtype),
                        "all_reduce sum" => sum(element),
                        "all_reduce average" => {
                            rounded((dy(0, element) + dy(1, element) + dy(2, element)) / 3.0, dtype)
                        }
                        "all_reduce max" => {
                            if wins(f32::max) {
                                sum(element)
                            } else {
                                0.0
                            }
                        }
                        "all_reduce min" => {
                            if wins(f32::min) {
                                sum(element)
                            } else {
                                0.0
                            }
                        }
                        "all_reduce product" => rounded(others[0] * others[1] * sum(element), dtype),
                        "broadcast" => {
                            if rank == 2 {
                                sum(element)
                            } else {
                                0.0
                            }
                        }
                        _ => dy(part, rank * 2 + place),
                    };
                    let found = dx.as_ref().map_or(0.0, |dx| dx[element]);
                    assert_eq!(found, expected, "{name} {dtype}: element {element} of rank {rank}");
                }
            }
        }
    }
}

#[test]
fn results_are_those_of_the_calls_without_a_tape() {
    let inputs: Vec<Vec<f32>> = (0..4).map(|salt| (0..8).map(|i| noise(salt, i)).collect()).collect();
    let found = walk(OPS[0].1, &inputs, &vec![None; 4], DType::F32);
    assert!(found.iter().all(|(y, _)| *y == inputs.concat()));
    for (name, op) in OPS {
        let recorded = walk(op, &inputs, &vec![None; 4], DType::F32);
        let inferred = threads(4, options(), |rank| {
            let own = rank.rank();
            let (group, device): (Group, _) = (Arc::new(rank), Device::cpu(1).unwrap());
            let x = Var::constant(tensor(&device, &inputs[own], DType::F32));
            let y = op(&Ctx::inference(&device), &group, &x).unwrap();
            assert!(!y.needs_grad());
            values(y.value())
        });
        let recorded: Vec<_> = recorded.into_iter().map(|(y, _)| y).collect();
        assert_eq!(recorded, inferred, "{name}");
    }
}

#[test]
fn what_has_no_gradient_is_refused_or_constant() {
    threads(2, options(), |rank| {
        let (group, device): (Group, _) = (Arc::new(rank), Device::cpu(1).unwrap());
        let cx = Ctx::gradients(&device);
        let ids = Var::constant(Tensor::from_slice_in(&device, [2], &[3i64, 4], Segment::Data).unwrap());
        for by in REDUCTIONS.into_iter().filter(|by| *by != Reduction::Average) {
            assert!(!ops::all_reduce(&cx, &group, &ids, by).unwrap().needs_grad());
        }
        let x = Var::constant(tensor(&device, &[1.0, 2.0], DType::F32));
        for by in [Reduction::Max, Reduction::Min, Reduction::Product] {
            let error = ops::reduce_scatter(&cx, &group, &x, by).unwrap_err().to_string();
            assert!(error.contains("slice of an all_reduce"), "{error}");
        }
        let odd = Var::constant(tensor(&device, &[1.0, 2.0, 3.0], DType::F32));
        for error in [
            ops::all_to_all(&cx, &group, &odd).unwrap_err(),
            ops::reduce_scatter(&cx, &group, &odd, Reduction::Sum).unwrap_err(),
        ] {
            assert!(error.to_string().contains("a multiple of 2, the number of ranks"), "{error}");
        }
    });
}
