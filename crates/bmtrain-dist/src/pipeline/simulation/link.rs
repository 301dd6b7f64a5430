//! The speed of a link between two ranks.

use crate::error::{Error, Result};

/// Latency and bandwidth of a link in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    latency: f64,
    seconds_per_byte: f64,
}

impl Link {
    /// A link that takes no time.
    pub const FREE: Link = Link { latency: 0.0, seconds_per_byte: 0.0 };

    /// A link of `latency` seconds and `bandwidth` bytes per second.
    ///
    /// # Errors
    /// A negative latency, a bandwidth of 0 or less, or one of them not a finite number.
    pub fn new(latency: f64, bandwidth: f64) -> Result<Self> {
        if !(latency.is_finite() && latency >= 0.0 && bandwidth.is_finite() && bandwidth > 0.0) {
            let reason = format!(
                "a latency of {latency} s and a bandwidth of {bandwidth} bytes/s; expected a latency of at least 0 \
                 and a bandwidth above 0"
            );
            return Err(Error::setting("link", reason));
        }
        Ok(Link { latency, seconds_per_byte: 1.0 / bandwidth })
    }

    /// Seconds until the first byte arrives.
    pub fn latency(&self) -> f64 {
        self.latency
    }

    /// Bytes per second; infinite for [`Link::FREE`].
    pub fn bandwidth(&self) -> f64 {
        1.0 / self.seconds_per_byte
    }

    /// Seconds that `bytes` occupy the link.
    pub fn transfer_time(&self, bytes: f64) -> f64 {
        bytes * self.seconds_per_byte
    }
}
