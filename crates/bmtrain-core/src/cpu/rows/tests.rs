//! Tests of this stem against plain loops in doubles.
