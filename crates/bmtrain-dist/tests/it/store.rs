//! The rendezvous store between its own: values, counters, barriers, deadlines, and who is refused and why.

use bmtrain_core::Error as CoreError;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::tcp::{TcpOptions, TcpRank};
use bmtrain_dist::Error;
use bmtrain_dist::launch::store::{Store, StoreOptions, StoreServer, Token};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(20);

fn options(world: usize, port: u16) -> StoreOptions {
    let options = StoreOptions::new(0, world, port, Token::derive("job", "secret"), [7; 32]);
    StoreOptions { deadline: SOON, ..options }
}

/// A server for `world` ranks on a free port, and what its clients need.
fn server(world: usize) -> (StoreServer, StoreOptions) {
    let server = StoreServer::start(&options(world, 0)).unwrap();
    let options = options(world, server.address().port());
    (server, options)
}

/// One thread for each rank with a store that every rank has come to.
fn ranks<T: Send + 'static>(
    world: usize,
    work: impl Fn(usize, Store) -> T + Clone + Send + 'static,
) -> Vec<JoinHandle<T>> {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank| {
        let work = work.clone();
        spawn(move || work(rank, Store::open(&StoreOptions { rank, ..options(world, port) }).unwrap()))
    };
    (0..world).map(start).collect()
}

fn results<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Place, reason and fix in one line, and the ranks it is about.
fn refusal(error: Error) -> (String, Vec<usize>) {
    let text = error.to_string();
    assert!(text.contains("rendezvous at ") && !text.contains('\n'), "{text}");
    match error {
        Error::Rendezvous { ranks, .. } => (text, ranks),
        // A mistake in how the processes were started.
        Error::Launch { .. } => (text, vec![]),
        other => panic!("{other}"),
    }
}

#[test]
fn an_id_of_rank_zero_reaches_every_rank() {
    let ids = results(ranks(4, |rank, mut store| {
        if rank == 0 {
            std::thread::sleep(Duration::from_millis(30));
            store.set("id", &[1, 2, 3]).unwrap();
        }
        let id = store.get("id", SOON).unwrap();
        store.barrier("end", SOON).unwrap();
        id
    }));
    assert_eq!(ids, vec![vec![1, 2, 3]; 4]);
}

#[test]
fn counters_give_every_rank_another_number() {
    let mut numbers = results(ranks(4, |_, mut store| {
        let numbers: Vec<i64> = (0..25).map(|_| store.add("next", 1).unwrap()).collect();
        store.barrier("end", SOON).unwrap();
        numbers
    }))
    .concat();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
}

#[test]
fn no_rank_leaves_a_barrier_before_all_have_come_however_often() {
    let seen = results(ranks(3, |rank, mut store| {
        let mut seen = Vec::new();
        for round in 0..20_i64 {
            std::thread::sleep(Duration::from_millis((rank as u64 * 7 + round as u64 * 3) % 5));
            store.add("come", 1).unwrap();
            store.barrier("round", SOON).unwrap();
            seen.push(store.add("come", 0).unwrap() >= 3 * (round + 1));
        }
        store.barrier("end", SOON).unwrap();
        seen
    }));
    assert_eq!(seen, vec![vec![true; 20]; 3]);
}

#[test]
fn values_up_to_the_largest_survive_and_larger_ones_are_refused() {
    let (_server, options) = server(1);
    let mut store = Store::connect(&options).unwrap();
    let value: Vec<u8> = (0..Store::MAX_VALUE).map(|n| (n % 251) as u8).collect();
    let key = "k".repeat(256);
    store.set(&key, &value).unwrap();
    assert_eq!(store.get(&key, SECOND).unwrap(), value);
    let (text, _) = refusal(store.set("k", &[value.as_slice(), &[0]].concat()).unwrap_err());
    assert!(text.contains("value of 65279 bytes"), "{text}");
    assert!(refusal(store.set(&"k".repeat(257), b"").unwrap_err()).0.contains("257 bytes"));
    assert!(refusal(store.set("", b"").unwrap_err()).0.contains("0 bytes"));
    store.set("k", b"new").unwrap();
    store.set("k", b"").unwrap();
    assert_eq!(store.get("k", SECOND).unwrap(), b"");
    assert!(refusal(store.add("k", 1).unwrap_err()).0.contains("the value of k is not a counter"));
    // None of these refusals has broken the connection.
    assert_eq!(store.add("n", 3).unwrap(), 3);
}

#[test]
fn a_value_that_no_rank_sets_is_named_at_the_deadline() {
    let (_server, options) = server(1);
    let mut store = Store::connect(&options).unwrap();
    let started = Instant::now();
    let (text, _) = refusal(store.get("never", Duration::from_millis(60)).unwrap_err());
    assert!(text.contains("no rank has set never within 0.060 s"), "{text}");
    assert!(started.elapsed() >= Duration::from_millis(60) && started.elapsed() < 5 * SECOND);
    store.set("never", b"after all").unwrap();
    assert_eq!(store.get("never", Duration::ZERO).unwrap(), b"after all");
}

#[test]
fn ranks_that_do_not_come_are_named_on_every_rank_that_did() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank| {
        let options = StoreOptions { rank, deadline: Duration::from_millis(700), ..options(5, port) };
        spawn(move || refusal(Store::open(&options).unwrap_err()))
    };
    for (text, absent) in results([0, 2, 3].map(start).into()) {
        assert_eq!(absent, [1, 4], "{text}");
        assert!(text.contains("ranks 1 and 4 of 5"), "{text}");
    }
}

#[test]
fn a_rank_that_is_lost_ends_the_barrier_at_once_and_is_named() {
    let started = Instant::now();
    let texts = results(ranks(3, |rank, mut store| {
        if rank == 1 {
            return None;
        }
        // The store is kept until everybody has his answer.
        Some((refusal(store.barrier("work", SOON).unwrap_err()), store))
    }));
    for ((text, lost), _) in texts.iter().flatten() {
        assert_eq!(*lost, [1]);
        assert!(text.contains("rank 1 of 3 left"), "{text}");
    }
    assert!(started.elapsed() < SOON / 2);
}

#[test]
fn a_rank_that_dies_while_it_waits_is_noticed() {
    let started = Instant::now();
    let (server, options) = server(2);
    let mut other = Store::connect(&options).unwrap();
    let (port, cut) = proxy(options.port);
    let waiting = spawn(move || {
        let mut one = Store::connect(&StoreOptions { rank: 1, port, ..options }).unwrap();
        refusal(one.get("never", SOON).unwrap_err()).0
    });
    let line = cut.join().unwrap();
    // Rank 1 is in the middle of a question with a long deadline.
    std::thread::sleep(Duration::from_millis(150));
    line.shutdown(Shutdown::Both).unwrap();
    let (text, lost) = refusal(other.barrier("work", SOON).unwrap_err());
    assert_eq!(lost, [1], "{text}");
    assert!(waiting.join().unwrap().contains("rank 0's store is lost"));
    assert!(started.elapsed() < SOON / 2);
    drop(server);
}

/// A port that passes one connection on to another, with a line after it that can be cut.
fn proxy(port: u16) -> (u16, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let front = listener.local_addr().unwrap().port();
    let line = spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        far
    });
    (front, line)
}

#[test]
fn when_rank_zero_closes_the_store_the_others_are_told() {
    let (server, options) = server(2);
    let mut one = Store::connect(&StoreOptions { rank: 1, ..options.clone() }).unwrap();
    let waiting = spawn(move || {
        let text = refusal(one.get("never", SOON).unwrap_err()).0;
        (text, refusal(one.set("k", b"").unwrap_err()).0)
    });
    let mut zero = Store::connect(&options).unwrap();
    let at_barrier = spawn(move || refusal(zero.barrier("b", SOON).unwrap_err()));
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < 2 * SECOND);
    let (first, second) = waiting.join().unwrap();
    assert!(first.contains("rank 0 closed the store") && second.contains("rank 0's store is lost"), "{first} {second}");
    let (text, absent) = at_barrier.join().unwrap();
    assert_eq!(absent, [1]);
    assert!(text.contains("had not come when rank 0 closed the store"), "{text}");
}

#[test]
fn a_rank_that_differs_is_refused_and_told_in_what() {
    let (_server, right) = server(4);
    let one = StoreOptions { rank: 1, ..right.clone() };
    let cases = [
        (StoreOptions { token: Token::derive("other job", "secret"), ..one.clone() }, "the token differs"),
        (StoreOptions { token: Token::derive("job", ""), ..one.clone() }, "the token differs"),
        (StoreOptions { world: 8, ..one.clone() }, "rank 0 counts 4 ranks, rank 1 counts 8"),
        (
            StoreOptions { version: "9.9.9".into(), ..one.clone() },
            "on rank 0, 9.9.9 on rank 1; install the same version",
        ),
        (StoreOptions { recipe: [8; 32], ..one.clone() }, "the recipe differs: 07070707 on rank 0, 08080808 on rank 1"),
        (StoreOptions { rank: 9, world: 4, ..right.clone() }, "rank 9 of 4 ranks"),
    ];
    for (options, expected) in cases {
        let started = Instant::now();
        let (text, _) = refusal(Store::connect(&options).unwrap_err());
        assert!(text.contains(expected), "{text}");
        assert!(started.elapsed() < 5 * SECOND, "a refusal is final, it is not tried again");
    }
    let _first = Store::connect(&one).unwrap();
    let (text, _) = refusal(Store::connect(&one).unwrap_err());
    assert!(text.contains("a rank 1 has been here already"), "{text}");
    // Nothing of this is in the way of the others.
    Store::connect(&StoreOptions { rank: 2, ..right }).unwrap();
}

#[test]
fn ranks_that_wait_for_one_that_was_refused_are_told_why_long_before_the_deadline() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let right = StoreOptions { patience: SECOND, ..options(4, port) };
    let start = |rank: usize| {
        let options = StoreOptions { rank, ..right.clone() };
        spawn(move || refusal(Store::open(&options).unwrap_err()))
    };
    let waiting = [0, 2].map(start);
    let other = Token::derive("job", "another secret");
    let begin = Instant::now();
    for rank in [3, 1] {
        let own_host = format!("node-{rank}");
        let (text, _) =
            refusal(Store::connect(&StoreOptions { rank, token: other, own_host, ..right.clone() }).unwrap_err());
        assert!(text.contains("the token differs"), "{text}");
    }
    // Rank 3 comes with the right token after all.
    let _store = Store::connect(&StoreOptions { rank: 3, ..right.clone() }).unwrap();
    for (text, absent) in results(waiting.into()) {
        assert_eq!(absent, [1], "{text}");
        assert!(text.contains("rank 1 on node-1 was refused, because the token differs"), "{text}");
        assert!(text.contains("BMTRAIN_TOKEN"), "{text}");
    }
    assert!((SECOND..SOON / 2).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}

#[test]
fn at_the_deadline_a_rank_that_was_refused_is_named_as_such() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let right = StoreOptions { deadline: 2 * SECOND, ..options(2, port) };
    let zero = right.clone();
    let waiting = spawn(move || refusal(Store::open(&zero).unwrap_err()));
    let other = StoreOptions { rank: 1, token: Token::derive("other job", "secret"), ..right };
    assert!(refusal(Store::connect(&other).unwrap_err()).0.contains("the token differs"));
    let (text, absent) = waiting.join().unwrap();
    assert_eq!(absent, [1]);
    assert!(text.contains("rank 1 was refused, because the token differs"), "{text}");
}

#[test]
fn another_version_of_the_protocol_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 12]).unwrap();
        stream.write_all(b"BMTS\x09\0\x05\0\x01\0\0\0\x01").unwrap();
    });
    let (text, _) = refusal(Store::connect(&options(2, port)).unwrap_err());
    assert!(text.contains("protocol version 9 there, 2 here"), "{text}");
    other.join().unwrap();
    // And the other way round: a server answers a frame of another version with its own version in the header.
    let (_server, options) = server(2);
    let mut stream = TcpStream::connect(("127.0.0.1", options.port)).unwrap();
    stream.write_all(b"BMTS\x09\0\x01\0\0\0\0\0").unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"BMTS\x02\0\x05\0");
}

#[test]
fn a_server_that_does_not_know_the_token_is_found_out_before_anything_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let impostor = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 12 + 136]).unwrap();
        stream.write_all(b"BMTS\x02\0\x02\0\x40\0\0\0").unwrap();
        stream.write_all(&[5; 64]).unwrap();
        let mut more = Vec::new();
        stream.read_to_end(&mut more).unwrap();
        more
    });
    let (text, _) = refusal(Store::connect(&options(2, port)).unwrap_err());
    assert!(text.contains("the token differs"), "{text}");
    assert!(impostor.join().unwrap().is_empty(), "nothing is sent to a server that proved nothing");
}

#[test]
fn a_port_that_is_taken_is_named_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (text, _) = refusal(StoreServer::start(&options(2, port)).unwrap_err());
    assert!(text.contains(&format!("port {port} is taken")) && text.contains("BMTRAIN_STORE_PORT"), "{text}");
    let elsewhere = StoreOptions { bind: Some("192.0.2.1".parse().unwrap()), ..options(2, 0) };
    let (text, _) = refusal(StoreServer::start(&elsewhere).unwrap_err());
    assert!(text.contains("not one of this host") && text.contains("BMTRAIN_STORE_BIND"), "{text}");
}

#[test]
fn where_no_store_is_the_deadline_says_where_was_looked() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nowhere = StoreOptions { rank: 1, deadline: Duration::from_millis(200), ..options(2, port) };
    let (text, ranks) = refusal(Store::connect(&nowhere).unwrap_err());
    assert!(text.contains(&format!("127.0.0.1:{port}")) && text.contains("no store there after 0.200 s"), "{text}");
    assert_eq!(ranks, [0]);
}

#[test]
fn rank_zero_may_come_last() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        spawn(move || {
            std::thread::sleep(Duration::from_millis(if rank == 0 { 300 } else { 0 }));
            Store::open(&StoreOptions { rank, ..options(3, port) }).unwrap().barrier("end", SOON).unwrap();
        })
    };
    results([2, 1, 0].map(start).into());
}

#[test]
fn once_all_have_come_the_store_stops_listening() {
    let (server, options) = server(1);
    let mut store = Store::connect(&options).unwrap();
    store.barrier("b", SOON).unwrap();
    let until = Instant::now() + SOON;
    while TcpStream::connect(server.address()).is_ok() {
        assert!(Instant::now() < until, "the port is still open");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(store.add("still", 1).unwrap(), 1);
}

/// Options of a process on a host.
fn on(host: &str, options: &StoreOptions, rank: usize) -> StoreOptions {
    StoreOptions { rank, own_host: host.into(), ..options.clone() }
}

#[test]
fn ranks_that_wait_are_told_of_a_process_that_does_not_fit_and_of_its_host() {
    let cases = [
        (StoreOptions { world: 3, ..options(2, 0) }, "rank 0 on a counts 2 ranks, rank 1 on b counts 3"),
        (StoreOptions { version: "9.9.9".into(), ..options(2, 0) }, "rank 1 on b version 9.9.9"),
        (StoreOptions { recipe: [8; 32], ..options(2, 0) }, "rank 0 on a and rank 1 on b have different recipes"),
    ];
    for (other, expected) in cases {
        let server = StoreServer::start(&on("a", &options(2, 0), 0)).unwrap();
        let right = on("a", &options(2, server.address().port()), 0);
        let waiting = spawn(move || Store::connect(&right).unwrap().barrier("start", SOON).unwrap_err());
        let other = StoreOptions { port: server.address().port(), ..on("b", &other, 1) };
        refusal(Store::connect(&other).unwrap_err());
        let (text, _) = refusal(waiting.join().unwrap());
        assert!(text.starts_with("launch: ") && text.contains(expected), "{text}");
    }
    let server = StoreServer::start(&on("a", &options(3, 0), 0)).unwrap();
    let right = options(3, server.address().port());
    let mut first = Store::connect(&on("b", &right, 1)).unwrap();
    refusal(Store::connect(&on("c", &right, 1)).unwrap_err());
    let (text, _) = refusal(first.barrier("start", SOON).unwrap_err());
    assert!(text.contains("two processes are rank 1 on b, one of them on c"), "{text}");
}

#[test]
fn a_rank_that_ends_before_all_have_come_gives_the_others_its_exit_code_whenever_they_come() {
    let started = Instant::now();
    for ending in [0, 2] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let start = |rank: usize| {
            spawn(move || {
                std::thread::sleep(Duration::from_millis(if rank == 1 { 200 } else { 0 }));
                let store = Store::enter(&StoreOptions { rank, ..options(3, port) }).unwrap();
                if rank == ending {
                    store.abandon(3, "a label is missing");
                    return None;
                }
                Some(store.into_links(SOON).unwrap_err())
            })
        };
        for error in results([0, 1, 2].map(start).into()).into_iter().flatten() {
            let expected = Some((ending, 3, "a label is missing"));
            let got = match &error {
                Error::Core(CoreError::RankEnded { rank, code, reason }) => Some((*rank, *code, reason.as_str())),
                _ => None,
            };
            assert_eq!(got, expected, "{error}");
        }
    }
    assert!(started.elapsed() < SOON / 2);
}

#[test]
fn when_all_have_come_the_connections_become_those_of_the_ranks() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        spawn(move || {
            let options = on(["a", "a", "b"][rank], &options(3, port), rank);
            let links = Store::enter(&options).unwrap().into_links(SOON).unwrap();
            assert_eq!((links.rank, links.hosts.join(" ").as_str()), (rank, "a a b"));
            let ranks = TcpRank::join(links, TcpOptions::default()).unwrap();
            ranks.barrier().unwrap();
            let half = ranks.split(rank % 2, 0).unwrap();
            half.barrier().unwrap();
            half.size()
        })
    };
    assert_eq!(results([2, 0, 1].map(start).into()), [2, 2, 1]);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the port is still open");
}

#[test]
fn a_rank_that_is_lost_before_all_have_come_is_named() {
    let (server, right) = server(3);
    let links = |rank| {
        let options = StoreOptions { rank, ..right.clone() };
        spawn(move || refusal(Store::connect(&options).unwrap().into_links(SOON).unwrap_err()))
    };
    let waiting = [0, 1].map(links);
    drop(Store::connect(&StoreOptions { rank: 2, ..right }).unwrap());
    for (text, lost) in results(waiting.into()) {
        assert!(lost == [2] && text.contains("rank 2 of 3 left"), "{text}");
    }
    drop(server);
}

#[test]
fn a_master_that_is_the_loopback_of_its_own_host_is_refused_where_other_hosts_are_to_come() {
    let (text, _) = refusal(StoreServer::start(&StoreOptions { bind: None, ..options(2, 0) }).unwrap_err());
    assert!(text.contains("no other host can reach") && text.contains("BMTRAIN_STORE_BIND=0.0.0.0"), "{text}");
}
