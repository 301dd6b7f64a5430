//! Peak of the machine: fused multiply-adds per second in registers, which speeds are reported against.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::kernel::Kernel;
use crate::simd::InstructionSet;

/// Floating-point operations per second that `threads` threads reach together in registers with an
/// instruction set, in about 0.15 s.
///
/// Units: one fused multiply-add counts as two. Each thread runs short windows at the same time as the others and
/// reports its fastest, so that neighbours on the machine disturb little; the sum over the threads counts.
pub fn measure_peak(threads: usize, set: InstructionSet) -> f64 {
    let kernel = Kernel::of(set);
    let barrier = Barrier::new(threads.max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    fastest_window(kernel)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(0.0)).sum()
    })
}

fn fastest_window(kernel: &Kernel) -> f64 {
    const ROUNDS: usize = 100_000;
    let (begin, mut best) = (Instant::now(), 0.0f64);
    while begin.elapsed().as_millis() < 150 {
        let window = Instant::now();
        // SAFETY: the kernel was chosen for this machine.
        black_box(unsafe { (kernel.spin)(black_box(ROUNDS)) });
        best = best.max((ROUNDS * kernel.spin_operations) as f64 / window.elapsed().as_secs_f64());
    }
    best
}
