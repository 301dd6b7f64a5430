//! Tests of communicators and of ops over them: ranks as threads and as processes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

#[path = "../ranks/mod.rs"]
mod ranks;

mod collective_ops;
mod collectives;
mod comm;
mod comm_failures;
mod comm_processes;
mod conjugate_ops;
mod groups;
mod message_ops;
mod overlapped_products;
mod pipeline_example;
mod tcp;
mod token_shards;
mod vocabulary;
