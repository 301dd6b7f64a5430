//! Depends on model-center-train alone: sizes and times are read with their units.

use model_center_train::FinetuneOptions;

#[test]
fn a_run_is_no_dry_run_by_default() {
    assert!(!FinetuneOptions::default().dry_run);
}
