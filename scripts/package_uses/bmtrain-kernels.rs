//! Depends on the kernel sources alone: every unit is whole CUDA C++ text.

#[test]
fn every_unit_is_whole_cuda_source() {
    for unit in bmtrain_kernels::UNITS {
        assert!(unit.text().contains("BMTRAIN_KERNEL("), "{} has no kernel", unit.name);
    }
}
