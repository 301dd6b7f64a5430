//! Memory of this process, for the status line and the metrics file: from [`bmtrain_dist::inspect`].

pub use bmtrain_dist::inspect::process::{
    Memory, Resident, available_bytes, now, peak_resident_bytes, resident, resident_bytes,
};
