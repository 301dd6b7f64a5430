//! A conversation: lines of a user in, answers out as they come, each in view of all that was said.
//!
//! Defines [`Talk`]; called by `work` where there is neither --prompt nor --input.

use super::setup::Job;
use super::sink::{Figures, show};
use crate::terminal;
use bmtrain_core::{Ctx, Device};
use model_center::generate::{Generator, Piece};
use model_center::run::{StopFlag, render_error};
use model_center::tokenizer::ChatMessage;
use model_center::{Error, Result};
use std::io::{BufRead, IsTerminal, Read};

/// A longer line would be a file by mistake.
const MAX_LINE_BYTES: u64 = 1 << 20;

const HELP: &str = "/reset  forget what was said\n/exit   end, as the end of the input does\n/help   this\n\
    Ctrl-C ends an answer; twice, the program. Any other line is said to the model.";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Exit,
    Reset,
    Help,
    Empty,
    Said(String),
}

impl Line {
    fn of(text: &str) -> Self {
        match text.trim() {
            "/exit" => Line::Exit,
            "/reset" => Line::Reset,
            "/help" => Line::Help,
            "" => Line::Empty,
            // Spaces may mean something; the end of the line does not.
            _ => Line::Said(text.trim_end_matches(['\n', '\r']).to_owned()),
        }
    }
}

/// A conversation.
pub(super) struct Talk<'a> {
    job: &'a Job,
    generator: &'a Generator<'a>,
    device: &'a Device,
    /// Set by Ctrl-C.
    stop: &'a StopFlag,
    said: Vec<ChatMessage>,
    /// Answers so far, by which draws are told apart.
    answers: u64,
    is_typed: bool,
    /// Whether anybody reads the answers.
    is_read: bool,
    figures: Figures,
}

impl<'a> Talk<'a> {
    pub(super) fn new(job: &'a Job, generator: &'a Generator<'a>, device: &'a Device, stop: &'a StopFlag) -> Self {
        let is_typed = std::io::stdin().is_terminal();
        let (said, figures) = (Vec::new(), Figures::default());
        Talk { job, generator, device, stop, said, answers: 0, is_typed, is_read: true, figures }
    }

    /// Talk until the end of the input.
    ///
    /// # Errors
    /// A line that cannot be read; output that cannot be written. A message that the template or the model refuses ends
    /// the conversation only where nobody types.
    pub(super) fn run(mut self) -> Result<Figures> {
        if self.is_typed && !self.job.options.quiet {
            terminal::note("/help says what can be typed beside messages.");
        }
        while let Some(line) = self.read()? {
            match Line::of(&line) {
                Line::Exit => break,
                Line::Reset => self.said.clear(),
                Line::Help => terminal::print(HELP)?,
                Line::Empty => {}
                Line::Said(text) => match self.answer(text) {
                    Err(error) if self.is_typed && !matches!(error, Error::File { .. }) => {
                        terminal::note(&render_error(&error));
                        // Without the message that was refused.
                        self.said.pop();
                    }
                    other => other?,
                },
            }
        }
        Ok(self.figures)
    }

    /// The next line; `None` at the end of the input.
    fn read(&mut self) -> Result<Option<String>> {
        if self.is_typed && std::io::stdout().is_terminal() {
            self.is_read &= show("> ")?;
        }
        if !self.is_read {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let wrong = |reason: String, fix: &str| Err(Error::data("standard input", reason, fix));
        let input = std::io::stdin().lock();
        match input.take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut bytes) {
            Ok(0) => return Ok(None),
            Ok(count) if count as u64 > MAX_LINE_BYTES => {
                return wrong(format!("a line of more than {MAX_LINE_BYTES} bytes"), "give texts of files to --input");
            }
            Ok(_) => {}
            Err(error) => return Err(Error::file("read", "standard input", error, "give it a terminal or a file")),
        }
        // What was asked for while nothing was being said is over.
        self.stop.withdraw();
        match String::from_utf8(bytes) {
            Ok(line) => Ok(Some(line)),
            Err(_) => wrong("a line is not UTF-8 text".into(), "convert it to UTF-8"),
        }
    }

    /// Say something, and show the answer.
    fn answer(&mut self, text: String) -> Result<()> {
        self.said.push(ChatMessage::new("user", text));
        let prompt = self.job.reader().conversation(&self.said)?;
        self.figures.start();
        let (mut answer, shows) = (String::new(), self.job.shows_pieces());
        let (figures, is_read, stop) = (&mut self.figures, &mut self.is_read, self.stop);
        let mut on_piece = |piece: Piece<'_>| {
            figures.piece();
            answer.push_str(piece.piece);
            if shows && !show(piece.piece)? {
                *is_read = false;
                stop.request();
            }
            Ok(())
        };
        let mut cx = Ctx::inference(self.device);
        let texts = self.generator.generate(&[prompt], self.answers, &mut cx, &mut on_piece);
        let is_cut = texts.is_err() && self.stop.is_requested();
        self.stop.withdraw();
        if is_cut {
            self.figures.forget();
        } else {
            self.figures.stop();
            let texts = texts.map_err(too_long)?.concat();
            self.figures.add(&texts);
        }
        if !shows {
            self.is_read &= show(&answer)?;
        }
        self.is_read &= show("\n")?;
        self.said.push(ChatMessage::new("assistant", answer));
        self.answers += 1;
        Ok(())
    }
}

/// What the model refuses of the one prompt there is.
fn too_long(error: Error) -> Error {
    match error {
        Error::Data { place, reason, .. } if place == "prompt 0" => {
            Error::data("the conversation", reason, "begin anew with /reset")
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_whole_lines_and_all_else_is_said() {
        assert_eq!(Line::of(" /exit \n"), Line::Exit);
        assert_eq!((Line::of("/reset\r\n"), Line::of("/help")), (Line::Reset, Line::Help));
        assert_eq!(Line::of(" \n"), Line::Empty);
        assert_eq!(Line::of("/exit now\n"), Line::Said("/exit now".to_owned()));
        assert_eq!(Line::of("  two spaces\r\n"), Line::Said("  two spaces".to_owned()));
    }
}
