//! Names of files that a run writes: [`is_output_name`] and [`is_plain_name`].

/// The longest name of an output: a preparation has it and some more, and 255 is what file systems take.
pub const MAX_NAME_BYTES: usize = 199;

/// Whether a name is one of a file in a directory, and neither of a directory below nor above it: without separators
/// and control characters, and of at most [`MAX_NAME_BYTES`].
pub fn is_plain_name(name: &str) -> bool {
    let is_short = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    is_short && name != "." && name != ".." && !name.contains(['/', '\\']) && !name.contains(char::is_control)
}

/// Whether a name may be an output's: a plain one that does not begin with a dot, unlike locks and temporary files.
pub fn is_output_name(name: &str) -> bool {
    is_plain_name(name) && !name.starts_with('.')
}
