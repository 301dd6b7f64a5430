//! The segments that a stream was given before.

use super::super::{Command, Given};
use std::collections::HashMap;
use std::ops::Index;

/// Occurrences of a segment before it is captured.
const SEEN: u32 = 2;

/// Fewest commands that are worth a graph.
const SHORTEST: usize = 4;

/// The number of a segment.
pub(super) type Id = usize;

#[derive(Debug)]
pub(super) struct Segment<G> {
    pub(super) commands: Vec<Command>,
    pub(super) graph: Option<G>,
    /// No graph could be made of it.
    pub(super) is_refused: bool,
    seen: u32,
}

impl<G> Segment<G> {
    /// Whether it is to be captured.
    pub(super) fn is_due(&self) -> bool {
        self.graph.is_none() && !self.is_refused && self.seen >= SEEN && self.commands.len() >= SHORTEST
    }
}

#[derive(Debug)]
pub(super) struct Segments<G> {
    all: Vec<Segment<G>>,
    /// By the kind of their first command, the latest first.
    by_first: HashMap<u64, Vec<Id>>,
}

impl<G> Default for Segments<G> {
    fn default() -> Self {
        Segments { all: Vec::new(), by_first: HashMap::new() }
    }
}

impl<G> Index<Id> for Segments<G> {
    type Output = Segment<G>;

    fn index(&self, id: Id) -> &Segment<G> {
        &self.all[id]
    }
}

impl<G> Segments<G> {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn all(&self) -> &[Segment<G>] {
        &self.all
    }

    pub(super) fn all_mut(&mut self) -> &mut [Segment<G>] {
        &mut self.all
    }

    /// The latest segment whose first commands are `begun`, and whose next one is `next`; without a next one, it has no
    /// others.
    pub(super) fn find(&self, begun: &[Command], next: Option<&Given<'_>>) -> Option<Id> {
        let kind = begun.first().map(Command::given).as_ref().or(next)?.kind();
        let is_it = |id: &Id| {
            let commands = &self.all[*id].commands;
            let continues = match next {
                Some(next) => commands.get(begun.len()).is_some_and(|command| command.matches(next)),
                None => commands.len() == begun.len(),
            };
            continues && commands.iter().zip(begun).all(|(command, begun)| command.matches(&begun.given()))
        };
        self.by_first.get(&kind)?.iter().copied().find(is_it)
    }

    /// Take over the arguments of commands that are the first ones of a segment.
    pub(super) fn take_over(&mut self, id: Id, begun: &[Command]) {
        for (command, begun) in self.all[id].commands.iter_mut().zip(begun) {
            command.update(&begun.given());
        }
    }

    /// Take over the arguments of a segment's command that is given.
    pub(super) fn update(&mut self, id: Id, at: usize, given: &Given<'_>) {
        self.all[id].commands[at].update(given);
    }

    /// The graph of a segment has its arguments.
    pub(super) fn set_captured(&mut self, id: Id) {
        self.all[id].commands.iter_mut().for_each(Command::set_captured);
    }

    /// All commands of a segment have come again.
    pub(super) fn came_again(&mut self, id: Id) {
        let segment = &mut self.all[id];
        segment.seen = segment.seen.saturating_add(1);
        if let Some(same) = segment.commands.first().and_then(|first| self.by_first.get_mut(&first.given().kind()))
            && let Some(place) = same.iter().position(|other| *other == id)
        {
            same[..=place].rotate_right(1);
        }
    }

    /// A segment that has come for the first time.
    pub(super) fn add(&mut self, commands: Vec<Command>) -> Id {
        let id = self.all.len();
        if let Some(first) = commands.first() {
            self.by_first.entry(first.given().kind()).or_default().insert(0, id);
        }
        self.all.push(Segment { commands, graph: None, is_refused: false, seen: 1 });
        id
    }
}
