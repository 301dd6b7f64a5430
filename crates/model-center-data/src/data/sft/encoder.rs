//! Samples as token ids with a loss mask.
//!
//! Defines [`SampleEncoder`]. A conversation goes through the chat template, which writes all special tokens; a text or
//! a pair has the tokenizer's special tokens at its beginning, and EOS at its end. An input and its output are
//! tokenized separately, as they are when an output is generated.

use super::{DataSet, LossOn, PairLabels, SftTask, TaskModel};
use crate::data::{
    read::{ReadOptions, TooLong, around, around_text},
    sft::{Sample, messages::ASSISTANT},
};
use crate::{Error, Result};
use model_center_base::batch::Label;
use model_center_formats::io::record::SKIPPABLE;
use model_center_formats::tokenizer::{AssistantTurns, ChatMessage, ChatRequest, ChatTokens, Encoding, KeepSide};
use serde_json::{Map, Value};
use std::time::SystemTime;

/// Turns samples of a data set into rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleEncoder<'a> {
    pub(super) task: &'a SftTask,
    pub(super) set: &'a DataSet,
    pub(super) options: &'a ReadOptions<'a>,
    pub(super) model: TaskModel<'a>,
}

/// A sample as rows: one, what is read and what is written, or the two of a pair.
#[derive(Debug, Clone)]
pub(super) struct EncodedSample {
    pub(super) rows: Vec<Encoding>,
    pub(super) label: Label,
    /// Whether each token is learned, 1 or 0; empty where a decoder writes the second row, and where none is predicted.
    pub(super) learned: Vec<u8>,
}

/// A conversation.
#[derive(Debug, Clone, Copy)]
struct Chat<'a> {
    messages: &'a [ChatMessage],
    tools: Option<&'a Value>,
    /// Further variables of the template.
    more: &'a Map<String, Value>,
    /// The number of the first message that is learned where its role is.
    from: usize,
    /// Messages of the assistant that are not learned.
    excluded: &'a [usize],
}

impl<'a> Chat<'a> {
    fn request(&self) -> ChatRequest<'a> {
        // Several renderings state one time.
        let now = Some(SystemTime::now());
        ChatRequest { tools: self.tools, more: self.more.clone(), now, ..ChatRequest::new(self.messages) }
    }
}

/// Tokens of one row before it is shortened.
#[derive(Debug, Default)]
struct Tokens {
    ids: Vec<u32>,
    learned: Vec<u8>,
    /// Tokens that a limit of the data set has cut.
    removed: usize,
}

impl Tokens {
    fn extend(&mut self, ids: &[u32], is_learned: bool) {
        self.ids.extend_from_slice(ids);
        self.learned.resize(self.ids.len(), u8::from(is_learned));
    }
}

impl SampleEncoder<'_> {
    /// The rows of a sample; `place` is where it is from.
    ///
    /// # Errors
    /// [`Error::Data`] with the place for a sample that cannot be used.
    pub(super) fn encode(&self, place: &str, sample: &Sample) -> Result<EncodedSample> {
        let encoded = match (sample, self.task.pairs) {
            (Sample::Preference { chosen, rejected }, Some(labels)) => self.preference(chosen, rejected, labels),
            (Sample::Unpaired { own, mismatch, is_good }, Some(PairLabels::Unpaired)) => {
                self.unpaired(own, mismatch.as_deref(), *is_good)
            }
            (_, Some(PairLabels::Unpaired)) => {
                Err(Error::data("", "the record has no judgement of a completion", "give prompt, completion and label"))
            }
            (Sample::Preference { .. } | Sample::Unpaired { .. }, None) => Err(Error::data(
                "",
                "the record compares or judges completions, and this task learns one",
                "set data.task = \"preference\", or leave the record out",
            )),
            (_, Some(_)) => Err(Error::data("", "the record is not a pair of completions", "give two completions")),
            (sample, None) => self.single(sample),
        };
        encoded.map_err(|error| match error {
            // Of this record: others may be usable.
            Error::Data { reason, fix, .. } => Error::Data { place: place.to_owned(), reason, fix },
            Error::Model { place: model, reason, fix } => {
                Error::Data { place: place.to_owned(), reason: format!("{reason} ({model})"), fix }
            }
            other => other,
        })
    }

    /// The rows of a prompt with its better completion and with its worse one.
    fn preference(&self, chosen: &Sample, rejected: &Sample, labels: PairLabels) -> Result<EncodedSample> {
        let (mut both, worse) = (self.single(chosen)?, self.single(rejected)?);
        both.rows.extend(worse.rows);
        match labels {
            PairLabels::LogProbs | PairLabels::Unpaired => both.learned.extend(worse.learned),
            // The first of the two is right.
            PairLabels::Rewards => (both.label, both.learned) = (Label::Class(0), Vec::new()),
        }
        Ok(both)
    }

    /// The rows of an unpaired completion: its own, and its prompt's with another completion.
    fn unpaired(&self, own: &Sample, mismatch: Option<&Sample>, is_good: bool) -> Result<EncodedSample> {
        let Some(mismatch) = mismatch else {
            let reason = "the next record is of another form: one has texts, the other one messages";
            return Err(Error::data("", reason, "give all records of a file the same form"));
        };
        let (mut both, other) = (self.single(own)?, self.single(mismatch)?);
        both.rows.extend(other.rows);
        both.learned.extend(other.learned);
        Ok(EncodedSample { label: Label::Class(usize::from(is_good)), ..both })
    }

    /// The rows of a sample that is not a pair.
    fn single(&self, sample: &Sample) -> Result<EncodedSample> {
        match (sample, self.model.generates_targets) {
            (Sample::Chat { messages, tools, more, learned_from, excluded }, generates_targets) => {
                let tools = tools.as_ref();
                let chat = Chat { messages, tools, more, from: *learned_from, excluded };
                self.turns(&chat, generates_targets)
            }
            (Sample::Pair { input, output, before, tools }, generates_targets) if self.task.as_chat => {
                let (input, output) = (self.set.formats.input(input), self.set.formats.output(output));
                let turns = [ChatMessage::new("user", input), ChatMessage::new("assistant", output)];
                let messages = [before.as_slice(), &turns].concat();
                // Of completions that are compared, earlier turns are a prompt.
                let from = if self.task.pairs.is_some() { messages.len() - 1 } else { 0 };
                let more = &Map::new();
                let chat = Chat { messages: &messages, tools: tools.as_ref(), more, from, excluded: &[] };
                self.turns(&chat, generates_targets)
            }
            (Sample::Pair { before, tools, .. }, _) if !before.is_empty() || tools.is_some() => Err(Error::data(
                "",
                "the record has messages before its prompt, or tools, which are for turns of a chat",
                "set data.as_chat = true",
            )),
            (Sample::Pair { input, output, .. }, _) => self.pair(input, output),
            (Sample::Text(text), false) => self.text(text).and_then(|tokens| self.row(tokens)),
            (Sample::Text(_), true) => Err(Error::data(
                "",
                "the record is one text, and an encoder-decoder reads one and writes another",
                "give an input and an output, or take a model with one stack",
            )),
            (Sample::Preference { .. } | Sample::Unpaired { .. }, _) => {
                Err(Error::data("", "a completion of the pair is a pair itself", "give two completions"))
            }
        }
    }

    fn template(&self) -> Result<&model_center_formats::tokenizer::ChatTemplate> {
        self.model.chat.ok_or_else(|| {
            let fix = "add chat_template.jinja to the model's directory, or give prompts with completions";
            Error::argument("data.task", "the records are conversations, and the model has no chat template", fix)
        })
    }

    /// The rows of turns.
    fn turns(&self, chat: &Chat<'_>, generates_targets: bool) -> Result<EncodedSample> {
        if self.options.parse_special {
            let reason = "the record is a conversation, and data.parse_special is for texts that are rendered already";
            return Err(Error::data("", reason, "remove data.parse_special, or give the rendered texts"));
        }
        match generates_targets {
            true => self.chat_targets(chat),
            false => self.chat(chat).and_then(|tokens| self.row(tokens)),
        }
    }

    fn chat(&self, chat: &Chat<'_>) -> Result<Tokens> {
        let (template, tokenizer, request) = (self.template()?, self.options.tokenizer, chat.request());
        let is_all = self.task.loss_on == LossOn::All;
        let numbered = chat.messages.iter().enumerate().filter(|(_, message)| message.role == ASSISTANT);
        let turns: Vec<usize> = numbered.map(|(number, _)| number).collect();
        let excluded = |number: usize| chat.excluded.contains(&number);
        let of_task = |number: usize| match self.task.loss_on {
            LossOn::All => true,
            LossOn::Assistant => number >= chat.from,
            LossOn::Last => Some(&number) == turns.last(),
        };
        if !chat.excluded.iter().any(|number| of_task(*number)) {
            let turns = match self.task.loss_on {
                LossOn::All => {
                    let ids = template.encode(tokenizer, &request)?;
                    return Ok(Tokens { learned: vec![1; ids.len()], ids, removed: 0 });
                }
                LossOn::Last => AssistantTurns::Last,
                LossOn::Assistant if chat.from == 0 => AssistantTurns::All,
                LossOn::Assistant => AssistantTurns::From(chat.from),
            };
            let ChatTokens { ids, in_turns } = template.encode_turns(tokenizer, &request, turns)?;
            return Ok(Tokens { ids, learned: in_turns.into_iter().map(u8::from).collect(), removed: 0 });
        }
        // All tokens are learned but the excluded turns'.
        let chosen = |number: usize| if is_all { excluded(number) } else { of_task(number) && !excluded(number) };
        let Some(ChatTokens { ids, in_turns }) = self.chosen_turns(&request, &turns, &chosen)? else {
            let reason = "every turn that data.loss_on selects is excluded by the record: weight, train";
            return Err(Error::data("", reason, SKIPPABLE));
        };
        let learned = in_turns.into_iter().map(|is_in| u8::from(is_in != is_all)).collect();
        Ok(Tokens { ids, learned, removed: 0 })
    }

    /// The ids of a conversation, and which of them are in the chosen turns of the assistant; `None` where none is
    /// chosen.
    ///
    /// The turns from one on include those from a later one on, so that any choice is a difference of such.
    fn chosen_turns(
        &self,
        request: &ChatRequest<'_>,
        turns: &[usize],
        is_chosen: &dyn Fn(usize) -> bool,
    ) -> Result<Option<ChatTokens>> {
        let (mut all, mut is_before): (Option<ChatTokens>, bool) = (None, false);
        for number in turns {
            let is_now = is_chosen(*number);
            if is_now != is_before {
                let turns = AssistantTurns::From(*number);
                let further = self.template()?.encode_turns(self.options.tokenizer, request, turns)?;
                match &mut all {
                    None => all = Some(further),
                    Some(all) => {
                        all.in_turns.iter_mut().zip(further.in_turns).for_each(|(is_in, other)| *is_in ^= other)
                    }
                }
            }
            is_before = is_now;
        }
        Ok(all)
    }

    /// A conversation for an encoder and a decoder: up to the last answer, and that answer.
    fn chat_targets(&self, chat: &Chat<'_>) -> Result<EncodedSample> {
        let last = chat.messages.iter().rposition(|message| message.role == ASSISTANT).unwrap_or(0);
        if chat.excluded.contains(&last) {
            let reason = "a decoder learns the last answer, which the record excludes: weight, train";
            return Err(Error::data("", reason, SKIPPABLE));
        }
        let (before, answer) = chat.messages.split_at(last);
        let Some(Value::String(output)) = answer.first().map(|message| &message.content) else {
            let fix = "give the assistant's answer as a text";
            return Err(Error::data("", "the last answer of the assistant is not a text", fix));
        };
        if before.is_empty() {
            return Err(Error::data("", "nothing precedes the answer", "begin with a message of the user"));
        }
        if let Some(name) = answer.iter().flat_map(|message| message.more.keys()).find(|name| *name != "name") {
            let reason = format!("the last answer has {name:?}, which the text of a decoder has no place for");
            return Err(Error::data("", reason, "remove the field, or write it into the content"));
        }
        let request = ChatRequest { messages: before, add_generation_prompt: true, ..chat.request() };
        let input = self.template()?.encode(self.options.tokenizer, &request)?;
        let output = self.options.tokenizer.tokenize(&[output])?.concat();
        self.two_rows(&input, false, &output)
    }

    fn text(&self, text: &str) -> Result<Tokens> {
        let ids = self.options.tokenizer.tokenize(&[text])?.concat();
        let (before, after) = around_text(self.options, &ids, &ids);
        let mut tokens = Tokens::default();
        [&before, &ids, &after].into_iter().for_each(|part| tokens.extend(part, true));
        Ok(tokens)
    }

    fn pair(&self, input: &str, output: &str) -> Result<EncodedSample> {
        let (input, output) = (self.set.formats.input(input), self.set.formats.output(output));
        let mut ids = self.options.tokenizer.tokenize(&[&input, &output])?.into_iter();
        let (mut input, mut output) = (ids.next().unwrap_or_default(), ids.next().unwrap_or_default());
        if self.model.generates_targets {
            return self.two_rows(&input, true, &output);
        }
        let (before, after) = around_text(self.options, if input.is_empty() { &output } else { &input }, &output);
        let mut removed = 0;
        let mut cut = |ids: &mut Vec<u32>, limit: Option<usize>| {
            let kept = limit.map_or(ids.len(), |limit| limit.min(ids.len()));
            removed += ids.len() - kept;
            ids.truncate(kept);
        };
        let whole = output.len();
        cut(&mut input, self.set.max_input_tokens);
        // EOS counts; as of the predecessor's classes, a shortened output has it too.
        cut(&mut output, self.set.max_output_tokens.map(|limit| limit.saturating_sub(after.len())));
        if whole > 0 && output.is_empty() {
            return Err(self.too_short());
        }
        let mut tokens = Tokens { removed, ..Tokens::default() };
        let is_all = self.task.loss_on == LossOn::All;
        tokens.extend(&before, is_all);
        tokens.extend(&input, is_all);
        tokens.extend(&output, true);
        tokens.extend(&after, true);
        self.row(tokens)
    }

    /// One row of at most the tokens that there is room for.
    fn row(&self, tokens: Tokens) -> Result<EncodedSample> {
        let Tokens { mut ids, mut learned, mut removed } = tokens;
        let limit = self.options.max_length;
        self.check_length(ids.len() + removed, ("max_length", limit))?;
        if ids.len() > limit {
            removed += ids.len() - limit;
            match self.task.keep {
                KeepSide::Start => ids.truncate(limit),
                KeepSide::End => {
                    // The token that begins every text of the model stays.
                    let bos = self.options.tokenizer.special_ids().bos;
                    let first = usize::from(ids.first().copied() == bos && bos.is_some());
                    let cut = first..first + ids.len() - limit;
                    learned.drain(cut.clone());
                    ids.drain(cut);
                }
            }
            learned.truncate(ids.len());
        }
        // The first token is never predicted.
        if !learned.iter().skip(1).any(|learned| *learned == 1) {
            return Err(if removed > 0 { self.too_short() } else { self.no_token() });
        }
        let row = Encoding { token_type_ids: vec![0; ids.len()], input_ids: ids, removed };
        Ok(EncodedSample { rows: vec![row], label: Label::Learned, learned })
    }

    /// Rows of an encoder's input and a decoder's output. A rendered conversation has its special tokens already.
    fn two_rows(&self, input: &[u32], is_text: bool, output: &[u32]) -> Result<EncodedSample> {
        let special = around(self.options.tokenizer);
        let none = Default::default();
        let ReadOptions { max_length, target_length, .. } = *self.options;
        let around_input = if is_text { &special } else { &none };
        let read = self.side(input, around_input, ("max_length", max_length), self.set.max_input_tokens)?;
        let written = self.side(output, &special, ("target_length", target_length), self.set.max_output_tokens)?;
        if output.len() == written.removed {
            return Err(if output.is_empty() { self.no_token() } else { self.too_short() });
        }
        Ok(EncodedSample { rows: vec![read, written], label: Label::TokensFrom(0), learned: Vec::new() })
    }

    /// One of the two, of at most `own` tokens.
    fn side(
        &self,
        ids: &[u32],
        (before, after): &(Vec<u32>, Vec<u32>),
        (key, limit): (&str, usize),
        own: Option<usize>,
    ) -> Result<Encoding> {
        let special = before.len() + after.len();
        self.check_length(ids.len() + special, (key, limit))?;
        let kept = own.map_or(limit, |own| own.min(limit)).saturating_sub(special).min(ids.len());
        let removed = ids.len() - kept;
        let kept = match self.task.keep {
            KeepSide::Start => &ids[..kept],
            KeepSide::End => &ids[removed..],
        };
        let input_ids = [before, kept, after].concat();
        Ok(Encoding { token_type_ids: vec![0; input_ids.len()], input_ids, removed })
    }

    fn check_length(&self, length: usize, (key, limit): (&str, usize)) -> Result<()> {
        if length <= limit || self.options.too_long == TooLong::Truncate {
            return Ok(());
        }
        let reason = format!("the sample has {length} tokens, more than data.{key} = {limit}");
        let fix = format!("shorten it, raise data.{key}, or set data.too_long = \"truncate\"");
        Err(Error::data("", reason, fix))
    }

    fn too_short(&self) -> Error {
        let fix = "raise data.max_length, keep the other side with data.truncate, or leave such records out with \
                   data.on_bad_record = \"skip\"";
        Error::data("", "no token that is learned is left after truncation", fix)
    }

    fn no_token(&self) -> Error {
        Error::data("", "the sample has no token to learn", "give an answer, or leave the record out")
    }
}
