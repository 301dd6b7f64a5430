//! Errors of the library with the names of options on the command line.

use crate::Error;

/// An error of the library with settings named as on the command line: `top_k` is --top-k.
pub fn with_flags(error: Error) -> Error {
    match error {
        Error::Argument { place, reason, fix } => Error::argument(flag(&place), flags(&reason), flags(&fix)),
        Error::Model { place, reason, fix } => Error::model(place, flags(&reason), flags(&fix)),
        Error::Data { place, reason, fix } => Error::data(place, flags(&reason), flags(&fix)),
        other => other,
    }
}

fn flag(name: &str) -> String {
    if name.starts_with("--") { name.to_owned() } else { format!("--{}", name.replace('_', "-")) }
}

/// A text with its names in backticks as flags.
fn flags(text: &str) -> String {
    let is_name = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
    let parts = text.split('`').enumerate().map(|(index, part)| match (index % 2 == 1, is_name(part)) {
        (true, true) => flag(part),
        (true, false) => format!("`{part}`"),
        (false, _) => part.to_owned(),
    });
    parts.collect()
}
