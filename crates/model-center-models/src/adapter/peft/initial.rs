//! Initial values that PEFT subtracts from a weight whose update did not begin with zero.
//!
//! Source: PEFT 0.21.2, `pissa_init` (Meng et al., 2024) and `olora_init` (Büyükakyüz, 2024): the update begins as the
//! part of the largest singular values, or as the first columns of a QR decomposition and its rows, and the weight as
//! the rest. The rest depends on the weight alone, so that it can be computed again without the update's first values.

use crate::{Error, Result};

/// Steps of the Lanczos process between two looks at what has converged.
const LOOK: usize = 24;
/// The largest error of an eigenvalue, as a part of the largest.
const ACCURACY: f64 = 1e-12;
/// Rest of a column that depends on those before it, as a part of its length.
const DEPENDENT: f64 = 1e-6;

/// Subtract from a matrix with these columns its part of the `rank` largest singular values. Numerics: f64, singular
/// vectors by a Lanczos process with full orthogonalization; memory: its vectors, some hundred of the shorter side.
pub(super) fn subtract_largest(weight: &mut [f32], columns: usize, rank: usize) {
    let rows = weight.len().checked_div(columns).unwrap_or(0);
    let of_columns = columns < rows;
    let side = rows.min(columns);
    let vectors = largest(side, rank.min(side), |x, out| {
        // W Wᵀ x, or Wᵀ W x.
        if of_columns {
            out.fill(0.0);
            for row in weight.chunks_exact(columns) {
                let dot: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                out.iter_mut().zip(row).for_each(|(out, w)| *out += dot * f64::from(*w));
            }
        } else {
            let mut between = vec![0.0; columns];
            for (row, x) in weight.chunks_exact(columns).zip(x) {
                between.iter_mut().zip(row).for_each(|(between, w)| *between += x * f64::from(*w));
            }
            for (row, out) in weight.chunks_exact(columns).zip(out) {
                *out = row.iter().zip(&between).map(|(w, b)| f64::from(*w) * b).sum();
            }
        }
    });
    if of_columns {
        for row in weight.chunks_exact_mut(columns) {
            let mut taken = vec![0.0; columns];
            for vector in &vectors {
                let dot: f64 = row.iter().zip(vector).map(|(w, v)| f64::from(*w) * v).sum();
                taken.iter_mut().zip(vector).for_each(|(taken, v)| *taken += dot * v);
            }
            row.iter_mut().zip(taken).for_each(|(w, taken)| *w = (f64::from(*w) - taken) as f32);
        }
    } else {
        subtract_projection(weight, columns, &vectors, 1.0);
    }
}

/// Subtract from a matrix with these columns `scale` times its projection on its first `rank` columns.
pub(super) fn subtract_first_columns(
    weight: &mut [f32],
    columns: usize,
    (rank, scale): (usize, f32),
    place: impl Fn() -> String,
) -> Result<()> {
    let mut vectors: Vec<Vec<f64>> = Vec::new();
    for column in 0..rank.min(columns) {
        let mut vector: Vec<f64> = weight.chunks_exact(columns).map(|row| f64::from(row[column])).collect();
        let before = length(&vector);
        // Twice is enough.
        for _ in 0..2 {
            for other in &vectors {
                let dot = dot(&vector, other);
                vector.iter_mut().zip(other).for_each(|(value, other)| *value -= dot * other);
            }
        }
        let after = length(&vector);
        if after <= DEPENDENT * before || after == 0.0 {
            let reason =
                format!("its first {rank} columns depend on each other, so that olora has no definite beginning");
            return Err(Error::model(place(), reason, "merge the adapter in PEFT (merge_and_unload)"));
        }
        vector.iter_mut().for_each(|value| *value /= after);
        vectors.push(vector);
    }
    subtract_projection(weight, columns, &vectors, f64::from(scale));
    Ok(())
}

/// Subtract `scale · Q Qᵀ W`; the vectors, of the length of columns, are orthonormal.
fn subtract_projection(weight: &mut [f32], columns: usize, vectors: &[Vec<f64>], scale: f64) {
    let mut products = vec![vec![0.0f64; columns]; vectors.len()];
    for (number, row) in weight.chunks_exact(columns).enumerate() {
        for (product, vector) in products.iter_mut().zip(vectors) {
            product.iter_mut().zip(row).for_each(|(sum, w)| *sum += vector[number] * f64::from(*w));
        }
    }
    let mut taken = vec![0.0f64; columns];
    for (number, row) in weight.chunks_exact_mut(columns).enumerate() {
        taken.fill(0.0);
        for (product, vector) in products.iter().zip(vectors) {
            taken.iter_mut().zip(product).for_each(|(taken, product)| *taken += vector[number] * product);
        }
        row.iter_mut().zip(&taken).for_each(|(w, taken)| *w = (f64::from(*w) - scale * taken) as f32);
    }
}

/// Orthonormal eigenvectors of the `count` largest eigenvalues of a symmetric operator of this size.
fn largest(size: usize, count: usize, apply: impl Fn(&[f64], &mut [f64])) -> Vec<Vec<f64>> {
    let (mut basis, mut diagonal, mut beside): (Vec<Vec<f64>>, Vec<f64>, Vec<f64>) = Default::default();
    let mut next = beginning(size, 0, &basis);
    while let Some(vector) = next.take() {
        basis.push(vector);
        let mut image = vec![0.0; size];
        if let Some(last) = basis.last() {
            apply(last, &mut image);
            diagonal.push(dot(last, &image));
        }
        orthogonalize(&mut image, &basis);
        let norm = length(&image);
        let scale = diagonal.iter().fold(0.0f64, |most, value| most.max(value.abs()));
        let is_whole = basis.len() == size;
        if is_whole || (basis.len() >= count && basis.len().is_multiple_of(LOOK)) {
            let (values, vectors) = eigen(&diagonal, &beside);
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
            order.truncate(count);
            let last = basis.len() - 1;
            let error = |at: &usize| (norm * vectors[last][*at]).abs();
            if is_whole || order.iter().all(|at| error(at) <= ACCURACY * scale) {
                return order.iter().map(|at| combined(&basis, &vectors, *at)).collect();
            }
        }
        // An invariant subspace: go on with a vector outside of it.
        next = if norm > f64::EPSILON * scale * size as f64 {
            image.iter_mut().for_each(|value| *value /= norm);
            beside.push(norm);
            Some(image)
        } else {
            beside.push(0.0);
            beginning(size, basis.len(), &basis)
        };
    }
    Vec::new()
}

/// A vector of length one beside a basis, a different one for each `number`.
fn beginning(size: usize, number: usize, basis: &[Vec<f64>]) -> Option<Vec<f64>> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(number as u64 + 1);
    let mut vector: Vec<f64> = (0..size)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        })
        .collect();
    orthogonalize(&mut vector, basis);
    let norm = length(&vector);
    vector.iter_mut().for_each(|value| *value /= norm);
    Some(vector).filter(|_| norm > 0.0)
}

fn orthogonalize(vector: &mut [f64], basis: &[Vec<f64>]) {
    for _ in 0..2 {
        for other in basis {
            let dot = dot(vector, other);
            vector.iter_mut().zip(other).for_each(|(value, other)| *value -= dot * other);
        }
    }
}

/// The combination of a basis by one column of coefficients.
fn combined(basis: &[Vec<f64>], coefficients: &[Vec<f64>], column: usize) -> Vec<f64> {
    let mut sum = vec![0.0; basis.first().map_or(0, Vec::len)];
    for (vector, row) in basis.iter().zip(coefficients) {
        sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += row[column] * value);
    }
    sum
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(vector: &[f64]) -> f64 {
    dot(vector, vector).sqrt()
}

/// Eigenvalues and, in columns, eigenvectors of a symmetric tridiagonal matrix, by the QL algorithm with implicit
/// shifts.
fn eigen(diagonal: &[f64], beside: &[f64]) -> (Vec<f64>, Vec<Vec<f64>>) {
    /// Rotations until an eigenvalue is found: many more than are ever needed.
    const MAX_ROUNDS: usize = 200;
    let count = diagonal.len();
    let mut d = diagonal.to_vec();
    let mut e: Vec<f64> = beside.iter().copied().take(count.saturating_sub(1)).chain([0.0]).collect();
    let mut z: Vec<Vec<f64>> =
        (0..count).map(|row| (0..count).map(|at| f64::from(u8::from(at == row))).collect()).collect();
    for l in 0..count {
        for _ in 0..MAX_ROUNDS {
            let is_small = |m: &usize| e[*m].abs() <= f64::EPSILON * (d[*m].abs() + d[*m + 1].abs());
            let m = (l..count - 1).find(is_small).unwrap_or(count - 1);
            if m == l {
                break;
            }
            let mut g = (d[l + 1] - d[l]) / (2.0 * e[l]);
            g = d[m] - d[l] + e[l] / (g + g.hypot(1.0).copysign(g));
            let (mut sine, mut cosine, mut shift, mut is_split) = (1.0, 1.0, 0.0, false);
            for i in (l..m).rev() {
                let (f, b) = (sine * e[i], cosine * e[i]);
                let r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    d[i + 1] -= shift;
                    e[m] = 0.0;
                    is_split = true;
                    break;
                }
                (sine, cosine) = (f / r, g / r);
                g = d[i + 1] - shift;
                let turned = (d[i] - g) * sine + 2.0 * cosine * b;
                shift = sine * turned;
                d[i + 1] = g + shift;
                g = cosine * turned - b;
                for row in &mut z {
                    let (low, high) = (row[i], row[i + 1]);
                    (row[i], row[i + 1]) = (cosine * low - sine * high, sine * low + cosine * high);
                }
            }
            if !is_split {
                d[l] -= shift;
                e[l] = g;
                e[m] = 0.0;
            }
        }
    }
    (d, z)
}

#[cfg(test)]
mod tests;
