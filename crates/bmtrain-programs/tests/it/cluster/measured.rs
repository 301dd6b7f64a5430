//! The simulator against real steps on rank threads, with blocks that take a fixed time and links of a fixed speed.

#[path = "../../../../bmtrain-dist/tests/it/pipeline/sleepers.rs"]
mod sleepers;

use bmtrain_core::comm::host::{HostOptions, Link as HostLink};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::pipeline::{Link, ScheduleKind, WorkTimes};
use bmtrain_dist::shard::ZeroLevel;
use bmtrain_programs::cluster::{Machine, simulate};
use model_center::formula::{ParallelLayout, TransformerSizes};
use sleepers::{SleepRun, measure};
use std::time::Duration;

/// Seconds of the products of a block in a forward pass.
const PRODUCTS: f64 = 0.012;
/// D of all models.
const WIDTH: usize = 32;

/// A step that is simulated and run.
#[derive(Debug, Clone, Copy)]
struct Case {
    kind: ScheduleKind,
    stages: usize,
    chunks: usize,
    /// Blocks of each chunk.
    blocks: usize,
    micro_batches: usize,
    /// Tokens: attention, which has no weights, takes a sixth of the time of the products for each D of them.
    length: usize,
    /// The head takes a twelfth of the time of a block's products for each D of it, at the last place.
    vocabulary: usize,
    data: usize,
    zero: ZeroLevel,
    recompute: bool,
    /// Seconds, and bytes per second.
    link: (f64, f64),
}

impl Case {
    fn sizes(&self) -> TransformerSizes {
        TransformerSizes::gpt2(self.stages * self.chunks * self.blocks, WIDTH, 4, self.vocabulary, 0)
    }

    fn layout(&self) -> ParallelLayout {
        ParallelLayout {
            tensor: 1,
            pipeline: self.stages,
            data: self.data,
            zero: self.zero,
            schedule: self.kind,
            chunks: self.chunks,
            length: self.length,
            micro_batch: 1,
            micro_batches: self.micro_batches,
            recompute: self.recompute,
            // Stages reduce gradients at the step.
            overlap: false,
            overlap_tensor: false,
            value_bytes: 4,
            gradient_bytes: 4,
        }
    }

    fn machine(&self) -> Machine {
        let link = Link::new(self.link.0, self.link.1).unwrap();
        Machine {
            name: "blocks that sleep".into(),
            flops: self.sizes().matrix_flops() * self.length as f64 / PRODUCTS,
            efficiency: 1.0,
            ranks_per_host: 8,
            inside: link,
            between: link,
            optimizer_bandwidth: f64::INFINITY,
        }
    }

    /// The same as blocks that sleep; where they are recomputed, the forward pass is run again by itself.
    fn run(&self) -> SleepRun {
        let (sizes, machine) = (self.sizes(), self.machine());
        let time = |flops: f64| machine.compute_time(flops * self.length as f64);
        let (products, attention) = (time(sizes.matrix_flops()), time(sizes.attention_flops(self.length)));
        let block = WorkTimes {
            forward: products + attention,
            input_gradient: products + 2.0 * attention,
            weight_gradient: products,
        };
        let mut blocks = vec![block; sizes.layers];
        let head = time(sizes.head_flops());
        if let Some(last) = blocks.last_mut() {
            *last = WorkTimes {
                forward: last.forward + head,
                input_gradient: last.input_gradient + head,
                weight_gradient: last.weight_gradient + head,
            };
        }
        let bytes_per_second = self.link.1;
        let link = HostLink { latency: Duration::from_secs_f64(self.link.0), bytes_per_second };
        SleepRun {
            schedule: self.layout().schedule(&sizes, "case").unwrap(),
            blocks,
            elements: self.length * WIDTH,
            values: sizes.block_parameters() as usize,
            data: self.data,
            level: self.zero,
            recompute: if self.recompute { Recompute::Checkpoint } else { Recompute::Keep },
            options: HostOptions { link: Some(link), ..HostOptions::default() },
        }
    }
}

/// Stages, schedules, micro-batches, parts of unequal time, heads, data ranks, recomputation and links.
fn cases() -> Vec<Case> {
    use ScheduleKind::{GPipe, Interleaved, OneForwardOneBackward, ZeroBubble, ZeroBubbleV};
    let of = |kind: ScheduleKind, stages, micro_batches, link| Case {
        kind,
        stages,
        chunks: kind.default_chunks(),
        blocks: 1,
        micro_batches,
        length: WIDTH,
        vocabulary: 1,
        data: 1,
        zero: ZeroLevel::Zero,
        recompute: false,
        link,
    };
    let (fast, near, far, thin) = ((0.0, 1e9), (5e-4, 5e7), (3e-3, 2e7), (1e-3, 5e5));
    let long = 4 * WIDTH;
    vec![
        of(GPipe, 2, 4, fast),
        of(GPipe, 4, 6, far),
        of(GPipe, 3, 5, thin),
        of(OneForwardOneBackward, 2, 6, near),
        of(OneForwardOneBackward, 2, 6, thin),
        of(OneForwardOneBackward, 3, 6, far),
        of(OneForwardOneBackward, 4, 8, near),
        Case { blocks: 2, ..of(OneForwardOneBackward, 2, 4, far) },
        Case { length: long, ..of(OneForwardOneBackward, 2, 6, near) },
        Case { vocabulary: 12 * WIDTH, ..of(OneForwardOneBackward, 3, 6, near) },
        Case { recompute: true, ..of(OneForwardOneBackward, 2, 6, near) },
        Case { data: 2, ..of(OneForwardOneBackward, 2, 4, near) },
        Case { data: 2, ..of(OneForwardOneBackward, 2, 6, (1e-3, 2e6)) },
        Case { data: 2, zero: ZeroLevel::One, ..of(GPipe, 2, 4, (5e-4, 5e6)) },
        of(Interleaved, 2, 4, near),
        of(Interleaved, 4, 4, far),
        of(ZeroBubble, 2, 6, near),
        Case { length: long, ..of(ZeroBubble, 4, 8, far) },
        of(ZeroBubbleV, 2, 6, near),
        Case { vocabulary: 6 * WIDTH, ..of(ZeroBubbleV, 3, 6, far) },
    ]
}

/// Within 10 %. Ignored, as it times threads: run it where nothing else runs.
#[test]
#[ignore = "times threads"]
fn simulated_steps_take_the_time_of_real_ones() {
    let cases = cases();
    assert_eq!(cases.len(), 20);
    let mut largest = 0.0f64;
    for case in cases {
        let simulated = simulate(&case.sizes(), &case.layout(), &case.machine(), "case").unwrap().step;
        // The step ends where its last rank does.
        let measured = measure(&case.run()).iter().map(|rank| rank.step).fold(0.0, f64::max);
        let error = simulated / measured - 1.0;
        let Case { kind, stages, micro_batches, data, link: (latency, bandwidth), .. } = case;
        eprintln!(
            "{kind}, {stages} stages, {micro_batches} micro-batches, {data} data, {:.1} ms, {:.1} MB/s: simulated \
             {:.1} ms, measured {:.1} ms, {:+.1} %",
            1e3 * latency,
            bandwidth / 1e6,
            1e3 * simulated,
            1e3 * measured,
            100.0 * error
        );
        largest = largest.max(error.abs());
    }
    println!("figure: {:.1}%", 100.0 * largest);
    assert!(largest < 0.1, "{largest} of the measured time");
}
