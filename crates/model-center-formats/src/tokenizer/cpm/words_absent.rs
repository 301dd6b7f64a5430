//! Chinese words in a build without the feature `cpm`: an error that names it.

use crate::{Error, Result};

/// Refuses a vocabulary, before any text is cut.
pub(super) fn check(place: &str) -> Result<()> {
    let reason = "this program was built without the feature cpm, and cuts no Chinese texts into words";
    Err(Error::model(place, reason, "build it with the feature, a default of the programs"))
}

/// Never called: no tokenizer is opened.
pub(super) fn words<'a>(text: &'a str, mut each: impl FnMut(&'a str)) {
    each(text);
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::{CpmKind, CpmTokenizer};

    #[test]
    fn a_build_without_the_feature_names_it() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../model-center/tests/golden/cpm_tokenizer/cpm1");
        let error = CpmTokenizer::with_kind(golden, CpmKind::Cpm1).unwrap_err().to_string();
        assert!(error.contains("vocab.txt") && error.contains("without the feature cpm"), "{error}");
    }
}
