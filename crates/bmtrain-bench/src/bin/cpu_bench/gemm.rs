//! The speed of the CPU's matrix products for the shapes of BERT-base and MiniLM, in f32 or bf16, as GFLOP/s and as a
//! share of the peak measured in the same run: of multiply-adds in f32, or in bf16 where the set multiplies it.
//!
//! Each figure is the best of many short runs: neighbours on the machine make runs longer, never shorter. `BMTRAIN_CPU`
//! names the instruction set: portable, neon, neon_bf16, avx2, avx512, avx512_bf16, amx.

use anyhow::Result;
use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::cpu::gemm::{
    BatchedProduct, Epilogue, Operand, Product, Source, Target, Threads, measure_bf16_peak, measure_peak,
    product_batch, scratch_bytes,
};
use bmtrain_core::cpu::threads;
use bmtrain_dist::launch::cpu_options;
use clap::{Args, ValueEnum};
use half::bf16;
use std::time::Duration;

/// Name, tokens, outputs and inputs of a linear layer `y = x·Wᵀ`.
const LAYERS: [(&str, usize, usize, usize); 14] = [
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
    ("skinny 8", 8, 3072, 768),
    ("skinny 16", 16, 3072, 768),
    ("skinny 32", 32, 3072, 768),
    ("skinny 64", 64, 3072, 768),
];

/// A matrix in a buffer: where it starts, the distances between rows and columns, and those between the products of a
/// batch.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    start: usize,
    row: usize,
    column: usize,
    batch: [usize; 2],
    len: usize,
}

impl Place {
    fn rows(rows: usize, columns: usize) -> Self {
        Place { row: columns, column: 1, len: rows * columns, ..Place::default() }
    }

    /// The transpose of a matrix stored with these rows and columns.
    fn transposed(rows: usize, columns: usize) -> Self {
        Place { row: 1, column: columns, len: rows * columns, ..Place::default() }
    }

    fn operand<'a>(&self, data: &'a Numbers) -> Operand<'a> {
        Operand { data: data.from(self.start), row_stride: self.row, col_stride: self.column, in_bf16: false }
    }

    fn json(&self) -> String {
        let Place { start, row, column, batch: [outer, inner], len } = self;
        format!(r#"{{"start": {start}, "row": {row}, "column": {column}, "#)
            + &format!(r#""outer": {outer}, "inner": {inner}, "len": {len}}}"#)
    }
}

/// `count` products C = A·B of m x k by k x n.
#[derive(Debug, Clone)]
struct Shape {
    name: String,
    role: &'static str,
    size: [usize; 3],
    count: [usize; 2],
    a: Place,
    b: Place,
    c: Place,
}

impl Shape {
    fn operations(&self) -> f64 {
        2.0 * self.size.iter().chain(&self.count).product::<usize>() as f64
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
}

impl Dtype {
    fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        }
    }

    /// The floating-point operations per second that a pool reaches in registers.
    fn peak(self, pool: &threads::Threads) -> f64 {
        match self {
            Dtype::F32 => measure_peak(pool.count(), pool.instruction_set()),
            Dtype::Bf16 => measure_bf16_peak(pool.count(), pool.instruction_set()),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Print a record for each figure, with the strides of its operands, for programs that compute the same; the peak
    /// of its share is measured right after it, since the clock of a shared machine changes within seconds.
    #[arg(long)]
    json: bool,
    /// Wait for a line on standard input before each record, and start over after the last shape, so that other
    /// programs can measure each shape in turn with this one.
    #[arg(long, requires = "json")]
    on_request: bool,
    /// Dtype of operands and results.
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Seconds of the runs of a figure.
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Part of the name and role of a shape, such as "bert up" or "skinny 64 Forward".
    #[arg(default_value = "")]
    part: String,
}

impl Options {
    fn budget(&self) -> Result<Duration> {
        Ok(Duration::try_from_secs_f64(self.seconds)?)
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let pool = |count: &usize| Ok(threads::Threads::with(cpu_options(*count)?)?);
    let pools = options.threads.iter().map(pool).collect::<Result<Vec<_>>>()?;
    let (mut shapes, budget, dtype) = (shapes(), options.budget()?, options.dtype);
    shapes.retain(|shape| format!("{} {}", shape.name, shape.role).contains(&options.part));
    if !options.json {
        return table(&pools, &shapes, dtype, budget);
    }
    let mut each = shapes.iter().flat_map(|shape| pools.iter().map(move |pool| (shape, pool)));
    if !options.on_request {
        return each.try_for_each(|(shape, pool)| record(shape, pool, dtype, budget));
    }
    for (request, (shape, pool)) in std::io::stdin().lines().zip(each.cycle()) {
        request?;
        record(shape, pool, dtype, budget)?;
    }
    Ok(())
}

/// Prints the shapes by lines, with a column for each number of threads.
fn table(pools: &[threads::Threads], shapes: &[Shape], dtype: Dtype, budget: Duration) -> Result<()> {
    let peaks: Vec<f64> = pools.iter().map(|pool| dtype.peak(pool)).collect();
    for (pool, peak) in pools.iter().zip(&peaks) {
        let (set, count) = (pool.instruction_set(), pool.count());
        println!("{set}, {}, peak of {count} thread(s) {:.1} GFLOP/s", dtype.name(), peak / 1e9);
    }
    print!("{:<12} {:>5} {:>5} {:>5} {:<15}", "", "m", "n", "k", "");
    pools.iter().for_each(|pool| print!(" {:>22}", format!("{} thread(s)", pool.count())));
    println!();
    for shape in shapes {
        let Shape { name, role, size: [m, n, k], .. } = shape;
        print!("{name:<12} {m:>5} {n:>5} {k:>5} {role:<15}");
        for (pool, peak) in pools.iter().zip(&peaks) {
            let rate = best_rate(shape, Threads::Pool(pool), dtype, budget)?;
            print!(" {:>22}", format!("{:.1} GFLOP/s {:>4.1} %", rate / 1e9, rate / peak * 100.0));
        }
        println!();
    }
    println!("scratch {:.1} MiB", scratch_bytes() as f64 / f64::from(1 << 20));
    Ok(())
}

/// Measures a shape and prints its record.
fn record(shape: &Shape, pool: &threads::Threads, dtype: Dtype, budget: Duration) -> Result<()> {
    let rate = best_rate(shape, Threads::Pool(pool), dtype, budget)?;
    let Shape { name, role, size: [m, n, k], count, .. } = shape;
    let [a, b, c] = [shape.a, shape.b, shape.c].map(|place| place.json());
    let (threads, set) = (pool.count(), pool.instruction_set());
    print!(r#"{{"name": "{name}", "role": "{role}", "size": [{m}, {n}, {k}], "count": {count:?}, "#);
    print!(r#""a": {a}, "b": {b}, "c": {c}, "dtype": "{}", "#, dtype.name());
    print!(r#""threads": {threads}, "isa": "{set}", "#);
    println!(r#""gflops": {:.2}, "share": {:.4}}}"#, rate / 1e9, rate / dtype.peak(pool));
    Ok(())
}

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (name, tokens, outputs, inputs) in LAYERS {
        let one = |role, [m, n, k]: [usize; 3], a, b| Shape {
            name: name.into(),
            role,
            size: [m, n, k],
            count: [1, 1],
            a,
            b,
            c: Place::rows(m, n),
        };
        // y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x.
        let (x, dy) = (Place::rows(tokens, inputs), Place::rows(tokens, outputs));
        let w = Place::transposed(outputs, inputs);
        shapes.push(one("Forward", [tokens, outputs, inputs], x, w));
        shapes.push(one("InputGradient", [tokens, inputs, outputs], dy, Place::rows(outputs, inputs)));
        shapes.push(one("WeightGradient", [outputs, inputs, tokens], Place::transposed(tokens, outputs), x));
    }
    for size in [64, 32] {
        shapes.extend(heads(size));
    }
    shapes
}

/// The two products of attention for 8 sequences of 128 tokens and 12 heads, read in place from one fused projection.
fn heads(size: usize) -> [Shape; 2] {
    let (batch, length, heads) = (8, 128, 12);
    let (row, square) = (3 * heads * size, length * length);
    let projected =
        Place { row, column: 1, batch: [length * row, size], len: batch * length * row, ..Place::default() };
    let scores = Place { batch: [heads * square, square], ..Place::rows(length, length) };
    let scores = Place { len: batch * heads * square, ..scores };
    let mixed = Place { row: heads * size, column: 1, batch: [length * heads * size, size], ..Place::default() };
    let mixed = Place { len: batch * length * heads * size, ..mixed };
    let name = format!("heads {size}");
    [
        Shape {
            name: name.clone(),
            role: "q·k",
            size: [length, length, size],
            count: [batch, heads],
            a: projected,
            b: Place { start: heads * size, row: 1, column: row, ..projected },
            c: scores,
        },
        Shape {
            name,
            role: "p·v",
            size: [length, size, length],
            count: [batch, heads],
            a: scores,
            b: Place { start: 2 * heads * size, ..projected },
            c: mixed,
        },
    ]
}

/// Best of at least 5 runs within the budget.
fn best_rate(shape: &Shape, threads: Threads<'_>, dtype: Dtype, budget: Duration) -> Result<f64> {
    let Shape { size: [m, n, k], count: [outer, inner], a, b, c, .. } = *shape;
    let (a_data, b_data, mut c_data) =
        (Numbers::new(dtype, a.len), Numbers::new(dtype, b.len), Numbers::new(dtype, c.len));
    let mut run = || {
        let first = Product {
            m,
            n,
            k,
            alpha: 1.0,
            a: a.operand(&a_data),
            b: b.operand(&b_data),
            beta: 0.0,
            c: c_data.target(),
            ldc: c.row,
            epilogue: Epilogue::default(),
        };
        let levels = |place: &Place| [0, place.batch[0], place.batch[1]];
        let (a_stride, b_stride, c_stride) = (levels(&a), levels(&b), levels(&c));
        product_batch(threads, BatchedProduct { first, count: [1, outer, inner], a_stride, b_stride, c_stride })
    };
    let [runs] = measure(Rounds::within(1, 5, budget), || seconds(&mut run).map(|seconds| [seconds]))?;
    Ok(shape.operations() / runs.best())
}

/// Numbers that start on a cache line, as tensors do.
struct Aligned<T> {
    data: Vec<T>,
    skip: usize,
}

impl<T: Copy> Aligned<T> {
    fn new(count: usize, number: impl Fn(f32) -> T) -> Self {
        let line = 64 / size_of::<T>();
        let value = |i: usize| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0;
        let data: Vec<T> = (0..count + line).map(|i| number(value(i))).collect();
        let skip = data.as_ptr().align_offset(64).min(line);
        Aligned { data, skip }
    }
}

enum Numbers {
    F32(Aligned<f32>),
    Bf16(Aligned<bf16>),
}

impl Numbers {
    fn new(dtype: Dtype, count: usize) -> Self {
        match dtype {
            Dtype::F32 => Numbers::F32(Aligned::new(count, |value| value)),
            Dtype::Bf16 => Numbers::Bf16(Aligned::new(count, bf16::from_f32)),
        }
    }

    /// The elements from `start` on.
    fn from(&self, start: usize) -> Source<'_> {
        match self {
            Numbers::F32(Aligned { data, skip }) => Source::F32(&data[skip + start..]),
            Numbers::Bf16(Aligned { data, skip }) => Source::Bf16(&data[skip + start..]),
        }
    }

    fn target(&mut self) -> Target<'_> {
        match self {
            Numbers::F32(Aligned { data, skip }) => Target::F32(&mut data[*skip..]),
            Numbers::Bf16(Aligned { data, skip }) => Target::Bf16(&mut data[*skip..]),
        }
    }
}
