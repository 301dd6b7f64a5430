//! The tools of a request, and what the model may do with them.

use super::ApiError;
use super::fields::Fields;
use crate::serve::options::ServedDecoder;
use crate::serve::tools::{Function, ToolCallParser, ToolForm};
use model_center_formats::tokenizer::ControlToken;
use model_center_models::generate::Grammar;
use serde_json::{Map, Value};

/// Functions of a request.
const MAX_TOOLS: usize = 128;
const MAX_NAME: usize = 64;

/// Choice of the model's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    /// Write text or calls.
    Auto,
    /// Write calls.
    Required,
    /// Call this function.
    Named(String),
}

/// The tools of a request.
#[derive(Debug)]
pub(super) struct Tools {
    /// As templates read them.
    pub(super) list: Value,
    functions: Vec<Function>,
    choice: Choice,
    is_parallel: bool,
    form: ToolForm,
    /// Special tokens that appear in the text.
    pub(super) kept: Vec<(u32, String)>,
}

fn wrong(reason: impl Into<String>) -> ApiError {
    ApiError::field("tools", reason)
}

impl Tools {
    /// Reads the tools; `None` without any, and where the model may not use them.
    pub(super) fn read(fields: &mut Fields, decoder: &ServedDecoder) -> Result<Option<Self>, ApiError> {
        let list = fields.take("tools").filter(|list| list.as_array().is_none_or(|list| !list.is_empty()));
        let choice = choice(fields.take("tool_choice"))?;
        let is_parallel = fields.flag_or("parallel_tool_calls", true)?;
        let Some(list) = list else {
            return match choice {
                None | Some(Choice::Auto) => Ok(None),
                Some(_) => {
                    Err(ApiError::field("tool_choice", "\"tool_choice\" asks for a call, and there are no tools"))
                }
            };
        };
        let functions = functions(&list)?;
        let Some(choice) = choice else { return Ok(None) };
        if let Choice::Named(name) = &choice
            && !functions.iter().any(|function| function.name == *name)
        {
            return Err(ApiError::field("tool_choice", format!("there is no tool named {name:?}")));
        }
        let setup = &decoder.setup;
        let (Some(template), Some(tokenizer)) = (&setup.chat, setup.tokenizer.as_deref()) else {
            return Err(ApiError::field("messages", "the model has no chat template"));
        };
        if !template.source(true).is_some_and(|source| source.contains("tools")) {
            return Err(wrong("the chat template of the model has no place for tools: leave them out"));
        }
        let form = decoder.tool_form.or_else(|| ToolForm::of(template, tokenizer)).ok_or_else(|| {
            wrong("the form of tool calls in the chat template is not known: --tool-form names one that is")
        })?;
        refuse_control(&list, &tokenizer.control_tokens())?;
        let kept = form.kept(tokenizer);
        Ok(Some(Tools { list, functions, choice, is_parallel, form, kept }))
    }

    /// Parser of the model's messages.
    pub(super) fn parser(&self) -> ToolCallParser {
        ToolCallParser::new(self.form, self.functions.iter().map(|function| function.name.clone()).collect())
    }

    /// The form of the message, if the request demands one: of calls, or of text by `format`.
    pub(super) fn grammar(&self, format: Option<Grammar>) -> Option<Grammar> {
        let calls = |functions: &[Function], is_parallel: bool| self.form.calls(functions, is_parallel);
        match (&self.choice, format) {
            (Choice::Required, _) => Some(calls(&self.constrained(|_| true), self.is_parallel)),
            (Choice::Named(name), _) => Some(calls(&self.constrained(|function| function.name == *name), false)),
            (Choice::Auto, Some(format)) => {
                Some(Grammar::Either(vec![format, calls(&self.constrained(|_| true), self.is_parallel)]))
            }
            (Choice::Auto, None) => {
                // Several calls are prevented by the form alone.
                let is_needed = !self.is_parallel || self.functions.iter().any(|function| function.is_strict);
                is_needed.then(|| self.form.text_or_calls(&self.constrained(|_| true), self.is_parallel))
            }
        }
    }

    /// Some functions with the forms of their arguments: a schema that is not strict describes them, and one that is
    /// not supported leaves any object; a strict one has to hold.
    fn constrained(&self, is_wanted: impl Fn(&Function) -> bool) -> Vec<Function> {
        let mut work = 0;
        let mut functions: Vec<Function> = self.functions.iter().filter(|one| is_wanted(one)).cloned().collect();
        for function in functions.iter_mut().filter(|function| !function.is_strict) {
            if !function.arguments.is_supported(&mut work) {
                function.arguments = Grammar::JsonObject;
            }
        }
        functions
    }
}

/// Choice of the model's calls; `None` for not to call.
fn choice(value: Option<Value>) -> Result<Option<Choice>, ApiError> {
    let unknown = || ApiError::field("tool_choice", "it is not \"auto\", \"none\", \"required\" or a named function");
    Ok(match value {
        None => Some(Choice::Auto),
        Some(Value::String(text)) => match text.as_str() {
            "auto" => Some(Choice::Auto),
            "none" => None,
            "required" => Some(Choice::Required),
            _ => return Err(unknown()),
        },
        Some(value) => {
            let is_function = value.get("type").is_some_and(|kind| kind == "function");
            let name = value.pointer("/function/name").and_then(Value::as_str).filter(|_| is_function);
            Some(Choice::Named(name.ok_or_else(unknown)?.to_owned()))
        }
    })
}

fn functions(list: &Value) -> Result<Vec<Function>, ApiError> {
    let list = list.as_array().filter(|list| list.len() <= MAX_TOOLS);
    let list = list.ok_or_else(|| wrong(format!("\"tools\" is not a list of at most {MAX_TOOLS} tools")))?;
    let mut functions: Vec<Function> = Vec::with_capacity(list.len());
    for tool in list {
        let function = function(tool)?;
        if functions.iter().any(|other| other.name == function.name) {
            return Err(wrong(format!("two tools have the name {:?}", function.name)));
        }
        functions.push(function);
    }
    Ok(functions)
}

fn function(tool: &Value) -> Result<Function, ApiError> {
    let form = || wrong("a tool is not of the type \"function\", with a \"function\"");
    let fields = tool.as_object().ok_or_else(form)?;
    let (Some(kind), Some(Value::Object(function))) = (fields.get("type"), fields.get("function")) else {
        return Err(form());
    };
    if kind != "function" {
        return Err(form());
    }
    only(fields, &["type", "function"])?;
    only(function, &["name", "description", "parameters", "strict"])?;
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
        return Err(wrong(format!("the name of a tool is not 1 to {MAX_NAME} letters, digits, \"_\", \"-\" or \".\"")));
    }
    let is_strict = match function.get("strict") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(is_strict)) => *is_strict,
        Some(_) => return Err(wrong(format!("\"strict\" of the tool {name:?} is neither true nor false"))),
    };
    let arguments = match function.get("parameters").filter(|schema| !schema.is_null()) {
        None => Grammar::JsonSchema(serde_json::json!({"type": "object", "additionalProperties": false})),
        Some(schema @ Value::Object(_)) => Grammar::JsonSchema(schema.clone()),
        Some(_) => return Err(wrong(format!("the parameters of the tool {name:?} are not a schema"))),
    };
    Ok(Function { name: name.to_owned(), arguments, is_strict })
}

fn only(fields: &Map<String, Value>, known: &[&str]) -> Result<(), ApiError> {
    match fields.iter().find(|(name, value)| !known.contains(&name.as_str()) && !value.is_null()) {
        Some((name, _)) => Err(ApiError::unsupported(&format!("tools.{name}"))),
        None => Ok(()),
    }
}

/// Refuses texts that spell a control token, which the template would write as one.
fn refuse_control(value: &Value, control: &[ControlToken]) -> Result<(), ApiError> {
    let check = |text: &str| match control.iter().find(|token| text.contains(&token.text)) {
        Some(token) => Err(wrong(format!("a tool spells {}, which would be a control token", token.text))),
        None => Ok(()),
    };
    match value {
        Value::String(text) => check(text),
        Value::Array(items) => items.iter().try_for_each(|item| refuse_control(item, control)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            check(name)?;
            refuse_control(field, control)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}
