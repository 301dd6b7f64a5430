//! The rendezvous store under attack: junk, slow clients, lengths of 4 GiB, false tokens. The job forms all the same,
//! and memory stays where it was. A file of its own, because it looks at the memory of the whole process.

use bmtrain_dist::launch::store::{Store, StoreOptions, StoreServer, Token};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::thread::spawn;
use std::time::{Duration, Instant};

/// One test at a time: they measure time and memory.
static ALONE: Mutex<()> = Mutex::new(());
const SOON: Duration = Duration::from_secs(30);

/// A server for `world` ranks on a free port, and what its clients need.
fn server(world: usize) -> (StoreServer, StoreOptions) {
    let options = StoreOptions::new(0, world, 0, Token::derive("job", "secret"), [7; 32]);
    let server = StoreServer::start(&options).unwrap();
    let options = StoreOptions { port: server.address().port(), deadline: SOON, ..options };
    (server, options)
}

/// All ranks come and meet; how long it took.
fn form(options: &StoreOptions) -> Duration {
    let started = Instant::now();
    let threads: Vec<_> = (0..options.world)
        .map(|rank| {
            let options = StoreOptions { rank, ..options.clone() };
            spawn(move || Store::connect(&options).unwrap().barrier("come", SOON).unwrap())
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    started.elapsed()
}

fn attacker(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    Some(stream)
}

/// Bytes of an attacker: noise, a header that promises 4 GiB, half a header, a frame of another version, nothing.
fn junk(number: usize) -> Vec<u8> {
    match number % 5 {
        0 => (0..200).map(|n| (n * 37 + number * 11) as u8).collect(),
        1 => b"BMTS\x02\0\x01\0\xff\xff\xff\xff".to_vec(),
        2 => b"BMTS\x02".to_vec(),
        3 => b"BMTS\x03\0\x01\0\0\0\0\0".to_vec(),
        _ => Vec::new(),
    }
}

/// Memory of this process that is its own, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

#[test]
fn a_thousand_attackers_do_not_keep_the_ranks_out_and_take_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (_quiet_server, quiet_options) = server(4);
    let quiet = form(&quiet_options);
    let (server, options) = server(4);
    let before = resident();
    let address = server.address();
    // Clients that stay connected and send nothing, or too little.
    let mut slow: Vec<TcpStream> = (0..250).filter_map(|_| attacker(address)).collect();
    for (number, stream) in slow.iter_mut().enumerate() {
        let _ = stream.write_all(&junk(number));
    }
    let noisy = spawn(move || {
        let sent = (0..750).filter_map(|number| attacker(address).map(|mut stream| stream.write_all(&junk(number))));
        sent.count()
    });
    let attacked = form(&options);
    let most = resident().saturating_sub(before);
    println!("quiet {quiet:?}, under attack {attacked:?}, {} KiB more", most >> 10);
    // Far less than the five seconds after which a slow client is disconnected: the job waited for none.
    assert!(attacked < Duration::from_secs(4), "{attacked:?}, quiet {quiet:?}");
    assert!(most < 16 << 20, "{most} bytes more");
    drop(server);
    noisy.join().unwrap();
}

#[test]
fn a_length_beyond_what_a_attacker_may_send_ends_its_connection_at_once() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let token = Token::derive("job", "secret");
    let options = StoreOptions { handshake: 2 * SOON, ..StoreOptions::new(0, 4, 0, token, [7; 32]) };
    let server = StoreServer::start(&options).unwrap();
    for length in [137_u32, 65_536, 65_537, u32::MAX] {
        let mut stream = attacker(server.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"BMTS\x02\0\x01\0").unwrap();
        stream.write_all(&length.to_le_bytes()).unwrap();
        // Waiting for that number of bytes would take until the end of the handshake.
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "{length}");
        assert!(stream.peek(&mut [0]).is_ok_and(|count| count == 0), "{length}: still open");
    }
}

#[test]
fn attackers_never_hold_more_than_four_connections_for_each_rank() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (server, options) = server(2);
    let mut silent: Vec<TcpStream> = (0..100).filter_map(|_| attacker(server.address())).collect();
    assert_eq!(silent.len(), 100);
    let until = Instant::now() + SOON;
    while silent.len() > 8 {
        assert!(Instant::now() < until, "{} connections are still open", silent.len());
        // Only silence means that a connection is open.
        silent.retain(|stream| {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            stream.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
    }
    // The newest were kept: none was disconnected for its time being over.
    assert_eq!(silent.len(), 8);
    form(&options);
}

#[test]
fn a_thousand_false_tokens_are_refused_a_thousand_times() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (server, options) = server(8);
    let address = server.address();
    let guessers: Vec<_> = (0..4)
        .map(|guesser| {
            spawn(move || (0..250).filter(|number| is_refused(guess(address, guesser * 250 + number))).count())
        })
        .collect();
    let refused: usize = guessers.into_iter().map(|guesser| guesser.join().unwrap()).sum();
    assert_eq!(refused, 1000);
    form(&options);
}

/// Whether an answer is the refusal of a token, and nothing else.
fn is_refused(answer: Vec<u8>) -> bool {
    answer == b"BMTS\x02\0\x05\0\x01\0\0\0\x01"
}

/// A proper hello of rank 1, and a guess instead of the proof. What is answered to it.
fn guess(address: SocketAddr, number: usize) -> Vec<u8> {
    let mut stream = attacker(address).unwrap();
    let mut hello = b"BMTS\x02\0\x01\0\x88\0\0\0".to_vec();
    hello.extend(1_u32.to_le_bytes());
    hello.extend(8_u32.to_le_bytes());
    hello.extend([7; 32]);
    // Version and host.
    hello.extend([0; 64]);
    hello.extend([number as u8; 32]);
    stream.write_all(&hello).unwrap();
    let mut challenge = [0; 12 + 64];
    stream.read_exact(&mut challenge).unwrap();
    let mut guess = b"BMTS\x02\0\x03\0\x20\0\0\0".to_vec();
    match number % 3 {
        // Sending the server's own proof back is the best guess there is.
        0 => guess.extend(&challenge[44..]),
        1 => guess.extend([0; 32]),
        _ => guess.extend(std::array::from_fn::<u8, 32, _>(|n| (number * 31 + n * 17) as u8)),
    }
    stream.write_all(&guess).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn a_slow_attacker_is_sent_away_after_its_time() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let token = Token::derive("job", "secret");
    let options = StoreOptions { handshake: Duration::from_millis(400), ..StoreOptions::new(0, 4, 0, token, [7; 32]) };
    let server = StoreServer::start(&options).unwrap();
    let mut slow = attacker(server.address()).unwrap();
    slow.set_read_timeout(Some(SOON)).unwrap();
    let mut trickle = slow.try_clone().unwrap();
    let started = Instant::now();
    // A byte from time to time: each read succeeds, the whole takes too long.
    let sender = spawn(move || {
        for byte in b"BMTS\x02\0\x01\0\x88\0\0\0".iter().chain(&[0; 136]) {
            if trickle.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    let taken = started.elapsed();
    // All bytes together would take 7.4 seconds.
    assert!(rest.is_empty() && taken >= Duration::from_millis(400) && taken < Duration::from_secs(3), "{taken:?}");
    sender.join().unwrap();
}
