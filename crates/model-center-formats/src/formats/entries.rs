//! JSON objects that are read entry by entry, so that bounds hold before memory is taken.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A value that is made of a JSON object's entries, in their order.
pub(super) trait FromEntries: Sized {
    /// Expected value, for messages.
    const EXPECTED: &'static str;

    fn from_entries<'de, A: MapAccess<'de>>(entries: A) -> Result<Self, A::Error>;
}

/// The [`FromEntries`] of a JSON object.
pub(super) struct Entries<T>(pub(super) T);

impl<'de, T: FromEntries> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData)).map(Entries)
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: FromEntries> Visitor<'de> for EntriesVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<T, A::Error> {
        T::from_entries(entries)
    }
}
