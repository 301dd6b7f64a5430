//! Memory and processors of this process, for the status line and the metrics file: from [`bmtrain_dist::inspect`].

pub use bmtrain_dist::inspect::resident::{Resident, resident};

pub use bmtrain_dist::inspect::process::{
    Memory, available_bytes, available_cpus, now, peak_resident_bytes, resident_bytes,
};
