//! Sets of bytes, and sets of characters as strings of bytes in UTF-8.

use super::terms::{EMPTY, Term, Terms};

/// A set of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    /// The bytes from one to another.
    pub(super) fn range(first: u8, last: u8) -> Self {
        let mut set = ByteSet::default();
        (first..=last).for_each(|byte| set.insert(byte));
        set
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut set = ByteSet::default();
        bytes.iter().for_each(|byte| set.insert(*byte));
        set
    }

    pub(super) fn insert(&mut self, byte: u8) {
        if let Some(bits) = self.0.get_mut(usize::from(byte >> 6)) {
            *bits |= 1 << (byte & 63);
        }
    }

    pub(super) fn has(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte >> 6)).is_some_and(|bits| bits >> (byte & 63) & 1 == 1)
    }

    pub(super) fn or(&self, other: &ByteSet) -> Self {
        let [a, b, c, d] = self.0;
        let [e, f, g, h] = other.0;
        ByteSet([a | e, b | f, c | g, d | h])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}

/// The last character.
const LAST: u32 = 0x10_FFFF;
/// Numbers that are no characters.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);
/// The last characters of one, two, three and four bytes.
const LENGTHS: [u32; 4] = [0x7F, 0x7FF, 0xFFFF, LAST];

/// A set of characters as ranges of their numbers, in order and apart from each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    pub(super) fn new(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        CharSet(joined)
    }

    /// All characters.
    pub(super) fn all() -> Self {
        CharSet(vec![(0, SURROGATES.0 - 1), (SURROGATES.1 + 1, LAST)])
    }

    pub(super) fn one(c: char) -> Self {
        CharSet(vec![(u32::from(c), u32::from(c))])
    }

    /// The characters of this set that are not in another.
    pub(super) fn without(&self, other: &CharSet) -> Self {
        let mut left = Vec::new();
        for &(first, last) in &self.0 {
            let mut next = first;
            for &(from, to) in other.0.iter().filter(|(from, to)| *to >= first && *from <= last) {
                if from > next {
                    left.push((next, from - 1));
                }
                next = next.max(to.saturating_add(1));
            }
            if next <= last {
                left.push((next, last));
            }
        }
        CharSet(left)
    }

    pub(super) fn or(&self, other: &CharSet) -> Self {
        CharSet::new(self.0.iter().chain(&other.0).copied().collect())
    }

    /// The characters of both sets.
    pub(super) fn and(&self, other: &CharSet) -> Self {
        self.without(&CharSet(vec![(0, LAST)]).without(other))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The only character, if there is one.
    pub(super) fn single(&self) -> Option<char> {
        match self.0.as_slice() {
            [(first, last)] if first == last => char::from_u32(*first),
            _ => None,
        }
    }

    /// The characters, if they are few.
    pub(super) fn chars(&self) -> impl Iterator<Item = char> {
        self.0.iter().flat_map(|(first, last)| *first..=*last).filter_map(char::from_u32)
    }

    /// The strings of bytes that are a character of the set.
    pub(super) fn term(&self, terms: &mut Terms) -> Term {
        let valid = self.and(&CharSet::all());
        let mut found = Vec::new();
        for &(first, last) in &valid.0 {
            let mut start = first;
            for end in LENGTHS.into_iter().filter(|end| *end >= first) {
                let end = end.min(last);
                if start <= end {
                    found.push(of_range(terms, start, end));
                }
                start = end + 1;
            }
        }
        terms.either(found)
    }
}

/// The characters from one to another, all with the same number of bytes.
fn of_range(terms: &mut Terms, first: u32, last: u32) -> Term {
    let (from, to) = (encoded(first), encoded(last));
    match (from, to) {
        (Some(from), Some(to)) => between(terms, &from, &to),
        _ => EMPTY,
    }
}

fn encoded(number: u32) -> Option<Vec<u8>> {
    let c = char::from_u32(number)?;
    Some(c.encode_utf8(&mut [0; 4]).as_bytes().to_vec())
}

/// The byte strings from one to another whose bytes but the first are continuation bytes.
fn between(terms: &mut Terms, from: &[u8], to: &[u8]) -> Term {
    const CONTINUED: (u8, u8) = (0x80, 0xBF);
    let ([first, from @ ..], [last, to @ ..]) = (from, to) else { return super::terms::EPSILON };
    if first == last {
        let (head, tail) = (terms.bytes(ByteSet::range(*first, *first)), between(terms, from, to));
        return terms.sequence(head, tail);
    }
    let (mut low, mut high) = (*first, *last);
    let mut found = Vec::new();
    if from.iter().any(|byte| *byte != CONTINUED.0) {
        let (head, most) = (terms.bytes(ByteSet::range(low, low)), vec![CONTINUED.1; from.len()]);
        let tail = between(terms, from, &most);
        found.push(terms.sequence(head, tail));
        low += 1;
    }
    if to.iter().any(|byte| *byte != CONTINUED.1) {
        let (head, least) = (terms.bytes(ByteSet::range(high, high)), vec![CONTINUED.0; to.len()]);
        let tail = between(terms, &least, to);
        found.push(terms.sequence(head, tail));
        high -= 1;
    }
    if low <= high {
        let (head, any) =
            (terms.bytes(ByteSet::range(low, high)), terms.bytes(ByteSet::range(CONTINUED.0, CONTINUED.1)));
        let tail = terms.repeat(any, from.len() as u32, Some(from.len() as u32));
        found.push(terms.sequence(head, tail));
    }
    terms.either(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_characters_are_exactly_their_utf8() {
        let mut terms = Terms::new();
        for (first, last) in
            [(0, LAST), (0x41, 0x5A), (0x70, 0x900), (0xD000, 0xE123), (0xFFFE, 0x1_0345), (0x800, 0x800)]
        {
            let term = CharSet::new(vec![(first, last)]).term(&mut terms);
            let edges =
                [0, first.saturating_sub(1), first, last, last + 1, (first + last) / 2, 0x7F, 0x80, 0x7FF, 0x800];
            for number in edges.into_iter().chain([0xFFFF, 0x1_0000, LAST]) {
                let Some(c) = char::from_u32(number) else { continue };
                let is_in = (first..=last).contains(&number);
                assert_eq!(terms.accepts(term, c.to_string().as_bytes()), is_in, "{first:x} {last:x} {number:x}");
            }
            // Overlong forms, surrogates, and numbers beyond the last.
            for bytes in
                [&[0xC0, 0x80][..], &[0xED, 0xA0, 0x80], &[0xF4, 0x90, 0x80, 0x80], &[0x80], &[0xE0, 0x80, 0x80]]
            {
                assert!(!terms.accepts(term, bytes), "{first:x} {last:x} {bytes:x?}");
            }
        }
    }

    #[test]
    fn ranges_are_sets() {
        let set = CharSet::new(vec![(5, 9), (1, 3), (4, 4), (20, 10), (8, 12)]);
        assert_eq!(set.0, [(1, 12)]);
        let other = CharSet::new(vec![(2, 3), (6, 7), (12, 30)]);
        assert_eq!(set.without(&other).0, [(1, 1), (4, 5), (8, 11)]);
        assert_eq!(set.and(&other).0, [(2, 3), (6, 7), (12, 12)]);
        assert_eq!((CharSet::one('x').single(), set.single()), (Some('x'), None));
        assert!(set.without(&set).is_empty());
    }
}
