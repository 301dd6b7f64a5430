//! What the programs that time a training step of another library share: options, batch, timing and the record that is
//! printed, as `scripts/torch_step.py` has them.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Steps before anything is timed.
const WARM_UP: usize = 2;

/// The settings that all sides share.
pub const DROPOUT: f32 = 0.1;
pub const LEARNING_RATE: f64 = 1e-5;
pub const WEIGHT_DECAY: f32 = 0.01;
pub const MAX_NORM: f32 = 1.0;
/// Epsilon of BERT's layer norms.
pub const NORM_EPS: f64 = 1e-12;
/// Standard deviation of BERT's random weights.
pub const DEVIATION: f64 = 0.02;
/// Outputs of the classifier.
pub const CLASSES: usize = 2;

/// Sizes of a BERT.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    pub vocabulary: usize,
    pub positions: usize,
    pub types: usize,
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
}

impl Shape {
    const BERT_BASE: Shape =
        Shape { name: "bert-base", vocabulary: 30522, positions: 512, types: 2, layers: 12, width: 768, heads: 12 };
    const MINILM: Shape = Shape { name: "minilm", layers: 6, width: 384, ..Shape::BERT_BASE };

    /// Width of the feed-forward layer.
    pub fn feed_forward(&self) -> usize {
        4 * self.width
    }

    /// Width of an attention head.
    pub fn head(&self) -> usize {
        self.width / self.heads
    }
}

/// `--model bert-base|minilm --batch B --seq L --steps N --threads T`
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub shape: Shape,
    pub batch: usize,
    pub sequence: usize,
    pub steps: usize,
    pub threads: usize,
}

impl Options {
    /// Reads the command line, holds rayon, on which all of these libraries run, to the threads, and has the heap keep
    /// what is released. Each operation of these libraries allocates its result, and glibc by default has the kernel
    /// map and clear a large one afresh: MiniLM's step would take about 1.3 times the processor time in candle, and a
    /// little more in burn. With mimalloc candle took as much as with glibc's defaults.
    pub fn parse() -> Result<Self> {
        let mut options = Options { shape: Shape::BERT_BASE, batch: 8, sequence: 128, steps: 5, threads: 2 };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--model" => {
                    let known = [Shape::BERT_BASE, Shape::MINILM].into_iter().find(|shape| shape.name == value);
                    options.shape = known.ok_or_else(|| format!("--model {value}: bert-base or minilm"))?;
                }
                "--batch" => options.batch = value.parse()?,
                "--seq" => options.sequence = value.parse()?,
                "--steps" => options.steps = value.parse()?,
                "--threads" => options.threads = value.parse()?,
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        if [options.batch, options.sequence, options.steps, options.threads].contains(&0) {
            return Err("--batch, --seq, --steps and --threads must be above 0".into());
        }
        // SAFETY: the programs call this first, before there is a second thread.
        unsafe {
            std::env::set_var("RAYON_NUM_THREADS", options.threads.to_string());
            for (setting, value) in
                [(libc::M_MMAP_THRESHOLD, i32::MAX), (libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_TOP_PAD, 256 << 20)]
            {
                if libc::mallopt(setting, value) != 1 {
                    return Err(format!("mallopt refuses {value} for {setting}").into());
                }
            }
        }
        Ok(options)
    }

    /// Random token ids, [B, L], and a class for each sequence, [B]. All steps have this batch, so that the loss falls.
    pub fn batch(&self) -> (Vec<u32>, Vec<u32>) {
        let mut state = 1u64;
        let mut random = |bound: usize| {
            // Constants of Knuth's MMIX; the low bits of such a generator are not random.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % bound as u32
        };
        let ids = (0..self.batch * self.sequence).map(|_| random(self.shape.vocabulary)).collect();
        let labels = (0..self.batch).map(|_| random(CLASSES)).collect();
        (ids, labels)
    }

    /// Times steps and prints the record. A step returns its loss, after its optimizer is done. The record's version is
    /// the version of the package `library` in Cargo.lock.
    pub fn measure(&self, library: &str, backend: &str, mut step: impl FnMut() -> Result<f32>) -> Result<()> {
        let (mut seconds, mut losses) = (Vec::new(), Vec::new());
        for _ in 0..WARM_UP + self.steps {
            let start = Instant::now();
            losses.push(black_box(step()?));
            seconds.push(start.elapsed().as_secs_f64());
        }
        let median = median(seconds.split_off(WARM_UP));
        let record = serde_json::json!({
            "library": library,
            "version": version(library)?,
            "backend": backend,
            "model": self.shape.name,
            "batch": self.batch,
            "sequence": self.sequence,
            "threads": self.threads,
            "step_s": median,
            "tokens_per_s": (self.batch * self.sequence) as f64 / median,
            "peak_rss_bytes": peak_resident_bytes()?,
            "loss_first": losses.first(),
            "loss": losses.last(),
        });
        println!("{record}");
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// The version of a package that this program is built with.
fn version(package: &str) -> Result<&'static str> {
    let lock = include_str!("../Cargo.lock");
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{package}\""));
    let version = lines.nth(1).and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    Ok(version.ok_or_else(|| format!("Cargo.lock has no package {package}"))?)
}

/// The kernel's count of the process's peak.
fn peak_resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    Ok(peak.ok_or("/proc/self/status has no VmHWM")?.parse::<u64>()? << 10)
}
