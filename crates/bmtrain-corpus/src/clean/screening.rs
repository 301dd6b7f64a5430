//! The first stage: documents are read, screened in parallel, and what is left of them is written in their order.

use std::time::{Duration, Instant};

use super::screen::{Screen, Screened};
use super::state::CleanState;
use super::{CleanProgress, CleanStage, Files, Work};
use crate::Result;
use crate::pipeline::{BATCHES_PER_THREAD, Pipeline};
use model_center_data::corpus::text::{DocumentCounts, Documents, TextRecord, TextSource};

/// A batch has this many bytes of text, or one document above.
const BATCH_BYTES: usize = 1 << 18;
/// Between two records of the state.
const SAVE_INTERVAL: Duration = Duration::from_secs(20);

/// Documents that are screened together, and what was read up to their end.
struct Batch {
    records: Vec<TextRecord>,
    counts: DocumentCounts,
}

struct ScreenedBatch {
    screened: Result<Vec<Screened>>,
    counts: DocumentCounts,
}

impl Work<'_> {
    /// Screens the documents that are left. False if a stop was requested before it was done.
    pub(super) fn screen(
        &self,
        source: &TextSource,
        screen: &Screen<'_>,
        state: &mut CleanState,
        files: &mut Files,
        show: &mut dyn FnMut(CleanProgress),
    ) -> Result<bool> {
        if state.is_screened {
            return Ok(true);
        }
        let mut documents = Documents::open(source.clone(), self.options.on_bad_record)?;
        while documents.counts().documents < state.counts.documents && documents.advance()?.is_some() {
            if self.stop.is_requested() {
                return Ok(false);
            }
        }
        let assess = |batch: Batch| ScreenedBatch {
            screened: batch.records.into_iter().map(|record| screen.assess(record)).collect(),
            counts: batch.counts,
        };
        std::thread::scope(|scope| {
            let mut pipeline = Pipeline::start(scope, self.threads, &assess);
            let (mut is_ended, mut saved) = (false, Instant::now());
            loop {
                while !is_ended && pipeline.in_flight() < BATCHES_PER_THREAD * self.threads {
                    let batch = read_batch(&mut documents)?;
                    is_ended = batch.records.is_empty() || self.stop.is_requested();
                    if !batch.records.is_empty() {
                        pipeline.send(batch);
                    }
                }
                let Some(batch) = pipeline.receive() else { break };
                for screened in batch.screened? {
                    add(files, state, &screened)?;
                    state.counts.documents += 1;
                }
                state.counts = batch.counts;
                let (done, total) = (documents.read_bytes(), documents.total_bytes());
                show(CleanProgress { stage: CleanStage::Screen, done, total });
                if saved.elapsed() >= SAVE_INTERVAL {
                    self.save_files(state, files)?;
                    saved = Instant::now();
                }
            }
            Ok::<(), crate::Error>(())
        })?;
        state.is_screened = documents.is_at_end();
        if state.is_screened {
            state.counts = documents.counts();
        }
        self.save_files(state, files)?;
        Ok(state.is_screened)
    }

    fn save_files(&self, state: &mut CleanState, files: &mut Files) -> Result<()> {
        files.fates.sync()?;
        state.store = files.store.sync()?;
        files.urls.sync()?;
        files.bands.sync()?;
        self.save(state)
    }
}

/// Writes what was decided about the next document.
fn add(files: &mut Files, state: &mut CleanState, screened: &Screened) -> Result<()> {
    let number = state.counts.documents;
    files.fates.add(screened.fate, screened.marks)?;
    if let Some(url) = screened.url {
        for part in [url[0], url[1], number] {
            files.urls.write(&part.to_le_bytes())?;
        }
        state.urls += 1;
    }
    if let Some(line) = &screened.line {
        files.store.add(number, line)?;
        screened.bands.iter().try_for_each(|hash| files.bands.write(&hash.to_le_bytes()))?;
    }
    Ok(())
}

fn read_batch(documents: &mut Documents) -> Result<Batch> {
    let (mut records, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES {
        let Some(record) = documents.advance_record()? else { break };
        bytes += record.text.len();
        records.push(record);
    }
    Ok(Batch { records, counts: documents.counts() })
}
