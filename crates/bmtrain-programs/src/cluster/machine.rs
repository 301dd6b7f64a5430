//! A machine as numbers: rates of its ranks and speeds of its links.

use crate::{Error, Result};
use bmtrain_dist::pipeline::Link;

/// Hosts of equal ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Name of the machine.
    pub name: String,
    /// Floating-point operations per second that a rank reaches at most.
    pub flops: f64,
    /// The share of them that a transformer's blocks reach on one rank without communication.
    pub efficiency: f64,
    /// Ranks of a host.
    pub ranks_per_host: usize,
    /// Between two ranks of a host.
    pub inside: Link,
    /// Between two ranks of different hosts: a rank's share of its host's network.
    pub between: Link,
    /// Bytes per second at which a rank's optimizer reads and writes its state; infinite where it is left out.
    pub optimizer_bandwidth: f64,
}

/// Bytes that Adam reads and writes of a value: both moments and the master, the gradient and the 16-bit parameter.
const OPTIMIZER_BYTES: f64 = 30.0;

impl Machine {
    /// An example for comparisons: eight ranks of 300 TFLOP/s at 45 % on each host, 200 GB/s inside and 25 GB/s for
    /// each rank between hosts, 1.5 TB/s of memory.
    ///
    /// # Errors
    /// None: the links are valid.
    pub fn example() -> Result<Self> {
        Ok(Machine {
            name: "example: 8 x 300 TFLOP/s a host at 45 %, 200 GB/s inside, 25 GB/s a rank between hosts".into(),
            flops: 300e12,
            efficiency: 0.45,
            ranks_per_host: 8,
            inside: Link::new(5e-6, 200e9)?,
            between: Link::new(10e-6, 25e9)?,
            optimizer_bandwidth: 1.5e12,
        })
    }

    /// Refuses rates that are none; `place` names their source.
    ///
    /// # Errors
    /// [`Error::Argument`] with the field.
    pub fn validate(&self, place: &str) -> Result<()> {
        let refuse = |name: &str, value: String, fix: &str| {
            Err(Error::argument(format!("{place}, machine.{name}"), value, fix.to_owned()))
        };
        if !(self.flops.is_finite() && self.flops > 0.0) {
            return refuse("flops", format!("{} operations per second", self.flops), "give a number above 0");
        }
        if !(self.efficiency > 0.0 && self.efficiency <= 1.0) {
            return refuse("efficiency", format!("a share of {}", self.efficiency), "give a number in (0, 1]");
        }
        if self.ranks_per_host == 0 {
            return refuse("ranks_per_host", "0 ranks".into(), "give a number above 0");
        }
        if self.optimizer_bandwidth.is_nan() || self.optimizer_bandwidth <= 0.0 {
            let reason = format!("{} bytes per second", self.optimizer_bandwidth);
            return refuse("optimizer_bandwidth", reason, "give a number above 0");
        }
        Ok(())
    }

    /// Seconds of arithmetic on one rank.
    pub fn compute_time(&self, flops: f64) -> f64 {
        flops / (self.flops * self.efficiency)
    }

    /// Seconds of an optimizer step over this number of values.
    pub fn optimizer_time(&self, values: f64) -> f64 {
        values * OPTIMIZER_BYTES / self.optimizer_bandwidth
    }
}
