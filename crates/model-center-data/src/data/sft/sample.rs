//! A sample of supervised fine-tuning, before it is tokenized.

use serde_json::{Map, Value};

use model_center_formats::tokenizer::ChatMessage;

/// Form of a record as a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    /// A conversation, which goes through the model's chat template.
    Chat {
        /// The messages in order.
        messages: Vec<ChatMessage>,
        /// Descriptions of tools.
        tools: Option<Value>,
        /// Further variables of the template, such as `enable_thinking`.
        more: Map<String, Value>,
        /// The messages before this one are a prompt, the assistant's too.
        learned_from: usize,
        /// Messages of the assistant that are not learned, by their numbers from 0.
        excluded: Vec<usize>,
    },
    /// An input, and the output that is learned.
    Pair {
        /// Text that is read.
        input: String,
        /// Text that is written.
        output: String,
        /// Messages before the two, where these are turns of a chat: a system text, earlier turns.
        before: Vec<ChatMessage>,
        /// Descriptions of tools, in the same case.
        tools: Option<Value>,
    },
    /// A text, which is learned as a whole.
    Text(String),
    /// An unpaired completion of a prompt, good or bad.
    Unpaired {
        /// One of the samples above.
        own: Box<Sample>,
        /// Its prompt with the completion of another sample, which reading finds; `None` before that.
        mismatch: Option<Box<Sample>>,
        /// Whether the completion is good.
        is_good: bool,
    },
    /// Two completions of one prompt, the first preferred; each is an input or a conversation.
    Preference {
        /// The prompt with the better completion.
        chosen: Box<Sample>,
        /// The prompt with the worse one.
        rejected: Box<Sample>,
    },
}

impl Sample {
    /// Passes every message of the record that the sample was read from.
    pub(super) fn each_message(&self, take: &mut dyn FnMut(&ChatMessage)) {
        match self {
            Sample::Chat { messages, .. } => messages.iter().for_each(take),
            Sample::Pair { before, .. } => before.iter().for_each(take),
            Sample::Text(_) => {}
            Sample::Unpaired { own, .. } => own.each_message(take),
            Sample::Preference { chosen, rejected } => {
                chosen.each_message(take);
                rejected.each_message(take);
            }
        }
    }

    /// An input and its output.
    pub fn pair(input: impl Into<String>, output: impl Into<String>) -> Sample {
        Sample::Pair { input: input.into(), output: output.into(), before: Vec::new(), tools: None }
    }

    /// An unpaired sample, good or bad.
    pub fn unpaired(sample: Sample, is_good: bool) -> Sample {
        Sample::Unpaired { own: Box::new(sample), mismatch: None, is_good }
    }

    /// A sample that is preferred to another one.
    pub fn preference(chosen: Sample, rejected: Sample) -> Sample {
        Sample::Preference { chosen: Box::new(chosen), rejected: Box::new(rejected) }
    }
}
