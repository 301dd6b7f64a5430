//! The time at which a process of a run is to end, as `--exit-at` gives it.
//!
//! Defines [`parse`], which reads it on the command line.

use jiff::civil::Time;
use jiff::{Timestamp, ToSpan, ZonedDateTime};
use model_center_base::file::printable;
use std::time::SystemTime;

const FORMS: &str = "give the date, time and offset, such as 2026-11-26T06:00:00+01:00, or HH:MM";
/// Longer texts are no time; an error shows as much of them.
const LONGEST: usize = 40;

/// A time in ISO 8601 with an offset, which has not passed, or `HH:MM`, the next time that the local clock shows it.
///
/// # Errors
/// Any other text, and a time that has passed, as a sentence for the command line.
pub fn parse(text: &str) -> Result<SystemTime, String> {
    parse_at(text, &ZonedDateTime::now())
}

/// Time that a text means at `now`, in the time zone of the local clock.
fn parse_at(text: &str, now: &ZonedDateTime) -> Result<SystemTime, String> {
    let shown = printable(text, LONGEST);
    let at = match time_of_day(text) {
        Some(time) => next(time, now).map_err(|error| format!("{shown}: {error}"))?,
        None if text.len() > LONGEST => return Err(format!("{shown} is not a time: {FORMS}")),
        None => text.parse().map_err(|_| format!("{shown} is not a time with an offset: {FORMS}"))?,
    };
    if at <= now.timestamp() {
        return Err(format!("{shown} has passed: give a later time"));
    }
    SystemTime::try_from(at).map_err(|error| format!("{shown}: {error}"))
}

/// Hours and minutes in two digits each.
fn time_of_day(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    let is_number = |text: &&str| text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
    let number = |text: &str| Some(text).filter(is_number)?.parse::<i8>().ok();
    Time::new(number(hour)?, number(minute)?, 0, 0).ok()
}

/// When the local clock shows this time next. A time that a change of the clock leaves out is as much later.
fn next(time: Time, now: &ZonedDateTime) -> Result<Timestamp, jiff::Error> {
    let today = now.date().to_datetime(time).to_zoned_datetime(now.time_zone().clone())?.timestamp();
    if today > now.timestamp() {
        return Ok(today);
    }
    let tomorrow = now.date().checked_add(1.day())?;
    Ok(tomorrow.to_datetime(time).to_zoned_datetime(now.time_zone().clone())?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;
    use std::time::{Duration, UNIX_EPOCH};

    /// Unix seconds of a text at noon, 2026-03-28, in Central Europe: the clock goes forward at 2:00 of the next day.
    fn seconds(text: &str) -> Result<u64, String> {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a time zone");
        let now: Timestamp = "2026-03-28T11:00:00Z".parse().expect("a time");
        let at = parse_at(text, &now.to_zoned_datetime(zone))?;
        Ok(at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs())
    }

    #[test]
    fn a_time_has_an_offset_or_is_the_next_on_the_local_clock() {
        let noon = 1_774_695_600;
        assert_eq!(seconds("2026-03-28T11:00:01Z"), Ok(noon + 1));
        assert_eq!(seconds("2026-03-28T14:30:00+02:00"), Ok(noon + 90 * 60));
        assert_eq!(seconds("2026-03-28T13:00+01:00"), Ok(noon + 60 * 60));
        // The local clock is an hour ahead of UTC, and from the next day on two.
        assert_eq!(seconds("12:01"), Ok(noon + 60));
        assert_eq!(seconds("12:00"), Ok(noon + 23 * 60 * 60));
        assert_eq!(seconds("01:59"), Ok(noon + 14 * 60 * 60 - 60));
        assert_eq!(seconds("02:30"), Ok(noon + 14 * 60 * 60 + 30 * 60));
        assert_eq!(seconds("03:30"), Ok(noon + 14 * 60 * 60 + 30 * 60));
    }

    #[test]
    fn other_texts_and_times_that_have_passed_are_refused() {
        for passed in ["2026-03-28T11:00:00Z", "2026-03-28T12:00:00+01:00", "1970-01-01T00:00:00Z"] {
            assert!(seconds(passed).is_err_and(|error| error.contains("has passed: give a later time")), "{passed}");
        }
        let long = "9".repeat(100_000);
        let others = [
            "",
            "12",
            "24:00",
            "12:60",
            "1:30",
            "012:30",
            "+1:30",
            "12:30:00",
            "12:30pm",
            "noon",
            "\u{1b}[2J",
            "1e9",
            "2026-03-29T14:30:00",
            "2026-03-29",
            "2026-13-29T14:30:00Z",
            "99999-03-29T14:30:00Z",
            long.as_str(),
        ];
        for other in others {
            let error = seconds(other).expect_err(other);
            assert!(error.contains("such as 2026-11-26T06:00:00+01:00, or HH:MM"), "{error}");
            assert!(error.len() < 300 && !error.contains('\u{1b}'), "{error}");
        }
    }
}
