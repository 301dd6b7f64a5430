//! Depends on bmtrain-programs alone: the allocator of programs is the one that ends a process at its limit.

#[global_allocator]
static HEAP: bmtrain_programs::bmtrain_core::heap::EndingHeap = bmtrain_programs::cli::HEAP;

#[test]
fn memory_is_allocated() {
    assert_eq!(vec![7u8; 1 << 20].iter().map(|&byte| u64::from(byte)).sum::<u64>(), 7 << 20);
}
