//! Tasks and classes of data that a program adds to this crate's.

use super::{DataClass, TaskEntry};

/// What a program adds to the data that recipes know.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnData {
    /// Further values of `data.task`.
    pub tasks: &'static [TaskEntry],
    /// Further classes of `data.sets`.
    pub classes: &'static [DataClass],
}

impl From<&'static [TaskEntry]> for OwnData {
    fn from(tasks: &'static [TaskEntry]) -> Self {
        OwnData { tasks, classes: &[] }
    }
}
