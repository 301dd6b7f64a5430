//! Sizing by formula, for ranks in three dimensions: parameters, arithmetic, memory and communication of a transformer.
//!
//! Nothing is opened or counted here, so that hundreds of layouts are compared in no time. [`sizes`] describes the
//! model, [`layout`] how ranks share it, [`memory`] and [`communication`] what a rank then holds and sends. Read by
//! [`crate::plan::fit`] and [`crate::simulate`]. The counting backend of [`crate::plan::count`] is exact where a
//! formula is an estimate.

pub mod communication;
pub mod families;
pub mod layout;
pub mod memory;
pub mod sizes;

pub use communication::Communication;
pub use layout::ParallelLayout;
pub use memory::RankMemory;
pub use sizes::TransformerSizes;
