//! Settings of a source that have no line of the recipe: each is noted with its reason, or refused.
//!
//! Defines [`Account`], which the readers of flags, of YAML and of DeepSpeed's file fill in.

use super::flags::Role;
use super::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_base::suggest::closest;

/// Why an unknown setting that `--leave` names has no line.
pub(super) const LEFT_UNKNOWN: &str = "unknown; left out as asked";

/// A setting of a source.
pub(super) struct Setting<'s> {
    /// Its name, as `--leave` has it.
    pub(super) name: &'s str,
    /// Its place in errors.
    pub(super) place: String,
    /// The setting as it was given.
    pub(super) shown: String,
}

/// A setting that cannot be kept.
struct Refusal {
    name: String,
    place: String,
    why: String,
    fix: String,
}

/// Account of a source's refused settings; `leave` names what is passed over.
pub(super) struct Account<'a> {
    leave: &'a [String],
    refused: Vec<Refusal>,
}

impl<'a> Account<'a> {
    pub(super) fn new(leave: &'a [String]) -> Self {
        Account { leave, refused: Vec::new() }
    }

    /// A setting whose role is known; one that is translated has a line already.
    pub(super) fn settle(&mut self, setting: Setting<'_>, role: Role, sheet: &mut Sheet) {
        match role {
            Role::Read => {}
            Role::Unused(why) => sheet.note(NoteKind::Unused, setting.shown, why),
            Role::Refused(why) if is_left(self.leave, setting.name) => {
                sheet.note(NoteKind::Differs, setting.shown, format!("left out as asked: {why}"));
            }
            Role::Refused(why) => self.refuse(setting, why, None),
        }
    }

    /// A setting that is not in the table of `known` names.
    pub(super) fn unknown<'n>(
        &mut self,
        setting: Setting<'_>,
        known: impl Iterator<Item = &'n str>,
        sheet: &mut Sheet,
    ) {
        match is_left(self.leave, setting.name) {
            true => sheet.note(NoteKind::Differs, setting.shown, LEFT_UNKNOWN),
            false => {
                let near = closest(setting.name, known);
                self.refuse(setting, "unknown key", near);
            }
        }
    }

    fn refuse(&mut self, setting: Setting<'_>, why: &str, near: Option<&str>) {
        let name = printable(setting.name.trim_start_matches('-'), 80);
        let fix = match near {
            Some(near) => format!("did you mean {near}? or pass it over with --leave {name}"),
            None => format!("pass it over with --leave {name}"),
        };
        let name = printable(setting.name, 80);
        self.refused.push(Refusal { name, place: setting.place, why: why.to_owned(), fix });
    }

    /// Whether all could be kept.
    ///
    /// # Errors
    /// [`Error::Argument`] with the first refused setting and the names of the others.
    pub(super) fn finish(self) -> Result<()> {
        let [first, others @ ..] = self.refused.as_slice() else { return Ok(()) };
        let names: Vec<&str> = others.iter().map(|refusal| refusal.name.as_str()).collect();
        let also = if names.is_empty() { String::new() } else { format!("; also refused: {}", names.join(", ")) };
        let reason = printable(&format!("{}{also}", first.why), 400);
        Err(Error::argument(first.place.clone(), reason, first.fix.clone()))
    }
}

/// Whether `--leave` names a setting; dashes before a flag may be left out.
pub(super) fn is_left(leave: &[String], name: &str) -> bool {
    let bare = |name: &str| name.trim_start_matches('-').replace('_', "-");
    leave.iter().any(|left| bare(left) == bare(name))
}
