//! Sums whose bits do not depend on the order of their terms: a fixed-point number wide enough for every square of an
//! f32.
//!
//! The norm of all gradients decides how every weight moves, so it has to be the same number however parameters are cut
//! over ranks and threads. Terms are added exactly here; only the last step, to a float, rounds. In memory a sum is
//! [`WORDS`] integers that add up element by element, so that a collective that adds integers adds sums.

/// Integers of a sum: the limbs, then the number of terms that were infinite, then of those that were not a number.
pub const WORDS: usize = LIMBS + 2;

/// Limbs of 32 bits, kept in 64 so that carries can wait.
const LIMBS: usize = 20;
const INFINITIES: usize = LIMBS;
const NANS: usize = LIMBS + 1;
const LIMB_BITS: i32 = 32;

/// The weight of the lowest bit is 2 to this power: the square of the smallest f32.
const LOWEST: i32 = -298;

/// Terms after which carries must move on: each adds less than 2^32 to a limb.
const MAX_TERMS: u32 = 1 << 30;

/// A sum of terms that are not negative and whose lowest bit is not below 2^-298; room for 2^64 squares of f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    words: [i64; WORDS],
    /// Terms since the carries moved.
    terms: u32,
}

impl Default for Sum {
    fn default() -> Self {
        Sum::ZERO
    }
}

impl Sum {
    /// No term yet.
    pub const ZERO: Sum = Sum { words: [0; WORDS], terms: 0 };

    /// Sum of the result of [`Sum::words`], or of the elementwise sum of several.
    pub fn from_words(words: [i64; WORDS]) -> Self {
        let mut sum = Sum { words, terms: 0 };
        sum.carry();
        sum
    }

    /// The sum as integers, each below 2^32 but for the last limb and the counts.
    pub fn words(mut self) -> [i64; WORDS] {
        self.carry();
        self.words
    }

    /// Add a term. Bits below 2^-298 would be lost; sums and products of f32 squares in f64 have none.
    pub fn add(&mut self, term: f64) {
        const MANTISSA_BITS: i32 = 52;
        if !term.is_finite() {
            self.words[if term.is_nan() { NANS } else { INFINITIES }] += 1;
            return;
        }
        let bits = term.to_bits();
        let exponent = (bits >> MANTISSA_BITS) as i32 & 0x7ff;
        // Below every square of an f32 there is zero alone.
        if exponent == 0 {
            return;
        }
        let mantissa = (bits & ((1 << MANTISSA_BITS) - 1)) | 1 << MANTISSA_BITS;
        let shift = exponent - 1023 - MANTISSA_BITS - LOWEST;
        let (mantissa, shift) = if shift < 0 { (mantissa >> (-shift).min(63), 0) } else { (mantissa, shift) };
        let (limb, offset) = ((shift / LIMB_BITS) as usize, shift % LIMB_BITS);
        let wide = u128::from(mantissa) << offset;
        for (word, part) in self.words[..LIMBS].iter_mut().skip(limb).zip([wide, wide >> 32, wide >> 64]) {
            *word += (part & 0xffff_ffff) as i64;
        }
        self.terms += 1;
        if self.terms == MAX_TERMS {
            self.carry();
        }
    }

    /// Add all terms of another sum.
    pub fn merge(&mut self, other: Sum) {
        self.carry();
        for (word, other) in self.words.iter_mut().zip(other.words()) {
            *word += other;
        }
        self.carry();
    }

    /// Rounded to a double: infinite or not a number as soon as one term was.
    pub fn to_f64(mut self) -> f64 {
        self.carry();
        if self.words[NANS] > 0 {
            return f64::NAN;
        }
        if self.words[INFINITIES] > 0 {
            return f64::INFINITY;
        }
        // Three limbs from the highest that is not zero hold at least 65 bits: what is below cannot be seen.
        let Some(top) = (0..LIMBS).rev().find(|&limb| self.words[limb] != 0) else { return 0.0 };
        let value =
            (top.saturating_sub(2)..=top).rev().fold(0u128, |value, limb| value << 32 | self.words[limb] as u128);
        let weight = LOWEST + LIMB_BITS * top.saturating_sub(2) as i32;
        // Two steps, as the weight alone may be below the smallest double's.
        value as f64 * 2f64.powi(weight / 2) * 2f64.powi(weight - weight / 2)
    }

    fn carry(&mut self) {
        let mut carry = 0;
        for word in &mut self.words[..LIMBS - 1] {
            *word += carry;
            carry = *word >> LIMB_BITS;
            *word &= 0xffff_ffff;
        }
        self.words[LIMBS - 1] += carry;
        self.terms = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(terms: &[f64]) -> Sum {
        let mut sum = Sum::ZERO;
        terms.iter().for_each(|term| sum.add(*term));
        sum
    }

    /// Squares over the whole range of f32, the smallest included.
    fn squares() -> Vec<f64> {
        let value = |i: u32| f32::from_bits(i.wrapping_mul(0x9e37_79b9) & 0x7f7f_ffff);
        let values = (0..4000).map(value).chain([f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, 0.0]);
        values.map(|x| f64::from(x) * f64::from(x)).collect()
    }

    #[test]
    fn terms_of_any_size_come_back_to_the_last_bit() {
        for term in squares() {
            assert_eq!(of(&[term]).to_f64(), term, "{term:e}");
            assert_eq!(of(&[term; 3]).to_f64(), 3.0 * term, "{term:e}");
        }
    }

    #[test]
    fn the_order_of_the_terms_does_not_matter() {
        let terms = squares();
        let backwards: Vec<f64> = terms.iter().rev().copied().collect();
        let whole = of(&terms);
        assert_eq!(whole.words(), of(&backwards).words());
        for cut in [1, 7, 1999, 4000] {
            let (left, right) = terms.split_at(cut);
            let (mut merged, right) = (of(left), of(right));
            let words = std::array::from_fn(|i| merged.words()[i] + right.words()[i]);
            assert_eq!(Sum::from_words(words).words(), whole.words(), "added as integers, split at {cut}");
            merged.merge(right);
            assert_eq!(merged.words(), whole.words(), "cut at {cut}");
        }
        // Doubles lose the small terms that follow large ones.
        assert_ne!(terms.iter().sum::<f64>() - f64::from(f32::MAX).powi(2), whole.to_f64());
    }

    #[test]
    fn a_small_term_counts_beside_a_large_one() {
        let large = f64::from(f32::MAX) * f64::from(f32::MAX);
        let mut sum = of(&[large]);
        for _ in 0..1000 {
            sum.add(2f64.powi(-298));
        }
        assert_eq!(sum.words()[0], 1000);
        assert_eq!(sum.to_f64(), large);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        assert_eq!(of(&[1.0, f64::INFINITY]).to_f64(), f64::INFINITY);
        assert!(of(&[f64::INFINITY, f64::NAN, 1.0]).to_f64().is_nan());
        assert_eq!(Sum::ZERO.to_f64(), 0.0);
    }
}
