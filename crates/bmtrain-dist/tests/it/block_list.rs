//! Gradients through a block list against an explicit loop over the same blocks on one tape: whatever needs a gradient,
//! whatever is frozen, whichever hidden states the loss looks at, kept and recomputed.

use crate::streams;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::wrap::Counting;
use bmtrain_core::{Backend, Ctx, Device, Var};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::param::{BuilderOptions, Init, Split};
use bmtrain_dist::shard::Sharding;
use bmtrain_dist::{Block, Builder, Bundle, Result, TransformerBlockList};
use std::sync::Arc;
use std::time::{Duration, Instant};
use streams::{Agreement, BLOCKS, Case, Setting, Streams, Way, assert_agree, cases, pairs, repeated, rooted};

/// The list and the loop against each other, and the list that recomputes against the one that keeps.
fn compare<B>(
    make: impl Fn(&Builder, BlockOptions) -> Result<TransformerBlockList<B>>,
    cases: &[Case],
    agreement: Agreement,
) where
    B: Block<Carry = Streams, Shared = Var, Cache = ()> + 'static,
{
    let kept = Setting::new(Recompute::Keep, Sharding::solo(), &make);
    let others = [Recompute::Checkpoint, Recompute::Every(2), Recompute::Every(3), Recompute::Auto];
    let others = others.map(|recompute| (recompute, Setting::new(recompute, Sharding::solo(), &make)));
    for case in cases {
        let expected = kept.pass(Way::Loop, case);
        let got = kept.pass(Way::List, case);
        assert_agree(&got, &expected, agreement, &format!("{case:?}"));
        for (recompute, other) in &others {
            assert!(other.pass(Way::List, case) == got, "{recompute:?}: {case:?}");
        }
    }
}

#[test]
fn gradients_are_those_of_an_explicit_loop_whatever_is_wanted_and_whatever_is_frozen() {
    let cases = cases(true, &[]);
    compare(pairs, &cases, Agreement::SameSums);
    // The cases are not all the same: nothing at all, and everything.
    let setting = Setting::new(Recompute::Keep, Sharding::solo(), pairs);
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
        // Blocks after the last hidden state that has a gradient get none.
        (false, vec![0]),
        (false, vec![2]),
        (false, vec![1, 3]),
    ] {
        compare(pairs, &cases(last, &hidden), Agreement::OtherOrder);
    }
}

#[test]
fn hidden_states_are_what_an_explicit_loop_sees_to_the_last_bit() {
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        let setting = Setting::new(recompute, Sharding::solo(), pairs);
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

#[test]
fn a_block_that_is_in_the_list_twice_gets_the_gradients_of_both_places() {
    let setting = Setting::new(Recompute::Keep, Sharding::solo(), repeated);
    assert_eq!(setting.parameters.iter().count(), 2 * 4);
    compare(repeated, &cases(true, &[]), Agreement::SameSums);
    compare(repeated, &cases(true, &[1, 3]), Agreement::OtherOrder);
}

#[test]
fn an_order_names_blocks_that_there_are() {
    let setting = Setting::new(Recompute::Keep, Sharding::solo(), pairs);
    let error = setting.blocks.in_order(&[0, 4]).unwrap_err();
    assert_eq!(error.to_string(), "block list: block 4 of 4 in the order");
}

#[test]
fn a_parameter_outside_of_the_blocks_that_use_it_gets_the_gradients_of_all() {
    let cases = cases(true, &[2]);
    compare(rooted, &cases, Agreement::OtherOrder);
    // It alone, where the blocks' own parameters are frozen and no input needs a gradient.
    let alone = cases.iter().find(|case| case.wanted == [false; 3] && case.frozen.len() == BLOCKS).unwrap();
    for recompute in [Recompute::Keep, Recompute::Checkpoint, Recompute::Every(3)] {
        let outcome = Setting::new(recompute, Sharding::solo(), rooted).pass(Way::List, alone);
        let named: Vec<&str> =
            outcome.gradients.iter().filter(|(_, grad)| !grad.is_empty()).map(|(name, _)| name.as_str()).collect();
        assert_eq!(named, ["root.weight"], "{recompute:?}");
    }
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
