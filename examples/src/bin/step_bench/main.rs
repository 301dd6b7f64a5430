//! Times training steps of a BERT of known size with random weights and ids: the measurement behind the speed and
//! memory claims. Prints the median step, tokens/s, peak memory, the time of the matrix products alone as a floor, and
//! with `--profile` where the time goes.

use anyhow::{Context, Result, bail};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::heap::{self, CountingHeap};
use bmtrain_core::kernel::{Batch, Epilogue, Gemm, Matrix, MatrixMut, NormOrder};
use bmtrain_core::philox::{self, Key};
use bmtrain_core::wrap::Profiled;
use bmtrain_core::{Backend, Ctx, DType, Device, Segment, Tensor, cpu};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::BuilderOptions;
use clap::{Parser, ValueEnum};
use model_center::config::BertConfig;
use model_center::model::bert::{Bert, BertHead};
use model_center::model::{TextBatch, TextLabels, TextModel};
use model_center::run::memory;
use std::sync::Arc;
use std::time::Instant;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// Steps before anything is timed or counted.
const WARM_UP: usize = 3;

/// Time training steps of a BERT with random weights and ids.
///
/// Example: step_bench --model bert-base --batch 8 --seq 128 --steps 7 --threads 2
#[derive(Debug, Parser)]
struct Options {
    /// Which sizes.
    #[arg(long, value_enum, default_value = "bert-base")]
    model: Size,
    /// Sequences of a step.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 128)]
    seq: usize,
    /// Instead of --seq: lengths that batches have in turn, rows padded to them, e.g. 128,72,104.
    #[arg(long, value_name = "L,L,..", value_delimiter = ',', conflicts_with = "seq")]
    lengths: Vec<usize>,
    /// Timed steps, after three that are not.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Number type of the parameters.
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Precision,
    /// Run every block again on the way back instead of keeping what it saved.
    #[arg(long)]
    recompute: bool,
    /// Print the time of each kernel; slows the step a little.
    #[arg(long)]
    profile: bool,
    /// Fail if anything large is allocated, or the pool or memory grows, after the third step.
    #[arg(long)]
    check_alloc: bool,
    /// Do not time the matrix products alone.
    #[arg(long)]
    no_floor: bool,
    /// One line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Size {
    /// 12 layers of 768.
    BertBase,
    /// 6 layers of 384.
    Minilm,
    /// 2 layers of 64, for quick checks.
    Tiny,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    Bf16,
}

fn config(size: Size) -> BertConfig {
    let (layers, dim, heads) = match size {
        Size::BertBase => (12, 768, 12),
        Size::Minilm => (6, 384, 12),
        Size::Tiny => (2, 64, 4),
    };
    BertConfig {
        vocab_size: 30522,
        dim_model: dim,
        num_heads: heads,
        dim_head: dim / heads,
        dim_ff: 4 * dim,
        num_layers: layers,
        dropout_p: 0.1,
        attention_dropout_p: 0.1,
        classifier_dropout_p: 0.1,
        ..BertConfig::default()
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let lengths = if options.lengths.is_empty() { vec![options.seq] } else { options.lengths.clone() };
    if options.steps == 0 || options.batch == 0 || lengths.contains(&0) {
        bail!("--steps, --batch, --seq and --lengths must be above 0");
    }
    let config = config(options.model);
    let backend: Arc<dyn Backend> = Arc::new(cpu::CpuBackend::new(options.threads)?);
    let profiled = options.profile.then(|| Arc::new(Profiled::new(Arc::clone(&backend))));
    let device = Device::new(match &profiled {
        Some(profiled) => Arc::clone(profiled) as Arc<dyn Backend>,
        None => backend,
    });
    let dtype = match options.dtype {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
    };
    let blocks = BlockOptions { recompute: if options.recompute { Recompute::Checkpoint } else { Recompute::Keep } };
    let builder = BuilderOptions { dtype, ..BuilderOptions::default() };
    let model = Bert::new(&device, config.clone(), BertHead::Classifier { outputs: 2 }, blocks, builder)?;
    let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
    optim.add(Box::new(Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?), 1e-5);

    let mut seconds = Vec::with_capacity(options.steps);
    let mut grown = Growth::default();
    let (mut requests, mut resident) = (0, 0);
    let (mut loss, mut tokens) = (0.0, 0);
    for step in 0..WARM_UP + options.steps {
        if step == WARM_UP {
            requests = device.memory().system_requests;
            resident = memory::resident_bytes().unwrap_or(0);
            if let Some(profiled) = &profiled {
                profiled.reset();
            }
        }
        // A new batch in host memory each time, as a loader makes it.
        let length = lengths[step % lengths.len()];
        let batch = random_batch(&options, length, config.vocab_size, step as u32);
        let before = (gemm_scratch(&device), heap::counts().large);
        let start = Instant::now();
        loss = train_step(&device, &model, &mut optim, &batch, step as u32)?;
        if step >= WARM_UP {
            seconds.push(start.elapsed().as_secs_f64());
            grown.add_step(
                gemm_scratch(&device).saturating_sub(before.0),
                heap::counts().large - before.1,
                options.threads,
            );
            tokens += options.batch * length;
        }
    }
    grown.pool_requests = device.memory().system_requests - requests;
    grown.resident_bytes = memory::resident_bytes().unwrap_or(0).saturating_sub(resident);
    let peak = memory::peak_resident_bytes().context("/proc/self/status cannot be read")?;
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    // The mean number of tokens, padding counted: that of every step unless lengths vary.
    let tokens = tokens as f64 / options.steps as f64;
    if let Some(profiled) = &profiled {
        print_profile(profiled, &seconds);
    }
    let floor = if options.no_floor { None } else { Some(gemm_floor(&device, &config, tokens as usize)?) };
    if options.json {
        let line = serde_json::json!({
            "step_s": median,
            "tokens_per_s": tokens / median,
            "peak_rss_bytes": peak,
            "gemm_floor_s": floor,
            "loss": loss,
            "pool_requests": grown.pool_requests,
            "large_allocations": grown.large_allocations,
            "resident_growth_bytes": grown.resident_bytes,
        });
        println!("{line}");
    } else {
        println!(
            "{:?} {} x {:?}, {} threads: step {median:.3} s, {:.0} tokens/s, peak {:.2} GiB, loss {loss:.4}",
            options.model,
            options.batch,
            lengths,
            options.threads,
            tokens / median,
            peak as f64 / (1u64 << 30) as f64
        );
        if let Some(floor) = floor {
            println!("matrix products alone: {floor:.3} s, {:.0} % of the step", 100.0 * floor / median);
        }
        for (segment, usage) in device.memory().segments {
            println!("{:>12}: peak {:.1} MiB", segment.name(), usage.peak as f64 / (1 << 20) as f64);
        }
        println!("after step {WARM_UP}: {grown:?}");
    }
    if options.check_alloc {
        let Growth { pool_requests, large_allocations, resident_bytes, .. } = grown;
        println!("figure: {pool_requests}/{large_allocations}/{resident_bytes}");
        grown.check()?;
    }
    Ok(())
}

/// What a steady state must not need.
#[derive(Debug, Default)]
struct Growth {
    pool_requests: u64,
    /// Outside the GEMM scratch.
    large_allocations: u64,
    /// The scratch grows, up to a bound, when products of another shape come.
    gemm_scratch_bytes: u64,
    resident_bytes: u64,
}

impl Growth {
    /// Count the large allocations of a step in which the scratch grew by so much. The scratch has four regions for each
    /// thread: of a step in which it grew, no more than these are its own.
    fn add_step(&mut self, scratch_bytes: usize, large: u64, threads: usize) {
        let own = if scratch_bytes > 0 { 4 * threads as u64 } else { 0 };
        self.gemm_scratch_bytes += scratch_bytes as u64;
        self.large_allocations += large.saturating_sub(own);
    }

    /// One MiB of resident memory is page granularity of stacks and of the allocator's small bins.
    fn check(&self) -> Result<()> {
        if self.pool_requests > 0 || self.large_allocations > 0 || self.resident_bytes > 1 << 20 {
            bail!("the steady state is not flat: {self:?}");
        }
        Ok(())
    }
}

/// Bytes that matrix products keep to pack their operands.
fn gemm_scratch(device: &Device) -> usize {
    device.backend().scratch().iter().filter(|(name, _)| *name == "GEMM scratch").map(|(_, bytes)| bytes).sum()
}

/// One training step, as the finetune program does it.
fn train_step(device: &Device, model: &Bert, optim: &mut OptimManager, batch: &TextBatch, step: u32) -> Result<f32> {
    let mut cx = Ctx::training(device, Randomness { seed: 0, step, micro_batch: 0 });
    let loss = model.score(batch, None, &mut cx)?.loss.context("the batch has labels")?;
    optim.backward(&loss, 1.0, &mut cx)?;
    optim.step()?;
    Ok(loss.value().item()?)
}

/// Random ids and labels. Where lengths vary, rows end anywhere in the second half and are padded.
fn random_batch(options: &Options, length: usize, vocabulary: usize, step: u32) -> TextBatch {
    let key = Key::new(0, "ids");
    let draw = |index: usize, bound: usize| philox::block(key, [index as u32, step, 0, 0])[0] as usize % bound;
    let tokens = options.batch * length;
    let ends: Vec<usize> = (0..options.batch).map(|row| length - draw(tokens + row, length / 2 + 1)).collect();
    let mask = || (0..tokens).map(|index| u8::from(index % length < ends[index / length])).collect();
    TextBatch {
        rows: options.batch,
        length,
        input_ids: (0..tokens).map(|index| draw(index, vocabulary) as i64).collect(),
        attention_mask: (!options.lengths.is_empty()).then(mask),
        token_type_ids: None,
        labels: Some(TextLabels::Classes((0..options.batch).map(|row| draw(2 * tokens + row, 2) as i64).collect())),
        next_sentence: None,
        choices: 1,
        label_smoothing: 0.0,
    }
}

/// Median time of all matrix products of a step's linear layers, forward and both gradients, in their real shapes.
fn gemm_floor(device: &Device, config: &BertConfig, tokens: usize) -> Result<f64> {
    let (d, f) = (config.dim_model, config.dim_ff);
    let mut total = 0.0;
    for (n, k) in [(3 * d, d), (d, d), (f, d), (d, f)] {
        let tensor =
            |rows: usize, columns: usize| Tensor::full(device, [rows, columns], DType::F32, 0.01, Segment::Workspace);
        let (mut y, mut x, mut w) = (tensor(tokens, n)?, tensor(tokens, k)?, tensor(n, k)?);
        let mut times = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            let plain = |t: &'_ Tensor, ld| Ok::<_, bmtrain_core::Error>((t.clone(), ld));
            let (xs, ws) = (plain(&x, k)?, plain(&w, k)?);
            launch_product(device, (tokens, n, k), (&xs.0, k, false), (&ws.0, k, true), &mut y, n)?;
            drop((xs, ws));
            let ys = y.clone();
            let ws = w.clone();
            launch_product(device, (tokens, k, n), (&ys, n, false), (&ws, k, false), &mut x, k)?;
            drop((ys, ws));
            let (ys, xs) = (y.clone(), x.clone());
            launch_product(device, (n, k, tokens), (&ys, n, true), (&xs, k, false), &mut w, k)?;
            drop((ys, xs));
            device.sync()?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        total += times[times.len() / 2] * config.num_layers as f64;
    }
    Ok(total)
}

fn launch_product(
    device: &Device,
    (m, n, k): (usize, usize, usize),
    (a, a_ld, a_transposed): (&Tensor, usize, bool),
    (b, b_ld, b_transposed): (&Tensor, usize, bool),
    c: &mut Tensor,
    c_ld: usize,
) -> Result<()> {
    device.launch(Gemm {
        m,
        n,
        k,
        alpha: 1.0,
        a: Matrix { view: a.view()?, ld: a_ld, transposed: a_transposed, batch: [0, 0] },
        b: Matrix { view: b.view()?, ld: b_ld, transposed: b_transposed, batch: [0, 0] },
        beta: 0.0,
        c: MatrixMut { view: c.view_mut()?, ld: c_ld, batch: [0, 0] },
        batch: Batch::ONE,
        epilogue: Epilogue::default(),
    })?;
    Ok(())
}

fn print_profile(profiled: &Profiled, seconds: &[f64]) {
    let steps = seconds.len() as f64;
    let whole: f64 = seconds.iter().sum::<f64>() / steps;
    let mut rows: Vec<_> = profiled.times().into_iter().collect();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    let inside: f64 = rows.iter().map(|(_, time)| time.seconds).sum::<f64>() / steps;
    eprintln!("{:<24} {:>8} {:>10} {:>7} {:>10} {:>10}", "kernel", "calls", "ms/step", "share", "GFLOP/s", "GB/s");
    for (name, time) in rows {
        let per_step = time.seconds / steps;
        let rate = |work: u64| work as f64 / time.seconds / 1e9;
        eprintln!(
            "{name:<24} {:>8} {:>10.2} {:>6.1}% {:>10.1} {:>10.1}",
            time.calls as f64 / steps,
            1e3 * per_step,
            100.0 * per_step / whole,
            rate(time.cost.flops),
            rate(time.cost.bytes)
        );
    }
    eprintln!(
        "{:<24} {:>8} {:>10.2} {:>6.1}%",
        "outside kernels",
        "",
        1e3 * (whole - inside),
        100.0 * (whole - inside) / whole
    );
}
