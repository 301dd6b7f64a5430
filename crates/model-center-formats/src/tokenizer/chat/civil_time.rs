//! A point of time as a date, for templates that state it.
//!
//! Defines [`strftime`], the part of Python's function that templates use, in UTC.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `format` with its directives filled in; the error is a sentence that names a directive that is not known.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String, String> {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let weekday = DAYS[(days + 4).rem_euclid(7) as usize];
    let name = MONTHS[month as usize - 1];
    let of_twelve = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut directive = letters.next();
        // A hyphen leaves out leading zeros.
        let bare = directive == Some('-');
        if bare {
            directive = letters.next();
        }
        let number = |value: i64, digits: usize| if bare { value.to_string() } else { format!("{value:0digits$}") };
        out += &match directive {
            Some('Y') => year.to_string(),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(of_twelve, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second % 60, 2),
            Some('j') => number(days - days_before(year) + 1, 3),
            Some('B') => name.to_owned(),
            Some('b' | 'h') => name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => return Err(format!("strftime_now does not know %{}", other.map_or(String::new(), String::from))),
        };
    }
    Ok(out)
}

/// Days from 1970 to the first of January of `year`.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) - 719_162
}

/// Year, month and day of a day counted from 1970.
fn date(days: i64) -> (i64, i64, i64) {
    // 146,097 days are 400 years; from there at most one year off.
    let mut year = 1970 + days * 400 / 146_097;
    while days_before(year) > days {
        year -= 1;
    }
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = days_before(year + 1) - days_before(year) == 366;
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut left = days - days_before(year);
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month.min(12), left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_seconds_are_right() {
        let all = "%Y-%m-%d %H:%M:%S %A %a %B %b %j %y %I %p %-d %%";
        let got = |seconds| strftime(all, seconds).unwrap();
        assert_eq!(got(0), "1970-01-01 00:00:00 Thursday Thu January Jan 001 70 12 AM 1 %");
        assert_eq!(got(951_827_696), "2000-02-29 12:34:56 Tuesday Tue February Feb 060 00 12 PM 29 %");
        assert_eq!(got(1_735_689_599), "2024-12-31 23:59:59 Tuesday Tue December Dec 366 24 11 PM 31 %");
        assert_eq!(got(-1), "1969-12-31 23:59:59 Wednesday Wed December Dec 365 69 11 PM 31 %");
        assert!(strftime("%Q", 0).unwrap_err().contains("%Q"));
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut before = date(-1);
        for days in 0..146_097 {
            let (year, month, day) = date(days);
            let follows = (year, month, day) == (before.0, before.1, before.2 + 1)
                || (day == 1 && (year, month) == (before.0, before.1 + 1) && before.2 >= 28)
                || ((month, day) == (1, 1) && (year, 12, 31) == (before.0 + 1, before.1, before.2));
            assert!(follows, "{before:?} {year} {month} {day}");
            before = (year, month, day);
        }
        assert_eq!(before, (2369, 12, 31));
    }
}
