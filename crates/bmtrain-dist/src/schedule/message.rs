//! Messages between stages: the action that needs one, and the action that sends it.
//!
//! Between two stages there may be messages of several chunks, activations as well as gradients. A stage sends them in
//! the order of its actions; a receiver whose transport keeps the order of messages takes them in the same order, which
//! [`Schedule::messages`] lists.

use super::{Action, Schedule, Work};

/// A message from one stage to another: activations after a forward pass, the gradient of an input after a backward
/// pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// The sender's action after which it is sent.
    pub sent_after: Action,
    /// The receiver's action that needs it.
    pub needed_by: Action,
}

impl Schedule {
    /// The stage and chunk whose output an action needs: activations for a forward pass, the gradient of its output for
    /// a backward pass. None for the first chunk's forward pass, the last chunk's backward pass and weight gradients.
    pub fn source(&self, stage: usize, action: Action) -> Option<(usize, usize)> {
        let place = self.place(stage, action.chunk);
        match action.work {
            Work::Forward => place.checked_sub(1),
            Work::Backward | Work::InputGradient => Some(place + 1).filter(|&next| next < self.places()),
            Work::WeightGradient => None,
        }
        .map(|place| self.holder(place))
    }

    /// The stage and chunk that need an action's output. None for the last chunk's forward pass, the first chunk's
    /// backward pass and weight gradients.
    pub fn destination(&self, stage: usize, action: Action) -> Option<(usize, usize)> {
        let place = self.place(stage, action.chunk);
        match action.work {
            Work::Forward => Some(place + 1).filter(|&next| next < self.places()),
            Work::Backward | Work::InputGradient => place.checked_sub(1),
            Work::WeightGradient => None,
        }
        .map(|place| self.holder(place))
    }

    /// The messages from one stage to another in the order in which they are sent. From a stage to itself nothing is
    /// sent: chunks that are neighbours on one stage, at the turn of a V or with one stage, pass values on directly.
    pub fn messages(&self, from: usize, to: usize) -> Vec<Message> {
        if from == to {
            return Vec::new();
        }
        let message = |&action: &Action| {
            let (stage, chunk) = self.destination(from, action)?;
            (stage == to).then_some(Message { sent_after: action, needed_by: Action { chunk, ..action } })
        };
        self.actions(from).iter().filter_map(message).collect()
    }
}
