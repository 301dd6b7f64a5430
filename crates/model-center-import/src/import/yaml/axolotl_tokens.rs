//! Special tokens that a configuration of axolotl names.
//!
//! Defines [`special_tokens`]: names of tokens that the vocabulary has are taken, and tokens are never added to it.

use super::axolotl_keys::TOKENS;
use super::settings::Settings;
use crate::Result;
use crate::import::ImportOptions;
use crate::import::account::is_left;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_base::file::printable;
use model_center_formats::Pretrained;
use model_center_formats::tokenizer::{AutoTokenizer, Tokenizer};
use std::sync::Arc;

const KEY: &str = "special_tokens";

/// Takes the special tokens that the tokenizer has already, as far as the model is on this machine.
///
/// # Errors
/// A token that the vocabulary lacks; another one for a role that decides what is learned.
pub(super) fn special_tokens(s: &Settings<'_>, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    let Some(value) = s.get(KEY) else { return Ok(()) };
    if is_left(&options.leave, KEY) {
        sheet.note(NoteKind::Differs, s.shown(KEY), "left out by --leave");
        return Ok(());
    }
    let Some(tokens) = value.as_object() else { return Err(s.wrong(KEY, "names with their tokens")) };
    let Some(tokenizer) = tokenizer(s, options)? else {
        let why = "the model is not on this machine: its vocabulary has to have these tokens, and the tokenizer's own \
                   count for the ends of texts";
        sheet.note(NoteKind::Differs, s.shown(KEY), why);
        return Ok(());
    };
    for (role, token) in tokens.iter().filter(|(_, token)| !token.is_null()) {
        let Some(token) = token.as_str() else { return Err(s.wrong(KEY, "names with their tokens")) };
        let shown = format!("{}: {}", printable(role, 40), printable(token, 60));
        let Some(id) = tokenizer.id(token) else {
            let reason = format!("{shown}: the vocabulary does not have it; {TOKENS}");
            return s.refuse(KEY, reason, "name one of its tokens");
        };
        let own = match role.as_str() {
            "bos_token" => tokenizer.special_ids().bos,
            "eos_token" => tokenizer.special_ids().eos,
            // Padding is masked, and the others are in no text that is made here.
            _ => Some(id),
        };
        if own != Some(id) {
            let reason = format!("{shown}: the tokenizer has another one");
            let fix = format!("set it in tokenizer_config.json of the model, then pass it over with --leave {KEY}");
            return s.refuse(KEY, reason, &fix);
        }
    }
    sheet.note(NoteKind::Unused, s.shown(KEY), "the vocabulary has them, and padding is masked whatever its token");
    Ok(())
}

/// The tokenizer of the configuration; `None` where it is not on this machine.
fn tokenizer(s: &Settings<'_>, options: &ImportOptions) -> Result<Option<Arc<dyn Tokenizer>>> {
    let name = match s.text("tokenizer_config")? {
        Some(name) => Some(name),
        None => s.text("base_model")?,
    };
    let revision = s.text("revision_of_model")?;
    let found = name.and_then(|name| Pretrained::resolve(name, revision, &options.places).ok());
    Ok(found.and_then(|directory| AutoTokenizer::open(&directory).ok()))
}
