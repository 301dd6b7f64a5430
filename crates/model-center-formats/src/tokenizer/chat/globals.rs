//! The functions that templates find.

use std::sync::Mutex;

use jiff::tz::TimeZone;
use jiff::{Timestamp, fmt::strtime};
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, functions};

use super::environment::NOW;
use super::python::objects::{Cycler, Joiner, Range};
use super::python::{Args, fail, lists, required, size_argument, text};

/// Adds Jinja's and transformers' functions.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_function("range", |values: Rest<ValueOrKwargs>| range(Args::new(values.into_values())));
    environment.add_function("dict", |values: Rest<ValueOrKwargs>| lists::dict(Args::new(values.into_values())));
    let make = Value::from_function(functions::namespace);
    environment.add_function("namespace", move |state: &mut State<'_, '_>, values: Rest<ValueOrKwargs>| {
        let fields = lists::dict(Args::new(values.into_values()))?;
        for key in fields.try_iter()? {
            if key.as_str().is_some_and(|key| key.starts_with('_')) {
                return Err(fail(format!("the attribute {key} of a namespace begins with _, rename it")));
            }
        }
        make.call(state, &[fields])
    });
    environment.add_function("cycler", |items: Rest<Value>| match items.is_empty() {
        true => Err(fail("at least one item has to be provided")),
        false => Ok(Value::from_object(Cycler { items: items.to_vec(), at: Mutex::new(0) })),
    });
    environment.add_function("joiner", |values: Rest<ValueOrKwargs>| {
        let [separator] = Args::new(values.into_values()).bind("joiner", ["sep"])?;
        let separator = separator.unwrap_or_else(|| Value::from(", "));
        Ok::<_, Error>(Value::from_object(Joiner { separator, is_used: Mutex::new(false) }))
    });
    environment.add_function("lipsum", |_: Rest<ValueOrKwargs>| {
        Err::<Value, _>(fail("lipsum is not supported in chat templates: its text is random"))
    });
    environment.add_function("raise_exception", |state: &State<'_, '_>, message: &Value| {
        Err::<Value, _>(fail(text::str_of(state, message)?))
    });
    environment.add_function("strftime_now", |state: &State<'_, '_>, format: &str| -> Result<String, Error> {
        let seconds = state.lookup(NOW).and_then(|value| i64::try_from(value).ok()).unwrap_or(0);
        strftime(format, seconds).map_err(fail)
    });
}

fn range(args: Args) -> Result<Value, Error> {
    let [first, second, step] = args.bind("range", ["", "", ""])?;
    let number =
        |value: Option<Value>, otherwise: i64| value.map_or(Ok(otherwise), |value| size_argument(&value, "range"));
    let first = Some(required(first, "range", "stop")?);
    let step = number(step, 1)?;
    let (start, stop) = match second {
        None => (0, number(first, 0)?),
        second => (number(first, 0)?, number(second, 0)?),
    };
    Range::new(start, stop, step).map(Value::from_object)
}

/// Python's `strftime` in UTC, with the directives that templates use; the error is a sentence that names another one.
fn strftime(format: &str, seconds: i64) -> Result<String, String> {
    const DIRECTIVES: &str = "YymdHIMSjBbhAapFTZz%";
    let mut letters = format.chars();
    while letters.any(|letter| letter == '%') {
        // A hyphen leaves out leading zeros.
        let directive = letters.next().and_then(|letter| if letter == '-' { letters.next() } else { Some(letter) });
        if !directive.is_some_and(|letter| DIRECTIVES.contains(letter)) {
            let name = directive.map_or(String::new(), String::from);
            return Err(format!("strftime_now does not know %{name}"));
        }
    }
    let time = Timestamp::from_second(seconds).map_err(|error| error.to_string())?;
    strtime::format(format, &time.to_zoned_datetime(TimeZone::UTC)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_of_known_seconds_are_right() {
        let all = "%Y-%m-%d %H:%M:%S %A %a %B %b %h %j %y %I %p %-d %F %T %Z %z %%";
        let got = |seconds| strftime(all, seconds).unwrap();
        let epoch = "1970-01-01 00:00:00 Thursday Thu January Jan Jan 001 70 12 AM 1 1970-01-01 00:00:00 UTC +0000 %";
        assert_eq!(got(0), epoch);
        let leap = "2000-02-29 12:34:56 Tuesday Tue February Feb Feb 060 00 12 PM 29 2000-02-29 12:34:56 UTC +0000 %";
        assert_eq!(got(951_827_696), leap);
        let bare = "%-m %-d %-H %-I %-M %-S %-j %-y %-p %-F %-B";
        assert_eq!(strftime(bare, 1_041_397_445).unwrap(), "1 1 5 5 4 5 1 3 AM 2003-01-01 January");
        assert!(got(-1).starts_with("1969-12-31 23:59:59 Wednesday Wed December Dec Dec 365 69 11 PM 31"));
        for unknown in ["%Q", "%^a", "%:z", "a %"] {
            assert!(strftime(unknown, 0).unwrap_err().contains("does not know %"), "{unknown}");
        }
    }
}
