//! Memory of the host beside a device, and the optimizer step on it: what an offloaded optimizer is made of.
//!
//! [`HostBuffer`] holds f32 outside the device's pool; the device's memory report shows it as
//! [`Segment::Offload`](crate::Segment::Offload). [`HostUpdate`] is the step of
//! [`kernel::Adam`](crate::kernel::Adam) or [`kernel::Update`](crate::kernel::Update) as work of the host
//! ([`Backend::on_host`](crate::Backend::on_host)): the CPU backend's own routine, so that the bits are the same.
#![allow(unsafe_code)]

pub use crate::cpu::host::{HostSettings, HostUpdate, widen};
pub use crate::threads::Threads;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::{self, Memory};
use crate::pool::HostAccount;
use std::fmt;
use std::sync::Arc;

/// A run of f32 in the host's memory. It may travel to the thread of a lane; a page that is never touched costs
/// nothing.
pub struct HostBuffer {
    /// Present until drop.
    memory: Option<Memory>,
    address: u64,
    len: usize,
    account: Arc<HostAccount>,
}

impl HostBuffer {
    /// `len` zeros beside this device.
    pub fn zeros(device: &Device, len: usize) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<f32>())
            .ok_or_else(|| Error::shape("host buffer", "length", "below 2^64 bytes", len))?;
        let memory = memory::allocate(bytes)?;
        let account = device.host_account();
        account.add(memory.bytes());
        Ok(HostBuffer { address: memory.address(), memory: Some(memory), len, account })
    }

    /// The values.
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: `memory` is at least `len` f32 long, page-aligned, initialised with zeros, and this value's alone
        // until it is dropped; every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts(self.address as *const f32, self.len) }
    }

    /// The values, to change.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`; the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut f32, self.len) }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} f32)", self.len)
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.account.subtract(memory.bytes());
            memory::release(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Segment;

    #[test]
    fn host_memory_is_zeros_counted_beside_the_device_and_given_back() {
        let device = Device::cpu(1).unwrap();
        let usage = || {
            let report = device.memory();
            (report.segments.iter().find(|(known, _)| *known == Segment::Offload).unwrap().1, report.total.now)
        };
        let mut buffer = HostBuffer::zeros(&device, 5000).unwrap();
        assert!(buffer.as_slice().len() == 5000 && buffer.as_slice().iter().all(|x| *x == 0.0));
        let other = std::thread::spawn(move || {
            buffer.as_mut_slice()[4999] = 3.0;
            buffer
        });
        let buffer = other.join().unwrap();
        assert_eq!(buffer.as_slice()[4999], 3.0);
        let (used, total) = usage();
        assert!((20_000..=24_576).contains(&used.now) && total == 0, "{used:?} {total}");
        drop(buffer);
        assert!(usage().0.now == 0 && usage().0.peak == used.now);
        device.reset_peaks();
        assert_eq!(usage().0.peak, 0);
        assert_eq!(HostBuffer::zeros(&device, 0).unwrap().as_slice(), &[] as &[f32]);
    }
}
