//! "Did you mean": the known name closest to a mistyped one.
//!
//! Used by the reader for unknown keys and for words that are not among the allowed values.

/// What other trainers call our keys, so that their users are led to ours. Left: their word, right: our path.
const FOREIGN_NAMES: &[(&str, &str)] = &[
    ("learning_rate", "train.lr"),
    ("learning_rate_scheduler", "train.schedule"),
    ("lr_scheduler_type", "train.schedule"),
    ("lr_decay_style", "train.schedule"),
    ("lr_scheduler", "train.schedule"),
    ("lr_decay_iters", "train.steps"),
    ("warmup_ratio", "train.warmup"),
    ("warmup_steps", "train.warmup"),
    ("warmup_iters", "train.warmup"),
    ("num_train_epochs", "train.epochs"),
    ("num_epochs", "train.epochs"),
    ("max_steps", "train.steps"),
    ("train_iters", "train.steps"),
    ("per_device_train_batch_size", "train.micro_batch_size"),
    ("per_device_eval_batch_size", "eval.batch_size"),
    ("gradient_accumulation_steps", "train.micro_batch_size"),
    ("global_batch_size", "train.batch_size"),
    ("max_grad_norm", "train.clip_norm"),
    ("clip_grad", "train.clip_norm"),
    ("gradient_clip", "train.clip_norm"),
    ("adam_epsilon", "train.eps"),
    ("epsilon", "train.eps"),
    ("adam_betas", "train.betas"),
    ("label_smoothing_factor", "train.label_smoothing"),
    ("gradient_checkpointing", "train.recompute"),
    ("checkpointing", "train.recompute"),
    ("early_stopping_patience", "train.early_stop.patience"),
    ("patience", "train.early_stop.patience"),
    ("max_seq_length", "data.max_length"),
    ("max_seq_len", "data.max_length"),
    ("max_encoder_length", "data.max_length"),
    ("group_by_length", "data.length_grouped"),
    ("dataset", "data.task"),
    ("dataset_name", "data.task"),
    ("train_file", "data.train"),
    ("validation_file", "data.eval"),
    ("dev", "data.eval"),
    ("text_column", "data.columns.text"),
    ("label_column", "data.columns.label"),
    ("model_name_or_path", "model.path"),
    ("model_config", "model.path"),
    ("load", "model.path"),
    ("precision", "model.dtype"),
    ("bf16", "model.dtype"),
    ("torch_dtype", "model.dtype"),
    ("hidden_dropout_prob", "model.hidden_dropout"),
    ("attention_probs_dropout_prob", "model.attention_dropout"),
    ("eval_steps", "eval.every"),
    ("evaluation_strategy", "eval.every"),
    ("metric_for_best_model", "eval.metric"),
    ("logging_steps", "log.every"),
    ("output_dir", "output.dir"),
    ("save", "save.which"),
];

/// The number of single-letter insertions, deletions, replacements and neighbour swaps between two words, letter case
/// ignored; `None` as soon as it exceeds `limit`.
pub(crate) fn edit_distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let a: Vec<char> = a.chars().flat_map(char::to_lowercase).collect();
    let b: Vec<char> = b.chars().flat_map(char::to_lowercase).collect();
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|&d| d <= limit)
}

/// The word of `known` closest to `word`, if it is close enough to be a slip: a third of its letters, at least one.
pub(crate) fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    known.into_iter().filter_map(|k| Some((edit_distance(word, k, limit)?, k))).min_by_key(|&(d, _)| d).map(|(_, k)| k)
}

/// The known path that an unknown `path` most likely stands for.
///
/// In this order: another trainer's name for it, a slip in the same table, the same word in another table, a slip in
/// the whole path.
pub(crate) fn path<'a>(path: &str, known: &[&'a str]) -> Option<&'a str> {
    let (table, word) = path.rsplit_once('.').unwrap_or(("", path));
    let lower = word.to_lowercase().replace('-', "_");
    let foreign = FOREIGN_NAMES.iter().find(|(theirs, _)| *theirs == lower).map(|(_, ours)| *ours);
    if let Some(found) = foreign.and_then(|ours| known.iter().copied().find(|k| *k == ours)) {
        return Some(found);
    }
    let siblings = known.iter().filter_map(|k| {
        let (t, w) = k.rsplit_once('.').unwrap_or(("", k));
        (t == table).then_some((w, *k))
    });
    let near = closest(&lower, siblings.clone().map(|(w, _)| w));
    if let Some(found) = near.and_then(|w| siblings.clone().find(|(s, _)| *s == w)) {
        return Some(found.1);
    }
    let same_word = known.iter().copied().find(|k| k.rsplit('.').next() == Some(lower.as_str()));
    same_word.or_else(|| closest(path, known.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        assert_eq!(edit_distance("epochs", "epochs", 3), Some(0));
        assert_eq!(edit_distance("epoch", "epochs", 3), Some(1));
        assert_eq!(edit_distance("ephocs", "epochs", 3), Some(2));
        assert_eq!(edit_distance("sede", "seed", 3), Some(1));
        assert_eq!(edit_distance("BoolQ", "boolq", 3), Some(0));
        assert_eq!(edit_distance("", "abc", 3), Some(3));
        assert_eq!(edit_distance("abc", "xyz", 2), None);
    }

    #[test]
    fn suggestions_prefer_foreign_names_then_the_same_table() {
        let known = ["train.lr", "train.steps", "train.seed", "eval.every", "log.every"];
        assert_eq!(path("train.learning_rate", &known), Some("train.lr"));
        assert_eq!(path("train.sede", &known), Some("train.seed"));
        assert_eq!(path("train.every", &known), Some("eval.every"));
        assert_eq!(path("trian.lr", &known), Some("train.lr"));
        assert_eq!(path("train.flux_capacitor", &known), None);
    }

    #[test]
    fn long_hostile_words_are_refused_without_work() {
        let word = "x".repeat(1 << 20);
        assert_eq!(closest(&word, ["lr"]), None);
    }
}
