//! A table of keys: one row a key, from which its reader, its field, its line on the settings page and its part in the
//! hashes follow.
//!
//! Defines [`Row`], [`Table`] and the macro [`settings!`] that tables are written in. Knows no key; the tables are in
//! `keys/`.

/// Contribution of a key to the hash of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HashRule {
    /// Its value.
    Counted,
    /// Nothing: it affects where and how a run is executed, not what it computes.
    Uncounted,
    /// Nothing, and ranks of a run may differ in it.
    OfRank,
    /// This text, whatever its value is: it changes no result, and the hash of earlier versions counts it.
    Fixed(&'static str),
}

/// A key, beside what its reader declares of its values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) key: &'static str,
    text: &'static str,
    /// The version that added it.
    pub(crate) since: &'static str,
    /// On the settings page, a default that depends on other keys.
    pub(crate) default: Option<&'static str>,
    /// The key whose value is the default.
    pub(crate) follows: Option<&'static str>,
    /// The choices of another key that it has an effect with; empty for all.
    pub(crate) uses: &'static [&'static str],
    pub(crate) hash: HashRule,
    /// A default that does not count, so that recipes and checkpoints of versions without the key keep their hash.
    pub(crate) later: Option<&'static str>,
    /// Whether it sets the schedule of the learning rate, or the length of the run, which that is made for.
    pub(crate) is_of_schedule: bool,
    /// Advice where a program trains by steps of its own, which do not have the key.
    pub(crate) not_of_step: Option<&'static str>,
    /// Reason and fix where its value is the name that another trainer has for one.
    pub(crate) foreign: fn(&str) -> Option<(String, String)>,
}

impl Row {
    pub(crate) const fn new(key: &'static str, text: &'static str, since: &'static str) -> Self {
        let (default, follows, later) = (None, None, None);
        let hash = HashRule::Counted;
        Row {
            key,
            text,
            since,
            default,
            follows,
            uses: &[],
            hash,
            later,
            is_of_schedule: false,
            not_of_step: None,
            foreign: |_| None,
        }
    }

    /// Its meaning, a line of the settings page.
    pub(crate) fn text(&self) -> &'static str {
        self.text.trim()
    }

    pub(crate) const fn default(self, text: &'static str) -> Self {
        Row { default: Some(text), ..self }
    }

    pub(crate) const fn follows(self, key: &'static str) -> Self {
        Row { follows: Some(key), ..self }
    }

    pub(crate) const fn uses(self, choices: &'static [&'static str]) -> Self {
        Row { uses: choices, ..self }
    }

    pub(crate) const fn uncounted(self) -> Self {
        Row { hash: HashRule::Uncounted, ..self }
    }

    pub(crate) const fn fixed(self, value: &'static str) -> Self {
        Row { hash: HashRule::Fixed(value), ..self }
    }

    pub(crate) const fn later(self, default: &'static str) -> Self {
        Row { later: Some(default), ..self }
    }

    pub(crate) const fn not_of_step(self, fix: &'static str) -> Self {
        Row { not_of_step: Some(fix), ..self }
    }

    pub(crate) const fn foreign(self, foreign: fn(&str) -> Option<(String, String)>) -> Self {
        Row { foreign, ..self }
    }

    pub(crate) const fn schedule(self) -> Self {
        Row { is_of_schedule: true, ..self }
    }
}

/// An item of a table.
#[derive(Debug)]
pub(crate) enum Item {
    Row(Row),
    /// The rows of another one.
    Table(&'static Table),
}

/// Rows in the order of the printed recipe.
#[derive(Debug)]
pub(crate) struct Table {
    /// Rule of all its rows that have none of their own.
    pub(crate) hash: HashRule,
    pub(crate) items: &'static [Item],
}

impl Table {
    /// Whether it has a key, as a constant.
    pub(crate) const fn has(&self, key: &str) -> bool {
        let mut at = 0;
        while at < self.items.len() {
            let has = match &self.items[at] {
                Item::Row(row) => is_same(row.key.as_bytes(), key.as_bytes()),
                Item::Table(table) => table.has(key),
            };
            if has {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Its rows, and the rows of the tables in it.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.items.iter().flat_map(|item| self.rows_of(item)).collect()
    }

    /// The rows of its fields, each with its flag in `are_wanted`.
    pub(crate) fn rows_of_fields(&self, are_wanted: &[bool]) -> Vec<Row> {
        let wanted = self.items.iter().zip(are_wanted).filter(|(_, is_wanted)| **is_wanted);
        wanted.flat_map(|(item, _)| self.rows_of(item)).collect()
    }

    fn rows_of(&self, item: &Item) -> Vec<Row> {
        match item {
            Item::Row(row) if row.hash == HashRule::Counted => vec![Row { hash: self.hash, ..*row }],
            Item::Row(row) => vec![*row],
            Item::Table(table) => table.rows(),
        }
    }
}

/// Settings of a table that can be compared by its rows.
pub(crate) trait Compared {
    /// The rows of the fields in which the two differ.
    fn differing(&self, other: &Self) -> Vec<Row>;
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The rows of all tables, each table before its own sub-tables; the order of rows within a table stays.
pub(crate) fn rows_of(tables: &[&Table]) -> Vec<Row> {
    let mut rows: Vec<Row> = tables.iter().flat_map(|table| table.rows()).collect();
    let mut names: Vec<&'static str> = Vec::new();
    for row in &rows {
        for name in [first_table(row.key), table_of(row.key)] {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let place = |name: &str| names.iter().position(|other| *other == name);
    rows.sort_by_key(|row| {
        let table = table_of(row.key);
        (place(first_table(row.key)), table.contains('.').then(|| place(table)))
    });
    rows
}

/// The first part of a key.
pub(crate) fn first_table(key: &str) -> &str {
    key.split_once('.').map_or(key, |(first, _)| first)
}

/// The table of a key, with its dots.
pub(crate) fn table_of(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(table, _)| table)
}

/// Defines a table: the structure of its settings with the function `read` that reads them in order, or, without a
/// structure, the rows of keys that other code reads.
///
/// A row is `/// text` of the page and of the field, `field: Type = kind(arguments), "version"` and rules, the methods
/// of [`Row`]. `kind` is a method of [`Reader`](super::reader::Reader), which is called with the key and the arguments;
/// these may name fields above, and what `read` is called with. `field: Type = { code } rows Keys` has no key of its
/// own: the code reads the structure `Keys`, whose rows are inserted here. `"table", uncounted` states the hash rule of
/// all rows; `then method()` is called on what was read, with the reader. Settings that nothing else decides have a
/// `Default`.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $public:vis struct $name:ident in $table:literal $(, $hash:ident)?
            ($r:ident $(, $given:ident: $given_type:ty)*) $(then $then:ident($($with_read:tt)*))?
        {
            $(
                $(#[doc = $text:literal])*
                $vis:vis $field:ident: $type:ty =
                    $($kind:ident($($argument:tt)*), $since:literal $(, $rule:ident($($with:tt)*))*)?
                    $($code:block rows $keys:ty)?;
            )*
        }
    ) => {
        $(#[$meta])*
        $public struct $name {
            $($(#[doc = $text])* $vis $field: $type,)*
        }

        impl $name {
            pub(in $crate::recipe) const TABLE: $crate::recipe::engine::table::Table =
                $crate::recipe::engine::table::Table {
                    hash: settings!(@hash $($hash)?),
                    items: &[$(settings!(
                        @item $table, $field, concat!($($text),*),
                        $($since $(, $rule($($with)*))*)? $($code rows $keys)?
                    ),)*],
                };

            /// Reads the keys. After a mistake a value is a placeholder.
            pub(in $crate::recipe) fn read(
                $r: &mut $crate::recipe::engine::reader::Reader $(, $given: $given_type)*
            ) -> Self {
                $(let $field: $type = settings!(@read $r, $table, $field, $($kind($($argument)*))? $($code)?);)*
                let read = $name { $($field),* };
                $(let read = read.$then($r, $($with_read)*);)?
                read
            }
        }

        impl $crate::recipe::engine::table::Compared for $name {
            fn differing(&self, other: &Self) -> Vec<$crate::recipe::engine::table::Row> {
                $name::TABLE.rows_of_fields(&[$(self.$field != other.$field),*])
            }
        }

        settings!(@default $name $($given)*);
    };
    (
        $public:vis const $name:ident in $table:literal {
            $($(#[doc = $text:literal])* $field:ident, $since:literal $(, $rule:ident($($with:tt)*))*;)*
        }
    ) => {
        $public const $name: $crate::recipe::engine::table::Table = $crate::recipe::engine::table::Table {
            hash: settings!(@hash),
            items: &[$(settings!(@item $table, $field, concat!($($text),*), $since $(, $rule($($with)*))*),)*],
        };
    };
    (@hash) => { $crate::recipe::engine::table::HashRule::Counted };
    (@hash uncounted) => { $crate::recipe::engine::table::HashRule::Uncounted };
    (@hash of_rank) => { $crate::recipe::engine::table::HashRule::OfRank };
    (@item $table:literal, $field:ident, $text:expr, $since:literal $(, $rule:ident($($with:tt)*))*) => {
        $crate::recipe::engine::table::Item::Row(
            $crate::recipe::engine::table::Row::new(concat!($table, ".", stringify!($field)), $text, $since)
                $(.$rule($($with)*))*
        )
    };
    (@item $table:literal, $field:ident, $text:expr, $code:block rows $keys:ty) => {
        $crate::recipe::engine::table::Item::Table(&<$keys>::TABLE)
    };
    (@read $r:ident, $table:literal, $field:ident, $kind:ident($($argument:tt)*)) => {
        $r.$kind(concat!($table, ".", stringify!($field)), $($argument)*)
    };
    (@read $r:ident, $table:literal, $field:ident, $code:block) => { $code };
    (@default $name:ident) => {
        impl Default for $name {
            fn default() -> Self {
                $name::read(&mut $crate::recipe::engine::reader::Reader::of_defaults())
            }
        }
    };
    (@default $name:ident $($given:ident)+) => {};
}

pub(crate) use settings;
