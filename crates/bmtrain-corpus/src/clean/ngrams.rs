//! Texts of evaluation tasks in documents: their n-grams are looked up, and documents split around them.
//!
//! Defines [`TaskNgrams`]. A task text yields its runs of 13 words, or itself if it has at least 8. A document
//! with such a run is split there: the run goes, with 200 characters on each side and the rest of the sentences they
//! end in.
//! Called by [`super`] and documented in `docs/clean-a-corpus.md`.

use std::collections::HashMap;

use super::NgramOptions;

/// The n-grams of task texts.
#[derive(Debug)]
pub(super) struct TaskNgrams {
    options: NgramOptions,
    /// The words of each, a space between them, and its number.
    numbers: HashMap<String, u32>,
    /// The numbers of words they have, ascending.
    sizes: Vec<usize>,
}

/// Rest of a document.
#[derive(Debug, PartialEq)]
pub(super) enum Filtered {
    Whole,
    Pieces(Vec<String>),
}

/// The words of a text.
struct Words {
    /// In lower case, a space between two.
    lower: String,
    places: Vec<WordPlace>,
}

/// The bytes that a word takes.
struct WordPlace {
    start: usize,
    end: usize,
    lower_start: usize,
    lower_end: usize,
}

impl TaskNgrams {
    pub(super) fn new(options: NgramOptions) -> TaskNgrams {
        TaskNgrams { options, numbers: HashMap::new(), sizes: Vec::new() }
    }

    /// Adds the n-grams of a task text.
    pub(super) fn add(&mut self, text: &str) {
        let words = Words::new(text);
        let size = words.places.len().min(self.options.max_words);
        if size == 0 || size < self.options.min_words {
            return;
        }
        for at in 0..=words.places.len() - size {
            let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            let ngram = words.run(at, size).unwrap_or_default();
            self.numbers.entry(ngram.to_owned()).or_insert(next);
        }
        if let Err(at) = self.sizes.binary_search(&size) {
            self.sizes.insert(at, size);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The number of the longest n-gram that begins at a word, and how many words it has.
    fn find(&self, words: &Words, at: usize) -> Option<(u32, usize)> {
        self.sizes.iter().rev().find_map(|size| Some((*self.numbers.get(words.run(at, *size)?)?, *size)))
    }

    /// The numbers of the n-grams in a document, one for each occurrence. Occurrences do not overlap: matching goes on
    /// after each.
    pub(super) fn occurrences(&self, text: &str) -> Vec<u32> {
        let (words, mut at, mut found) = (Words::new(text), 0, Vec::new());
        while at < words.places.len() {
            let (number, size) = self.find(&words, at).map_or((None, 1), |(number, size)| (Some(number), size));
            found.extend(number);
            at += size;
        }
        found
    }

    /// Drops the n-grams that documents have `common` times or more: phrases of the language, not of a task.
    pub(super) fn drop_common(&mut self, counts: &[u64]) {
        let most = self.options.common;
        self.numbers.retain(|_, number| counts.get(*number as usize).is_none_or(|count| *count < most));
    }

    /// A document without the n-grams. Pieces of 200 characters or fewer are dropped, and all of a document that
    /// splits into more than ten.
    pub(super) fn filter(&self, text: &str) -> Filtered {
        let words = Words::new(text);
        // What was cut off so far ends at `from`.
        let (mut at, mut from, mut pieces) = (0, 0, Vec::new());
        let mut is_whole = true;
        while let Some(place) = words.places.get(at) {
            let Some((_, size)) = self.find(&words, at).filter(|_| place.start >= from) else {
                at += 1;
                continue;
            };
            is_whole = false;
            let (before, after) =
                self.around(&text[from..], place.start - from, words.places[at + size - 1].end - from);
            pieces.extend(self.long_enough(before));
            from = text.len() - after.len();
            at += size;
        }
        if is_whole {
            return Filtered::Whole;
        }
        pieces.extend(self.long_enough(&text[from..]));
        if pieces.len() > self.options.max_pieces {
            pieces.clear();
        }
        Filtered::Pieces(pieces.into_iter().map(str::to_owned).collect())
    }

    fn long_enough<'t>(&self, piece: &'t str) -> Option<&'t str> {
        piece.chars().nth(self.options.min_characters).map(|_| piece)
    }

    /// Texts before and after the bytes `start..end` and the margin on each side, in whole sentences.
    fn around<'t>(&self, text: &'t str, start: usize, end: usize) -> (&'t str, &'t str) {
        let margin = self.options.margin;
        let before = text[..start].char_indices().rev().nth(margin.saturating_sub(1)).map_or(0, |(at, _)| at);
        let before = if margin == 0 { start } else { before };
        let after = text[end..].char_indices().nth(margin).map_or(text.len(), |(at, _)| end + at);
        let ends = |c: char| matches!(c, '.' | '!' | '?' | '。' | '！' | '？');
        let sentence = |at: usize, text: &str| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let first = text[..before].rfind(ends).map_or(0, |at| sentence(at, text));
        let last = text[after..].find(ends).map_or(text.len(), |at| sentence(after + at, text));
        (&text[..first], &text[last..])
    }
}

impl Words {
    /// Runs of letters, digits and `_`.
    fn new(text: &str) -> Words {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let (mut words, mut begun) = (Words { lower: String::new(), places: Vec::new() }, None);
        for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
            match (is_word(c), begun) {
                (true, None) => begun = Some(at),
                (false, Some(start)) => {
                    if !words.places.is_empty() {
                        words.lower.push(' ');
                    }
                    let lower_start = words.lower.len();
                    words.lower.extend(text[start..at].chars().flat_map(char::to_lowercase));
                    let lower_end = words.lower.len();
                    words.places.push(WordPlace { start, end: at, lower_start, lower_end });
                    begun = None;
                }
                _ => {}
            }
        }
        words
    }

    /// `size` words from a place on, a space between two; `None` if there are fewer.
    fn run(&self, at: usize, size: usize) -> Option<&str> {
        let last = self.places.get(at + size.checked_sub(1)?)?;
        Some(&self.lower[self.places[at].lower_start..last.lower_end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = "The quick brown fox jumps over the lazy dog, and then it sleeps all day long.";

    fn ngrams(options: NgramOptions) -> TaskNgrams {
        let mut ngrams = TaskNgrams::new(options);
        ngrams.add(TASK);
        ngrams.add("too short to count");
        ngrams.add("What is the capital of the old kingdom?");
        ngrams
    }

    #[test]
    fn a_document_is_split_around_a_task_text() {
        let ngrams = ngrams(NgramOptions { margin: 10, min_characters: 20, ..NgramOptions::default() });
        // 16 words have four runs of 13; eight words are one n-gram; four are none.
        assert_eq!(ngrams.len(), 5);
        let front = "This sentence is far before the text. This is near.";
        let back = "And that is near, too. This one follows, and it is long enough to stay.";
        let text =
            format!("{front} THE QUICK -- brown\nfox jumps over the lazy dog; and then it sleeps all day. {back}");
        let expected = vec![
            "This sentence is far before the text.".to_owned(),
            " This one follows, and it is long enough to stay.".to_owned(),
        ];
        assert_eq!(ngrams.filter(&text), Filtered::Pieces(expected));
        assert_eq!(ngrams.filter("A document without any of them, of any length."), Filtered::Whole);
        let question = "So: what is the capital of the old kingdom";
        assert_eq!(ngrams.filter(question), Filtered::Pieces(Vec::new()));
        assert_eq!(ngrams.occurrences(question).len(), 1);
    }

    #[test]
    fn common_phrases_and_many_pieces_have_their_limits() {
        let options = NgramOptions { margin: 0, min_characters: 5, common: 3, ..NgramOptions::default() };
        let mut ngrams = ngrams(options);
        // Nine of them are between ten pieces.
        let text = format!("A first one. {TASK} Another one. ").repeat(9);
        let Filtered::Pieces(pieces) = ngrams.filter(&text) else { panic!("not split") };
        assert_eq!(pieces.len(), 10);
        assert_eq!(ngrams.filter(&text.repeat(2)), Filtered::Pieces(Vec::new()));
        let mut counts = vec![0; ngrams.len()];
        ngrams.occurrences(&text).iter().for_each(|number| counts[*number as usize] += 1);
        ngrams.drop_common(&counts);
        assert_eq!(ngrams.filter("The quick brown fox jumps over the lazy dog and then it sleeps"), Filtered::Whole);
    }
}
