//! Numbers within bounds as terms: decimal digits are compared one by one.

use super::bytes::ByteSet;
use super::json::{Json, MAX_DIGITS};
use super::terms::{EMPTY, EPSILON, Term, Terms};

/// States of an automaton of numbers.
const MAX_STATES: usize = 40_000;

/// A bound of numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bound {
    is_negative: bool,
    /// Digits before the point, without zeros that lead.
    whole: Vec<u8>,
    /// Digits after the point, without zeros at the end.
    fraction: Vec<u8>,
    /// Whether the bound itself is left out.
    pub(super) is_exclusive: bool,
}

impl Bound {
    /// A bound by its number in JSON; `None` of one with too many digits.
    pub(super) fn of(number: &serde_json::Number, is_exclusive: bool) -> Option<Self> {
        // The shortest decimal that is the same in double precision, without an exponent.
        let text = match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), ..) => integer.to_string(),
            (_, Some(integer), _) => integer.to_string(),
            (.., Some(number)) => number.to_string(),
            _ => return None,
        };
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text.as_str()), |rest| (true, rest));
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let whole = whole.trim_start_matches('0').as_bytes().to_vec();
        let fraction = fraction.trim_end_matches('0').as_bytes().to_vec();
        let is_zero = whole.is_empty() && fraction.is_empty();
        let is_short = whole.len() + fraction.len() <= MAX_DIGITS as usize;
        is_short.then_some(Bound { is_negative: is_negative && !is_zero, whole, fraction, is_exclusive })
    }
}

/// A side of a bound's magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Above,
    Below,
}

/// Terms of digits for one kind of numbers.
struct Digits<'t> {
    terms: &'t mut Terms,
    digit: Term,
    /// Whether numbers have no fraction.
    is_integer: bool,
}

impl Digits<'_> {
    fn range(&mut self, first: u8, last: u8) -> Term {
        if first > last { EMPTY } else { self.terms.bytes(ByteSet::range(first, last)) }
    }

    fn digits(&mut self, least: usize, most: usize) -> Term {
        self.terms.repeat(self.digit, least as u32, Some(most as u32))
    }

    /// Any fraction, or none.
    fn fraction(&mut self) -> Term {
        if self.is_integer {
            return EPSILON;
        }
        let (point, digits) = (self.terms.text(b"."), self.digits(1, MAX_DIGITS as usize));
        let fraction = self.terms.sequence(point, digits);
        self.terms.optional(fraction)
    }

    /// Digits from `own` on that make a string of the same length which is larger or smaller, or the same followed by
    /// `same`.
    fn compared(&mut self, own: &[u8], side: Side, (rest, same): (impl Fn(&mut Self, usize) -> Term, Term)) -> Term {
        let mut term = same;
        for (place, digit) in own.iter().enumerate().rev() {
            let first_least = if place == 0 && own.len() > 1 { b'1' } else { b'0' };
            let other = match side {
                Side::Above => self.range(digit + 1, b'9'),
                Side::Below => self.range(first_least, digit - 1),
            };
            let after = rest(self, own.len() - place - 1);
            let (other, equal) = (self.terms.sequence(other, after), self.range(*digit, *digit));
            let equal = self.terms.sequence(equal, term);
            term = self.terms.either([other, equal]);
        }
        term
    }

    /// Fractions with their point, or none, that are at least or at most `own`, or not the same if `is_exclusive`.
    fn compared_fraction(&mut self, own: &[u8], side: Side, is_exclusive: bool) -> Term {
        let is_whole = own.is_empty();
        // Without a fraction the number is the whole part alone.
        let none = match side {
            Side::Above => is_whole && !is_exclusive,
            Side::Below => !is_whole || !is_exclusive,
        };
        let none = if none { EPSILON } else { EMPTY };
        if self.is_integer {
            return none;
        }
        let most = MAX_DIGITS as usize;
        let zero = self.range(b'0', b'0');
        // From the end: what may follow once all digits so far are equal.
        let zeros = self.terms.repeat(zero, 0, Some(most as u32));
        let mut term = match side {
            Side::Above if is_exclusive => {
                let (above, any) = (self.range(b'1', b'9'), self.digits(0, most));
                self.terms.all(&[zeros, above, any])
            }
            Side::Above => self.digits(0, most),
            Side::Below if is_exclusive => EMPTY,
            Side::Below => zeros,
        };
        for (place, digit) in own.iter().enumerate().rev() {
            let any = self.digits(0, most);
            let other = match side {
                Side::Above => self.range(digit + 1, b'9'),
                Side::Below => self.range(b'0', digit - 1),
            };
            let (other, equal) = (self.terms.sequence(other, any), self.range(*digit, *digit));
            let equal = self.terms.sequence(equal, term);
            // An end here is a zero in each place that is left, which is less.
            let end = if side == Side::Below && place > 0 { EPSILON } else { EMPTY };
            term = self.terms.either([other, equal, end]);
        }
        let point = self.terms.text(b".");
        let with = self.terms.sequence(point, term);
        self.terms.either([none, with])
    }

    /// Numbers without a sign that are at least or at most the magnitude of a bound.
    fn magnitude(&mut self, bound: &Bound, side: Side) -> Term {
        let zero = [b'0'];
        let own: &[u8] = if bound.whole.is_empty() { &zero } else { &bound.whole };
        let same = self.compared_fraction(&bound.fraction, side, bound.is_exclusive);
        let fraction = self.fraction();
        let rest = |digits: &mut Self, count: usize| {
            let after = digits.digits(count, count);
            digits.terms.sequence(after, fraction)
        };
        let compared = self.compared(own, side, (rest, same));
        let first = self.range(b'1', b'9');
        let others = match side {
            // More digits.
            Side::Above => match (MAX_DIGITS as usize).checked_sub(own.len() + 1) {
                Some(more) => {
                    let further = self.digits(own.len(), own.len() + more);
                    self.terms.all(&[first, further, fraction])
                }
                None => EMPTY,
            },
            // Fewer digits; a zero has one.
            Side::Below if own.len() > 1 => {
                let further = self.digits(0, own.len() - 2);
                let (above, zero) = (self.terms.sequence(first, further), self.range(b'0', b'0'));
                let number = self.terms.either([zero, above]);
                self.terms.sequence(number, fraction)
            }
            Side::Below => EMPTY,
        };
        self.terms.either([compared, others])
    }

    /// Any number without a sign.
    fn any(&mut self) -> Term {
        let (zero, first) = (self.range(b'0', b'0'), self.range(b'1', b'9'));
        let further = self.digits(0, MAX_DIGITS as usize - 1);
        let above = self.terms.sequence(first, further);
        let (number, fraction) = (self.terms.either([zero, above]), self.fraction());
        self.terms.sequence(number, fraction)
    }

    /// Numbers on a side of a bound.
    fn bounded(&mut self, bound: &Bound, side: Side) -> Term {
        // On the far side of zero the bound's magnitude is a least one, and no number of the other sign is in.
        let is_far = (side == Side::Below) == bound.is_negative;
        let own = self.magnitude(bound, if is_far { Side::Above } else { Side::Below });
        let others = if is_far { EMPTY } else { self.any() };
        let (positive, negative) = if bound.is_negative { (others, own) } else { (own, others) };
        let minus = self.terms.text(b"-");
        let negative = self.terms.sequence(minus, negative);
        self.terms.either([positive, negative])
    }
}

/// Numbers within bounds, of at most [`MAX_DIGITS`] digits and without an exponent; integers that are multiples of a
/// number. The reason why there are none, or the automaton would be too large, is an error.
pub(super) fn within(
    terms: &mut Terms,
    json: &Json,
    (is_integer, multiple): (bool, Option<u32>),
    (least, most): (&[Bound], &[Bound]),
) -> Result<Term, &'static str> {
    let mut digits = Digits { terms, digit: json.digit, is_integer };
    let sides = least.iter().map(|bound| (bound, Side::Above)).chain(most.iter().map(|bound| (bound, Side::Below)));
    let bounded: Vec<Term> = sides.map(|(bound, side)| digits.bounded(bound, side)).collect();
    let (minus, number) = (digits.terms.text(b"-"), digits.any());
    // A negative zero is a zero, and is left out.
    let (zero, point) = (digits.range(b'0', b'0'), digits.terms.text(b"."));
    let more_zeros = digits.terms.repeat(zero, 1, None);
    let fraction = digits.terms.sequence(point, more_zeros);
    let fraction = digits.terms.optional(fraction);
    let zero = digits.terms.all(&[minus, zero, fraction]);
    let minus = digits.terms.optional(minus);
    let number = digits.terms.sequence(minus, number);
    // At most this number of digits in all.
    let point = digits.terms.optional(point);
    let place = digits.terms.sequence(json.digit, point);
    let places = digits.terms.repeat(place, 1, Some(MAX_DIGITS));
    let short = digits.terms.sequence(minus, places);
    let not_zero = terms.not(zero);
    let mut all = [number, short, not_zero].into_iter().chain(bounded).collect::<Vec<_>>();
    if let Some(multiple) = multiple.filter(|multiple| *multiple > 1) {
        all.push(multiples(terms, multiple));
    }
    let all = all.into_iter().reduce(|one, other| terms.both(one, other)).unwrap_or(number);
    match terms.automaton(all, MAX_STATES) {
        None => Err("its bounds need too many states"),
        Some(EMPTY) => Err("no number is within its bounds"),
        Some(term) => Ok(term),
    }
}

/// Integers that are multiples of a number, with a sign or without.
fn multiples(terms: &mut Terms, multiple: u32) -> Term {
    // State 0 is the start, 1 comes after a sign, and the others are remainders.
    let step = |state: u32, byte: u8| match (state, byte) {
        (0, b'-') => Some(1),
        (state, b'0'..=b'9') => {
            let digit = u64::from(byte - b'0');
            Some(2 + ((u64::from(state.saturating_sub(2)) * 10 + digit) % u64::from(multiple)) as u32)
        }
        _ => None,
    };
    let states = multiple as usize + 2;
    let accepting = (0..states).map(|state| state == 2).collect();
    terms.state(super::dfa::Dfa::from_steps(states, step, accepting))
}

#[cfg(test)]
mod tests;
