//! The choice of a product's algorithm by time, the first time that the product is made.
//!
//! The library's own order is an estimate. Here its first algorithms are run with the product's own factors, and the
//! fastest is used from then on. Algorithms differ in the order of their sums, so results differ in their last bits
//! with the choice: choices are kept in a file, which another run, and the other ranks of a host, find.
#![allow(unsafe_code)]

use super::super::CudaOptions;
use super::super::driver::{Context, Event};
use super::super::launch::Launch;
use super::choice_file::ChoiceFile;
use super::lt::{Algorithm, Call, Code, GemmPlan};
use super::plan_cache::Problem;
use super::product::Product;
use crate::error::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most choices of a process: for more products the library's first algorithms are used.
const MAX_CHOICES: usize = 1 << 16;

/// Algorithms chosen by time so far: see [`CudaOptions::timed_products`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProductChoices {
    /// Products whose algorithms were timed.
    pub timed: u64,
    /// Products whose choice was found in the cache.
    pub found: u64,
    /// Products, timed or found, that have another algorithm than the library's first.
    pub changed: u64,
    /// Seconds that the library's first algorithms take for one of each product that was timed.
    pub first_seconds: f64,
    /// Seconds with the chosen algorithms.
    pub chosen_seconds: f64,
}

#[derive(Debug)]
pub(super) struct Choices {
    file: Option<ChoiceFile>,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    counts: ProductChoices,
    /// For plans that are forgotten and made again.
    codes: HashMap<Problem, Code>,
}

/// Algorithms by their number in the library's order, with the seconds of one product; the refused ones are left out.
type Times = Vec<(usize, f64)>;

impl Choices {
    /// Kept in the cache, where the options declare one.
    pub(super) fn new(options: &CudaOptions) -> Self {
        let file = options.cache.as_ref().filter(|_| options.timed_products);
        Choices { file: file.map(|cache| ChoiceFile::in_directory(cache)), made: Mutex::default() }
    }

    pub(super) fn made(&self) -> ProductChoices {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Choose the algorithm of a product that is about to be made, whose plan has others than its first.
    ///
    /// # Safety
    /// As [`super::lt::Lt::multiply`], for as often as it is timed: the result and what is beside it are overwritten,
    /// and depend on nothing that is.
    pub(super) unsafe fn choose(
        &self,
        launch: &Launch<'_>,
        (problem, tf32): (&Problem, bool),
        product: &Product,
    ) -> Result<()> {
        let context = launch.modules.context();
        // Algorithms load kernels. And from here on the device does nothing else of this rank: one that waits for the
        // file waits for a time that ends, whatever its own device waits for.
        context.drain()?;
        let mut plan = product.plan();
        if plan.others.is_empty() {
            // Another thread was faster.
            return Ok(());
        }
        let all: Vec<Algorithm> = [plan.algorithm].into_iter().chain(plan.others.iter().copied()).collect();
        let number_of = |code: Code| all.iter().position(|algorithm| algorithm.code() == code);
        let known = {
            let made = self.lock();
            let is_full = made.codes.len() >= MAX_CHOICES;
            made.codes.get(problem).copied().or(is_full.then(|| plan.algorithm.code()))
        };
        if let Some(chosen) = known.and_then(number_of) {
            (plan.algorithm, plan.others) = (all[chosen], Vec::new());
            return Ok(());
        }
        let mut times = None;
        let mut time = || {
            // SAFETY: promised by the caller.
            let found = unsafe { time(launch, context, &plan, &all, product) }?;
            let chosen = fastest(&found);
            times = Some(found);
            Ok(all[chosen].code())
        };
        let code = match &self.file {
            Some(file) => {
                let key = key(context, product, problem, tf32);
                file.find_or(&key, |code| number_of(code).is_some(), time)?
            }
            None => Some(time()?),
        };
        // Where a choice cannot be kept, another rank would choose by itself.
        let Some(chosen) = code.and_then(number_of) else {
            plan.others.clear();
            return Ok(());
        };
        (plan.algorithm, plan.others) = (all[chosen], Vec::new());
        let mut made = self.lock();
        made.codes.insert(*problem, all[chosen].code());
        let made = &mut made.counts;
        made.changed += u64::from(chosen != 0);
        match times {
            None => made.found += 1,
            Some(times) => {
                let seconds = |number| times.iter().find(|(other, _)| *other == number).map(|(_, seconds)| *seconds);
                made.timed += 1;
                // The first may have been refused.
                let best = seconds(chosen).unwrap_or(0.0);
                made.chosen_seconds += best;
                made.first_seconds += seconds(0).unwrap_or(best);
            }
        }
        Ok(())
    }
}

/// Everything that a choice depends on, as one text.
fn key(context: &Context, product: &Product, problem: &Problem, tf32: bool) -> String {
    let (name, properties, version) = (context.name(), context.properties(), product.lt.version());
    let text = format!("{name}, {properties:?}, cuBLASLt {version:?}, tf32 {tf32}, {problem:?}");
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

/// The library's first algorithm, unless another one is faster by more than what times differ from run to run.
fn fastest(times: &Times) -> usize {
    const GAIN: f64 = 0.97;
    let least = times.iter().copied().min_by(|(_, one), (_, other)| one.total_cmp(other));
    let first = times.iter().find(|(number, _)| *number == 0);
    match (first, least) {
        (Some((_, first)), Some((number, least))) if least < GAIN * first => number,
        (None, Some((number, _))) => number,
        _ => 0,
    }
}

/// Run all algorithms of a plan.
///
/// # Safety
/// As [`Choices::choose`].
unsafe fn time(
    launch: &Launch<'_>,
    context: &Arc<Context>,
    plan: &GemmPlan,
    all: &[Algorithm],
    product: &Product,
) -> Result<Times> {
    /// Timed runs of an algorithm: the shortest counts. What is much slower than another is timed once.
    const ROUNDS: usize = 3;
    const MUCH: f64 = 1.25;
    const PRODUCTS: usize = 4;
    product.describe(plan)?;
    let stream = launch.stream.handle()?;
    let call: &Call = &product.call;
    // SAFETY: promised by the caller.
    let run = |number: usize| unsafe { product.lt.multiply(plan, &all[number], call, stream) };
    let mut times = Times::new();
    for number in 0..all.len() {
        match run(number) {
            Ok(true) => times.push((number, f64::INFINITY)),
            Ok(false) => {}
            Err(error) if number == 0 => return Err(error),
            Err(error) => tracing::debug!(%error, number, "an algorithm that cuBLASLt suggests fails, and is left out"),
        }
    }
    let (begin, end) = (Event::timed(context)?, Event::timed(context)?);
    for _ in 0..ROUNDS {
        let least = times.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
        for (number, seconds) in times.iter_mut().filter(|(_, seconds)| *seconds <= MUCH * least) {
            // The device is busy with it while the others are queued.
            run(*number)?;
            begin.record(launch.stream)?;
            for _ in 0..PRODUCTS {
                run(*number)?;
            }
            end.record(launch.stream)?;
            end.synchronize()?;
            *seconds = seconds.min(begin.seconds_to(&end)? / PRODUCTS as f64);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_algorithm_is_used_where_it_is_clearly_faster() {
        assert_eq!(fastest(&vec![(0, 1.0), (1, 0.98), (2, 1.2)]), 0);
        assert_eq!(fastest(&vec![(0, 1.0), (1, 0.96), (2, 0.5)]), 2);
        assert_eq!(fastest(&vec![(1, 0.7), (3, 0.6)]), 3, "the first was refused");
        assert_eq!(fastest(&vec![]), 0);
    }
}
