//! Places of weight gradients in an order of forward passes and input gradients.
//!
//! A run of all stages in equal units of time: a stage whose next action waits for another stage, or for memory, runs
//! its oldest weight gradient instead. What is left at the end follows the last input gradient.

use super::{Action, Schedule, Work};
use std::collections::VecDeque;

/// The orders with weight gradients in them, at most `most` chunks' activations held by a stage at once.
pub(super) fn fill(schedule: &Schedule, orders: Vec<Vec<Action>>, most: usize) -> Vec<Vec<Action>> {
    let mut stages: Vec<Stage> = orders.into_iter().map(Stage::new).collect();
    let mut done = Done::new(schedule.places(), schedule.micro_batches);
    let mut time = 0;
    while stages.iter().any(|stage| !stage.is_finished()) {
        let mut ran = false;
        for (number, stage) in stages.iter_mut().enumerate() {
            let Some(action) = stage.next(schedule, number, &done, time, most) else { continue };
            stage.run(action);
            done.record(schedule.place(number, action.chunk), action, time + 1);
            ran = true;
        }
        debug_assert!(ran, "{} over {} stages does not go on", schedule.kind, schedule.stages);
        if !ran {
            break;
        }
        time += 1;
    }
    stages.into_iter().map(|stage| stage.placed).collect()
}

/// Times at which the forward pass and the input gradient of each place and micro-batch are complete.
struct Done {
    micro_batches: usize,
    forward: Vec<u32>,
    backward: Vec<u32>,
}

impl Done {
    fn new(places: usize, micro_batches: usize) -> Self {
        let never = vec![u32::MAX; places * micro_batches];
        Done { micro_batches, forward: never.clone(), backward: never }
    }

    fn record(&mut self, place: usize, action: Action, time: u32) {
        let index = place * self.micro_batches + action.micro_batch;
        match action.work {
            Work::Forward => self.forward[index] = time,
            Work::Backward | Work::InputGradient => self.backward[index] = time,
            Work::WeightGradient => {}
        }
    }

    /// Whether what an action at a place needs of other places is there.
    fn allows(&self, place: usize, action: Action, time: u32) -> bool {
        let at = |times: &[u32], place: usize| times[place * self.micro_batches + action.micro_batch] <= time;
        let last = self.forward.len() / self.micro_batches - 1;
        match action.work {
            Work::Forward => place == 0 || at(&self.forward, place - 1),
            Work::Backward | Work::InputGradient => {
                at(&self.forward, place) && (place == last || at(&self.backward, place + 1))
            }
            Work::WeightGradient => true,
        }
    }
}

/// One stage of the run.
struct Stage {
    order: Vec<Action>,
    position: usize,
    /// Weight gradients whose input gradients are complete.
    pending: VecDeque<Action>,
    held: usize,
    placed: Vec<Action>,
}

impl Stage {
    fn new(order: Vec<Action>) -> Self {
        let placed = Vec::with_capacity(order.len() / 2 * 3);
        Stage { order, position: 0, pending: VecDeque::new(), held: 0, placed }
    }

    fn is_finished(&self) -> bool {
        self.position == self.order.len() && self.pending.is_empty()
    }

    fn next(&self, schedule: &Schedule, number: usize, done: &Done, time: u32, most: usize) -> Option<Action> {
        let next = self.order.get(self.position).copied().filter(|action| {
            let fits = action.work != Work::Forward || self.held < most;
            fits && done.allows(schedule.place(number, action.chunk), *action, time)
        });
        next.or_else(|| self.pending.front().copied())
    }

    fn run(&mut self, action: Action) {
        self.placed.push(action);
        match action.work {
            Work::WeightGradient => {
                self.pending.pop_front();
                self.held -= 1;
            }
            Work::Forward => {
                self.position += 1;
                self.held += 1;
            }
            Work::Backward | Work::InputGradient => {
                self.position += 1;
                self.pending.push_back(Action { work: Work::WeightGradient, ..action });
            }
        }
    }
}
