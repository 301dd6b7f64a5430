//! Records of two completions, a better and a worse one.
//!
//! Defines [`sample`]. The prompt is a column of its own, a text or messages, or what both completions begin with, as
//! in TRL's `extract_prompt`: the messages they share, or the characters up to the first difference, without a space
//! before it.

use super::keys::filled;
use super::messages::{Turn, is_list, messages};
use super::record::{RecordForm, RecordReading, chat, with_system};
use super::sample::Sample;
use super::texts::{pair, with_prompt};
use crate::Result;
use model_center_formats::io::record::Record;

/// A record as a pair of samples; the columns hold the better and the worse completion.
pub(super) fn sample(
    record: &Record<'_>,
    (chosen, rejected): (&str, &str),
    reading: &RecordReading<'_>,
) -> Result<Sample> {
    let prompt = reading.columns.prompt.as_deref().unwrap_or("prompt");
    if is_list(record, chosen) || is_list(record, rejected) {
        let (better, worse) = (messages(record, chosen)?, messages(record, rejected)?);
        // A text beside whole conversations repeats their first message.
        let (before, better, worse) = match is_list(record, prompt) {
            true => (messages(record, prompt)?, better, worse),
            false => without_start(better, worse),
        };
        let is_asked = is_list(record, prompt) || before.iter().any(|turn| turn.message.role == "user");
        let before = with_system(before, record, reading.columns)?;
        let side = |column: &str, completion: Vec<Turn>| {
            chat(record, column, [before.clone(), completion].concat(), before.len())
        };
        let sample = Sample::preference(side(chosen, better)?, side(rejected, worse)?);
        if !is_asked && record.has_value(prompt) {
            let reason = format!("{prompt:?} is a text, and the completions are messages that do not begin with it");
            let fix = "write the prompt as messages, or as the first message of both completions";
            return Err(record.error(prompt, reason, fix));
        }
        return Ok(sample);
    }
    let (better, worse) = (filled(record, chosen)?, filled(record, rejected)?);
    let form = RecordForm::Preference;
    if record.has_value(prompt) || reading.columns.prompt.is_some() {
        let side = |completion: &str| pair(record, (form, prompt), completion, reading);
        return Ok(Sample::preference(side(better)?, side(worse)?));
    }
    let shared = start(better, worse);
    let side = |text: &str| with_prompt(record, (form, ""), (&text[..shared], &text[shared..]), reading);
    Ok(Sample::preference(side(better)?, side(worse)?))
}

/// The messages that two conversations, the better one first, share at their beginning, and what follows in each. The
/// last message of each is its completion, whatever the other one has there.
fn without_start(mut before: Vec<Turn>, mut worse: Vec<Turn>) -> (Vec<Turn>, Vec<Turn>, Vec<Turn>) {
    let most = before.len().min(worse.len()).saturating_sub(1);
    let shared = before.iter().zip(&worse).take(most).take_while(|(a, b)| a == b).count();
    let better = before.split_off(shared);
    (before, better, worse.split_off(shared))
}

/// Bytes of what two texts share at their beginning.
fn start(better: &str, worse: &str) -> usize {
    let same = better.char_indices().zip(worse.chars()).take_while(|((_, a), b)| a == b);
    let end = same.last().map_or(0, |((at, character), _)| at + character.len_utf8());
    // A token includes the space before it.
    if better[..end].ends_with(' ') { end - 1 } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_share_what_precedes_their_first_difference_and_the_space_before_it() {
        for (better, worse, shared) in [
            ("The sky is blue.", "The sky is green.", "The sky is"),
            ("The sky is blue", "The sky is black", "The sky is bl"),
            ("été bleu", "été vert", "été"),
            ("a", "b", ""),
            ("same", "same", "same"),
        ] {
            assert_eq!(&better[..start(better, worse)], shared);
        }
    }

    #[test]
    fn conversations_share_messages_but_never_their_last() {
        let message = Turn::new;
        let (user, first, second) =
            (message("user", "Hi"), message("assistant", "Hello."), message("assistant", "No."));
        let (before, better, worse) = without_start(vec![user.clone(), first.clone()], vec![user.clone(), second]);
        assert_eq!((before.len(), better.len(), worse.len()), (1, 1, 1));
        assert_eq!(before[0], user);
        let (before, better, worse) = without_start(vec![user.clone(), first.clone()], vec![user, first.clone()]);
        assert_eq!((before.len(), &better, &worse), (1, &vec![first.clone()], &vec![first]));
    }
}
