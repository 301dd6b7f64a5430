//! Ranks for tests: threads of this process, or processes that run one test of this very program again.
#![allow(dead_code)]

use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Collective, Communicator, Reduction};
use bmtrain_core::{DType, Device, Error, Lane, Result, Segment, Storage};
use half::{bf16, f16};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Names, in a child, the test it was started for; with its rank and the place of meeting.
const MARKER: &str = "BMTRAIN_RANK_OF_TEST";

pub const DTYPES: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8];
pub const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Average, Reduction::Max, Reduction::Min, Reduction::Product];

/// Within this time a failure of one rank reaches the others, whatever the deadline.
pub const SOON: Duration = Duration::from_secs(1);

pub const SUM: Op = Op::AllReduce(Reduction::Sum);

pub fn short(milliseconds: u64) -> HostOptions {
    HostOptions { deadline: Duration::from_millis(milliseconds), ..options() }
}

/// Error of a failing call, and its duration.
pub fn failure<C: Communicator>(
    rank: &Rank<C>,
    op: Op,
    elements: usize,
) -> ((String, u64, String, Vec<usize>), Duration) {
    let begin = Instant::now();
    let error = rank.call(op, DType::F32, &vec![0; 4 * elements]).unwrap_err();
    (parts_of(error), begin.elapsed())
}

/// A device of its own: a lane that failed stays failed, and hides what the group reports.
pub fn afresh<C: Communicator>(rank: Rank<C>) -> Rank<C> {
    Rank::new(rank.rank)
}

/// The smallest chunks, so that small tests have many, and a deadline that no busy machine reaches by itself.
pub fn options() -> HostOptions {
    HostOptions { chunk: 4096, deadline: Duration::from_secs(20), ..HostOptions::default() }
}

/// Run `body` on every rank of a group of threads; what each returned, by rank. A rank that panics is the test's
/// failure.
pub fn threads<T: Send>(size: usize, options: HostOptions, body: impl Fn(HostRank) -> T + Sync) -> Vec<T> {
    let ranks = HostGroup::threads(size, options).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A place to meet that no other test has.
pub fn place() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    HostGroup::place(&format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// In a process that [`start`] made for `test`: its rank and its place.
pub fn started(test: &str) -> Option<(usize, PathBuf)> {
    let text = std::env::var(MARKER).ok()?;
    let mut parts = text.splitn(3, ' ');
    let (name, rank, place) = (parts.next()?, parts.next()?, parts.next()?);
    (name == test).then(|| (rank.parse().unwrap(), PathBuf::from(place)))
}

/// The name of a test with its modules, as `--exact` takes it.
pub fn full_name(test: &str) -> String {
    static NAMES: OnceLock<String> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let listed = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    });
    let mut names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    let found = names.find(|name| name.rsplit("::").next() == Some(test));
    found.unwrap_or_else(|| panic!("there is no test {test}")).to_owned()
}

/// Start a process that runs `test` as a rank.
pub fn start(test: &str, rank: usize, place: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &full_name(test), "--nocapture", "--test-threads=1"])
        .env(MARKER, format!("{test} {rank} {}", place.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Value that a process printed after `key`, once it has ended well.
pub fn printed(child: Child, key: &str) -> String {
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // The harness prints the name of the test on the same line.
    let line = out.lines().find_map(|line| line.split_once(key).map(|(_, text)| text.trim().to_string()));
    line.unwrap_or_else(|| panic!("a rank did not print {key} ({}):\n{out}\n{err}", output.status))
}

/// Collective to call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    AllGather,
    ReduceScatter(Reduction),
    AllReduce(Reduction),
    Reduce(Reduction, usize),
    Broadcast(usize),
    AllToAll,
    Send(usize),
    /// From a rank, this number of elements.
    Recv(usize, usize),
}

/// A rank with a device.
pub struct Rank<C = HostRank> {
    pub rank: C,
    pub device: Device,
    pub lane: Lane,
}

impl<C: Communicator> Rank<C> {
    pub fn new(rank: C) -> Self {
        Rank { rank, device: Device::cpu(1).unwrap(), lane: Lane::Zero }
    }

    /// Give a collective to the lane; what it will write.
    pub fn launch(&self, op: Op, dtype: DType, send: &[u8]) -> Result<Storage> {
        let (size, lane, backend) = (self.rank.size(), self.lane, self.device.backend());
        let len = send.len() / dtype.size();
        let out = match op {
            Op::AllGather => len * size,
            Op::ReduceScatter(_) => len / size,
            Op::Send(_) => 0,
            Op::Recv(_, len) => len,
            _ => len,
        };
        let new = |len| Storage::empty_on(&self.device, len, dtype, Segment::Data, lane);
        let (from, to) = (new(len)?, new(out)?);
        backend.upload(send, from.view_mut_on(0..len, lane)?, lane)?;
        let own_data = matches!(op, Op::AllReduce(_) | Op::Reduce(..) | Op::Broadcast(_));
        if own_data {
            backend.upload(send, to.view_mut_on(0..len, lane)?, lane)?;
        }
        let (send, data) = (from.view_on(0..len, lane)?, to.view_mut_on(0..out, lane)?);
        let collective = match op {
            Op::AllGather => Collective::AllGather { send, recv: data },
            Op::ReduceScatter(by) => Collective::ReduceScatter { send, recv: data, by },
            Op::AllReduce(by) => Collective::AllReduce { data, by },
            Op::Reduce(by, root) => Collective::Reduce { data, by, root },
            Op::Broadcast(root) => Collective::Broadcast { data, root },
            Op::AllToAll => Collective::AllToAll { send, recv: data },
            Op::Send(to) => Collective::Send { data: send, to },
            Op::Recv(from, _) => Collective::Recv { data, from },
        };
        self.rank.launch(backend, collective, lane)?;
        Ok(to)
    }

    /// A collective, and the bytes it wrote.
    pub fn call(&self, op: Op, dtype: DType, send: &[u8]) -> Result<Vec<u8>> {
        let out = self.launch(op, dtype, send)?;
        self.bytes(&out)
    }

    /// Wait for the lane and read a storage.
    pub fn bytes(&self, storage: &Storage) -> Result<Vec<u8>> {
        let mut bytes = vec![0; storage.len() * storage.dtype().size()];
        let view = storage.view_on(0..storage.len(), self.lane)?;
        self.device.backend().download(view, &mut bytes, self.lane)?;
        Ok(bytes)
    }

    /// The sum over all ranks of some f32.
    pub fn sum(&self, values: &[f32]) -> Result<Vec<f32>> {
        let bytes = self.call(Op::AllReduce(Reduction::Sum), DType::F32, bytemuck::cast_slice(values))?;
        Ok(bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect())
    }
}

fn bytes_of<T: bytemuck::Pod>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Elements that differ from rank to rank and place to place: small enough for products and sums in every type, and
/// with fractions that make sums of floats depend on their order.
pub fn values(dtype: DType, len: usize, rank: usize, salt: usize) -> Vec<u8> {
    let scramble = |i: usize| ((i + 31 * rank + 977 * salt) as u32).wrapping_mul(0x9e37_79b9) >> 8;
    let float = |i: usize| scramble(i) as f32 / (1 << 22) as f32 - 2.0;
    let all = 0..len;
    match dtype {
        DType::F32 => bytes_of(&all.map(float).collect::<Vec<f32>>()),
        DType::F16 => bytes_of(&all.map(|i| f16::from_f32(float(i))).collect::<Vec<_>>()),
        DType::BF16 => bytes_of(&all.map(|i| bf16::from_f32(float(i))).collect::<Vec<_>>()),
        DType::I64 => bytes_of(&all.map(|i| i64::from(scramble(i)) - 8000).collect::<Vec<_>>()),
        DType::I32 => bytes_of(&all.map(|i| scramble(i) as i32 - 8000).collect::<Vec<_>>()),
        DType::U8 => all.map(|i| scramble(i) as u8).collect(),
        other => panic!("{other}"),
    }
}

/// The reduction of the values of all ranks by plain arithmetic, one element after the other.
pub fn reduced(dtype: DType, by: Reduction, parts: &[Vec<u8>]) -> Vec<u8> {
    let elements = parts[0].len() / dtype.size();
    let at = |rank: usize, i: usize| &parts[rank][i * dtype.size()..][..dtype.size()];
    let ranks = 0..parts.len();
    let float = |read: &dyn Fn(&[u8]) -> f32, i: usize| {
        let all = ranks.clone().map(|rank| read(at(rank, i)));
        let result = match by {
            Reduction::Sum => all.reduce(|a, b| a + b),
            Reduction::Average => all.reduce(|a, b| a + b).map(|sum| sum / parts.len() as f32),
            Reduction::Max => all.reduce(f32::max),
            Reduction::Min => all.reduce(f32::min),
            Reduction::Product => all.reduce(|a, b| a * b),
        };
        result.unwrap()
    };
    let f32_of = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
    let f16_of = |bytes: &[u8]| f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32();
    let bf16_of = |bytes: &[u8]| bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32();
    macro_rules! integers {
        ($type:ty) => {
            (0..elements)
                .flat_map(|i| {
                    let all = ranks.clone().map(|rank| <$type>::from_ne_bytes(at(rank, i).try_into().unwrap()));
                    let result = match by {
                        Reduction::Sum => all.reduce(<$type>::wrapping_add),
                        Reduction::Max => all.max(),
                        Reduction::Min => all.min(),
                        Reduction::Product => all.reduce(<$type>::wrapping_mul),
                        Reduction::Average => panic!("no average of integers"),
                    };
                    result.unwrap().to_ne_bytes()
                })
                .collect()
        };
    }
    match dtype {
        DType::F32 => (0..elements).flat_map(|i| float(&f32_of, i).to_ne_bytes()).collect(),
        DType::F16 => (0..elements).flat_map(|i| f16::from_f32(float(&f16_of, i)).to_ne_bytes()).collect(),
        DType::BF16 => (0..elements).flat_map(|i| bf16::from_f32(float(&bf16_of, i)).to_ne_bytes()).collect(),
        DType::I64 => integers!(i64),
        DType::I32 => integers!(i32),
        DType::U8 => integers!(u8),
        other => panic!("{other}"),
    }
}

/// Expected result of rank `own` when rank r calls `op` with `parts[r]`.
pub fn expected(op: Op, dtype: DType, parts: &[Vec<u8>], own: usize) -> Vec<u8> {
    let size = parts.len();
    let part = |bytes: &[u8]| bytes[own * bytes.len() / size..(own + 1) * bytes.len() / size].to_vec();
    match op {
        Op::AllGather => parts.concat(),
        Op::ReduceScatter(by) => part(&reduced(dtype, by, parts)),
        Op::AllReduce(by) => reduced(dtype, by, parts),
        Op::Reduce(by, root) if root == own => reduced(dtype, by, parts),
        Op::Reduce(..) => parts[own].clone(),
        Op::Broadcast(root) => parts[root].clone(),
        Op::AllToAll => parts.iter().flat_map(|sent| part(sent)).collect(),
        Op::Send(_) => vec![],
        Op::Recv(from, _) => parts[from].clone(),
    }
}

/// Fifty calls of every kind, mixed, on two groups; a fingerprint of all they wrote.
pub fn program(rank: HostRank) -> u64 {
    program_of(rank, |rank, colour, key| rank.subgroup(colour, key).unwrap())
}

/// [`program`] for ranks of any kind that can be split into such ranks.
pub fn program_of<C: Communicator>(rank: C, split: impl Fn(&C, usize, usize) -> C) -> u64 {
    program_on(rank, split, || Device::cpu(1).unwrap())
}

/// [`program_of`] on devices of any kind.
pub fn program_on<C: Communicator>(rank: C, split: impl Fn(&C, usize, usize) -> C, device: impl Fn() -> Device) -> u64 {
    let with_device = |rank| Rank { rank, device: device(), lane: Lane::Zero };
    let world = with_device(rank);
    let (own, size) = (world.rank.rank(), world.rank.size());
    let mut fingerprint = DefaultHasher::new();
    let halves = with_device(split(&world.rank, own % 2, size - own));
    for step in 0..50 {
        let dtype = DTYPES[step % 4];
        let by = if dtype.is_float() { REDUCTIONS[step % 5] } else { Reduction::Sum };
        let group = if step % 7 == 3 { &halves } else { &world };
        let len = [1, 12, 1500, 4096, 12288, 30_000][step % 6] / size * size * group.rank.size();
        let op = match step % 8 {
            0 => Op::AllGather,
            1 => Op::ReduceScatter(by),
            2 | 7 => Op::AllReduce(by),
            3 => Op::Reduce(by, 0),
            4 => Op::Broadcast(group.rank.size() - 1),
            5 => Op::AllToAll,
            _ if step % 7 == 3 || own > 1 => Op::AllReduce(by),
            _ => Op::Send(1 - own),
        };
        if let Op::Send(to) = op {
            // Longer than what fits between two ranks: one of them has to receive first.
            let (send, receive) = (Op::Send(to), Op::Recv(to, len));
            for op in if own == 0 { [send, receive] } else { [receive, send] } {
                world.call(op, dtype, &values(dtype, len, own, step)).unwrap().hash(&mut fingerprint);
            }
        }
        let op = if let Op::Send(_) = op { Op::AllReduce(by) } else { op };
        group.call(op, dtype, &values(dtype, len, own, step)).unwrap().hash(&mut fingerprint);
        if step % 11 == 0 {
            group.rank.barrier().unwrap();
        }
    }
    fingerprint.finish()
}

/// The parts of a communication error: operation, sequence, reason, ranks.
pub fn parts_of(error: Error) -> (String, u64, String, Vec<usize>) {
    match error {
        Error::Communication { operation, sequence, reason, ranks } => (operation, sequence, reason, ranks),
        // A rank that failed by itself, and not in a call.
        Error::RankEnded { rank, code, reason } => (format!("exit code {code}"), 0, reason, vec![rank]),
        other => panic!("another kind of error: {other}"),
    }
}
