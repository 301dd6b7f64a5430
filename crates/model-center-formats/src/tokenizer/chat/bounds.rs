//! Bounds of the values of a chat template.
//!
//! Defines [`check_size`], called before memory is taken for the result of a filter, a method or an operator.

use minijinja::{Error, ErrorKind, State};

/// The maximum nesting depth of containers that are printed or compared: one can contain itself.
pub(super) const DEPTH: usize = 100;
/// Least bytes of a list's item.
pub(super) const ITEM_BYTES: usize = 32;
/// The variable that carries the most bytes that a text may have.
pub(super) const MAX_BYTES: &str = "__most_bytes";
/// Bytes that a result may have in any rendering: up to them the limit is not looked up.
const ALWAYS: usize = 1 << 16;

/// The most bytes that a text may have in this rendering.
pub(super) fn limit(state: &State<'_, '_>) -> usize {
    let limit = state.lookup(MAX_BYTES).and_then(|limit| usize::try_from(limit).ok());
    limit.unwrap_or(super::environment::MAX_OUTPUT_BYTES)
}

/// Refuses a result of more bytes than any text may have.
pub(super) fn check_size(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    if bytes <= ALWAYS {
        return Ok(());
    }
    let limit = limit(state);
    if bytes > limit { Err(too_large(limit)) } else { Ok(()) }
}

pub(super) fn too_large(limit: usize) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the result would have more than {limit} bytes"))
}
