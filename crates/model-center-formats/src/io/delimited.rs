//! Rows of comma- and tab-separated files.
//!
//! Defines [`RowParser`], an incremental state machine over lines that knows where each field begins. CSV follows
//! RFC 4180: fields may be quoted, a quoted field may hold delimiters, doubled quotes and line breaks. TSV has no
//! quoting at all, as in GLUE's files, so a lone `"` in a sentence is a character like any other. A reader of our own,
//! because errors need the column of a field in its line, a quote that is never closed must not swallow the
//! rest of the file, and memory must stay bounded; the tests compare it with the `csv` crate.
//! [`super::record`] feeds it. [`csv_field`] writes a field.

use std::borrow::Cow;

/// A field as CSV has it: between quotes where it needs them.
pub fn csv_field(text: &str) -> Cow<'_, str> {
    match text.contains([',', '"', '\n', '\r']) {
        true => Cow::Owned(format!("\"{}\"", text.replace('"', "\"\""))),
        false => Cow::Borrowed(text),
    }
}

/// One field of a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Field {
    /// The text without quotes.
    pub(crate) text: String,
    /// Line of its first character, from 1.
    pub(crate) line: u64,
    /// Column of its first character, in characters from 1.
    pub(crate) column: usize,
}

/// Effect of a line on the row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fed {
    /// The row is complete.
    Row,
    /// A quoted field goes on in the next line.
    OpenQuote,
    /// The line breaks the quoting rules at this column.
    Misplaced(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    FieldStart,
    Plain,
    Quoted,
    /// After a quote inside a quoted field: its end, or half of a doubled quote.
    QuoteSeen,
}

/// Splits lines into fields; one row may take several lines.
#[derive(Debug)]
pub struct RowParser {
    delimiter: char,
    quoting: bool,
    state: State,
    /// Fields of the row; valid after [`Fed::Row`].
    pub(crate) fields: Vec<Field>,
    /// Bytes of the row so far.
    pub(crate) bytes: usize,
}

impl RowParser {
    /// A parser for `,` with quotes or for tabs without.
    pub fn new(delimiter: char, quoting: bool) -> RowParser {
        RowParser { delimiter, quoting, state: State::FieldStart, fields: Vec::new(), bytes: 0 }
    }

    /// Adds a line (without its ending) to the row; starts a new row unless a quote is open.
    pub(crate) fn feed(&mut self, text: &str, line: u64) -> Fed {
        if self.state == State::Quoted {
            self.push('\n');
        } else {
            self.fields.clear();
            self.bytes = 0;
            self.begin_field(line, 1);
        }
        self.bytes += text.len() + 1;
        for (index, character) in text.chars().enumerate() {
            match (self.state, character) {
                (State::FieldStart, '"') if self.quoting => self.state = State::Quoted,
                (State::Quoted, '"') => self.state = State::QuoteSeen,
                (State::QuoteSeen, '"') => {
                    self.push('"');
                    self.state = State::Quoted;
                }
                (State::Quoted, _) => self.push(character),
                (_, c) if c == self.delimiter => self.begin_field(line, index + 2),
                (State::QuoteSeen, _) => {
                    self.state = State::FieldStart;
                    return Fed::Misplaced(index + 1);
                }
                _ => {
                    self.push(character);
                    self.state = State::Plain;
                }
            }
        }
        if self.state == State::Quoted {
            return Fed::OpenQuote;
        }
        self.state = State::FieldStart;
        Fed::Row
    }

    /// Start of the quoted field that is still open.
    pub(crate) fn open_field(&self) -> (u64, usize) {
        self.fields.last().map_or((1, 1), |field| (field.line, field.column))
    }

    fn begin_field(&mut self, line: u64, column: usize) {
        self.fields.push(Field { text: String::new(), line, column });
        self.state = State::FieldStart;
    }

    fn push(&mut self, character: char) {
        if let Some(field) = self.fields.last_mut() {
            field.text.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(parser: &RowParser) -> Vec<&str> {
        parser.fields.iter().map(|field| field.text.as_str()).collect()
    }

    #[test]
    fn quotes_delimiters_and_line_breaks_follow_rfc_4180() {
        let mut csv = RowParser::new(',', true);
        assert_eq!(csv.feed(r#"a,"b, ""c""",,"d"#, 3), Fed::OpenQuote);
        assert_eq!(csv.open_field(), (3, 15));
        assert_eq!(csv.feed(r#"e",f"#, 4), Fed::Row);
        assert_eq!(texts(&csv), ["a", "b, \"c\"", "", "d\ne", "f"]);
        let places: Vec<_> = csv.fields.iter().map(|field| (field.line, field.column)).collect();
        assert_eq!(places, [(3, 1), (3, 3), (3, 14), (3, 15), (4, 4)]);
        assert_eq!(csv.feed("", 5), Fed::Row);
        assert_eq!(texts(&csv), [""]);
    }

    #[test]
    fn text_after_a_closing_quote_is_refused_and_the_parser_recovers() {
        let mut csv = RowParser::new(',', true);
        assert_eq!(csv.feed(r#"a,"b"c"#, 1), Fed::Misplaced(6));
        assert_eq!(csv.feed("x,y", 2), Fed::Row);
        assert_eq!(texts(&csv), ["x", "y"]);
    }

    #[test]
    fn tabs_split_without_quoting() {
        let mut tsv = RowParser::new('\t', false);
        assert_eq!(tsv.feed("\"a\tb \" c\t", 1), Fed::Row);
        assert_eq!(texts(&tsv), ["\"a", "b \" c", ""]);
    }

    /// Random well-formed rows must split as the `csv` crate splits them.
    #[test]
    fn rows_split_as_in_the_csv_crate() {
        let mut state = 12345_u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..2000 {
            let mut row = String::new();
            for field in 0..1 + random(4) {
                if field > 0 {
                    row.push(',');
                }
                let quoted = random(2) == 0;
                let body: String = (0..random(5))
                    .map(|_| {
                        let signs = if quoted { [",", "\"\"", "\n", "é", "x"] } else { ["y", "é", " ", "'", "z"] };
                        signs[random(5) as usize]
                    })
                    .collect();
                row.push_str(&if quoted { format!("\"{body}\"") } else { body });
            }
            if row.is_empty() {
                continue;
            }
            let mut theirs = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(row.as_bytes());
            let theirs = theirs.records().next().unwrap().unwrap();
            let mut ours = RowParser::new(',', true);
            let mut fed = Fed::OpenQuote;
            for (number, line) in row.split('\n').enumerate() {
                assert_eq!(fed, Fed::OpenQuote);
                fed = ours.feed(line, number as u64 + 1);
            }
            assert_eq!(fed, Fed::Row);
            assert_eq!(texts(&ours), theirs.iter().collect::<Vec<_>>(), "{row:?}");
        }
    }
}
