//! The call of a rank, encoded for the other ranks and shown to users.
//!
//! A rank publishes a call as [`CallKind::encoded`]; [`describe`] decodes what other ranks published, which is not
//! trusted.

use crate::comm::{Collective, Reduction, Signature};
use crate::dtype::DType;
use std::fmt;

/// The names of all calls; their places are their numbers between ranks and in the statistics.
pub(super) const NAMES: [&str; 10] = [
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "reduce",
    "broadcast",
    "all_to_all",
    "send",
    "recv",
    "barrier",
    "split",
];

const DTYPES: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8];
const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Average, Reduction::Max, Reduction::Min, Reduction::Product];

#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    /// Its number, from 0: among the collectives of the group, the meetings of the host, or the messages between two
    /// ranks.
    pub(super) sequence: u64,
}

/// One of the two sequences of calls that all ranks of a group make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    /// Collectives, on lanes.
    Lanes = 0,
    /// Barriers and splits, on the rank's own thread.
    Host = 1,
}

impl Call {
    /// A rank that this call waits for, and how far it has come; `calls_of` counts its calls of a sequence.
    pub(super) fn whereabouts(&self, label: String, calls_of: impl FnOnce(Channel) -> u64) -> String {
        let channel = match self.kind {
            CallKind::Collective(_) => Channel::Lanes,
            CallKind::Barrier | CallKind::Split => Channel::Host,
            CallKind::Send(..) | CallKind::Recv(..) | CallKind::Join => return label,
        };
        match calls_of(channel) {
            0 => format!("{label} (which has not called anything yet)"),
            count if count > self.sequence => format!("{label} (which stopped in this call)"),
            count => format!("{label} (whose last call was number {})", count - 1),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CallKind {
    Collective(Signature),
    Send(Signature, usize),
    Recv(Signature, usize),
    Barrier,
    Split,
    Join,
}

impl CallKind {
    pub(super) fn of(collective: &Collective<'_>) -> Self {
        let signature = collective.signature();
        match collective {
            Collective::Send { to, .. } => CallKind::Send(signature, *to),
            Collective::Recv { from, .. } => CallKind::Recv(signature, *from),
            _ => CallKind::Collective(signature),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            CallKind::Collective(signature) | CallKind::Send(signature, _) | CallKind::Recv(signature, _) => {
                signature.name
            }
            CallKind::Barrier => "barrier",
            CallKind::Split => "split",
            CallKind::Join => "join",
        }
    }

    /// Two integers that are equal on all ranks if and only if the calls fit together. The first one is never zero.
    pub(super) fn encoded(&self) -> [u64; 2] {
        let place = |name: &str| NAMES.iter().position(|known| *known == name).map_or(0, |place| place as u64 + 1);
        match self {
            CallKind::Collective(signature) => encode(place(signature.name), signature),
            // Both ends of a message write the same.
            CallKind::Send(signature, _) | CallKind::Recv(signature, _) => encode(place("send"), signature),
            CallKind::Barrier | CallKind::Split => [place(self.name()), 0],
            CallKind::Join => [u64::MAX, 0],
        }
    }
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallKind::Collective(signature) => signature.fmt(f),
            CallKind::Send(signature, to) => write!(f, "{signature} to rank {to}"),
            CallKind::Recv(signature, from) => write!(f, "{signature} from rank {from}"),
            CallKind::Barrier | CallKind::Split | CallKind::Join => f.write_str(self.name()),
        }
    }
}

fn encode(name: u64, signature: &Signature) -> [u64; 2] {
    let dtype = DTYPES.iter().position(|known| *known == signature.dtype).map_or(0, |place| place as u64 + 1);
    let by = signature.by.and_then(|by| REDUCTIONS.iter().position(|known| *known == by));
    let by = by.map_or(0, |place| place as u64 + 1);
    let root = signature.root.map_or(0, |root| root as u64 + 1);
    [name | dtype << 8 | by << 16 | root << 32, signature.part as u64]
}

/// The call that another rank has encoded, for a message. The code is not trusted.
pub(super) fn describe([code, part]: [u64; 2]) -> String {
    let place = |shift: u32| (code >> shift & 0xff) as usize;
    let Some(name) = place(0).checked_sub(1).and_then(|place| NAMES.get(place)).copied() else {
        return format!("something unknown ({code:#x})");
    };
    if place(8) == 0 {
        return name.into();
    }
    let Some(dtype) = DTYPES.get(place(8) - 1).copied() else {
        return format!("{name} of an unknown type ({code:#x})");
    };
    let by = place(16).checked_sub(1).and_then(|place| REDUCTIONS.get(place)).copied();
    let root = ((code >> 32) as usize).checked_sub(1);
    Signature { name, dtype, part: part as usize, by, root }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_reads_as_itself_and_as_no_other() {
        let mut seen = std::collections::HashMap::new();
        for name in &NAMES[..6] {
            for dtype in DTYPES {
                for by in REDUCTIONS.map(Some).into_iter().chain([None]) {
                    for root in [None, Some(0), Some(63)] {
                        for part in [0, 1, usize::MAX] {
                            let signature = Signature { name, dtype, part, by, root };
                            let encoded = CallKind::Collective(signature).encoded();
                            assert_eq!(describe(encoded), signature.to_string());
                            assert_eq!(seen.insert(encoded, signature), None);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn unknown_codes_are_described_as_unknown() {
        assert!(describe([0, 0]).contains("unknown"));
        assert!(describe([u64::MAX, 5]).contains("unknown"));
        assert!(describe([1 | 77 << 8, 5]).contains("unknown type"));
        assert_eq!(describe(CallKind::Barrier.encoded()), "barrier");
    }
}
