//! The speed of the CPU's kernels for the shapes of BERT-base, beside what a copy and a triad reach in the same run.
//!
//! Copy and triad run over 192 MiB; a store that first reads its cache line is not counted. Kernels whose arguments fit
//! the last cache go beyond 100 % of the triad.

use anyhow::Result;
use bmtrain_bench::speed::{Figure, Sizes, Wanted, speed};
use bmtrain_core::cpu::Processors;
use bmtrain_core::{DType, Device};
use bmtrain_dist::launch::cpu_options;
use clap::Args;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Part of the names of the kernels.
    #[arg(default_value = "")]
    part_of_name: String,
}

pub(super) fn run(options: &Options) -> Result<()> {
    let part_of_name = options.part_of_name.clone();
    let dtypes = vec![DType::F32, DType::BF16, DType::F16];
    let wanted = Wanted { sizes: Sizes::BERT_BASE, dtypes, part_of_name, budget: Duration::from_millis(250) };
    let cores = Processors::of_this_process().default_threads();
    let mut counts = vec![1];
    if cores > 1 {
        counts.push(cores);
    }
    for threads in counts {
        let triad = triad(threads);
        println!("{threads} thread(s): copy {:.1} GB/s, triad {:.1} GB/s", copy(threads) / 1e9, triad / 1e9);
        speed(&Device::cpu_with(cpu_options(threads)?)?, &wanted, &mut |figure| print(&figure, triad))?;
    }
    Ok(())
}

fn print(figure: &Figure, triad: f64) {
    let Figure { name, dtype, seconds, flops, .. } = figure;
    let (name, time) = (format!("{name} {dtype}"), seconds * 1e6);
    if *flops > 0 {
        println!("  {name:32} {time:10.1} us {:8.1} GFLOP/s", figure.rate() / 1e9);
    } else {
        let share = 100.0 * figure.bandwidth() / triad;
        println!("  {name:32} {time:10.1} us {:8.1} GB/s {share:5.0} % of triad", figure.bandwidth() / 1e9);
    }
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
