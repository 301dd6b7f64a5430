//! Prints how fast an optimizer step is: seconds and GB/s on parameters of one size, with state on the device or on the
//! host.
//!
//! `cargo run --release --example optim_bench -p bmtrain-dist -- [--millions N] [--variant adam|offload] [--dtype
//! f32|bf16|f16] [--threads T] [--steps S] [--json]`
//!
//! A model of N million values in matrices of a BERT-base's sizes; gradients are made once and stay. A step is the
//! optimizer's alone, without norm and clipping, from the call until all lanes are idle. The bytes counted are those
//! that have to move: for f32 parameter, gradient and both moments are read and parameter and moments written, 28 for
//! each value.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, ops};
use bmtrain_dist::optim::{Adam, AdamOffload, AdamOptions, Clip, Optimizer, ParamGroup, StepArgs};
use bmtrain_dist::param::{BuilderOptions, Init, Split};
use bmtrain_dist::{Builder, OptimManager, Parameters};
use std::error::Error;

/// Errors of this program are printed, whatever their type.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Steps before the measured ones: the first touches the state's pages.
const WARMUP: usize = 3;

/// Values of one matrix.
const MATRIX: [usize; 2] = [768, 3072];

#[derive(Debug)]
struct Settings {
    millions: f64,
    variant: String,
    dtype: DType,
    threads: usize,
    steps: usize,
    json: bool,
}

fn main() -> Outcome<()> {
    let settings = settings()?;
    let device = Device::cpu(settings.threads)?;
    let parameters = model(&device, &settings)?;
    make_gradients(&device, &parameters)?;
    let groups = ParamGroup::all(&parameters, 0.01);
    let mut optimizer: Box<dyn Optimizer> = match settings.variant.as_str() {
        "adam" => Box::new(Adam::new(groups, AdamOptions::default())?),
        _ => Box::new(AdamOffload::new(groups, AdamOptions::default())?),
    };
    let factor = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Workspace)?;
    let mut step = || -> Outcome<()> {
        optimizer.step(StepArgs { lr: 1e-5, factor: &factor })?;
        Ok(device.sync()?)
    };
    let [steps] = measure(Rounds::exactly(WARMUP, settings.steps), || Ok::<_, Box<dyn Error>>([seconds(&mut step)?]))?;
    let (median, best) = (steps.median(), steps.best());
    let (count, gigabytes) = (parameters.count(), bytes(&parameters, settings.dtype) as f64 / 1e9);
    if settings.json {
        let speed = format!(r#""best_s": {best}, "gb_per_s": {}"#, gigabytes / median);
        println!(
            r#"{{"variant": "{}", "parameters": {count}, "threads": {}, "step_s": {median}, {speed}}}"#,
            settings.variant, settings.threads
        );
        return Ok(());
    }
    println!("{} on {count} {} values, {} threads", settings.variant, settings.dtype, settings.threads);
    println!("step {:.2} ms, {:.1} GB/s (median of {})", 1e3 * median, gigabytes / median, steps.times().len());
    println!("best {:.2} ms, {:.1} GB/s", 1e3 * best, gigabytes / best);
    for (segment, usage) in device.memory().segments.into_iter().filter(|(_, usage)| usage.now > 0) {
        println!("{:<12} {:>10.1} MB", segment.name(), usage.now as f64 / 1e6);
    }
    Ok(())
}

/// Matrices, the last with the remainder, in blocks of four.
fn model(device: &Device, settings: &Settings) -> Outcome<Parameters> {
    let options = BuilderOptions { dtype: settings.dtype, grad_dtype: settings.dtype, ..BuilderOptions::default() };
    let builder = Builder::new(device, options);
    let (whole, mut left, mut block) = (MATRIX[0] * MATRIX[1], (settings.millions * 1e6) as usize, 0);
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
fn make_gradients(device: &Device, parameters: &Parameters) -> Outcome<()> {
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

fn settings() -> Outcome<Settings> {
    let mut settings =
        Settings { millions: 110.0, variant: "offload".into(), dtype: DType::F32, threads: 2, steps: 15, json: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{option}: needs a value"));
        match option.as_str() {
            "--millions" => settings.millions = value()?.parse()?,
            "--variant" => settings.variant = value()?,
            "--dtype" => {
                settings.dtype = match value()?.as_str() {
                    "f32" => DType::F32,
                    "bf16" => DType::BF16,
                    "f16" => DType::F16,
                    other => return Err(format!("--dtype {other}: f32, bf16 or f16").into()),
                }
            }
            "--threads" => settings.threads = value()?.parse()?,
            "--steps" => settings.steps = value()?.parse()?,
            "--json" => settings.json = true,
            other => return Err(format!("{other}: unknown; see the top of this program").into()),
        }
    }
    if !["adam", "offload"].contains(&settings.variant.as_str()) {
        return Err(format!("--variant {}: adam or offload", settings.variant).into());
    }
    if settings.steps == 0 || settings.millions <= 0.0 {
        return Err("--steps and --millions: must be above 0".into());
    }
    Ok(settings)
}
