//! The speed of an optimizer step: seconds and GB/s on parameters of one size, with state on the device or on the host.
//!
//! A model of N million values in matrices of a BERT-base's sizes; gradients are made once and stay. A step is the
//! optimizer's alone, without norm and clipping, from the call until all lanes are idle. The bytes counted are those
//! that have to move: for f32 parameter, gradient and both moments are read and parameter and moments written, 28 for
//! each value.

use anyhow::{Result, ensure};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, ops};
use bmtrain_dist::optim::{Adam, AdamOffload, AdamOptions, Clip, Optimizer, ParamGroup, StepArgs};
use bmtrain_dist::param::{BuilderOptions, Init, Split};
use bmtrain_dist::{Builder, OptimManager, Parameters};
use clap::{Args, ValueEnum};
use serde_json::json;

/// Steps before the measured ones: the first touches the state's pages.
const WARMUP: usize = 3;

/// Values of one matrix.
const MATRIX: [usize; 2] = [768, 3072];

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Millions of values.
    #[arg(long, default_value_t = 110.0)]
    millions: f64,
    /// Where the optimizer's state is.
    #[arg(long, value_enum, default_value = "offload")]
    variant: Variant,
    /// Dtype of the parameters: f32, bf16 or f16.
    #[arg(long, default_value = "f32", value_parser = dtype)]
    dtype: DType,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Timed steps.
    #[arg(long, default_value_t = 15)]
    steps: usize,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Variant {
    Adam,
    Offload,
}

fn dtype(name: &str) -> Result<DType, String> {
    let known = [DType::F32, DType::BF16, DType::F16];
    known.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| "expected f32, bf16 or f16".into())
}

pub(super) fn run(options: &Options) -> Result<()> {
    ensure!(options.steps > 0 && options.millions > 0.0, "--steps and --millions: must be above 0");
    let device = Device::cpu(options.threads)?;
    let parameters = model(&device, options)?;
    make_gradients(&device, &parameters)?;
    let groups = ParamGroup::all(&parameters, 0.01);
    let (name, mut optimizer): (_, Box<dyn Optimizer>) = match options.variant {
        Variant::Adam => ("adam", Box::new(Adam::new(groups, AdamOptions::default())?)),
        Variant::Offload => ("offload", Box::new(AdamOffload::new(groups, AdamOptions::default())?)),
    };
    let factor = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Workspace)?;
    let mut step = || -> Result<()> {
        optimizer.step(StepArgs { lr: 1e-5, factor: &factor })?;
        Ok(device.sync()?)
    };
    let [steps] = measure(Rounds::exactly(WARMUP, options.steps), || Ok::<_, anyhow::Error>([seconds(&mut step)?]))?;
    let (median, best) = (steps.median(), steps.best());
    let (count, gigabytes) = (parameters.count(), bytes(&parameters, options.dtype) as f64 / 1e9);
    if options.json {
        let figures = json!({
            "variant": name, "parameters": count, "threads": options.threads, "step_s": median, "best_s": best,
            "gb_per_s": gigabytes / median,
        });
        println!("{figures}");
        return Ok(());
    }
    println!("{name} on {count} {} values, {} threads", options.dtype, options.threads);
    println!("step {:.2} ms, {:.1} GB/s (median of {})", 1e3 * median, gigabytes / median, steps.times().len());
    println!("best {:.2} ms, {:.1} GB/s", 1e3 * best, gigabytes / best);
    for (segment, usage) in device.memory().segments.into_iter().filter(|(_, usage)| usage.now > 0) {
        println!("{:<12} {:>10.1} MB", segment.name(), usage.now as f64 / 1e6);
    }
    Ok(())
}

/// Matrices, the last with the remainder, in blocks of four.
fn model(device: &Device, options: &Options) -> Result<Parameters> {
    let dtype = options.dtype;
    let builder = Builder::new(device, BuilderOptions { dtype, grad_dtype: dtype, ..BuilderOptions::default() });
    let (whole, mut left, mut block) = (MATRIX[0] * MATRIX[1], (options.millions * 1e6) as usize, 0);
    while left > 0 {
        let number = block;
        builder.at(&format!("block{number}")).block(|b| {
            for matrix in 0..4 {
                let len = left.min(whole);
                if len > 0 {
                    b.param(&format!("w{matrix}"), [len], Init::normal(0.02), Split::Replicated, true)?;
                }
                left -= len;
            }
            Ok(())
        })?;
        block += 1;
    }
    let parameters = builder.finish();
    parameters.initialize_missing()?;
    Ok(parameters)
}

/// Gradients that differ from value to value, of a sum of squares.
fn make_gradients(device: &Device, parameters: &Parameters) -> Result<()> {
    let manager = OptimManager::new(device, Clip::default())?;
    for param in parameters.iter() {
        let mut cx = Ctx::training(device, Randomness::default());
        let values = param.var(&cx)?;
        let values = ops::cast(&cx, &values, DType::F32)?;
        let loss = ops::sum(&cx, &ops::mul(&cx, &values, &values)?)?;
        manager.backward(&loss, 0.5, &mut cx)?;
    }
    Ok(parameters.flats().iter().try_for_each(|flat| flat.finish_step())?)
}

/// Bytes that a step has to move: gradient and both moments, and the parameter, or its master and the rounded
/// parameter.
fn bytes(parameters: &Parameters, dtype: DType) -> usize {
    let of_value = match dtype {
        DType::F32 => 28,
        _ => 24 + 2 * dtype.size(),
    };
    parameters.count() * of_value
}
