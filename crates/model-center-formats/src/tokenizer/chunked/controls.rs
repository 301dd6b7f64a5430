//! Control tokens that a text spells, which it must not become.
//!
//! Defines [`Engine::tokenize_piece`], called by [`super`] and [`super::boundaries`] for every pre-token. Vocabularies
//! find control tokens like any other piece, and know nothing of pieces that are not in use.

use tokenizers::models::ModelWrapper;
use tokenizers::{Model, Token};

use super::Engine;

impl Engine {
    /// Tokens of a pre-token. Vocabularies find control tokens like any other piece, so where one is spelled, the text
    /// is cut after the token's first character and the parts are tokenized again. Every part is shorter than what it
    /// is a part of, so that this ends.
    pub(super) fn tokenize_piece(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        let mut out: Vec<Token> = Vec::new();
        let mut parts = vec![piece];
        while let Some(part) = parts.pop() {
            // Places of tokens are those in the whole pre-token.
            let begins = part.as_ptr() as usize - piece.as_ptr() as usize;
            let placed = |mut token: Token| {
                token.offsets = (token.offsets.0 + begins, token.offsets.1 + begins);
                token
            };
            let tokens = self.inner.get_model().tokenize(part)?;
            let spelled = self.spelled_controls(part, &tokens);
            if spelled.is_empty() {
                self.extend_tokens(&mut out, tokens.into_iter().map(placed).collect());
                continue;
            }
            drop(tokens);
            let from = parts.len();
            let mut begin = 0;
            for (at, end) in spelled {
                let behind_first = at + part[at..].chars().next().map_or(0, char::len_utf8);
                // A token of one character is a part of its own, which nothing shorter is left of.
                let cuts = if behind_first < end { [behind_first; 2] } else { [at, end] };
                for cut in cuts {
                    if begin < cut && cut < part.len() {
                        parts.push(&part[begin..cut]);
                        begin = cut;
                    }
                }
            }
            if begin == 0 {
                let tokens = self.spell_otherwise(part)?.into_iter().map(placed).collect();
                self.extend_tokens(&mut out, tokens);
                continue;
            }
            parts.push(&part[begin..]);
            // The first part is the next one.
            parts[from..].reverse();
        }
        Ok(out)
    }

    /// Ranges of bytes with control tokens that the text spells. Bytes of what no piece spells and the token for what
    /// is unknown are none, unless the text is their names.
    fn spelled_controls(&self, piece: &str, tokens: &[Token]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for token in tokens {
            let (from, to) = token.offsets;
            let (Some(control), Some(text)) = (self.control(token.id), piece.get(from..to)) else { continue };
            if control.is_empty() {
                continue;
            }
            if text == control {
                found.push((from, to));
            } else if Some(token.id) == self.unknown {
                // One token may stand for several things that are unknown, its own name among them.
                found.extend(text.match_indices(control).map(|(at, _)| (from + at, from + at + control.len())));
            }
        }
        found
    }

    /// Tokens of a character that is itself a control token: its bytes, or the unknown token.
    fn spell_otherwise(&self, character: &str) -> tokenizers::Result<Vec<Token>> {
        let token = |id: u32| Token::new(id, character.to_owned(), (0, character.len()));
        let bytes = character.bytes().map(|byte| {
            let name = format!("<0x{byte:02X}>");
            self.inner.token_to_id(&name).filter(|_| self.falls_back()).map(token)
        });
        if let Some(bytes) = bytes.collect::<Option<Vec<Token>>>() {
            return Ok(bytes);
        }
        let unknown = self.unknown.ok_or_else(|| {
            format!(
                "{character:?} is a special token, and the vocabulary has nothing else to spell that character with"
            )
        })?;
        Ok(vec![token(unknown)])
    }

    /// Appends tokens; what is unknown on both sides of the seam may be one token.
    fn extend_tokens(&self, out: &mut Vec<Token>, tokens: Vec<Token>) {
        let unknown = |token: Option<&Token>| token.is_some_and(|token| Some(token.id) == self.unknown);
        let fused = self.is_fused() && unknown(out.last()) && unknown(tokens.first());
        out.extend(tokens.into_iter().skip(usize::from(fused)));
    }

    /// Whether what no piece spells becomes bytes.
    pub(super) fn falls_back(&self) -> bool {
        match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.byte_fallback,
            ModelWrapper::Unigram(model) => model.byte_fallback(),
            ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
        }
    }

    /// The spelling of a token that no text may become.
    pub(super) fn control(&self, id: u32) -> Option<&str> {
        self.controls.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| &*self.controls[at].1)
    }

    /// Whether neighbours that cannot be spelled are one token.
    pub(super) fn is_fused(&self) -> bool {
        match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.fuse_unk,
            ModelWrapper::Unigram(_) | ModelWrapper::WordPiece(_) => true,
            ModelWrapper::WordLevel(_) => false,
        }
    }
}
