//! Prints the rows of a file or directory of records as JSON lines, for `scripts/claims/others.sh`.
//!
//! ```text
//! rows PATH
//! ```

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use model_center::corpus::text::{Documents, TextSource};
use model_center::data::OnBadRecord;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: rows PATH");
        return ExitCode::from(2);
    };
    match print(path.into()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn print(path: std::path::PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let mut documents = Documents::open(TextSource::new(vec![path]), OnBadRecord::Error)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    while let Some(record) = documents.advance_record()? {
        serde_json::to_writer(&mut out, &record.fields)?;
        out.write_all(b"\n")?;
    }
    out.flush().map_err(Into::into)
}
