//! `/v1/completions`: texts that follow prompts.

use super::ApiError;
use super::fields::{Fields, Inputs, is_empty};
use super::generation::{Collected, Generation, MAX_INPUTS, MAX_TOP, Scores, decoder, object, reason_name};
use super::reply::{Ended, Reply};
use super::tokens::completion_scores;
use crate::http::Response;
use crate::serve::Shared;
use crate::serve::job::{Event, ScoredToken};
use model_center_formats::tokenizer::Tokenizer;
use model_center_models::generate::{GenerationSetup, Prompt};
use serde_json::{Value, json};
use std::sync::mpsc::Receiver;

/// The most new tokens where a request does not state it, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

/// A request that was read.
struct Completion<'s> {
    shared: &'s Shared,
    tokenizer: Option<&'s dyn Tokenizer>,
    generation: Generation,
    /// Tokens of each prompt.
    lengths: Vec<usize>,
    /// The text of each prompt, with which its completions begin; empty without `echo`.
    echoes: Vec<String>,
    scores: Scores,
    id: String,
}

/// Answers a request.
pub(in crate::serve) fn completions(shared: &Shared, body: &[u8], reply: &mut Reply<'_>) -> Result<(), Ended> {
    let (completion, prompts) = Completion::read(shared, body)?;
    let scores = completion.scores;
    let events = completion.generation.submit(prompts, (scores, DEFAULT_TOKENS), ("prompt", shared, &*reply))?;
    match completion.generation.streams {
        true => completion.stream(&events, reply),
        false => completion.whole(&events, reply),
    }
}

impl<'s> Completion<'s> {
    /// The request, and the tokens of its prompts.
    fn read(shared: &'s Shared, body: &[u8]) -> Result<(Self, Vec<Vec<u32>>), ApiError> {
        let mut fields = Fields::parse(body)?;
        let decoder = decoder(&mut fields, shared)?;
        let names = ["max_tokens", "max_completion_tokens"];
        let mut generation = Generation::read(&mut fields, &names, (shared, decoder))?;
        let inputs = Inputs::of("prompt", fields.required("prompt")?, MAX_INPUTS)?;
        let echoes = fields.flag("echo")?;
        let top = fields.count("logprobs", MAX_TOP)?;
        fields.neutral("suffix", is_empty)?;
        fields.neutral("best_of", |best| best.as_u64() == Some(generation.choices as u64))?;
        fields.finish()?;
        if generation.asked_tokens() == Some(0) && !echoes {
            let message = "\"max_tokens\" is 0 without \"echo\": the response would be empty";
            return Err(ApiError::field("max_tokens", message));
        }
        if let Some(format) = generation.take_format() {
            generation.constrain(format, &[], (shared, decoder))?;
        }
        let setup = &decoder.setup;
        let prompts = encoded(setup, &inputs, shared.longest)?;
        let tokenizer = setup.tokenizer.as_deref();
        let echoes = if echoes { echoed(tokenizer, &inputs)? } else { Vec::new() };
        let scores = Scores { top, of_prompts: top.is_some() && !echoes.is_empty() };
        let id = shared.next_id("cmpl");
        let lengths = prompts.iter().map(Vec::len).collect();
        Ok((Completion { shared, tokenizer, generation, lengths, echoes, scores, id }, prompts))
    }

    fn echo(&self, sequence: usize) -> &str {
        self.echoes.get(sequence / self.generation.choices).map_or("", String::as_str)
    }

    /// `logprobs` of some tokens of a sequence, if they are asked for.
    fn scores(&self, tokens: &[ScoredToken], offset: &mut usize) -> Value {
        match self.scores.top {
            Some(top) => completion_scores(self.tokenizer, tokens, (offset, top > 0)),
            None => Value::Null,
        }
    }

    fn object(&self, choices: Vec<Value>, usage: Option<Value>) -> String {
        object((self.shared, &self.id), "text_completion", choices, usage)
    }

    fn whole(&self, events: &Receiver<Event>, reply: &mut Reply<'_>) -> Result<(), Ended> {
        let mut collected = Collected::new(&self.lengths, self.generation.choices);
        collected.wait(reply, events)?;
        let usage = collected.usage();
        let choices = collected.choices.into_iter().enumerate().map(|(index, mut choice)| {
            let text = format!("{}{}", self.echo(index), choice.text);
            let scores = self.scores(&choice.tokens, &mut choice.offset);
            let reason = choice.finish_reason.unwrap_or("length");
            json!({"index": index, "text": text, "logprobs": scores, "finish_reason": reason})
        });
        let object = self.object(choices.collect(), Some(usage));
        reply.send(&Response::new("application/json", object))
    }

    /// Events for each piece of text; with scores for each token.
    fn stream(&self, events: &Receiver<Event>, reply: &mut Reply<'_>) -> Result<(), Ended> {
        let mut collected = Collected::new(&self.lengths, self.generation.choices);
        let sequences = collected.choices.len();
        let has_scores = self.scores.top.is_some();
        if !self.scores.of_prompts && !self.echoes.is_empty() {
            (0..sequences).try_for_each(|index| self.piece(index, self.echo(index), Value::Null, None, reply))?;
        }
        loop {
            match reply.wait(events)? {
                Event::Prompt { prompt, tokens } => {
                    for index in collected.of_prompt(prompt) {
                        let Some(choice) = collected.choices.get_mut(index) else { continue };
                        let scores = self.scores(&tokens, &mut choice.offset);
                        self.piece(index, self.echo(index), scores, None, reply)?;
                    }
                }
                Event::Token { sequence, token, text, finish_reason } => {
                    collected.new_tokens += 1;
                    let Some(choice) = collected.choices.get_mut(sequence) else { continue };
                    choice.finish_reason = finish_reason.map(reason_name);
                    if has_scores || !text.is_empty() || finish_reason.is_some() {
                        let scores = self.scores(std::slice::from_ref(&token), &mut choice.offset);
                        self.piece(sequence, &text, scores, choice.finish_reason, reply)?;
                    }
                }
                Event::Done => break,
                Event::Failed(error) => return Err(error.into()),
            }
        }
        for (index, choice) in collected.choices.iter().enumerate() {
            // Prompts alone have no token that ends them.
            if choice.finish_reason.is_none() {
                self.piece(index, "", Value::Null, Some("length"), reply)?;
            }
        }
        if self.generation.has_usage {
            reply.event(&self.object(Vec::new(), Some(collected.usage())))?;
        }
        reply.event("[DONE]")
    }

    fn piece(
        &self,
        index: usize,
        text: &str,
        scores: Value,
        reason: Option<&str>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Ended> {
        let choice = json!({"index": index, "text": text, "logprobs": scores, "finish_reason": reason});
        reply.event(&self.object(vec![choice], None))
    }
}

/// The tokens of the prompts. Whether they fit beside new ones is for [`Generation::submit`] to see.
fn encoded(setup: &GenerationSetup, inputs: &Inputs, longest: usize) -> Result<Vec<Vec<u32>>, ApiError> {
    let tokens = |prompt: Prompt| {
        let tokens = setup.tokens_up_to(&prompt, "prompt", longest);
        tokens.map_err(|error| ApiError::of_input(&error, "prompt"))?.ok_or_else(|| ApiError::beyond("prompt", longest))
    };
    match inputs {
        Inputs::Texts(texts) => texts.iter().cloned().map(|text| tokens(Prompt::Text(text))).collect(),
        Inputs::Tokens(rows) => rows.iter().cloned().map(|ids| tokens(Prompt::Tokens(ids))).collect(),
    }
}

/// The texts of the prompts, without special tokens, as texts of completions are.
fn echoed(tokenizer: Option<&dyn Tokenizer>, inputs: &Inputs) -> Result<Vec<String>, ApiError> {
    let decode = |ids: &Vec<u32>| match tokenizer {
        Some(tokenizer) => tokenizer.decode(ids, true).map_err(|error| ApiError::of_input(&error, "prompt")),
        None => Ok(String::new()),
    };
    match inputs {
        Inputs::Texts(texts) => Ok(texts.clone()),
        Inputs::Tokens(rows) => rows.iter().map(decode).collect(),
    }
}
