//! The real NCCL, where there is one: no device takes part.
#![cfg(feature = "cuda")]

use bmtrain_core::comm::nccl::Library;
use std::io::Write;
use std::path::PathBuf;

#[test]
fn the_real_library_tells_its_version_and_makes_ids_without_a_driver() {
    let directory = std::env::var_os("BMTRAIN_CUDA_LIB_DIR").map(PathBuf::from);
    let Some(directory) = directory.filter(|directory| directory.join("libnccl.so.2").exists()) else {
        // Straight to the program's own stream, which is not captured as the one of a passed test is.
        let why = "BMTRAIN_CUDA_LIB_DIR names no directory with libnccl.so.2 (pip package nvidia-nccl-cu13)";
        let line = format!("\nSKIPPED the_real_library_tells_its_version_and_makes_ids_without_a_driver: {why}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    };
    let library = Library::open(&[directory.join("libnccl.so.2")]).unwrap();
    assert_eq!(library.path(), directory.join("libnccl.so.2"));
    assert!(library.version().to_string().starts_with("2."), "{}", library.version());
    let ids = [library.unique_id().unwrap(), library.unique_id().unwrap()];
    assert!(ids[0] != ids[1] && ids[0] != [0; 128]);
}
