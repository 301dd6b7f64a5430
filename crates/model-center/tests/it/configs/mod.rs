//! What the tests of configurations share: a real file of a family with fields changed, read and written back.
// Every test program has this module, and none needs all of it.
#![allow(dead_code, unused_imports, unused_macros)]

use bmtrain_core::dtype::DType;
use model_center::config::{Config, HfHeader};
use serde_json::{Map, Value};

/// Reads a configuration; the error as its text.
pub fn read<C: Config>(map: &Map<String, Value>) -> Result<C, String> {
    C::from_json(&serde_json::to_string(map).unwrap(), "config.json").map_err(|error| error.to_string())
}

/// Reads a file with other fields; without one for which the value is the text `absent`.
pub fn read_with<C: Config>(mut file: Map<String, Value>, changes: &[(&str, Value)]) -> Result<C, String> {
    for (name, value) in changes {
        match value.as_str() {
            Some("absent") => file.shift_remove(*name),
            _ => file.insert(name.to_string(), value.clone()),
        };
    }
    read(&file)
}

/// Class and dtype of a written file.
pub fn header(architecture: &str, dtype: DType) -> HfHeader {
    HfHeader { architecture: architecture.into(), dtype }
}

/// Writes a configuration in both dialects and reads it back.
pub fn check_written<C: Config + PartialEq + std::fmt::Debug>(config: &C, header: &HfHeader) {
    assert_eq!(read(&config.to_hf_json(header).unwrap()).as_ref(), Ok(config));
    assert_eq!(C::from_json(&config.to_json_string(), "x").as_ref().unwrap(), config);
}

/// Declares for a test program which configuration [`read`] and [`read_with`] read, and from which file:
/// `fn hugging_face` gives its fields.
macro_rules! configuration {
    ($config:ty) => {
        fn read(map: &Map<String, Value>) -> Result<$config, String> {
            configs::read(map)
        }

        fn with(changes: &[(&str, Value)]) -> Result<$config, String> {
            configs::read_with(hugging_face(), changes)
        }
    };
}
pub(crate) use configuration;
