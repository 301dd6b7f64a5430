//! Tool calls: the form in which a model writes them, the grammar that makes it write one, and how its messages are
//! read.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`ToolForm`], and the grammars of calls |
//! | `parser.rs` | a message as text and calls |
//! | `reader.rs` | one call |

mod parser;
mod reader;

pub(super) use parser::{MessagePart, ToolCallParser};

use model_center_formats::tokenizer::{ChatTemplate, Tokenizer};
use model_center_models::generate::Grammar;
use serde_json::Value;

/// The form in which a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ToolForm {
    /// `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, of Hermes and Qwen.
    Hermes,
    /// `{"name": ..., "parameters": ...}`, perhaps after `<|python_tag|>`, of Llama 3.
    Llama3,
}

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Function {
    pub(super) name: String,
    /// The form of its arguments.
    pub(super) arguments: Grammar,
    /// Whether its arguments have to be of the form.
    pub(super) is_strict: bool,
}

impl ToolForm {
    /// The form of a model's chat template, if it is known.
    pub(super) fn of(template: &ChatTemplate, tokenizer: &dyn Tokenizer) -> Option<Self> {
        let source = template.source(true)?;
        // Arguments as elements of XML are another form between the same marks.
        let has = |text: &str| source.contains(text);
        match () {
            () if has("<tool_call>") && !has("<function=") && !has("<arg_key>") => Some(ToolForm::Hermes),
            () if tokenizer.id(ToolForm::Llama3.marker()).is_some() && has("parameters") => Some(ToolForm::Llama3),
            () => None,
        }
    }

    /// Beginning of a call; in Llama's form it may be left out.
    pub(super) fn marker(self) -> &'static str {
        match self {
            ToolForm::Hermes => "<tool_call>",
            ToolForm::Llama3 => "<|python_tag|>",
        }
    }

    /// End of a call.
    pub(super) fn end(self) -> &'static str {
        match self {
            ToolForm::Hermes => "</tool_call>",
            ToolForm::Llama3 => ";",
        }
    }

    /// Whether a message is either text or calls.
    pub(super) fn is_whole_message(self) -> bool {
        self == ToolForm::Llama3
    }

    /// Special tokens whose text tells a call, so that it is not left out of texts.
    pub(super) fn kept(self, tokenizer: &dyn Tokenizer) -> Vec<(u32, String)> {
        let marks = [self.marker(), self.end()];
        let special = tokenizer.control_tokens().into_iter().filter(|token| marks.contains(&token.text.as_str()));
        special.map(|token| (token.id, token.text)).collect()
    }

    /// A call of a function.
    fn call(self, function: &Function) -> Grammar {
        let name = Value::from(function.name.as_str());
        let (before, after) = match self {
            ToolForm::Hermes => {
                (format!("<tool_call>\n{{\"name\": {name}, \"arguments\": "), "}\n</tool_call>".to_owned())
            }
            ToolForm::Llama3 => (format!("{{\"name\": {name}, \"parameters\": "), "}".to_owned()),
        };
        Grammar::Sequence(vec![Grammar::Text(before), function.arguments.clone(), Grammar::Text(after)])
    }

    /// One or several calls of functions. Llama's form has one.
    pub(super) fn calls(self, functions: &[Function], is_parallel: bool) -> Grammar {
        let call = Grammar::Either(functions.iter().map(|function| self.call(function)).collect());
        if !is_parallel || self == ToolForm::Llama3 {
            return call;
        }
        let further = Grammar::Sequence(vec![Grammar::Text("\n".into()), call.clone()]);
        Grammar::Sequence(vec![call, Grammar::Repeated(Box::new(further))])
    }

    /// Text, calls, or both.
    pub(super) fn text_or_calls(self, functions: &[Function], is_parallel: bool) -> Grammar {
        let calls = self.calls(functions, is_parallel);
        let nothing = Grammar::Text(String::new());
        match self {
            ToolForm::Hermes => {
                Grammar::Sequence(vec![Grammar::Without(self.marker().into()), Grammar::Either(vec![nothing, calls])])
            }
            ToolForm::Llama3 => {
                let text = Grammar::Regex(r"[^{<\x20\n\t\r][^\0]*".into());
                Grammar::Either(vec![nothing, text, calls])
            }
        }
    }
}
