//! Whether this process may multiply with the tile registers of Intel AMX.
//!
//! Three parties have to agree: the processor has the instructions, the operating system saves the registers, and, on
//! Linux, the process has asked for permission, since the registers make every saved context 8 KiB larger. Other
//! systems have no documented way to ask, so the set is for Linux alone.
#![allow(unsafe_code)]

/// Whether tiles of bf16 may be multiplied, and vectors rounded to bf16. The first call asks the kernel for permission;
/// it is asked once a process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn is_usable() -> bool {
    use std::sync::OnceLock;
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| {
        is_x86_feature_detected!("avx512bf16") && linux::has_tiles() && linux::saves_tiles() && linux::is_permitted()
    })
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn is_usable() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(unused_unsafe)] // `cpuid` is safe in newer standard libraries.
mod linux {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    /// Whether the processor has AMX-TILE and AMX-BF16 with the tiles that the routines are written for: eight
    /// registers of 16 rows of 64 bytes.
    pub(super) fn has_tiles() -> bool {
        const BF16: u32 = 1 << 22;
        const TILE: u32 = 1 << 24;
        const PALETTES: u32 = 0x1D;
        const MULTIPLIER: u32 = 0x1E;
        // SAFETY: every x86-64 processor has the instruction, and leaves are asked for up to the last one it has.
        unsafe {
            if __cpuid(0).eax < MULTIPLIER || __cpuid_count(7, 0).edx & (BF16 | TILE) != BF16 | TILE {
                return false;
            }
            let (palette, multiplier) = (__cpuid_count(PALETTES, 1), __cpuid_count(MULTIPLIER, 0));
            let (bytes_of_row, registers, rows) = (palette.ebx & 0xFFFF, palette.ebx >> 16, palette.ecx & 0xFFFF);
            let (most_rows, most_bytes) = (multiplier.ebx & 0xFF, multiplier.ebx >> 8 & 0xFFFF);
            bytes_of_row >= 64 && registers >= 8 && rows >= 16 && most_rows >= 16 && most_bytes >= 64
        }
    }

    /// Whether the operating system saves configuration and contents of the tiles: bits 17 and 18 of XCR0.
    pub(super) fn saves_tiles() -> bool {
        const OSXSAVE: u32 = 1 << 27;
        const TILES: u32 = 0b11 << 17;
        // SAFETY: as above.
        if unsafe { __cpuid(1) }.ecx & OSXSAVE == 0 {
            return false;
        }
        let saved: u32;
        // SAFETY: the operating system has turned the instruction on; it reads a register.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _, options(nomem, nostack, preserves_flags));
        }
        saved & TILES == TILES
    }

    /// Asks the kernel to let this process, with all threads of now and later, use the contents of tiles. False for
    /// kernels before 5.16, for a filter of system calls that refuses, and for a thread whose signal stack is too
    /// small.
    pub(super) fn is_permitted() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XTILEDATA: u64 = 18;
        let answer: i64;
        // SAFETY: the system call takes two numbers and touches no memory of the process; the kernel changes these two
        // registers besides the answer.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => answer,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack)
            );
        }
        answer == 0
    }
}
