//! Ranks as threads: results in order, the first failure by time, panics by name, no rank waits for ever.

use bmtrain_core::backend::{Backend, Lane};
use bmtrain_core::comm::{Collective, Communicator, Solo};
use bmtrain_dist::Error;
use bmtrain_dist::launch::{RankError, run_group, run_ranks, run_ranks_within};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

fn failure(reason: &str) -> Error {
    Error::setting("test", reason)
}

#[test]
fn results_are_in_the_order_of_the_ranks_and_threads_have_their_names() {
    let barrier = Arc::new(Barrier::new(4));
    let names = run_ranks(4, |rank| {
        let barrier = barrier.clone();
        move || -> Result<_, Error> {
            // All four run at once, or this never ends.
            barrier.wait();
            std::thread::sleep(Duration::from_millis(5 * (4 - rank as u64)));
            Ok((rank, std::thread::current().name().unwrap().to_owned()))
        }
    });
    let expected: Vec<_> = (0..4).map(|rank| (rank, format!("rank {rank}"))).collect();
    assert_eq!(names.unwrap(), expected);
    assert_eq!(run_ranks(0, |_| || Ok::<(), Error>(())).unwrap(), []);
}

#[test]
fn the_first_failure_by_time_is_told_not_the_lowest_rank() {
    let (tell, told) = channel::<()>();
    let mut ends = (Some(tell), Some(told));
    let error = run_ranks(3, |rank| {
        let (tell, told) = (if rank == 2 { ends.0.take() } else { None }, if rank == 0 { ends.1.take() } else { None });
        move || -> Result<(), Error> {
            match (rank, told) {
                (0, Some(told)) => {
                    // Fails as a consequence of rank 2's failure, some time after it.
                    let _ = told.recv();
                    std::thread::sleep(Duration::from_millis(100));
                    Err(failure("consequence"))
                }
                (2, _) => {
                    drop(tell);
                    Err(failure("cause"))
                }
                _ => Ok(()),
            }
        }
    })
    .unwrap_err();
    assert_eq!((error.rank, error.unfinished.as_slice()), (2, [].as_slice()));
    assert_eq!(error.to_string(), "rank 2: test: cause");
}

#[test]
fn a_panic_is_an_error_with_the_rank_and_the_message() {
    for (text, expected) in
        [(false, "thread of rank 1: panicked: plain"), (true, "thread of rank 1: panicked: number 7")]
    {
        let error: RankError<Error> = run_ranks(2, |rank| {
            move || {
                match (rank, text) {
                    (1, true) => panic!("number {}", 7),
                    (1, false) => panic!("plain"),
                    _ => {}
                }
                Ok(())
            }
        })
        .unwrap_err();
        assert!(matches!(error.error, Error::RankThread { rank: 1, .. }));
        assert_eq!((error.rank, error.error.to_string().as_str()), (1, expected));
    }
}

#[test]
fn a_rank_that_never_ends_is_left_behind_after_a_failure_and_named() {
    let started = Instant::now();
    let (keep, wait) = channel::<()>();
    let mut wait = Some(wait);
    let error = run_ranks_within(3, Duration::from_millis(50), |rank| {
        let wait = if rank == 1 { wait.take() } else { None };
        move || -> Result<(), Error> {
            if let Some(wait) = wait {
                let _ = wait.recv();
            }
            if rank == 2 { Err(failure("gone")) } else { Ok(()) }
        }
    })
    .unwrap_err();
    assert_eq!((error.rank, error.unfinished.as_slice()), (2, [1].as_slice()));
    assert_eq!(error.to_string(), "rank 2: test: gone (rank 1 did not end)");
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(keep);
}

/// Members of one group that only know whether it was given up, and by whom.
#[derive(Debug)]
struct Member {
    rank: usize,
    given_up: Arc<(Mutex<Option<String>>, Condvar)>,
}

impl Member {
    fn group(size: usize) -> Vec<Arc<dyn Communicator>> {
        let given_up = Arc::new((Mutex::new(None), Condvar::new()));
        let member = |rank| Arc::new(Member { rank, given_up: given_up.clone() }) as Arc<dyn Communicator>;
        (0..size).map(member).collect()
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        3
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> bmtrain_core::Result<()> {
        Solo.launch(backend, collective, on)
    }

    fn split(&self, colour: usize, key: usize) -> bmtrain_core::Result<Arc<dyn Communicator>> {
        Solo.split(colour, key)
    }

    /// No rank ever comes: this ends when the group is given up.
    fn barrier(&self) -> bmtrain_core::Result<()> {
        let (reason, changed) = &*self.given_up;
        let mut reason = reason.lock().unwrap();
        while reason.is_none() {
            reason = changed.wait(reason).unwrap();
        }
        Err(bmtrain_core::Error::argument("barrier", reason.clone().unwrap()))
    }

    fn abort(&self, reason: &str) {
        *self.given_up.0.lock().unwrap() = Some(format!("rank {} gave up: {reason}", self.rank));
        self.given_up.1.notify_all();
    }
}

#[test]
fn a_failing_rank_gives_its_group_up_and_stays_the_cause() {
    for panics in [false, true] {
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let error = run_group(Member::group(3), |rank, communicator| {
            let reasons = reasons.clone();
            move || -> Result<(), Error> {
                if rank == 1 {
                    assert!(!panics, "on purpose");
                    return Err(failure("on purpose"));
                }
                let ended = communicator.barrier().map_err(Error::from);
                reasons.lock().unwrap().push(ended.as_ref().unwrap_err().to_string());
                ended
            }
        })
        .unwrap_err();
        assert_eq!((error.rank, error.unfinished.len()), (1, 0));
        assert!(error.to_string().contains("on purpose"));
        let reasons = reasons.lock().unwrap();
        assert_eq!(reasons.len(), 2);
        for reason in reasons.iter() {
            assert!(reason.contains("rank 1 gave up") && reason.contains("on purpose"), "{reason}");
        }
    }
}

#[test]
fn a_group_that_succeeds_is_not_given_up() {
    let group = Member::group(3);
    let witness = group[0].clone();
    let ranks = run_group(group, |rank, communicator| {
        move || -> Result<_, Error> {
            assert_eq!(communicator.rank(), rank);
            Ok(rank)
        }
    });
    assert_eq!(ranks.unwrap(), [0, 1, 2]);
    assert!(format!("{witness:?}").contains("None"));
}
