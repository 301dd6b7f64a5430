//! NumPy's generator `RandomState` with its `shuffle`, for index maps equal to Megatron-LM's.
//!
//! MT19937 (Matsumoto and Nishimura, 1998) started with one 32-bit seed, and the shuffle of Fisher and Yates from the
//! end, whose bounded integers come from masked rejection. Called by [`super::maps`].

const STATE: usize = 624;
const MIDDLE: usize = 397;

/// The generator `numpy.random.RandomState(seed)`.
#[derive(Debug)]
pub(super) struct NumpyRandom {
    state: [u32; STATE],
    next: usize,
}

impl NumpyRandom {
    pub(super) fn new(seed: u32) -> NumpyRandom {
        let mut state = [seed; STATE];
        for at in 1..STATE {
            let before = state[at - 1];
            state[at] = (before ^ before >> 30).wrapping_mul(1_812_433_253).wrapping_add(at as u32);
        }
        NumpyRandom { state, next: STATE }
    }

    /// `shuffle` of a one-dimensional array.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.up_to(at as u64) as usize;
            items.swap(at, other);
        }
    }

    /// A number from 0 to `most`, both included.
    fn up_to(&mut self, most: u64) -> u64 {
        let mask = u64::MAX >> most.leading_zeros();
        loop {
            let value = if most <= u64::from(u32::MAX) {
                u64::from(self.u32())
            } else {
                // The more significant half is the first of the two.
                let high = u64::from(self.u32());
                high << 32 | u64::from(self.u32())
            };
            if value & mask <= most {
                return value & mask;
            }
        }
    }

    fn u32(&mut self) -> u32 {
        if self.next == STATE {
            self.renew();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    fn renew(&mut self) {
        for at in 0..STATE {
            let joined = self.state[at] & 0x8000_0000 | self.state[(at + 1) % STATE] & 0x7fff_ffff;
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[at] = self.state[(at + MIDDLE) % STATE] ^ joined >> 1 ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published with the reference implementation of the generator: the 10,000th number after the seed 5489.
    #[test]
    fn the_published_number_of_the_generator_holds() {
        let mut random = NumpyRandom::new(5489);
        let last = (0..10_000).map(|_| random.u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn a_shuffle_keeps_the_items() {
        let mut items: Vec<u32> = (0..1000).collect();
        NumpyRandom::new(1234).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
        NumpyRandom::new(1).shuffle::<u8>(&mut []);
    }
}
