//! Peak of the machine: multiply-adds per second in registers, which speeds are reported against.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::kernel::Kernel;
use crate::cpu::tiles::Unit;
use crate::simd::InstructionSet;

/// Floating-point operations per second that `threads` threads reach together in registers with an
/// instruction set, in about 0.15 s.
///
/// Units: one fused multiply-add counts as two. Each thread runs short windows at the same time as the others and
/// reports its fastest, so that neighbours on the machine disturb little; the sum over the threads counts.
pub fn measure_peak(threads: usize, set: InstructionSet) -> f64 {
    let kernel = Kernel::of(set);
    let spin = |rounds| {
        // SAFETY: the kernel was chosen for this machine.
        black_box(unsafe { (kernel.spin)(black_box(rounds)) });
    };
    rate(threads, || fastest_window(100_000, kernel.spin_operations, spin))
}

/// As [`measure_peak`], of products of bf16 by bf16 with a set that multiplies them, else in f32.
///
/// Of numbers of ordinary size: tiles multiply zeros faster.
pub fn measure_bf16_peak(threads: usize, set: InstructionSet) -> f64 {
    match Unit::of(set) {
        Some(unit) => rate(threads, || fastest_window(4_000, Unit::SPIN_OPERATIONS, |rounds| unit.spin(rounds))),
        None => measure_peak(threads, set),
    }
}

/// The sum of what threads reach at the same time.
fn rate(threads: usize, measure: impl Fn() -> f64 + Sync) -> f64 {
    let barrier = Barrier::new(threads.max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    measure()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(0.0)).sum()
    })
}

fn fastest_window(rounds: usize, operations: usize, spin: impl Fn(usize)) -> f64 {
    let (begin, mut best) = (Instant::now(), 0.0f64);
    while begin.elapsed().as_millis() < 150 {
        let window = Instant::now();
        spin(rounds);
        best = best.max((rounds * operations) as f64 / window.elapsed().as_secs_f64());
    }
    best
}
