//! Placement of the ranks of a run, a line for each: host, local rank, device, processors and threads.

use super::{ProcessGroup, cores};
use crate::control::ControlGroup;
use crate::error::Result;
use bmtrain_core::cpu::Processors;
use bmtrain_core::device_spec::Opened;

impl ProcessGroup {
    /// A line for each rank, in the order of the ranks, with its place; `threads` is the number of threads of this
    /// rank's CPU backend. None for ranks that are threads of one process. Waits for the other ranks.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn describe_ranks(&self, control: &ControlGroup, opened: &Opened, threads: usize) -> Result<Vec<String>> {
        let launch = self.launch();
        if launch.world <= 1 || launch.ranks_in_process() > 1 {
            return Ok(Vec::new());
        }
        let host = Some(cores::host_name()).filter(|host| !host.is_empty()).unwrap_or_else(|| "unknown host".into());
        let line = format!(
            "rank {} of {}: {host}, local rank {} of {}, {}, processors {}, {threads} thread{}",
            launch.rank,
            launch.world,
            launch.local_rank,
            launch.local_size,
            opened.backend.name(),
            Processors::of_this_process().list(),
            if threads == 1 { "" } else { "s" },
        );
        // A host may have any name: a line stays a line.
        control.gather_texts(&line.replace(char::is_control, "?"))
    }
}
