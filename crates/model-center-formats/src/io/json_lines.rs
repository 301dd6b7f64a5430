//! Files of one JSON object a line that are read whole: prompts, inputs and requests, of some megabytes.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::input::of_data;
use crate::{Error, Result};
use model_center_base::file::{printable, read_text};

/// The lines of a file, each with its place in errors, `FILE:LINE`. `like` is an example of a line.
///
/// # Errors
/// [`Error::Data`] with line and column for a line that is not such an object, and for a file without lines or of more
/// than `max_bytes` bytes.
pub fn read_json_lines<T: DeserializeOwned>(path: &Path, max_bytes: u64, like: &str) -> Result<Vec<(String, T)>> {
    let text = read_text(path, max_bytes).map_err(of_data)?;
    let lines = text.trim_start_matches('\u{FEFF}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(index, line): (usize, &str)| {
        let place = format!("{}:{}", path.display(), index + 1);
        match serde_json::from_str(line) {
            Ok(value) => Ok((place, value)),
            Err(error) => {
                // The parser sees one line, so its own line number is always 1.
                let text = error.to_string();
                let reason = printable(text.split(" at line ").next().unwrap_or_default(), 200);
                let place = format!("{place}:{}", error.column().max(1));
                Err(Error::data(place, reason, format!("write one JSON object per line, such as {like}")))
            }
        }
    };
    let lines = lines.map(parse).collect::<Result<Vec<_>>>()?;
    match lines.is_empty() {
        false => Ok(lines),
        true => Err(Error::data(path.display().to_string(), "there is no line", "write one row per line")),
    }
}
