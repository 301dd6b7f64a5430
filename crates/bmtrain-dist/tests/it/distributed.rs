//! Process groups whose ranks TCP connects, as on several hosts: threads of this process with a launch each.

use bmtrain_core::Error as CoreError;
use bmtrain_dist::launch::{Connection, DistributedOptions, Launch, ProcessGroup, RankFailure};
use bmtrain_dist::{ControlGroup, Error};
use std::net::TcpListener;
use std::thread::spawn;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

/// Error of a rank.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Joining(#[from] Error),
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error("a label is missing")]
    Data,
}

impl RankFailure for Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Data => 3,
            _ => 6,
        }
    }

    fn report(&self) -> String {
        self.to_string()
    }
}

/// The launch of a rank on a host of its own; all listen at the loopback.
fn launch(rank: usize, world: usize, port: u16) -> Launch {
    let port = port.to_string();
    let (rank, world) = (rank.to_string(), world.to_string());
    let lookup = |name: &str| match name {
        "RANK" => Some(rank.clone()),
        "WORLD_SIZE" => Some(world.clone()),
        "LOCAL_RANK" => Some("0".into()),
        "LOCAL_WORLD_SIZE" => Some("1".into()),
        "MASTER_ADDR" => Some("localhost".into()),
        "BMTRAIN_STORE_BIND" => Some("127.0.0.1".into()),
        "MASTER_PORT" => Some(port.clone()),
        _ => None,
    };
    Launch::detect(None, &lookup).unwrap()
}

/// Run `work` on every rank after joining.
fn ranks<T: Send + 'static>(
    world: usize,
    work: fn(ProcessGroup, usize) -> Result<T, Failure>,
) -> Vec<Result<T, Failure>> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank| {
        spawn(move || {
            let options = DistributedOptions { deadline: Some(SOON), ..DistributedOptions::default() };
            let group = ProcessGroup::join(launch(rank, world, port), options)?;
            assert_eq!(group.hosts()?, Connection::Tcp);
            work(group, rank)
        })
    };
    let ranks: Vec<_> = (0..world).map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn ranks_of_several_hosts_join_over_tcp() {
    let joined = ranks(3, |group, rank| {
        group.run(move |ranks| -> Result<_, Failure> {
            let control = ControlGroup::new(ranks, &bmtrain_core::Device::cpu(1)?);
            Ok(control.gather_texts(&format!("rank {rank}"))?.join(", "))
        })
    });
    assert!(joined.iter().all(|texts| texts.as_ref().is_ok_and(|text| text == "rank 0, rank 1, rank 2")), "{joined:?}");
}

#[test]
fn a_rank_that_fails_at_its_work_gives_the_others_its_exit_code_and_reason() {
    let begin = Instant::now();
    let ended = ranks(3, |group, rank| {
        group.run(move |ranks| -> Result<(), Failure> {
            if rank == 1 {
                return Err(Failure::Data);
            }
            Ok(ranks.barrier()?)
        })
    });
    for (rank, error) in ended.into_iter().map(Result::unwrap_err).enumerate().filter(|(rank, _)| *rank != 1) {
        let told = matches!(&error, Failure::Core(CoreError::RankEnded { rank: 1, code: 3, .. }));
        assert!(told && error.to_string().contains("a label is missing"), "rank {rank}: {error}");
    }
    assert!(begin.elapsed() < SOON / 2);
}

#[test]
fn a_rank_that_ends_before_it_joins_gives_the_others_its_exit_code_and_reason() {
    fn work(group: ProcessGroup, rank: usize, ending: usize) -> Result<(), Failure> {
        if rank == ending {
            group.abandon(3, "a label is missing\nand more");
            return Ok(());
        }
        group.run(|ranks| -> Result<(), Failure> { Ok(ranks.barrier()?) })
    }
    let begin = Instant::now();
    for ending in [0, 2] {
        let ended = match ending {
            0 => ranks(3, |group, rank| work(group, rank, 0)),
            _ => ranks(3, |group, rank| work(group, rank, 2)),
        };
        for error in ended.into_iter().filter_map(Result::err) {
            let Failure::Joining(Error::Core(CoreError::RankEnded { rank, code, reason })) = &error else {
                panic!("{error}")
            };
            assert_eq!((*rank, *code, reason.as_str()), (ending, 3, "a label is missing"));
        }
    }
    assert!(begin.elapsed() < SOON / 2);
}
