//! The page of a report: its parts, its charts, nothing from elsewhere.

use super::ReportedRun;
use super::block::Section;
use serde_json::{Value, json};

/// Script of the charts, in reports and on the local page.
pub(crate) const CHART_SCRIPT: &str = include_str!("../assets/chart.js");
const REPORT_SCRIPT: &str = include_str!("../assets/report.js");
const BASE_STYLE: &str = include_str!("../assets/base.css");
const REPORT_STYLE: &str = include_str!("../assets/report.css");
/// The browser asks no host for anything, whatever the page holds.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; \
     base-uri 'none'; form-action 'none'";

pub(super) fn page(title: &str, runs: &[ReportedRun], sections: &[Section]) -> String {
    let mut body = String::new();
    sections.iter().for_each(|section| section.html(&mut body));
    let data: Vec<Value> = runs
        .iter()
        .map(|run| json!({"id": run.path, "name": run.name, "curves": run.curves, "events": run.summary.events}))
        .collect();
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Run report: {title}</title>\n<style>\n{BASE_STYLE}{REPORT_STYLE}</style></head>\n\
         <body class=\"report\"><header><h1>{title}</h1></header><main>\n{body}</main>\n\
         <noscript>Charts need scripts; the tables do not.</noscript>\n\
         <script type=\"application/json\" id=\"data\">{}</script>\n\
         <script>\n{CHART_SCRIPT}</script>\n<script>\n{REPORT_SCRIPT}</script></body></html>\n",
        embedded_json(&Value::Array(data))
    )
}

/// JSON that ends no element of the page that it is embedded in.
fn embedded_json(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// A text as the content of an element or a quoted attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
