//! Batches, and products that are refused.

use super::*;

fn small<'a>(a: &'a [f32], b: &'a [f32], c: &'a mut [f32]) -> Product<'a> {
    Product {
        m: 4,
        n: 5,
        k: 3,
        alpha: 1.0,
        a: Operand::rows(Source::F32(a), 3),
        b: Operand::rows(Source::F32(b), 5),
        beta: 0.0,
        c: Target::F32(c),
        ldc: 5,
        epilogue: Epilogue::default(),
    }
}

#[test]
fn wrong_lengths_and_strides_are_errors_and_write_nothing() {
    type Bend = fn(&mut Product<'_>);
    static SHORT: [f32; 4] = [0.0; 4];
    let bends: [(&str, Bend); 9] = [
        ("length of A", |p| p.m = 5),
        ("length of B", |p| p.b.row_stride = 6),
        ("strides of A", |p| p.a.col_stride = 2),
        ("row distance of C", |p| p.ldc = 4),
        ("length of C", |p| p.ldc = 6),
        ("length of the bias", |p| p.epilogue.bias = Some(Source::F32(&SHORT))),
        ("length of the saved", |p| p.epilogue.combination = Some((Source::F32(&SHORT), 5, &slope))),
        ("strides of A", |p| p.a.row_stride = usize::MAX),
        ("strides of B", |p| p.b.row_stride = usize::MAX),
    ];
    for (what, bend) in bends {
        let (a, b, mut c) = ([1.0; 12], [1.0; 15], [9.0; 20]);
        let mut bent = small(&a, &b, &mut c);
        bend(&mut bent);
        match product(Threads::Calling, bent) {
            Err(Error::Shape { what: found, .. }) => assert!(found.starts_with(what), "{found} instead of {what}"),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(c, [9.0; 20]);
    }
}

#[test]
fn a_batch_equals_its_products_one_by_one() {
    // Heads inside [batch, length, 3, heads, size], two query heads sharing a key head.
    let (batch, length, heads, size) = (3, 20, 4, 8);
    let row = 3 * heads * size;
    let x = numbers(batch * length * row, 9);
    let pool = pool(2);
    for threads in [Threads::Calling, Threads::Pool(&pool)] {
        let mut scores = vec![f32::NAN; batch * heads * length * length];
        let first = Product {
            m: length,
            n: length,
            k: size,
            alpha: 0.25,
            a: Operand::rows(Source::F32(&x), row),
            b: Operand::transposed(Source::F32(&x[heads * size..]), row),
            beta: 0.0,
            c: Target::F32(&mut scores),
            ldc: length,
            epilogue: Epilogue::default(),
        };
        let square = length * length;
        let whole = BatchedProduct {
            first,
            count: [batch, heads / 2, 2],
            a_stride: [length * row, 2 * size, size],
            b_stride: [length * row, size, 0],
            c_stride: [heads * square, 2 * square, square],
        };
        product_batch(threads, whole).unwrap();
        for (at, got) in scores.iter().enumerate() {
            let (b, h, i, j) = (at / (heads * square), at / square % heads, at / length % length, at % length);
            let q = &x[(b * length + i) * row + h * size..][..size];
            let key = &x[(b * length + j) * row + heads * size + h / 2 * size..][..size];
            let want: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * 0.25;
            // Eight products of numbers below 1.
            assert!((f64::from(*got) - want).abs() < 1e-6, "{at}: {got} {want}");
        }
    }
}

#[test]
fn a_batch_that_writes_an_element_twice_is_an_error() {
    let (a, b, mut c) = ([1.0; 12], [1.0; 15], [9.0; 60]);
    let first = small(&a, &b, &mut c);
    let batch = BatchedProduct { first, count: [1, 1, 3], a_stride: [0; 3], b_stride: [0; 3], c_stride: [0, 0, 19] };
    assert!(matches!(Batch::new(batch), Err(Error::Shape { .. })));
    let first = small(&a, &b, &mut c);
    let batch = BatchedProduct { first, count: [1, 2, 3], a_stride: [0; 3], b_stride: [0; 3], c_stride: [0, 21, 20] };
    assert!(Batch::new(batch).is_err());
    let first = small(&a, &b, &mut c);
    let batch = BatchedProduct { first, count: [1, 1, 3], a_stride: [0; 3], b_stride: [0; 3], c_stride: [0, 0, 20] };
    assert!(Batch::new(batch).is_ok());
}
