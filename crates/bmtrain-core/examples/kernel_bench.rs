//! Prints the speed of the CPU's memory-bound kernels for the shapes of BERT-base, as bytes moved per second beside what a
//! copy and a triad reach in the same run.
//!
//! `cargo run --release --example kernel_bench -p bmtrain-core [-- PART_OF_A_NAME]`
//!
//! Each figure is the best of many short runs: neighbours on the machine make runs longer, never shorter. Bytes count every
//! argument once for reading and once for writing where it is both; a store that first reads its cache line is not counted.
//! Copy and triad run over 192 MiB; kernels whose arguments fit the last cache go beyond 100 %.

use std::time::Instant;

use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::*;
use bmtrain_core::philox::Key;
use bmtrain_core::{DType, Device, Segment, Tensor};

/// Errors of this program are printed, whatever their type.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Tokens of a batch of 8 sequences of 128.
const ROWS: usize = 1024;
const HIDDEN: usize = 768;
const INNER: usize = 3072;
const VOCABULARY: usize = 30_522;

fn main() -> Outcome<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts = vec![1];
    if cores > 1 {
        counts.push(cores);
    }
    for threads in counts {
        let bench = Bench { device: Device::cpu(threads)?, wanted: wanted.clone(), triad: triad(threads) };
        println!("{threads} thread(s): copy {:.1} GB/s, triad {:.1} GB/s", copy(threads) / 1e9, bench.triad / 1e9);
        bench.all()?;
    }
    Ok(())
}

/// Best time of some runs, in seconds.
fn best(mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.25 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Bytes per second of `work` on slices of each thread, which moves `bytes` for each of its elements.
fn stream(threads: usize, bytes: usize, work: impl Fn(&mut [f32], &[f32], &[f32]) + Sync) -> f64 {
    let len = (1 << 24) / threads;
    let mut slices: Vec<[Vec<f32>; 3]> = (0..threads).map(|_| [1.0, 2.0, 3.0].map(|x| vec![x; len])).collect();
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for [a, b, c] in &mut slices {
                scope.spawn(|| work(a, b, c));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (bytes * len * threads) as f64 / best
}

fn copy(threads: usize) -> f64 {
    stream(threads, 8, |a, b, _| a.copy_from_slice(b))
}

fn triad(threads: usize) -> f64 {
    stream(threads, 12, |a, b, c| {
        for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
            *a = b + 3.0 * c;
        }
    })
}

struct Bench {
    device: Device,
    wanted: String,
    triad: f64,
}

/// Shorter names for what every case needs.
fn dest(tensor: &mut Tensor, add: bool) -> bmtrain_core::Result<Dest<'_>> {
    Ok(Dest { view: tensor.view_mut()?, add })
}

impl Bench {
    fn tensor(&self, len: usize, dtype: DType) -> Outcome<Tensor> {
        let mut tensor = Tensor::empty(&self.device, [len], dtype, Segment::Activations)?;
        let distribution = Distribution::Normal(0.0, 1.0);
        let fill = FillRandom { distribution, key: Key::new(0, "bench"), offset: 0, out: tensor.view_mut()? };
        self.device.launch(fill)?;
        Ok(tensor)
    }

    fn line(&self, name: &str, elements: usize, bytes: usize, run: impl FnMut() -> Outcome<()>) -> Outcome<()> {
        if !name.contains(&self.wanted) {
            return Ok(());
        }
        let seconds = best(run)?;
        let (rate, speed) = (elements as f64 / seconds, bytes as f64 / seconds);
        let share = 100.0 * speed / self.triad;
        println!(
            "  {name:28} {:9.1} us {:7.2} Gelem/s {:7.1} GB/s {share:5.0} % of triad",
            seconds * 1e6,
            rate / 1e9,
            speed / 1e9
        );
        Ok(())
    }

    fn all(&self) -> Outcome<()> {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            self.elementwise(dtype)?;
            self.norms(dtype)?;
        }
        self.reductions()?;
        self.rows()?;
        self.random()?;
        self.losses()?;
        self.optimizer()
    }

    fn elementwise(&self, dtype: DType) -> Outcome<()> {
        let (device, len, size) = (&self.device, ROWS * INNER, dtype.size());
        let (a, b) = (self.tensor(len, dtype)?, self.tensor(len, dtype)?);
        let mut out = self.tensor(len, dtype)?;
        self.line(&format!("add_scaled {dtype}"), len, 3 * size * len, || {
            let (a, b) = (a.view()?, Some(b.view()?));
            Ok(device.launch(AddScaled { alpha: 1.0, a, beta: 1.0, b, out: out.view_mut()? })?)
        })?;
        for activation in Activation::ALL {
            let name = activation.name();
            self.line(&format!("{name} {dtype}"), len, 2 * size * len, || {
                Ok(device.launch(ActivationForward { activation, x: a.view()?, y: out.view_mut()? })?)
            })?;
            self.line(&format!("{name} backward {dtype}"), len, 3 * size * len, || {
                let (x, dy) = (a.view()?, b.view()?);
                Ok(device.launch(ActivationBackward { activation, x, dy, dx: dest(&mut out, false)? })?)
            })?;
        }
        let mut x = self.tensor(len, dtype)?;
        self.line(&format!("gelu split {dtype}"), len, 3 * size * len, || {
            let activation = Activation::Gelu;
            Ok(device.launch(ActivationSplit { activation, x: x.view_mut()?, y: out.view_mut()? })?)
        })?;
        let mut half = self.tensor(len / 2, dtype)?;
        self.line(&format!("gated silu {dtype}"), len / 2, 3 * size * len / 2, || {
            let (rows, columns, ld) = (ROWS, INNER / 2, INNER);
            let (gate, up) = (a.view()?.part(0, len - columns)?, a.view()?.part(columns, len - columns)?);
            let activation = Activation::Silu;
            Ok(device.launch(GatedForward { activation, rows, columns, ld, gate, up, y: half.view_mut()? })?)
        })
    }

    fn norms(&self, dtype: DType) -> Outcome<()> {
        let (device, rows, columns, len, size) = (&self.device, ROWS, HIDDEN, ROWS * HIDDEN, dtype.size());
        let dropout = Dropout::new(0.1, Key::new(0, "bench"), 1, 0)?;
        let [x, residual, weight, dy] = [
            self.tensor(len, dtype)?,
            self.tensor(len, dtype)?,
            self.tensor(columns, dtype)?,
            self.tensor(len, dtype)?,
        ];
        let [mut sum, mut y, mut branch] =
            [self.tensor(len, dtype)?, self.tensor(len, dtype)?, self.tensor(len, dtype)?];
        let [mut mean, mut rstd, mut dweight, mut dbias] = [
            self.tensor(rows, DType::F32)?,
            self.tensor(rows, DType::F32)?,
            self.tensor(columns, DType::F32)?,
            self.tensor(columns, DType::F32)?,
        ];
        for (name, dropout, fused) in
            [("norm", None, false), ("norm residual", None, true), ("norm dropout", dropout, true)]
        {
            self.line(&format!("{name} {dtype}"), len, if fused { 4 } else { 2 } * size * len, || {
                let kernel = NormForward {
                    kind: NormKind::Layer,
                    rows,
                    columns,
                    epsilon: 1e-12,
                    x: x.view()?,
                    dropout,
                    residual: if fused { Some(residual.view()?) } else { None },
                    sum: if fused { Some(sum.view_mut()?) } else { None },
                    weight: weight.view()?,
                    bias: Some(weight.view()?),
                    y: y.view_mut()?,
                    mean: Some(mean.view_mut()?),
                    rstd: rstd.view_mut()?,
                };
                Ok(device.launch(kernel)?)
            })?;
        }
        for (name, dropout) in [("norm backward", None), ("norm backward dropout", dropout)] {
            self.line(&format!("{name} {dtype}"), len, if dropout.is_some() { 4 } else { 3 } * size * len, || {
                let kernel = NormBackward {
                    kind: NormKind::Layer,
                    rows,
                    columns,
                    x: x.view()?,
                    mean: Some(mean.view()?),
                    rstd: rstd.view()?,
                    weight: weight.view()?,
                    dy: dy.view()?,
                    dx: Some(dest(&mut y, false)?),
                    branch: dropout
                        .map(|dropout| Ok::<_, bmtrain_core::Error>((dropout, dest(&mut branch, false)?)))
                        .transpose()?,
                    dweight: Some(dest(&mut dweight, true)?),
                    dbias: Some(dest(&mut dbias, true)?),
                };
                Ok(device.launch(kernel)?)
            })?;
        }
        Ok(())
    }

    fn reductions(&self) -> Outcome<()> {
        let (device, len) = (&self.device, ROWS * INNER);
        let (x, mut y) = (self.tensor(len, DType::F32)?, self.tensor(len, DType::F32)?);
        let mut sums = self.tensor(INNER, DType::F32)?;
        self.line("column_sum", len, 4 * len, || {
            let (rows, columns) = (ROWS, INNER);
            Ok(device.launch(ColumnSum { rows, columns, x: x.view()?, out: dest(&mut sums, true)? })?)
        })?;
        let mut words = Tensor::from_slice(device, [WORDS], &[0i64; WORDS], Segment::Data)?;
        for (name, order) in [("grad_norm 2", NormOrder::Two), ("grad_norm inf", NormOrder::Infinity)] {
            self.line(name, len, 4 * len, || {
                Ok(device.launch(GradNorm { order, x: x.view()?, out: dest(&mut words, false)? })?)
            })?;
        }
        let mut flag = Tensor::from_slice(device, [1], &[0i32], Segment::Data)?;
        self.line("non_finite", len, 4 * len, || {
            Ok(device.launch(NonFinite { x: x.view()?, flag: flag.view_mut()? })?)
        })?;
        for columns in [128, INNER] {
            self.line(&format!("softmax {columns}"), len, 8 * len, || {
                let rows = len / columns;
                Ok(device.launch(Softmax { rows, columns, log: false, x: x.view()?, y: y.view_mut()? })?)
            })?;
        }
        Ok(())
    }

    fn rows(&self) -> Outcome<()> {
        let (device, columns, len) = (&self.device, HIDDEN, ROWS * HIDDEN);
        let (table, mut out) = (self.tensor(VOCABULARY * HIDDEN, DType::F32)?, self.tensor(len, DType::F32)?);
        // Half of the tokens are among the hundred most frequent ones.
        let ids: Vec<i64> = (0..ROWS as i64)
            .map(|i| if i % 2 == 0 { 1000 + i * 7 % 100 } else { i * 7919 % VOCABULARY as i64 })
            .collect();
        let ids = Tensor::from_slice(device, [ROWS], &ids, Segment::Data)?;
        self.line("embedding", len, 8 * len, || {
            let (table, ids) = (table.view()?, ids.view()?);
            Ok(device.launch(EmbeddingForward {
                entries: VOCABULARY,
                columns,
                table,
                ids,
                out: dest(&mut out, false)?,
            })?)
        })?;
        let mut dtable = self.tensor(VOCABULARY * HIDDEN, DType::F32)?;
        let dy = self.tensor(len, DType::F32)?;
        self.line("embedding backward", len, 12 * len, || {
            let (dy, ids, entries) = (dy.view()?, ids.view()?, VOCABULARY);
            let dtable = dest(&mut dtable, true)?;
            Ok(device.launch(EmbeddingBackward { entries, columns, ids, padding_index: Some(0), dy, dtable })?)
        })?;
        let x = self.tensor(ROWS * INNER, DType::F32)?;
        let mut y = self.tensor(ROWS * INNER, DType::F32)?;
        let cases = [("heads", [8, 128, 48, 64], [0, 2, 1, 3]), ("transpose", [1, 1, ROWS, INNER], [0, 1, 3, 2])];
        for (name, dims, axes) in cases {
            let six = |of: [usize; 4]| [of[0], of[1], of[2], of[3], 0, 0];
            self.line(&format!("permute {name}"), ROWS * INNER, 8 * ROWS * INNER, || {
                let (dims, axes, rank) = (six(dims), six(axes), 4);
                Ok(device.launch(Permute { dims, axes, rank, x: x.view()?, out: dest(&mut y, false)? })?)
            })?;
        }
        Ok(())
    }

    fn random(&self) -> Outcome<()> {
        let (device, rows, columns, len) = (&self.device, ROWS, HIDDEN, ROWS * HIDDEN);
        let (x, mut y) = (self.tensor(len, DType::F32)?, self.tensor(len, DType::F32)?);
        if let Some(dropout) = Dropout::new(0.1, Key::new(0, "bench"), 1, 0)? {
            self.line("dropout", len, 8 * len, || {
                Ok(device.launch(DropoutApply {
                    dropout,
                    rows,
                    columns,
                    x: Some(x.view()?),
                    y: dest(&mut y, false)?,
                })?)
            })?;
        }
        let distributions = [
            ("fill normal", Distribution::Normal(0.0, 0.02)),
            ("fill uniform", Distribution::Uniform(-1.0, 1.0)),
            ("fill truncated", Distribution::TruncatedNormal(0.0, 0.02)),
        ];
        for (name, distribution) in distributions {
            self.line(name, len, 4 * len, || {
                Ok(device.launch(FillRandom {
                    distribution,
                    key: Key::new(0, "bench"),
                    offset: 0,
                    out: y.view_mut()?,
                })?)
            })?;
        }
        Ok(())
    }

    fn losses(&self) -> Outcome<()> {
        let (device, rows, classes, len) = (&self.device, 154, VOCABULARY, 154 * VOCABULARY);
        for dtype in [DType::F32, DType::BF16] {
            let (logits, mut dlogits) = (self.tensor(len, dtype)?, self.tensor(len, dtype)?);
            let targets = Tensor::from_slice(device, [rows], &vec![17i64; rows], Segment::Data)?;
            let [mut losses, mut lse, mut totals] =
                [self.tensor(rows, DType::F32)?, self.tensor(rows, DType::F32)?, self.tensor(3, DType::F32)?];
            let dloss = Tensor::full(device, [1], DType::F32, 1.0, Segment::Data)?;
            let (ignore_index, smoothing, class_weights) = (-100, 0.0, None);
            self.line(&format!("cross entropy {dtype}"), len, dtype.size() * len, || {
                Ok(device.launch(CrossEntropyForward {
                    rows,
                    classes,
                    logits: logits.view()?,
                    targets: targets.view()?,
                    ignore_index,
                    smoothing,
                    class_weights,
                    losses: losses.view_mut()?,
                    lse: lse.view_mut()?,
                    totals: totals.view_mut()?,
                })?)
            })?;
            self.line(&format!("cross entropy backward {dtype}"), len, 2 * dtype.size() * len, || {
                Ok(device.launch(CrossEntropyBackward {
                    rows,
                    classes,
                    logits: Some(logits.view()?),
                    targets: targets.view()?,
                    ignore_index,
                    smoothing,
                    class_weights,
                    lse: lse.view()?,
                    totals: totals.view()?,
                    dloss: dloss.view()?,
                    mean: true,
                    dlogits: dlogits.view_mut()?,
                })?)
            })?;
        }
        Ok(())
    }

    fn optimizer(&self) -> Outcome<()> {
        let (device, len) = (&self.device, 1 << 23);
        let factor = Tensor::full(device, [1], DType::F32, 1.0, Segment::Data)?;
        for dtype in [DType::F32, DType::BF16] {
            let (mut parameter, grad) = (self.tensor(len, dtype)?, self.tensor(len, dtype)?);
            let mut master = self.tensor(if dtype == DType::F32 { 0 } else { len }, DType::F32)?;
            let zeros = || Tensor::full(device, [len], DType::F32, 0.0, Segment::Optimizer);
            let (mut m, mut v) = (zeros()?, zeros()?);
            // Seven of four bytes in f32; in 16 bits the master makes up for the halved parameter and gradient.
            let bytes = 7 * 4;
            self.line(&format!("adam {dtype}"), len, bytes * len, || {
                Ok(device.launch(Adam {
                    parameter: parameter.view_mut()?,
                    master: if dtype == DType::F32 { None } else { Some(master.view_mut()?) },
                    m: m.view_mut()?,
                    v: v.view_mut()?,
                    grad: grad.view()?,
                    factor: factor.view()?,
                    lr: 1e-4,
                    beta1: 0.9,
                    beta2: 0.999,
                    epsilon: 1e-8,
                    decay: 0.01,
                    decoupled: true,
                    maximize: false,
                    step: 10,
                })?)
            })?;
        }
        Ok(())
    }
}
