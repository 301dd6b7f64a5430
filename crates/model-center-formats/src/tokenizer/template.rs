//! Special tokens around texts, and truncation of over-long pairs.
//!
//! A [`Template`] is plain data (`[CLS] A [SEP] B [SEP]` with a segment id per piece), so that assembling an
//! input is a copy of ids. [`super::HfTokenizer`] reads it off the post-processor of a `tokenizer.json` once;
//! [`super::Tokenizer::encode`] and the dataset reader apply it.

use super::{Encoding, KeepSide, Limit};
use crate::{Error, Result};

/// One piece of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateSlot {
    /// A special token.
    Special {
        /// Its id.
        id: u32,
        /// Its segment.
        type_id: u8,
    },
    /// The first text.
    First {
        /// Its segment.
        type_id: u8,
    },
    /// The second text.
    Second {
        /// Its segment.
        type_id: u8,
    },
}

/// The order of special tokens and texts in one input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Template {
    /// The pieces in order.
    pub pieces: Vec<TemplateSlot>,
}

impl Template {
    /// Number of special tokens an input gets in addition to its texts.
    pub fn special_tokens(&self) -> usize {
        self.pieces.iter().filter(|piece| matches!(piece, TemplateSlot::Special { .. })).count()
    }

    /// The ids before and after the first text, including those after a second one.
    pub fn around_first(&self) -> (Vec<u32>, Vec<u32>) {
        let (mut front, mut back, mut is_behind) = (Vec::new(), Vec::new(), false);
        for piece in &self.pieces {
            match piece {
                TemplateSlot::Special { id, .. } if is_behind => back.push(*id),
                TemplateSlot::Special { id, .. } => front.push(*id),
                TemplateSlot::First { .. } | TemplateSlot::Second { .. } => is_behind = true,
            }
        }
        (front, back)
    }

    /// The ids of one input from the ids of its texts (`second` empty for a single text).
    pub fn assemble(&self, first: &[u32], second: &[u32], limit: Option<Limit>) -> Result<Encoding> {
        let total = first.len() + second.len();
        let (mut first, mut second) = (first, second);
        if let Some(limit) = limit {
            let special = self.special_tokens();
            let room = limit.max_tokens.checked_sub(special).ok_or_else(|| {
                let reason =
                    format!("{} tokens cannot hold the {special} special tokens of an input", limit.max_tokens);
                let fix = format!("allow more than {special} (in a recipe: data.max_length)");
                Error::argument("max_tokens", reason, fix)
            })?;
            let (keep_first, keep_second) = longest_first(first.len(), second.len(), room);
            first = cut(first, keep_first, limit.keep);
            second = cut(second, keep_second, limit.keep);
        }
        let length = first.len() + second.len() + self.special_tokens();
        let mut encoding = Encoding {
            input_ids: Vec::with_capacity(length),
            token_type_ids: Vec::with_capacity(length),
            removed: total - first.len() - second.len(),
        };
        for piece in &self.pieces {
            let (ids, type_id) = match piece {
                TemplateSlot::Special { id, type_id } => (std::slice::from_ref(id), *type_id),
                TemplateSlot::First { type_id } => (first, *type_id),
                TemplateSlot::Second { type_id } => (second, *type_id),
            };
            encoding.input_ids.extend_from_slice(ids);
            encoding.token_type_ids.resize(encoding.input_ids.len(), type_id);
        }
        Ok(encoding)
    }
}

fn cut(ids: &[u32], keep: usize, side: KeepSide) -> &[u32] {
    match side {
        KeepSide::Start => &ids[..keep],
        KeepSide::End => &ids[ids.len() - keep..],
    }
}

/// Numbers of tokens of two texts that stay within `room`: the longer text gives up tokens first, and where both must
/// be cut each gets half, the odd token going to the text that was longer (to the second on a tie).
///
/// Source: the same lengths as transformers' `longest_first` in its fast tokenizers.
fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let shorter = first.min(second);
    let half = room / 2;
    let (short, long) = if shorter <= half { (shorter, room - shorter) } else { (half, room - half) };
    if first > second { (long, short) } else { (short, long) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bert_pair() -> Template {
        Template {
            pieces: vec![
                TemplateSlot::Special { id: 101, type_id: 0 },
                TemplateSlot::First { type_id: 0 },
                TemplateSlot::Special { id: 102, type_id: 0 },
                TemplateSlot::Second { type_id: 1 },
                TemplateSlot::Special { id: 102, type_id: 1 },
            ],
        }
    }

    #[test]
    fn a_pair_gets_its_special_tokens_and_segments() {
        let encoding = bert_pair().assemble(&[1, 2], &[3], None).unwrap();
        assert_eq!(encoding.input_ids, [101, 1, 2, 102, 3, 102]);
        assert_eq!(encoding.token_type_ids, [0, 0, 0, 0, 1, 1]);
        assert_eq!(encoding.removed, 0);
    }

    #[test]
    fn the_longer_text_is_cut_first() {
        for (lengths, room, kept) in [
            ((10, 3), 9, (6, 3)),
            ((3, 10), 9, (3, 6)),
            ((10, 10), 9, (4, 5)),
            ((11, 10), 9, (5, 4)),
            ((10, 0), 9, (9, 0)),
            ((0, 10), 9, (0, 9)),
            ((10, 4), 9, (5, 4)),
            ((10, 5), 9, (5, 4)),
            ((5, 5), 0, (0, 0)),
            ((5, 5), 1, (0, 1)),
            ((4, 5), 9, (4, 5)),
        ] {
            assert_eq!(longest_first(lengths.0, lengths.1, room), kept, "{lengths:?} in {room}");
        }
    }

    #[test]
    fn truncation_fills_the_room_exactly_and_never_invents_tokens() {
        for first in 0..30 {
            for second in 0..30 {
                for room in 0..40 {
                    let (a, b) = longest_first(first, second, room);
                    assert!(a <= first && b <= second);
                    assert_eq!(a + b, room.min(first + second));
                }
            }
        }
    }

    #[test]
    fn the_kept_side_is_a_choice() {
        let first: Vec<u32> = (0..10).collect();
        let single = Template { pieces: vec![TemplateSlot::First { type_id: 0 }] };
        let start = single.assemble(&first, &[], Some(Limit { max_tokens: 3, keep: KeepSide::Start })).unwrap();
        let end = single.assemble(&first, &[], Some(Limit { max_tokens: 3, keep: KeepSide::End })).unwrap();
        assert_eq!((start.input_ids, start.removed), (vec![0, 1, 2], 7));
        assert_eq!(end.input_ids, [7, 8, 9]);
    }

    #[test]
    fn a_limit_below_the_special_tokens_is_an_error() {
        let error = bert_pair().assemble(&[1], &[2], Some(Limit { max_tokens: 2, keep: KeepSide::Start })).unwrap_err();
        assert!(error.to_string().contains("3 special tokens"), "{error}");
    }
}
