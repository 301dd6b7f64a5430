//! The doctor program: the processors that it finds are those that its launcher leaves to it.

use bmtrain_core::cpu::{Pinning, Placement, Processors};
use serde_json::{Value, json};
use std::process::Command;

fn doctor(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_doctor")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn processors_are_those_of_the_affinity_mask_that_a_launcher_set() {
    let found = Processors::of_this_process();
    let last = found.cores.len() - 1;
    let placement = Placement { pinning: Pinning::Cores, index: last, ranks: last + 1 };
    // A program has the mask of the thread that started it.
    let start = move || {
        placement.pin_rank();
        (doctor(&["--json"]), doctor(&[]))
    };
    let (object, text) = std::thread::scope(|scope| scope.spawn(start).join().unwrap());
    let object: Value = serde_json::from_str(&object).unwrap();
    let own = Processors { cores: vec![found.cores[last].clone()], ..found.clone() };
    let of = |key: &str| object[key].clone();
    assert_eq!([of("processors"), of("cores"), of("threads")], [json!(own.count()), json!(1), json!(1)]);
    if found.has_mask {
        assert_eq!(of("affinity"), json!(own.list()));
    }
    for line in ["\nthreads      1 by default, ", "\npinning      threads are not pinned", "\nCPU quota    "] {
        assert!(text.contains(line), "{text}");
    }
}
