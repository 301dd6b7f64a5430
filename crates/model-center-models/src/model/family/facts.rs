//! Facts about a family that need no model: its arrangement of stacks, its heads, and what a configuration describes.
//!
//! Defines [`FamilyFacts`], which a [`ModelEntry`](super::ModelEntry) has, made from the [`ModelFamily`] of the
//! configuration, and [`Description`]. Called by what computes sizes or writes recipes before anything is opened.

use crate::layer::BlockConfig;
use crate::model::Transformer;
use crate::model::architecture::{Architecture, BlockPlace, FamilyBlock, ModelFamily, Spec};
use model_center_base::error::Result;
use model_center_formats::config::{ConfigSource, TextConfig, TextHead};

/// Facts about a family.
#[derive(Debug, Clone, Copy)]
pub struct FamilyFacts {
    /// The arrangement of its stacks.
    pub architecture: Architecture,
    /// Whether the decoder input begins with the padding token where a configuration states no other.
    pub starts_with_padding: bool,
    /// The heads that it is opened with, a classifier without its number of outputs.
    pub heads: fn() -> Vec<TextHead>,
    /// The model that a configuration describes. No weights are read.
    pub describe: fn(&ConfigSource) -> Result<Description>,
}

/// A model as its configuration describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The fields that all families have.
    pub text: TextConfig,
    /// The modules around the blocks.
    pub spec: Spec,
    /// The first block of the first stack.
    pub block: BlockConfig,
}

impl FamilyFacts {
    /// Whether it has this head; the number of a classifier's outputs does not matter.
    pub fn has(&self, head: TextHead) -> bool {
        (self.heads)().contains(&without_outputs(head))
    }
}

impl<C: ModelFamily, B: FamilyBlock<C>> Transformer<C, B> {
    /// The facts of the family, for its line in a registry.
    pub const FACTS: FamilyFacts = FamilyFacts {
        architecture: C::ARCHITECTURE,
        starts_with_padding: C::STARTS_WITH_PADDING,
        heads: heads::<C>,
        describe: describe::<C>,
    };
}

fn heads<C: ModelFamily>() -> Vec<TextHead> {
    let mut heads = Vec::new();
    for (head, _) in C::default().classes().suffixes {
        let of_pairs = matches!(head, TextHead::NextSentence | TextHead::Pretraining);
        if !heads.contains(head) && (C::HAS_SENTENCES || !of_pairs) {
            heads.push(*head);
        }
    }
    heads
}

fn describe<C: ModelFamily>(config: &ConfigSource) -> Result<Description> {
    let config = config.read::<C>(None)?;
    Ok(Description { text: config.text().clone(), spec: config.spec(), block: config.block(BlockPlace::FIRST) })
}

fn without_outputs(head: TextHead) -> TextHead {
    match head {
        TextHead::Classification { .. } => TextHead::Classification { outputs: 0 },
        TextHead::TokenClassification { .. } => TextHead::TokenClassification { outputs: 0 },
        head => head,
    }
}
