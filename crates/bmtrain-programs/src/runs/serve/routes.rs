//! Responses by address.
//!
//! | address | response |
//! |---|---|
//! | `/`, `/app.js`, `/chart.js`, `/app.css` | the page |
//! | `/api/runs` | all runs, without their curves |
//! | `/api/run?id=ID` | one run: settings, events, phases |
//! | `/api/curves?id=ID&tags=a,b` | buckets of its scalars |
//! | `/api/report?id=A&id=B` | a report in HTML |
//! | `/api/export?id=ID` | its scalars as CSV |
//! | `POST /api/delete?id=ID` | removes it |

use super::Shared;
use crate::Result;
use crate::http::{Request, Response};
use crate::runs::{
    Index, Run, RunDirectory,
    report::{CHART_SCRIPT, Report},
};
use model_center_base::error::render_error;
use serde_json::{Value, json};

const PAGE: &str = include_str!("../assets/page.html");
const SCRIPT: &str = include_str!("../assets/app.js");
const STYLE: &str = concat!(include_str!("../assets/base.css"), include_str!("../assets/app.css"));
/// Scripts and styles are this server's; nothing is asked of any other host.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn answer(shared: &Shared, request: &Request) -> Response {
    let method = if request.method == "HEAD" { "GET" } else { request.method.as_str() };
    let response = match (method, request.path.as_str()) {
        ("GET", "/") => Ok(page(shared)),
        ("GET", "/app.js") => Ok(Response::new("text/javascript; charset=utf-8", SCRIPT)),
        ("GET", "/chart.js") => Ok(Response::new("text/javascript; charset=utf-8", CHART_SCRIPT)),
        ("GET", "/app.css") => Ok(Response::new("text/css; charset=utf-8", STYLE)),
        ("GET", "/api/runs") => runs(shared),
        ("GET", "/api/run") => one(shared, request, |run| Ok(json_response(&details(run)))),
        ("GET", "/api/curves") => one(shared, request, |run| curves(run, request)),
        ("GET", "/api/report") => report(shared, request),
        ("GET", "/api/export") => one(shared, request, exported),
        ("POST", "/api/delete") => delete(shared, request),
        _ => Ok(Response::text(404, "there is nothing at this address")),
    };
    match response {
        Ok(response) if method == "GET" => response.unless_known(request),
        Ok(response) => response,
        Err(error) => Response::text(500, &render_error(&error)),
    }
}

fn page(shared: &Shared) -> Response {
    let token = if shared.guard.allow_delete { shared.guard.token.as_str() } else { "" };
    let response = Response::new("text/html; charset=utf-8", PAGE.replace("{token}", token));
    response.with("Content-Security-Policy", POLICY).with("X-Frame-Options", "DENY")
}

fn json_response(value: &Value) -> Response {
    Response::new("application/json", value.to_string())
}

fn runs(shared: &Shared) -> Result<Response> {
    let all = shared.runs(|runs| {
        json!({
            "root": runs.root().display().to_string(),
            "runs": runs.runs().iter().map(row).collect::<Vec<_>>(),
        })
    })?;
    Ok(json_response(&all))
}

/// A run in the list.
fn row(run: &Run) -> Value {
    let summary = &run.summary;
    let start = |name: &str| summary.started(name).cloned().unwrap_or(Value::Null);
    let eval = summary.best_eval.as_ref().or(summary.last_eval.as_ref());
    json!({
        "id": run.directory.id,
        "name": run.recipe.name,
        "tags": run.recipe.tags,
        "state": run.state,
        "reason": run.reason,
        "step": summary.step,
        "steps": run.recipe.values.get("train.steps").and_then(|steps| steps.parse::<u64>().ok()),
        "epoch": summary.epoch,
        "tokens": summary.tokens,
        "seconds": summary.seconds,
        "loss": summary.loss,
        "eval": eval,
        // The metric by which the best weights are chosen.
        "metric": run.recipe.values.get("eval.metric").map(|name| name.trim_matches('"')),
        "tokens_per_s": summary.tokens_per_s,
        "peak_share": summary.peak_share,
        "peak_rss_bytes": summary.peak_rss_bytes,
        "parameters": start("parameters"),
        "started": summary.last_start,
        "updated": run.updated,
        "skipped": summary.skipped,
        "resumes": summary.resumes,
        "records": summary.records,
    })
}

fn details(run: &Run) -> Value {
    let summary = &run.summary;
    json!({
        "id": run.directory.id,
        "path": run.directory.path.display().to_string(),
        "name": run.recipe.name,
        "settings": run.recipe.values,
        "events": summary.events,
        "more_events": summary.more_events,
        "samples": summary.texts,
        "phases": summary.phases,
        "eval_seconds": summary.eval_seconds,
        "seconds": summary.seconds,
        "first_eval": summary.first_eval,
        "best_eval": summary.best_eval,
        "last_eval": summary.last_eval,
        "test": summary.test,
        "version": summary.started("version"),
        "recipe_hash": summary.started("recipe_hash"),
    })
}

/// Calls `with` the run of the query. Ids are compared with the ids of runs that were found: no path is made of one.
fn one(shared: &Shared, request: &Request, with: impl FnOnce(&Run) -> Result<Response>) -> Result<Response> {
    let id = request.asked("id").unwrap_or_default();
    match shared.runs(|runs| runs.get(id).cloned())? {
        Some(run) => with(&run),
        None => Ok(Response::text(404, "there is no such run")),
    }
}

fn curves(run: &Run, request: &Request) -> Result<Response> {
    let mut curves = Index::update(&run.directory)?.curves;
    if let Some(tags) = request.asked("tags") {
        let tags: Vec<&str> = tags.split(',').collect();
        curves.streams.values_mut().for_each(|stream| stream.series.retain(|tag, _| tags.contains(&tag.as_str())));
        curves.streams.retain(|_, stream| !stream.series.is_empty());
    }
    Ok(json_response(&serde_json::to_value(&curves).unwrap_or_default()))
}

fn report(shared: &Shared, request: &Request) -> Result<Response> {
    let ids: Vec<&str> = request.query.iter().filter(|(name, _)| name == "id").map(|(_, id)| id.as_str()).collect();
    let found: Vec<RunDirectory> =
        shared.runs(|runs| ids.iter().filter_map(|id| runs.get(id)).map(|run| run.directory.clone()).collect())?;
    if found.is_empty() || found.len() != ids.len() {
        return Ok(Response::text(404, "there is no such run"));
    }
    Ok(Response::new("text/html; charset=utf-8", Report::of(&found)?.html()))
}

fn exported(run: &Run) -> Result<Response> {
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = crate::runs::write_csv(&run.directory, &mut bytes)?;
    let name: String = run.directory.id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let attachment = format!("attachment; filename=\"{name}.csv\"");
    Ok(Response::new("text/csv; charset=utf-8", bytes).with("Content-Disposition", attachment))
}

fn delete(shared: &Shared, request: &Request) -> Result<Response> {
    one(shared, request, |run| {
        let response = match run.directory.delete() {
            Ok(()) => json_response(&json!({"deleted": run.directory.id})),
            Err(error) => Response::text(409, &render_error(&error)),
        };
        shared.forget_look();
        Ok(response)
    })
}
