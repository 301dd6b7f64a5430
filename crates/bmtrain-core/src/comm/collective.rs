//! Collectives as values, and the check of their arguments.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

/// Reduction of the values of all ranks to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum, divided by the number of ranks.
    Average,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// Their product.
    Product,
}

/// A collective of the W ranks of a group, or a message between two. Every rank calls it with equal lengths and types.
///
/// Numerics: sums and products of 16-bit floats are taken in f32 and rounded once at the end, but by NCCL, which rounds
/// them after every step.
#[derive(Debug)]
pub enum Collective<'a> {
    /// `recv[r * n..][..n]` becomes what rank r sent, n the length of `send`.
    AllGather {
        /// This rank's part.
        send: View<'a>,
        /// All parts, in the order of the ranks.
        recv: ViewMut<'a>,
    },
    /// `recv` becomes the reduction of the r-th part of what every rank sent, r this rank.
    ReduceScatter {
        /// One part for each rank.
        send: View<'a>,
        /// This rank's part of the result.
        recv: ViewMut<'a>,
        /// How.
        by: Reduction,
    },
    /// Every rank gets the reduction.
    AllReduce {
        /// Value and result.
        data: ViewMut<'a>,
        /// How.
        by: Reduction,
    },
    /// Rank `root` gets the reduction; the others keep what they have.
    Reduce {
        /// Value and, on the root, result.
        data: ViewMut<'a>,
        /// How.
        by: Reduction,
        /// Rank that receives the result.
        root: usize,
    },
    /// Every rank gets what rank `root` has.
    Broadcast {
        /// The values, or where they go.
        data: ViewMut<'a>,
        /// Rank that sends the values.
        root: usize,
    },
    /// The r-th part of `recv` becomes the part that rank r sent to this rank.
    AllToAll {
        /// One part for each rank.
        send: View<'a>,
        /// One part from each rank.
        recv: ViewMut<'a>,
    },
    /// To one rank, which receives it. Returns when the lane goes on, whether or not the other rank is there yet.
    Send {
        /// The values.
        data: View<'a>,
        /// Rank that receives the values.
        to: usize,
    },
    /// From one rank, which sends it.
    Recv {
        /// Destination of the values.
        data: ViewMut<'a>,
        /// Rank that sends the values.
        from: usize,
    },
}

/// The part of a call that has to be equal on all ranks: shown when it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Name of the collective.
    pub name: &'static str,
    /// Dtype.
    pub dtype: DType,
    /// Elements of this rank's part: of `send` for a gather, of `recv` for a scatter, of one part otherwise.
    pub part: usize,
    /// Reduction of the values.
    pub by: Option<Reduction>,
    /// The rank that is set apart: the root.
    pub root: Option<usize>,
}

impl Signature {
    pub(super) fn bytes(&self) -> usize {
        self.part * self.dtype.size()
    }
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} x {}", self.name, self.part, self.dtype)?;
        if let Some(by) = self.by {
            write!(f, ", {by:?}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        Ok(())
    }
}

impl Collective<'_> {
    /// Lower-case name in errors and traces.
    pub fn name(&self) -> &'static str {
        match self {
            Collective::AllGather { .. } => "all_gather",
            Collective::ReduceScatter { .. } => "reduce_scatter",
            Collective::AllReduce { .. } => "all_reduce",
            Collective::Reduce { .. } => "reduce",
            Collective::Broadcast { .. } => "broadcast",
            Collective::AllToAll { .. } => "all_to_all",
            Collective::Send { .. } => "send",
            Collective::Recv { .. } => "recv",
        }
    }

    /// Signature that the calls of the other ranks must match.
    pub fn signature(&self) -> Signature {
        let name = self.name();
        let of = |dtype, part| Signature { name, dtype, part, by: None, root: None };
        match self {
            Collective::AllGather { send, .. } => of(send.dtype(), send.len()),
            Collective::ReduceScatter { recv, by, .. } => Signature { by: Some(*by), ..of(recv.dtype(), recv.len()) },
            Collective::AllReduce { data, by } => Signature { by: Some(*by), ..of(data.dtype(), data.len()) },
            Collective::Reduce { data, by, root } => {
                Signature { by: Some(*by), root: Some(*root), ..of(data.dtype(), data.len()) }
            }
            Collective::Broadcast { data, root } => Signature { root: Some(*root), ..of(data.dtype(), data.len()) },
            Collective::AllToAll { send, .. } => of(send.dtype(), send.len()),
            Collective::Send { data, .. } => of(data.dtype(), data.len()),
            Collective::Recv { data, .. } => of(data.dtype(), data.len()),
        }
    }

    /// Bytes that this rank gives away, for traces and simulated links.
    pub fn bytes(&self) -> usize {
        match self {
            Collective::AllGather { send, .. }
            | Collective::ReduceScatter { send, .. }
            | Collective::AllToAll { send, .. } => send.bytes(),
            Collective::AllReduce { data, .. }
            | Collective::Reduce { data, .. }
            | Collective::Broadcast { data, .. } => data.bytes(),
            Collective::Send { data, .. } => data.bytes(),
            Collective::Recv { .. } => 0,
        }
    }

    /// Bytes that a rank sends where a collective of `size` ranks goes round a ring: of a gather or a reduce-scatter of
    /// n bytes in all (size - 1) / size n, of an all-reduce twice that. A broadcast or a reduction to one rank passes
    /// on what it has, and a message is sent whole.
    pub fn ring_bytes(&self, size: usize) -> u64 {
        let (others, size) = (size.saturating_sub(1) as u64, size.max(1) as u64);
        let bytes = self.bytes() as u64;
        match self {
            // Of a gather, the bytes are one rank's part.
            Collective::AllGather { .. } => bytes.saturating_mul(others),
            Collective::AllReduce { .. } => bytes.saturating_mul(2 * others) / size,
            Collective::Send { .. } | Collective::Recv { .. } => bytes,
            _ => bytes.saturating_mul(others) / size,
        }
    }

    /// Turn of rank `rank` in this one of several collectives that all ranks begin together: collectives before
    /// messages, and these in one order of all pairs, on which both ends agree. The earliest message that is not under
    /// way has both its ends waiting for it alone, so that some message always moves.
    pub fn turn(&self, rank: usize) -> Option<(usize, usize, usize)> {
        let of = |from: usize, to: usize| Some((from.min(to), from.max(to), from));
        match self {
            Collective::Send { to, .. } => of(rank, *to),
            Collective::Recv { from, .. } => of(*from, rank),
            _ => None,
        }
    }

    /// Check lengths, types and ranks for `rank` in a group of `size`.
    pub fn check(&self, rank: usize, size: usize) -> Result<()> {
        let name = self.name();
        let lengths = |what: &str, expected: Option<usize>, got: usize| match expected {
            Some(expected) if expected == got => Ok(()),
            _ => Err(Error::shape(name, what, expected.map_or("a length that exists".into(), |n| n.to_string()), got)),
        };
        let types = |send: DType, recv: DType| match send == recv {
            true => Ok(()),
            false => Err(Error::DType { op: name, what: "recv".into(), expected: send.name().into(), got: recv }),
        };
        let peer = |what: &str, peer: usize| match peer < size {
            true => Ok(()),
            false => Err(Error::argument(name, format!("{what} {peer} of {size} ranks"))),
        };
        let other = |what: &str, other: usize| match other != rank {
            true => peer(what, other),
            false => Err(Error::argument(name, format!("{what} {other}, which is this rank"))),
        };
        match self {
            Collective::AllGather { send, recv } => {
                types(send.dtype(), recv.dtype())?;
                lengths("recv", send.len().checked_mul(size), recv.len())
            }
            Collective::ReduceScatter { send, recv, by } => {
                types(send.dtype(), recv.dtype())?;
                reducible(name, send.dtype(), *by)?;
                lengths("send", recv.len().checked_mul(size), send.len())
            }
            Collective::AllToAll { send, recv } => {
                types(send.dtype(), recv.dtype())?;
                lengths("recv", Some(send.len()), recv.len())?;
                match send.len().is_multiple_of(size) {
                    true => Ok(()),
                    false => Err(Error::shape(name, "send", format!("a multiple of {size}"), send.len())),
                }
            }
            Collective::AllReduce { data, by } => reducible(name, data.dtype(), *by),
            Collective::Reduce { data, by, root } => {
                peer("root", *root)?;
                reducible(name, data.dtype(), *by)
            }
            Collective::Broadcast { root, .. } => peer("root", *root),
            Collective::Send { to, .. } => other("to rank", *to),
            Collective::Recv { from, .. } => other("from rank", *from),
        }
    }
}

/// Averages of integers are not integers.
fn reducible(name: &'static str, dtype: DType, by: Reduction) -> Result<()> {
    if by == Reduction::Average && !dtype.is_float() {
        return Err(Error::DType { op: name, what: "data".into(), expected: "floats to average".into(), got: dtype });
    }
    Ok(())
}
