//! Classes of words, such as named entities, from JSON lines or from files of CoNLL.
//!
//! Defines [`TagTask`]. Called by training. Words are tokenized one by one; the label of a word is that of
//! its first token, the other tokens have none.

use std::path::Path;

use super::columns::LabelReader;
use super::{SplitSource, Task};
use crate::data::{
    LabelSpec,
    dataset::Dataset,
    read::{Builder, ReadOptions, RowForm, renumber},
};
use crate::metrics::{LabelKind, Metric, TAG_METRICS};
use crate::{Error, Result};
use model_center_base::batch::{IGNORED, Label, LabelSpace};
use model_center_formats::io::{
    lines::LineReader,
    record::{Format, Record},
    record_reader::RecordReader,
};
use model_center_formats::tokenizer::Tokenizer;

/// The line between documents in files of CoNLL.
const DOCUMENT: &str = "-DOCSTART-";

/// Where words and tags are.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagTask {
    /// Column of the list of words, in JSON lines.
    pub tokens: String,
    /// Column of the list of tags, texts or numbers of `labels`.
    pub tags: String,
    /// The tags.
    pub labels: LabelSpec,
    /// JSON lines, or text of CoNLL; by default JSON lines where the file name has that ending.
    #[serde(default)]
    pub format: Option<Format>,
}

/// Words with a tag each.
struct Sentence {
    line: u64,
    words: Vec<String>,
    tags: Vec<usize>,
}

impl TagTask {
    /// Reads a file. In text of CoNLL a line is a word, its first column, with its tag, the last one; an empty line
    /// ends a sentence.
    ///
    /// Errors: what is wrong with the file, a record or a line, with its place; tags other than the task's.
    pub fn read(&self, path: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
        options.check()?;
        let mut labels = LabelReader::new(&self.labels)?;
        let mut builder = Builder::new(path, options, LabelSpace::TokenClasses(Vec::new()), RowForm::Plain);
        let mut words = SentenceRows::new(options.tokenizer, options.max_length)?;
        let format = self.format.or_else(|| Format::of(path).ok());
        let mut add = |sentence: Result<Sentence>, builder: &mut Builder<'_>| -> Result<()> {
            builder.count();
            match sentence.and_then(|sentence| words.row(path, &sentence, builder)) {
                Ok(()) => Ok(()),
                Err(flaw @ Error::Data { .. }) => builder.skip(flaw),
                Err(error) => Err(error),
            }
        };
        match format {
            Some(format @ (Format::Jsonl | Format::Arrow | Format::Parquet)) => {
                let mut records = RecordReader::open(path, format, options.max_line_bytes)?;
                while builder.wants_more()? {
                    let Some(record) = records.read_next()? else { break };
                    let sentence = record.and_then(|record| self.of_record(&record, &mut labels));
                    add(sentence, &mut builder)?;
                }
            }
            _ => {
                let mut lines = LineReader::open(path, options.max_line_bytes)?;
                while builder.wants_more()? {
                    let Some(sentence) = of_lines(&mut lines, &mut labels)? else { break };
                    add(sentence, &mut builder)?;
                }
            }
        }
        let (tags, (names, order)) = (words.tags, labels.names());
        if names.is_empty() {
            return Err(Error::data(
                path.display().to_string(),
                "there is no tag",
                "check that this is the right file",
            ));
        }
        let mut dataset = builder.finish()?;
        dataset.tags = tags;
        renumber(&mut dataset, &order);
        dataset.labels = LabelSpace::TokenClasses(names);
        dataset.seal();
        Ok(dataset)
    }

    fn of_record(&self, record: &Record<'_>, labels: &mut LabelReader<'_>) -> Result<Sentence> {
        let words = record.texts(&self.tokens)?;
        let tags = record.texts(&self.tags)?;
        if words.len() != tags.len() {
            let reason = format!("{} {:?} for {} {:?}", tags.len(), self.tags, words.len(), self.tokens);
            return Err(record.error(&self.tags, reason, "give one tag for each word"));
        }
        let class = |tag: &String| labels.class(tag, |reason, fix| record.error(&self.tags, reason, fix));
        let tags = tags.iter().map(class).collect::<Result<_>>()?;
        Ok(Sentence { line: record.line(), words, tags })
    }
}

impl Task for TagTask {
    fn name(&self) -> &'static str {
        "token-classification"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Tags
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(TAG_METRICS)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        // A tag that occurs in another split alone is a mistake, not a class.
        let labels = source.train.map_or_else(|| self.labels.clone(), LabelSpec::of);
        TagTask { labels, ..self.clone() }.read(source.path, &source.options)
    }
}

/// A sentence of a file of CoNLL.
#[derive(Debug, Default)]
pub struct WrittenSentence {
    /// The line where it begins.
    pub line: u64,
    pub words: Vec<String>,
    /// Line and tag of each word, if it has one.
    pub tags: Vec<(u64, Option<String>)>,
}

/// The next sentence of a file of CoNLL, the inner error is about a line of it; `None` at the end of the file.
pub fn next_sentence(lines: &mut LineReader) -> Result<Option<Result<WrittenSentence>>> {
    let (mut sentence, mut flaw) = (WrittenSentence::default(), None);
    while let Some(read) = lines.advance()? {
        if let Err(error) = read {
            flaw.get_or_insert(error);
            continue;
        }
        let line = lines.line();
        let mut columns = line.text.split_whitespace();
        match columns.next() {
            None if sentence.words.is_empty() && flaw.is_none() => continue,
            None => break,
            Some(DOCUMENT) => continue,
            Some(word) => {
                sentence.line = if sentence.words.is_empty() { line.number } else { sentence.line };
                sentence.words.push(word.to_owned());
                sentence.tags.push((line.number, columns.next_back().map(str::to_owned)));
            }
        }
    }
    Ok(match flaw {
        Some(flaw) => Some(Err(flaw)),
        None if sentence.words.is_empty() => None,
        None => Some(Ok(sentence)),
    })
}

/// The next sentence of a file of CoNLL with the classes of its tags; `None` at its end.
fn of_lines(lines: &mut LineReader, labels: &mut LabelReader<'_>) -> Result<Option<Result<Sentence>>> {
    let sentence = match next_sentence(lines)? {
        None => return Ok(None),
        Some(Err(flaw)) => return Ok(Some(Err(flaw))),
        Some(Ok(sentence)) => sentence,
    };
    let path = lines.path().display();
    let class = |(line, tag): &(u64, Option<String>)| {
        let wrong = |reason: String, fix: String| Error::data(format!("{path}:{line}"), reason, fix);
        match tag {
            Some(tag) => labels.class(tag, wrong),
            None => {
                let fix = "write a word and its tag, with white space between";
                Err(wrong("the line has one column".to_owned(), fix.to_owned()))
            }
        }
    };
    let tags = sentence.tags.iter().map(class).collect::<Result<_>>();
    Ok(Some(tags.map(|tags| Sentence { line: sentence.line, words: sentence.words, tags })))
}

/// Tokenizes words one by one.
pub struct WordTokenizer<'t> {
    tokenizer: &'t dyn Tokenizer,
    /// Whether a word in a text has other tokens than at its start: every word has a space before it then.
    with_space: bool,
}

impl<'t> WordTokenizer<'t> {
    /// A tokenizer of single words.
    ///
    /// # Errors
    /// Errors of [`Tokenizer::tokenize`].
    pub fn new(tokenizer: &'t dyn Tokenizer) -> Result<Self> {
        let ids = tokenizer.tokenize(&["a", " a"])?;
        Ok(WordTokenizer { tokenizer, with_space: ids.first() != ids.get(1) })
    }

    /// The tokens of each word.
    pub fn tokenize(&self, words: &[String]) -> Result<Vec<Vec<u32>>> {
        let space = if self.with_space { " " } else { "" };
        let words: Vec<String> = words.iter().map(|word| format!("{space}{}", word.trim())).collect();
        self.tokenizer.tokenize(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// Makes rows of sentences, and has the tags of all rows, one for each token.
struct SentenceRows<'t> {
    words: WordTokenizer<'t>,
    max_length: usize,
    tags: Vec<i32>,
}

impl<'t> SentenceRows<'t> {
    fn new(tokenizer: &'t dyn Tokenizer, max_length: usize) -> Result<Self> {
        Ok(SentenceRows { words: WordTokenizer::new(tokenizer)?, max_length, tags: Vec::new() })
    }

    /// Adds a row with the special tokens of a single text; a long one is truncated.
    fn row(&mut self, path: &Path, sentence: &Sentence, builder: &mut Builder<'_>) -> Result<()> {
        let ids = self.words.tokenize(&sentence.words)?;
        let (mut text, mut tags) = (Vec::new(), Vec::new());
        for (ids, tag) in ids.iter().zip(&sentence.tags) {
            tags.extend((0..ids.len()).map(|at| if at == 0 { *tag as i32 } else { IGNORED as i32 }));
            text.extend_from_slice(ids);
        }
        let template = self.words.tokenizer.template(false);
        let kept = text.len().min(self.max_length.saturating_sub(template.special_tokens()));
        if kept == 0 {
            let place = format!("{}:{}", path.display(), sentence.line);
            return Err(Error::data(place, "the sentence has no token", "give words, or remove the record"));
        }
        let removed = text.len() - kept;
        let mut encoding = template.assemble(&text[..kept], &[], None)?;
        encoding.removed = removed;
        let (front, back) = template.around_first();
        builder.push(&encoding, Label::Tags)?;
        self.tags.extend(front.iter().map(|_| IGNORED as i32));
        self.tags.extend_from_slice(&tags[..kept]);
        self.tags.extend(back.iter().map(|_| IGNORED as i32));
        Ok(())
    }
}
