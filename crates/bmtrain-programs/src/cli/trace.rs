//! `--trace FILE`: the spans of a run as a Chrome trace, which Perfetto and chrome://tracing open.
//!
//! Each rank is a process of the trace and each lane one of its threads. The libraries open [`tracing`] spans; a span
//! with a field `rank` or `lane` names the track of the spans inside it and is not an event itself.

use crate::{Error, Result};
use bmtrain_core::Lane;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

/// Writes the events of a trace; [`TraceFile`] ends the file.
pub struct TraceLayer {
    out: Arc<Mutex<Out>>,
    started: Instant,
}

/// Completes the file when it is dropped.
#[must_use = "the trace is complete when this is dropped"]
pub struct TraceFile(Arc<Mutex<Out>>);

struct Out {
    file: Option<BufWriter<File>>,
    /// Tracks that have a name already.
    named: BTreeSet<(u64, usize)>,
    events: usize,
}

/// Fields of a span until it is closed.
#[derive(Default)]
struct Fields {
    values: Map<String, Value>,
    /// Microseconds since the start, on entry.
    entered: Option<f64>,
}

/// A layer that writes to `path`, and the handle that completes the file.
pub fn layer(path: &Path) -> Result<(TraceLayer, TraceFile)> {
    let file = File::create(path)
        .map_err(|error| Error::file("create", path, error, "give --trace a file in a directory that exists"))?;
    let mut file = BufWriter::new(file);
    // A disk that is full ends the trace, never the run.
    let file = file.write_all(b"[").is_ok().then_some(file);
    let out = Arc::new(Mutex::new(Out { file, named: BTreeSet::new(), events: 0 }));
    Ok((TraceLayer { out: Arc::clone(&out), started: Instant::now() }, TraceFile(out)))
}

impl Out {
    fn write(&mut self, event: &Value) {
        let separator = if self.events == 0 { "\n" } else { ",\n" };
        self.events += 1;
        if self.file.as_mut().is_some_and(|file| write!(file, "{separator}{event}").is_err()) {
            tracing::warn!("the trace could not be written to its end");
            self.file = None;
        }
    }

    fn name_track(&mut self, rank: u64, lane: usize, name: &str) {
        if self.named.insert((rank, lane)) {
            let named = |what: &str, name: String| {
                let args = json!({"name": name});
                json!({"ph": "M", "name": what, "pid": rank, "tid": lane, "args": args})
            };
            self.write(&named("process_name", format!("rank {rank}")));
            self.write(&named("thread_name", name.to_owned()));
        }
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut file) = out.file.take()
            && file.write_all(b"\n]\n").and_then(|()| file.flush()).is_err()
        {
            tracing::warn!("the trace could not be written to its end");
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.values.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.values.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.values.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.values.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

/// The innermost value of a field among a span and those around it.
fn around<'a, S: for<'l> LookupSpan<'l>>(span: &SpanRef<'a, S>, field: &str) -> Option<Value> {
    span.scope().find_map(|each| each.extensions().get::<Fields>().and_then(|fields| fields.values.get(field).cloned()))
}

impl<S: tracing::Subscriber + for<'l> LookupSpan<'l>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            fields.entered = Some(self.started.elapsed().as_secs_f64() * 1e6);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let (rank, lane) = (around(&span, "rank"), around(&span, "lane"));
        let mut extensions = span.extensions_mut();
        let Some(fields) = extensions.get_mut::<Fields>() else { return };
        let Some(entered) = fields.entered.take() else { return };
        if fields.values.contains_key("rank") || fields.values.contains_key("lane") {
            return;
        }
        let rank = rank.and_then(|rank| rank.as_u64()).unwrap_or(0);
        let lane = lane.as_ref().and_then(Value::as_str).unwrap_or("Compute").to_owned();
        let number = Lane::ALL.iter().position(|each| format!("{each:?}") == lane).unwrap_or(Lane::ALL.len());
        let event = json!({
            "ph": "X", "name": span.name(), "cat": span.metadata().target(), "pid": rank, "tid": number, "ts": entered,
            "dur": self.started.elapsed().as_secs_f64() * 1e6 - entered, "args": fields.values,
        });
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.name_track(rank, number, &lane);
        out.write(&event);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn spans_become_events_on_the_track_of_their_rank_and_lane() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let (layer, file) = layer(&path).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _rank = tracing::info_span!("rank", rank = 1u64).entered();
            let _step = tracing::info_span!("step", step = 7u64).entered();
            let lane = tracing::info_span!("lane", lane = "Zero");
            lane.in_scope(|| tracing::info_span!("all_gather", bytes = 512u64).in_scope(|| ()));
        });
        drop(file);
        let events: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(spans.len(), 2, "the spans that name tracks are no events: {events:?}");
        assert_eq!(
            (&spans[0]["name"], &spans[0]["pid"], &spans[0]["tid"]),
            (&json!("all_gather"), &json!(1), &json!(1))
        );
        assert_eq!(spans[0]["args"], json!({"bytes": 512}));
        assert_eq!(
            (&spans[1]["name"], &spans[1]["tid"], &spans[1]["args"]["step"]),
            (&json!("step"), &json!(0), &json!(7))
        );
        assert!(
            spans[1]["ts"].as_f64() <= spans[0]["ts"].as_f64() && spans[1]["dur"].as_f64() >= spans[0]["dur"].as_f64()
        );
        let names: Vec<_> =
            events.iter().filter(|event| event["name"] == "thread_name").map(|e| &e["args"]["name"]).collect();
        assert_eq!(names, ["Zero", "Compute"]);
    }
}
