//! Prints the speed of the CPU's matrix products for the shapes of BERT-base and MiniLM, as GFLOP/s and as a share of
//! the multiply-add peak measured in the same run.
//!
//! `cargo run --release --example gemm_bench -p bmtrain-core [-- PART_OF_A_NAME]`
//!
//! Each figure is the best of many short runs: neighbours on the machine make runs longer, never shorter.

use std::convert::Infallible;
use std::time::Duration;

use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::cpu::gemm::{
    BatchedProduct, Epilogue, Operand, Product, Source, Target, Threads, instruction_set, measure_peak, product,
    product_batch, scratch_bytes,
};

/// Which of the three products of a linear layer `y = x·Wᵀ` with `tokens` rows, W `[outputs, inputs]`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Role {
    /// y = x·Wᵀ
    Forward,
    /// dx = dy·W
    InputGradient,
    /// dW = dyᵀ·x
    WeightGradient,
}

const LAYERS: [(&str, usize, usize, usize); 11] = [
    ("bert qkv", 1024, 2304, 768),
    ("bert out", 1024, 768, 768),
    ("bert up", 1024, 3072, 768),
    ("bert down", 1024, 768, 3072),
    ("minilm qkv", 2048, 1152, 384),
    ("minilm out", 2048, 384, 384),
    ("minilm up", 2048, 1536, 384),
    ("minilm down", 2048, 384, 1536),
    ("skinny 1", 1, 3072, 768),
    ("skinny 4", 4, 3072, 768),
    ("skinny 16", 16, 3072, 768),
];

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let pool = match rayon::ThreadPoolBuilder::new().num_threads(2).build() {
        Ok(pool) => pool,
        Err(error) => {
            eprintln!("no threads: {error}");
            std::process::exit(1);
        }
    };
    let peaks = [measure_peak(1), measure_peak(2)];
    println!(
        "{}, peak of 1 thread {:.1} GFLOP/s, of 2 threads {:.1} GFLOP/s",
        instruction_set(),
        peaks[0] / 1e9,
        peaks[1] / 1e9
    );
    let setups = [(Threads::Calling, peaks[0]), (Threads::Pool(&pool), peaks[1])];
    println!("{:<14} {:>5} {:>5} {:>5} {:<15} {:>22} {:>22}", "", "m", "n", "k", "", "1 thread", "2 threads");
    for (name, tokens, outputs, inputs) in LAYERS.into_iter().filter(|layer| layer.0.contains(&filter)) {
        for role in [Role::Forward, Role::InputGradient, Role::WeightGradient] {
            linear(name, role, (tokens, outputs, inputs), setups);
        }
    }
    for size in [64, 32] {
        if "heads".contains(&filter) {
            heads(size, setups);
        }
    }
    println!("scratch {:.1} MiB", scratch_bytes() as f64 / f64::from(1 << 20));
}

fn linear(name: &str, role: Role, (tokens, outputs, inputs): (usize, usize, usize), setups: [(Threads<'_>, f64); 2]) {
    let (x, w, dy) = (numbers(tokens * inputs), numbers(outputs * inputs), numbers(tokens * outputs));
    let (m, n, k) = match role {
        Role::Forward => (tokens, outputs, inputs),
        Role::InputGradient => (tokens, inputs, outputs),
        Role::WeightGradient => (outputs, inputs, tokens),
    };
    let mut c = numbers(m * n);
    let rates = setups.map(|(threads, peak)| {
        let rate = best_rate(2.0 * m as f64 * n as f64 * k as f64, || {
            let (a, b) = match role {
                Role::Forward => (Operand::rows(Source::F32(&x), k), Operand::transposed(Source::F32(&w), k)),
                Role::InputGradient => (Operand::rows(Source::F32(&dy), k), Operand::rows(Source::F32(&w), n)),
                Role::WeightGradient => (Operand::transposed(Source::F32(&dy), m), Operand::rows(Source::F32(&x), n)),
            };
            let c = Target::F32(&mut c);
            let epilogue = Epilogue::default();
            report(product(threads, Product { m, n, k, alpha: 1.0, a, b, beta: 0.0, c, ldc: n, epilogue }));
        });
        (rate, rate / peak)
    });
    line(name, (m, n, k), &format!("{role:?}"), rates);
}

/// The two products of attention for 8 sequences of 128 tokens and 12 heads, read in place from one fused projection.
fn heads(size: usize, setups: [(Threads<'_>, f64); 2]) {
    let (batch, length, heads) = (8, 128, 12);
    let row = 3 * heads * size;
    let square = length * length;
    let projected = numbers(batch * length * row);
    let mut scores = numbers(batch * heads * square);
    let mut mixed = numbers(batch * length * heads * size);
    let count = [1, batch, heads];
    let operations = (batch * heads * square * size * 2) as f64;
    let rates = setups.map(|(threads, peak)| {
        let rate = best_rate(operations, || {
            let first = Product {
                m: length,
                n: length,
                k: size,
                alpha: 0.125,
                a: Operand::rows(Source::F32(&projected), row),
                b: Operand::transposed(Source::F32(&projected[heads * size..]), row),
                beta: 0.0,
                c: Target::F32(&mut scores),
                ldc: length,
                epilogue: Epilogue::default(),
            };
            let stride = [0, length * row, size];
            let c_stride = [0, heads * square, square];
            report(product_batch(
                threads,
                BatchedProduct { first, count, a_stride: stride, b_stride: stride, c_stride },
            ));
        });
        (rate, rate / peak)
    });
    line("heads q·k", (length, length, size), "", rates);
    let rates = setups.map(|(threads, peak)| {
        let rate = best_rate(operations, || {
            let first = Product {
                m: length,
                n: size,
                k: length,
                alpha: 1.0,
                a: Operand::rows(Source::F32(&scores), length),
                b: Operand::rows(Source::F32(&projected[2 * heads * size..]), row),
                beta: 0.0,
                c: Target::F32(&mut mixed),
                ldc: heads * size,
                epilogue: Epilogue::default(),
            };
            let a_stride = [0, heads * square, square];
            let c_stride = [0, length * heads * size, size];
            let batch = BatchedProduct { first, count, a_stride, b_stride: [0, length * row, size], c_stride };
            report(product_batch(threads, batch));
        });
        (rate, rate / peak)
    });
    line("heads p·v", (length, size, length), "", rates);
}

fn line(name: &str, (m, n, k): (usize, usize, usize), role: &str, rates: [(f64, f64); 2]) {
    let text = rates.map(|(rate, share)| format!("{:.1} GFLOP/s {:>4.1} %", rate / 1e9, share * 100.0));
    println!("{name:<14} {m:>5} {n:>5} {k:>5} {role:<15} {:>22} {:>22}", text[0], text[1]);
}

fn report(result: bmtrain_core::Result<()>) {
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Best of at least 5 runs and 0.4 s.
fn best_rate(operations: f64, mut run: impl FnMut()) -> f64 {
    let rounds = Rounds::within(1, 5, Duration::from_millis(400));
    let Ok([runs]) = measure(rounds, || {
        seconds(|| {
            run();
            Ok::<_, Infallible>(())
        })
        .map(|seconds| [seconds])
    });
    operations / runs.best()
}

/// Numbers that start on a cache line, as tensors do.
struct Aligned {
    data: Vec<f32>,
    skip: usize,
}

const LINE: usize = 64 / size_of::<f32>();

impl std::ops::Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[self.skip..]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.skip..]
    }
}

fn numbers(count: usize) -> Aligned {
    let data: Vec<f32> = (0..count + LINE).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0).collect();
    let skip = data.as_ptr().align_offset(64).min(LINE);
    Aligned { data, skip }
}
