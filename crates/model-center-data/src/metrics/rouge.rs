//! ROUGE-L: the longest common subsequence of a text and a reference.
//!
//! Defines [`rouge_l`] and [`RougeL`]. Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004,
//! with the words of the package rouge-score without stemming: runs of ASCII letters and digits of the lower-case text.

/// Precision, recall and F1 of a text against a reference.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RougeL {
    /// Length of the subsequence over the words of the text.
    pub precision: f64,
    /// The same over the words of the reference.
    pub recall: f64,
    /// Their harmonic mean.
    pub f1: f64,
}

/// ROUGE-L of a text against the reference that gives it the largest F1; all 0 without references or words.
///
/// Time grows with the product of the numbers of words, memory with the smaller one.
pub fn rouge_l(text: &str, references: &[impl AsRef<str>]) -> RougeL {
    let text = words(text);
    let scores = references.iter().map(|reference| against(&text, &words(reference.as_ref())));
    scores.fold(RougeL::default(), |best, score| if score.f1 > best.f1 { score } else { best })
}

fn words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let is_word = |letter: char| letter.is_ascii_alphanumeric();
    lower.split(|letter| !is_word(letter)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn against(text: &[String], reference: &[String]) -> RougeL {
    let common = longest_common(text, reference) as f64;
    if common == 0.0 {
        return RougeL::default();
    }
    let (precision, recall) = (common / text.len() as f64, common / reference.len() as f64);
    RougeL { precision, recall, f1: 2.0 * precision * recall / (precision + recall) }
}

/// Length of the longest common subsequence.
fn longest_common(a: &[String], b: &[String]) -> usize {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    // The lengths for each beginning of the shorter side.
    let mut lengths = vec![0; short.len() + 1];
    for word in long {
        let mut diagonal = 0;
        for (at, other) in short.iter().enumerate() {
            let above = lengths[at + 1];
            lengths[at + 1] = if word == other { diagonal + 1 } else { above.max(lengths[at]) };
            diagonal = above;
        }
    }
    lengths[short.len()]
}

#[cfg(test)]
mod tests {
    use super::rouge_l;

    #[test]
    fn the_longest_common_subsequence_need_not_be_contiguous() {
        let score = rouge_l("The police killed the gunman.", &["police kill the gunman"]);
        assert_eq!((score.precision, score.recall), (3.0 / 5.0, 3.0 / 4.0));
        assert!((score.f1 - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn the_best_reference_counts() {
        assert_eq!(rouge_l("a b c", &["x", "A, b; c!"]).f1, 1.0);
        assert_eq!(rouge_l("", &["a"]).f1, 0.0);
        assert_eq!(rouge_l("a", &[] as &[&str]).f1, 0.0);
    }
}
