//! A training step of BERT with a classifier in burn on the CPU:
//! `burn_step --model bert-base|minilm --batch B --seq L --steps N --threads T`, one line of JSON.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use peers::{CLASSES, DEVIATION, DROPOUT, LEARNING_RATE, MAX_NORM, NORM_EPS, Options, Shape, WEIGHT_DECAY};

fn main() -> peers::Result<()> {
    let options = Options::parse()?;
    let device = Device::flex().autodiff();
    let mut model = Bert::new(options.shape, &device);
    let (ids, labels) = options.batch();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [options.batch, options.sequence]), &device); // [B, L]
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [options.batch]), &device); // [B]
    let mut optimizer = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(WEIGHT_DECAY).init();
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    options.measure("burn", BACKEND, || {
        let loss = cross_entropy.forward(model.forward(ids.clone()), labels.clone());
        let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
        clip(&mut gradients, &model);
        model = optimizer.step(LEARNING_RATE, model.clone(), gradients);
        device.sync()?;
        Ok(loss.into_scalar::<f32>())
    })
}

const BACKEND: &str = if cfg!(feature = "avx512") { "flex, avx512" } else { "flex, avx2" };

/// Scales the gradients to a norm of all of them of at most [`MAX_NORM`]; burn itself clips each parameter's alone.
fn clip(gradients: &mut GradientsParams, model: &Bert) {
    let mut squares = Squares { gradients, sum: None };
    model.visit(&mut squares);
    let Some(sum) = squares.sum else { return };
    let scale = MAX_NORM / sum.into_scalar::<f32>().sqrt();
    if scale < 1.0 {
        model.visit(&mut Scale { gradients, scale });
    }
}

struct Squares<'a> {
    gradients: &'a GradientsParams,
    sum: Option<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(parameter.id) {
            let squares = gradient.square().sum();
            self.sum = Some(match self.sum.take() {
                Some(sum) => sum + squares,
                None => squares,
            });
        }
    }
}

struct Scale<'a> {
    gradients: &'a mut GradientsParams,
    scale: f32,
}

impl ModuleVisitor for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(parameter.id) {
            self.gradients.register(parameter.id, gradient.mul_scalar(self.scale));
        }
    }
}

#[derive(Module, Debug)]
struct Bert {
    tokens: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    dropout: Dropout,
    encoder: TransformerEncoder,
    pooler: Linear,
    classifier: Linear,
}

impl Bert {
    fn new(shape: Shape, device: &Device) -> Self {
        let normal = Initializer::Normal { mean: 0.0, std: DEVIATION };
        let embedding = |rows| EmbeddingConfig::new(rows, shape.width).with_initializer(normal.clone()).init(device);
        let linear = |outputs| LinearConfig::new(shape.width, outputs).with_initializer(normal.clone()).init(device);
        let mut encoder = TransformerEncoderConfig::new(shape.width, shape.feed_forward(), shape.heads, shape.layers)
            .with_dropout(DROPOUT.into())
            .with_initializer(normal.clone())
            .with_layer_norm_eps(NORM_EPS)
            .init(device);
        for layer in &mut encoder.layers {
            // BERT has no dropout between the two maps of its feed-forward layer.
            layer.pwff.dropout.prob = 0.0;
        }
        Bert {
            tokens: embedding(shape.vocabulary),
            positions: embedding(shape.positions),
            types: embedding(shape.types),
            norm: LayerNormConfig::new(shape.width).with_epsilon(NORM_EPS).init(device),
            dropout: DropoutConfig::new(DROPOUT.into()).init(),
            encoder,
            pooler: linear(shape.width),
            classifier: linear(CLASSES),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<2> {
        let [batch, length] = ids.dims();
        let device = ids.device();
        let positions = Tensor::arange(0..length as i64, &device).unsqueeze(); // [1, L]
        let types = self.types.forward(Tensor::zeros([batch, length], &device)); // [B, L, D]
        let x = self.tokens.forward(ids) + types + self.positions.forward(positions); // [B, L, D]
        let x = self.dropout.forward(self.norm.forward(x)); // [B, L, D]
        let x = self.encoder.forward(TransformerEncoderInput::new(x)); // [B, L, D]
        let first = x.narrow(1, 0, 1).squeeze_dim(1); // [B, D]
        let pooled = self.pooler.forward::<2>(first).tanh(); // [B, D]
        self.classifier.forward(self.dropout.forward(pooled)) // [B, 2]
    }
}
