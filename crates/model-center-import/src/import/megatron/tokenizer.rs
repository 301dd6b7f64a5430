//! `model.tokenizer` of a command of Megatron-LM.

use super::{Program, Translation};
use crate::import::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_recipe::key;

impl Translation<'_> {
    /// The directory or file of the tokenizer.
    pub(super) fn tokenizer(&self, sheet: &mut Sheet) -> Result<()> {
        let flags = self.flags;
        let kind = flags.text("--tokenizer-type")?.unwrap_or(match self.program {
            Program::Bert => "BertWordPieceTokenizer",
            _ => "GPT2BPETokenizer",
        });
        let vocabulary = self.first(&["--vocab-file", "--vocab-path"]);
        let model = self.first(&["--tokenizer-model", "--tokenizer-path"]);
        let has_merges = flags.is_given("--merge-file");
        match (vocabulary, model) {
            (Some(name), _) => {
                let path = flags.text(name)?.unwrap_or_default();
                // CPM-Pretrain's T5 names the directory.
                let is_file = path.rsplit('/').next().is_some_and(|last| last.contains('.'));
                let directory = match path.rsplit_once('/') {
                    Some((directory, _)) if is_file => directory,
                    None if is_file => ".",
                    _ => path.trim_end_matches('/'),
                };
                sheet.text(key!(model.tokenizer), directory, flags.shown(name));
                if has_merges {
                    sheet.note(NoteKind::Unused, flags.shown("--merge-file"), "it is looked for beside the vocabulary");
                }
            }
            (None, Some(name)) => {
                let path = flags.text(name)?.unwrap_or_default();
                sheet.text(key!(model.tokenizer), path, flags.shown(name));
            }
            (None, None) if kind.starts_with("GPT2BPE") => {
                sheet.text(key!(model.tokenizer), "gpt2", format!("{kind}: the directory of GPT-2's tokenizer"));
            }
            (None, None) => {
                let name = flags.text("--tokenizer-model-type")?.unwrap_or("bert-large-uncased");
                let given = match flags.is_given("--tokenizer-model-type") {
                    true => flags.shown("--tokenizer-model-type"),
                    false => printable(kind, 60),
                };
                let from = format!("{given}: the directory of its tokenizer");
                sheet.text(key!(model.tokenizer), name, from);
            }
        }
        match flags.maybe_whole("--vocab-size")? {
            // The list of 2019 trains such tokenizers by it; the others have a size of their own.
            Some(found) if self.is_2019 && !kind.starts_with("SentencePiece") => {
                sheet.note(NoteKind::Unused, found.from, format!("{} has its own size", printable(kind, 60)));
            }
            Some(found) => sheet.whole(key!(model.vocabulary), found.value, found.from),
            None => {}
        }
        if sheet.get(key!(model.vocabulary)).is_none() && (vocabulary.is_some() || model.is_some()) {
            let why = "the command does not tell the number of tokens: `bmtrain tokenizer info DIR` does";
            sheet.note(NoteKind::Differs, key!(model.vocabulary), why);
        }
        if kind.starts_with("CharacterLevel") {
            let reason = "a vocabulary of 256 characters has no file";
            let fix = "train one with `bmtrain tokenizer train`, and give its directory with --set model.tokenizer=DIR";
            return Err(Error::argument("--tokenizer-type", reason, fix));
        }
        if has_merges && vocabulary.is_none() {
            sheet.note(NoteKind::Unused, flags.shown("--merge-file"), "it is for --vocab-file");
        }
        if flags.is_given("--tokenizer-model-type") && !kind.starts_with("BertWordPiece") {
            sheet.note(NoteKind::Unused, flags.shown("--tokenizer-model-type"), "the tokenizer has no such type");
        }
        if flags.is_given("--tokenizer-type") {
            let why = "the files of the tokenizer tell its kind";
            sheet.note(NoteKind::Unused, flags.shown("--tokenizer-type"), why);
        }
        Ok(())
    }
}
