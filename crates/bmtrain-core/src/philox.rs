//! The counter-based generator Philox4x32-10 (Salmon et al., 2011), frozen: its values never change between versions.
//!
//! Initial weights, dropout and shuffling are pure functions of an address, so that recomputation, resuming and any
//! number of ranks see the same bits and no generator state is ever saved.

/// A 64-bit key: a seed and what it is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u32; 2]);

impl Key {
    /// The key of a purpose, such as a parameter name or the path of a dropout, under a seed.
    ///
    /// FNV-1a over the bytes of the purpose, then the finalizer of SplitMix64 over its sum with the seed: neighbouring
    /// seeds and names give unrelated keys. Frozen with the generator.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let hash = purpose
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(hash);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Key([z as u32, (z >> 32) as u32])
    }
}

/// One block: four random integers for a 128-bit counter.
#[inline(always)]
pub fn block(key: Key, counter: [u32; 4]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for [k0, k1] in round_keys(key) {
        let p0 = u64::from(c0) * 0xd251_1f53;
        let p1 = u64::from(c2) * 0xcd9e_8d57;
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
    }
    [c0, c1, c2, c3]
}

/// The keys of the ten rounds.
#[inline(always)]
pub(crate) fn round_keys(key: Key) -> [[u32; 2]; 10] {
    let Key([first, second]) = key;
    std::array::from_fn(|round| {
        let round = round as u32;
        [first.wrapping_add(round.wrapping_mul(0x9e37_79b9)), second.wrapping_add(round.wrapping_mul(0xbb67_ae85))]
    })
}

/// A random integer as a number in `(0, 1)`, never 0 and never 1.
#[inline(always)]
pub fn unit(word: u32) -> f32 {
    // 23 bits and a half step: exactly representable, symmetric about 1/2.
    ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the generator's reference implementation.
    #[test]
    fn known_answers_hold() {
        assert_eq!(block(Key([0, 0]), [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block(Key([u32::MAX; 2]), [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let answer = block(Key([0xa409_3822, 0x299f_31d0]), pi);
        assert_eq!(answer, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn keys_are_frozen_and_differ_by_seed_and_purpose() {
        assert_ne!(Key::new(0, "a"), Key::new(1, "a"));
        assert_ne!(Key::new(0, "a"), Key::new(0, "b"));
        assert_eq!(Key::new(42, "encoder.layers.0"), Key::new(42, "encoder.layers.0"));
    }

    #[test]
    fn units_stay_inside_the_open_interval() {
        for word in [0, 1, 511, 512, u32::MAX, u32::MAX - 512] {
            assert!(unit(word) > 0.0 && unit(word) < 1.0);
        }
        assert_eq!(unit(0) + unit(u32::MAX), 1.0);
    }
}
