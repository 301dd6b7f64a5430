//! How words are chosen: the command line, what the model's directory states, and what is taken where neither says
//! anything.
//!
//! Defines [`MethodOptions`] and [`Settings`], in which each setting has its origin. A setting without effect is
//! refused.

use clap::{Args, ValueEnum};
use model_center::generate::{
    BeamOptions, GenerateOptions, GenerationDefaults, Method, Patience, Penalty, Sampling, Stated,
};
use model_center::tokenizer::Tokenizer;
use model_center::{Error, Result};
use std::fmt;

/// The most words of a text where nobody says otherwise.
const MAX_NEW_TOKENS: usize = 128;
const COMMAND_LINE: &str = "the command line";
const NOBODY: &str = "default";

/// How words are chosen, on the command line.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "How words are chosen")]
pub struct MethodOptions {
    /// The most tokens of a text; 128 where neither this nor the model says it.
    #[arg(long, value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// The fewest tokens in front of the one that ends a text.
    #[arg(long, value_name = "N")]
    pub min_new_tokens: Option<usize>,
    /// The likeliest token each time.
    #[arg(long, conflicts_with_all = ["sample", "beams"])]
    pub greedy: bool,
    /// Tokens at random by their probability; so do the six settings that follow.
    #[arg(long, conflicts_with = "beams")]
    pub sample: bool,
    /// Below 1 likely tokens become likelier, above 1 less so.
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Draw among so many of the likeliest tokens; 0 for all.
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Draw among the likeliest tokens that together have this probability.
    #[arg(long, value_name = "SHARE")]
    pub top_p: Option<f32>,
    /// Draw among tokens that are at least this share as probable as the likeliest.
    #[arg(long, value_name = "SHARE")]
    pub min_p: Option<f32>,
    /// What the draws come from: equal seeds give equal texts. 0 by default.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Texts of each prompt.
    #[arg(long, value_name = "N")]
    pub texts: Option<usize>,
    /// Search for the likeliest text, with so many side by side.
    #[arg(long, value_name = "N")]
    pub beams: Option<usize>,
    /// Texts are compared by their score divided by their length to this power: above 0 favours long ones.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub length_penalty: Option<f32>,
    /// So many of the texts that a search finds.
    #[arg(long, value_name = "N")]
    pub best: Option<usize>,
    /// When a search ends early.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub patience: Option<PatienceName>,
    /// Above 1 makes tokens less likely that stand there already.
    #[arg(long, value_name = "NUMBER")]
    pub repetition_penalty: Option<f32>,
    /// Only the last so many tokens count for that.
    #[arg(long, value_name = "N")]
    pub repetition_window: Option<usize>,
    /// Whether the prompt counts for that; by default it does.
    #[arg(long, value_name = "true|false")]
    pub penalise_prompt: Option<bool>,
    /// So many tokens in a row do not come again; 0 for no such rule.
    #[arg(long, value_name = "N")]
    pub no_repeat: Option<usize>,
    /// A text that ends a text, which goes up to it; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// A token that ends a text, by its name or as id:N, in the place of the model's own; may be repeated.
    #[arg(long, value_name = "TOKEN")]
    pub end_token: Vec<String>,
    /// A token that never comes, by its name or as id:N; may be repeated.
    #[arg(long, value_name = "TOKEN")]
    pub forbid: Vec<String>,
    /// What the decoder behind an encoder begins with, such as <extra_id_0>.
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// Read prompts from both sides, as CPM-1 can.
    #[arg(long)]
    pub context: bool,
}

/// When a search ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PatienceName {
    /// When what goes on would not score better now.
    Likely,
    /// As soon as enough texts are finished.
    First,
    /// When nothing could ever score better.
    Never,
}

impl PatienceName {
    fn patience(self) -> Patience {
        match self {
            PatienceName::Likely => Patience::Likely,
            PatienceName::First => Patience::First,
            PatienceName::Never => Patience::Never,
        }
    }
}

impl MethodOptions {
    /// The settings of draws, and whether each was given.
    fn draws(&self) -> [(&'static str, bool); 6] {
        [
            ("--temperature", self.temperature.is_some()),
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--min-p", self.min_p.is_some()),
            ("--seed", self.seed.is_some()),
            ("--texts", self.texts.is_some()),
        ]
    }

    /// Those of a search.
    fn searches(&self) -> [(&'static str, bool); 3] {
        [
            ("--length-penalty", self.length_penalty.is_some()),
            ("--best", self.best.is_some()),
            ("--patience", self.patience.is_some()),
        ]
    }
}

/// What settings go by beside the command line.
pub struct Surroundings<'a> {
    /// What the model's directory states.
    pub defaults: &'a GenerationDefaults,
    /// The model's tokenizer, if it has one.
    pub tokenizer: Option<&'a dyn Tokenizer>,
    /// Whether it has an encoder and a decoder.
    pub generates_targets: bool,
    /// What the decoder behind an encoder begins with.
    pub prefix: Vec<u32>,
}

/// All settings, each with its origin.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What the library goes by.
    pub generate: GenerateOptions,
    /// Texts of each prompt.
    pub texts: usize,
    /// What the directory states and nobody follows.
    pub left_aside: Vec<String>,
    lines: Vec<(&'static str, String, &'static str)>,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|(name, value, _)| name.len() + value.len() + 3).max().unwrap_or(0);
        let lines = self.lines.iter().map(|(name, value, origin)| {
            let setting = format!("{name} = {value}");
            format!("{setting:width$}  # {origin}")
        });
        let aside = self.left_aside.iter().map(|name| format!("# not followed: {name}"));
        f.write_str(&lines.chain(aside).collect::<Vec<_>>().join("\n"))
    }
}

/// Which way of choosing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Greedy,
    Sampling,
    Beams,
}

impl Settings {
    /// Bring them together.
    ///
    /// # Errors
    /// A setting without effect; a token that the tokenizer does not have.
    pub fn resolve(options: &MethodOptions, around: &Surroundings<'_>) -> Result<Self> {
        let mut settings = Settings { left_aside: around.defaults.left_aside.clone(), texts: 1, ..Settings::default() };
        settings.generate.method = settings.method(options, around.defaults)?;
        settings.repetition(options, around.defaults)?;
        settings.words(options, around)?;
        settings.lengths(options, around)?;
        settings.generate.is_context = options.context;
        if options.context {
            settings.note("context", "true".into(), COMMAND_LINE);
        }
        Ok(settings)
    }

    /// What the library refuses, by the names that settings have on the command line or in the model's directory,
    /// whoever said them.
    pub fn blame(&self, error: Error) -> Error {
        let Error::Argument { place, reason, fix } = error else { return error };
        let name = match place.as_str() {
            "ends" => "end_token",
            "forbidden" => "forbid",
            other => other,
        };
        match self.lines.iter().find(|(line, ..)| *line == name).map(|(_, _, origin)| *origin) {
            // The file's own were looked at as it was read, and --forbid adds to them.
            Some(file) if file.ends_with(".json") && name != "forbid" => {
                let field = field(name);
                Error::model(format!("{file}, field {field}"), reason, format!("{fix}; --{} counts more", flag(name)))
            }
            _ => {
                Error::argument(format!("--{}", flag(name)), reason, fix.replace("max_new_tokens", "--max-new-tokens"))
            }
        }
    }

    fn note(&mut self, name: &'static str, value: String, origin: &'static str) {
        self.lines.push((name, value, origin));
    }

    /// The first of what was asked for, what the directory states, and a default.
    fn pick<T: Clone + fmt::Debug>(
        &mut self,
        name: &'static str,
        asked: Option<T>,
        stated: &Option<Stated<T>>,
        default: T,
    ) -> T {
        let (value, origin) = match (asked, stated) {
            (Some(value), _) => (value, COMMAND_LINE),
            (None, Some(stated)) => (stated.value.clone(), stated.file),
            (None, None) => (default, NOBODY),
        };
        self.note(name, format!("{value:?}"), origin);
        value
    }

    fn method(&mut self, options: &MethodOptions, defaults: &GenerationDefaults) -> Result<Method> {
        let (kind, origin) = kind(options, defaults)?;
        self.note("method", format!("{kind:?}").to_lowercase(), origin);
        Ok(match kind {
            Kind::Greedy => Method::Greedy,
            Kind::Sampling => {
                if let Some(beams) = defaults.num_beams.as_ref().filter(|_| options.beams.is_none()) {
                    self.left_aside.push(format!("num_beams = {}, as words are drawn", beams.value));
                }
                let sampling = Sampling {
                    temperature: self.pick("temperature", options.temperature, &defaults.temperature, 1.0),
                    top_k: Some(self.pick("top_k", options.top_k, &defaults.top_k, 0)).filter(|k| *k > 0),
                    top_p: self.pick("top_p", options.top_p, &defaults.top_p, 1.0),
                    min_p: self.pick("min_p", options.min_p, &defaults.min_p, 0.0),
                };
                let seed = self.pick("seed", options.seed, &None, 0);
                self.texts = self.pick("texts", options.texts, &None, 1);
                Method::Sampling { sampling, seed, texts: self.texts }
            }
            Kind::Beams => {
                let patience = options.patience.map(PatienceName::patience);
                let beams = BeamOptions {
                    beams: self.pick("beams", options.beams, &defaults.num_beams, 1),
                    length_penalty: self.pick("length_penalty", options.length_penalty, &defaults.length_penalty, 1.0),
                    patience: self.pick("patience", patience, &defaults.patience, Patience::default()),
                    best: self.pick("best", options.best, &None, 1),
                    renormalizes: defaults.renormalizes.is_some(),
                };
                if let Some(renormalizes) = &defaults.renormalizes {
                    self.note("renormalizes", "true".into(), renormalizes.file);
                }
                self.texts = beams.best;
                Method::Beams(beams)
            }
        })
    }

    fn repetition(&mut self, options: &MethodOptions, defaults: &GenerationDefaults) -> Result<()> {
        let factor = self.pick("repetition_penalty", options.repetition_penalty, &defaults.repetition_penalty, 1.0);
        let effects = [
            ("--repetition-window", options.repetition_window.is_some()),
            ("--penalise-prompt", options.penalise_prompt.is_some()),
        ];
        if let Some((name, _)) = effects.iter().find(|(_, given)| *given && factor == 1.0) {
            let reason = "it has no effect: nothing is made less likely";
            return Err(Error::argument(*name, reason, "add --repetition-penalty, or leave it out"));
        }
        self.generate.penalty = Penalty { factor, window: options.repetition_window };
        if factor != 1.0 {
            self.generate.penalises_prompt = self.pick("penalise_prompt", options.penalise_prompt, &None, true);
            if let Some(window) = options.repetition_window {
                self.note("repetition_window", window.to_string(), COMMAND_LINE);
            }
        }
        self.generate.no_repeat =
            Some(self.pick("no_repeat", options.no_repeat, &defaults.no_repeat, 0)).filter(|n| *n > 0);
        Ok(())
    }

    /// Words and texts that end a text, that never come, that it begins with.
    fn words(&mut self, options: &MethodOptions, around: &Surroundings<'_>) -> Result<()> {
        let Surroundings { defaults, tokenizer, .. } = around;
        let ids = |name: &str, tokens: &[String]| -> Result<Vec<u32>> {
            tokens.iter().map(|token| token_id(name, token, *tokenizer)).collect()
        };
        let (ends, origin) = match (options.end_token.is_empty(), &defaults.ends) {
            (false, _) => (ids("--end-token", &options.end_token)?, COMMAND_LINE),
            (true, Some(ends)) => (ends.value.clone(), ends.file),
            (true, None) => (tokenizer.and_then(|t| t.special_ids().eos).into_iter().collect(), "the tokenizer"),
        };
        self.note("end_token", named(&ends, *tokenizer), origin);
        let (stops, origin) = match (options.stop.is_empty(), &defaults.stops) {
            (true, Some(stops)) => (stops.value.clone(), stops.file),
            (false, _) => (options.stop.clone(), COMMAND_LINE),
            (true, None) => (Vec::new(), NOBODY),
        };
        self.note("stop", format!("{stops:?}"), origin);
        let mut forbidden = ids("--forbid", &options.forbid)?;
        let origin = match &defaults.forbidden {
            Some(stated) => {
                forbidden.extend(&stated.value);
                stated.file
            }
            None if options.forbid.is_empty() => NOBODY,
            None => COMMAND_LINE,
        };
        self.note("forbid", named(&forbidden, *tokenizer), origin);
        (self.generate.ends, self.generate.stops, self.generate.forbidden) = (ends, stops, forbidden);
        if let Some(last) = &defaults.forced_last {
            self.generate.forced_last = Some(last.value);
            self.note("forced_last", named(&[last.value], *tokenizer), last.file);
        }
        if !around.generates_targets {
            return Ok(());
        }
        if let Some(first) = &defaults.forced_first {
            self.generate.forced_first = Some(first.value);
            self.note("forced_first", named(&[first.value], *tokenizer), first.file);
        }
        if let Some(first) = &defaults.first_word {
            self.generate.first_word = Some(first.value);
            self.note("first_token", named(&[first.value], *tokenizer), first.file);
        }
        self.generate.prefix.clone_from(&around.prefix);
        if options.prefix.is_some() {
            self.note("prefix", named(&around.prefix, *tokenizer), COMMAND_LINE);
        }
        Ok(())
    }

    /// Lengths. Those of rows count what stands in front, which is the same for all prompts where there are two stacks.
    ///
    /// Errors: what the decoder begins with is as long as rows may be.
    fn lengths(&mut self, options: &MethodOptions, around: &Surroundings<'_>) -> Result<()> {
        let defaults = around.defaults;
        let limit = defaults.max_length.as_ref().filter(|_| defaults.max_new_tokens.is_none());
        if let (true, None, Some(limit)) = (around.generates_targets, options.max_new_tokens, limit)
            && !around.prefix.is_empty()
            && limit.value <= 1 + around.prefix.len()
        {
            let (tokens, file, most) = (around.prefix.len(), limit.file, limit.value);
            let reason = format!("it has {tokens} tokens, and {file} has max_length = {most}");
            return Err(Error::argument("--prefix", reason, "shorten it, or give --max-new-tokens"));
        }
        let mut behind = |stated: &Option<Stated<usize>>, name: &str, is_needed: bool| {
            let stated = stated.clone().filter(|_| is_needed)?;
            if around.generates_targets {
                return Some(Stated { value: stated.value.saturating_sub(1 + around.prefix.len()), ..stated });
            }
            self.left_aside.push(format!("{name} = {}, which counts the prompt", stated.value));
            None
        };
        let max = behind(&defaults.max_length, "max_length", defaults.max_new_tokens.is_none());
        let min = behind(&defaults.min_length, "min_length", defaults.min_new_tokens.is_none());
        let max = defaults.max_new_tokens.clone().or(max.filter(|max| max.value > 0));
        let longest = self.pick("max_new_tokens", options.max_new_tokens, &max, MAX_NEW_TOKENS);
        // What a directory states as the least may be more than somebody asks for at most.
        let possible = if self.generate.ends.is_empty() { 0 } else { longest };
        let min = defaults.min_new_tokens.clone().or(min);
        let min = min.map(|min| Stated { value: min.value.min(possible), ..min });
        self.generate.min_new_tokens = self.pick("min_new_tokens", options.min_new_tokens, &min, 0);
        self.generate.max_new_tokens = longest;
        Ok(())
    }
}

/// How a setting is named in the files of a directory.
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

/// How a setting is spelled on the command line.
fn flag(name: &str) -> String {
    name.replace('_', "-")
}

/// The way of choosing, and who decided it.
fn kind(options: &MethodOptions, defaults: &GenerationDefaults) -> Result<(Kind, &'static str)> {
    let given = |settings: &[(&'static str, bool)]| settings.iter().find(|(_, given)| *given).map(|(name, _)| *name);
    let (draw, search) = (given(&options.draws()), given(&options.searches()));
    let draws = defaults.do_sample.as_ref().filter(|sample| sample.value);
    let (kind, origin) = match (&defaults.num_beams, draws) {
        _ if options.greedy => (Kind::Greedy, COMMAND_LINE),
        _ if options.beams.is_some() => (Kind::Beams, COMMAND_LINE),
        _ if options.sample || draw.is_some() => (Kind::Sampling, COMMAND_LINE),
        (_, Some(draws)) => (Kind::Sampling, draws.file),
        (Some(beams), None) => (Kind::Beams, beams.file),
        (None, None) => (Kind::Greedy, NOBODY),
    };
    let refuse = |name: &str, reason: &str, fix: &str| Err(Error::argument(name, reason, fix));
    match (kind, draw, search) {
        (Kind::Greedy | Kind::Beams, Some(name), _) => {
            refuse(name, "it has no effect: no word is drawn", "leave it out, or leave --greedy and --beams out")
        }
        (Kind::Greedy | Kind::Sampling, _, Some(name)) => {
            refuse(name, "it has no effect: nothing is searched for", "add --beams, or leave it out")
        }
        _ => Ok((kind, origin)),
    }
}

/// The id of a token by its name, or of `id:N`.
fn token_id(name: &str, token: &str, tokenizer: Option<&dyn Tokenizer>) -> Result<u32> {
    let place = || format!("{name} {token}");
    if let Some(number) = token.strip_prefix("id:") {
        return number.parse().map_err(|_| {
            Error::argument(place(), format!("{number:?} is no number of a token"), "write id:2 for token 2")
        });
    }
    let Some(tokenizer) = tokenizer else {
        return Err(Error::argument(
            place(),
            "the model's directory has no tokenizer that knows names",
            "write id:2 for token 2",
        ));
    };
    if let Some(id) = tokenizer.id(token) {
        return Ok(id);
    }
    // A word as it stands in texts, whose name has a mark for its space.
    match tokenizer.tokenize(&[token])?.concat()[..] {
        [id] if tokenizer.special_ids().unk != Some(id) => Ok(id),
        _ => Err(Error::argument(
            place(),
            "this is no token of the model",
            "give the name of one token, or id:N; --stop takes any text",
        )),
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
