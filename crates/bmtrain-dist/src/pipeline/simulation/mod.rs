//! A schedule in time: when each stage computes, waits and sends, for given durations of work and speeds of links.
//!
//! [`simulate`] runs every stage through its actions. An action begins when the stage is free and its input is there; a
//! message leaves at the end of the action that made it, after the messages before it between the same two stages.
//! Nothing is random and nothing is measured, so a result is a function of [`PipelineCosts`] alone.

mod link;
mod timeline;

pub use link::Link;
pub use timeline::{Simulation, Span, Timeline};

use crate::error::{Error, Result};
use crate::schedule::{Action, Schedule, Work};

/// Seconds that one chunk's work on one micro-batch takes, of computation and of the communication within the stage
/// that it waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkTimes {
    /// Time of the forward pass.
    pub forward: f64,
    /// Time of the gradient of the input, recomputation included.
    pub input_gradient: f64,
    /// Time of the gradients of the weights.
    pub weight_gradient: f64,
}

impl WorkTimes {
    /// Seconds of one action.
    pub fn of(&self, work: Work) -> f64 {
        match work {
            Work::Forward => self.forward,
            Work::Backward => self.input_gradient + self.weight_gradient,
            Work::InputGradient => self.input_gradient,
            Work::WeightGradient => self.weight_gradient,
        }
    }
}

/// Whether a stage computes while it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfer {
    /// It continues with its next action at once: messages are on a lane of their own.
    #[default]
    Overlapped,
    /// It waits until its message has arrived.
    Blocking,
}

/// Costs of a schedule on a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelineCosts {
    /// Work of each chunk of the model, by place: [`Schedule::places`] of them.
    pub work: Vec<WorkTimes>,
    /// Bytes of one message: the hidden states of a micro-batch, or their gradient.
    pub message_bytes: f64,
    /// Number of the host of each stage.
    pub hosts: Vec<usize>,
    /// Links between stages on one host.
    pub inside: Link,
    /// Links between stages on different hosts.
    pub between: Link,
    /// Whether messages overlap with computation.
    pub transfer: Transfer,
}

impl PipelineCosts {
    /// Every part of every chunk's work takes one second, and messages take no time.
    pub fn equal(schedule: &Schedule) -> Self {
        let unit = WorkTimes { forward: 1.0, input_gradient: 1.0, weight_gradient: 1.0 };
        PipelineCosts {
            work: vec![unit; schedule.places()],
            message_bytes: 0.0,
            hosts: vec![0; schedule.stages()],
            inside: Link::FREE,
            between: Link::FREE,
            transfer: Transfer::Overlapped,
        }
    }

    /// These costs with messages that take no time.
    #[must_use]
    pub fn with_free_links(&self) -> Self {
        PipelineCosts { inside: Link::FREE, between: Link::FREE, ..self.clone() }
    }

    /// The link between two stages.
    fn link(&self, from: usize, to: usize) -> Link {
        if self.hosts[from] == self.hosts[to] { self.inside } else { self.between }
    }

    fn check(&self, schedule: &Schedule) -> Result<()> {
        let refuse = |reason: String| Err(Error::setting("pipeline simulation", reason));
        if self.work.len() != schedule.places() {
            return refuse(format!("{} chunks have work times, expected {}", self.work.len(), schedule.places()));
        }
        if self.hosts.len() != schedule.stages() {
            return refuse(format!("{} stages have a host, expected {}", self.hosts.len(), schedule.stages()));
        }
        let times = self.work.iter().flat_map(|work| [work.forward, work.input_gradient, work.weight_gradient]);
        match times.chain([self.message_bytes]).find(|number| !(number.is_finite() && *number >= 0.0)) {
            Some(number) => refuse(format!("a work time or message size is {number}; expected a number of at least 0")),
            None => Ok(()),
        }
    }
}

/// Run a schedule in time.
///
/// # Errors
/// Costs of another number of chunks or stages, times that are negative or not finite, and a schedule that
/// [`Schedule::check`] refuses.
pub fn simulate(schedule: &Schedule, costs: &PipelineCosts) -> Result<Simulation> {
    costs.check(schedule)?;
    schedule.check()?;
    let mut engine = Engine::new(schedule, costs);
    while (0..schedule.stages()).fold(false, |moved, stage| engine.advance(stage) | moved) {}
    Ok(Simulation::new(engine.stages.into_iter().map(|stage| stage.timeline).collect()))
}

/// All stages on their way through the schedule.
struct Engine<'a> {
    schedule: &'a Schedule,
    costs: &'a PipelineCosts,
    stages: Vec<Stage>,
    /// Time at which the output of each place and micro-batch is at its receiver: of the forward and of the backward
    /// pass.
    arrivals: Vec<[Option<f64>; 2]>,
}

struct Stage {
    timeline: Timeline,
    /// Time at which it can begin its next action.
    free: f64,
    /// Time at which its link to each other stage can take the next message.
    links: Vec<f64>,
}

impl<'a> Engine<'a> {
    fn new(schedule: &'a Schedule, costs: &'a PipelineCosts) -> Self {
        let stage = || Stage { timeline: Timeline::default(), free: 0.0, links: vec![0.0; schedule.stages()] };
        Engine {
            schedule,
            costs,
            stages: (0..schedule.stages()).map(|_| stage()).collect(),
            arrivals: vec![[None; 2]; schedule.places() * schedule.micro_batches()],
        }
    }

    /// Run a stage until it needs what no stage has sent yet. Returns whether it ran an action.
    fn advance(&mut self, stage: usize) -> bool {
        let mut moved = false;
        while let Some(&action) = self.schedule.actions(stage).get(self.stages[stage].timeline.spans.len()) {
            let Some(input) = self.input(stage, action) else { break };
            self.run(stage, action, input);
            moved = true;
        }
        moved
    }

    /// Time at which an action's input is there; `None` while that is unknown. What the stage itself computed before is
    /// there.
    fn input(&self, stage: usize, action: Action) -> Option<f64> {
        let Some((from, chunk)) = self.schedule.source(stage, action) else { return Some(0.0) };
        let place = self.schedule.place(from, chunk);
        self.arrivals[self.slot(place, action)][usize::from(action.work != Work::Forward)]
    }

    fn run(&mut self, number: usize, action: Action, input: f64) {
        let place = self.schedule.place(number, action.chunk);
        let stage = &mut self.stages[number];
        let start = stage.free.max(input);
        let end = start + self.costs.work[place].of(action.work);
        stage.timeline.spans.push(Span { action, start, end });
        stage.free = end;
        if action.work == Work::WeightGradient {
            return;
        }
        let mut arrival = end;
        if let Some((to, _)) = self.schedule.destination(number, action).filter(|&(to, _)| to != number) {
            let link = self.costs.link(number, to);
            // Messages occupy the link one after the other; their latencies overlap.
            let sent = stage.links[to].max(end) + link.transfer_time(self.costs.message_bytes);
            stage.links[to] = sent;
            arrival = sent + link.latency();
            if self.costs.transfer == Transfer::Blocking {
                stage.free = arrival;
            }
        }
        let slot = self.slot(place, action);
        self.arrivals[slot][usize::from(action.work != Work::Forward)] = Some(arrival);
    }

    fn slot(&self, place: usize, action: Action) -> usize {
        place * self.schedule.micro_batches() + action.micro_batch
    }
}
