//! Communication beside products against the same collectives one after the other.

use crate::ranks::{options, threads};
use crate::token_shards::{Group, HIDDEN, SHAPE, TOKENS, WIDTH, noise, own_rows, start, tensor, walk};
use bmtrain_core::autograd::{GradSink, SinkTarget};
use bmtrain_core::comm::{Collective, Communicator, Reduction, Solo};
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, ProductInput, ProductWeight, TokenShard};
use bmtrain_core::{Backend, Ctx, DType, Device, Lane, Result, Segment, Shape, Storage, Tensor, Var};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// Communication during products gives the bits of the same collectives on the compute lane, one after the other.
#[test]
fn communication_beside_products_changes_no_bit() {
    let (up, bias, down) = (noise(2, HIDDEN * WIDTH), noise(3, HIDDEN), noise(4, WIDTH * HIDDEN));
    let feed_forward = |gated: bool, cx: &Ctx, x: ProductInput<'_>, v: &[Var]| {
        let (w_in, b_in, silu) = (&v[1], Some(&v[2]), Activation::Silu);
        match gated {
            true => ops::gated_feed_forward(cx, x, w_in, b_in, silu, &v[3], None),
            false => ops::feed_forward(cx, x, w_in, b_in, silu, &v[3], None),
        }
    };
    for (gated, size) in [(false, 1), (false, 2), (true, 2), (true, 3)] {
        threads(size, options(), |rank| {
            let (own, tokens, device) = start(rank);
            let group: Group = Arc::clone(tokens.ranks());
            let down = if gated { &down[..down.len() / 2] } else { &down };
            let inputs = |x: &[f32]| {
                let (x, up) = (tensor(&device, [x.len() / WIDTH, WIDTH], x), tensor(&device, [HIDDEN, WIDTH], &up));
                vec![x, up, tensor(&device, [HIDDEN], &bias), tensor(&device, [WIDTH, down.len() / WIDTH], down)]
            };
            let all = noise(5, TOKENS * WIDTH);
            let beside =
                walk(&device, inputs(&all), |cx, v| feed_forward(gated, cx, ProductInput::copied(&v[0], &group), v));
            let alone = walk(&device, inputs(&all), |cx, v| {
                feed_forward(gated, cx, ProductInput::from(&ops::copy_to_ranks(cx, &group, &v[0])), v)
            });
            assert_eq!(beside, alone, "copied, rank {own} of {size}");
            let own_tokens = own_rows(&all, &tokens, WIDTH);
            let beside = walk(&device, inputs(&own_tokens), |cx, v| {
                let y = feed_forward(gated, cx, ProductInput::gathered(&v[0], &tokens), v)?;
                ops::scatter_tokens(cx, &tokens, &y, None)
            });
            let alone = walk(&device, inputs(&own_tokens), |cx, v| {
                let y = feed_forward(gated, cx, ProductInput::from(&ops::all_gather(cx, &group, &v[0])?), v)?;
                ops::reduce_scatter(cx, &group, &y, Reduction::Sum)
            });
            assert_eq!(beside, alone, "gathered, rank {own} of {size}");
        });
    }
}

/// As many rows as several chunks have, also where the ranks do not divide them.
#[test]
fn products_of_chunks_change_no_bit() {
    // Longer than the sums that a product keeps in registers.
    const WIDTH: usize = 272;
    const HIDDEN: usize = 600;
    let (up, b_in, down, b_out) =
        (noise(2, HIDDEN * WIDTH), noise(3, HIDDEN), noise(4, WIDTH * HIDDEN), noise(6, WIDTH));
    for (shape, size) in [([2, 1024], 2), ([4, 512], 4), ([1, 2047], 2)] {
        let count = shape[0] * shape[1];
        let all = noise(5, count * WIDTH);
        threads(size, options(), |rank| {
            let (group, device): (Group, _) = (Arc::new(rank), Device::cpu(1).unwrap());
            let tokens = TokenShard::new(Arc::clone(&group), shape);
            let inputs = |rows: &[f32], shape: &[usize]| {
                let rows = tensor(&device, [rows.len()], rows).reshape(Shape::new(shape).unwrap());
                let (up, down) = (tensor(&device, [HIDDEN, WIDTH], &up), tensor(&device, [WIDTH, HIDDEN], &down));
                vec![rows.unwrap(), up, tensor(&device, [HIDDEN], &b_in), down, tensor(&device, [WIDTH], &b_out)]
            };
            let whole = || inputs(&all, &[shape[0], shape[1], WIDTH]);
            let own = || inputs(&own_rows(&all, &tokens, WIDTH), &[tokens.own().len(), WIDTH]);
            let hidden = |cx: &Ctx, x: ProductInput<'_>, v: &[Var]| {
                ops::feed_forward(cx, x, &v[1], Some(&v[2]), Activation::Silu, &v[3], None)
            };
            let at_once = walk(&device, whole(), |cx, v| {
                let (x, w_out) = (ProductInput::copied(&v[0], &group), ProductWeight::summed(&v[3], &group));
                ops::feed_forward(cx, x, &v[1], Some(&v[2]), Activation::Silu, w_out, Some(&v[4]))
            });
            let apart = walk(&device, whole(), |cx, v| {
                let y = hidden(cx, ProductInput::from(&ops::copy_to_ranks(cx, &group, &v[0])), v)?;
                ops::sum_over_ranks(cx, &group, y, Some(&v[4]))
            });
            assert!(at_once == apart, "summed, {shape:?} on {size} ranks");
            let at_once = walk(&device, own(), |cx, v| {
                let (x, w_out) = (ProductInput::gathered(&v[0], &tokens), ProductWeight::scattered(&v[3], &tokens));
                ops::feed_forward(cx, x, &v[1], Some(&v[2]), Activation::Silu, w_out, Some(&v[4]))
            });
            let y =
                ops::gather_tokens(&Ctx::inference(&device), &tokens, &Var::constant(own().swap_remove(0))).unwrap();
            let y = hidden(&Ctx::inference(&device), ProductInput::from(&y), &constants(own())).unwrap();
            let scattered = ops::scatter_tokens(&Ctx::inference(&device), &tokens, &y, Some(&constants(own())[4]));
            assert!(at_once[0] == scattered.unwrap().value().to_vec::<f32>().unwrap(), "scattered, {shape:?}");
            if count.is_multiple_of(size) {
                let apart = walk(&device, own(), |cx, v| {
                    let x = ops::all_gather(cx, &group, &v[0])?.reshape([shape[0], shape[1], WIDTH])?;
                    ops::scatter_tokens(cx, &tokens, &hidden(cx, ProductInput::from(&x), v)?, Some(&v[4]))
                });
                assert!(at_once == apart, "gradients, {shape:?} on {size} ranks");
            }
        });
    }
}

fn constants(inputs: Vec<Tensor>) -> Vec<Var> {
    inputs.into_iter().map(Var::constant).collect()
}

/// Launches and writes in their order.
type Log = Arc<Mutex<Vec<String>>>;

#[derive(Debug)]
struct NotedRank(Log);

impl Communicator for NotedRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> Result<()> {
        self.0.lock().unwrap().push(format!("{} on {on:?}", collective.name()));
        Solo.launch(backend, collective, on)
    }

    fn split(&self, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        Solo.split(color, key)
    }

    fn barrier(&self) -> Result<()> {
        Solo.barrier()
    }

    fn abort(&self, reason: &str) {
        Solo.abort(reason);
    }
}

#[derive(Debug)]
struct NotedGradient(Log, Storage);

impl GradSink for NotedGradient {
    fn target(&self) -> Result<SinkTarget> {
        self.0.lock().unwrap().push("gradient of the weight".into());
        Ok(SinkTarget { storage: self.1.clone(), start: 0, len: self.1.len(), add: false })
    }
}

#[test]
fn the_input_s_gradient_is_on_its_way_while_the_weight_s_is_computed() {
    let device = Device::cpu(1).unwrap();
    let log = Log::default();
    let group: Group = Arc::new(NotedRank(Arc::clone(&log)));
    let tokens = TokenShard::new(Arc::clone(&group), SHAPE);
    let backward = |is_gathered: bool| {
        let cx = Ctx::gradients(&device);
        let tape = cx.tape().unwrap().clone();
        let x = tape.input(tensor(&device, [TOKENS, WIDTH], &noise(1, TOKENS * WIDTH)));
        let storage = Storage::zeros(&device, HIDDEN * WIDTH, DType::F32, Segment::Gradients).unwrap();
        let sink = Rc::new(NotedGradient(Arc::clone(&log), storage));
        let weight = cx.leaf(tensor(&device, [HIDDEN, WIDTH], &noise(2, HIDDEN * WIDTH)), sink);
        let input = match is_gathered {
            true => ProductInput::gathered(&x, &tokens),
            false => ProductInput::copied(&x, &group),
        };
        let y = ops::linear(&cx, input, &weight, None, None).unwrap();
        let seed = tensor(&device, [TOKENS * HIDDEN], &noise(3, TOKENS * HIDDEN)).reshape(y.shape()).unwrap();
        log.lock().unwrap().clear();
        tape.backward(&device, vec![(y, seed)], &[&x]).unwrap();
        log.lock().unwrap().clone()
    };
    assert_eq!(backward(false), ["all_reduce on Tensor", "gradient of the weight"]);
    assert_eq!(backward(true), ["all_gather on Tensor", "reduce_scatter on Tensor", "gradient of the weight"]);
}
