//! Schedules on transports whose messages wait for their receiver: a simulation of lanes and connections, without
//! devices.
//!
//! [`Schedule::check`] supposes that sends never block. A transport with little room lets a send wait for its receiver
//! while it holds up the lane of sends; NCCL also runs what goes over one connection, sends and receives, one after the
//! other in the order of the calls. No schedule may come to a halt there.

use bmtrain_dist::pipeline::{Schedule, ScheduleKind, Work};
use std::collections::VecDeque;

/// A message by sender, receiver, number between the two, and whether it is a gradient.
type Key = (usize, usize, usize, bool);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Receive(Key),
    /// An action by its number.
    Compute(usize),
}

#[derive(Debug, Default)]
struct Stage {
    compute: VecDeque<Step>,
    /// Messages, with the action that has to be done before.
    sends: VecDeque<(Key, usize)>,
    /// Messages to and from lower stages and higher ones, in the order of the calls, if connections have one.
    connections: [VecDeque<Key>; 4],
    done: usize,
}

/// Upwards or downwards, in the group of activations or in the group of gradients.
fn connection((from, to, _, is_gradient): Key) -> usize {
    usize::from(from > to) + 2 * usize::from(is_gradient)
}

fn stage_of(schedule: &Schedule, own: usize, has_connections: bool) -> Stage {
    let mut stage = Stage::default();
    let mut taken = vec![0_usize; schedule.stages()];
    let mut sent = vec![0; schedule.stages()];
    for (number, &action) in schedule.actions(own).iter().enumerate() {
        if let Some((from, _)) = schedule.source(own, action).filter(|(from, _)| *from != own) {
            let messages = schedule.messages(from, own);
            let needed = messages.iter().position(|message| message.needed_by == action).unwrap();
            for (number, message) in messages.iter().enumerate().take(needed + 1).skip(taken[from]) {
                let key = (from, own, number, message.needed_by.work != Work::Forward);
                stage.compute.push_back(Step::Receive(key));
                stage.connections[connection(key)].push_back(key);
            }
            taken[from] = taken[from].max(needed + 1);
        }
        stage.compute.push_back(Step::Compute(number));
        if let Some((to, _)) = schedule.destination(own, action).filter(|(to, _)| *to != own) {
            let key = (own, to, sent[to], action.work != Work::Forward);
            sent[to] += 1;
            stage.sends.push_back((key, number));
            stage.connections[connection(key)].push_back(key);
        }
    }
    if !has_connections {
        stage.connections = Default::default();
    }
    stage
}

/// Whether all stages come to their end.
fn ends(schedule: &Schedule, has_connections: bool) -> bool {
    let mut stages: Vec<Stage> = (0..schedule.stages()).map(|own| stage_of(schedule, own, has_connections)).collect();
    let is_next =
        |stage: &Stage, key: Key| !has_connections || stage.connections[connection(key)].front() == Some(&key);
    loop {
        let mut moved = false;
        for own in 0..stages.len() {
            while let Some(Step::Compute(number)) = stages[own].compute.front().copied() {
                stages[own].compute.pop_front();
                stages[own].done = number + 1;
                moved = true;
            }
            let Some(Step::Receive(key)) = stages[own].compute.front().copied() else { continue };
            let from = key.0;
            let is_sent =
                stages[from].sends.front().is_some_and(|(sent, after)| *sent == key && *after < stages[from].done);
            if is_sent && is_next(&stages[own], key) && is_next(&stages[from], key) {
                stages[from].sends.pop_front();
                stages[own].compute.pop_front();
                if has_connections {
                    stages[from].connections[connection(key)].pop_front();
                    stages[own].connections[connection(key)].pop_front();
                }
                moved = true;
            }
        }
        if stages.iter().all(|stage| stage.compute.is_empty() && stage.sends.is_empty()) {
            return true;
        }
        if !moved {
            return false;
        }
    }
}

#[test]
fn no_schedule_halts_where_sends_wait_for_their_receivers() {
    let mut halted = Vec::new();
    for kind in ScheduleKind::ALL {
        for (stages, chunks) in [(2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (3, 2), (4, 2), (8, 2), (2, 3), (4, 3)] {
            for micro_batches in [1, 2, 3, 4, 6, 8, 12, 24] {
                let Ok(schedule) = Schedule::new(kind, stages, chunks, micro_batches) else { continue };
                for has_connections in [false, true] {
                    if !ends(&schedule, has_connections) {
                        halted.push((kind, stages, chunks, micro_batches, has_connections));
                    }
                }
            }
        }
    }
    assert!(halted.is_empty(), "{} halt: {halted:?}", halted.len());
}
