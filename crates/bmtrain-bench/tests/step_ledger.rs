//! What a training step launches on a device, by kernel, and an estimate of its time: held against `kernels/steps.txt`,
//! so that a lost fusion shows as a changed line.
//!
//! The steps run through the whole CUDA backend on an emulated driver that only keeps account: launches are what a
//! device would be given, operations and bytes what the kernels report of themselves. Nothing is computed, and nothing
//! is measured. The time model is below; its constants are estimates for an H100, and they stay as they are, so that
//! two versions of the ledger compare.
#![allow(clippy::unwrap_used)]

use bmtrain_bench::step::{Extent, Shape, Size, Steps, random_batch};
use bmtrain_core::backend::{Backend, Kernels};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::kernel::Kernel;
use bmtrain_core::{DType, Device, Lane, forward_to_inner};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::{BuilderOptions, TensorGroup};
use cuda_emulator::launches::launched_by;
use cuda_emulator::{Driver, with_driver};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

/// Steps of models that are in the ledger.
const MODELS: [Model; 5] = [
    ("GPT-2 124M, 64 x 1024, without dropout", Size::Gpt2, 64, 1024, 0.0),
    ("GPT-2 124M, 64 x 1024, dropout 0.1", Size::Gpt2, 64, 1024, 0.1),
    ("BERT-base, fine-tuning of a classifier, 32 x 128, dropout 0.1", Size::BertBase, 32, 128, 0.1),
    ("BERT-base, fine-tuning of a classifier, 8 x 128, dropout 0.1", Size::BertBase, 8, 128, 0.1),
    ("Llama 3 8B, 8 x 2048", Size::Llama8b, 8, 2048, 0.0),
];

/// GiB of the device that keeps account: more than any has, for a step of 8 billion parameters without shards.
const MEMORY: &str = "1024";

/// The time model: a kernel takes as long as its operations or its bytes, whichever is longer.
mod model {
    use bmtrain_core::kernel::{AttentionInputs, Gemm, Kernel};

    /// Bytes a second that kernels reach: 0.9 of what is known of a copy.
    const BYTES: f64 = 2.7e12;
    /// Operations a second of large bf16 products, of models narrower than 2048 and of others.
    const PRODUCTS: [f64; 2] = [600e12, 680e12];
    /// Of attention forward and backward, for heads of 64 and of 128.
    const ATTENTION: [[f64; 2]; 2] = [[220e12, 170e12], [300e12, 200e12]];
    /// What dropout of attention adds to their times, in parts of them, where four decisions take 155 instructions.
    const DROPOUT: [f64; 2] = [2.3, 1.2];
    const DECISIONS: f64 = 155.0;
    /// Instructions that four decisions take: of attention's two Philox blocks at once, 107 for eight.
    const TAKEN: f64 = 107.0 / 2.0;
    /// Multiprocessors, and the tile of a product that each takes.
    const MULTIPROCESSORS: f64 = 132.0;
    const TILE: [f64; 2] = [128.0, 256.0];
    /// Seconds of the host for a launch.
    pub(super) const LAUNCH: f64 = 5e-6;

    /// Estimated seconds of a kernel on the device.
    pub(super) fn seconds(kernel: &Kernel<'_>, narrow: bool) -> f64 {
        let cost = kernel.cost();
        // A range is counted once by the kernel, whether it is read, written or both.
        let again = match kernel {
            Kernel::Adam(_) => 5.0 / 3.0,
            Kernel::ActivationInPlace(_) | Kernel::GatedInPlace(_) => 2.0,
            Kernel::CrossEntropyBackward(_) | Kernel::CrossEntropyInPlace(_) => 2.0,
            _ => 1.0,
        };
        let bytes = again * cost.bytes as f64 / BYTES;
        let flops = cost.flops as f64;
        let attention = |way: usize, inputs: &AttentionInputs<'_>| {
            let head = usize::from(inputs.shape.head_size > 64);
            let slowed = if inputs.dropout.is_some() { 1.0 + DROPOUT[way] * TAKEN / DECISIONS } else { 1.0 };
            // Half of the scores are not made where a query sees only what is before it.
            let made = if inputs.causal { 0.5 } else { 1.0 };
            slowed * made * flops / ATTENTION[head][way]
        };
        bytes.max(match kernel {
            Kernel::Gemm(gemm) => flops / PRODUCTS[usize::from(!narrow)] / filled(gemm),
            Kernel::AttentionForward(a) => attention(0, &a.inputs),
            // Besides its gradients it makes the probabilities again.
            Kernel::AttentionBackward(a) => 1.4 * attention(1, &a.inputs),
            _ => 0.0,
        })
    }

    /// Share of the multiprocessors that a product's tiles fill; a cut of the sums fills a part of the rest.
    fn filled(gemm: &Gemm<'_>) -> f64 {
        let batch = (gemm.batch.outer * gemm.batch.inner) as f64;
        let tiles = batch * (gemm.m as f64 / TILE[0]).ceil() * (gemm.n as f64 / TILE[1]).ceil();
        let share = (tiles / MULTIPROCESSORS).min(1.0);
        if share < 0.8 { (2.5 * share).clamp(0.3, 1.0) } else { 1.0 }
    }
}

/// What was launched of one kernel.
#[derive(Debug, Default, Clone, Copy)]
struct Entry {
    calls: u64,
    launches: usize,
    flops: u64,
    bytes: u64,
    seconds: f64,
}

/// A backend around the one of the device that enters into the ledger what is launched.
#[derive(Debug)]
struct Entering {
    inner: Arc<dyn Backend>,
    narrow: bool,
    entries: Mutex<BTreeMap<&'static str, Entry>>,
}

impl Kernels for Entering {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> bmtrain_core::Result<()> {
        let (name, cost, seconds) = (kernel.name(), kernel.cost(), model::seconds(&kernel, self.narrow));
        let (done, launches) = launched_by(|| self.inner.launch(kernel, on));
        done?;
        let mut entries = self.entries.lock().unwrap();
        let entry = entries.entry(name).or_default();
        entry.calls += 1;
        entry.launches += launches.len();
        entry.flops += cost.flops;
        entry.bytes += cost.bytes;
        entry.seconds += seconds;
        Ok(())
    }
}

impl Backend for Entering {
    forward_to_inner!(name id memory upload download copy on_host mark wait sync provided);
}

/// A model of the ledger: its name, size, rows and tokens of a batch, dropout.
type Model = (&'static str, Size, usize, usize, f32);

fn open(graphs: bool) -> Arc<CudaBackend> {
    let compiled = Some(cuda_emulator::compiled_kernels());
    let backend = CudaBackend::open(0, &CudaOptions { compiled, graphs, ..CudaOptions::default() }).unwrap();
    assert!(backend.name().contains("emulated"), "{}", backend.name());
    Arc::new(backend)
}

/// Run steps of a model on a device; `each` is called before each of them, and at the end.
fn run((_, size, rows, length, dropout_p): Model, device: &Device, count: u32, mut each: impl FnMut()) {
    let shape = Shape { dropout_p, ..size.shape() };
    let tensor = TensorGroup { pads_one_rank: device.backend().aligns_products(), ..TensorGroup::default() };
    let builder = BuilderOptions { dtype: DType::BF16, tensor, ..BuilderOptions::default() };
    let mut steps = Steps::new(device, shape, (BlockOptions::default(), 1), builder).unwrap();
    let extent = Extent { rows, length, target: 0, is_padded: false, document: None };
    let batch = random_batch(shape, extent, 0);
    for step in 0..count {
        each();
        steps.run(&batch, step).unwrap();
    }
    each();
}

/// What becomes of the launches of a step where those that repeat are replayed as graphs.
fn replayed(model: Model) -> String {
    /// The first ones are recorded and captured.
    const STEPS: u32 = 6;
    let backend = open(true);
    let device = Device::new(Arc::clone(&backend) as Arc<dyn Backend>);
    let mut counts = Vec::new();
    run(model, &device, STEPS, || counts.extend(backend.graphs()));
    let [.., before, after] = &counts[..] else { unreachable!("a device with graphs counts them") };
    format!(
        "  with graphs: {} replays of {} launches, {} with other arguments, and {} launches alone\n",
        after.replays - before.replays,
        after.replayed - before.replayed,
        after.changed - before.changed,
        after.queued - before.queued,
    )
}

/// The ledger of a step: the second one, after the optimizer's state is there.
fn ledger(model: Model) -> String {
    let (name, size, rows, length, _) = model;
    let shape = size.shape();
    let inner = open(false);
    let narrow = shape.dim_model < 2048;
    let entering = Arc::new(Entering { inner, narrow, entries: Mutex::default() });
    let device = Device::new(Arc::clone(&entering) as Arc<dyn Backend>);
    let mut last = BTreeMap::new();
    run(model, &device, 2, || {
        let entered = std::mem::take(&mut *entering.entries.lock().unwrap());
        if !entered.is_empty() {
            last = entered;
        }
    });
    let entries = last;
    let sum = |of: &dyn Fn(&Entry) -> f64| entries.values().map(of).sum::<f64>();
    let launches = sum(&|entry| entry.launches as f64);
    let (device_time, host_time) = (sum(&|entry| entry.seconds), launches * model::LAUNCH);
    let time = device_time.max(host_time);
    let mut text = format!(
        "{name}: {launches} launches, {:.1} TFLOP, {:.1} GB; estimate {:.1} ms of the device, {:.1} ms of the host, \
         {:.0} k tokens/s\n",
        sum(&|entry| entry.flops as f64) / 1e12,
        sum(&|entry| entry.bytes as f64) / 1e9,
        1e3 * device_time,
        1e3 * host_time,
        (rows * length) as f64 / time / 1e3,
    );
    for (kernel, Entry { calls, launches, flops, bytes, seconds }) in &entries {
        let (gflop, mb, ms) = (*flops as f64 / 1e9, *bytes as f64 / 1e6, 1e3 * seconds);
        writeln!(text, "  {kernel:24} {calls:5} {launches:5} {gflop:10.1} {mb:10.1} {ms:8.2}").unwrap();
    }
    text + &replayed(model)
}

const HEAD: &str = "\
# What training steps launch on a device, and an estimate of their time on an H100 by the model in
# crates/bmtrain-bench/tests/step_ledger.rs: nothing here is measured. Columns: kernel, calls, launches, GFLOP, MB,
# ms; and what becomes of the launches where those that repeat are replayed as CUDA graphs.
# After a change: ACCEPT_LEDGER=1 cargo test -p bmtrain-bench --test step_ledger

";

#[test]
fn steps_launch_what_the_ledger_has() {
    let settings = [("EMULATED_CUDA_ACCOUNT", MEMORY)];
    with_driver("steps_launch_what_the_ledger_has", Driver::Emulated, &settings, || {
        let steps: Vec<String> = MODELS.into_iter().map(ledger).collect();
        let now = format!("{HEAD}{}", steps.join("\n"));
        let figures: Vec<&str> = steps.iter().filter_map(|step| step.lines().next()).collect();
        println!("emulated: {}", figures.join("; "));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/steps.txt");
        if std::env::var_os("ACCEPT_LEDGER").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let known = std::fs::read_to_string(path).unwrap();
        for (known, now) in known.lines().zip(now.lines()) {
            assert_eq!(now, known, "the step launches something else than kernels/steps.txt has: see its first lines");
        }
        assert_eq!(now, known);
    });
}
