//! The number of requests that wait for the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what waits, up to a number.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    length: Arc<AtomicUsize>,
    most: usize,
}

/// A place in the queue, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Queue {
    pub(super) fn new(most: usize) -> Self {
        Queue { length: Arc::default(), most }
    }

    /// A place, if there is one.
    pub(super) fn enter(&self) -> Option<Ticket> {
        let next = |length: usize| (length < self.most).then_some(length + 1);
        self.length.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some(Ticket(Arc::clone(&self.length)))
    }

    pub(super) fn length(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn places_are_limited_and_free_again() {
        let queue = Queue::new(2);
        let first = queue.enter().unwrap();
        let second = queue.enter().unwrap();
        assert!(queue.enter().is_none() && queue.length() == 2);
        drop(first);
        assert!(queue.enter().is_some());
        drop(second);
        assert_eq!(queue.length(), 0);
    }
}
