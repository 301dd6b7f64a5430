//! The products of the `gemm` crate: `gemm_peer SECONDS <SHAPES`. Each line of standard input is a record of
//! `cpu_bench gemm --json`; it is answered with the best speed of many runs, in GFLOP/s.

use serde::Deserialize;
use std::error::Error;
use std::io::stdin;
use std::time::Instant;

#[derive(Deserialize)]
struct Place {
    start: usize,
    row: isize,
    column: isize,
    outer: usize,
    inner: usize,
    len: usize,
}

#[derive(Deserialize)]
struct Shape {
    size: [usize; 3],
    count: [usize; 2],
    a: Place,
    b: Place,
    c: Place,
    threads: usize,
}

impl Place {
    fn numbers(&self) -> Vec<f32> {
        (0..self.len).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    fn at(&self, x: usize, y: usize) -> usize {
        self.start + x * self.outer + y * self.inner
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: f64 = std::env::args().nth(1).ok_or("how many seconds for each shape?")?.parse()?;
    for line in stdin().lines() {
        let shape: Shape = serde_json::from_str(&line?)?;
        let ([m, n, k], [outer, inner]) = (shape.size, shape.count);
        let (a, b, mut c) = (shape.a.numbers(), shape.b.numbers(), shape.c.numbers());
        // Products of a batch one after the other, each on all threads, as the crate has no batch of its own.
        let threads = match shape.threads {
            1 => gemm::Parallelism::None,
            count => gemm::Parallelism::Rayon(count),
        };
        let mut run = || {
            for (x, y) in (0..outer).flat_map(|x| (0..inner).map(move |y| (x, y))) {
                // SAFETY: the places of `cpu_bench gemm` are inside their buffers.
                unsafe {
                    gemm::gemm(
                        m,
                        n,
                        k,
                        c.as_mut_ptr().add(shape.c.at(x, y)),
                        shape.c.column,
                        shape.c.row,
                        false,
                        a.as_ptr().add(shape.a.at(x, y)),
                        shape.a.column,
                        shape.a.row,
                        b.as_ptr().add(shape.b.at(x, y)),
                        shape.b.column,
                        shape.b.row,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        threads,
                    );
                }
            }
        };
        run();
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        while begin.elapsed().as_secs_f64() < seconds {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("{:.2}", 2.0 * (m * n * k * outer * inner) as f64 / best / 1e9);
    }
    Ok(())
}
