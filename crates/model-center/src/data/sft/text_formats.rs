//! The texts that inputs and outputs become part of.
//!
//! Defines [`TextFormats`]. Source: the templates of the predecessor's dataset classes; the first occurrence of a name
//! is replaced, and nothing else is processed.

use serde::{Deserialize, Serialize};

/// What stands for the input in a format.
pub const INPUT: &str = "__input__";
/// What stands for the output.
pub const OUTPUT: &str = "__output__";

/// The formats of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextFormats {
    /// Of inputs.
    pub input_format: String,
    /// Of outputs.
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
}
