//! Reads, checks and describes the keys of a recipe. Nothing here knows a key: the tables are in `keys/`.

pub(crate) mod kinds;
pub(crate) mod layers;
pub(crate) mod mistake;
pub(crate) mod page;
pub(crate) mod reader;
pub(crate) mod schema;
pub(crate) mod table;
pub(crate) mod unknown;
