//! Blocks of a report, and their Markdown, HTML and JSON.

use super::html::escaped;
use serde_json::{Value, json};
use std::fmt::Write;

/// A part.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) blocks: Vec<Block>,
}

/// A piece of a part.
#[derive(Debug)]
pub(super) enum Block {
    /// A sentence.
    Text(String),
    /// A sentence of its own weight.
    Verdict { state: &'static str, text: String },
    /// Lines of a file or a command.
    Code(String),
    /// A table with a header.
    Table { head: Vec<String>, rows: Vec<Vec<String>> },
    /// The charts; Markdown has the table after them alone.
    Charts,
    /// Shares of a whole, each with seconds.
    Shares { name: String, parts: Vec<(String, f64)> },
}

impl Section {
    pub(super) fn markdown(&self, out: &mut String) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "\n## {}", self.title);
        for block in &self.blocks {
            let _ = match block {
                Block::Text(text) => writeln!(out, "\n{}", markdown_text(text)),
                Block::Verdict { state, text } => writeln!(out, "\n**{state}**: {}", markdown_text(text)),
                Block::Code(text) => {
                    let lines: String = text.lines().map(|line| format!("    {line}\n")).collect();
                    write!(out, "\n{lines}")
                }
                Block::Table { head, rows } => writeln!(out, "\n{}", markdown_table(head, rows)),
                Block::Charts => Ok(()),
                Block::Shares { name, parts } => {
                    let head = [name.clone(), "seconds".to_owned(), "share".to_owned()];
                    writeln!(out, "\n{}", markdown_table(&head, &share_rows(parts)))
                }
            };
        }
    }

    pub(super) fn html(&self, out: &mut String) {
        let _ = writeln!(out, "<section><h2>{}</h2>", escaped(self.title));
        for block in &self.blocks {
            let _ = match block {
                Block::Text(text) => writeln!(out, "<p>{}</p>", escaped(text)),
                Block::Verdict { state, text } => {
                    writeln!(out, "<p class=\"verdict\"><b class=\"state {state}\">{state}</b> {}</p>", escaped(text))
                }
                Block::Code(text) => writeln!(out, "<pre>{}</pre>", escaped(text)),
                Block::Table { head, rows } => writeln!(out, "{}", html_table(head, rows)),
                Block::Charts => writeln!(out, "<div id=\"charts\"></div>"),
                Block::Shares { name, parts } => {
                    let head = [name.clone(), "seconds".to_owned(), "share".to_owned()];
                    writeln!(out, "{}{}", html_bar(parts), html_table(&head, &share_rows(parts)))
                }
            };
        }
        out.push_str("</section>\n");
    }

    pub(super) fn json(&self) -> Value {
        let block = |block: &Block| match block {
            Block::Text(text) | Block::Code(text) => json!(text),
            Block::Verdict { state, text } => json!({"state": state, "text": text}),
            Block::Table { head, rows } => json!({"head": head, "rows": rows}),
            Block::Charts => Value::Null,
            Block::Shares { name, parts } => json!({"name": name, "seconds": parts}),
        };
        let blocks: Vec<Value> = self.blocks.iter().map(block).filter(|block| !block.is_null()).collect();
        json!({"title": self.title, "blocks": blocks})
    }
}

fn share_rows(parts: &[(String, f64)]) -> Vec<Vec<String>> {
    let whole: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let share = |seconds: f64| if whole > 0.0 { 100.0 * seconds / whole } else { 0.0 };
    let row = |(name, seconds): &(String, f64)| {
        vec![name.clone(), format!("{seconds:.2}"), format!("{:.1} %", share(*seconds))]
    };
    parts.iter().map(row).collect()
}

/// A bar of the shares, as an inline picture.
fn html_bar(parts: &[(String, f64)]) -> String {
    let whole: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let mut out = String::from("<svg class=\"bar\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" role=\"img\">");
    let mut from = 0.0;
    for (at, (name, seconds)) in parts.iter().enumerate() {
        let width = if whole > 0.0 { 100.0 * seconds / whole } else { 0.0 };
        let title = escaped(&format!("{name}: {seconds:.2} s"));
        let rect = format!("<rect class=\"s{}\" x=\"{from:.3}\" width=\"{width:.3}\" height=\"4\">", at % 8);
        out.push_str(&format!("{rect}<title>{title}</title></rect>"));
        from += width;
    }
    out.push_str("</svg>\n");
    out
}

fn markdown_table(head: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| markdown_text(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    format!("{}{rule}{}", line(head), rows.iter().map(|row| line(row)).collect::<String>()).trim_end().to_owned()
}

fn html_table(head: &[String], rows: &[Vec<String>]) -> String {
    let cells = |cells: &[String], tag: &str| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
    };
    let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", cells(row, "td"))).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>\n{rows}</tbody></table></div>",
        cells(head, "th")
    )
}

/// A text on one line in which Markdown and HTML mean nothing.
pub(super) fn markdown_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '|' | '*' | '`' | '[' | ']' | '\\' | '#' => out.extend(['\\', c]),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}
