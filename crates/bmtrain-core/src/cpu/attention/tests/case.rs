//! One call of both passes as a test sees it: sizes and rules in, vectors of f32 out.

use super::super::tiles::Settings;
use super::super::{backward, forward};
use crate::dtype::{DType, Float};
use crate::kernel::{
    Arguments, AttentionBackward, AttentionForward, AttentionInputs, AttentionShape, Bias, Dest, Dropout, Heads,
    HeadsMut, Kernel, Mask,
};
use crate::lane::Lane;
use crate::ops::Documents;
use crate::philox::{Key, block, unit};
use crate::threads::Threads;
use crate::{Device, Segment, Storage};
use half::{bf16, f16};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Masking {
    None,
    Padding,
    Full,
    /// Padding that leaves nothing.
    Nothing,
    /// A full mask that leaves nothing.
    NothingFull,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) head_size: usize,
    pub(super) mask: Masking,
    /// Whether sequences are packed documents, with bounds of their own in each; as many keys as queries.
    pub(super) packed: bool,
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
    pub(super) soft_cap: Option<f32>,
    /// Whether there is a bias, and one per sequence.
    pub(super) bias: Option<bool>,
    /// Whether the bias has a row for every query.
    pub(super) per_query: bool,
    pub(super) dropout: f32,
    pub(super) dtype: DType,
    /// Queries, keys and values side by side in one matrix, and their gradients too.
    pub(super) fused: bool,
    /// Gradients are added to what is there.
    pub(super) add: bool,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            batch: 2,
            heads: 2,
            kv_heads: 2,
            queries: 11,
            keys: 13,
            head_size: 16,
            mask: Masking::None,
            packed: false,
            causal: false,
            window: None,
            soft_cap: None,
            bias: None,
            per_query: true,
            dropout: 0.0,
            dtype: DType::F32,
            fused: false,
            add: false,
        }
    }
}

impl Case {
    pub(super) fn shape(&self) -> AttentionShape {
        let Case { batch, heads, kv_heads, queries, keys, head_size, .. } = *self;
        AttentionShape { batch, heads, kv_heads, queries, keys, head_size }
    }

    /// The first token of each token's document: documents of 1, 4, 20, 37 and 60 tokens in turn.
    pub(super) fn starts(&self) -> Vec<u32> {
        let of_sequence = |b: usize| {
            let mut lengths = [1, 4, 20, 37, 60].into_iter().cycle().skip(b + 1);
            let (mut start, mut end) = (0, 0);
            (0..self.queries).map(move |at| {
                if at == end {
                    (start, end) = (at, at + lengths.next().unwrap());
                }
                start as u32
            })
        };
        (0..self.batch).flat_map(of_sequence).collect()
    }

    pub(super) fn dbias_len(&self) -> usize {
        self.bias.map_or(0, |per_sequence| self.shape().bias_len(per_sequence, true))
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.head_size as f32).sqrt()
    }

    pub(super) fn dropout(&self) -> Option<Dropout> {
        Dropout::new(self.dropout, Key::new(3, "attention"), 5, 1).unwrap()
    }
}

pub(super) fn numbers(len: usize, stream: u32) -> Vec<f32> {
    (0..len).map(|i| 2.0 * unit(block(Key([stream, 7]), [i as u32, 0, 0, 0])[0]) - 1.0).collect()
}

/// Inputs, rounded to the case's type; `[B, L, N, H]` without gaps.
#[derive(Debug, Clone)]
pub(super) struct Data {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) dout: Vec<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) mask: Vec<u8>,
    /// Values of the gradients before the call.
    pub(super) old: f32,
}

impl Data {
    pub(super) fn new(case: &Case) -> Self {
        let Case { batch, heads, kv_heads, queries, keys, head_size, .. } = *case;
        let round = |values: Vec<f32>, factor: f32| -> Vec<f32> {
            values.into_iter().map(|x| narrow(case.dtype, factor * x)).collect()
        };
        let (rows, kv_rows) = (batch * queries * heads * head_size, batch * keys * kv_heads * head_size);
        let len = case.bias.map_or(0, |per_sequence| case.shape().bias_len(per_sequence, case.per_query));
        let mask = match case.mask {
            Masking::None => vec![],
            // Keys missing inside and at both ends, other ones in each sequence.
            Masking::Padding => {
                let seen = |i: usize| {
                    let (b, s) = (i / keys, i % keys);
                    s >= b * (keys / 5) && s < keys - keys / 4 + b && s % 7 != 5
                };
                (0..batch * keys).map(|i| u8::from(seen(i))).collect()
            }
            Masking::Full => numbers(batch * queries * keys, 11).iter().map(|x| u8::from(*x > -0.4)).collect(),
            Masking::Nothing => vec![0; batch * keys],
            Masking::NothingFull => vec![0; batch * queries * keys],
        };
        Data {
            q: round(numbers(rows, 1), 2.0),
            k: round(numbers(kv_rows, 2), 2.0),
            v: round(numbers(kv_rows, 3), 1.0),
            dout: round(numbers(rows, 4), 1.0),
            bias: round(numbers(len, 5), 1.5),
            mask,
            old: 0.25,
        }
    }
}

fn narrow(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::F16 => Float::to_f32(f16::from_f32(x)),
        DType::BF16 => Float::to_f32(bf16::from_f32(x)),
        _ => x,
    }
}

/// Outputs, laid out as [`Data`].
#[derive(Debug, Clone, Default)]
pub(super) struct Results<T = f32> {
    pub(super) out: Vec<T>,
    pub(super) lse: Vec<T>,
    pub(super) dq: Vec<T>,
    pub(super) dk: Vec<T>,
    pub(super) dv: Vec<T>,
    pub(super) dbias: Vec<T>,
}

impl<T> Results<T> {
    pub(super) fn all(&self) -> [(&'static str, &[T]); 6] {
        let Results { out, lse, dq, dk, dv, dbias } = self;
        [("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv), ("dbias", dbias)]
    }
}

impl Results {
    /// Beside what was expected; rows without a key are left out of `lse`, after they were compared.
    pub(super) fn pairs<'a>(&'a self, expected: &'a Results<f64>) -> Vec<(&'static str, &'a [f32], &'a [f64])> {
        let mut pairs = vec![];
        for ((name, got), (_, expected)) in self.all().into_iter().zip(expected.all()) {
            if name == "lse" {
                for (got, expected) in got.iter().zip(expected) {
                    let close = (f64::from(*got) - expected).abs() < 1e-5;
                    assert!(
                        close || (*got == f32::NEG_INFINITY && *expected == f64::NEG_INFINITY),
                        "lse {got}, {expected}"
                    );
                }
            } else {
                pairs.push((name, got, expected));
            }
        }
        pairs
    }
}

/// A matrix of rows in device memory; `[B, rows]` rows with gaps.
struct HeadStorage {
    storage: Storage,
    rows: usize,
    batch: usize,
    row_stride: usize,
}

impl HeadStorage {
    fn new(device: &Device, case: &Case, rows: usize, row_stride: usize) -> Self {
        // One row more after each sequence, so that the batch stride is not rows times row stride.
        let storage =
            Storage::empty(device, case.batch * (rows + 1) * row_stride, case.dtype, Segment::Activations).unwrap();
        let place = HeadStorage { storage, rows, batch: case.batch, row_stride };
        place.set(&vec![777.0; place.storage.len()]);
        place
    }

    fn set(&self, values: &[f32]) {
        let device = self.storage.device();
        let to = self.storage.view_mut(0..self.storage.len()).unwrap();
        let backend = device.backend();
        match self.storage.dtype() {
            DType::F16 => {
                let values: Vec<f16> = values.iter().map(|x| f16::from_f32(*x)).collect();
                backend.upload(bytemuck::cast_slice(&values), to, Lane::Compute).unwrap();
            }
            DType::BF16 => {
                let values: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
                backend.upload(bytemuck::cast_slice(&values), to, Lane::Compute).unwrap();
            }
            _ => backend.upload(bytemuck::cast_slice(values), to, Lane::Compute).unwrap(),
        }
    }

    fn get(&self) -> Vec<f32> {
        let tensor = self.storage.tensor(0, [self.storage.len()]).unwrap();
        match self.storage.dtype() {
            DType::F16 => tensor.to_vec::<f16>().unwrap().into_iter().map(Float::to_f32).collect(),
            DType::BF16 => tensor.to_vec::<bf16>().unwrap().into_iter().map(Float::to_f32).collect(),
            _ => tensor.to_vec::<f32>().unwrap(),
        }
    }

    fn put(&self, start: usize, width: usize, values: &[f32]) {
        let mut all = self.get();
        for (i, row) in values.chunks_exact(width).enumerate() {
            all[self.at(i) + start..][..width].copy_from_slice(row);
        }
        self.set(&all);
    }

    fn take(&self, start: usize, width: usize) -> Vec<f32> {
        let all = self.get();
        (0..self.batch * self.rows).flat_map(|i| all[self.at(i) + start..][..width].to_vec()).collect()
    }

    fn check_gaps(&self, used: usize) {
        let all = self.get();
        let held = narrow(self.storage.dtype(), 777.0);
        for i in 0..self.batch * self.rows {
            assert!(
                all[self.at(i) + used..self.at(i) + self.row_stride].iter().all(|x| *x == held),
                "a gap was written"
            );
        }
    }

    fn at(&self, row: usize) -> usize {
        let (b, l) = (row / self.rows, row % self.rows);
        (b * (self.rows + 1) + l) * self.row_stride
    }

    fn read(&self, start: usize) -> Heads<'_> {
        let (row_stride, batch_stride) = (self.row_stride, (self.rows + 1) * self.row_stride);
        Heads { view: self.storage.view(start..self.storage.len()).unwrap(), batch_stride, row_stride }
    }

    fn write(&self, start: usize, width: usize, add: bool) -> HeadsMut<'_> {
        let (row_stride, batch_stride) = (self.row_stride, (self.rows + 1) * self.row_stride);
        // To the last element of the last row and no further, so that columns beside it stay apart.
        let end = self.storage.len() - 2 * row_stride + start + width;
        HeadsMut { view: self.storage.view_mut(start..end.max(start)).unwrap(), batch_stride, row_stride, add }
    }
}

fn bytes(device: &Device, values: &[u8]) -> Storage {
    let storage = Storage::empty(device, values.len(), DType::U8, Segment::Activations).unwrap();
    let to = storage.view_mut(0..values.len()).unwrap();
    device.backend().upload(values, to, Lane::Compute).unwrap();
    storage
}

fn singles(device: &Device, values: &[f32]) -> Storage {
    let storage = Storage::empty(device, values.len(), DType::F32, Segment::Activations).unwrap();
    let to = storage.view_mut(0..values.len()).unwrap();
    device.backend().upload(bytemuck::cast_slice(values), to, Lane::Compute).unwrap();
    storage
}

fn read_singles(storage: &Storage) -> Vec<f32> {
    storage.tensor(0, [storage.len()]).unwrap().to_vec().unwrap()
}

pub(super) fn run(case: &Case, data: &Data, threads: usize, settings: Settings) -> Results {
    thread_local! {
        static DEVICE: Device = Device::cpu(1).unwrap();
    }
    let device = DEVICE.with(Device::clone);
    let threads = Threads::new(threads).unwrap();
    let Case { queries, keys, .. } = *case;
    let (width, kv_width) = (case.heads * case.head_size, case.kv_heads * case.head_size);
    // q, k and v: together, or apart with gaps between the rows.
    let fused = case.fused.then_some((width + 2 * kv_width + 5, [0, width, width + kv_width]));
    let places = |gradients: bool| -> Vec<HeadStorage> {
        let places = match fused {
            Some((stride, _)) => vec![HeadStorage::new(&device, case, queries, stride)],
            None => [(queries, width), (keys, kv_width), (keys, kv_width)]
                .map(|(rows, width)| HeadStorage::new(&device, case, rows, width + 3))
                .into(),
        };
        let sources = if gradients {
            [&data.q, &data.k, &data.v].map(|x| vec![data.old; x.len()])
        } else {
            [data.q.clone(), data.k.clone(), data.v.clone()]
        };
        for (i, values) in sources.iter().enumerate() {
            let at = fused.map_or(0, |(_, starts)| starts[i]);
            places[i.min(places.len() - 1)].put(at, [width, kv_width, kv_width][i], values);
        }
        places
    };
    let (inputs, gradients) = (places(false), places(true));
    let at = |i: usize| fused.map_or(0, |(_, starts)| starts[i]);
    let of = |places: &[HeadStorage], i: usize| i.min(places.len() - 1);
    let read = |i: usize| inputs[of(&inputs, i)].read(at(i));
    let write = |i: usize| {
        let width = [width, kv_width, kv_width][i];
        gradients[of(&gradients, i)].write(at(i), width, case.add)
    };

    let out = HeadStorage::new(&device, case, queries, width + 1);
    let dout = HeadStorage::new(&device, case, queries, width + 2);
    dout.put(0, width, &data.dout);
    let rows = case.batch * case.heads * queries;
    let (lse, delta) = (singles(&device, &vec![777.0; rows]), singles(&device, &vec![777.0; rows]));
    let mask_bytes = bytes(&device, &data.mask);
    let bias_values =
        HeadStorage { storage: singles(&device, &data.bias), rows: 1, batch: 1, row_stride: data.bias.len() };
    let dbias = singles(&device, &vec![data.old; case.dbias_len()]);
    let mask = || {
        let view = mask_bytes.view(0..data.mask.len()).unwrap();
        match case.mask {
            Masking::None => Mask::None,
            Masking::Padding | Masking::Nothing => Mask::Padding(view),
            Masking::Full | Masking::NothingFull => Mask::Full(view),
        }
    };
    let bias = || {
        case.bias.map(|per_sequence| {
            let view = bias_values.storage.view(0..data.bias.len()).unwrap();
            Bias { view, per_sequence, per_query: case.per_query }
        })
    };
    let packed = case.packed.then(|| Documents::new(&device, [case.batch, queries], &case.starts()).unwrap());
    let documents = || packed.as_ref().map(|documents| documents.bounds().view().unwrap());
    let inputs = AttentionInputs {
        shape: case.shape(),
        scale: case.scale(),
        causal: case.causal,
        window: case.window,
        soft_cap: case.soft_cap,
        mask: mask(),
        documents: documents(),
        bias: bias(),
        dropout: case.dropout(),
        q: read(0),
        k: read(1),
        v: read(2),
    };
    let a = AttentionForward { inputs, out: out.write(0, width, false), lse: lse.view_mut(0..rows).unwrap() };
    a.check().unwrap();
    forward::run(&threads, a, settings).unwrap();
    let a = AttentionBackward {
        inputs,
        out: out.read(0),
        lse: lse.view(0..rows).unwrap(),
        dout: dout.read(0),
        delta: delta.view_mut(0..rows).unwrap(),
        dq: write(0),
        dk: write(1),
        dv: write(2),
        dbias: case.bias.map(|_| Dest { view: dbias.view_mut(0..case.dbias_len()).unwrap(), add: case.add }),
    };
    let kernel = Kernel::from(a);
    kernel.check(device.id(), Lane::Compute).unwrap();
    let Kernel::AttentionBackward(a) = kernel else { unreachable!("made above") };
    backward::run(&threads, a, settings).unwrap();

    out.check_gaps(width);
    match fused {
        Some(_) => gradients[0].check_gaps(width + 2 * kv_width),
        None => gradients.iter().zip([width, kv_width, kv_width]).for_each(|(place, width)| place.check_gaps(width)),
    }
    let gradient = |i: usize| gradients[of(&gradients, i)].take(at(i), [width, kv_width, kv_width][i]);
    Results {
        out: out.take(0, width),
        lse: read_singles(&lse),
        dq: gradient(0),
        dk: gradient(1),
        dv: gradient(2),
        dbias: read_singles(&dbias),
    }
}
