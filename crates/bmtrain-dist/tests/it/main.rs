//! The integration tests of this crate, one module per topic. One program, because linking costs more than most tests.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod ranks;
mod streams;
mod toy;

mod block_list;
mod block_list_ranks;
mod checkpoint;
mod clip;
mod decoding;
mod distributed;
mod encoder_decoder;
mod freezing;
mod golden_optimizers;
mod head;
mod initializers;
mod inspect_model;
mod inspect_tensor;
mod late_lanes;
mod launch;
mod launch_connections;
mod launch_refusals;
mod loss_scale;
mod memory_saving;
mod optim;
mod optimizers;
mod partition;
mod pipeline;
mod pipeline_schedule;
mod pipeline_simulation;
mod recompute;
mod repeated_blocks;
mod run_ranks;
mod schedule;
mod snapshot;
mod store;
mod store_hostile;
mod zero;
mod zero_memory;
