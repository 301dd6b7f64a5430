//! Tests of initial values and what is subtracted for them.

use super::*;

fn samples(count: usize, mut state: u64) -> Vec<f64> {
    let mut sample = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..count).map(|_| sample()).collect()
}

fn orthonormal(count: usize, size: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for number in 0..count {
        let mut vector = samples(size, seed + number as u64);
        orthogonalize(&mut vector, &basis);
        let norm = length(&vector);
        basis.push(vector.iter().map(|value| value / norm).collect());
    }
    basis
}

#[test]
fn the_rest_without_the_largest_singular_values_has_the_others() {
    for (rows, columns, rank) in [(7, 5, 2), (5, 7, 3), (60, 90, 4), (4, 4, 4), (6, 3, 0)] {
        let side = rows.min(columns);
        let (left, right) = (orthonormal(side, rows, 3), orthonormal(side, columns, 77));
        let singular = |number: usize| 1.0 / (1.0 + number as f64);
        let of = |numbers: std::ops::Range<usize>| -> Vec<f32> {
            let value = |row: usize, column: usize| -> f64 {
                numbers.clone().map(|n| singular(n) * left[n][row] * right[n][column]).sum()
            };
            (0..rows)
                .flat_map(|row| (0..columns).map(move |column| (row, column)))
                .map(|(r, c)| value(r, c) as f32)
                .collect()
        };
        let mut weight = of(0..side);
        subtract_largest(&mut weight, columns, rank);
        let worst = weight.iter().zip(of(rank..side)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "{rows} x {columns}, rank {rank}: {worst}");
    }
}

#[test]
fn a_matrix_of_low_rank_leaves_nothing() {
    let (left, right) = (samples(12, 5), samples(9, 6));
    let mut weight: Vec<f32> = left.iter().flat_map(|l| right.iter().map(move |r| (l * r) as f32)).collect();
    subtract_largest(&mut weight, 9, 3);
    assert!(weight.iter().all(|value| value.abs() < 1e-6), "{weight:?}");
}

#[test]
fn the_projection_on_the_first_columns_leaves_them_zero() {
    let mut weight: Vec<f32> = samples(8 * 6, 9).iter().map(|value| *value as f32).collect();
    let before = weight.clone();
    subtract_first_columns(&mut weight, 6, (2, 1.0), String::new).unwrap();
    for (row, old) in weight.chunks(6).zip(before.chunks(6)) {
        assert!(row[0].abs() < 1e-6 && row[1].abs() < 1e-6, "{row:?}");
        assert!(row[2] != old[2]);
    }
    // What is left is orthogonal to the columns.
    let dot: f32 = weight.chunks(6).zip(before.chunks(6)).map(|(row, old)| row[4] * old[1]).sum();
    assert!(dot.abs() < 1e-5, "{dot}");
    let mut dependent = vec![1.0f32; 12];
    assert!(subtract_first_columns(&mut dependent, 3, (2, 1.0), String::new).is_err());
}
