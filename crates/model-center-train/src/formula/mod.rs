//! Sizing by formula, for ranks in three dimensions: parameters, arithmetic and memory of a transformer.
//!
//! An estimate for where nothing can be run: `bmtrain plan --fit` and `bmtrain simulate` compare hundreds of layouts,
//! `bmtrain init` has no recipe yet. [`sizes`] describes the model, [`layout`] how ranks share it, [`memory`] what a
//! rank then holds. What a run needs is counted by running it: [`crate::plan::count`], [`crate::plan::layout`].

pub mod families;
pub mod layout;
pub mod memory;
pub mod sizes;

pub use layout::ParallelLayout;
pub use memory::RankMemory;
pub use sizes::TransformerSizes;
