//! Sizes of the processor's caches.

use std::sync::OnceLock;

/// Bytes of the caches after the first level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// Second level, of one core.
    pub l2: usize,
    /// Third level, shared by some cores; the second level where there is none.
    pub l3: usize,
}

impl Caches {
    /// The caches of this processor; 256 KiB and 4 MiB where it does not report them.
    pub fn of_this_machine() -> Self {
        static FOUND: OnceLock<Caches> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let l2 = size_of_level(2).unwrap_or(256 << 10);
            Caches { l2, l3: size_of_level(3).unwrap_or(if cfg!(target_arch = "x86_64") { l2 } else { 4 << 20 }) }
        })
    }
}

/// The data or unified cache of a level, from the leaf that lists caches: 4 of Intel, 0x8000001D of AMD, in one format.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // `cpuid` is safe in newer standard libraries.
fn size_of_level(level: u32) -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const INTEL: u32 = 4;
    const AMD: u32 = 0x8000_001D;
    const MAX_LEVELS: u32 = 16;
    // SAFETY: every x86-64 processor has the instruction.
    let (basic, extended) = unsafe { (__cpuid(0).eax, __cpuid(0x8000_0000).eax) };
    [(AMD, extended), (INTEL, basic)].into_iter().filter(|(leaf, last)| leaf <= last).find_map(|(leaf, _)| {
        (0..MAX_LEVELS).find_map(|index| {
            // SAFETY: as above, and the processor has the leaf.
            let found = unsafe { __cpuid_count(leaf, index) };
            let (kind, of_level) = (found.eax & 0x1F, found.eax >> 5 & 0x7);
            let holds_data = kind == 1 || kind == 3;
            let (ways, partitions) = ((found.ebx >> 22) + 1, (found.ebx >> 12 & 0x3FF) + 1);
            let (line, sets) = ((found.ebx & 0xFFF) + 1, found.ecx as usize + 1);
            (holds_data && of_level == level).then(|| ways as usize * partitions as usize * line as usize * sets)
        })
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn size_of_level(_: u32) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_have_plausible_sizes() {
        let Caches { l2, l3 } = Caches::of_this_machine();
        assert!((64 << 10..=64 << 20).contains(&l2), "{l2}");
        assert!((l2..=4 << 30).contains(&l3), "{l3}");
    }
}
