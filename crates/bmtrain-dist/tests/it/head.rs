//! The loss of a language model through its layers, against the logits of all rows.

use bmtrain_core::ops::{self, CrossEntropy, LinearCrossEntropy};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::nn::{Embedding, EmbeddingOptions, Linear, LinearOptions};
use bmtrain_dist::param::{Builder, BuilderOptions, Init, Parameters};

const VOCABULARY: usize = 13;
const SIZE: usize = 4;
const ROWS: usize = 40;

struct Head {
    device: Device,
    table: Embedding,
    linear: Linear,
    parameters: Parameters,
    ids: Tensor,
    next: Tensor,
}

impl Head {
    fn new() -> Head {
        let device = Device::cpu(1).unwrap();
        let builder = Builder::new(&device, BuilderOptions { seed: 3, ..BuilderOptions::default() });
        let init = Init::normal(0.5);
        let options = EmbeddingOptions { entries: VOCABULARY, size: SIZE, init, padding_index: None };
        let table = Embedding::new(&builder.at("table"), options).unwrap();
        let linear = Linear::new(&builder.at("head"), LinearOptions::new(SIZE, VOCABULARY, true, init)).unwrap();
        let tensor = |step: usize| {
            let ids: Vec<i64> = (0..ROWS).map(|row| (row * step % VOCABULARY) as i64).collect();
            Tensor::from_slice_in(&device, [2, ROWS / 2], &ids, Segment::Data).unwrap()
        };
        let (ids, next) = (tensor(5), tensor(7));
        let parameters = builder.finish();
        parameters.initialize_missing().unwrap();
        Head { device, table, linear, parameters, ids, next }
    }

    /// The loss and the gradients of all parameters.
    fn walk(&self, forward: impl FnOnce(&Head, &Ctx) -> Var) -> Vec<Vec<f32>> {
        let cx = Ctx::gradients(&self.device);
        let loss = forward(self, &cx);
        let mut results = vec![loss.value().to_vec().unwrap()];
        let seed = Tensor::from_slice_in(&self.device, [1], &[3.0f32], Segment::Data).unwrap();
        cx.tape().unwrap().backward(&self.device, vec![(loss, seed)], &[]).unwrap();
        results.extend(self.parameters.iter().map(|param| param.grad().unwrap().unwrap().to_vec().unwrap()));
        results
    }
}

#[test]
fn the_loss_in_chunks_gives_layers_the_gradients_of_the_logits_of_all_rows() {
    // Three rows of logits at a time.
    let options = LinearCrossEntropy { chunk_bytes: 3 * 16 * 4, ..LinearCrossEntropy::default() };
    let whole = Head::new().walk(|head, cx| {
        let x = head.table.forward(&head.ids, cx).unwrap();
        let tied = head.table.project(&x, None, cx).unwrap();
        let own = head.linear.forward(&x, cx).unwrap();
        let loss = |logits| ops::cross_entropy(cx, logits, &head.next, &CrossEntropy::default()).unwrap();
        ops::add(cx, &loss(&tied), &loss(&own)).unwrap()
    });
    let chunks = Head::new().walk(|head, cx| {
        let x = head.table.forward(&head.ids, cx).unwrap();
        let tied = head.table.cross_entropy(&x, None, &head.next, &options, cx).unwrap();
        let own = head.linear.cross_entropy(&x, &head.next, &options, cx).unwrap();
        ops::add(cx, &tied, &own).unwrap()
    });
    assert_eq!(whole.len(), 4);
    for (got, expected) in chunks.iter().zip(&whole) {
        assert!(expected.iter().any(|x| x.abs() > 1e-2), "{expected:?}");
        // Sums in another order.
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * (1.0 + b.abs());
        assert!(got.len() == expected.len() && got.iter().zip(expected).all(close), "{got:?}\n{expected:?}");
    }
}
