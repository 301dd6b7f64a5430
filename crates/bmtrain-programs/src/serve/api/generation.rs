//! Common part of completions and chats: the settings of a request, its limits, and its job.

use super::fields::Fields;
use super::reply::{Ended, Reply};
use super::settings::{has_usage, settings};
use super::{ApiError, format};
use crate::Error;
use crate::serve::{
    Shared,
    job::{Event, GenerateJob, Job, ScoredToken},
    options::{ServedDecoder, ServedPredictor},
};
use model_center_models::generate::{FinishReason, GenerateOptions, Grammar};
use model_center_train::predict::PredictionKind;
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};

/// The most tokens beside each that have a log probability.
pub(super) const MAX_TOP: usize = 20;
/// The most log probabilities of a response: with each a token's text is held, some 100 bytes.
const MAX_SCORES: usize = 1 << 20;
/// The most prompts or inputs of a request.
pub(super) const MAX_INPUTS: usize = 1024;

/// The settings of a request.
#[derive(Debug)]
pub(super) struct Generation {
    options: GenerateOptions,
    /// Sequences of each prompt.
    pub(super) choices: usize,
    /// Whether the response is a stream of events.
    pub(super) streams: bool,
    /// Whether the last event has the numbers of tokens.
    pub(super) has_usage: bool,
    /// The most new tokens, where the request states it.
    asked_tokens: Option<usize>,
    /// Whether the request states stop strings.
    has_stops: bool,
    /// The form that texts have to have, with the field that states it.
    format: Option<(&'static str, Grammar)>,
    /// Special tokens that appear in texts.
    pub(super) kept: Vec<(u32, String)>,
}

/// Scores that a request asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scores {
    /// The number of most probable tokens with each token; `None` for no scores.
    pub(super) top: Option<usize>,
    /// Whether tokens of prompts have scores too.
    pub(super) of_prompts: bool,
}

/// The model that continues texts, if the request names this server's model and it is one.
pub(super) fn decoder<'s>(fields: &mut Fields, shared: &'s Shared) -> Result<&'s ServedDecoder, ApiError> {
    model(fields, shared)?;
    shared.decoder().ok_or_else(|| {
        let embeds = |served: &ServedPredictor| matches!(served.predictor.kind(), PredictionKind::Embedding(_));
        ApiError::not_found(match shared.predictor().is_some_and(embeds) {
            true => "this model embeds texts and generates none: ask /v1/embeddings",
            false => "this model predicts and generates no texts: ask /v1/predict",
        })
    })
}

/// Checks the name of the model.
pub(super) fn model(fields: &mut Fields, shared: &Shared) -> Result<(), ApiError> {
    match fields.text("model")? {
        Some(name) if name != shared.model.name => Err(ApiError::unknown_model(&name, &shared.model.name)),
        _ => Ok(()),
    }
}

impl Generation {
    /// Reads the settings; `tokens` are the names of the most new tokens.
    pub(super) fn read(
        fields: &mut Fields,
        tokens: &[&str],
        (shared, decoder): (&Shared, &ServedDecoder),
    ) -> Result<Self, ApiError> {
        let mut asked_tokens = None;
        for name in tokens {
            let limit = shared.options.new_tokens;
            let asked = fields.count(name, u32::MAX as usize)?;
            if asked.is_some_and(|asked| asked > limit) {
                return Err(ApiError::field(name, format!("{name:?} is more than this server generates, {limit}")));
            }
            asked_tokens = asked_tokens.or(asked);
        }
        let choices = fields.count("n", shared.options.sequences)?.unwrap_or(1);
        if choices == 0 {
            return Err(ApiError::field("n", "\"n\" is 0, and no text would be generated"));
        }
        let streams = fields.flag("stream")?;
        let has_usage = has_usage(fields, streams)?;
        let (options, has_stops) = settings(fields, asked_tokens, (shared, decoder))?;
        let format = format::read(fields)?;
        Ok(Generation { options, choices, streams, has_usage, asked_tokens, has_stops, format, kept: Vec::new() })
    }

    /// The form that texts have to have, if the request states one.
    pub(super) fn take_format(&mut self) -> Option<(&'static str, Grammar)> {
        self.format.take()
    }

    /// Makes texts be of a form. Special tokens that are `kept` appear in them. `name` is the field that demands it.
    pub(super) fn constrain(
        &mut self,
        (name, grammar): (&str, Grammar),
        kept: &[(u32, String)],
        (shared, decoder): (&Shared, &ServedDecoder),
    ) -> Result<(), ApiError> {
        let Some(tokenizer) = decoder.setup.tokenizer.as_deref() else {
            return Err(ApiError::field(name, "the model has no tokenizer, and so texts have no form"));
        };
        if self.has_stops {
            let message =
                "a text of a form ends where the form does, and a stop string would cut it: leave \"stop\" out";
            return Err(ApiError::field("stop", message));
        }
        let constraint = shared.constraints.get(grammar, (tokenizer, kept));
        let named = |error: &Error| match error {
            Error::Argument { reason, fix, .. } => ApiError::field(name, format!("{reason} ({fix})")),
            error => ApiError::of_input(error, name),
        };
        self.options.constraint = Some(constraint.map_err(|error| named(&error))?);
        // Of the directory; a text ends where its form does.
        self.options.stop_strings.clear();
        Ok(())
    }

    /// The most new tokens that the request states.
    pub(super) fn asked_tokens(&self) -> Option<usize> {
        self.asked_tokens
    }

    /// The most new tokens of a prompt of `length` tokens; without a number in the request `default`, or fewer.
    fn limit(&self, length: usize, default: usize, (name, shared): (&str, &Shared)) -> Result<usize, ApiError> {
        let (longest, cached) = (shared.longest, shared.cached_tokens);
        let room = longest.saturating_sub(length);
        let limit = match self.asked_tokens {
            Some(asked) if asked > room => {
                let message = format!(
                    "the prompt has {length} tokens, and {asked} more are asked for; the model takes {longest} together"
                );
                return Err(ApiError::too_long(name, message));
            }
            Some(asked) => asked,
            None if room == 0 => {
                let message = format!("the prompt has {length} tokens, and the model takes {longest} with new ones");
                return Err(ApiError::too_long(name, message));
            }
            None => default.max(self.options.min_new_tokens).min(room).min(shared.options.new_tokens),
        };
        let needed = self.choices.saturating_mul(length.saturating_add(limit));
        if needed > cached {
            let message = format!("the sequences need {needed} tokens of the KV cache, which has {cached}");
            return Err(ApiError::too_long(name, message));
        }
        Ok(limit)
    }

    /// Gives the prompts to the model's thread.
    pub(super) fn submit(
        &self,
        prompts: Vec<Vec<u32>>,
        (scores, default): (Scores, usize),
        (name, shared, reply): (&str, &Shared, &Reply<'_>),
    ) -> Result<Receiver<Event>, ApiError> {
        if prompts.len().saturating_mul(self.choices) > MAX_INPUTS {
            return Err(ApiError::field("n", format!("prompts times \"n\" are more than {MAX_INPUTS}")));
        }
        let limits = prompts.iter().map(|prompt| self.limit(prompt.len(), default, (name, shared)));
        let limits = limits.collect::<Result<Vec<_>, _>>()?;
        if let Some(top) = scores.top {
            let of_prompts = prompts.iter().filter(|_| scores.of_prompts).map(Vec::len).sum::<usize>();
            let scored = limits.iter().fold(of_prompts, |all, limit| all.saturating_add(*limit));
            if scored.saturating_mul(self.choices).saturating_mul(top + 1) > MAX_SCORES {
                let message = format!("the response could have more than {MAX_SCORES} log probabilities");
                return Err(ApiError::field("logprobs", message));
            }
        }
        let (events, received) = channel();
        let ticket = Some(shared.enter()?);
        shared.submit(Job::Generate(Box::new(GenerateJob {
            prompts,
            limits,
            choices: self.choices,
            options: self.options.clone(),
            kept: self.kept.clone(),
            scores: scores.top,
            scores_prompts: scores.of_prompts,
            events,
            cancelled: reply.cancelled(),
            ticket,
        })))?;
        Ok(received)
    }
}

/// A response, or a part of one that is streamed.
pub(super) fn object((shared, id): (&Shared, &str), kind: &str, choices: Vec<Value>, usage: Option<Value>) -> String {
    let mut object = json!({
        "id": id, "object": kind, "created": shared.now(), "model": shared.model.name, "choices": choices,
    });
    if let Some(usage) = usage {
        object["usage"] = usage;
    }
    object.to_string()
}

/// The name in the API of what ended a sequence.
pub(super) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndToken | FinishReason::StopString | FinishReason::Complete => "stop",
        FinishReason::Length => "length",
    }
}

/// A sequence as it comes.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    pub(super) text: String,
    pub(super) tokens: Vec<ScoredToken>,
    pub(super) finish_reason: Option<&'static str>,
    /// Characters of the texts of tokens so far.
    pub(super) offset: usize,
}

/// The sequences of a request, and the numbers of its tokens.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) choices: Vec<Choice>,
    of_each: usize,
    pub(super) prompt_tokens: usize,
    pub(super) new_tokens: usize,
}

impl Collected {
    /// Usage of `choices` sequences of each of these prompts, by their numbers of tokens.
    pub(super) fn new(prompts: &[usize], choices: usize) -> Self {
        let all = vec![Choice::default(); prompts.len() * choices];
        Collected { choices: all, of_each: choices, prompt_tokens: prompts.iter().sum(), new_tokens: 0 }
    }

    /// The sequences of a prompt.
    pub(super) fn of_prompt(&self, prompt: usize) -> Range<usize> {
        prompt * self.of_each..(prompt + 1) * self.of_each
    }

    /// Collects all events of a job.
    pub(super) fn wait(&mut self, reply: &mut Reply<'_>, events: &Receiver<Event>) -> Result<(), Ended> {
        loop {
            match reply.wait(events)? {
                Event::Prompt { prompt, tokens } => {
                    let sequences = self.of_prompt(prompt);
                    for choice in self.choices.get_mut(sequences).into_iter().flatten() {
                        choice.tokens.extend(tokens.iter().cloned());
                    }
                }
                Event::Token { sequence, token, text, finish_reason } => {
                    self.new_tokens += 1;
                    if let Some(choice) = self.choices.get_mut(sequence) {
                        choice.text.push_str(&text);
                        choice.tokens.push(token);
                        choice.finish_reason = finish_reason.map(reason_name);
                    }
                }
                Event::Done => return Ok(()),
                Event::Failed(error) => return Err(error.into()),
            }
        }
    }

    /// The numbers of tokens.
    pub(super) fn usage(&self) -> Value {
        let Collected { prompt_tokens, new_tokens, .. } = self;
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": prompt_tokens + new_tokens,
        })
    }
}
