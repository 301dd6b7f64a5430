//! Decoding through a block list with a cache for each block: token by token, in pieces, in two ranges of blocks.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, AttentionOptions};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::block::{BlockOptions, ListOutput, RunOptions};
use bmtrain_dist::nn::{Linear, LinearOptions, Norm, NormOptions};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Block, Builder, Result, TransformerBlockList};
use std::ops::Range;

const BATCH: usize = 2;
const LENGTH: usize = 7;
const SIZE: usize = 12;
const HEADS: usize = 3;
const BLOCKS: usize = 4;

/// Keys and values of all positions so far, each `[B, S, D]`.
#[derive(Debug, Default, Clone)]
struct Cache {
    seen: Option<[Var; 2]>,
}

impl Cache {
    fn len(&self) -> usize {
        self.seen.as_ref().map_or(0, |[keys, _]| keys.shape().dims()[1])
    }

    /// The cached keys and values, extended by the next positions.
    fn append(&mut self, next: [Var; 2], cx: &Ctx) -> Result<[Var; 2]> {
        let joined = match self.seen.take() {
            None => next,
            Some([keys, values]) => [join(&keys, &next[0], cx)?, join(&values, &next[1], cx)?],
        };
        Ok(self.seen.insert(joined).clone())
    }
}

/// `[B, S, D]` and `[B, L, D]` to `[B, S + L, D]`.
fn join(before: &Var, next: &Var, cx: &Ctx) -> Result<Var> {
    let [batch, seen, size] = before.dims("join")?;
    let [_, more, _] = next.dims("join")?;
    let (before, next) = (before.reshape([batch, seen * size])?, next.reshape([batch, more * size])?);
    Ok(ops::concat_last(cx, &[&before, &next])?.reshape([batch, seen + more, size])?)
}

/// Causal self-attention and a feed-forward, both pre-norm.
struct Decoder {
    norm: Norm,
    qkv: [Linear; 3],
    out: Linear,
    ffn_norm: Norm,
    w_in: Linear,
    w_out: Linear,
}

impl Decoder {
    fn new(b: &Builder) -> Result<Self> {
        let linear = |name: &str, inputs, outputs| {
            Linear::new(&b.at(name), LinearOptions::new(inputs, outputs, true, Init::normal(0.5)))
        };
        let norm = |name: &str| Norm::new(&b.at(name), NormOptions::layer(SIZE, 1e-5));
        Ok(Decoder {
            norm: norm("norm")?,
            qkv: [linear("q", SIZE, SIZE)?, linear("k", SIZE, SIZE)?, linear("v", SIZE, SIZE)?],
            out: linear("out", SIZE, SIZE)?,
            ffn_norm: norm("ffn_norm")?,
            w_in: linear("w_in", SIZE, 20)?,
            w_out: linear("w_out", 20, SIZE)?,
        })
    }
}

impl Block for Decoder {
    type Carry = Var;
    type Shared = ();
    type Cache = Cache;

    fn forward(&self, x: Var, _: &(), cache: Option<&mut Cache>, cx: &mut Ctx) -> Result<Var> {
        let normed = self.norm.forward(&x, cx)?; // [B, L, D]
        let [q, k, v] = &self.qkv;
        let q = q.forward(&normed, cx)?; // [B, L, D]
        let next = [k.forward(&normed, cx)?, v.forward(&normed, cx)?]; // [B, L, D]
        let [k, v] = match cache {
            Some(cache) => cache.append(next, cx)?, // [B, S, D]
            None => next,
        };
        let options = AttentionOptions { causal: true, ..AttentionOptions::new(HEADS, SIZE / HEADS) };
        let context = ops::attention(cx, &q, &k, &v, &options)?; // [B, L, D]
        let x = ops::add(cx, &x, &self.out.forward(&context, cx)?)?; // [B, L, D]
        let inner = self.w_in.forward_activated(&self.ffn_norm.forward(&x, cx)?, Activation::Gelu, cx)?; // [B, L, F]
        Ok(ops::add(cx, &x, &self.w_out.forward(&inner, cx)?)?) // [B, L, D]
    }
}

struct Setting {
    device: Device,
    blocks: TransformerBlockList<Decoder>,
    x: Tensor,
}

impl Setting {
    fn new() -> Self {
        let device = Device::cpu(1).unwrap();
        let builder = Builder::new(&device, BuilderOptions { seed: 3, ..BuilderOptions::default() });
        let build = |_: usize, b: &Builder| Decoder::new(b);
        let blocks =
            TransformerBlockList::build(&builder.at("blocks"), BLOCKS, BlockOptions::default(), build).unwrap();
        let values: Vec<f32> = (0..BATCH * LENGTH * SIZE).map(|i| (i as f32 * 0.71).sin()).collect();
        let x = Tensor::from_slice_in(&device, [BATCH, LENGTH, SIZE], &values, Segment::Data).unwrap();
        Setting { device, blocks, x }
    }

    /// Positions of the input, `[B, len, D]`.
    fn positions(&self, range: Range<usize>) -> Var {
        let x = Var::constant(self.x.reshape([BATCH, LENGTH * SIZE]).unwrap());
        let columns = range.start * SIZE..range.end * SIZE;
        let part = ops::slice_last(&Ctx::inference(&self.device), &x, columns).unwrap();
        part.reshape([BATCH, range.len(), SIZE]).unwrap()
    }

    fn run(&self, x: Var, range: Range<usize>, caches: Option<&mut [Cache]>, hidden: bool) -> Result<ListOutput<Var>> {
        let options = RunOptions { range, caches, return_hidden: hidden };
        self.blocks.run(x, &(), options, &mut Ctx::inference(&self.device))
    }

    /// Result of all positions at once, position by position.
    fn whole(&self) -> Vec<Vec<f32>> {
        by_position(&self.run(self.positions(0..LENGTH), 0..BLOCKS, None, false).unwrap().carry)
    }
}

/// Values of each position, over the batch.
fn by_position(y: &Var) -> Vec<Vec<f32>> {
    let [batch, length, size] = y.dims("test").unwrap();
    let values = y.value().to_vec::<f32>().unwrap();
    let rows = |position: usize| {
        (0..batch).flat_map(move |b| (0..size).map(move |column| (b * length + position) * size + column))
    };
    (0..length).map(|position| rows(position).map(|i| values[i]).collect()).collect()
}

/// Not to the last bit: a product's path, and with it the order of its sums, follows from its number of rows, which is
/// another one when a position comes alone. (With 512-bit vectors these sizes happen to be equal.) The bound is some
/// sixteen roundings of an f32, for sums of twenty terms through eight layers.
fn assert_close(what: &str, got: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (position, (got, expected)) in got.iter().zip(expected).enumerate() {
        for (got, expected) in got.iter().zip(expected) {
            let bound = 2e-6 * (1.0 + expected.abs());
            assert!((got - expected).abs() <= bound, "{what}, position {position}: {got} and {expected}");
        }
    }
}

#[test]
fn decoding_through_caches_in_any_pieces_equals_the_whole_forward_pass() {
    let setting = Setting::new();
    let expected = setting.whole();
    // Later positions have to matter, or a cache that is never read would pass.
    let alone = by_position(&setting.run(setting.positions(LENGTH - 1..LENGTH), 0..BLOCKS, None, false).unwrap().carry);
    let last = &expected[LENGTH - 1];
    assert!(alone[0].iter().zip(last).any(|(alone, with)| (alone - with).abs() > 0.1));
    for pieces in [vec![1; LENGTH], vec![LENGTH], vec![4, 1, 1, 1], vec![1, 3, 3]] {
        let mut caches = vec![Cache::default(); BLOCKS];
        let (mut got, mut start) = (Vec::new(), 0);
        for piece in &pieces {
            let x = setting.positions(start..start + piece);
            let y = setting.run(x, 0..BLOCKS, Some(&mut caches), false).unwrap().carry;
            got.extend(by_position(&y));
            start += piece;
            assert!(caches.iter().all(|cache| cache.len() == start), "every block remembers every position once");
        }
        assert_close(&format!("{pieces:?}"), &got, &expected);
    }
}

#[test]
fn ranges_of_blocks_with_their_own_caches_equal_all_blocks_at_once() {
    let setting = Setting::new();
    let expected = setting.whole();
    for cut in 0..=BLOCKS {
        let mut caches = vec![Cache::default(); BLOCKS];
        let (first, second) = caches.split_at_mut(cut);
        let mut got = Vec::new();
        for position in 0..LENGTH {
            let x = setting.positions(position..position + 1);
            let between = setting.run(x, 0..cut, Some(&mut *first), false).unwrap().carry;
            got.extend(by_position(&setting.run(between, cut..BLOCKS, Some(&mut *second), false).unwrap().carry));
        }
        assert_close(&format!("cut after {cut}"), &got, &expected);
    }
}

#[test]
fn hidden_states_of_a_cached_pass_are_what_entered_each_block() {
    let setting = Setting::new();
    let whole = setting.run(setting.positions(0..LENGTH), 0..BLOCKS, None, true).unwrap().hidden;
    assert_eq!(whole.len(), BLOCKS);
    let mut caches = vec![Cache::default(); BLOCKS];
    let mut got = vec![Vec::new(); BLOCKS];
    for position in 0..LENGTH {
        let x = setting.positions(position..position + 1);
        let output = setting.run(x, 0..BLOCKS, Some(&mut caches), true).unwrap();
        for (got, hidden) in got.iter_mut().zip(&output.hidden) {
            got.extend(by_position(hidden));
        }
    }
    for (block, (got, whole)) in got.iter().zip(&whole).enumerate() {
        assert_close(&format!("block {block}"), got, &by_position(whole));
    }
}

#[test]
fn caches_with_a_tape_in_another_number_or_for_blocks_outside_are_refused_untouched() {
    let setting = Setting::new();
    let x = || setting.positions(0..1);
    let refused = |range: Range<usize>, count: usize, cx: &mut Ctx| {
        let mut caches = vec![Cache::default(); count];
        let options = RunOptions { range, caches: Some(&mut caches[..]), return_hidden: false };
        let error = setting.blocks.run(x(), &(), options, cx).unwrap_err().to_string();
        assert!(caches.iter().all(|cache| cache.len() == 0), "{error}");
        error
    };
    let mut inference = Ctx::inference(&setting.device);
    assert!(refused(0..BLOCKS, BLOCKS - 1, &mut inference).contains("3 caches for 4 blocks"));
    assert!(refused(0..BLOCKS, BLOCKS + 1, &mut inference).contains("5 caches for 4 blocks"));
    assert!(refused(1..3, BLOCKS, &mut inference).contains("4 caches for 2 blocks"));
    assert!(refused(0..BLOCKS, 0, &mut inference).contains("0 caches for 4 blocks"));
    assert!(refused(2..BLOCKS + 1, 3, &mut inference).contains("2..5 of 4"));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 3..1;
    assert!(refused(reversed, 0, &mut inference).contains("3..1 of 4"));
    let mut training = Ctx::training(&setting.device, Randomness::default());
    assert!(refused(0..BLOCKS, BLOCKS, &mut training).contains("without a tape"));
    // A pass in training mode without a tape may have caches.
    training.take_tape();
    let mut caches = vec![Cache::default(); BLOCKS];
    let options = RunOptions { range: 0..BLOCKS, caches: Some(&mut caches[..]), return_hidden: false };
    setting.blocks.run(x(), &(), options, &mut training).unwrap();
    assert!(caches.iter().all(|cache| cache.len() == 1));
}
