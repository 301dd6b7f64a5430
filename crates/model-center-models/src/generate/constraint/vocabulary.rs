//! The tokens of a vocabulary by their bytes, as a tree in which those with the same first bytes share nodes.

use crate::{Error, Result};
use model_center_formats::tokenizer::Tokenizer;

/// A node of the tree; the nodes below it follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenNode {
    pub(super) byte: u8,
    /// 1 for a first byte.
    pub(super) depth: u32,
    /// The number of nodes from this one to the next that is not below it.
    pub(super) size: u32,
    /// Its tokens: those from `first` to `end` of the list.
    first: u32,
    end: u32,
}

/// The tokens of a vocabulary that are text, by their bytes. It is made once for a tokenizer, and shared.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenTexts {
    /// By token; empty for those without text.
    bytes: Vec<Box<[u8]>>,
    nodes: Vec<TokenNode>,
    /// The tokens of the nodes.
    tokens: Vec<u32>,
    /// Whether a text loses the space of its first token.
    loses_space: bool,
}

impl TokenTexts {
    /// The texts of a tokenizer's tokens, and of special tokens that are `kept` in texts.
    ///
    /// # Errors
    /// [`Error::Model`] for a tokenizer whose decoder does more than join the tokens' bytes.
    pub fn new(tokenizer: &dyn Tokenizer, kept: &[(u32, String)]) -> Result<Self> {
        let Some(spelling) = tokenizer.token_bytes() else {
            let reason = "the text of its tokens together is not their texts joined, so that it cannot be constrained";
            let fix = "use a model with a byte-level BPE or a SentencePiece vocabulary";
            return Err(Error::model(tokenizer.place(), reason, fix));
        };
        let mut bytes = spelling.bytes;
        for (token, text) in kept {
            bytes.get_mut(*token as usize).into_iter().for_each(|own| *own = text.as_bytes().into());
        }
        Ok(TokenTexts::of(bytes, spelling.loses_space))
    }

    fn of(bytes: Vec<Box<[u8]>>, loses_space: bool) -> Self {
        let mut sorted: Vec<u32> = (0..bytes.len() as u32).collect();
        let of = |token: u32| bytes.get(token as usize).map_or(&[][..], |bytes| bytes);
        sorted.retain(|token| !of(*token).is_empty());
        sorted.sort_by(|one, other| of(*one).cmp(of(*other)));
        let mut nodes: Vec<TokenNode> = Vec::new();
        // The nodes of the last token, from its first byte on.
        let mut path: Vec<usize> = Vec::new();
        let close = |nodes: &mut Vec<TokenNode>, path: &mut Vec<usize>, depth: usize| {
            let len = nodes.len();
            for at in path.drain(depth.min(path.len())..) {
                if let Some(node) = nodes.get_mut(at) {
                    node.size = (len - at) as u32;
                }
            }
        };
        let mut last: &[u8] = &[];
        for (place, token) in (0..).zip(&sorted) {
            let own = of(*token);
            let shared = own.iter().zip(last).take_while(|(one, other)| one == other).count();
            close(&mut nodes, &mut path, shared);
            for (depth, byte) in own.iter().enumerate().skip(shared) {
                path.push(nodes.len());
                nodes.push(TokenNode { byte: *byte, depth: depth as u32 + 1, size: 0, first: place, end: place });
            }
            if let Some(node) = path.last().and_then(|at| nodes.get_mut(*at)) {
                node.end = place + 1;
            }
            last = own;
        }
        close(&mut nodes, &mut path, 0);
        TokenTexts { nodes, tokens: sorted, loses_space, bytes }
    }

    pub(super) fn nodes(&self) -> &[TokenNode] {
        &self.nodes
    }

    /// The tokens whose bytes end at a node.
    pub(super) fn tokens(&self, node: &TokenNode) -> &[u32] {
        self.tokens.get(node.first as usize..node.end as usize).unwrap_or_default()
    }

    /// One more than the largest token.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that a token adds to a text; `is_first` if the text is empty.
    pub(super) fn bytes(&self, token: u32, is_first: bool) -> &[u8] {
        let bytes = self.bytes.get(token as usize).map_or(&[][..], |bytes| bytes);
        match bytes {
            [b' ', rest @ ..] if is_first && self.loses_space => rest,
            bytes => bytes,
        }
    }

    pub(super) fn loses_space(&self) -> bool {
        self.loses_space
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TokenTexts {
        pub(in super::super) fn of_texts(texts: &[&str], loses_space: bool) -> Self {
            TokenTexts::of(texts.iter().map(|text| text.as_bytes().into()).collect(), loses_space)
        }
    }

    #[test]
    fn tokens_share_nodes() {
        let texts = TokenTexts::of_texts(&["ab", "", "a", "abc", "b", "ab", "ad"], false);
        let shown: Vec<(char, u32, u32, &[u32])> = texts
            .nodes()
            .iter()
            .map(|node| (char::from(node.byte), node.depth, node.size, texts.tokens(node)))
            .collect();
        let expected: [(char, u32, u32, &[u32]); 5] =
            [('a', 1, 4, &[2]), ('b', 2, 2, &[0, 5]), ('c', 3, 1, &[3]), ('d', 2, 1, &[6]), ('b', 1, 1, &[4])];
        assert_eq!(shown, expected);
        let texts = TokenTexts::of_texts(&[" a", "a"], true);
        assert_eq!(
            (texts.bytes(0, true), texts.bytes(0, false), texts.bytes(9, true)),
            (&b"a"[..], &b" a"[..], &b""[..])
        );
    }
}
