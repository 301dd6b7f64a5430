//! Tasks and classes of data that a program adds to this crate's.

use super::{DataClass, Task};

/// Tasks and classes that a program adds to those that recipes know.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnData {
    /// Further values of `data.task`.
    pub tasks: &'static [&'static dyn Task],
    /// Further classes of `data.sets`.
    pub classes: &'static [DataClass],
}

impl From<&'static [&'static dyn Task]> for OwnData {
    fn from(tasks: &'static [&'static dyn Task]) -> Self {
        OwnData { tasks, classes: &[] }
    }
}
