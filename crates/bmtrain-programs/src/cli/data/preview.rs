//! `bmtrain data preview`: samples as a model reads them, and which of their tokens are learned.

use super::display::{Styles, bar, visible};
use super::{Part, PreviewOptions};
use crate::cli::{places::model_places, terminal};
use crate::{Error, Result};
use model_center_base::batch::{IGNORED, Label, LabelSpace, Position};
use model_center_base::error::ExitStatus;
use model_center_data::{Dataset, Loader, LoaderOptions, Order};
use model_center_formats::tokenizer::Tokenizer;
use model_center_models::Registry;
use model_center_recipe::ModelStart;
use model_center_train::{note_reading, prepare};
use serde_json::{Value, json};
use std::sync::Arc;

/// Bars of the histogram of lengths.
const BARS: usize = 12;

pub(super) fn run(options: &PreviewOptions, registry: Registry<'static>) -> Result<ExitStatus> {
    let resolved = options.settings.resolve(&[], registry)?;
    note_reading(&resolved);
    let tokenizer = ModelStart::of(&resolved, &model_places())?.open_tokenizer()?;
    let setup = prepare(&resolved, registry, &model_places())?;
    let part = match options.part {
        Part::Train => Some(&setup.train),
        Part::Eval => setup.eval.first().map(|set| &set.data),
    };
    let Some(part) = part else {
        return Err(Error::argument("--part", "the recipe has no evaluation data", "leave it out, or set data.eval"));
    };
    let Some(records) = part.records() else {
        let reason = format!("the task is {}, whose samples are not records", resolved.data.source.task().name());
        return Err(Error::recipe(resolved.place("data.task"), reason, "use `bmtrain corpus samples`"));
    };
    let order = match records.mixture() {
        Some(mixture) => mixture.epoch(resolved.train.seed, 0),
        None => (0..records.len() as u32).collect(),
    };
    let styles = Styles::of_stdout();
    for sample in order.into_iter().take(options.samples) {
        for tokens in Tokens::of(records, sample as usize)? {
            let shown = match options.json {
                true => tokens.record(&*tokenizer)?.to_string(),
                false => tokens.describe(&*tokenizer, &styles)?,
            };
            terminal::print(&shown)?;
        }
    }
    let lengths = Lengths::of(records);
    terminal::print(&if options.json { lengths.record().to_string() } else { lengths.describe() })?;
    Ok(ExitStatus::Done)
}

/// A sample, or one of the sequences of a pair, with the label of each token.
struct Tokens {
    sample: usize,
    /// Completion of a pair that it is.
    side: Option<&'static str>,
    ids: Vec<i64>,
    /// Target of each position of the row, or of the target; [`IGNORED`] for none.
    labels: Vec<i64>,
    /// Whether labels are of a target, which a decoder writes.
    has_target: bool,
    /// The label of a sample whose tokens have none.
    label: Option<Label>,
}

impl Tokens {
    /// As a batch of this sample alone has them, for each sequence of a pair.
    fn of(records: &Arc<Dataset>, sample: usize) -> Result<Vec<Tokens>> {
        let options = LoaderOptions { order: Order::Sequential, drop_last: false, ..LoaderOptions::training(1, 0) };
        let mut loader = Loader::new(Arc::clone(records), options)?;
        let batch = loader.batch(Position { epoch: 0, index: sample as u64 })?;
        let are_pairs = records.labels().are_compared();
        let names = match records.label(sample).filter(|_| *records.labels() == LabelSpace::Unpaired) {
            Some(Label::Class(1)) => ["good", "mismatch"],
            Some(_) => ["bad", "mismatch"],
            None => ["chosen", "rejected"],
        };
        let are_tokens = are_pairs || records.labels().loss_is_by_token();
        let labels = batch.labels.as_ref().and_then(|labels| labels.ids()).filter(|_| are_tokens).unwrap_or_default();
        if are_pairs {
            let rows = batch.input_ids.chunks(batch.length.max(1)).zip(labels.chunks(batch.length.max(1)));
            let lengths = records.rows(sample).into_iter().flatten().map(|row| row.input_ids.len());
            let sides = rows.zip(lengths).zip(names).map(|(((ids, labels), length), side)| Tokens {
                sample,
                side: Some(side),
                // Without the padding of the shorter one.
                ids: ids.iter().take(length).copied().collect(),
                labels: labels.iter().take(length).copied().collect(),
                has_target: false,
                label: None,
            });
            return Ok(sides.collect());
        }
        Ok(vec![Tokens {
            sample,
            side: None,
            has_target: *records.labels() == LabelSpace::Target,
            labels: labels.to_vec(),
            label: records.label(sample).filter(|_| !are_tokens),
            ids: batch.input_ids,
        }])
    }

    fn learned(&self) -> usize {
        // The first token of a row is never predicted; a target's is.
        self.labels.iter().skip(usize::from(!self.has_target)).filter(|label| **label != IGNORED).count()
    }

    fn record(&self, tokenizer: &dyn Tokenizer) -> Result<Value> {
        let mut fields = json!({"sample": self.sample, "input_ids": self.ids, "text": decode(tokenizer, &self.ids)?});
        if let Some(side) = self.side {
            fields["side"] = side.into();
        }
        match (&self.label, self.has_target) {
            (Some(label), _) => fields["label"] = format!("{label:?}").into(),
            (None, true) => fields["target_ids"] = json!(self.labels),
            (None, false) => fields["labels"] = json!(self.labels),
        }
        Ok(fields)
    }

    fn describe(&self, tokenizer: &dyn Tokenizer, styles: &Styles) -> Result<String> {
        let side = self.side.map(|side| format!(", {side}")).unwrap_or_default();
        let head = format!("sample {}{side}: {} tokens, {} learned", self.sample, self.ids.len(), self.learned());
        let is_learned = |at: usize| !self.has_target && self.labels.get(at).is_some_and(|label| *label != IGNORED);
        let row = Row { styles, tokenizer };
        let mut lines = vec![head, row.ids("ids", &self.ids, &is_learned), row.text("text", &self.ids, &is_learned)?];
        if self.has_target {
            let target: Vec<i64> = self.labels.iter().copied().filter(|label| *label != IGNORED).collect();
            lines.push(row.ids("target", &target, &|_| true));
            lines.push(row.text("text", &target, &|_| true)?);
        }
        lines.extend(self.label.map(|label| format!("  label   {label:?}")));
        Ok(lines.join("\n"))
    }
}

/// Shows tokens on a line.
struct Row<'a> {
    styles: &'a Styles,
    tokenizer: &'a dyn Tokenizer,
}

impl Row<'_> {
    fn ids(&self, name: &str, ids: &[i64], is_learned: &dyn Fn(usize) -> bool) -> String {
        let ids = runs(ids, is_learned).map(|(run, learned)| {
            let ids: Vec<String> = run.iter().map(i64::to_string).collect();
            self.styles.learned(&ids.join(" "), learned)
        });
        format!("  {name:<7} {}", ids.collect::<Vec<_>>().join(" "))
    }

    fn text(&self, name: &str, ids: &[i64], is_learned: &dyn Fn(usize) -> bool) -> Result<String> {
        let parts = runs(ids, is_learned)
            .map(|(run, learned)| Ok(self.styles.learned(&visible(&decode(self.tokenizer, run)?), learned)));
        Ok(format!("  {name:<7} {}", parts.collect::<Result<Vec<_>>>()?.concat()))
    }
}

/// Neighbouring tokens that are all learned, or all not.
fn runs<'a>(ids: &'a [i64], is_learned: &'a dyn Fn(usize) -> bool) -> impl Iterator<Item = (&'a [i64], bool)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = start;
        let learned = (first < ids.len()).then(|| is_learned(first))?;
        start += (first..ids.len()).take_while(|at| is_learned(*at) == learned).count();
        Some((ids.get(first..start)?, learned))
    })
}

fn decode(tokenizer: &dyn Tokenizer, ids: &[i64]) -> Result<String> {
    let ids: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
    tokenizer.decode(&ids, false)
}

/// Lengths of all samples.
struct Lengths {
    samples: usize,
    learned: u64,
    tokens: u64,
    truncated: f64,
    skipped: u64,
    longest: usize,
    /// Tokens up to which a bar counts, and its samples.
    bars: Vec<(usize, usize)>,
}

impl Lengths {
    fn of(records: &Dataset) -> Lengths {
        let lengths: Vec<usize> = (0..records.len()).map(|sample| records.length(sample)).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let width = longest.div_ceil(BARS).max(1);
        let mut bars: Vec<(usize, usize)> = (1..=longest.div_ceil(width)).map(|bar| (bar * width, 0)).collect();
        for length in &lengths {
            if let Some((_, count)) = bars.get_mut(length.saturating_sub(1) / width) {
                *count += 1;
            }
        }
        let learned = |sample: usize| match records.labels() {
            LabelSpace::Pairs | LabelSpace::Unpaired => {
                records.learned(sample).iter().map(|learned| u64::from(*learned)).sum()
            }
            _ => records.weight(sample) as u64,
        };
        Lengths {
            samples: records.len(),
            learned: (0..records.len()).map(learned).sum(),
            tokens: records.report().tokens,
            truncated: records.report().truncated_share(),
            skipped: records.report().skipped,
            longest,
            bars,
        }
    }

    fn record(&self) -> Value {
        json!({
            "samples": self.samples,
            "tokens": self.tokens,
            "learned": self.learned,
            "longest": self.longest,
            "truncated_share": self.truncated,
            "skipped": self.skipped,
            "lengths": self.bars.iter().map(|(to, count)| json!({"up_to": to, "samples": count})).collect::<Vec<_>>(),
        })
    }

    fn describe(&self) -> String {
        let Lengths { samples, learned, tokens, longest, skipped, .. } = self;
        let mut lines = vec![format!(
            "{samples} samples, {tokens} tokens, {learned} learned, longest {longest}, {:.1} % truncated, {skipped} \
             records left out",
            100.0 * self.truncated
        )];
        let most = self.bars.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let line = |(to, count): &(usize, usize)| format!("  up to {to:>6} tokens {count:>8} {}", bar(*count, most));
        lines.extend(self.bars.iter().map(|bar| line(bar).trim_end().to_owned()));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_one_kind_and_have_every_token_once() {
        let ids = [1, 2, 3, 4, 5];
        let learned = |at: usize| matches!(at, 1 | 2 | 4);
        let found: Vec<(Vec<i64>, bool)> = runs(&ids, &learned).map(|(run, learned)| (run.to_vec(), learned)).collect();
        assert_eq!(found, [(vec![1], false), (vec![2, 3], true), (vec![4], false), (vec![5], true)]);
    }
}
