//! Tiny models train through the whole CUDA backend on an emulated driver, and give the losses of the CPU: BERT and
//! GPT-2, in f32 and bf16, on one process and on several with an emulated NCCL, data-parallel, tensor-parallel and over
//! pipeline stages.
//!
//! Everything here is emulated. It proves kernels, launches, order and communication together, and nothing about speed
//! or a real device.
#![allow(clippy::unwrap_used)]

use bmtrain_core::comm::host::{HostOptions, HostRank};
use bmtrain_core::comm::nccl::{NcclOptions, NcclRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::{Backend, DType, Device, Segment};
use bmtrain_dist::shard::ZeroLevel;
// The models and the loop that the program gpu-check runs on real devices.
use bmtrain_bench::gpu_check::tiny::{self, Layout, Offload, Seen};
use bmtrain_dist::pipeline::ScheduleKind;
use cuda_emulator::{Driver, with_driver};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const STEPS: u32 = 10;

/// A run, shared among ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Job {
    gpt2: bool,
    dtype: DType,
    level: u64,
    ranks: usize,
    offload: Offload,
    layout: Layout,
    /// Replay what repeats as CUDA graphs.
    graphs: bool,
}

impl Default for Job {
    fn default() -> Self {
        Job {
            gpt2: false,
            dtype: DType::F32,
            level: 0,
            ranks: 1,
            offload: Offload::Nothing,
            layout: Layout::DATA,
            graphs: false,
        }
    }
}

/// What each rank does.
fn of_a_rank(job: Job) -> tiny::Job {
    let Job { gpt2, dtype, level, offload, layout, .. } = job;
    tiny::Job { level: ZeroLevel::from_number(level).unwrap(), offload, layout, ..tiny::Job::plain(gpt2, dtype, STEPS) }
}

/// A layout as text, for a child.
fn text_of(layout: Layout) -> String {
    let Layout { tensor, sequence, stages } = layout;
    let (stages, kind) = stages.map_or((0, "gpipe"), |(stages, kind)| (stages, kind.name()));
    format!("{tensor} {sequence} {stages} {kind}")
}

fn layout_of(words: [&str; 4]) -> Layout {
    let [tensor, sequence, stages, kind] = words;
    let kind = kind.parse().unwrap();
    let stages = Some(stages.parse().unwrap()).filter(|stages| *stages > 0).map(|stages| (stages, kind));
    Layout { tensor: tensor.parse().unwrap(), sequence: sequence == "true", stages }
}

/// This process is a rank with an emulated device.
fn on_the_device(job: Job, rank: usize, place: &Path) -> Seen {
    let compiled = Some(cuda_emulator::compiled_kernels());
    let options = CudaOptions { compiled, graphs: job.graphs, ..CudaOptions::default() };
    let backend = Arc::new(CudaBackend::open(0, &options).unwrap());
    assert!(backend.name().contains("emulated"), "{}", backend.name());
    let ranks: Arc<dyn Communicator> = if job.ranks == 1 {
        Arc::new(Solo)
    } else {
        let control = HostRank::join(place.join("ranks").as_path(), rank, job.ranks, HostOptions::default()).unwrap();
        let options = NcclOptions { messages: false, ..NcclOptions::default() };
        Arc::new(NcclRank::join(Arc::clone(&backend), Arc::new(control), options).unwrap())
    };
    let device = Device::new(Arc::clone(&backend) as Arc<dyn Backend>);
    let seen = tiny::train(of_a_rank(job), &device, ranks).unwrap();
    check_memory(job, &device);
    check_graphs(job, &backend);
    seen
}

/// Nothing that is offloaded was ever at rest on the device.
fn check_memory(job: Job, device: &Device) {
    let report = device.memory();
    let peak = |wanted| report.segments.iter().find(|(segment, _)| *segment == wanted).unwrap().1.peak;
    assert_eq!(peak(Segment::Parameters) == 0, job.offload == Offload::Everything, "{job:?}: {report:?}");
    assert_eq!(peak(Segment::Offload) == 0, job.offload == Offload::Nothing, "{job:?}: {report:?}");
}

/// Launches after the first two steps, in which graphs are captured, are replayed: most where one rank has all on the
/// device. Copies to the host and collectives leave shorter runs of launches.
fn check_graphs(job: Job, backend: &CudaBackend) {
    assert_eq!(backend.graphs().is_some(), job.graphs);
    let Some(counts) = backend.graphs() else { return };
    let later = (counts.replayed + counts.queued) * u64::from(STEPS - 2) / u64::from(STEPS);
    let least = if job.ranks == 1 && job.offload == Offload::Nothing { 0.75 } else { 0.2 };
    assert!(counts.replayed as f64 > least * later as f64, "{job:?}: {counts:?}, {later} launches");
}

/// Names, in a child, what it is for.
const RANK: &str = "BMTRAIN_RANK_OF_TEST";

/// Every rank on an emulated device, as processes.
fn on_devices(test: &str, job: Job) -> Vec<Seen> {
    let directory = tempfile::tempdir().unwrap();
    let start = |rank: usize| -> Child {
        let Job { gpt2, dtype, level, ranks, offload, layout, graphs } = job;
        let (layout, place) = (text_of(layout), directory.path().display());
        let what = format!("{gpt2} {dtype} {level} {ranks} {offload:?} {layout} {graphs} {rank} {place}");
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(RANK, what)
            .env("EMULATED_CUDA_SEED", (rank + 1).to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..job.ranks).map(start).collect();
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rank {rank} of {job:?}:\n{message}");
    }
    (0..job.ranks).map(|rank| read(&directory.path().join(format!("seen-{rank}")))).collect()
}

fn read(path: &Path) -> Seen {
    let text = std::fs::read_to_string(path).unwrap();
    let (losses, state) = text.split_once('\n').unwrap();
    let losses = losses.split(' ').map(|bits| f32::from_bits(bits.parse().unwrap())).collect();
    Seen { losses, state: state.into() }
}

/// In a child that is a rank: train, write the losses, and return true.
fn is_rank() -> bool {
    let Ok(what) = std::env::var(RANK) else { return false };
    let mut words = what.splitn(12, ' ');
    let mut next = || words.next().unwrap();
    let gpt2 = next() == "true";
    let dtype = if next() == "bf16" { DType::BF16 } else { DType::F32 };
    let (level, ranks) = (next().parse().unwrap(), next().parse().unwrap());
    let offload = match next() {
        "Everything" => Offload::Everything,
        "Optimizer" => Offload::Optimizer,
        _ => Offload::Nothing,
    };
    let layout = layout_of([next(), next(), next(), next()]);
    let graphs = next() == "true";
    let job = Job { gpt2, dtype, level, ranks, offload, layout, graphs };
    let (rank, place) = (next().parse().unwrap(), next());
    let Seen { losses, state } = on_the_device(job, rank, Path::new(place));
    let losses: Vec<String> = losses.iter().map(|loss| loss.to_bits().to_string()).collect();
    std::fs::write(Path::new(place).join(format!("seen-{rank}")), losses.join(" ") + "\n" + &state).unwrap();
    true
}

/// Run a test on the emulated driver, unless this process is one of its ranks.
fn on_the_emulator(test: &str, body: impl FnOnce()) {
    with_driver(test, Driver::Emulated, &[], || {
        if !is_rank() {
            body();
        }
    });
}

fn assert_as_on_the_cpu(job: Job, got: &[Seen]) {
    let expected = tiny::train_on_the_cpu(of_a_rank(job), job.ranks).unwrap();
    assert_eq!(got.len(), expected.len());
    assert!(tiny::learns(&expected), "nothing is learned: {expected:?}");
    for (rank, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let apart = tiny::distance(got, expected);
        assert!(
            apart <= tiny::tolerance(job.dtype),
            "{job:?}, rank {rank}, {apart} apart: {got:?}, on the CPU {expected:?}"
        );
    }
}

#[test]
fn one_rank_trains_as_on_the_cpu() {
    let test = "one_rank_trains_as_on_the_cpu";
    on_the_emulator(test, || {
        for gpt2 in [false, true] {
            for dtype in [DType::F32, DType::BF16] {
                let job = Job { gpt2, dtype, ..Job::default() };
                assert_as_on_the_cpu(job, &on_devices(test, job));
            }
        }
    });
}

#[test]
fn two_ranks_train_as_on_the_cpu_with_the_same_bits_at_every_zero_level() {
    let test = "two_ranks_train_as_on_the_cpu_with_the_same_bits_at_every_zero_level";
    on_the_emulator(test, || {
        for gpt2 in [false, true] {
            let job = Job { gpt2, level: 3, ranks: 2, ..Job::default() };
            let cut = on_devices(test, job);
            assert_as_on_the_cpu(job, &cut);
            for level in 0..3 {
                let other = on_devices(test, Job { level, ..job });
                assert_eq!(other, cut, "{job:?} and ZeRO-{level}");
            }
        }
    });
}

#[test]
fn four_ranks_train_as_on_the_cpu() {
    let test = "four_ranks_train_as_on_the_cpu";
    on_the_emulator(test, || {
        for gpt2 in [false, true] {
            let job = Job { gpt2, level: 3, ranks: 4, ..Job::default() };
            assert_as_on_the_cpu(job, &on_devices(test, job));
        }
    });
}

#[test]
fn tensor_parallel_ranks_train_as_on_the_cpu() {
    let test = "tensor_parallel_ranks_train_as_on_the_cpu";
    on_the_emulator(test, || {
        let cases = [(false, DType::F32, false), (true, DType::F32, true), (true, DType::BF16, true)];
        for (gpt2, dtype, sequence) in cases {
            let layout = Layout { tensor: 2, sequence, ..Layout::DATA };
            let job = Job { gpt2, dtype, level: 0, ranks: 2, layout, ..Job::default() };
            assert_as_on_the_cpu(job, &on_devices(test, job));
        }
        // With shards of the tensor-parallel weights besides.
        let layout = Layout { tensor: 2, sequence: true, ..Layout::DATA };
        let job = Job { gpt2: true, dtype: DType::F32, level: 3, ranks: 4, layout, ..Job::default() };
        assert_as_on_the_cpu(job, &on_devices(test, job));
    });
}

/// Activations and gradients cross the edges by NCCL, over groups that were made without connections for messages.
#[test]
fn pipeline_stages_train_as_on_the_cpu() {
    let test = "pipeline_stages_train_as_on_the_cpu";
    on_the_emulator(test, || {
        for kind in [ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubbleV] {
            let layout = Layout { stages: Some((2, kind)), ..Layout::DATA };
            let job = Job { gpt2: true, dtype: DType::F32, level: 0, ranks: 2, layout, ..Job::default() };
            assert_as_on_the_cpu(job, &on_devices(test, job));
        }
        // Stages of tensor-parallel ranks.
        let stages = Some((2, ScheduleKind::OneForwardOneBackward));
        let layout = Layout { tensor: 2, sequence: true, stages };
        let job = Job { gpt2: false, dtype: DType::F32, level: 0, ranks: 4, layout, ..Job::default() };
        assert_as_on_the_cpu(job, &on_devices(test, job));
    });
}

#[test]
fn offloaded_parameters_and_inputs_train_with_the_same_bits() {
    let test = "offloaded_parameters_and_inputs_train_with_the_same_bits";
    on_the_emulator(test, || {
        for (ranks, gpt2, dtype) in [(1, true, DType::F32), (1, false, DType::BF16), (2, true, DType::F32)] {
            let job = Job { gpt2, dtype, level: 3, ranks, offload: Offload::Optimizer, ..Job::default() };
            let on_device = on_devices(test, job);
            assert_as_on_the_cpu(job, &on_device);
            assert_eq!(on_devices(test, Job { offload: Offload::Everything, ..job }), on_device, "{job:?}");
        }
    });
}

/// On one rank, on several, with parameters in the host's memory: work of the host and of other ranks comes in between.
#[test]
fn replayed_graphs_train_with_the_same_bits() {
    let test = "replayed_graphs_train_with_the_same_bits";
    on_the_emulator(test, || {
        let one = Job::default();
        for job in [
            Job { gpt2: true, ..one },
            Job { dtype: DType::BF16, ..one },
            Job { gpt2: true, level: 3, ranks: 2, ..one },
            Job { level: 3, offload: Offload::Everything, ..one },
        ] {
            assert_eq!(on_devices(test, Job { graphs: true, ..job }), on_devices(test, job), "{job:?}");
        }
    });
}
