//! Short programs over `model-center` to read, run and copy: see the files beside `Cargo.toml`.
