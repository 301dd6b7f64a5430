//! Depends on model-center-models alone: every family is in the registry under its own name.

use model_center_models::Registry;

#[test]
fn families_are_found_by_their_type() {
    let registry = Registry::default();
    let bert = registry.entries().find(|entry| entry.model_type == "bert");
    assert!(bert.is_some() && registry.entries().count() > 15);
}
