//! The sizes of a transformer of one stack, and the parameters and the arithmetic that follow from them.

use crate::{Error, Result};

/// The largest size that is accepted: products of three of them are exact enough as floating-point numbers.
const LARGEST: usize = 1 << 28;

/// A transformer of one stack of blocks of one size with a language-modelling head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransformerSizes {
    /// Blocks, or their places where blocks share parameters.
    pub layers: usize,
    /// Blocks with parameters of their own.
    pub unique_layers: usize,
    /// D.
    pub width: usize,
    /// N.
    pub heads: usize,
    /// K.
    pub kv_heads: usize,
    /// H.
    pub head_size: usize,
    /// F.
    pub feed_forward: usize,
    /// Whether the feed-forward layer has a second map as a gate.
    pub gated: bool,
    /// V.
    pub vocabulary: usize,
    /// E, dimension of the token embeddings; commonly D.
    pub embedding: usize,
    /// Whether a layer with bias projects the sum of all embeddings from E to D; else layers without bias project token
    /// embeddings to D and hidden states back, where E is not D.
    pub projects_sum: bool,
    /// Rows of a learned position embedding; 0 without one.
    pub positions: usize,
    /// Whether the head shares the token embedding.
    pub tied: bool,
}

impl TransformerSizes {
    /// A GPT-2: feed-forward layers of 4 D, learned positions, a tied head.
    pub fn gpt2(layers: usize, width: usize, heads: usize, vocabulary: usize, positions: usize) -> Self {
        TransformerSizes {
            layers,
            unique_layers: layers,
            width,
            heads,
            kv_heads: heads,
            head_size: width / heads.max(1),
            feed_forward: width.saturating_mul(4),
            gated: false,
            vocabulary,
            embedding: width,
            projects_sum: false,
            positions,
            tied: true,
        }
    }

    /// Refuses sizes that are 0 or beyond any model; `place` names their source.
    ///
    /// # Errors
    /// [`Error::Argument`] with the size.
    pub fn validate(&self, place: &str) -> Result<()> {
        let sizes = [
            ("layers", self.layers),
            ("unique_layers", self.unique_layers),
            ("width", self.width),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_size", self.head_size),
            ("feed_forward", self.feed_forward),
            ("vocabulary", self.vocabulary),
            ("embedding", self.embedding),
        ];
        match sizes.into_iter().find(|(_, size)| !(1..=LARGEST).contains(size)) {
            Some((name, size)) => {
                let fix = format!("give a number from 1 to {LARGEST}");
                Err(Error::argument(format!("{place}, {name}"), format!("a size of {size}"), fix))
            }
            None if self.positions > LARGEST => {
                let fix = format!("give a number from 0 to {LARGEST}");
                Err(Error::argument(format!("{place}, positions"), format!("a size of {}", self.positions), fix))
            }
            None => Ok(()),
        }
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> f64 {
        (self.heads * self.head_size) as f64
    }

    /// Width of queries, keys and values together.
    pub fn projected_width(&self) -> f64 {
        ((self.heads + 2 * self.kv_heads) * self.head_size) as f64
    }

    /// Values in the matrices of one block.
    pub fn block_matrices(&self) -> f64 {
        let maps = if self.gated { 3.0 } else { 2.0 };
        let feed_forward = maps * self.feed_forward as f64;
        self.width as f64 * (self.projected_width() + self.query_width() + feed_forward)
    }

    /// Values of one block. Without a gate it has the biases and layer norms of a GPT-2, with one two norms without
    /// biases.
    pub fn block_parameters(&self) -> f64 {
        let width = self.width as f64;
        let vectors = if self.gated {
            2.0 * width
        } else {
            self.projected_width() + self.feed_forward as f64 + 2.0 * width + 4.0 * width
        };
        self.block_matrices() + vectors
    }

    /// Values of the token embedding, of the positions and of what projects them: the first stage's.
    pub fn embedding_parameters(&self) -> f64 {
        let (embedding, width) = (self.embedding as f64, self.width as f64);
        let (position, projection) = match self.projects_sum {
            true => (embedding, embedding * width + width),
            false if self.embedding == self.width => (width, 0.0),
            false => (width, 2.0 * embedding * width),
        };
        self.vocabulary as f64 * embedding + self.positions as f64 * position + projection
    }

    /// Values of the head's matrix, which a tied head shares with the embedding on one stage and copies on several.
    pub fn head_parameters(&self) -> f64 {
        self.vocabulary as f64 * self.embedding as f64
    }

    /// Values of the whole model. Blocks that share parameters count once.
    pub fn parameters(&self) -> f64 {
        let head = if self.tied { 0.0 } else { self.head_parameters() };
        let norm = if self.gated { 1.0 } else { 2.0 };
        let blocks = self.unique_layers as f64 * self.block_parameters();
        blocks + self.embedding_parameters() + head + norm * self.width as f64
    }

    /// Whether the parameters are `12 L D^2 + 13 L D + (V + S) D + 2 D`, Megatron-LM's formula.
    pub fn follow_published_formula(&self) -> bool {
        let TransformerSizes { layers, unique_layers, width, heads, vocabulary, positions, .. } = *self;
        let published = TransformerSizes::gpt2(layers, width, heads, vocabulary, positions);
        *self == TransformerSizes { unique_layers, ..published }
    }

    /// Floating-point operations of a block's matrices for one token, forward.
    pub fn matrix_flops(&self) -> f64 {
        2.0 * self.block_matrices()
    }

    /// Floating-point operations of a block's attention for one token of a sequence of `length`, forward. All keys
    /// count, also those that a causal mask hides, as in the tables of Megatron-LM.
    pub fn attention_flops(&self, length: usize) -> f64 {
        4.0 * self.query_width() * length as f64
    }

    /// Floating-point operations of the head for one token, forward.
    pub fn head_flops(&self) -> f64 {
        2.0 * self.head_parameters()
    }

    /// Floating-point operations of a training step for one token: forward and twice as much backward. What is
    /// computed again to save memory does not count.
    pub fn training_flops(&self, length: usize) -> f64 {
        3.0 * (self.layers as f64 * (self.matrix_flops() + self.attention_flops(length)) + self.head_flops())
    }
}
