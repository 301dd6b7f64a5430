//! Values of fields that a family does not have, because they make it another architecture.
//!
//! Defines what [`Dialect`] refuses; called while a configuration is read or written.

use super::dialect::{Dialect, Fixed};
use super::{Fields, TextConfig};
use crate::{Error, Result};

/// Fields of ModelCenter that no family here has another value of.
const FIXED: &[(&str, f32)] = &[
    ("emb_init_mean", 0.0),
    ("att_init_mean", 0.0),
    ("ffn_init_mean", 0.0),
    ("pos_init_mean", 0.0),
    ("proj_init_mean", 0.0),
    ("norm_init_var", 1.0),
];

/// Fix for a model whose function is not available here. Changing its file would make another function of the same
/// weights, which no error proposes; `that` is what available models have.
pub(super) fn not_available(that: &str) -> String {
    format!("this model is not available here: use one that was trained with {that}")
}

impl Dialect {
    /// Errors for values of ModelCenter's fields that make it another architecture.
    pub(super) fn refuse_variants(&self, fields: &mut Fields) -> Result<()> {
        for (name, harmless) in FIXED {
            if fields.take_number(name)?.is_some_and(|value| value != *harmless) {
                return Err(self.unsupported(fields, name, &harmless.to_string()));
            }
        }
        // Masked positions are left out exactly; the value that stands for that in ModelCenter underflows to the same.
        fields.take_mask_value()?;
        for (name, fixed) in [("int8", Fixed::Flag(false))].iter().chain(self.fixed.iter().copied().flatten()) {
            let (differs, want) = match fixed {
                Fixed::Flag(want) => (fields.take_flag(name)?.is_some_and(|is| is != *want), want.to_string()),
                Fixed::Text(want) => (fields.take_text(name)?.is_some_and(|is| is != *want), want.to_string()),
            };
            if differs {
                return Err(self.unsupported(fields, name, &want));
            }
        }
        Ok(())
    }

    /// Refuse flags of related families that make layers which this one does not have, where a file raises them.
    pub fn refuse_raised(&self, fields: &Fields, names: &[&str]) -> Result<()> {
        for name in names {
            if fields.peek_flag(name)? == Some(true) {
                return Err(self.unsupported(fields, name, "false"));
            }
        }
        Ok(())
    }

    /// Take the dropout of the embeddings in a family that has none.
    pub fn take_no_embedding_dropout(&self, fields: &mut Fields) -> Result<()> {
        match fields.take_number("embedding_dropout_p")?.is_some_and(|rate| rate != 0.0) {
            true => Err(self.unsupported(fields, "embedding_dropout_p", "0")),
            false => Ok(()),
        }
    }

    /// Check that an encoder-decoder is not a decoder alone, and that its stacks do not share their blocks.
    pub fn refuse_lone_stacks(&self, fields: &Fields) -> Result<()> {
        self.expect_flags(fields, &[("is_decoder", false), ("tie_encoder_decoder", false)])
    }

    /// Check flags that have one value here and stay where they are, to be written back; a file need not have them.
    pub fn expect_flags(&self, fields: &Fields, flags: &[(&str, bool)]) -> Result<()> {
        for (name, want) in flags {
            if fields.peek_flag(name)?.is_some_and(|is| is != *want) {
                return Err(self.unsupported(fields, name, &want.to_string()));
            }
        }
        Ok(())
    }

    /// Check that no block is dropped as a whole; the fields stay where they are, to be written back.
    pub fn refuse_layer_dropout(&self, fields: &Fields, names: &[&str]) -> Result<()> {
        for name in names {
            if fields.peek_number(name)?.is_some_and(|rate| rate != 0.0) {
                return Err(self.unsupported(fields, name, "0"));
            }
        }
        Ok(())
    }

    /// Check that the norms have the only epsilon that a family's files can have, which do not state it.
    pub fn check_norm_eps(&self, text: &TextConfig, only: f32) -> Result<()> {
        if text.norm_eps == only {
            return Ok(());
        }
        let title = self.title;
        let reason =
            format!("the norms of {title} in transformers have an epsilon of {only}, and not {}", text.norm_eps);
        let fix = "this model cannot be written as a Hugging Face directory";
        Err(Error::model(format!("{title} configuration, field norm_eps"), reason, fix))
    }

    /// The error for a field that has one value in this family.
    pub fn unsupported(&self, fields: &Fields, name: &str, want: &str) -> Error {
        let reason = format!("{} is supported with {name} = {want} only", self.title);
        fields.error(name, &reason, &not_available(&format!("{name} = {want}")))
    }
}
