//! A training step of BERT with a classifier in candle on the CPU:
//! `candle_step --model bert-base|minilm --batch B --seq L --steps N --threads T`, one line of JSON.

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::ops::{dropout, layer_norm_slow, softmax};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use candle_nn::{Embedding, Init, LayerNorm, Linear, VarBuilder, VarMap, layer_norm, loss};
use peers::{CLASSES, DEVIATION, DROPOUT, LEARNING_RATE, MAX_NORM, NORM_EPS, Options, Shape, WEIGHT_DECAY};

fn main() -> peers::Result<()> {
    let options = Options::parse()?;
    let device = Device::Cpu;
    let variables = VarMap::new();
    let model = Bert::new(options.shape, VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    let (ids, labels) = options.batch();
    let ids = Tensor::from_vec(ids, (options.batch, options.sequence), &device)?; // [B, L]
    let labels = Tensor::from_vec(labels, options.batch, &device)?; // [B]
    let variables = variables.all_vars();
    let settings = ParamsAdamW { lr: LEARNING_RATE, weight_decay: WEIGHT_DECAY.into(), ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(variables.clone(), settings)?;
    options.measure("candle-core", BACKEND, || {
        let loss = loss::cross_entropy(&model.forward(&ids)?, &labels)?;
        let mut gradients = loss.backward()?;
        clip(&mut gradients, &variables)?;
        optimizer.step(&gradients)?;
        Ok(loss.to_scalar()?)
    })
}

const BACKEND: &str = if cfg!(feature = "avx512") { "gemm, avx512" } else { "gemm, avx2" };

/// Scales the gradients to a norm of all of them of at most [`MAX_NORM`]; candle has no function for it.
fn clip(gradients: &mut GradStore, variables: &[Var]) -> Result<()> {
    let mut squares = 0.0;
    for gradient in variables.iter().filter_map(|variable| gradients.get(variable)) {
        squares += gradient.sqr()?.sum_all()?.to_scalar::<f32>()?;
    }
    let scale = MAX_NORM / squares.sqrt();
    if scale < 1.0 {
        for variable in variables {
            if let Some(gradient) = gradients.remove(variable) {
                gradients.insert(variable, (gradient * f64::from(scale))?);
            }
        }
    }
    Ok(())
}

struct Bert {
    tokens: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
    pooler: Linear,
    classifier: Linear,
}

impl Bert {
    fn new(shape: Shape, at: VarBuilder) -> Result<Self> {
        let width = shape.width;
        Ok(Bert {
            tokens: embedding(shape.vocabulary, width, at.pp("tokens"))?,
            positions: embedding(shape.positions, width, at.pp("positions"))?,
            types: embedding(shape.types, width, at.pp("types"))?,
            norm: layer_norm(width, NORM_EPS, at.pp("norm"))?,
            layers: (0..shape.layers).map(|i| Layer::new(shape, at.pp(i))).collect::<Result<_>>()?,
            pooler: linear(width, width, at.pp("pooler"))?,
            classifier: linear(width, CLASSES, at.pp("classifier"))?,
        })
    }

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (_, length) = ids.dims2()?;
        let positions = self.positions.forward(&Tensor::arange(0, length as u32, ids.device())?)?; // [L, D]
        let types = self.types.forward(&ids.zeros_like()?)?; // [B, L, D]
        let x = (self.tokens.forward(ids)? + types)?.broadcast_add(&positions)?; // [B, L, D]
        let mut x = dropout(&normalize(&self.norm, &x)?, DROPOUT)?; // [B, L, D]
        for layer in &self.layers {
            x = layer.forward(&x)?; // [B, L, D]
        }
        let first = x.narrow(1, 0, 1)?.squeeze(1)?; // [B, D]
        let pooled = self.pooler.forward(&first)?.tanh()?; // [B, D]
        self.classifier.forward(&dropout(&pooled, DROPOUT)?) // [B, 2]
    }
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    shape: Shape,
}

impl Layer {
    fn new(shape: Shape, at: VarBuilder) -> Result<Self> {
        let (width, inner) = (shape.width, shape.feed_forward());
        Ok(Layer {
            query: linear(width, width, at.pp("query"))?,
            key: linear(width, width, at.pp("key"))?,
            value: linear(width, width, at.pp("value"))?,
            output: linear(width, width, at.pp("output"))?,
            attention_norm: layer_norm(width, NORM_EPS, at.pp("attention_norm"))?,
            up: linear(width, inner, at.pp("up"))?,
            down: linear(inner, width, at.pp("down"))?,
            norm: layer_norm(width, NORM_EPS, at.pp("norm"))?,
            shape,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        // The product takes no heads that are apart in memory.
        let heads = |map: &Linear| {
            map.forward(x)?.reshape((batch, length, self.shape.heads, self.shape.head()))?.transpose(1, 2)?.contiguous()
        };
        let (query, key, value) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?); // [B, N, L, H]
        let query = (query * (1.0 / (self.shape.head() as f64).sqrt()))?; // [B, N, L, H]
        let weights = softmax(&query.matmul(&key.t()?)?, D::Minus1)?; // [B, N, L, L]
        let context = dropout(&weights, DROPOUT)?.matmul(&value)?; // [B, N, L, H]
        let context = context.transpose(1, 2)?.flatten_from(D::Minus2)?; // [B, L, D]
        let attended = dropout(&self.output.forward(&context)?, DROPOUT)?; // [B, L, D]
        let x = normalize(&self.attention_norm, &(x + attended)?)?; // [B, L, D]
        let inner = self.up.forward(&x)?.gelu_erf()?; // [B, L, F]
        let outer = dropout(&self.down.forward(&inner)?, DROPOUT)?; // [B, L, D]
        normalize(&self.norm, &(x + outer)?) // [B, L, D]
    }
}

const NORMAL: Init = Init::Randn { mean: 0.0, stdev: DEVIATION };

fn embedding(rows: usize, width: usize, at: VarBuilder) -> Result<Embedding> {
    Ok(Embedding::new(at.get_with_hints((rows, width), "weight", NORMAL)?, width))
}

fn linear(inputs: usize, outputs: usize, at: VarBuilder) -> Result<Linear> {
    let weight = at.get_with_hints((outputs, inputs), "weight", NORMAL)?; // [out, in]
    Ok(Linear::new(weight, Some(at.get_with_hints(outputs, "bias", Init::Const(0.0))?)))
}

/// The layer's own `forward` takes a kernel without a gradient.
fn normalize(norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
    let bias = norm.bias().ok_or_else(|| candle_core::Error::msg("a layer norm has a bias"))?;
    layer_norm_slow(x, norm.weight(), bias, norm.eps() as f32)
}
