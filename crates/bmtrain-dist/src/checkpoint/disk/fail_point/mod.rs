//! Places inside saving and pruning at which a test can make the program fail or die.
//!
//! Defines [`FailPoint`] and [`FailPoints`], an explicit value: nothing here reads the environment. Without the feature
//! `testing` no fail point can be armed, and reaching one does nothing.

#[cfg(feature = "testing")]
mod armed;

#[cfg(feature = "testing")]
pub use armed::FailAction;

use crate::error::Result;

macro_rules! fail_points {
    ($($variant:ident = $name:literal, $about:literal;)*) => {
        /// A named place. The order is the one in which a save and the pruning after it reach them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FailPoint {
            $(#[doc = $about] $variant,)*
        }

        #[cfg(feature = "testing")]
        impl FailPoint {
            /// All of them.
            pub const ALL: &[FailPoint] = &[$(FailPoint::$variant),*];

            /// The name that [`FailPoints::parse`] reads.
            pub fn name(self) -> &'static str {
                match self {
                    $(FailPoint::$variant => $name,)*
                }
            }
        }
    };
}

fail_points! {
    SaveBeforeDirectory = "save.before_directory", "Before the temporary directory is made.";
    SaveBeforeShard = "save.before_shard", "Before a rank's file is made.";
    SaveMidShard = "save.mid_shard", "After the first piece of a rank's file that has any bytes.";
    SaveBeforeFsync = "save.before_fsync", "A rank's file is written, not flushed.";
    SaveAfterShard = "save.after_shard", "A rank's file is flushed and closed.";
    SaveBeforeManifest = "save.before_manifest", "All files are written, the manifest is not.";
    SaveMidManifest = "save.mid_manifest", "Half of the manifest is written.";
    SaveBeforeManifestFsync = "save.before_manifest_fsync", "The manifest is written, not flushed.";
    SaveBeforeDirectoryFsync = "save.before_directory_fsync", "All contents are flushed, their names are not.";
    SaveBeforeRename = "save.before_rename", "Everything is flushed under the temporary name.";
    SaveAfterRename = "save.after_rename", "The directory has its name, which is not flushed.";
    SaveAfterCommit = "save.after_commit", "The checkpoint is committed, the caller does not know it.";
    PruneBeforeRename = "prune.before_rename", "A checkpoint was chosen for removal.";
    PruneAfterRename = "prune.after_rename", "It has another name, with all its files.";
    PruneMid = "prune.mid", "One of its files is removed.";
}

/// The armed places, shared by all clones. The default has none.
#[derive(Debug, Clone, Default)]
pub struct FailPoints {
    #[cfg(feature = "testing")]
    armed: Option<armed::ArmedPoints>,
}

impl FailPoints {
    /// No place is armed.
    pub const NONE: FailPoints = FailPoints {
        #[cfg(feature = "testing")]
        armed: None,
    };

    /// The program has come to `point`.
    #[cfg_attr(not(feature = "testing"), expect(clippy::unused_self, clippy::unnecessary_wraps))]
    pub(super) fn reach(&self, point: FailPoint) -> Result<()> {
        #[cfg(feature = "testing")]
        if let Some(armed) = &self.armed {
            return armed.reach(point);
        }
        let _ = point;
        Ok(())
    }
}
