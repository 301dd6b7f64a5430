//! Full-width characters to half-width ones.
//!
//! Defines [`half_width`], which [`super::CpmTokenizer`] applies to words where asked for.

/// The half-width form of a character: letters, digits and marks of ASCII, some brackets and quotation marks; others as
/// they are.
///
/// Source: the `q2b` option of ModelCenter's tokenizers. There a full-width space ends as an unknown word; here it is a
/// space.
pub(super) fn half_width(c: char) -> char {
    match c {
        '\u{3000}' => ' ',
        // The full-width copy of ASCII but for its last mark, the tilde.
        '\u{ff01}'..='\u{ff5d}' => char::from_u32(c as u32 - 0xfee0).unwrap_or(c),
        '〜' => '~',
        '〔' => '[',
        '〕' => ']',
        '『' => '‘',
        '』' => '’',
        '。' => '｡',
        '、' => '､',
        '「' => '｢',
        '」' => '｣',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_width_copy_of_ascii_becomes_ascii() {
        let got: String = "ＡＢＣｘｙｚ０９！？（）［］｛｝＄～。中".chars().map(half_width).collect();
        assert_eq!(got, "ABCxyz09!?()[]{}$～｡中");
    }
}
