//! [`GenerationSettings`]: a caller's options over the model directory's, each with its origin.

use super::overrides::{DEFAULT, GenerationOverrides, Kind, first_given};
use super::{
    BeamOptions, Constraint, GenerateOptions, GenerationConfig, Method, Patience, RepetitionPenalty, Sampling, Setting,
};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::tokenizer::Tokenizer;
use std::fmt;
use std::sync::Arc;

/// The most new tokens if neither the caller nor the directory states them.
const MAX_NEW_TOKENS: usize = 128;

/// All settings, each with its origin.
#[derive(Debug, Clone, Default)]
pub struct GenerationSettings {
    /// The options of generation.
    pub options: GenerateOptions,
    /// Sequences of each prompt.
    pub texts: usize,
    /// Settings of the directory that have no effect here.
    pub not_followed: Vec<String>,
    origin: &'static str,
    /// Name, value and origin.
    lines: Vec<(&'static str, String, &'static str)>,
}

impl fmt::Display for GenerationSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|(name, value, _)| name.len() + value.len() + 3).max().unwrap_or(0);
        let lines = self.lines.iter().map(|(name, value, origin)| {
            let setting = format!("{name} = {value}");
            format!("{setting:width$}  # {origin}")
        });
        let aside = self.not_followed.iter().map(|name| format!("# not followed: {name}"));
        f.write_str(&lines.chain(aside).collect::<Vec<_>>().join("\n"))
    }
}

impl GenerationSettings {
    /// Resolve every setting: the caller's, else the directory's, else the default. `generates_targets` is true
    /// for an encoder-decoder.
    ///
    /// # Errors
    /// [`Error::Argument`] for a setting without effect.
    pub fn resolve(
        overrides: &GenerationOverrides,
        config: &GenerationConfig,
        tokenizer: Option<&dyn Tokenizer>,
        generates_targets: bool,
    ) -> Result<Self> {
        let mut settings = GenerationSettings {
            origin: overrides.origin,
            texts: 1,
            not_followed: config.not_followed.clone(),
            ..GenerationSettings::default()
        };
        settings.options.method = settings.method(overrides, config)?;
        settings.resolve_repetition(overrides, config)?;
        settings.resolve_tokens(overrides, config, tokenizer, generates_targets);
        settings.resolve_lengths(overrides, config, generates_targets)?;
        if let Some(constraint) = &overrides.constraint {
            settings.constrain(constraint, overrides);
        }
        settings.options.is_context = overrides.is_context;
        if overrides.is_context {
            settings.note("context", "true".into(), overrides.origin);
        }
        Ok(settings)
    }

    /// Takes the form of texts, which no stop string or least length of the directory may cut or extend.
    fn constrain(&mut self, constraint: &Arc<Constraint>, overrides: &GenerationOverrides) {
        self.options.constraint = Some(Arc::clone(constraint));
        let shown = printable(&format!("{:?}", constraint.grammar()), 100);
        self.note("constraint", shown, overrides.origin);
        if overrides.stop_strings.is_empty() && !self.options.stop_strings.is_empty() {
            self.options.stop_strings.clear();
            self.not_followed.push("stop_strings, as texts end where their form does".to_owned());
        }
    }

    /// Name the file and field of an invalid option that the directory states.
    pub fn attribute(&self, error: Error) -> Error {
        let Error::Argument { place, reason, fix } = error else { return error };
        match self.lines.iter().find(|(name, ..)| *name == place).map(|(_, _, origin)| *origin) {
            // The file's own forbidden tokens were checked as it was read; the caller's are added to them.
            Some(file) if file.ends_with(".json") && place != "forbid" => {
                let at_field = format!("{file}, field {}", field(&place));
                Error::model(at_field, reason, format!("{fix}; `{place}` counts more"))
            }
            _ => Error::argument(place, reason, fix),
        }
    }

    fn note(&mut self, name: &'static str, value: String, origin: &'static str) {
        self.lines.push((name, value, origin));
    }

    /// The caller's value, else the directory's, else the default.
    fn pick<T: Clone + fmt::Debug>(
        &mut self,
        name: &'static str,
        given: Option<T>,
        stated: &Option<Setting<T>>,
        default: T,
    ) -> T {
        let (value, origin) = match (given, stated) {
            (Some(value), _) => (value, self.origin),
            (None, Some(stated)) => (stated.value.clone(), stated.origin),
            (None, None) => (default, DEFAULT),
        };
        self.note(name, format!("{value:?}"), origin);
        value
    }

    fn method(&mut self, options: &GenerationOverrides, config: &GenerationConfig) -> Result<Method> {
        let (kind, origin) = options.kind(config)?;
        self.note("method", format!("{kind:?}").to_lowercase(), origin);
        Ok(match kind {
            Kind::Greedy => Method::Greedy,
            Kind::Sampling => {
                if let Some(beams) = config.num_beams.as_ref().filter(|_| options.beams.is_none()) {
                    self.not_followed.push(format!("num_beams = {}, as tokens are sampled", beams.value));
                }
                let sampling = Sampling {
                    temperature: self.pick("temperature", options.temperature, &config.temperature, 1.0),
                    top_k: Some(self.pick("top_k", options.top_k, &config.top_k, 0)).filter(|k| *k > 0),
                    top_p: self.pick("top_p", options.top_p, &config.top_p, 1.0),
                    min_p: self.pick("min_p", options.min_p, &config.min_p, 0.0),
                };
                let seed = self.pick("seed", options.seed, &None, 0);
                self.texts = self.pick("texts", options.texts, &None, 1);
                Method::Sampling { sampling, seed, texts: self.texts }
            }
            Kind::Beams => {
                let beams = BeamOptions {
                    beams: self.pick("beams", options.beams, &config.num_beams, 1),
                    length_penalty: self.pick("length_penalty", options.length_penalty, &config.length_penalty, 1.0),
                    patience: self.pick("patience", options.patience, &config.patience, Patience::default()),
                    best: self.pick("best", options.best, &None, 1),
                    renormalizes: config.renormalizes.is_some(),
                };
                if let Some(renormalizes) = &config.renormalizes {
                    self.note("renormalizes", "true".into(), renormalizes.origin);
                }
                self.texts = beams.best;
                Method::Beams(beams)
            }
        })
    }

    fn resolve_repetition(&mut self, options: &GenerationOverrides, config: &GenerationConfig) -> Result<()> {
        let factor = self.pick("repetition_penalty", options.repetition_penalty, &config.repetition_penalty, 1.0);
        let given = first_given(&[
            ("repetition_window", options.repetition_window.is_some()),
            ("penalise_prompt", options.penalize_prompt.is_some()),
        ]);
        if let Some(name) = given.filter(|_| factor == 1.0) {
            let reason = "it has no effect: there is no repetition penalty";
            return Err(Error::argument(name, reason, "add `repetition_penalty`, or leave it out"));
        }
        self.options.penalty = RepetitionPenalty { factor, window: options.repetition_window };
        if factor != 1.0 {
            self.options.penalizes_prompt = self.pick("penalise_prompt", options.penalize_prompt, &None, true);
            if let Some(window) = options.repetition_window {
                self.note("repetition_window", window.to_string(), options.origin);
            }
        }
        self.options.no_repeat =
            Some(self.pick("no_repeat", options.no_repeat, &config.no_repeat, 0)).filter(|n| *n > 0);
        Ok(())
    }

    /// End tokens, stop strings, forbidden and forced tokens, and the prefix.
    fn resolve_tokens(
        &mut self,
        overrides: &GenerationOverrides,
        config: &GenerationConfig,
        tokenizer: Option<&dyn Tokenizer>,
        generates_targets: bool,
    ) {
        let given = overrides.origin;
        let (ends, origin) = match (overrides.end_tokens.is_empty(), &config.end_tokens) {
            (false, _) => (overrides.end_tokens.clone(), given),
            (true, Some(ends)) => (ends.value.clone(), ends.origin),
            (true, None) => (tokenizer.and_then(|t| t.special_ids().eos).into_iter().collect(), "the tokenizer"),
        };
        self.note("end_token", named(&ends, tokenizer), origin);
        let (stops, origin) = match (overrides.stop_strings.is_empty(), &config.stop_strings) {
            (true, Some(stops)) => (stops.value.clone(), stops.origin),
            (false, _) => (overrides.stop_strings.clone(), given),
            (true, None) => (Vec::new(), DEFAULT),
        };
        self.note("stop", format!("{stops:?}"), origin);
        let mut forbidden = overrides.forbidden.clone();
        let origin = match &config.forbidden {
            Some(stated) => {
                forbidden.extend(&stated.value);
                stated.origin
            }
            None if forbidden.is_empty() => DEFAULT,
            None => given,
        };
        self.note("forbid", named(&forbidden, tokenizer), origin);
        (self.options.end_tokens, self.options.stop_strings, self.options.forbidden) = (ends, stops, forbidden);
        self.options.forced_eos = self.single("forced_last", &config.forced_eos, tokenizer);
        if generates_targets {
            self.options.forced_bos = self.single("forced_first", &config.forced_bos, tokenizer);
            self.options.decoder_start_token = self.single("first_token", &config.decoder_start_token, tokenizer);
        }
        if let Some(prefix) = &overrides.prefix {
            self.note("prefix", named(prefix, tokenizer), given);
            self.options.prefix.clone_from(prefix);
        }
    }

    /// A token that only a directory states.
    fn single(
        &mut self,
        name: &'static str,
        stated: &Option<Setting<u32>>,
        tokenizer: Option<&dyn Tokenizer>,
    ) -> Option<u32> {
        let stated = stated.as_ref()?;
        self.note(name, named(&[stated.value], tokenizer), stated.origin);
        Some(stated.value)
    }

    /// Lengths. `max_length` and `min_length` count the prompt too; for an encoder-decoder, the first tokens of the
    /// decoder. Both are only for what no number of new tokens is given for, as in transformers.
    fn resolve_lengths(
        &mut self,
        options: &GenerationOverrides,
        config: &GenerationConfig,
        generates_targets: bool,
    ) -> Result<()> {
        let prefix = options.prefix.as_ref().map_or(0, Vec::len);
        let limit = config.max_length.as_ref().filter(|_| config.max_new_tokens.is_none());
        if let (true, None, Some(limit)) = (generates_targets && prefix > 0, options.max_new_tokens, limit)
            && limit.value <= 1 + prefix
        {
            let reason = format!("it has {prefix} tokens, and {} has max_length = {}", limit.origin, limit.value);
            return Err(Error::argument("prefix", reason, "shorten it, or give `max_new_tokens`"));
        }
        if !generates_targets {
            self.resolve_whole_lengths(options, config);
        }
        let new_tokens = |stated: &Option<Setting<usize>>, is_needed: bool| {
            let stated = stated.clone().filter(|_| is_needed && generates_targets)?;
            Some(Setting { value: stated.value.saturating_sub(1 + prefix), ..stated })
        };
        let max = new_tokens(&config.max_length, config.max_new_tokens.is_none());
        let min = new_tokens(&config.min_length, config.min_new_tokens.is_none());
        let max = config.max_new_tokens.clone().or(max.filter(|max| max.value > 0));
        let longest = match self.options.max_length {
            // Of the shortest prompt there are fewer new ones.
            Some(most) => most,
            None => self.pick("max_new_tokens", options.max_new_tokens, &max, MAX_NEW_TOKENS),
        };
        // The caller's maximum may be less than the directory's minimum.
        let possible = if self.options.end_tokens.is_empty() { 0 } else { longest };
        let min = config.min_new_tokens.clone().or(min);
        let min = min.map(|min| Setting { value: min.value.min(possible), ..min });
        self.options.min_new_tokens = self.pick("min_new_tokens", options.min_new_tokens, &min, 0);
        self.options.max_new_tokens = longest;
        Ok(())
    }

    /// A decoder's `max_length` and `min_length`, where nothing states a number of new tokens.
    fn resolve_whole_lengths(&mut self, options: &GenerationOverrides, config: &GenerationConfig) {
        let has_max = options.max_new_tokens.is_some() || config.max_new_tokens.is_some();
        if let Some(most) = config.max_length.as_ref().filter(|_| !has_max) {
            self.note("max_length", most.value.to_string(), most.origin);
            self.options.max_length = Some(most.value);
        }
        let has_min = options.min_new_tokens.is_some() || config.min_new_tokens.is_some();
        // Without a token that ends a text there is nothing to hold back.
        let ends = !self.options.end_tokens.is_empty();
        if let Some(least) = config.min_length.as_ref().filter(|_| !has_min && ends) {
            self.note("min_length", least.value.to_string(), least.origin);
            self.options.min_length = least.value;
        }
    }
}

/// The field of a setting in the files of a directory.
fn field(name: &str) -> &str {
    match name {
        "beams" => "num_beams",
        "end_token" => "eos_token_id",
        "no_repeat" => "no_repeat_ngram_size",
        "patience" => "early_stopping",
        "stop" => "stop_strings",
        other => other,
    }
}

/// The id of a token by its name, its text, or as `id:N`.
///
/// # Errors
/// [`Error::Argument`], with the name of the `setting`, for an unknown token.
pub fn token_id(setting: &str, token: &str, tokenizer: Option<&dyn Tokenizer>) -> Result<u32> {
    let place = || format!("{setting} {token}");
    if let Some(number) = token.strip_prefix("id:") {
        return number
            .parse()
            .map_err(|_| Error::argument(place(), format!("{number:?} is not a number"), "write id:2 for token 2"));
    }
    let Some(tokenizer) = tokenizer else {
        return Err(Error::argument(place(), "the model directory has no tokenizer", "write id:2 for token 2"));
    };
    if let Some(id) = tokenizer.id(token) {
        return Ok(id);
    }
    // A plain text, whose token may be named with a mark for the space.
    match tokenizer.tokenize(&[token])?.concat()[..] {
        [id] if tokenizer.special_ids().unk != Some(id) => Ok(id),
        _ => {
            Err(Error::argument(place(), "unknown token", "give the name of one token, or id:N; `stop` takes any text"))
        }
    }
}

/// Ids with their names.
fn named(ids: &[u32], tokenizer: Option<&dyn Tokenizer>) -> String {
    const SHOWN: usize = 12;
    let name = |id: &u32| match tokenizer.and_then(|tokenizer| tokenizer.token(*id)) {
        Some(name) => format!("{id} {name:?}"),
        None => id.to_string(),
    };
    let mut names: Vec<String> = ids.iter().take(SHOWN).map(name).collect();
    if ids.len() > SHOWN {
        names.push(format!("and {} more", ids.len() - SHOWN));
    }
    format!("[{}]", names.join(", "))
}
