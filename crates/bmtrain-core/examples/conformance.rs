//! The conformance table on the CPU: every check of every row, or with `--bench` the time of its large rows.
//!
//! `cargo run --release -p bmtrain-core --example conformance -- [--threads N] [--bench] [START OF A ROW'S NAME]`
//!
//! A backend in a crate of its own copies this file and makes its own device.

use bmtrain_core::conformance::{self, Case, Report};
use bmtrain_core::cpu::CpuOptions;
use bmtrain_core::{Device, Result};
use std::process::ExitCode;
use std::time::Duration;

struct Options {
    threads: usize,
    bench: bool,
    start: String,
}

impl Options {
    fn device(&self) -> Result<Device> {
        Device::cpu_with(CpuOptions::of_environment(self.threads, &|name| std::env::var_os(name))?)
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options { threads: 1, bench: false, start: String::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => options.bench = true,
            "--threads" => {
                let count = arguments.next().unwrap_or_default();
                options.threads = count.parse().map_err(|_| format!("--threads takes a number, got {count:?}"))?;
            }
            flag if flag.starts_with('-') => {
                return Err(format!("unknown flag {flag}: there are --threads N and --bench"));
            }
            start => options.start = start.into(),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let cases: Vec<Case> =
        conformance::cases().into_iter().filter(|case| case.name.starts_with(&options.start)).collect();
    let result = if options.bench { bench(&options, &cases) } else { check(&options, &cases) };
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("{failures} checks failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints one line for each check; returns how many failed.
fn check(options: &Options, cases: &[Case]) -> Result<usize> {
    let mut report = Report::default();
    for case in cases {
        let before = report.entries.len();
        conformance::run_rows(&|| options.device(), std::slice::from_ref(case), &mut report)?;
        report.entries[before..].iter().for_each(|entry| println!("{entry}"));
    }
    println!("{} checks of {} rows", report.entries.len(), cases.len());
    Ok(report.failures().count())
}

/// Prints one line for each large row and dtype.
fn bench(options: &Options, cases: &[Case]) -> Result<usize> {
    let device = options.device()?;
    println!("{:<52} {:<5} {:>10} {:>10} {:>9} {:>9}", "row", "type", "forward", "backward", "GFLOP/s", "GB/s");
    for case in cases.iter().filter(|case| case.large) {
        for &dtype in &case.dtypes {
            let time = conformance::bench(&device, case, dtype, Duration::from_millis(100))?;
            let (forward, backward) = (time.forward * 1e6, time.backward * 1e6);
            let (flops, bytes) = (time.gflops(), time.gbytes());
            println!("{:<52} {dtype:<5} {forward:>8.1}us {backward:>8.1}us {flops:>9.2} {bytes:>9.2}", case.name);
        }
    }
    Ok(0)
}
