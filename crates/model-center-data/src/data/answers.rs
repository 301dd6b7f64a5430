//! Verbalizers: where a model answers a prompt, the label token of each class, and the sequences that ask for it.
//!
//! Defines [`VerbalizerPosition`], which a model names, [`Verbalizer`], a dataset's label tokens, and the `AnswerForm`
//! by which [`super::read`] makes rows of prompts. Called by [`super::task::prompts`], [`super::task::template`] and
//! [`super::task::squad`].
//!
//! Source: the objective of Schick and Schütze (2021), as in ModelCenter's examples: the loss is a cross-entropy over
//! the label tokens alone, at one position of each sequence.

use super::read::{Builder, RowLimit};
use crate::{Error, Result};
use model_center_base::batch::{Verbalizer, VerbalizerPosition};
use model_center_formats::tokenizer::Tokenizer;

/// Text before a label word when its tokens are determined: a word in a text and one at its start differ.
const ANCHOR: &str = "?";

/// Sentinels of the vocabularies that have any: T5's, mT5's (pieces with a leading space), and CPM-2's.
const SENTINELS: [[&str; 2]; 3] =
    [["<extra_id_0>", "<extra_id_1>"], ["▁<extra_id_0>", "▁<extra_id_1>"], ["<s_0>", "<s_1>"]];

/// How rows of prompts are made for one model.
#[derive(Debug, Clone)]
pub(super) struct AnswerForm {
    place: VerbalizerPosition,
    /// The special tokens before and after a text.
    front: Vec<u32>,
    back: Vec<u32>,
    /// The common first tokens of all answers, before the tokens that differ.
    lead: Vec<u32>,
    /// The token in the answer's place; none where the prompt ends there.
    blank: Option<u32>,
    /// Tokens that the decoder reads, if there is one.
    decoder: usize,
}

/// A row with the place in it whose output is the answer. In a decoder's form the place is one of the decoder's.
pub(super) struct AnswerRow {
    pub(super) input_ids: Vec<u32>,
    pub(super) place: u32,
    pub(super) removed: usize,
}

impl AnswerForm {
    /// The form of sequences for a model that answers at `place` with one of `words`, in the order of the classes, and
    /// the dataset's labels. `asked` names the source of the words in errors.
    ///
    /// The first token in which the words differ is the label token; the common tokens before it are part of the
    /// prompt.
    ///
    /// Errors: words that the tokenizer maps to the same token or does not know, a model without a sentinel where one
    /// is needed.
    pub(super) fn new(
        tokenizer: &dyn Tokenizer,
        place: VerbalizerPosition,
        (names, words): (&[String], &[String]),
        asked: &str,
    ) -> Result<(AnswerForm, Verbalizer)> {
        let (front, back) = tokenizer.template(false).around_first();
        let (lead, words) = told_apart(tokenizer, place, words, asked)?;
        let special = tokenizer.special_ids();
        let (blank, decoder) = match place {
            VerbalizerPosition::Next => (None, Vec::new()),
            // The position of the answer has no context of its own; its token id is never attended to.
            VerbalizerPosition::Blank => (Some(special.pad.or(special.unk).unwrap_or(0)), Vec::new()),
            VerbalizerPosition::Sentinel { start } => {
                let [sentinel, _] = sentinels(tokenizer, asked)?;
                let start = start.filter(|start| *start != sentinel);
                (Some(sentinel), start.into_iter().chain([sentinel]).chain(lead.iter().copied()).collect())
            }
        };
        let front = match place {
            // CPM-1 was trained with a first token before every text.
            VerbalizerPosition::Blank if front.is_empty() => special.bos.into_iter().collect(),
            _ => front,
        };
        let form = AnswerForm { place, front, back, lead, blank, decoder: decoder.len() };
        Ok((form, Verbalizer { names: names.to_vec(), tokens: words, place, decoder }))
    }

    /// The sequence of a prompt with `before` preceding the answer and `after` following it. A long one is truncated at
    /// the start of `before`, since prompts end with the question; if `after` left it less than half of the room,
    /// `after` is truncated at its end. `None` if nothing precedes the answer.
    pub(super) fn row(
        &self,
        before: &[u32],
        after: &[u32],
        builder: &Builder<'_>,
        line: u64,
    ) -> Result<Option<AnswerRow>> {
        let (lead, after, back) = match self.place {
            VerbalizerPosition::Next => (&self.lead[..], &[][..], &[][..]),
            VerbalizerPosition::Blank => (&self.lead[..], after, &self.back[..]),
            VerbalizerPosition::Sentinel { .. } => (&[][..], after, &self.back[..]),
        };
        let fixed = self.front.len() + lead.len() + usize::from(self.blank.is_some()) + back.len();
        let room = builder.room(line, RowLimit::Input, fixed, before.len() + after.len())?;
        let kept_after = after.len().min(room - before.len().min(room / 2));
        let kept = before.len().min(room - kept_after);
        let mut input_ids = [&self.front, &before[before.len() - kept..], lead].concat();
        let place = match self.place {
            VerbalizerPosition::Next | VerbalizerPosition::Blank => input_ids.len().checked_sub(1),
            VerbalizerPosition::Sentinel { .. } => self.decoder.checked_sub(1),
        };
        input_ids.extend(self.blank);
        input_ids.extend_from_slice(&after[..kept_after]);
        input_ids.extend_from_slice(back);
        let removed = before.len() + after.len() - kept - kept_after;
        Ok(place.map(|place| AnswerRow { input_ids, place: place as u32, removed }))
    }
}

/// The first two sentinels of a vocabulary.
pub(super) fn sentinels(tokenizer: &dyn Tokenizer, asked: &str) -> Result<[u32; 2]> {
    let found = SENTINELS.iter().find_map(|[first, second]| Some([tokenizer.id(first)?, tokenizer.id(second)?]));
    found.ok_or_else(|| {
        let known: Vec<&str> = SENTINELS.iter().flatten().copied().collect();
        let reason = format!("the vocabulary has no sentinel for an answer: none of {}", known.join(", "));
        Error::model(asked, reason, "take a T5, mT5 or CPM-2")
    })
}

/// The common first tokens of all words, and the first token of each word after those.
fn told_apart(
    tokenizer: &dyn Tokenizer,
    place: VerbalizerPosition,
    words: &[String],
    asked: &str,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let tokens = match place {
        VerbalizerPosition::Next => after_text(tokenizer, words)?,
        // No text precedes them, so a leading space would be a token of its own.
        VerbalizerPosition::Blank | VerbalizerPosition::Sentinel { .. } => {
            tokenizer.tokenize(&words.iter().map(|word| word.trim_start()).collect::<Vec<_>>())?
        }
    };
    let shortest = tokens.iter().map(Vec::len).min().unwrap_or(0);
    let is_shared = |at: &usize| tokens.iter().all(|word| word.get(*at) == tokens[0].get(*at));
    let shared = (0..shortest.saturating_sub(1)).take_while(is_shared).count();
    let mut ids: Vec<u32> = Vec::with_capacity(words.len());
    for (word, tokens) in words.iter().zip(&tokens) {
        let refuse = |reason: String| {
            let fix = "choose label words whose tokens differ in this model's vocabulary (data.template, data.words)";
            Err(Error::data(asked, reason, fix))
        };
        let Some(id) = tokens.get(shared).filter(|id| Some(**id) != tokenizer.special_ids().unk) else {
            return refuse(format!("{word:?} is not in the vocabulary"));
        };
        if let Some(twin) = ids.iter().position(|other| other == id) {
            return refuse(format!("{:?} and {word:?} are the same token for this tokenizer", words[twin]));
        }
        ids.push(*id);
    }
    Ok((tokens.first().map_or_else(Vec::new, |word| word[..shared].to_vec()), ids))
}

/// The tokens of words that continue a text: a leading space is part of the first token or a token of its own,
/// depending on the tokenizer.
fn after_text(tokenizer: &dyn Tokenizer, words: &[String]) -> Result<Vec<Vec<u32>>> {
    let texts: Vec<String> = words.iter().map(|word| format!("{ANCHOR}{word}")).collect();
    let anchor = tokenizer.tokenize(&[ANCHOR])?.concat();
    let alone = tokenizer.tokenize(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
    let joined = tokenizer.tokenize(&texts.iter().map(String::as_str).collect::<Vec<_>>())?;
    let behind = |(joined, alone): (Vec<u32>, Vec<u32>)| match joined.strip_prefix(&anchor[..]) {
        Some(behind) => behind.to_vec(),
        // The two have grown together.
        None => alone,
    };
    Ok(joined.into_iter().zip(alone).map(behind).collect())
}
