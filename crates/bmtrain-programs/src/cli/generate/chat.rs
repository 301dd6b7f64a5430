//! Lines of the user in, texts out as they are generated: a conversation in the terminal, or completions of lines that
//! are independent of each other.

use super::output::{Statistics, show};
use super::setup::GenerateRun;
use crate::cli::{flags::with_flags, terminal};
use crate::{Error, Result};
use bmtrain_core::{Ctx, Device};
use model_center_base::error::render_error;
use model_center_base::stop_flag::StopFlag;
use model_center_formats::tokenizer::ChatMessage;
use model_center_models::generate::{Generator, PromptRow, TextChunk};
use std::io::{BufRead, IsTerminal, Read};

/// A longer line is most likely a file by mistake.
const MAX_LINE_BYTES: u64 = 1 << 20;

const HELP: &str = "/reset  start a new conversation\n/exit   end, as the end of the input does\n/help   this\n\
    Ctrl-C ends an answer; twice, the program. Any other line is a message.";

const HELP_OF_PROMPTS: &str = "/exit   end, as the end of the input does\n/help   this\n\
    Ctrl-C ends a text; twice, the program. Any other line is a prompt.";

/// A line of the user.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Exit,
    Reset,
    Help,
    Empty,
    Message(String),
}

impl Line {
    fn of(text: &str) -> Self {
        match text.trim() {
            "/exit" => Line::Exit,
            "/reset" => Line::Reset,
            "/help" => Line::Help,
            "" => Line::Empty,
            // Spaces may be significant; the end of the line is not.
            _ => Line::Message(text.trim_end_matches(['\n', '\r']).to_owned()),
        }
    }
}

/// A conversation, or a row of prompts.
pub(super) struct Conversation<'a> {
    run: &'a GenerateRun,
    generator: &'a Generator<'a>,
    device: &'a Device,
    /// Set by Ctrl-C.
    stop: &'a StopFlag,
    messages: Vec<ChatMessage>,
    /// Answers so far, which selects the random numbers of the next one.
    answers: u64,
    is_typed: bool,
    /// Whether standard output is still open.
    is_read: bool,
    statistics: Statistics,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        run: &'a GenerateRun,
        generator: &'a Generator<'a>,
        device: &'a Device,
        stop: &'a StopFlag,
    ) -> Self {
        let is_typed = std::io::stdin().is_terminal();
        let (messages, statistics) = (Vec::new(), Statistics::default());
        Conversation { run, generator, device, stop, messages, answers: 0, is_typed, is_read: true, statistics }
    }

    /// Answer lines until the end of the input. In a terminal, a refused message does not end the conversation.
    pub(super) fn run(mut self) -> Result<Statistics> {
        if self.is_typed && !self.run.options.quiet {
            terminal::note("/help lists the commands.");
        }
        while let Some(line) = self.read()? {
            match Line::of(&line) {
                Line::Exit => break,
                Line::Reset => self.messages.clear(),
                Line::Help if self.is_chat() => terminal::print(HELP)?,
                Line::Help => terminal::print(HELP_OF_PROMPTS)?,
                Line::Empty => {}
                Line::Message(text) => match self.answer(text) {
                    Err(error) if self.is_typed && !matches!(error, Error::File { .. }) => {
                        terminal::note(&render_error(&error));
                        // The refused message.
                        self.messages.pop();
                    }
                    other => other?,
                },
            }
        }
        Ok(self.statistics)
    }

    /// Whether lines are messages of one conversation.
    fn is_chat(&self) -> bool {
        self.run.options.prompts.chat
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
        // Ctrl-C before the answer has no effect on it.
        self.stop.withdraw();
        match String::from_utf8(bytes) {
            Ok(line) => Ok(Some(line)),
            Err(_) => wrong("a line is not UTF-8 text".into(), "convert it to UTF-8"),
        }
    }

    /// Send a message, and print the answer.
    fn answer(&mut self, text: String) -> Result<()> {
        let prompt = match self.is_chat() {
            true => {
                self.messages.push(ChatMessage::new("user", text));
                self.run.setup.encode_chat(&self.messages).map_err(with_flags)?
            }
            false => {
                let row = PromptRow::from_text("standard input".to_owned(), &text);
                self.run.setup.encode_row(&row).map_err(with_flags)?
            }
        };
        self.statistics.start();
        let (mut answer, streams) = (String::new(), self.run.streams());
        let (statistics, is_read, stop) = (&mut self.statistics, &mut self.is_read, self.stop);
        let mut on_text = |chunk: TextChunk<'_>| {
            statistics.on_text();
            answer.push_str(chunk.text);
            if streams && !show(chunk.text)? {
                *is_read = false;
                stop.request();
            }
            Ok(())
        };
        let mut cx = Ctx::inference(self.device);
        let texts = self.generator.generate(&[prompt], self.answers, &mut cx, &mut on_text);
        let is_cut = texts.is_err() && self.stop.is_requested();
        self.stop.withdraw();
        if is_cut {
            self.statistics.forget();
        } else {
            self.statistics.stop();
            let is_chat = self.is_chat();
            let texts = texts.map_err(|error| if is_chat { too_long(error) } else { error })?.concat();
            self.statistics.add(&texts);
        }
        if !streams {
            self.is_read &= show(&answer)?;
        }
        self.is_read &= show("\n")?;
        if self.is_chat() {
            self.messages.push(ChatMessage::new("assistant", answer));
        }
        self.answers += 1;
        Ok(())
    }
}

/// An error of the prompt is one of the conversation.
fn too_long(error: Error) -> Error {
    match error {
        Error::Data { place, reason, .. } if place == "prompt 0" => {
            Error::data("the conversation", reason, "start a new one with /reset")
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_whole_lines_and_all_else_is_a_message() {
        assert_eq!(Line::of(" /exit \n"), Line::Exit);
        assert_eq!((Line::of("/reset\r\n"), Line::of("/help")), (Line::Reset, Line::Help));
        assert_eq!(Line::of(" \n"), Line::Empty);
        assert_eq!(Line::of("/exit now\n"), Line::Message("/exit now".to_owned()));
        assert_eq!(Line::of("  two spaces\r\n"), Line::Message("  two spaces".to_owned()));
    }
}
