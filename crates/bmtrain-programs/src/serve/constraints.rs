//! The constraints of requests: the texts of the vocabulary, made once, and recent constraints with their masks.

use crate::Result;
use model_center_formats::tokenizer::Tokenizer;
use model_center_models::generate::{Constraint, Grammar, TokenTexts};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Constraints that are kept for further requests of the same form.
const MAX_RECENT: usize = 8;

/// Whether special tokens are kept, and the form, as a text that has the order of properties.
type Key = (bool, String);

/// Constraints that requests with a form share.
#[derive(Debug, Default)]
pub(super) struct Constraints {
    /// The texts of tokens without special tokens, and with the ones of tool calls.
    texts: Mutex<[Option<Arc<TokenTexts>>; 2]>,
    /// The latest first.
    recent: Mutex<VecDeque<(Key, Arc<Constraint>)>>,
}

impl Constraints {
    /// The constraint of a form; with special tokens that are `kept` in texts.
    ///
    /// # Errors
    /// As [`TokenTexts::new`] and [`Constraint::new`].
    pub(super) fn get(
        &self,
        grammar: Grammar,
        (tokenizer, kept): (&dyn Tokenizer, &[(u32, String)]),
    ) -> Result<Arc<Constraint>> {
        let key: Key = (!kept.is_empty(), format!("{grammar:?}"));
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = recent.iter().position(|(own, _)| *own == key);
        if let Some(known) = known.and_then(|at| recent.remove(at)) {
            let constraint = Arc::clone(&known.1);
            recent.push_front(known);
            return Ok(constraint);
        }
        // Others need not wait for it.
        drop(recent);
        let constraint = Arc::new(Constraint::new(grammar, self.texts((tokenizer, kept))?)?);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_front((key, Arc::clone(&constraint)));
        recent.truncate(MAX_RECENT);
        Ok(constraint)
    }

    fn texts(&self, (tokenizer, kept): (&dyn Tokenizer, &[(u32, String)])) -> Result<Arc<TokenTexts>> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let [plain, with_kept] = &mut *texts;
        let place = if kept.is_empty() { plain } else { with_kept };
        match place {
            Some(texts) => Ok(Arc::clone(texts)),
            None => Ok(Arc::clone(place.insert(Arc::new(TokenTexts::new(tokenizer, kept)?)))),
        }
    }
}
