//! How texts become the rows of a model: special tokens around them, limits, and which tokens are cut.

use super::{Builder, ReadOptions, RowForm, TooLong};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::tokenizer::{Encoding, Limit, Tokenizer};

/// Which limit a row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::data) enum RowLimit {
    /// The input's.
    Input,
    /// The target's.
    Target,
}

/// A row with its label and, of a prompt, the place of its answer.
pub(super) struct Row {
    pub(super) encoding: Encoding,
    pub(super) label: Label,
    pub(super) place: Option<u32>,
}

impl Row {
    pub(super) fn new(encoding: Encoding, label: Label) -> Self {
        Row { encoding, label, place: None }
    }

    /// Without segments.
    fn of(input_ids: Vec<u32>, removed: usize, label: Label) -> Self {
        Row::new(Encoding { token_type_ids: vec![0; input_ids.len()], input_ids, removed }, label)
    }
}

impl Builder<'_> {
    /// The row of an example, of whose sample it `is_first`; `None` if there is nothing in it to be learnt.
    pub(super) fn row(
        &self,
        line: u64,
        (first, second): (&[u32], Option<&[u32]>),
        (is_first, label): (bool, Label),
    ) -> Result<Option<Row>> {
        match (&self.form, &self.dataset.labels) {
            (RowForm::Answer(form), _) => {
                let row = form.row(first, second.unwrap_or_default(), self, line)?;
                Ok(row.map(|row| Row { place: Some(row.place), ..Row::of(row.input_ids, row.removed, label) }))
            }
            (RowForm::Squad(form), _) => {
                let (input_ids, removed) = form.row(first, second, self, line)?;
                Ok(Some(Row::of(input_ids, removed, label)))
            }
            (RowForm::Plain, LabelSpace::NextTokens) => self.words(line, first, second),
            (RowForm::Plain, LabelSpace::Target) => self.side(line, first, is_first),
            (RowForm::Plain | RowForm::Question, _) => {
                let row = self.inputs(line, first, second)?;
                Ok((!row.input_ids.is_empty()).then(|| Row::new(row, label)))
            }
        }
    }

    /// Tokens of texts that have room in a row besides `fixed` further ones.
    ///
    /// Errors: not even those have; `texts` tokens are too many where that is an error.
    pub(in crate::data) fn room(&self, line: u64, limit: RowLimit, fixed: usize, texts: usize) -> Result<usize> {
        let (key, limit) = match limit {
            RowLimit::Input => ("max_length", self.options.max_length),
            RowLimit::Target => ("target_length", self.options.target_length),
        };
        self.check_length(line, fixed + texts, (key, limit))?;
        limit.checked_sub(fixed + 1).map(|room| room + 1).ok_or_else(|| {
            let reason = format!("{limit} tokens leave no room beside the {fixed} that every row has");
            Error::argument(format!("data.{key}"), reason, format!("set data.{key} to more than {fixed}"))
        })
    }

    fn inputs(&self, line: u64, first: &[u32], second: Option<&[u32]>) -> Result<Encoding> {
        let ReadOptions { tokenizer, max_length, keep, .. } = *self.options;
        let template = tokenizer.template(second.is_some());
        let second = second.unwrap_or_default();
        self.check_length(line, first.len() + second.len() + template.special_tokens(), ("max_length", max_length))?;
        template.assemble(first, second, Some(Limit { max_tokens: max_length, keep }))
    }

    /// A language-modelling sequence: the tokenizer's leading special tokens, a prompt, if `second` is the text, and
    /// the text; `None` if there is nothing to predict. A truncated text has no end token to predict; a prompt keeps
    /// its end.
    fn words(&self, line: u64, first: &[u32], second: Option<&[u32]>) -> Result<Option<Row>> {
        let max_length = self.options.max_length;
        let (prompt, text) = second.map_or((&[][..], first), |text| (first, text));
        let (before, after) = around_text(self.options, if prompt.is_empty() { text } else { prompt }, text);
        let length = before.len() + prompt.len() + text.len() + after.len();
        self.check_length(line, length, ("max_length", max_length))?;
        let room = max_length.saturating_sub(before.len());
        let is_whole = text.len() + after.len() <= room;
        let end = if is_whole { &after[..] } else { &[] };
        let kept = text.len().min(room);
        let room = room - kept - end.len();
        let prompt = &prompt[prompt.len() - prompt.len().min(room)..];
        let from = if second.is_some() { before.len() + prompt.len() } else { 0 };
        let input_ids = [&before[..], prompt, &text[..kept], end].concat();
        let removed = length - input_ids.len();
        let is_learnt = kept > 0 && input_ids.len() > from.max(1);
        Ok(is_learnt.then(|| Row::of(input_ids, removed, Label::TokensFrom(from))))
    }

    /// An encoder's input or a decoder's target: a text with the tokenizer's special tokens, with EOS if it has one.
    /// `None` if no token of the text is left.
    fn side(&self, line: u64, text: &[u32], is_read: bool) -> Result<Option<Row>> {
        let ReadOptions { tokenizer, max_length, target_length, .. } = *self.options;
        let limit = if is_read { ("max_length", max_length) } else { ("target_length", target_length) };
        let (before, after) = around(tokenizer);
        self.check_length(line, before.len() + text.len() + after.len(), limit)?;
        let kept = text.len().min(limit.1.saturating_sub(before.len() + after.len()));
        let input_ids = [&before[..], &text[..kept], &after].concat();
        Ok((kept > 0).then(|| Row::of(input_ids, text.len() - kept, Label::TokensFrom(0))))
    }

    pub(super) fn check_length(&self, line: u64, length: usize, (key, limit): (&str, usize)) -> Result<()> {
        if length <= limit || self.options.too_long == TooLong::Truncate {
            return Ok(());
        }
        Err(Error::data(
            self.place(line),
            format!("the input has {length} tokens, more than data.{key} = {limit}"),
            format!("shorten it, raise data.{key}, or set data.too_long = \"truncate\""),
        ))
    }
}

/// The special tokens before and after a text: EOS at the end, if the tokenizer has one.
pub(in crate::data) fn around(tokenizer: &dyn Tokenizer) -> (Vec<u32>, Vec<u32>) {
    let (before, mut after) = tokenizer.template(false).around_first();
    after.extend(tokenizer.special_ids().eos.filter(|eos| after.last() != Some(eos)));
    (before, after)
}

/// The same of a text whose first and last tokens these are: what it has of them where control tokens are parsed is not
/// added again.
pub(in crate::data) fn around_text(options: &ReadOptions<'_>, first: &[u32], last: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let (mut before, mut after) = around(options.tokenizer);
    if options.parse_special {
        if first.starts_with(&before) {
            before.clear();
        }
        if last.ends_with(&after) {
            after.clear();
        }
    }
    (before, after)
}
