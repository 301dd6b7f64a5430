//! Which tokens are hidden: whole words, n-grams, and the random segments of T5.
//!
//! Defines [`SpanLengths`] and the choice of spans by a budget of tokens (`choose`), which masked language modelling
//! and Megatron-LM's T5 share, and `segments`, the rule of the T5 paper. A span is a range of indices of a sequence.

use std::ops::Range;

use super::random::SampleRandom;

/// How many words a hidden span has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SpanLengths {
    /// One.
    One,
    /// 1 to this number, n with a probability in proportion to 1 / n: Megatron-LM's n-gram masking.
    Inverse(u32),
    /// Geometric with this probability of ending after each word, at most the number: Megatron-LM's T5 has 0.2 and 10.
    Geometric(f64, u32),
}

impl SpanLengths {
    fn sample(self, random: &mut SampleRandom) -> usize {
        let length = match self {
            SpanLengths::One => 1,
            SpanLengths::Inverse(most) => {
                let sum: f64 = (1..=most).map(|n| 1.0 / f64::from(n)).sum();
                let mut left = random.unit() * sum;
                (1..most)
                    .find(|n| {
                        left -= 1.0 / f64::from(*n);
                        left < 0.0
                    })
                    .unwrap_or(most)
            }
            SpanLengths::Geometric(end, most) => (1..most).find(|_| random.chance(end)).unwrap_or(most),
        };
        length.max(1) as usize
    }
}

/// Disjoint spans of words at random places, ascending. `words` are ranges of tokens, ascending and disjoint;
/// a span has words that follow each other without a gap. `fits` decides for numbers of tokens and spans in all.
pub(super) fn choose(
    words: &[Range<usize>],
    lengths: SpanLengths,
    random: &mut SampleRandom,
    fits: impl Fn(usize, usize) -> bool,
) -> Vec<Range<usize>> {
    let mut order: Vec<usize> = (0..words.len()).collect();
    random.shuffle(&mut order);
    let mut hidden = vec![false; words.len()];
    let (mut spans, mut tokens) = (Vec::new(), 0);
    for first in order {
        if !fits(tokens + 1, spans.len() + 1) {
            break;
        }
        if hidden[first] {
            continue;
        }
        let wanted = lengths.sample(random);
        // As many words as wanted, up to a gap, a hidden word or what does not fit any more.
        let mut end = first;
        while end < words.len()
            && end - first < wanted
            && !hidden[end]
            && (end == first || words[end].start == words[end - 1].end)
            && fits(tokens + words[end].end - words[first].start, spans.len() + 1)
        {
            end += 1;
        }
        if end > first {
            hidden[first..end].fill(true);
            let span = words[first].start..words[end - 1].end;
            tokens += span.len();
            spans.push(span);
        }
    }
    spans.sort_unstable_by_key(|span| span.start);
    spans
}

/// Hidden tokens and spans of a sequence by the rule of the T5 paper: the share of hidden tokens, in spans of this mean
/// length, rounded half to even; at least one of each, and one token left between two spans.
pub(super) fn segment_counts(length: usize, density: f64, mean: f64) -> (usize, usize) {
    let hidden = ((length as f64 * density).round_ties_even() as usize).clamp(1, length.saturating_sub(1).max(1));
    let spans = ((hidden as f64 / mean).round_ties_even() as usize).max(1);
    (hidden, spans.min(hidden).min(length.saturating_sub(hidden).max(1)))
}

/// The hidden spans of a sequence of at least 2 tokens by the rule of the T5 paper: hidden and other tokens are each
/// cut into random segments, every division with the same probability, and alternate; the sequence begins with a
/// segment that is not hidden and ends with a hidden one. A shorter sequence has none.
pub(super) fn segments(length: usize, density: f64, mean: f64, random: &mut SampleRandom) -> Vec<Range<usize>> {
    if length < 2 {
        return Vec::new();
    }
    let (hidden, spans) = segment_counts(length, density, mean);
    let hidden = divide(hidden, spans, random);
    let shown = divide(length - hidden.iter().sum::<usize>(), spans, random);
    let mut at = 0;
    let span = |(shown, hidden): (usize, usize)| {
        let start = at + shown;
        at = start + hidden;
        start..at
    };
    shown.into_iter().zip(hidden).map(span).collect()
}

/// A random division of `items` into `parts` of at least one each, `parts` of 1 to `items`.
fn divide(items: usize, parts: usize, random: &mut SampleRandom) -> Vec<usize> {
    // The places between two items where a part ends: a random subset, by a shuffle of the first places alone.
    let places = items.saturating_sub(1);
    let mut cuts: Vec<usize> = (1..=places).collect();
    let count = (parts - 1).min(places);
    for at in 0..count {
        cuts.swap(at, at + random.index(places - at));
    }
    cuts.truncate(count);
    cuts.sort_unstable();
    cuts.push(items);
    let mut before = 0;
    cuts.into_iter().map(|cut| cut - std::mem::replace(&mut before, cut)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bmtrain_core::philox::Key;

    fn random(sample: u64) -> SampleRandom {
        SampleRandom::new(Key::new(5, "test"), sample)
    }

    #[test]
    fn chosen_spans_are_disjoint_whole_words_within_the_budget() {
        // Words of 1 to 3 tokens, with a gap after every seventh.
        let mut words = Vec::new();
        let mut at = 0;
        for word in 0..60 {
            words.push(at..at + 1 + word % 3);
            at += 1 + word % 3 + usize::from(word % 7 == 6);
        }
        let lengths = [SpanLengths::One, SpanLengths::Inverse(3), SpanLengths::Geometric(0.2, 10)];
        for (sample, lengths) in (0..600).map(|sample| (sample, lengths[(sample % 3) as usize])) {
            let most = 1 + (sample % 40) as usize;
            let spans = choose(&words, lengths, &mut random(sample), |tokens, spans| tokens <= most && spans <= 9);
            let tokens: usize = spans.iter().map(Range::len).sum();
            assert!(tokens <= most && spans.len() <= 9 && !spans.is_empty());
            // Single words of one token fill what is left, unless the spans are used up.
            assert!(tokens == most || spans.len() == 9 || tokens + 3 > most, "{tokens} of {most}");
            assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for span in &spans {
                let own: Vec<_> = words.iter().filter(|w| w.start < span.end && w.end > span.start).collect();
                assert_eq!((own[0].start, own[own.len() - 1].end), (span.start, span.end), "a word is cut");
                assert!(own.windows(2).all(|pair| pair[0].end == pair[1].start), "a span has a gap");
            }
        }
    }

    #[test]
    fn segments_have_the_stated_number_of_tokens_and_spans_and_end_with_a_hidden_one() {
        for length in [2, 3, 5, 10, 64, 512, 1137] {
            let (hidden, count) = segment_counts(length, 0.15, 3.0);
            for sample in 0..50 {
                let spans = segments(length, 0.15, 3.0, &mut random(sample));
                assert_eq!((spans.iter().map(Range::len).sum::<usize>(), spans.len()), (hidden, count), "{length}");
                assert!(spans[0].start > 0 && spans[count - 1].end == length);
                assert!(spans.iter().all(|span| !span.is_empty()));
                assert!(spans.windows(2).all(|pair| pair[0].end < pair[1].start), "spans touch");
            }
        }
        assert!(segments(1, 0.15, 3.0, &mut random(0)).is_empty());
        // Dense noise: no more spans than tokens between them.
        assert_eq!(segment_counts(10, 0.9, 1.0), (9, 1));
    }

    #[test]
    fn every_division_has_the_same_probability_and_lengths_follow_their_law() {
        let mut counts = std::collections::HashMap::new();
        (0..30_000).for_each(|sample| *counts.entry(divide(5, 3, &mut random(sample))).or_insert(0_i64) += 1);
        // Six divisions; five standard deviations.
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (count - 5000).abs() < 323), "{counts:?}");
        let mean = |lengths: SpanLengths| {
            let mut random = random(1);
            (0..100_000).map(|_| lengths.sample(&mut random) as f64).sum::<f64>() / 100_000.0
        };
        assert!((mean(SpanLengths::Inverse(3)) - 18.0 / 11.0).abs() < 0.02);
        assert!((mean(SpanLengths::Geometric(0.2, 10)) - (1.0 - 0.8_f64.powi(10)) / 0.2).abs() < 0.05);
    }
}
