//! The conformance table on a backend that lives in another crate.

use bmtrain_core::conformance::{self, Case, Outcome, Report};
use bmtrain_core::{DType, Device, Segment, Tensor};
use own_backend::OwnBackend;
use std::sync::Arc;

/// Every row but the large ones, which are for threads and timing.
fn report() -> Report {
    let cases: Vec<Case> = conformance::cases().into_iter().filter(|case| !case.large).collect();
    let mut report = Report::default();
    conformance::run_rows(&|| Ok(Device::new(Arc::new(OwnBackend::new()))), &cases, &mut report).unwrap();
    report
}

#[test]
fn nothing_it_computes_is_wrong() {
    let failures: Vec<String> = report().failures().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn what_it_has_is_compared_and_the_rest_is_refused_by_name() {
    let report = report();
    let compared: Vec<&str> = report
        .entries
        .iter()
        .filter(|entry| matches!(entry.outcome, Outcome::Compared(_)))
        .map(|entry| entry.case.as_str())
        .collect();
    for row in ["add", "mul", "scale", "add_scaled/into itself", "multiply/added", "cast/to f32/added"] {
        assert!(compared.contains(&row), "{row} was not compared, only {compared:?}");
    }
    let refused = report.entries.iter().find(|entry| entry.case.starts_with("softmax/")).unwrap();
    assert!(refused.to_string().contains("backend own has no kernel softmax"), "{refused}");
}

#[test]
fn a_closed_device_has_given_all_memory_back() {
    let backend = Arc::new(OwnBackend::new());
    let device = Device::new(backend.clone());
    let ones = Tensor::full_in(&device, [3], DType::F32, 1.0, Segment::Data).unwrap();
    assert_eq!(ones.to_vec::<f32>().unwrap(), [1.0; 3]);
    assert!(backend.held_bytes() > 0);
    drop((ones, device));
    assert_eq!(backend.held_bytes(), 0);
}
