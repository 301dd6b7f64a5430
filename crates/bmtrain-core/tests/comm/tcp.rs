//! Ranks that are connected by TCP: the bits of ranks of one machine, and every way to lose a rank or its host. Ranks
//! are threads with connections of this machine's loopback; the other end of a lost rank is a bare socket.

use crate::ranks::{Op, Rank, SOON, SUM, afresh, failure, options, program, program_of, threads, values};
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::tcp::{TcpLinks, TcpOptions, TcpRank};
use bmtrain_core::{DType, Error};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A deadline that no busy machine reaches by itself.
const PATIENT: TcpOptions = TcpOptions { deadline: Duration::from_secs(60) };
/// One that some ranks are meant to reach.
const BRIEF: TcpOptions = TcpOptions { deadline: Duration::from_millis(1500) };

/// Both ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// The connections of `size` ranks on two hosts, `a` and `b`.
fn links(size: usize) -> Vec<TcpLinks> {
    let hosts: Vec<String> = (0..size).map(|rank| if 2 * rank < size { "a".into() } else { "b".into() }).collect();
    let (near, far): (Vec<_>, Vec<_>) = (1..size).map(|_| pair()).unzip();
    let of = |rank, streams| TcpLinks { rank, hosts: hosts.clone(), streams };
    let first = of(0, (1..).zip(near).collect());
    [first].into_iter().chain((1..).zip(far).map(|(rank, stream)| of(rank, vec![(0, stream)]))).collect()
}

/// Run `body` on every rank; what each returned, by rank.
fn ranks<T: Send>(size: usize, options: TcpOptions, body: impl Fn(TcpRank) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = links(size)
            .into_iter()
            .map(|links| scope.spawn(move || body(TcpRank::join(links, options).unwrap())))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The first ranks of a job, and the bare connection of its last one to rank 0.
fn without_the_last(size: usize) -> (Vec<TcpLinks>, TcpStream) {
    let mut links = links(size);
    let (_, stream) = links.pop().unwrap().streams.pop().unwrap();
    (links, stream)
}

/// Frame of a bare connection: a message to `rank` that claims to have `count` integers.
fn frame(count: u32, rank: u32, words: &[u64]) -> Vec<u8> {
    let mut bytes = [count.to_le_bytes(), rank.to_le_bytes()].concat();
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

/// All ranks but the last call a sum; how each call fails, while `last` has the last one's connection.
fn failures(
    size: usize,
    options: TcpOptions,
    last: impl FnOnce(&mut TcpStream),
) -> Vec<(String, Vec<usize>, Duration)> {
    let (links, mut stream) = without_the_last(size);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = links
            .into_iter()
            .map(|links| {
                scope.spawn(move || {
                    let rank = Rank::new(TcpRank::join(links, options).unwrap());
                    let ((_, _, reason, ranks), time) = failure(&rank, SUM, 3);
                    // It stays so, and a caller that only looks is told too.
                    assert!(rank.rank.failure().is_some_and(|error| error.to_string().contains(&reason)));
                    (reason, ranks, time)
                })
            })
            .collect();
        last(&mut stream);
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_program_of_calls_on_two_groups_has_the_bits_of_ranks_of_one_machine() {
    for size in [1, 2, 3, 5] {
        let expected = threads(size.max(2), options(), program);
        if size > 1 {
            let split = |rank: &TcpRank, color, key| rank.subgroup(color, key).unwrap();
            assert_eq!(ranks(size, PATIENT, |rank| program_of(rank, split)), expected, "{size} ranks");
        } else {
            let alone = ranks(1, PATIENT, |rank| Rank::new(rank).sum(&[1.5]).unwrap());
            assert_eq!(alone, [vec![1.5]]);
        }
    }
}

#[test]
fn values_longer_than_a_message_arrive_whole() {
    let bytes = 300_001;
    let got = ranks(3, PATIENT, |rank| {
        let own = rank.rank();
        let rank = Rank::new(rank);
        let call = |op, salt| rank.call(op, DType::U8, &values(DType::U8, bytes, own, salt)).unwrap();
        let sent = match own {
            1 => call(Op::Send(2), 1),
            2 => rank.call(Op::Recv(1, bytes), DType::U8, &[]).unwrap(),
            _ => vec![],
        };
        rank.rank.barrier().unwrap();
        (call(Op::AllGather, 2), sent)
    });
    let all: Vec<u8> = (0..3).flat_map(|rank| values(DType::U8, bytes, rank, 2)).collect();
    assert!(got.iter().all(|(gathered, _)| *gathered == all));
    assert!(got[2].1 == values(DType::U8, bytes, 1, 1));
}

#[test]
fn other_calls_on_other_ranks_are_named_with_their_hosts() {
    let reported = ranks(3, PATIENT, |rank| {
        let own = rank.rank();
        failure(&Rank::new(rank), if own == 2 { Op::AllGather } else { SUM }, 8)
    });
    for ((_, _, reason, ranks), time) in reported {
        assert!(reason.contains("rank 2 on b") && reason.contains("all_gather of 8 x f32"), "{reason}");
        assert!(ranks.contains(&2) && time < 5 * SOON, "{ranks:?} after {time:?}");
    }
}

#[test]
fn a_process_that_ends_is_named_at_once_on_every_rank() {
    for (reason, ranks, time) in failures(4, PATIENT, |last| last.shutdown(Shutdown::Both).unwrap()) {
        assert!(reason.contains("the process of rank 3 on b has ended"), "{reason}");
        assert!(ranks == [3] && time < SOON, "{ranks:?} after {time:?}");
    }
}

#[test]
fn a_host_that_is_silent_is_named_at_the_deadline_on_every_rank() {
    for (reason, ranks, time) in failures(3, BRIEF, |_| std::thread::sleep(2 * BRIEF.deadline)) {
        assert!(reason.contains("rank 2 on b") && reason.contains("nothing from"), "{reason}");
        assert!(ranks == [2] && time < 3 * BRIEF.deadline, "{ranks:?} after {time:?}");
    }
}

#[test]
fn an_end_that_sends_junk_fails_the_job_by_name_and_harms_nothing() {
    let junk = [
        ("noise", (0..64).map(|n| (n * 37 + 11) as u8).collect::<Vec<u8>>()),
        ("a frame of 32 GiB", frame(u32::MAX, 0, &[])),
        ("a receiver that does not exist", frame(6, 9, &[0; 6])),
        ("a message to itself", frame(6, 2, &[0; 6])),
        ("an unknown kind", frame(6, 0, &[99, 0, 0, 0, 0, 0])),
        ("more content than there is", frame(6, 0, &[1, 0, 0, 0, 0, 80])),
    ];
    for (what, bytes) in junk {
        let reported = failures(3, PATIENT, |last| {
            last.write_all(&bytes).unwrap();
            // Until rank 0 has closed the connection.
            let _ = last.read_to_end(&mut Vec::new());
        });
        for (reason, ranks, _) in reported {
            assert!(reason.contains("rank 2 on b sent something that is not from this program"), "{what}: {reason}");
            assert_eq!(ranks, [2], "{what}");
        }
    }
}

#[test]
fn a_flood_of_messages_that_no_call_waits_for_fails_the_job() {
    let reported = failures(3, PATIENT, |last| {
        let record = |sequence: u64| frame(6, 0, &[1, 0, 7, sequence, 0, 0]);
        let _ = (0..200_000).try_for_each(|sequence| last.write_all(&record(sequence)));
    });
    assert!(reported.iter().all(|(reason, ranks, _)| reason.contains("more than it may") && *ranks == [2]));
}

#[test]
fn a_rank_that_loses_rank_zero_names_it() {
    let (near, far) = pair();
    let links = TcpLinks { rank: 1, hosts: vec!["a".into(), "b".into()], streams: vec![(0, far)] };
    let rank = Rank::new(TcpRank::join(links, BRIEF).unwrap());
    drop(near);
    let ((_, _, reason, ranks), time) = failure(&rank, SUM, 3);
    assert!(reason.contains("the process of rank 0 on a has ended") && ranks == [0], "{reason}");
    assert!(time < SOON, "{time:?}");
}

#[test]
fn a_rank_that_gives_up_gives_all_ranks_its_reason_and_exit_code() {
    let reported = ranks(3, PATIENT, |rank| {
        if rank.rank() == 1 {
            rank.abort_with(3, "a label is missing");
            return None;
        }
        Some(Rank::new(rank).sum(&[1.0]).unwrap_err())
    });
    for error in reported.into_iter().flatten() {
        assert!(matches!(&error, Error::RankEnded { rank: 1, code: 3, .. }), "{error}");
        assert!(error.to_string().contains("a label is missing"), "{error}");
    }
}

#[test]
fn a_report_that_has_come_to_rank_zero_alone_is_told_to_the_others_before_it_ends() {
    let (links, mut last) = without_the_last(3);
    // What rank 2 sends rank 1 is never passed on, as where rank 0 ends before that comes.
    let text = [b"a label ", b"is missi", b"ng\0\0\0\0\0\0"].map(|eight| u64::from_le_bytes(*eight));
    let content = [&[0, 0, 3 << 32 | 1, 18, 2], &text[..]].concat();
    let words = [&[6, 0, 0, 0, 0, 8 * content.len() as u64], &content[..]].concat();
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let sum = |links| Rank::new(TcpRank::join(links, PATIENT).unwrap()).sum(&[1.0]).unwrap_err();
        let ranks: Vec<_> = links.into_iter().map(|links| scope.spawn(move || sum(links))).collect();
        last.write_all(&frame(words.len() as u32, 0, &words)).unwrap();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for error in errors {
        assert!(matches!(&error, Error::RankEnded { rank: 2, code: 3, .. }), "{error}");
        assert!(error.to_string().contains("a label is missing"), "{error}");
    }
}

#[test]
fn a_rank_that_panics_is_named() {
    let mut links = links(2).into_iter();
    let [first, second] = [(); 2].map(|()| links.next().unwrap());
    let panicking = std::thread::spawn(move || {
        let _rank = TcpRank::join(second, PATIENT).unwrap();
        panic!("on purpose");
    });
    let error = Rank::new(TcpRank::join(first, PATIENT).unwrap()).sum(&[1.0]).unwrap_err();
    assert!(error.to_string().contains("its thread panicked"), "{error}");
    assert!(panicking.join().is_err());
}

#[test]
fn a_rank_that_leaves_before_a_call_is_named() {
    let reported = ranks(3, PATIENT, |rank| {
        if rank.rank() == 2 {
            return None;
        }
        Some(failure(&afresh(Rank::new(rank)), SUM, 1).0.2)
    });
    assert!(reported.iter().flatten().all(|reason| reason.contains("rank 2 on b has left the group")), "{reported:?}");
}

#[test]
fn ranks_leave_in_any_order_and_wait_for_rank_zero() {
    let begin = Instant::now();
    let ended = ranks(4, PATIENT, |rank| {
        std::thread::sleep(Duration::from_millis([300, 0, 150, 50][rank.rank()]));
        drop(rank);
        begin.elapsed()
    });
    assert!(ended.iter().all(|time| *time < PATIENT.deadline / 2), "{ended:?}");
}

#[test]
fn connections_that_do_not_belong_to_the_rank_are_refused() {
    let hosts = || vec!["a".to_owned(), "b".to_owned()];
    let refused = |links: TcpLinks, options| TcpRank::join(links, options).unwrap_err().to_string();
    let none = refused(TcpLinks { rank: 0, hosts: hosts(), streams: vec![] }, PATIENT);
    assert!(none.contains("rank 0 has connections to [], but needs [1]"), "{none}");
    let outside = refused(TcpLinks { rank: 2, hosts: hosts(), streams: vec![] }, PATIENT);
    assert!(outside.contains("rank 2 of 2 ranks"), "{outside}");
    let links = TcpLinks { rank: 1, hosts: hosts(), streams: vec![(0, pair().0)] };
    assert!(refused(links, TcpOptions { deadline: Duration::ZERO }).contains("deadline"));
}
