//! Result of a simulation: the time of every action, and what follows from it for stages and the step.

use crate::schedule::Action;

/// One action in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// Begin, seconds from the start of the step.
    pub start: f64,
    /// End, seconds from the start of the step.
    pub end: f64,
}

/// The actions of one stage in time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// In the order in which they run.
    pub spans: Vec<Span>,
}

impl Timeline {
    /// Begin of its first action, seconds.
    pub fn start(&self) -> f64 {
        self.spans.first().map_or(0.0, |span| span.start)
    }

    /// End of its last action, seconds.
    pub fn end(&self) -> f64 {
        self.spans.last().map_or(0.0, |span| span.end)
    }

    /// Seconds in which it works.
    pub fn busy(&self) -> f64 {
        self.spans.iter().map(|span| span.end - span.start).sum()
    }

    /// Seconds between its first and its last action in which it waits.
    pub fn idle(&self) -> f64 {
        self.spans.windows(2).map(|pair| pair[1].start - pair[0].end).sum()
    }
}

/// A schedule in time.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    stages: Vec<Timeline>,
}

impl Simulation {
    pub(super) fn new(stages: Vec<Timeline>) -> Self {
        Simulation { stages }
    }

    /// The timeline of each stage.
    pub fn stages(&self) -> &[Timeline] {
        &self.stages
    }

    /// Seconds from the first action of any stage to the end of the last.
    pub fn time(&self) -> f64 {
        self.stages.iter().map(Timeline::end).fold(0.0, f64::max)
    }

    /// Idle time over busy time of the stage that waits most between its first and its last action. The time before a
    /// stage's first action is not in it: under schedules without a bubble the stages begin and end one after the
    /// other, and a step can follow the one before it in the same way.
    pub fn bubble(&self) -> f64 {
        let share = |stage: &Timeline| if stage.busy() > 0.0 { stage.idle() / stage.busy() } else { 0.0 };
        self.stages.iter().map(share).fold(0.0, f64::max)
    }
}
