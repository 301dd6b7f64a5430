//! Values that go from one rank to another, with gradients that come back: [`send`] and [`recv`], for pipeline stages.
//!
//! The values follow a header with dtype, shape and whether the sender will want a gradient: the receiver
//! need not know what comes, and waits on the host until it has the header. Values travel on a lane of their own, so
//! that a sender goes on before they have arrived.
//!
//! The backward pass sends the gradient in the opposite direction, and a rank without a loss walks back all the same:
//! from no seeds at all. Gradients of several messages between two ranks go in the reverse order of the messages, which
//! is the order of the tape on both sides.

use super::collective::gradient;
use super::*;
use crate::comm::{Communicator, tensors};
use crate::shape::MAX_RANK;
use std::sync::Arc;

/// Give a value to rank `to`, which has to call [`recv`]. Its gradient is the one that rank has for it.
///
/// # Errors
/// This very rank, or one that is not there.
pub fn send(cx: &Ctx, ranks: &Arc<dyn Communicator>, x: &Var, to: usize) -> Result<()> {
    let wants_gradient = cx.records(&[x]);
    let header = Header { dtype: x.dtype(), shape: x.shape(), wants_gradient };
    header.send(&**ranks, cx.device(), to)?;
    tensors::send(&**ranks, x.value(), to)?;
    if wants_gradient {
        let node = SendBackward { ranks: Arc::clone(ranks), to, shape: x.shape(), dtype: x.dtype() };
        cx.record_node(Vec::new(), &[x], Box::new(node));
    }
    Ok(())
}

#[derive(Debug)]
struct SendBackward {
    ranks: Arc<dyn Communicator>,
    to: usize,
    shape: Shape,
    dtype: DType,
}

impl Backward for SendBackward {
    fn backward(self: Box<Self>, _: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let SendBackward { ranks, to, shape, dtype } = *self;
        let dx = tensors::recv(&*ranks, cx.device(), shape, dtype, to)?;
        cx.give(0, dx)
    }

    fn always_runs(&self) -> bool {
        true
    }
}

/// Take a value from rank `from`, which has to call [`send`]; its shape and dtype are the sender's. Waits for the
/// header.
///
/// # Errors
/// This very rank, or one that is not there; something else than what [`send`] sends; a sender that wants a gradient
/// where nothing is recorded.
pub fn recv(cx: &Ctx, ranks: &Arc<dyn Communicator>, from: usize) -> Result<Var> {
    let Header { dtype, shape, wants_gradient } = Header::recv(&**ranks, cx.device(), from)?;
    if wants_gradient && !cx.is_recording() {
        let reason = format!(
            "rank {from} wants the gradient of what it sends and nothing is recorded here: run both with a tape, or \
             both without"
        );
        return Err(Error::argument("recv", reason));
    }
    let value = tensors::recv(&**ranks, cx.device(), shape, dtype, from)?;
    if !wants_gradient {
        return Ok(Var::constant(value));
    }
    let node = RecvBackward { ranks: Arc::clone(ranks), from, shape, dtype };
    cx.record_node(vec![value], &[], Box::new(node))
        .pop()
        .ok_or_else(|| Error::argument("recv", "the tape gave no variable for the value"))
}

#[derive(Debug)]
struct RecvBackward {
    ranks: Arc<dyn Communicator>,
    from: usize,
    shape: Shape,
    dtype: DType,
}

impl Backward for RecvBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let RecvBackward { ranks, from, shape, dtype } = *self;
        let dy = gradient(cx.device(), dy, shape, dtype)?;
        tensors::send(&*ranks, &dy, from)
    }

    fn always_runs(&self) -> bool {
        true
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Header {
    dtype: DType,
    shape: Shape,
    wants_gradient: bool,
}

/// Dtypes by their numbers in a header.
const DTYPES: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8];
/// Tells a header from other messages of as many integers: the letters `bmtvalue`.
const MARK: i64 = i64::from_be_bytes(*b"bmtvalue");
/// The mark, dtype, wish for a gradient, number of dimensions, the dimensions.
const WORDS: usize = 4 + MAX_RANK;

impl Header {
    fn words(&self) -> [i64; WORDS] {
        let mut words = [0; WORDS];
        let dtype = DTYPES.iter().position(|known| *known == self.dtype).map_or(-1, |place| place as i64);
        words[..4].copy_from_slice(&[MARK, dtype, i64::from(self.wants_gradient), self.shape.rank() as i64]);
        for (word, dim) in words[4..].iter_mut().zip(self.shape.dims()) {
            *word = *dim as i64;
        }
        words
    }

    /// Parses the header of another rank, which is untrusted.
    fn of(words: &[i64]) -> Option<Self> {
        let [MARK, dtype, wants_gradient @ (0 | 1), rank, dims @ ..] = words else { return None };
        let dims = dims.get(..usize::try_from(*rank).ok()?)?;
        let dims = dims.iter().map(|dim| usize::try_from(*dim).ok()).collect::<Option<Vec<usize>>>()?;
        let dtype = *DTYPES.get(usize::try_from(*dtype).ok()?)?;
        let wants_gradient = *wants_gradient == 1;
        let header = Header { dtype, shape: Shape::new(&dims).ok()?, wants_gradient };
        (dtype.is_float() || !wants_gradient).then_some(header)
    }

    fn send(&self, ranks: &dyn Communicator, device: &Device, to: usize) -> Result<()> {
        // Uploaded on the compute lane: on the lane of messages the host would wait for messages in flight.
        let words = Tensor::from_slice_in(device, [WORDS], &self.words(), Segment::Workspace)?;
        tensors::send(ranks, &words, to)
    }

    fn recv(ranks: &dyn Communicator, device: &Device, from: usize) -> Result<Self> {
        let words = tensors::recv(ranks, device, [WORDS], DType::I64, from)?.to_vec::<i64>()?;
        Header::of(&words).ok_or_else(|| {
            let reason = format!("rank {from} sent something else than a value: it has to call ops::send");
            Error::argument("recv", reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_was_put_into_it() {
        for dtype in DTYPES {
            for dims in [&[][..], &[0], &[3, 1, 4], &[1, 2, 3, 4, 5, 6]] {
                let shape = Shape::new(dims).unwrap();
                let header = Header { dtype, shape, wants_gradient: dtype.is_float() };
                assert_eq!(Header::of(&header.words()), Some(header));
            }
        }
    }

    #[test]
    fn integers_of_another_message_are_no_header() {
        let good = Header { dtype: DType::F32, shape: Shape::from([2, 3]), wants_gradient: true }.words();
        let with = |place: usize, word: i64| {
            let mut words = good;
            words[place] = word;
            Header::of(&words)
        };
        assert!(with(4, 7).is_some(), "another shape is one");
        let wrong = [(0, 0), (1, 6), (1, -1), (2, 2), (3, 7), (3, -1), (4, -1), (4, i64::MAX)];
        for (place, value) in wrong {
            assert_eq!(with(place, value), None, "element {place} = {value}");
        }
        assert_eq!(with(1, 3), None, "integers have no gradient");
        assert_eq!(Header::of(&good[..3]), None);
    }
}
