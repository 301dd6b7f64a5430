//! Depends on model-center-train alone: by default a run is a whole one.

use model_center_train::FinetuneOptions;

#[test]
fn a_run_is_whole_by_default() {
    assert!(!FinetuneOptions::default().dry_run);
}
