//! The texts that inputs and outputs become part of.
//!
//! Defines [`TextFormats`], and the file of a model directory that keeps them for generation.
//!
//! Source: the templates of the predecessor's dataset classes; the first occurrence of a name is replaced, and nothing
//! else is processed.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};
use model_center_base::file::{read_text, write_atomic};
pub use model_center_formats::directory::FORMATS_FILE;

/// Formats have some hundred bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Placeholder of the input in a format.
pub const INPUT: &str = "__input__";
/// Placeholder of the output.
pub const OUTPUT: &str = "__output__";

/// The formats of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextFormats {
    /// Format of inputs.
    pub input_format: String,
    /// Format of outputs.
    pub output_format: String,
}

impl Default for TextFormats {
    fn default() -> Self {
        TextFormats { input_format: INPUT.to_owned(), output_format: OUTPUT.to_owned() }
    }
}

impl TextFormats {
    /// An input as a model reads it.
    pub fn input(&self, input: &str) -> String {
        self.input_format.replacen(INPUT, input, 1)
    }

    /// An output as a model learns it.
    pub fn output(&self, output: &str) -> String {
        self.output_format.replacen(OUTPUT, output, 1)
    }

    /// Whether texts stay as they are.
    pub fn is_plain(&self) -> bool {
        *self == TextFormats::default()
    }
}

/// Keeps formats in a model directory, in place of others; plain texts need no file.
///
/// # Errors
/// What the disk refuses.
pub fn write_formats(directory: &Path, formats: &[TextFormats]) -> Result<()> {
    let path = directory.join(FORMATS_FILE);
    if formats.iter().all(TextFormats::is_plain) {
        return match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::file("remove", &path, error, "check that you may write there"))
            }
            _ => Ok(()),
        };
    }
    let text = serde_json::to_string_pretty(formats)
        .map_err(|error| Error::model(path.display().to_string(), error.to_string(), "report this"))?;
    write_atomic(&path, (text + "\n").as_bytes())
}

/// The formats that a model directory keeps; none where it keeps none.
///
/// # Errors
/// A file that cannot be read, or is not a list of formats.
pub fn read_formats(directory: &Path) -> Result<Vec<TextFormats>> {
    let path = directory.join(FORMATS_FILE);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&read_text(&path, MAX_BYTES)?).map_err(|error| {
        let fix = "write [{\"input_format\": \"…\", \"output_format\": \"…\"}], or remove the file";
        Error::model(path.display().to_string(), format!("it is not a list of formats: {error}"), fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_occurrence_alone_is_replaced() {
        let formats =
            TextFormats { input_format: "Q: __input__ __input__".into(), output_format: " __output__".into() };
        assert_eq!(formats.input("a __input__"), "Q: a __input__ __input__");
        assert_eq!(formats.output("b"), " b");
        assert!(TextFormats::default().is_plain() && !formats.is_plain());
    }

    #[test]
    fn a_directory_keeps_formats_until_plain_ones_replace_them() {
        let directory = tempfile::tempdir().unwrap();
        let formats = [TextFormats { input_format: "Q: __input__".into(), ..TextFormats::default() }];
        assert_eq!(read_formats(directory.path()).unwrap(), []);
        write_formats(directory.path(), &formats).unwrap();
        assert_eq!(read_formats(directory.path()).unwrap(), formats);
        write_formats(directory.path(), &[TextFormats::default()]).unwrap();
        assert_eq!(read_formats(directory.path()).unwrap(), []);
        std::fs::write(directory.path().join(FORMATS_FILE), "[{}]").unwrap();
        assert!(read_formats(directory.path()).unwrap_err().to_string().contains("not a list of formats"));
    }
}
