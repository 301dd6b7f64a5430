//! Gradients through a block list against an explicit loop over the same blocks on one tape: whatever needs a gradient,
//! whatever is frozen, whichever hidden states the loss looks at, kept and recomputed.
#![allow(missing_docs, clippy::unwrap_used)]

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::Activation;
use bmtrain_core::wrap::Counting;
use bmtrain_core::{Backend, Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, Recompute, RunOptions};
use bmtrain_dist::nn::{Linear, LinearOptions};
use bmtrain_dist::param::{BuilderOptions, Init, Split};
use bmtrain_dist::{Block, Builder, Bundle, Parameters, Result, TransformerBlockList};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROWS: usize = 3;
const SIZE: usize = 4;
const BLOCKS: usize = 4;

/// Two streams that feed each other, and factors that pass through unchanged.
type Streams = (Var, Var, Var);

/// `x += dropout(gelu(left y) * shared)`, `y += factors * right x`.
struct Pair {
    left: Linear,
    right: Linear,
}

impl Pair {
    fn new(b: &Builder) -> Result<Self> {
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

fn pair(_: usize, b: &Builder) -> Result<Pair> {
    Pair::new(b)
}

/// A block that may stand in a list more than once.
struct Again(Rc<Pair>);

impl Block for Again {
    type Carry = Streams;
    type Shared = Var;
    type Cache = ();

    fn forward(&self, carry: Streams, shared: &Var, _: Option<&mut ()>, cx: &mut Ctx) -> Result<Streams> {
        self.0.forward(carry, shared, None, cx)
    }
}

/// How one pass is made.
#[derive(Debug, Clone)]
struct Case {
    /// Whether a gradient of x, y and of what is shared is asked for.
    wanted: [bool; 3],
    frozen: Vec<usize>,
    /// Whether the loss looks at what leaves the last block.
    last: bool,
    /// The blocks before which the loss looks at the streams.
    hidden: Vec<usize>,
}

/// All values and gradients of a pass; what got no gradient is empty.
#[derive(Debug, PartialEq)]
struct Outcome {
    loss: f32,
    gradients: Vec<(String, Vec<f32>)>,
}

enum Way {
    List,
    Loop,
}

struct Setting<B> {
    device: Device,
    parameters: Parameters,
    blocks: TransformerBlockList<B>,
}

impl<B: Block<Carry = Streams, Shared = Var, Cache = ()> + 'static> Setting<B> {
    fn new(recompute: Recompute, build: impl FnMut(usize, &Builder) -> Result<B>) -> Self {
        let device = Device::cpu(1).unwrap();
        let builder = Builder::new(&device, BuilderOptions { seed: 8, ..BuilderOptions::default() });
        let options = BlockOptions { recompute };
        let blocks = TransformerBlockList::build(&builder.at("blocks"), BLOCKS, options, build).unwrap();
        Setting { device, parameters: builder.finish(), blocks }
    }

    fn tensor(&self, salt: f32) -> Tensor {
        let values: Vec<f32> = (0..ROWS * SIZE).map(|i| (i as f32 * 0.83 + salt).sin()).collect();
        Tensor::from_slice(&self.device, [ROWS, SIZE], &values, Segment::Data).unwrap()
    }

    fn blocks(&self, way: &Way, carry: Streams, shared: &Var, cx: &mut Ctx) -> (Streams, Vec<Streams>) {
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

    fn pass(&self, way: Way, case: &Case) -> Outcome {
        for param in &self.parameters {
            let block: usize = param.name().split('.').nth(1).unwrap().parse().unwrap();
            param.set_trainable(!case.frozen.contains(&block));
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
        let mut loss = Var::constant(Tensor::full(&self.device, [1], DType::F32, 0.0, Segment::Data).unwrap());
        for (salt, var) in seen.flat_map(|(x, y, _)| [x, y]).enumerate() {
            let weights = Var::constant(self.tensor(10.0 + salt as f32));
            loss = ops::add(&cx, &loss, &ops::sum(&cx, &ops::mul(&cx, var, &weights).unwrap()).unwrap()).unwrap();
        }
        let one = Tensor::full(&self.device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
        let wanted: Vec<&Var> = inputs.iter().collect();
        let read = |grad: Option<Tensor>| grad.map(|grad| grad.to_vec::<f32>().unwrap()).unwrap_or_default();
        let grads = cx.take_tape().unwrap().backward(&self.device, vec![(loss.clone(), one)], &wanted).unwrap();
        let inputs = ["x", "y", "shared"].map(String::from).into_iter().zip(grads.into_iter().map(read));
        let params = self.parameters.iter().map(|param| (param.name().to_owned(), read(param.grad().unwrap())));
        Outcome { loss: loss.value().item().unwrap(), gradients: inputs.chain(params).collect() }
    }
}

/// How well two ways have to agree.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Agreement {
    /// To the last bit; but for what is shared, as the list rounds the term of each block before it adds it, and a kernel
    /// that adds to what is there does not.
    SameSums,
    /// But for the order of the terms where the loss and the next block both look at a hidden state.
    OtherOrder,
}

/// What has no gradient has none on both sides. The bound is a few roundings of the largest value.
fn assert_agree(got: &Outcome, expected: &Outcome, agreement: Agreement, what: &str) {
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
fn cases(last: bool, hidden: &[usize]) -> Vec<Case> {
    let frozen = [vec![], vec![0], vec![BLOCKS - 1], vec![0, 1], vec![1, 2], (0..BLOCKS).collect()];
    let case = |wanted: usize, frozen: &Vec<usize>| Case {
        wanted: [0, 1, 2].map(|bit| wanted >> bit & 1 == 1),
        frozen: frozen.clone(),
        last,
        hidden: hidden.to_vec(),
    };
    (0..8).flat_map(|wanted| frozen.iter().map(move |frozen| case(wanted, frozen))).collect()
}

/// The list and the loop against each other, and the list that recomputes against the one that keeps.
fn compare<B, F>(build: impl Fn() -> F, cases: &[Case], agreement: Agreement)
where
    B: Block<Carry = Streams, Shared = Var, Cache = ()> + 'static,
    F: FnMut(usize, &Builder) -> Result<B>,
{
    let kept = Setting::new(Recompute::Keep, build());
    let checkpointed = Setting::new(Recompute::Checkpoint, build());
    for case in cases {
        let expected = kept.pass(Way::Loop, case);
        let got = kept.pass(Way::List, case);
        assert_agree(&got, &expected, agreement, &format!("{case:?}"));
        assert!(checkpointed.pass(Way::List, case) == got, "recomputed: {case:?}");
    }
}

#[test]
fn gradients_are_those_of_an_explicit_loop_whatever_is_wanted_and_whatever_is_frozen() {
    let cases = cases(true, &[]);
    compare(|| pair, &cases, Agreement::SameSums);
    // The cases are not all the same: nothing at all, and everything.
    let setting = Setting::new(Recompute::Keep, pair);
    let with =
        |case: &Case| setting.pass(Way::List, case).gradients.iter().filter(|(_, grad)| !grad.is_empty()).count();
    let counts: Vec<usize> = cases.iter().map(with).collect();
    assert_eq!((counts.iter().min(), counts.iter().max()), (Some(&0), Some(&(3 + 4 * BLOCKS))));
}

#[test]
fn gradients_through_hidden_states_are_those_of_an_explicit_loop() {
    for (last, hidden) in [
        (true, vec![0, 1, 2, 3]),
        (true, vec![2]),
        // Blocks behind the last hidden state that is looked at get none.
        (false, vec![0]),
        (false, vec![2]),
        (false, vec![1, 3]),
    ] {
        compare(|| pair, &cases(last, &hidden), Agreement::OtherOrder);
    }
}

#[test]
fn hidden_states_are_what_an_explicit_loop_sees_to_the_last_bit() {
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        let setting = Setting::new(recompute, pair);
        let seen = |way: Way, cx: &mut Ctx| -> Vec<Vec<f32>> {
            let [x, y, factors, shared] = [0.0, 1.0, 5.0, 2.0].map(|salt| Var::constant(setting.tensor(salt)));
            let (last, hidden) = setting.blocks(&way, (x, y, factors), &shared, cx);
            assert_eq!(hidden.len(), BLOCKS);
            let vars = hidden.iter().chain([&last]).flat_map(Bundle::vars);
            vars.map(|var| var.value().to_vec().unwrap()).collect()
        };
        let training = || Ctx::training(&setting.device, Randomness { seed: 4, step: 2, micro_batch: 0 });
        assert_eq!(seen(Way::List, &mut training()), seen(Way::Loop, &mut training()), "{recompute:?}");
        let mut inference = Ctx::inference(&setting.device);
        assert_eq!(seen(Way::List, &mut inference), seen(Way::Loop, &mut inference), "{recompute:?}");
    }
}

/// The first block is also the third, the second also the fourth.
fn tied() -> impl FnMut(usize, &Builder) -> Result<Again> {
    let mut made: Vec<Rc<Pair>> = Vec::new();
    move |index, b| {
        if index < 2 {
            made.push(Rc::new(Pair::new(b)?));
        }
        Ok(Again(Rc::clone(&made[index % 2])))
    }
}

#[test]
fn a_block_that_stands_in_the_list_twice_gets_the_gradients_of_both_places() {
    let setting = Setting::new(Recompute::Keep, tied());
    assert_eq!(setting.parameters.iter().count(), 2 * 4);
    compare(tied, &cases(true, &[]), Agreement::SameSums);
    compare(tied, &cases(true, &[1, 3]), Agreement::OtherOrder);
}

/// A block of one parameter of one element.
struct Tiny;

impl Block for Tiny {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, _: &mut Ctx) -> Result<Var> {
        Ok(x)
    }
}

#[test]
fn time_to_build_blocks_grows_with_their_number_and_not_with_its_square() {
    let device = Device::new(Arc::new(Counting::new(1 << 20)) as Arc<dyn Backend>);
    let builder = Builder::new(&device, BuilderOptions::default());
    let tiny = |_: usize, b: &Builder| {
        b.param("weight", [1], Init::ZEROS, Split::Replicated, true)?;
        Ok(Tiny)
    };
    let start = Instant::now();
    let list = TransformerBlockList::build(&builder.at("blocks"), 40_000, BlockOptions::default(), tiny).unwrap();
    // A fraction of a second when every block costs the same, half a minute when each looks at all before it.
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!((list.len(), builder.finish().iter().count()), (40_000, 40_000));
}
