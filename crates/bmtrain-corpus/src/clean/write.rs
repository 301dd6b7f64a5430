//! The last stages: task texts are taken out, and the documents are written in their order or shuffled.

use bmtrain_core::philox::Key;

use super::fates::{Fate, Fates, SPLIT};
use super::ngrams::{Filtered, TaskNgrams};
use super::state::CleanState;
use super::store::{Store, StorePosition, StoreWriter, line_of, put_text, text_under};
use super::{CleanProgress, CleanStage, LineWriter, Work};
use crate::pipeline::{BATCHES_PER_THREAD, Pipeline};
use crate::{Error, Result};
use bmtrain_dist::order::Permutation;
use model_center_data::corpus::{positioned::PositionedFile, spool::Spool, text::Documents};

/// Documents that are read together.
const BATCH: usize = 64;

/// Documents by place and number.
type Places = Vec<(u64, u64)>;

impl Work<'_> {
    /// Takes the texts of tasks out. False if a stop was requested before it was done.
    pub(super) fn tasks(
        &self,
        state: &mut CleanState,
        fates: &mut Fates,
        show: &mut dyn FnMut(CleanProgress),
    ) -> Result<bool> {
        let Some(tasks) = self.options.tasks.as_ref().filter(|_| state.filtered.is_none()) else { return Ok(true) };
        let mut ngrams = TaskNgrams::new(self.options.ngrams);
        let mut documents = Documents::open(tasks.clone(), self.options.on_bad_record)?;
        while let Some(text) = documents.advance()? {
            ngrams.add(&text);
        }
        let store = Store::open(&self.path("store"), state.store)?;
        if self.options.ngrams.common > 0 {
            let mut counts = vec![0; ngrams.len()];
            let look = |place: u64| -> Result<Vec<u32>> { Ok(ngrams.occurrences(&store.text(place, self.keys.text)?)) };
            let is_done = self.each(
                &store,
                fates,
                &look,
                &mut |_, _, numbers| {
                    numbers.into_iter().for_each(|number| counts[number as usize] += 1);
                    Ok(())
                },
                &mut |_| (),
            )?;
            if !is_done {
                return Ok(false);
            }
            ngrams.drop_common(&counts);
        }
        let begun = StoreWriter::open(&self.path("filtered"), StorePosition::default())?;
        let mut filtered =
            begun.ok_or_else(|| Error::argument("state", "an empty file is too short", "report this"))?;
        let mut changes = Vec::new();
        let filter = |place: u64| -> Result<Filtered> { Ok(ngrams.filter(&store.text(place, self.keys.text)?)) };
        let total = store.len();
        let is_done = self.each(
            &store,
            fates,
            &filter,
            &mut |place, number, left| match left {
                Filtered::Whole => filtered.add(number, &as_text(store.line(place)?, &store, place, self.keys.text)?),
                Filtered::Pieces(pieces) => {
                    changes.push((number, pieces.is_empty()));
                    self.add_pieces(&mut filtered, &store, (place, number), pieces)
                }
            },
            &mut |done| show(CleanProgress { stage: CleanStage::Tasks, done, total }),
        )?;
        if !is_done {
            return Ok(false);
        }
        for (number, is_empty) in changes {
            let (fate, mark) = if is_empty { (Fate::Task, 0) } else { (Fate::Kept, SPLIT) };
            fates.change(number, fate, mark)?;
        }
        fates.sync()?;
        state.filtered = Some(filtered.sync()?);
        self.save(state)?;
        Ok(true)
    }

    /// Writes the pieces of a document, each with its record and an id of its own.
    fn add_pieces(
        &self,
        filtered: &mut StoreWriter,
        store: &Store,
        (place, number): (u64, u64),
        pieces: Vec<String>,
    ) -> Result<()> {
        let fields = store.fields(place)?;
        for (piece, text) in pieces.into_iter().enumerate() {
            let mut fields = fields.clone();
            put_text(&mut fields, self.keys.text, text);
            let before = text_under(&fields, "split_id").map_or(String::new(), |id| format!("{id}-"));
            put_text(&mut fields, "split_id", format!("{before}{number:010}-{piece:04}"));
            filtered.add(number, &line_of(&fields)?)?;
        }
        Ok(())
    }

    /// Works on every document that is kept, in parallel, and takes the results in the order of the documents. False if
    /// a stop was requested before it was done.
    fn each<T: Send>(
        &self,
        store: &Store,
        fates: &Fates,
        work: &(dyn Fn(u64) -> Result<T> + Sync),
        take: &mut dyn FnMut(u64, u64, T) -> Result<()>,
        show: &mut dyn FnMut(u64),
    ) -> Result<bool> {
        let run = |places: Places| -> Result<Vec<(u64, u64, T)>> {
            places.into_iter().map(|(place, number)| Ok((place, number, work(place)?))).collect()
        };
        std::thread::scope(|scope| {
            let mut pipeline = Pipeline::start(scope, self.threads, &run);
            let mut next = 0;
            loop {
                while next < store.len() && pipeline.in_flight() < BATCHES_PER_THREAD * self.threads {
                    let mut places = Places::new();
                    while next < store.len() && places.len() < BATCH {
                        let number = store.number(next)?;
                        if fates.is_kept(number)? {
                            places.push((next, number));
                        }
                        next += 1;
                    }
                    pipeline.send(places);
                }
                let Some(results) = pipeline.receive() else { return Ok(true) };
                for (place, number, result) in results? {
                    take(place, number, result)?;
                }
                show(next);
                if self.stop.is_requested() {
                    return Ok(false);
                }
            }
        })
    }

    /// Writes the result, which gets its name when it is committed; `None` if a stop was requested before it was done.
    pub(super) fn write(
        &self,
        state: &CleanState,
        fates: &Fates,
        show: &mut dyn FnMut(CleanProgress),
    ) -> Result<Option<(LineWriter, StorePosition)>> {
        let (name, position) = state.filtered.map_or(("store", state.store), |position| ("filtered", position));
        let store = Store::open(&self.path(name), position)?;
        // The places of the documents that are kept, so that the one at any position is known.
        let mut kept = Spool::open(self.path("kept"))?;
        kept.cut(0)?;
        let mut total = 0;
        for place in 0..store.len() {
            if fates.is_kept(store.number(place)?)? {
                kept.write(&place.to_le_bytes())?;
                total += 1;
            }
        }
        kept.sync()?;
        let kept = PositionedFile::open(&self.path("kept"))?;
        let order = self.options.shuffle.map(|seed| Permutation::new(Key::new(seed, "corpus clean"), [0; 3], total));
        let mut lines = LineWriter::create(&self.result())?;
        let mut bytes = 0;
        for at in 0..total {
            let place = kept.u64_at(8 * order.and_then(|order| order.at(at)).unwrap_or(at))?;
            let line = store.line(place)?;
            lines.write(&line)?;
            lines.write(b"\n")?;
            bytes += line.len() as u64 + 1;
            if at % BATCH as u64 == 0 {
                show(CleanProgress { stage: CleanStage::Write, done: at, total });
                if self.stop.is_requested() {
                    return Ok(None);
                }
            }
        }
        Ok(Some((lines, StorePosition { documents: total, bytes })))
    }
}

fn as_text(line: Vec<u8>, store: &Store, place: u64, key: &str) -> Result<String> {
    String::from_utf8(line).map_err(|_| store.no_text(place, key))
}
