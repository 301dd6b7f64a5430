//! Text generation: prompts and options of Python become the library's.

use crate::arrays::ids;
use crate::error::argument;
use crate::session::Session;
use crate::values::to_json;
use crate::worker::Worker;
use model_center::bmtrain_core::Ctx;
use model_center::generate::{Generated, GenerationOverrides, Generator, Prompt, TextChunk};
use model_center::run::StopFlag;
use model_center::tokenizer::{ChatMessage, Tokenizer};
use model_center::{Error, Result};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::sync::{Arc, Mutex, PoisonError};

/// Prompts, and whether the caller gave one or a list.
pub(crate) struct Prompts {
    prompts: Vec<Prompt>,
    is_list: bool,
}

/// The exception of a callback, which ends the generation.
type Raised = Arc<Mutex<Option<PyErr>>>;

impl Prompts {
    /// A text, an array of token ids, or a list of these.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let is_of_numbers =
            |list: &Bound<'_, PyList>| list.get_item(0).is_ok_and(|first| first.extract::<i64>().is_ok());
        match object.cast::<PyList>() {
            Ok(list) if !is_of_numbers(list) => {
                let prompts = list.iter().map(|item| prompt(&item)).collect::<PyResult<Vec<_>>>()?;
                Ok(Prompts { prompts, is_list: true })
            }
            _ => Ok(Prompts { prompts: vec![prompt(object)?], is_list: false }),
        }
    }

    /// One conversation.
    pub(crate) fn of_messages(messages: &Bound<'_, PyList>) -> PyResult<Self> {
        let message = |(number, item): (usize, Bound<'_, PyAny>)| {
            let part = |name: &str| -> PyResult<String> {
                let value = item.get_item(name).and_then(|value| value.extract::<String>());
                value.map_err(|_| {
                    let fix = "give messages such as {\"role\": \"user\", \"content\": \"...\"}";
                    argument("messages", format!("message {number} has no text {name:?}"), fix)
                })
            };
            Ok(ChatMessage::new(&part("role")?, part("content")?))
        };
        let messages = messages.iter().enumerate().map(message).collect::<PyResult<Vec<_>>>()?;
        Ok(Prompts { prompts: vec![Prompt::Messages(messages)], is_list: false })
    }

    /// Whether any of them is text.
    pub(crate) fn need_tokenizer(&self) -> bool {
        self.prompts.iter().any(|prompt| !matches!(prompt, Prompt::Tokens(_)))
    }

    /// Generates on the model's thread, with the tokenizer that texts need; the first sequence of each prompt, in the
    /// form that the caller gave.
    pub(crate) fn generate<'py>(
        self,
        py: Python<'py>,
        worker: &Worker<Session>,
        (tokenizer, overrides): (Option<Arc<dyn Tokenizer>>, GenerationOverrides),
        on_text: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let are_ids: Vec<bool> = self.prompts.iter().map(|prompt| matches!(prompt, Prompt::Tokens(_))).collect();
        let (stop, raised) = (StopFlag::default(), Raised::default());
        let (asked, callback) = (stop.clone(), Callback { on_text, raised: Arc::clone(&raised) });
        let prompts = self.prompts;
        let result = worker.call(py, &stop, move |session| {
            let ids = session.generation(tokenizer)?.encode_prompts(prompts.into_iter())?;
            generate(session, &ids, &overrides, (&callback, &asked))
        });
        if let Some(exception) = raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(exception);
        }
        let one = |(sequences, is_ids): (Vec<Generated>, bool)| -> PyResult<Bound<'py, PyAny>> {
            let first = sequences.into_iter().next();
            match (first, is_ids) {
                (Some(first), true) => {
                    Ok(PyArray1::from_vec(py, first.tokens.into_iter().map(i64::from).collect()).into_any())
                }
                (Some(first), false) => Ok(PyString::new(py, &first.text).into_any()),
                (None, _) => Err(argument("prompt", "it has no text", "check the options")),
            }
        };
        let texts = result?.into_iter().zip(are_ids).map(one).collect::<PyResult<Vec<_>>>()?;
        match (self.is_list, texts.into_iter()) {
            (true, texts) => Ok(PyList::new(py, texts)?.into_any()),
            (false, mut texts) => {
                texts.next().ok_or_else(|| argument("prompt", "there is none", "give a text or token ids"))
            }
        }
    }
}

fn prompt(object: &Bound<'_, PyAny>) -> PyResult<Prompt> {
    match object.cast::<PyString>() {
        Ok(text) => Ok(Prompt::Text(text.to_cow()?.into_owned())),
        Err(_) => ids("prompt", object).map(Prompt::Tokens),
    }
}

/// A Python function that is called with further text.
struct Callback {
    on_text: Option<Py<PyAny>>,
    raised: Raised,
}

impl Callback {
    fn call(&self, chunk: TextChunk<'_>) -> Result<()> {
        let Some(on_text) = self.on_text.as_ref().filter(|_| chunk.sequence == 0) else { return Ok(()) };
        Python::attach(|py| on_text.call1(py, (chunk.text,))).map(drop).map_err(|exception| {
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(exception);
            Error::argument("on_text", "it raised an exception", "see that exception")
        })
    }
}

fn generate(
    session: &mut Session,
    ids: &[Vec<u32>],
    overrides: &GenerationOverrides,
    (callback, stop): (&Callback, &StopFlag),
) -> Result<Vec<Vec<Generated>>> {
    let setup = session.generation(None)?;
    let options = setup.settings(overrides)?.options;
    let tokenizer = setup.tokenizer.clone();
    let may_continue = || match stop.is_requested() {
        false => Ok(()),
        true => Err(Error::argument("generate", "it was interrupted", "call it again")),
    };
    let generator = Generator::new(session.model()?, tokenizer.as_deref(), options)?.with_check(&may_continue);
    generator.generate(ids, 0, &mut Ctx::inference(&session.device), &mut |chunk| callback.call(chunk))
}

/// The keyword arguments of a call over the settings of the model's directory.
pub(crate) fn overrides(options: Option<&Bound<'_, PyDict>>) -> PyResult<GenerationOverrides> {
    let mut asked = GenerationOverrides { origin: "the call", ..GenerationOverrides::default() };
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        let wrong = |_| {
            let shown = to_json(&name, &value).map_or_else(|_| "of another type".to_owned(), |value| value.to_string());
            argument(&name, format!("it is {shown}"), "give a value of the type in the documentation of Model.generate")
        };
        match name.as_str() {
            "max_new_tokens" => asked.max_new_tokens = Some(value.extract().map_err(wrong)?),
            "min_new_tokens" => asked.min_new_tokens = Some(value.extract().map_err(wrong)?),
            "greedy" => asked.greedy = value.extract().map_err(wrong)?,
            "sample" => asked.sample = value.extract().map_err(wrong)?,
            "temperature" => asked.temperature = Some(value.extract().map_err(wrong)?),
            "top_k" => asked.top_k = Some(value.extract().map_err(wrong)?),
            "top_p" => asked.top_p = Some(value.extract().map_err(wrong)?),
            "min_p" => asked.min_p = Some(value.extract().map_err(wrong)?),
            "seed" => asked.seed = Some(value.extract().map_err(wrong)?),
            "beams" => asked.beams = Some(value.extract().map_err(wrong)?),
            "length_penalty" => asked.length_penalty = Some(value.extract().map_err(wrong)?),
            "repetition_penalty" => asked.repetition_penalty = Some(value.extract().map_err(wrong)?),
            "no_repeat" => asked.no_repeat = Some(value.extract().map_err(wrong)?),
            "stop" => asked.stop_strings = value.extract().map_err(wrong)?,
            other => {
                let fix = "leave it out; help(bmtrain.Model.generate) lists the options";
                return Err(argument(other, "there is no such option", fix));
            }
        }
    }
    Ok(asked)
}
