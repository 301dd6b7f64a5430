//! Blocks with several streams, passes through a list of them with any choice of what is wanted, frozen and looked at,
//! and their gradients: for tests that compare ways of running a list.
#![allow(dead_code)]

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::Activation;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, Recompute, RunOptions};
use bmtrain_dist::nn::{Linear, LinearOptions};
use bmtrain_dist::param::{BuilderOptions, Init, Param};
use bmtrain_dist::shard::Sharding;
use bmtrain_dist::{Block, Builder, Parameters, Result, TransformerBlockList};
use std::rc::Rc;

pub const ROWS: usize = 3;
pub const SIZE: usize = 4;
pub const BLOCKS: usize = 4;

/// Two streams that feed each other, and factors that pass through unchanged.
pub type Streams = (Var, Var, Var);

/// `x += dropout(gelu(left y) * shared)`, `y += factors * right x`.
pub struct Pair {
    left: Linear,
    right: Linear,
}

impl Pair {
    pub fn new(b: &Builder) -> Result<Self> {
        let linear = |name: &str| Linear::new(&b.at(name), LinearOptions::new(SIZE, SIZE, true, Init::normal(0.7)));
        Ok(Pair { left: linear("left")?, right: linear("right")? })
    }
}

impl Block for Pair {
    type Carry = Streams;
    type Shared = Var;
    type Cache = ();

    fn forward(&self, (x, y, factors): Streams, shared: &Var, _: Option<&mut ()>, cx: &mut Ctx) -> Result<Streams> {
        let term = self.left.forward_activated(&y, Activation::Gelu, cx)?; // [R, D]
        let dropout = cx.dropout("term", 0.2)?;
        let term = ops::dropout(cx, &ops::mul(cx, &term, shared)?, dropout)?; // [R, D]
        let x = ops::add(cx, &x, &term)?; // [R, D]
        let y = ops::add(cx, &y, &ops::mul(cx, &self.right.forward(&x, cx)?, &factors)?)?; // [R, D]
        Ok((x, y, factors))
    }
}

/// Options of one pass.
#[derive(Debug, Clone)]
pub struct Case {
    /// Whether a gradient of x, y and of what is shared is asked for.
    pub wanted: [bool; 3],
    pub frozen: Vec<usize>,
    /// Whether the loss looks at what leaves the last block.
    pub last: bool,
    /// The blocks before which the loss looks at the streams.
    pub hidden: Vec<usize>,
}

/// All values and gradients of a pass; what got no gradient is empty.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub loss: f32,
    pub gradients: Vec<(String, Vec<f32>)>,
}

pub enum Way {
    List,
    Loop,
}

pub struct Setting<B> {
    pub device: Device,
    pub parameters: Parameters,
    pub blocks: TransformerBlockList<B>,
}

impl<B: Block<Carry = Streams, Shared = Var, Cache = ()> + 'static> Setting<B> {
    pub fn new(
        recompute: Recompute,
        sharding: Sharding,
        make: impl FnOnce(&Builder, BlockOptions) -> Result<TransformerBlockList<B>>,
    ) -> Self {
        let device = Device::cpu(1).unwrap();
        let builder = Builder::new(&device, BuilderOptions { seed: 8, sharding, ..BuilderOptions::default() });
        let blocks = make(&builder, BlockOptions::from(recompute)).unwrap();
        assert_eq!(blocks.len(), BLOCKS);
        Setting { device, parameters: builder.finish(), blocks }
    }

    pub fn tensor(&self, salt: f32) -> Tensor {
        let values: Vec<f32> = (0..ROWS * SIZE).map(|i| (i as f32 * 0.83 + salt).sin()).collect();
        Tensor::from_slice_in(&self.device, [ROWS, SIZE], &values, Segment::Data).unwrap()
    }

    pub fn blocks(&self, way: &Way, carry: Streams, shared: &Var, cx: &mut Ctx) -> (Streams, Vec<Streams>) {
        match way {
            Way::List => {
                let options = RunOptions { range: 0..BLOCKS, caches: None, return_hidden: true };
                let output = self.blocks.run(carry, shared, options, cx).unwrap();
                (output.carry, output.hidden)
            }
            Way::Loop => {
                let (mut carry, mut hidden) = (carry, Vec::new());
                for (index, block) in self.blocks.iter().enumerate() {
                    hidden.push(carry.clone());
                    carry = cx.at_index(index, |cx| block.forward(carry, shared, None, cx)).unwrap();
                }
                (carry, hidden)
            }
        }
    }

    pub fn pass(&self, way: Way, case: &Case) -> Outcome {
        for param in &self.parameters {
            // Parameters outside of blocks are always trained.
            let block = param.name().split('.').nth(1).and_then(|number| number.parse().ok());
            param.set_trainable(block.is_none_or(|block| !case.frozen.contains(&block)));
        }
        self.parameters.clear_grads();
        let mut cx = Ctx::training(&self.device, Randomness { seed: 4, step: 2, micro_batch: 0 });
        let tape = cx.tape().unwrap().clone();
        let input = |index: usize| match case.wanted[index] {
            true => tape.input(self.tensor(index as f32)),
            false => Var::constant(self.tensor(index as f32)),
        };
        let inputs = [input(0), input(1), input(2)];
        let [x, y, shared] = inputs.clone();
        let (last, hidden) = self.blocks(&way, (x, y, Var::constant(self.tensor(5.0))), &shared, &mut cx);
        let seen = case.hidden.iter().map(|&block| &hidden[block]).chain(case.last.then_some(&last));
        let mut loss = Var::constant(Tensor::full_in(&self.device, [1], DType::F32, 0.0, Segment::Data).unwrap());
        for (salt, var) in seen.flat_map(|(x, y, _)| [x, y]).enumerate() {
            let weights = Var::constant(self.tensor(10.0 + salt as f32));
            loss = ops::add(&cx, &loss, &ops::sum(&cx, &ops::mul(&cx, var, &weights).unwrap()).unwrap()).unwrap();
        }
        let one = Tensor::full_in(&self.device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
        let wanted: Vec<&Var> = inputs.iter().collect();
        let read = |grad: Option<Tensor>| grad.map(|grad| grad.to_vec::<f32>().unwrap()).unwrap_or_default();
        let grads = cx.take_tape().unwrap().backward(&self.device, vec![(loss.clone(), one)], &wanted).unwrap();
        let inputs = ["x", "y", "shared"].map(String::from).into_iter().zip(grads.into_iter().map(read));
        self.parameters.flats().iter().for_each(|flat| flat.finish_step().unwrap());
        let params = self.parameters.iter().map(|param| (param.name().to_owned(), self.gradient(param)));
        let params: Vec<(String, Vec<f32>)> = params.collect();
        self.parameters.release();
        Outcome { loss: loss.value().item().unwrap(), gradients: inputs.chain(params).collect() }
    }

    /// The full gradient of a parameter after a step's reduction, the mean over the ranks, which all did the same.
    fn gradient(&self, param: &Param) -> Vec<f32> {
        let (flat, index) = param.place().unwrap();
        let Some(reduced) = flat.reduced().filter(|_| flat.has_grad(index)) else {
            return Vec::new();
        };
        let whole = flat.gather_state(&reduced).unwrap();
        let span = flat.layout().spans()[index];
        let sum: Vec<f32> = whole.tensor(span.start, [span.len]).unwrap().to_vec().unwrap();
        // As many equal terms as a power of two: nothing is rounded.
        let ranks = flat.sharding().ranks.size() as f32;
        sum.into_iter().map(|value| value / ranks).collect()
    }
}

/// Agreement demanded of two ways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Agreement {
    /// To the last bit; but for what is shared, as the list rounds the term of each block before it adds it, and a
    /// kernel that adds to what is there does not.
    SameSums,
    /// But for the order of the terms where the loss and the next block both look at a hidden state.
    OtherOrder,
}

/// Asserts that both sides agree; a missing gradient is missing on both. The bound is a few roundings of the largest
/// value.
pub fn assert_agree(got: &Outcome, expected: &Outcome, agreement: Agreement, what: &str) {
    assert_eq!(got.loss.to_bits(), expected.loss.to_bits(), "{what}: loss");
    for ((name, got), (_, expected)) in got.gradients.iter().zip(&expected.gradients) {
        assert_eq!(got.len(), expected.len(), "{what}: {name}");
        if agreement == Agreement::SameSums && name != "shared" {
            assert_eq!(got, expected, "{what}: {name}");
        }
        let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() <= 4e-6 * largest, "{what}: {name}: {got} and {expected}");
        }
    }
}

/// Every choice of what is wanted with some choices of what is frozen.
pub fn cases(last: bool, hidden: &[usize]) -> Vec<Case> {
    let frozen = [vec![], vec![0], vec![BLOCKS - 1], vec![0, 1], vec![1, 2], (0..BLOCKS).collect()];
    let case = |wanted: usize, frozen: &Vec<usize>| Case {
        wanted: [0, 1, 2].map(|bit| wanted >> bit & 1 == 1),
        frozen: frozen.clone(),
        last,
        hidden: hidden.to_vec(),
    };
    (0..8).flat_map(|wanted| frozen.iter().map(move |frozen| case(wanted, frozen))).collect()
}

/// Four blocks of their own.
pub fn pairs(b: &Builder, options: BlockOptions) -> Result<TransformerBlockList<Pair>> {
    TransformerBlockList::build(&b.at("blocks"), BLOCKS, options, |_, b| Pair::new(b))
}

/// Two blocks, each in two places, neighbours and not.
pub fn repeated(b: &Builder, options: BlockOptions) -> Result<TransformerBlockList<Pair>> {
    TransformerBlockList::build(&b.at("blocks"), 2, options, |_, b| Pair::new(b))?.in_order(&[0, 1, 1, 0])
}

/// A block that also uses a layer that was declared outside of blocks.
pub struct Rooted {
    pair: Pair,
    root: Rc<Linear>,
}

impl Block for Rooted {
    type Carry = Streams;
    type Shared = Var;
    type Cache = ();

    fn forward(&self, (x, y, factors): Streams, shared: &Var, _: Option<&mut ()>, cx: &mut Ctx) -> Result<Streams> {
        let x = ops::add(cx, &x, &self.root.forward(&y, cx)?)?; // [R, D]
        self.pair.forward((x, y, factors), shared, None, cx)
    }
}

/// Four blocks that share a layer outside of blocks.
pub fn rooted(b: &Builder, options: BlockOptions) -> Result<TransformerBlockList<Rooted>> {
    let linear = LinearOptions::new(SIZE, SIZE, false, Init::normal(0.7));
    let root = Rc::new(Linear::new(&b.at("root"), linear)?);
    let block = |_: usize, b: &Builder| Ok(Rooted { pair: Pair::new(b)?, root: Rc::clone(&root) });
    TransformerBlockList::build(&b.at("blocks"), BLOCKS, options, block)
}
