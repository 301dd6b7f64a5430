//! How fast whole models train, at the largest micro-batch that fits.

use super::kernel_table::{KernelTable, Products};
use super::kernels::Ceilings;
use super::report::Report;
use super::{Options, Place, With};
use crate::step::{Extent, Family, Shape, Size, Steps, random_batch};
use bmtrain_core::backend::Backend;
use bmtrain_core::bench::Seconds;
use bmtrain_core::cuda::{GraphCounts, ProductChoices};
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::wrap::{Counting, Waits};
use bmtrain_core::{DType, Device, Error as CoreError};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::param::{BuilderOptions, TensorGroup};
use model_center_base::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;

/// A model that is timed, and what it is to reach.
#[derive(Debug, Clone, Copy)]
pub struct Timed {
    name: &'static str,
    shape: Shape,
    length: usize,
    /// The rows, where they are not the most that fit.
    rows: Option<usize>,
    target: Option<Target>,
    /// Whether the rows of the vocabulary's table are padded in storage.
    pads_vocabulary: bool,
    /// Precision of its matrix multiplications.
    products: ProductPrecision,
    /// Whether launches that repeat are replayed as CUDA graphs.
    graphs: bool,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    /// Thousands of tokens per second.
    Speed(f64),
    /// Share of the product's ceiling.
    Share(f64),
}

impl Timed {
    fn extent(&self, rows: usize) -> Extent {
        Extent { rows, length: self.length, target: 0, is_padded: false, document: None }
    }

    /// The model with the changes of the command line.
    fn changed(&self, options: &Options) -> Self {
        let mut timed = *self;
        timed.shape.dropout_p = options.dropout.unwrap_or(timed.shape.dropout_p);
        timed.length = options.length.map_or(timed.length, |length| length as usize);
        timed.pads_vocabulary &= !options.plain_vocabulary;
        timed.graphs |= options.with.contains(&With::Graphs);
        // What a target is stated for.
        timed.target = timed.target.filter(|_| options.dropout.is_none() && options.length.is_none());
        timed
    }

    fn flops_per_token(&self) -> f64 {
        self.shape.flops(self.extent(1)) / self.length as f64
    }
}

/// The models of a real device.
pub fn real() -> Vec<Timed> {
    /// Figure of llm.c for one H100: without dropout, in bf16, batches of 524,288 tokens.
    const LLM_C: f64 = 463.0;
    let timed = |name, size: Size, length, target| Timed {
        name,
        shape: size.shape(),
        length,
        rows: None,
        target,
        pads_vocabulary: true,
        products: ProductPrecision::Full,
        graphs: false,
    };
    let fine_tuning = |name, rows| Timed { rows: Some(rows), ..timed(name, Size::BertBase, 128, None) };
    let plain = timed("GPT-2 124M without dropout", Size::Gpt2, 1024, Some(Target::Speed(LLM_C)));
    let plain = Timed { shape: Shape { dropout_p: 0.0, ..plain.shape }, ..plain };
    let name = "GPT-2 124M without dropout, vocabulary not padded";
    let few_rows = fine_tuning("BERT-base fine-tuning, few rows", 8);
    let llama = timed("Llama 1B", Size::Llama1b, 2048, None);
    vec![
        plain,
        Timed { name, target: None, pads_vocabulary: false, ..plain },
        timed("GPT-2 124M", Size::Gpt2, 1024, None),
        timed("GPT-2 1.5B", Size::Gpt2Xl, 1024, Some(Target::Share(0.5))),
        timed("BERT-large", Size::BertLarge, 512, None),
        fine_tuning("BERT-base fine-tuning", 32),
        few_rows,
        Timed { name: "BERT-base fine-tuning, few rows, graphs", graphs: true, ..few_rows },
        llama,
        Timed { name: "Llama 1B, products in 8 bits", products: ProductPrecision::Fp8, ..llama },
    ]
}

/// An emulated device's, which describe no real device.
pub fn emulated() -> Vec<Timed> {
    let (num_layers, dim_model, num_heads, dim_ff, vocab_size) = (2, 64, 2, 96, 50);
    let tiny = |family| Shape {
        family,
        num_layers,
        dim_model,
        num_heads,
        num_heads_kv: num_heads,
        dim_ff,
        vocab_size,
        dropout_p: 0.1,
    };
    let (pads_vocabulary, products) = (true, ProductPrecision::Full);
    let (length, rows, target, graphs) = (8, None, None, false);
    let timed = |name, shape| Timed { name, shape, length, rows, target, pads_vocabulary, products, graphs };
    let llama = Shape { num_heads: 4, num_heads_kv: 1, dropout_p: 0.0, ..tiny(Family::Llama) };
    let (gpt2, bert) = (timed("tiny GPT-2", tiny(Family::Gpt2)), timed("tiny BERT", tiny(Family::Bert)));
    let llama = timed("tiny Llama", llama);
    let rounded = Timed { name: "tiny Llama, products in 8 bits", products: ProductPrecision::Fp8, ..llama };
    let bert = Timed { rows: Some(4), ..bert };
    vec![gpt2, bert, Timed { name: "tiny BERT, graphs", graphs: true, ..bert }, llama, rounded]
}

/// How a model's steps are made.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    rows: usize,
    recompute: Recompute,
}

/// Time the models.
pub fn models(place: &Place, ceilings: Ceilings, options: &Options, report: &mut Report) -> Result<()> {
    let mut all = Vec::new();
    let wanted = place.scale.models.iter().filter(|timed| timed.name.contains(&options.model));
    for timed in &wanted.map(|timed| timed.changed(options)).collect::<Vec<_>>() {
        match measure(place, timed, options, report) {
            Ok(measured) => {
                tell(timed, &measured, (ceilings, options), report);
                all.push(as_json(timed, &measured, ceilings, options));
            }
            Err(error) => {
                report.fail(format!("{}: {error}", timed.name));
                place.note_loss(timed.name, report);
            }
        }
        if report.is_lost() {
            break;
        }
    }
    let products = place.backend.products();
    for (way, count) in products.iter().filter(|(_, count)| *count > 0) {
        report.row(format!("  products {way}"), count.to_string());
    }
    let choices = place.backend.product_choices();
    if let Some(ProductChoices { timed, found, changed, .. }) = choices {
        report.row("  products chosen by time", format!("{timed} timed, {found} from the cache, {changed} changed"));
    }
    let chosen = choices.map(|ProductChoices { timed, found, changed, first_seconds, chosen_seconds }| {
        json!({
            "timed": timed, "found": found, "changed": changed, "first_seconds": first_seconds,
            "chosen_seconds": chosen_seconds,
        })
    });
    report.part("models", json!({ "models": all, "products": products, "chosen": chosen }));
    Ok(())
}

/// Measurements of a model.
#[derive(Debug)]
struct Measured {
    plan: Plan,
    /// Median seconds of a step, and all of them in order of time.
    step: f64,
    seconds: Vec<f64>,
    peak_bytes: usize,
    /// Waits of a step, on average.
    waits: f64,
    loss: f32,
    /// Counts of graphs in the steps that were timed, and those before them.
    graphs: Option<GraphCounts>,
    /// Kernels of one step more.
    kernels: KernelTable,
}

impl Measured {
    fn tokens_per_second(&self, timed: &Timed) -> f64 {
        (self.plan.rows * timed.length) as f64 / self.step
    }

    fn share(&self, timed: &Timed, ceilings: Ceilings) -> f64 {
        self.tokens_per_second(timed) * timed.flops_per_token() / ceilings.products
    }
}

fn measure(place: &Place, timed: &Timed, options: &Options, report: &Report) -> Result<Measured> {
    let mut plan = plan(place, timed, options.most_rows)?;
    loop {
        report.say(&format!("{}: {} rows of {}, {:?}", timed.name, plan.rows, timed.length, plan.recompute));
        match run(place, timed, plan, options.steps) {
            // What counting does not see, such as memory of libraries, may be what was missing.
            Err(error) if is_out_of_memory(&error) && plan.rows > 1 => plan.rows /= 2,
            other => return other,
        }
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    matches!(
        error,
        Error::Core(CoreError::OutOfMemory { .. })
            | Error::Dist(bmtrain_dist::Error::Core(CoreError::OutOfMemory { .. }))
    )
}

fn run(place: &Place, timed: &Timed, plan: Plan, count: u32) -> Result<Measured> {
    /// Steps before anything is timed or counted.
    const WARM_UP: u32 = 3;
    let backend = if timed.graphs { place.with_graphs()? } else { Arc::clone(&place.backend) };
    let products = Arc::new(Products::new(Arc::clone(&backend)));
    let waiting = Arc::new(Waits::new(Arc::clone(&products) as Arc<dyn Backend>));
    let device = Device::new(Arc::clone(&waiting) as Arc<dyn Backend>);
    let mut steps = steps(&device, timed, plan)?;
    let (mut seconds, mut loss, mut waits) = (Vec::new(), 0.0, 0);
    for step in 0..WARM_UP + count {
        let batch = random_batch(timed.shape, timed.extent(plan.rows), step);
        waiting.take();
        let done = steps.run(&batch, step)?;
        loss = done.loss;
        if step >= WARM_UP {
            seconds.push(done.seconds);
            waits += waiting.take();
        }
    }
    let step = Seconds::new(seconds.clone()).median();
    let (peak_bytes, graphs) = (device.memory().system_bytes, backend.graphs());
    let batch = random_batch(timed.shape, timed.extent(plan.rows), WARM_UP + count);
    products.start();
    backend.trace_on()?;
    let traced = steps.run(&batch, WARM_UP + count)?;
    let kernels = KernelTable::new(traced.seconds, &backend.take_trace()?, &products.take())?;
    let waits = waits as f64 / f64::from(count);
    Ok(Measured { plan, step, seconds, peak_bytes, waits, loss, graphs, kernels })
}

fn steps(device: &Device, timed: &Timed, plan: Plan) -> Result<Steps> {
    let pads_one_rank = timed.pads_vocabulary && device.backend().aligns_products();
    let tensor = TensorGroup { pads_one_rank, ..TensorGroup::default() };
    let (dtype, products) = (DType::BF16, timed.products);
    let builder = BuilderOptions { dtype, tensor, products, ..BuilderOptions::default() };
    Steps::new(device, timed.shape, (BlockOptions::from(plan.recompute), 1), builder)
}

/// The most rows that fit, or a model's own; recomputed only where otherwise too few tokens would for the device to be
/// busy.
fn plan(place: &Place, timed: &Timed, most: Option<u32>) -> Result<Plan> {
    /// Tokens that keep a device busy.
    const ENOUGH: usize = 8192;
    const ROWS: [usize; 11] = [64, 48, 32, 24, 16, 12, 8, 6, 4, 2, 1];
    // The rest is for libraries, scratch memory of launches, and what the pool cannot use.
    let room = place.memory_bytes / 100 * 90;
    let most = most.map_or(ROWS[0], |most| most as usize).min(timed.rows.unwrap_or(ROWS[0]));
    // A number of rows that is asked for comes before the list.
    let rows: Vec<usize> = [most].into_iter().chain(ROWS.into_iter().filter(|rows| *rows < most)).collect();
    let mut best = None;
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        for &rows in &rows {
            let plan = Plan { rows, recompute };
            if needs(place, timed, plan)? <= room {
                if rows * timed.length >= ENOUGH.min(most * timed.length) {
                    return Ok(plan);
                }
                best = Some(best.filter(|best: &Plan| best.rows >= rows).unwrap_or(plan));
                break;
            }
        }
    }
    let fix = "take a device with more memory, or leave this part out with --only";
    best.ok_or_else(|| Error::data(timed.name, "the device has no room for one row", fix))
}

/// Bytes that two steps take from the system, counted without taking them: the optimizer's state comes with the first.
fn needs(place: &Place, timed: &Timed, plan: Plan) -> Result<usize> {
    let device = Device::new(Arc::new(Counting::new(place.backend.slab_bytes())));
    let mut steps = steps(&device, timed, plan)?;
    for step in 0..2 {
        steps.run(&random_batch(timed.shape, timed.extent(plan.rows), step), step)?;
    }
    Ok(device.memory().system_bytes)
}

fn tell(timed: &Timed, measured: &Measured, (ceilings, options): (Ceilings, &Options), report: &mut Report) {
    let (speed, share) = (measured.tokens_per_second(timed), measured.share(timed, ceilings));
    let Plan { rows, recompute } = measured.plan;
    let how = if recompute == Recompute::Keep { "" } else { ", recomputed" };
    let dropout = options.dropout.map(|p| format!(", dropout {p}")).unwrap_or_default();
    let what = format!("{}{dropout}, {rows} x {}{how}", timed.name, timed.length);
    let figure = format!("{:.1} k tokens/s, {:.1} % of the bf16 product", speed / 1e3, 100.0 * share);
    match timed.target {
        Some(Target::Speed(least)) => {
            report.held(what, figure, (&format!("at least {least:.0} k tokens/s"), speed >= 1e3 * least));
        }
        Some(Target::Share(least)) => {
            report.held(what, figure, (&format!("at least {:.0} % of the product", 100.0 * least), share >= least));
        }
        None => report.row(what, figure),
    }
    let gibibytes = measured.peak_bytes as f64 / f64::from(1 << 30);
    report.row("  step, memory", format!("{:.1} ms, {gibibytes:.2} GiB of the device", 1e3 * measured.step));
    report.held("  waits of the host", format!("{:.1} a step", measured.waits), ("at most 1", measured.waits <= 1.0));
    if let Some(GraphCounts { captured, replays, replayed, changed, queued }) = measured.graphs {
        let figure = format!(
            "{captured} captured, {replays} replays of {replayed} launches, {changed} with other arguments; {queued} \
             launches alone"
        );
        report.row("  graphs", figure);
    }
    measured.kernels.tell(report);
}

fn as_json(timed: &Timed, measured: &Measured, ceilings: Ceilings, options: &Options) -> Value {
    let with = With::names(&options.with);
    let graphs = measured.graphs.map(|counts| {
        let GraphCounts { captured, replays, replayed, changed, queued } = counts;
        json!({
            "captured": captured, "replays": replays, "replayed": replayed, "changed": changed, "queued": queued,
        })
    });
    json!({
        "model": timed.name, "dtype": "bf16", "dropout": timed.shape.dropout_p, "length": timed.length,
        "rows": measured.plan.rows, "pads_vocabulary": timed.pads_vocabulary, "with": with,
        "recompute": measured.plan.recompute != Recompute::Keep, "step_s": measured.step, "steps_s": measured.seconds,
        "tokens_per_s": measured.tokens_per_second(timed), "flops_per_token": timed.flops_per_token(),
        "share": measured.share(timed, ceilings), "peak_bytes": measured.peak_bytes,
        "host_waits_per_step": measured.waits, "loss": measured.loss, "graphs": graphs,
        "kernels": measured.kernels.as_json(),
    })
}
