//! Answers of the store to a rank that was let in: to questions about values, barriers, and the end of a rank.
//!
//! Called by `server`.

use super::board::{Board, Fault, Gathered};
use super::frame::{self, Broken, Fields, MAX_FRAME, Op, numbers, texts};
use super::server::{LOOK, Shared, State};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Time for a member's frame, once its first byte is there.
const FRAME: Duration = Duration::from_secs(5);
/// Interval at which an idle connection looks whether the server is closing; closing wakes it at once where it can.
const IDLE: Duration = Duration::from_secs(10);
/// No request waits longer than this at the server.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Answer to a question.
type Answer = (Op, Vec<u8>);

/// Continuation of a connection after an answer.
pub(super) enum Next {
    Question,
    /// It is no longer the store's.
    Release,
}

impl Shared {
    /// Wait for a question and answer it. An error ends the connection.
    pub(super) fn answer(&self, rank: usize, stream: &TcpStream) -> std::result::Result<Next, Broken> {
        loop {
            // What has come may still be read after the other half of the connection was shut.
            let come = frame::has_come(stream, IDLE)?;
            if self.lock().closing {
                return Err(Broken::Closed);
            }
            if come {
                break;
            }
        }
        let question = frame::read(stream, MAX_FRAME, Instant::now() + FRAME)?;
        let mut fields = Fields(&question.body);
        let key = fields.text().ok_or(Broken::Foreign)?;
        let (op, body) = match question.op {
            Op::Set => self.change(|board| board.set(key, fields.0).map(|()| (Op::Done, Vec::new()))),
            Op::Add => {
                let delta = fields.u64().ok_or(Broken::Foreign)? as i64;
                self.change(|board| board.add(key, delta).map(|sum| (Op::Value, sum.to_le_bytes().to_vec())))
            }
            Op::Get => self.get(key, fields.u64().ok_or(Broken::Foreign)?, stream)?,
            Op::Barrier => self.barrier(key, rank, fields.u64().ok_or(Broken::Foreign)?, stream)?,
            Op::Abandon => {
                let [code] = fields.bytes().ok_or(Broken::Foreign)?;
                let reason = String::from_utf8_lossy(fields.0).replace(char::is_control, " ");
                self.fail(Fault::Ended { rank, code, reason });
                (Op::Done, Vec::new())
            }
            Op::Release => (Op::Value, texts(self.lock().board.hosts())),
            _ => return Err(Broken::Foreign),
        };
        frame::write(stream, op, &body, Instant::now() + FRAME)?;
        Ok(if question.op == Op::Release { Next::Release } else { Next::Question })
    }

    /// Change what is stored, and wake those who wait for it.
    fn change(&self, change: impl FnOnce(&mut Board) -> std::result::Result<Answer, String>) -> Answer {
        let answer = change(&mut self.lock().board);
        self.changed.notify_all();
        answer.unwrap_or_else(|reason| (Op::Bad, reason.into_bytes()))
    }

    fn get(&self, key: &str, millis: u64, stream: &TcpStream) -> std::result::Result<Answer, Broken> {
        self.watch(millis, stream, |state, last| match state.board.get(key) {
            Some(value) => Some((Op::Value, value.to_vec())),
            None if state.closing => Some((Op::Closed, Vec::new())),
            None => last.then(|| (Op::Late, Vec::new())),
        })
    }

    fn barrier(&self, name: &str, rank: usize, millis: u64, stream: &TcpStream) -> std::result::Result<Answer, Broken> {
        let mut state = self.lock();
        if let Err(reason) = state.board.arrive(name, rank) {
            return Ok((Op::Bad, reason.into_bytes()));
        }
        if state.board.gathered(name) == Gathered::Complete {
            self.changed.notify_all();
        }
        drop(state);
        let patience = self.options.patience;
        self.watch(millis, stream, |state, last| match state.board.gathered(name) {
            _ if state.board.fault().is_some() => state.board.fault().map(told),
            Gathered::Complete => {
                state.board.leave(name);
                Some((Op::Done, Vec::new()))
            }
            Gathered::Lost(ranks) => Some((Op::Lost, numbers(&ranks))),
            Gathered::Waiting => {
                // At the deadline a rank that was refused is named as such, however short a time ago that was.
                let patience = if last { Duration::ZERO } else { patience };
                let missing = || numbers(&state.board.missing(name));
                match state.refused.overdue(Instant::now(), patience) {
                    Some(refused) => Some((Op::Refused, refused)),
                    None if state.closing => Some((Op::Closed, missing())),
                    None => last.then(|| (Op::Late, missing())),
                }
            }
        })
    }

    /// Look at the state whenever it changes, until `look` finds an answer; it has to when it is told that this is the
    /// last time. Ends early if the one who waits is gone.
    fn watch(
        &self,
        millis: u64,
        stream: &TcpStream,
        mut look: impl FnMut(&mut State, bool) -> Option<Answer>,
    ) -> std::result::Result<Answer, Broken> {
        let deadline = Instant::now() + Duration::from_millis(millis).min(MAX_WAIT);
        loop {
            let mut state = self.lock();
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(answer) = look(&mut state, left.is_zero()) {
                return Ok(answer);
            }
            let seen = Instant::now();
            drop(self.wait(state, left.min(LOOK)));
            if seen.elapsed() >= LOOK {
                // Nothing may come while an answer is due; what has come is the end, or breaks the protocol.
                match frame::has_come(stream, Duration::from_millis(1)) {
                    Ok(false) => {}
                    Ok(true) => return Err(Broken::Foreign),
                    Err(Broken::Closed) if self.lock().closing => {}
                    Err(broken) => return Err(broken),
                }
            }
        }
    }
}

/// Answer to ranks that wait for a job that cannot start.
fn told(fault: &Fault) -> Answer {
    match fault {
        Fault::Ended { rank, code, reason } => {
            (Op::Ended, [&(*rank as u32).to_le_bytes(), [*code].as_slice(), reason.as_bytes()].concat())
        }
        Fault::Differs(reason) => (Op::Differs, reason.clone().into_bytes()),
    }
}
