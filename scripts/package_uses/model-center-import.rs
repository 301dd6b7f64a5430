//! Depends on model-center-import alone: a flag of Megatron-LM becomes a line of a recipe.

use model_center_import::import::{ImportOptions, megatron_flags};

#[test]
fn flags_are_listed() {
    assert!(ImportOptions::default().sets.is_empty());
    assert!(megatron_flags().iter().any(|flag| flag.name == "--lr"));
}
