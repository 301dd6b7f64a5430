//! Prints the speed of the CPU's matrix products for the shapes of BERT-base and MiniLM, as GFLOP/s and as a share of
//! the multiply-add peak measured in the same run.
//!
//! `cargo run --release --example gemm_bench -p bmtrain-core -- [--json] [--seconds S] [PART_OF_A_NAME]`
//!
//! Each figure is the best of many short runs, S seconds together (0.4): neighbours on the machine make runs longer,
//! never shorter. With `--json` every figure is a record with the strides of its operands, for other programs that
//! compute the same. `BMTRAIN_CPU` names the instruction set: portable, neon, avx2, avx512.

use std::error::Error;
use std::time::Duration;

use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::cpu::gemm::{
    BatchedProduct, Epilogue, Operand, Product, Source, Target, Threads, measure_peak, product_batch, scratch_bytes,
};
use bmtrain_core::cpu::{CpuOptions, threads};

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

    fn operand<'a>(&self, data: &'a [f32]) -> Operand<'a> {
        Operand { data: Source::F32(&data[self.start..]), row_stride: self.row, col_stride: self.column }
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

struct Options {
    json: bool,
    budget: Duration,
    part: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let pools: Vec<threads::Threads> = [1, 2]
        .into_iter()
        .map(|count| threads::Threads::with(CpuOptions::of_environment(count, &|name| std::env::var_os(name))?))
        .collect::<Result<_, _>>()?;
    let set = pools[0].instruction_set();
    let peaks = [1, 2].map(|threads| measure_peak(threads, set));
    if !options.json {
        println!("{set}, peak of 1 thread {:.1} GFLOP/s, of 2 threads {:.1} GFLOP/s", peaks[0] / 1e9, peaks[1] / 1e9);
        println!("{:<12} {:>5} {:>5} {:>5} {:<15} {:>22} {:>22}", "", "m", "n", "k", "", "1 thread", "2 threads");
    }
    for shape in shapes().iter().filter(|shape| shape.name.contains(&options.part)) {
        let mut rates = [0.0; 2];
        for (rate, pool) in rates.iter_mut().zip(&pools) {
            *rate = best_rate(shape, Threads::Pool(pool), options.budget)?;
        }
        let (Shape { name, role, size: [m, n, k], count, .. }, shares) = (shape, [0, 1].map(|i| rates[i] / peaks[i]));
        if options.json {
            for i in 0..2 {
                let [a, b, c] = [shape.a, shape.b, shape.c].map(|place| place.json());
                print!(r#"{{"name": "{name}", "role": "{role}", "size": [{m}, {n}, {k}], "count": {count:?}, "#);
                print!(r#""a": {a}, "b": {b}, "c": {c}, "threads": {}, "isa": "{set}", "#, i + 1);
                println!(r#""gflops": {:.2}, "share": {:.4}}}"#, rates[i] / 1e9, shares[i]);
            }
        } else {
            let text = [0, 1].map(|i| format!("{:.1} GFLOP/s {:>4.1} %", rates[i] / 1e9, shares[i] * 100.0));
            println!("{name:<12} {m:>5} {n:>5} {k:>5} {role:<15} {:>22} {:>22}", text[0], text[1]);
        }
    }
    if !options.json {
        println!("scratch {:.1} MiB", scratch_bytes() as f64 / f64::from(1 << 20));
    }
    Ok(())
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options { json: false, budget: Duration::from_millis(400), part: String::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => options.json = true,
            "--seconds" => {
                options.budget =
                    Duration::try_from_secs_f64(arguments.next().ok_or("--seconds takes a number")?.parse()?)?;
            }
            flag if flag.starts_with('-') => {
                return Err(format!("unknown flag {flag}: there are --json and --seconds S").into());
            }
            part => options.part = part.into(),
        }
    }
    Ok(options)
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
fn best_rate(shape: &Shape, threads: Threads<'_>, budget: Duration) -> Result<f64, Box<dyn Error>> {
    let Shape { size: [m, n, k], count: [outer, inner], a, b, c, .. } = *shape;
    let (a_data, b_data, mut c_data) = (numbers(a.len), numbers(b.len), numbers(c.len));
    let mut run = || {
        let first = Product {
            m,
            n,
            k,
            alpha: 1.0,
            a: a.operand(&a_data),
            b: b.operand(&b_data),
            beta: 0.0,
            c: Target::F32(&mut c_data),
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
