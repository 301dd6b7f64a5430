//! Differentiable operations, one file per stem: check shapes, allocate, launch, push the backward structure.
