//! The recorder over a queue that notes what it was given. A command is a copy of some bytes, or a kernel whose only
//! argument is a number.

use super::super::super::stream::Grid;
use super::super::super::{Function, failure};
use super::super::LibraryCall;
use super::*;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    /// Launch of this kernel, with this argument.
    Kernel(u32, u64),
    Copy(u64),
    /// A call of a library that takes even numbers.
    Call(u64),
}

#[derive(Debug, Clone, PartialEq)]
struct EvenCall(u64);

impl LibraryCall for EvenCall {
    unsafe fn queue(&self, _stream: *mut c_void) -> Result<bool> {
        Ok(self.0.is_multiple_of(2))
    }

    fn kind(&self) -> u64 {
        self.0 / 3
    }

    fn equals(&self, other: &dyn LibraryCall) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<Self>() == Some(self)
    }

    fn to_owned(&self) -> Box<dyn LibraryCall> {
        Box::new(self.clone())
    }
}

/// Notes commands in their order, whichever way they came.
#[derive(Debug, Default)]
struct Noting {
    arrived: RefCell<Vec<Work>>,
    replays: Cell<u64>,
    refuses_graphs: bool,
    refuses_replays: Cell<bool>,
    fails: Cell<bool>,
}

fn work_of(given: &Given<'_>) -> Work {
    match given {
        Given::Kernel { grid, arguments, .. } => {
            Work::Kernel(grid.blocks[0], u64::from_ne_bytes((*arguments).try_into().unwrap()))
        }
        Given::Copy { bytes, .. } => Work::Copy(*bytes as u64),
        Given::Library(call) => {
            let call: &dyn Any = *call;
            Work::Call(call.downcast_ref::<EvenCall>().unwrap().0)
        }
        Given::Fill { .. } => unreachable!(),
    }
}

impl Queue for Noting {
    /// The works as they were captured, then as they were set.
    type Graph = RefCell<Vec<Work>>;

    unsafe fn queue(&self, given: &Given<'_>) -> Result<bool> {
        if self.fails.get() {
            return Err(failure("queue", "the device is lost"));
        }
        let work = work_of(given);
        let taken = !matches!(work, Work::Call(number) if number % 2 == 1);
        self.arrived.borrow_mut().extend(taken.then_some(work));
        Ok(taken)
    }

    fn capture(&self, commands: &[Command]) -> Result<Self::Graph> {
        if self.refuses_graphs {
            return Err(failure("capture", "no graphs here"));
        }
        Ok(RefCell::new(commands.iter().map(|command| work_of(&command.given())).collect()))
    }

    unsafe fn replay(&self, graph: &Self::Graph, commands: &[Command]) -> Result<()> {
        if self.refuses_replays.get() {
            return Err(failure("replay", "no memory for it"));
        }
        let mut works = graph.borrow_mut();
        for (work, command) in works.iter_mut().zip(commands).filter(|(_, command)| command.is_changed()) {
            *work = work_of(&command.given());
        }
        self.arrived.borrow_mut().extend(works.iter());
        self.replays.set(self.replays.get() + 1);
        Ok(())
    }
}

type TestRecorder = Recorder<RefCell<Vec<Work>>>;

fn give(recorder: &mut TestRecorder, queue: &Noting, work: Work) -> Result<bool> {
    let function = Function { handle: std::ptr::null_mut() };
    // SAFETY: nothing is read or written.
    unsafe {
        match work {
            Work::Kernel(kernel, argument) => {
                let (grid, bytes) = (Grid::line(kernel, 32), argument.to_ne_bytes());
                recorder.give(queue, &Given::Kernel { function, grid, arguments: &bytes })
            }
            Work::Copy(bytes) => recorder.give(queue, &Given::Copy { from: 0, to: 0, bytes: bytes as usize }),
            Work::Call(number) => recorder.give(queue, &Given::Library(&EvenCall(number))),
        }
    }
}

/// Give a step, with a wait after it; all of it has arrived then.
fn step(recorder: &mut TestRecorder, queue: &Noting, works: &[Work]) {
    for work in works {
        assert!(give(recorder, queue, *work).unwrap());
    }
    wait(recorder, queue);
    assert_eq!(queue.arrived.take(), works);
}

/// Stands for a wait of the host for the stream.
fn wait(recorder: &mut TestRecorder, queue: &Noting) {
    recorder.settle(queue).unwrap();
    recorder.capture(queue);
}

fn kernels(count: u32, argument: u64) -> Vec<Work> {
    (0..count).map(|kernel| Work::Kernel(kernel + 1, argument)).collect()
}

#[test]
fn a_step_is_captured_when_it_comes_again_and_replayed_from_then_on() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    let works = [kernels(5, 7), vec![Work::Call(2), Work::Copy(3)]].concat();
    for _ in 0..2 {
        step(&mut recorder, &queue, &works);
    }
    assert_eq!((recorder.counts().captured, queue.replays.get()), (1, 0));
    for _ in 0..3 {
        step(&mut recorder, &queue, &works);
    }
    let expected = GraphCounts { captured: 1, replays: 3, replayed: 21, changed: 0, queued: 14 };
    assert_eq!(recorder.counts(), expected);
}

#[test]
fn arguments_of_kernels_may_change_from_step_to_step() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    for argument in [1, 2, 3, 3, 4] {
        let works = [kernels(3, 9), kernels(2, argument)].concat();
        step(&mut recorder, &queue, &works);
    }
    let GraphCounts { replays, changed, .. } = recorder.counts();
    assert_eq!((replays, changed), (3, 2 + 2), "the fourth has the arguments of the third");
}

#[test]
fn what_ended_a_segment_once_does_not_cut_it_for_ever() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    // The first steps are cut where kernels are loaded.
    for _ in 0..2 {
        step(&mut recorder, &queue, &kernels(5, 1));
        step(&mut recorder, &queue, &[Work::Copy(1)]);
        step(&mut recorder, &queue, &[Work::Copy(2); 9]);
    }
    // Other steps, until the longest run that is looked at is full.
    for round in 0..100 {
        step(&mut recorder, &queue, &[Work::Copy(100 + round % 5); 4]);
    }
    let whole = [kernels(5, 1), vec![Work::Copy(1)], vec![Work::Copy(2); 9]].concat();
    for _ in 0..3 {
        step(&mut recorder, &queue, &whole);
    }
    let before = recorder.counts();
    step(&mut recorder, &queue, &whole);
    let after = recorder.counts();
    assert_eq!((after.replays - before.replays, after.queued - before.queued), (1, 0), "{after:?}");
}

#[test]
fn long_steps_are_cut_and_short_ones_queued() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    let works: Vec<Work> = (0..2 * MAX_COMMANDS as u64 + 3).map(Work::Copy).collect();
    for _ in 0..3 {
        step(&mut recorder, &queue, &works);
    }
    assert_eq!((recorder.counts().captured, recorder.counts().replays), (2, 2));
    assert_eq!(recorder.counts().queued, 3 * 3 + 2 * 2 * MAX_COMMANDS as u64, "the last three are too few");
}

#[test]
fn what_comes_instead_or_not_at_all_sets_the_order_right() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    let works: Vec<Work> = (0..9).map(Work::Copy).collect();
    for _ in 0..3 {
        step(&mut recorder, &queue, &works);
    }
    let mut other = works.clone();
    other[5] = Work::Call(4);
    for _ in 0..4 {
        step(&mut recorder, &queue, &other);
        step(&mut recorder, &queue, &works[..6]);
        step(&mut recorder, &queue, &works);
    }
    assert!(recorder.counts().captured >= 3, "{:?}", recorder.counts());
}

#[test]
fn a_refused_call_is_refused_at_once_and_again() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    for _ in 0..4 {
        for work in kernels(4, 1) {
            assert!(give(&mut recorder, &queue, work).unwrap());
        }
        assert!(!give(&mut recorder, &queue, Work::Call(1)).unwrap());
        assert!(give(&mut recorder, &queue, Work::Copy(8)).unwrap());
        recorder.settle(&queue).unwrap();
        assert_eq!(queue.arrived.take(), [kernels(4, 1), vec![Work::Copy(8)]].concat());
    }
}

#[test]
fn without_graphs_everything_is_queued_and_a_failure_ends_the_segment() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting { refuses_graphs: true, ..Noting::default() });
    for _ in 0..4 {
        step(&mut recorder, &queue, &kernels(6, 1));
    }
    assert_eq!(recorder.counts(), GraphCounts { queued: 24, ..GraphCounts::default() });

    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    for _ in 0..3 {
        step(&mut recorder, &queue, &kernels(6, 1));
    }
    queue.fails.set(true);
    assert!(give(&mut recorder, &queue, Work::Kernel(1, 1)).unwrap(), "it is held back");
    assert!(recorder.settle(&queue).is_err());
    queue.fails.set(false);
    // Who gives something next did not give what is lost, and hears of it all the same.
    assert!(give(&mut recorder, &queue, Work::Copy(1)).is_err() && recorder.settle(&queue).is_err());
    assert!(recorder.take_failure().is_some() && recorder.take_failure().is_none());
    step(&mut recorder, &queue, &kernels(6, 1));
}

#[test]
fn where_a_replay_fails_everything_is_queued_one_by_one() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    for round in 0..8 {
        queue.refuses_replays.set(round == 4);
        step(&mut recorder, &queue, &kernels(6, round));
    }
    assert_eq!((recorder.counts().replays, recorder.counts().queued), (2, 6 * 6));
}

#[test]
fn graphs_that_were_dropped_are_made_again() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    for round in 0..8 {
        step(&mut recorder, &queue, &kernels(6, 1));
        assert_eq!(round == 3 && recorder.drop_graphs(&queue).unwrap(), round == 3);
    }
    assert!(!TestRecorder::default().drop_graphs(&queue).unwrap());
    assert_eq!((recorder.counts().captured, recorder.counts().replays), (2, 2 + 2));
}

/// Random steps from a few patterns, cut at random: whatever is replayed, all arrives once and in order.
#[test]
fn any_sequence_arrives_once_and_in_order() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    let (mut state, mut expected) = (1u64, Vec::new());
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..3000 {
        let (pattern, length) = (random(3), 3 + random(3) * 45);
        for at in 0..length {
            let work = match (at + pattern) % 4 {
                0 => Work::Copy(at * (pattern + 1)),
                1 => Work::Call(2 * at),
                // An argument that is mostly the same.
                _ => Work::Kernel(at as u32, u64::from(random(20) == 0)),
            };
            give(&mut recorder, &queue, work).unwrap();
            expected.push(work);
            if random(150) == 0 {
                wait(&mut recorder, &queue);
                assert_eq!(*queue.arrived.borrow(), expected);
            }
        }
        wait(&mut recorder, &queue);
        assert_eq!(queue.arrived.take(), expected);
        expected.clear();
    }
    let counts = recorder.counts();
    assert!(counts.replays > 500 && counts.changed > 500, "{counts:?}");
}

#[test]
fn what_is_held_back_comes_before_graphs_are_dropped() {
    let (mut recorder, queue) = (TestRecorder::default(), Noting::default());
    let works = kernels(6, 1);
    for _ in 0..3 {
        step(&mut recorder, &queue, &works);
    }
    for (at, work) in works.iter().enumerate() {
        assert!(give(&mut recorder, &queue, *work).unwrap());
        assert_eq!(at == 2 && recorder.drop_graphs(&queue).unwrap(), at == 2);
    }
    wait(&mut recorder, &queue);
    assert_eq!(queue.arrived.take(), works);
}
