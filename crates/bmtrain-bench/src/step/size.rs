//! The models that are timed, by name, and the work of their steps.

use super::{Extent, Family, Shape};
use clap::ValueEnum;

/// Models by name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Size {
    /// BERT of 12 layers of 768.
    BertBase,
    /// BERT of 24 layers of 1024.
    BertLarge,
    /// BERT of 6 layers of 384.
    Minilm,
    /// GPT-2 of 12 layers of 768; every token is a label.
    Gpt2,
    /// GPT-2 of 48 layers of 1600.
    Gpt2Xl,
    /// Llama of 12 layers of 768 with 98 million weights, its head not tied; every token is a label.
    #[value(name = "llama-98m")]
    Llama98m,
    /// Llama 3 of 16 layers of 2048, its head not tied; every token is a label.
    Llama1b,
    /// Llama 3 of 32 layers of 4096; every token is a label.
    Llama8b,
    /// T5 of 12 and 12 layers of 768; every token of a target is a label.
    T5Base,
    /// BERT of 2 layers of 64, for quick checks.
    Tiny,
    /// GPT-2 of 2 layers of 64, for quick checks.
    TinyGpt2,
    /// T5 of 2 and 2 layers of 64, for quick checks.
    TinyT5,
}

impl Size {
    /// Shape of the name.
    pub fn shape(self) -> Shape {
        let (num_layers, dim_model, num_heads) = match self {
            Size::BertBase | Size::Gpt2 | Size::Llama98m | Size::T5Base => (12, 768, 12),
            Size::BertLarge => (24, 1024, 16),
            Size::Gpt2Xl => (48, 1600, 25),
            Size::Llama1b => (16, 2048, 32),
            Size::Llama8b => (32, 4096, 32),
            Size::Minilm => (6, 384, 12),
            Size::Tiny | Size::TinyGpt2 | Size::TinyT5 => (2, 64, 4),
        };
        let (family, vocab_size) = match self {
            Size::BertBase | Size::BertLarge | Size::Minilm | Size::Tiny => (Family::Bert, 30522),
            Size::Gpt2 | Size::Gpt2Xl | Size::TinyGpt2 => (Family::Gpt2, 50257),
            Size::Llama98m => (Family::Llama, 8192),
            Size::Llama1b | Size::Llama8b => (Family::Llama, 128_256),
            Size::T5Base | Size::TinyT5 => (Family::T5, 32128),
        };
        // Llama 3 has a head of keys and values for four of queries.
        let (dim_ff, num_heads_kv) = match self {
            Size::Llama98m => (2048, num_heads),
            Size::Llama1b => (8192, num_heads / 4),
            Size::Llama8b => (14_336, num_heads / 4),
            _ => (4 * dim_model, num_heads),
        };
        let dropout_p = if family == Family::Llama { 0.0 } else { 0.1 };
        Shape { family, num_layers, dim_model, num_heads, num_heads_kv, dim_ff, vocab_size, dropout_p }
    }
}

impl Shape {
    /// The matrix products `[tokens, k] x [k, n]` of a step's linear layers, and how many there are of each.
    pub fn products(self, extent: Extent) -> Vec<Product> {
        let Shape { family, num_layers, dim_model: d, num_heads, num_heads_kv, dim_ff: f, vocab_size, .. } = self;
        let tokens = extent.rows * extent.length;
        let each = |tokens, n, k| Product { tokens, n, k, count: num_layers };
        let words = |tokens| Product { tokens, n: vocab_size, k: d, count: 1 };
        let qkv = d + 2 * d / num_heads * num_heads_kv;
        // A gated layer has its gate and its values beside each other.
        let up = if family == Family::Llama { 2 * f } else { f };
        let block = |tokens| [each(tokens, qkv, d), each(tokens, d, d), each(tokens, up, d), each(tokens, d, f)];
        let mut products = block(tokens).to_vec();
        match family {
            Family::Bert => {}
            Family::Gpt2 | Family::Llama => products.push(words(tokens)),
            Family::T5 => {
                let target = extent.rows * extent.target;
                products.extend(block(target));
                // The decoder's queries, what it reads of the encoder, and the output.
                products.extend([each(target, d, d), each(tokens, 2 * d, d), each(target, d, d), words(target)]);
            }
        }
        products
    }

    /// Floating-point operations of a training step: six for each weight of a matrix product and token, and attention's
    /// two products with their four gradients, half of them in a causal model. What is done twice to save memory
    /// counts once; embeddings, norms and the optimizer do not count.
    pub fn flops(self, extent: Extent) -> f64 {
        let Shape { family, num_layers, dim_model, .. } = self;
        let products = self.products(extent).into_iter();
        let linear: f64 = products.map(|p| 6.0 * p.tokens as f64 * (p.n * p.k * p.count) as f64).sum();
        let pairs =
            |queries: usize, keys: usize| 12.0 * (num_layers * dim_model * extent.rows * queries) as f64 * keys as f64;
        let Extent { length, target, document, .. } = extent;
        let seen = document.unwrap_or(length).min(length);
        let attention = match family {
            Family::Bert => pairs(length, seen),
            Family::Gpt2 | Family::Llama => pairs(length, seen) / 2.0,
            Family::T5 => pairs(length, length) + pairs(target, target) / 2.0 + pairs(target, length),
        };
        linear + attention
    }
}

/// Matrix products of one shape, `[tokens, k] x [k, n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Rows of the left side.
    pub tokens: usize,
    /// Columns of the right side.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// How many of them a step has.
    pub count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_token_is_six_times_the_weights_and_attention() {
        let flops = |size: Size, length, target| {
            let extent = Extent { rows: 3, length, target, is_padded: false, document: None };
            size.shape().flops(extent) / 3.0
        };
        // GPT-2 has 85.0 million weights in its blocks' products and 38.6 million in its token embedding.
        let gpt2 = flops(Size::Gpt2, 1024, 7) / 1024.0;
        let weights = 12.0 * 12.0 * 768.0 * 768.0 + 50257.0 * 768.0;
        assert!((gpt2 - 6.0 * weights - 6.0 * 12.0 * 768.0 * 1024.0).abs() < 1.0, "{gpt2}");
        // Llama 3 has 6.98 billion weights in its blocks' products and 525 million in its head.
        let llama = flops(Size::Llama8b, 2048, 7) / 2048.0;
        let weights = 32.0 * 4096.0 * (2.0 * 4096.0 + 2.0 * 1024.0 + 3.0 * 14336.0) + 128_256.0 * 4096.0;
        assert!((llama - 6.0 * weights - 6.0 * 32.0 * 4096.0 * 2048.0).abs() < 1e3, "{llama}");
        // BERT attends both ways and predicts no tokens.
        let bert = flops(Size::BertLarge, 512, 7) / 512.0;
        assert!((bert - 24.0 * (6.0 * 12.0 * 1024.0 * 1024.0 + 12.0 * 1024.0 * 512.0)).abs() < 1.0, "{bert}");
        // T5's decoder has two maps more on each of its sides, and predicts the tokens of its target alone.
        let t5 = flops(Size::T5Base, 128, 32);
        let (square, layers) = (768.0 * 768.0, 12.0);
        let linear = 128.0 * 14.0 * square * layers + 32.0 * (14.0 * square * layers + 32128.0 * 768.0);
        let attention = 12.0 * 768.0 * layers * (128.0 * 128.0 + 32.0 * 32.0 / 2.0 + 32.0 * 128.0);
        assert!((t5 - 6.0 * linear - attention).abs() < 1.0, "{t5}");
    }
}
