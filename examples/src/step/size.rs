//! The models that are timed, by name, and the work of their steps.

use super::Shape;
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
    /// BERT of 2 layers of 64, for quick checks.
    Tiny,
    /// GPT-2 of 2 layers of 64, for quick checks.
    TinyGpt2,
}

impl Size {
    /// What the name stands for.
    pub fn shape(self) -> Shape {
        let (num_layers, dim_model, num_heads) = match self {
            Size::BertBase | Size::Gpt2 => (12, 768, 12),
            Size::BertLarge => (24, 1024, 16),
            Size::Gpt2Xl => (48, 1600, 25),
            Size::Minilm => (6, 384, 12),
            Size::Tiny | Size::TinyGpt2 => (2, 64, 4),
        };
        let predicts_words = matches!(self, Size::Gpt2 | Size::Gpt2Xl | Size::TinyGpt2);
        let vocab_size = if predicts_words { 50257 } else { 30522 };
        Shape { num_layers, dim_model, num_heads, dim_ff: 4 * dim_model, vocab_size, predicts_words }
    }
}

impl Shape {
    /// Floating-point operations of a training step for each token of rows of `length`: six for each weight of a matrix
    /// product, and attention's two products with their four gradients, of which a causal model makes half. What is done twice
    /// to save memory counts once; embeddings, norms and the optimizer do not count.
    pub fn flops_per_token(self, length: usize) -> f64 {
        let Shape { num_layers, dim_model, dim_ff, vocab_size, predicts_words, .. } = self;
        let weights = num_layers * (4 * dim_model * dim_model + 2 * dim_model * dim_ff);
        let words = if predicts_words { vocab_size * dim_model } else { 0 };
        let attention = num_layers * dim_model * length * if predicts_words { 6 } else { 12 };
        (6 * (weights + words) + attention) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_token_is_six_times_the_weights_and_attention() {
        // GPT-2 has 85.0 million weights in its blocks' products and 38.6 million in its table of words.
        let flops = Size::Gpt2.shape().flops_per_token(1024);
        let weights = 12.0 * 12.0 * 768.0 * 768.0 + 50257.0 * 768.0;
        assert!((flops - 6.0 * weights - 6.0 * 12.0 * 768.0 * 1024.0).abs() < 1.0, "{flops}");
        // BERT attends both ways and predicts no words.
        let bert = Size::BertLarge.shape().flops_per_token(512);
        assert!((bert - 24.0 * (6.0 * 12.0 * 1024.0 * 1024.0 + 12.0 * 1024.0 * 512.0)).abs() < 1.0, "{bert}");
    }
}
