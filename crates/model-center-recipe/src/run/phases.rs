//! Time of training steps by phase, as the host sees it.
//!
//! Defines [`Phases`]. Filled by the training step, logged with each record.

use std::ops::AddAssign;

/// Seconds of the host by phase. On processors that is the time of the work. A CUDA device works after the host has
/// launched: there the host waits for it in the optimizer's phase, in which gradient norm and loss arrive.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Phases {
    /// Seconds of whole steps.
    pub step: f64,
    /// Waiting for samples.
    pub data: f64,
    /// Forward passes, with the gathering of parameters.
    pub forward: f64,
    /// Backward passes, with recomputation and the reduction of gradients.
    pub backward: f64,
    /// Forward and backward passes of a pipeline, which alternate.
    pub pipeline: f64,
    /// Clipping and update, and waiting for the device and the other ranks.
    pub optimizer: f64,
    /// Saving checkpoints, as far as training waits for it.
    pub save: f64,
}

impl Phases {
    /// Name and seconds of each phase within steps, and of saving; those that took no time are left out.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> + use<> {
        let Phases { data, forward, backward, pipeline, optimizer, save, .. } = *self;
        let all = [
            ("data", data),
            ("forward", forward),
            ("backward", backward),
            ("pipeline", pipeline),
            ("optimizer", optimizer),
            ("save", save),
        ];
        all.into_iter().filter(|(_, seconds)| *seconds > 0.0)
    }
}

impl AddAssign for Phases {
    fn add_assign(&mut self, other: Phases) {
        self.step += other.step;
        self.data += other.data;
        self.forward += other.forward;
        self.backward += other.backward;
        self.pipeline += other.pipeline;
        self.optimizer += other.optimizer;
        self.save += other.save;
    }
}
