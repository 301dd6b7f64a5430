//! Checkpoints: what is written is read, by any number of ranks; and nothing that a disk, a power cut, another program
//! or a kill does to a directory of checkpoints makes a wrong byte come out of it or the last good one unusable.

mod background;
mod corruption;
mod crash;
mod disk_full;
mod hostile;
mod kill;
mod prune;
mod reshard;
mod round_trip;
mod sample;
