//! The CUDA C++ sources of BMTrain, carried as strings so that every crate can be packaged alone.
//!
//! Nothing is compiled here: `bmtrain-core` hands a source to the run-time compiler of the device it runs on.
#![forbid(unsafe_code)]
