//! Speed of attention on the CPU: milliseconds, operations per second and share of the measured peak.
//!
//! One line a shape: `name forward_ms backward_ms forward% backward%`, of the fastest runs. Operations are counted as
//! two products forward and five backward, a multiply-add as two, nothing subtracted for causal tiles that are skipped.
//! Of packed documents the pairs within a document count.

use anyhow::Result;
use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::cpu::CpuOptions;
use bmtrain_core::cpu::gemm::measure_peak;
use bmtrain_core::kernel::{
    AttentionBackward, AttentionForward, AttentionInputs, AttentionShape, Distribution, Dropout, FillRandom, Heads,
    HeadsMut, Mask,
};
use bmtrain_core::ops::Documents;
use bmtrain_core::philox::Key;
use bmtrain_core::{DType, Device, Segment, Storage};
use bmtrain_dist::launch::cpu_options;
use clap::Args;
use std::time::Duration;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Threads.
    #[arg(default_value_t = 2)]
    threads: usize,
    /// Seconds of the runs of a shape.
    #[arg(default_value_t = 1.0)]
    seconds: f64,
    /// Names of the shapes; by default all.
    only: Vec<String>,
}

struct Case {
    name: &'static str,
    shape: AttentionShape,
    causal: bool,
    dropout: f32,
    dtype: DType,
    /// Length of the documents that a sequence is packed with.
    document: Option<usize>,
}

fn case(name: &'static str, sizes: [usize; 5], causal: bool, dropout: f32, dtype: DType) -> Case {
    let [batch, heads, kv_heads, length, head_size] = sizes;
    Case {
        name,
        shape: AttentionShape { batch, heads, kv_heads, queries: length, keys: length, head_size },
        causal,
        dropout,
        dtype,
        document: None,
    }
}

fn packed(name: &'static str, sizes: [usize; 5], document: usize) -> Case {
    Case { document: Some(document), ..case(name, sizes, true, 0.0, DType::F32) }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let Options { threads, seconds, only } = options;
    let (budget, cpu) = (Duration::try_from_secs_f64(*seconds)?, cpu_options(*threads)?);
    let device = Device::cpu_with(cpu)?;
    let peak = measure_peak(*threads, cpu.instruction_set);
    println!("peak {:.1} GFLOP/s with {threads} threads, {}", peak / 1e9, cpu.instruction_set);
    for case in [
        case("bert-base", [8, 12, 12, 128, 64], false, 0.0, DType::F32),
        case("bert-base-dropout", [8, 12, 12, 128, 64], false, 0.1, DType::F32),
        case("bert-base-bf16", [8, 12, 12, 128, 64], false, 0.0, DType::BF16),
        case("minilm-dropout", [16, 12, 12, 128, 32], false, 0.1, DType::F32),
        case("odd-dropout", [8, 12, 12, 117, 64], false, 0.1, DType::F32),
        case("h80", [4, 12, 12, 256, 80], false, 0.0, DType::F32),
        case("h128", [2, 8, 8, 512, 128], false, 0.0, DType::F32),
        case("long", [1, 12, 12, 2048, 64], false, 0.0, DType::F32),
        case("long-causal", [1, 12, 12, 2048, 64], true, 0.0, DType::F32),
        case("grouped-causal", [1, 16, 4, 1024, 64], true, 0.0, DType::F32),
        case("documents-apart", [16, 12, 12, 128, 64], true, 0.0, DType::F32),
        packed("documents-packed", [1, 12, 12, 2048, 64], 128),
    ] {
        if only.is_empty() || only.iter().any(|name| name == case.name) {
            time(&device, &case, cpu, budget)?;
        }
    }
    Ok(())
}

fn time(device: &Device, case: &Case, cpu: CpuOptions, budget: Duration) -> Result<()> {
    let AttentionShape { batch, heads, kv_heads, queries: length, head_size, .. } = case.shape;
    let (width, kv_width) = (heads * head_size, kv_heads * head_size);
    let (row, rows) = (width + 2 * kv_width, batch * length);
    let random = |len: usize, name: &str| -> Result<Storage> {
        let storage = Storage::empty(device, len, case.dtype, Segment::Activations)?;
        let distribution = Distribution::Normal(0.0, 1.0);
        device.launch(FillRandom {
            distribution,
            key: Key::new(1, name),
            offset: 0,
            out: storage.view_mut(0..len)?,
        })?;
        Ok(storage)
    };
    let (qkv, dqkv) = (random(rows * row, "qkv")?, random(rows * row, "dqkv")?);
    let (out, dout) = (random(rows * width, "out")?, random(rows * width, "dout")?);
    let lse = Storage::zeros(device, rows * heads, DType::F32, Segment::Activations)?;
    let delta = Storage::zeros(device, rows * heads, DType::F32, Segment::Activations)?;
    let dropout = Dropout::new(case.dropout, Key::new(1, "attention"), 0, 0)?;
    let starts = [0, width, width + kv_width];
    let read = |i: usize| -> Result<Heads<'_>> {
        Ok(Heads { view: qkv.view(starts[i]..rows * row)?, batch_stride: length * row, row_stride: row })
    };
    let write = |i: usize| -> Result<HeadsMut<'_>> {
        let end = (rows - 1) * row + [width, row - kv_width, row][i];
        Ok(HeadsMut { view: dqkv.view_mut(starts[i]..end)?, batch_stride: length * row, row_stride: row, add: false })
    };
    let (batch_stride, row_stride) = (length * width, width);
    let scale = 1.0 / (head_size as f32).sqrt();
    let document = case.document.unwrap_or(length);
    let starts: Vec<u32> = (0..rows).map(|row| (row % length / document * document) as u32).collect();
    let documents = Documents::new(device, [batch, length], &starts)?;

    let inputs = || -> Result<AttentionInputs<'_>> {
        Ok(AttentionInputs {
            shape: case.shape,
            scale,
            soft_cap: None,
            causal: case.causal,
            window: None,
            mask: Mask::None,
            documents: case.document.map(|_| documents.bounds().view()).transpose()?,
            bias: None,
            dropout,
            q: read(0)?,
            k: read(1)?,
            v: read(2)?,
        })
    };
    let forward = || -> Result<()> {
        device.launch(AttentionForward {
            inputs: inputs()?,
            out: HeadsMut { view: out.view_mut(0..rows * width)?, batch_stride, row_stride, add: false },
            lse: lse.view_mut(0..rows * heads)?,
        })?;
        Ok(device.sync()?)
    };
    let backward = || -> Result<()> {
        device.launch(AttentionBackward {
            inputs: inputs()?,
            out: Heads { view: out.view(0..rows * width)?, batch_stride, row_stride },
            lse: lse.view(0..rows * heads)?,
            dout: Heads { view: dout.view(0..rows * width)?, batch_stride, row_stride },
            delta: delta.view_mut(0..rows * heads)?,
            dq: write(0)?,
            dk: write(1)?,
            dv: write(2)?,
            dbias: None,
        })?;
        Ok(device.sync()?)
    };
    let rounds = Rounds::within(0, 5, budget);
    let phases = measure(rounds, || Ok::<_, anyhow::Error>([seconds(forward)?, seconds(backward)?]))?;
    let product = 2.0 * (batch * heads * length * document * head_size) as f64;
    let peak = measure_peak(cpu.threads, cpu.instruction_set);
    let [forward, backward] = phases.map(|phase| phase.best());
    println!(
        "{} {:.3} {:.3} {:.0}% {:.0}%",
        case.name,
        forward * 1e3,
        backward * 1e3,
        100.0 * 2.0 * product / forward / peak,
        100.0 * 5.0 * product / backward / peak,
    );
    Ok(())
}
