//! Time of repeated work, kernel by kernel, for programs that time it.

use crate::cli::terminal::note;
use bmtrain_core::bench::Seconds;
use bmtrain_core::wrap::Profiled;
use bmtrain_core::{Backend, Device, DeviceChoice};
use model_center_base::Result;
use std::sync::Arc;

/// A device whose work is timed.
pub struct TimedDevice {
    /// The device.
    pub device: Device,
    profiled: Option<Arc<Profiled>>,
}

impl TimedDevice {
    /// The device of the rank with this local rank and local world size; local rank 0 reports how it was chosen.
    pub fn open(choice: DeviceChoice, local: (usize, usize), threads: usize, profile: bool) -> Result<Self> {
        let backend = crate::cli::device::open(choice, local, threads, local.0 == 0)?.backend;
        let profiled = profile.then(|| Arc::new(Profiled::new(Arc::clone(&backend))));
        let device = Device::new(match &profiled {
            Some(profiled) => Arc::clone(profiled) as Arc<dyn Backend>,
            None => backend,
        });
        Ok(TimedDevice { device, profiled })
    }

    /// Forget the kernels so far.
    pub fn reset_profile(&self) {
        self.profiled.iter().for_each(|profiled| profiled.reset());
    }

    /// Print the profile of repetitions that took this time, if there is one.
    pub fn print_profile(&self, seconds: &Seconds) {
        self.profiled.iter().for_each(|profiled| print_profile(profiled, seconds.times()));
    }
}

/// Print each kernel's share of repetitions that took `seconds`: calls, milliseconds and share of one, and rates.
fn print_profile(profiled: &Profiled, seconds: &[f64]) {
    let count = seconds.len() as f64;
    let whole: f64 = seconds.iter().sum::<f64>() / count;
    let mut rows: Vec<_> = profiled.times().into_iter().collect();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    let inside: f64 = rows.iter().map(|(_, time)| time.seconds).sum::<f64>() / count;
    note(&format!("{:<24} {:>8} {:>10} {:>7} {:>10} {:>10}", "kernel", "calls", "ms each", "share", "GFLOP/s", "GB/s"));
    for (name, time) in rows {
        let each = time.seconds / count;
        let rate = |work: u64| work as f64 / time.seconds / 1e9;
        note(&format!(
            "{name:<24} {:>8} {:>10.2} {:>6.1}% {:>10.1} {:>10.1}",
            time.calls as f64 / count,
            1e3 * each,
            100.0 * each / whole,
            rate(time.cost.flops),
            rate(time.cost.bytes)
        ));
    }
    note(&format!(
        "{:<24} {:>8} {:>10.2} {:>6.1}%",
        "outside kernels",
        "",
        1e3 * (whole - inside),
        100.0 * (whole - inside) / whole
    ));
}
