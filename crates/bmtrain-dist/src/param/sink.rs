//! Destination of a parameter's gradients: the range of its storage, by the use that a gradient comes from.

use super::Inner;
use super::flat::GradientUse;
use bmtrain_core::autograd::{GradSink, SinkTarget};
use std::rc::Rc;

impl Inner {
    fn grad_target(&self, gradient_use: GradientUse) -> bmtrain_core::Result<SinkTarget> {
        match self.home.get() {
            Some(home) => home.flat.grad_target(home.index, gradient_use),
            None => Err(bmtrain_core::Error::argument("gradient", format!("{} has no storage yet", self.spec.name))),
        }
    }
}

impl GradSink for Inner {
    fn target(&self) -> bmtrain_core::Result<SinkTarget> {
        self.grad_target(GradientUse::Own)
    }
}

/// The second use of a tied parameter.
#[derive(Debug)]
pub(super) struct TiedSink(pub(super) Rc<Inner>);

impl GradSink for TiedSink {
    fn target(&self) -> bmtrain_core::Result<SinkTarget> {
        self.0.grad_target(GradientUse::Tied)
    }
}
