//! The command of a shell script as words: variables, quotes and continued lines, and nothing that a shell would run.
//!
//! Defines [`Command`]; called by the readers of command lines.

use crate::{Error, Result};
use model_center_base::file::printable;
use std::collections::BTreeMap;

/// The longest text that is read.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// The longest value of a variable once others are inserted: values that double each other end here.
const MAX_VALUES: usize = 1 << 16;

/// The program and its arguments, with the variables that the text sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Command {
    /// Launcher of the program, such as `torchrun` and its options.
    pub(super) launcher: Vec<String>,
    /// The Python file without its directory, or the module.
    pub(super) program: Option<String>,
    /// Everything after it.
    pub(super) arguments: Vec<String>,
    /// Variables by name. One that is not set stays in the words as `$NAME`.
    pub(super) variables: BTreeMap<String, String>,
}

/// A word, and whether quotes kept it whole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Word {
    text: String,
    is_quoted: bool,
}

impl Command {
    /// Reads the text of a script or of one command.
    ///
    /// # Errors
    /// [`Error::Argument`] for a text that is too long, a quote that does not end, or one without any command.
    pub(super) fn parse(text: &str) -> Result<Command> {
        if text.len() > MAX_BYTES {
            return Err(bad(format!("{} bytes, more than any command has", text.len())));
        }
        let mut found = Command::default();
        let mut candidates: Vec<Vec<String>> = Vec::new();
        for line in lines(text)? {
            let mut words = line.as_slice();
            if words.first().is_some_and(|word| ["export", "declare", "local", "env"].contains(&word.text.as_str())) {
                words = &words[1..];
            }
            let count = words.iter().take_while(|word| assignment(&word.text).is_some()).count();
            for word in &words[..count] {
                if let Some((name, adds, value)) = assignment(&word.text) {
                    let value = expand(value, &found.variables)?;
                    let held = found.variables.entry(name.to_owned()).or_default();
                    if !adds {
                        held.clear();
                    }
                    held.push_str(&value);
                    if held.len() > MAX_VALUES {
                        return Err(bad(format!("the variable {} has no end", printable(name, 60))));
                    }
                }
            }
            let mut command = Vec::new();
            for word in &words[count..] {
                let expanded = expand(&word.text, &found.variables)?;
                // Without quotes the shell splits the value of a variable at blanks.
                match word.is_quoted || !word.text.contains('$') {
                    true => command.push(expanded),
                    false => command.extend(lines(&expanded)?.into_iter().flatten().map(|word| word.text)),
                }
            }
            if !command.is_empty() {
                candidates.push(command);
            }
        }
        found.choose(candidates);
        Ok(found)
    }

    /// The command that starts a Python file with arguments, else the last one with flags.
    fn choose(&mut self, candidates: Vec<Vec<String>>) {
        let has_flags = |words: &Vec<String>| words.iter().any(|word| word.starts_with("--"));
        let starts = |words: &Vec<String>| program_at(words).is_some() && has_flags(words);
        let at = candidates.iter().rposition(starts).or_else(|| candidates.iter().rposition(has_flags));
        let Some(words) = at.and_then(|at| candidates.into_iter().nth(at)) else { return };
        match program_at(&words) {
            Some(at) => {
                self.launcher = words[..at].to_vec();
                self.program = words[at].rsplit('/').next().map(str::to_owned);
                self.arguments = words[at + 1..].to_vec();
            }
            None => {
                let first = words.iter().position(|word| word.starts_with("--")).unwrap_or(0);
                self.launcher = words[..first].to_vec();
                self.arguments = words[first..].to_vec();
            }
        }
    }
}

/// The place of a Python file among the words, else of a module after `-m` that is no launcher.
fn program_at(words: &[String]) -> Option<usize> {
    let is_file = |word: &String| word.ends_with(".py") && !word.starts_with('-');
    let is_launcher = |name: &str| name.starts_with("torch.") || name.starts_with("deepspeed");
    let is_module = |at: &usize| ["-m", "--module"].contains(&words[at - 1].as_str()) && !is_launcher(&words[*at]);
    words.iter().position(is_file).or_else(|| (1..words.len()).find(is_module))
}

fn bad(reason: String) -> Error {
    Error::argument("the command", reason, "give the command line of the training program, or the script with it")
}

/// `NAME=value` or `NAME+=value`.
fn assignment(word: &str) -> Option<(&str, bool, &str)> {
    let (name, value) = word.split_once('=')?;
    let (name, adds) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_one = !name.is_empty() && name.chars().all(is_name) && !name.starts_with(|c: char| c.is_ascii_digit());
    is_one.then_some((name, adds, value))
}

/// The words of each command: of a line, or of its parts between `;`, `&&`, `||` and `|`. What follows `>` or `|` is
/// left out, as are comments.
fn lines(text: &str) -> Result<Vec<Vec<Word>>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<Word>);
    let mut chars = text.chars().peekable();
    let mut skips = false;
    while let Some(c) = chars.next() {
        let open = |word: &mut Option<Word>, is_quoted: bool| {
            let word = word.get_or_insert_with(|| Word { text: String::new(), is_quoted: false });
            word.is_quoted |= is_quoted;
        };
        match c {
            '\\' if chars.peek() == Some(&'\n') => {
                chars.next();
                words.extend(word.take());
            }
            '\\' if chars.peek() == Some(&'\r') => {}
            '\\' => {
                open(&mut word, false);
                if let (Some(word), Some(next)) = (word.as_mut(), chars.next()) {
                    if next == '$' {
                        word.text.push('\\');
                    }
                    word.text.push(next);
                }
            }
            '\'' | '"' => {
                open(&mut word, true);
                loop {
                    match chars.next() {
                        None => return Err(bad(format!("a quote {c} does not end"))),
                        Some(next) if next == c => break,
                        Some('\\') if c == '"' && matches!(chars.peek(), Some('"' | '\\')) => {
                            if let (Some(word), Some(next)) = (word.as_mut(), chars.next()) {
                                word.text.push(next);
                            }
                        }
                        // A line that continues inside of quotes.
                        Some('\\') if c == '"' && chars.peek() == Some(&'\n') => {
                            chars.next();
                        }
                        // In single quotes a dollar sign is itself.
                        Some('$') if c == '\'' => word.iter_mut().for_each(|word| word.text.push_str("\\$")),
                        Some(next) => word.iter_mut().for_each(|word| word.text.push(next)),
                    }
                }
            }
            '#' if word.is_none() => while chars.next_if(|next| *next != '\n').is_some() {},
            '$' if chars.peek() == Some(&'(') => {
                // What a shell would run stays text.
                open(&mut word, true);
                let mut depth = 0usize;
                word.iter_mut().for_each(|word| word.text.push('$'));
                while let Some(next) = chars.next_if(|next| *next != '\n') {
                    word.iter_mut().for_each(|word| word.text.push(next));
                    depth = if next == '(' { depth + 1 } else { depth.saturating_sub(usize::from(next == ')')) };
                    if depth == 0 {
                        break;
                    }
                }
            }
            '\n' | ';' | '&' | '|' | '>' => {
                // `2>` and `&>`: a digit before it is not an argument.
                if c == '>' && word.as_ref().is_some_and(|word| word.text.len() == 1) {
                    word = None;
                }
                words.extend(word.take());
                if !skips && !words.is_empty() {
                    all.push(std::mem::take(&mut words));
                }
                words.clear();
                skips = c == '>' || (c == '|' && chars.peek() != Some(&'|')) || (skips && c == '&');
            }
            c if c.is_whitespace() => words.extend(word.take()),
            c => {
                open(&mut word, false);
                word.iter_mut().for_each(|word| word.text.push(c));
            }
        }
    }
    words.extend(word);
    if !skips && !words.is_empty() {
        all.push(words);
    }
    Ok(all)
}

/// Inserts `$NAME`, `${NAME}` and the default of `${NAME:-default}`; what is not set stays as `$NAME`.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> Result<String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        if let Some(before) = before.strip_suffix('\\') {
            out.push_str(before);
            out.push('$');
            rest = after;
            continue;
        }
        out.push_str(before);
        let (name, default, left) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((inner, left)) => {
                let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, text)| (name, Some(text)));
                (name, default, left)
            }
            None => {
                let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
                let end = if end == 0 { after.chars().next().map_or(0, char::len_utf8) } else { end };
                (&after[..end], None, &after[end..])
            }
        };
        match (variables.get(name), default) {
            (Some(value), _) => out.push_str(value),
            (None, Some(default)) => out.push_str(default),
            // The arguments of a script: there are none.
            (None, None) if ["@", "*"].contains(&name) => {}
            (None, None) => {
                out.push('$');
                out.push_str(name);
            }
        }
        if out.len() > MAX_VALUES {
            return Err(bad("its variables have no end".to_owned()));
        }
        rest = left;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<&str> {
        command.arguments.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_script_gives_its_command_with_variables_inserted() {
        let script = "#! /bin/bash\n# comment --not\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nNLAYERS=24\nOPTS=\"\"\n\
            OPTS+=\" --num-layers ${NLAYERS}\"\nOPTS+=\" --seed ${SEED:-7}\"\n\
            DISTRIBUTED=\"--nproc_per_node 8\"\npython -m torch.distributed.launch $DISTRIBUTED \\\n  \
            tools/pretrain_gpt2.py \\\n  ${OPTS} --split '9,1' --lr 1e-4 $@ 2>&1 | tee log --not\n";
        let command = Command::parse(script).unwrap();
        assert_eq!(command.program.as_deref(), Some("pretrain_gpt2.py"));
        assert_eq!(words(&command), ["--num-layers", "24", "--seed", "7", "--split", "9,1", "--lr", "1e-4"]);
        assert_eq!(command.launcher.last().map(String::as_str), Some("8"));
    }

    #[test]
    fn flags_alone_and_assignments_alone_are_commands() {
        let command = Command::parse("--lr=1 --save \"a b\"").unwrap();
        assert_eq!(words(&command), ["--lr=1", "--save", "a b"]);
        let command = Command::parse("mp_size=2 pp_size=4").unwrap();
        assert_eq!((command.variables["mp_size"].as_str(), command.arguments.len()), ("2", 0));
    }

    #[test]
    fn what_is_not_set_or_would_be_run_stays_text() {
        let command = Command::parse("python a.py --data-path $DATA --name run-$(date --x) --it $((3*2)) ").unwrap();
        assert_eq!(words(&command), ["--data-path", "$DATA", "--name", "run-$(date --x)", "--it", "$((3*2))"]);
        assert!(Command::parse("--lr 'x").is_err());
    }

    #[test]
    fn a_variable_that_doubles_ends() {
        let script = format!("A=xxxxxxxxxxxxxxxx\n{}", "A=$A$A\n".repeat(40));
        assert!(Command::parse(&script).is_err());
    }
}
