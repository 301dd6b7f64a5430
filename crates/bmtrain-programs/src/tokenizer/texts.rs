//! Texts of the command line: an argument, the lines of a file, or of standard input.

use model_center_base::{Error, Result};
use model_center_data::{TextLayout, read_texts};
use std::io::{BufRead, Read};
use std::path::Path;

const MAX_LINE_BYTES: usize = 16 << 20;

pub(super) fn each(
    text: Option<&str>,
    file: Option<&Path>,
    use_text: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    match (text, file) {
        (Some(text), _) => use_text(text),
        (None, Some(file)) => read_texts(file, &TextLayout::Lines, MAX_LINE_BYTES, use_text).map(|_| ()),
        (None, None) => standard_input(use_text),
    }
}

fn standard_input(use_text: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let mut input = std::io::stdin().lock();
    for number in 1_u64.. {
        let place = || format!("standard input, line {number}");
        let mut bytes = Vec::new();
        let read = (&mut input).take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes);
        let read =
            read.map_err(|error| Error::file("read", "standard input", error, "give the text as an argument"))?;
        if read == 0 {
            break;
        }
        if bytes.pop_if(|byte| *byte == b'\n').is_some() {
            bytes.pop_if(|byte| *byte == b'\r');
        }
        if bytes.len() > MAX_LINE_BYTES {
            let reason = format!("the line is longer than {MAX_LINE_BYTES} bytes");
            return Err(Error::data(place(), reason, "split the text into lines"));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::data(place(), "the line is not UTF-8 text", "convert it, for example with iconv"))?;
        use_text(&text)?;
    }
    Ok(())
}
