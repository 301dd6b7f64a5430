//! Ranks on one machine.
