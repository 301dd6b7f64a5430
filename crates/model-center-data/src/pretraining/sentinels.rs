//! Sentinels: the tokens that stand for hidden spans.
//!
//! Defines [`Sentinels`]. Called by [`super::t5`].

use crate::{Error, Result};
use model_center_formats::tokenizer::Tokenizer;

/// How vocabularies spell sentinel n: T5's and CPM-2's.
const SPELLINGS: [fn(u32) -> String; 2] = [|n| format!("<extra_id_{n}>"), |n| format!("<s_{n}>")];

/// Consecutive tokens of a vocabulary, numbered from its end or its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentinels {
    /// Sentinel 0.
    pub first: u32,
    /// Their number.
    pub count: u32,
    /// Whether sentinel n is `first - n`, as in T5; else it is `first + n`.
    pub descending: bool,
}

impl Sentinels {
    /// The last tokens of a vocabulary, sentinel 0 the very last, as in T5.
    pub fn at_end(vocabulary: u32, count: u32) -> Sentinels {
        Sentinels { first: vocabulary.saturating_sub(1), count, descending: true }
    }

    /// The sentinels of a tokenizer: `<extra_id_0>` and so on, or `<s_0>` and so on.
    ///
    /// # Errors
    /// [`Error::Model`] for a vocabulary without sentinels.
    pub fn of(tokenizer: &dyn Tokenizer) -> Result<Sentinels> {
        let found = SPELLINGS.iter().find_map(|spelling| {
            let first = tokenizer.id(&spelling(0))?;
            let descending = tokenizer.id(&spelling(1)).is_some_and(|second| second < first);
            let sentinels = Sentinels { first, count: u32::MAX, descending };
            let is_own = |n: &u32| sentinels.id(*n).is_some_and(|id| tokenizer.id(&spelling(*n)) == Some(id));
            let count = (0..u32::MAX).take_while(is_own).count() as u32;
            Some(Sentinels { count, ..sentinels })
        });
        found.ok_or_else(|| {
            let reason = "the vocabulary has no sentinels such as <extra_id_0> or <s_0>";
            Error::model(tokenizer.place(), reason, "use a tokenizer such as T5's, or another objective")
        })
    }

    /// Sentinel `number`; `None` if there are not as many.
    pub fn id(&self, number: u32) -> Option<u32> {
        let Sentinels { first, count, descending } = *self;
        if number >= count {
            return None;
        }
        if descending { first.checked_sub(number) } else { first.checked_add(number) }
    }

    /// Whether all of them are below the vocabulary's size.
    pub(super) fn check(&self, vocabulary: u32) -> Result<()> {
        let last = self.count.checked_sub(1).and_then(|last| self.id(last));
        if last.is_none_or(|last| last.max(self.first) >= vocabulary) {
            let reason = format!("{} sentinels from token {} on, of {vocabulary} tokens", self.count, self.first);
            return Err(Error::argument("sentinels", reason, "use the sentinels of the tokenizer"));
        }
        Ok(())
    }
}
