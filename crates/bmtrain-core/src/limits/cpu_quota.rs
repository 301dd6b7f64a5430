//! The processor time that control groups leave to this process, as containers set it (`--cpus`, `limits.cpu`).
//!
//! Called by the survey of processors, which bounds the default number of threads by it.

use super::control_groups::{Group, MOUNT, OWN, groups, text};
use std::fmt;
use std::path::Path;

/// Processor time in each period: where it is used up, all threads stop until the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuQuota {
    /// Processor time of all threads together, microseconds.
    pub quota_us: u64,
    /// The period, microseconds.
    pub period_us: u64,
    /// The file of the control group that sets it.
    pub place: String,
}

impl CpuQuota {
    /// The number of processors that this time is worth.
    pub fn processors(&self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }

    /// [`CpuQuota::processors`] rounded up; at least 1.
    pub fn threads(&self) -> usize {
        usize::try_from(self.quota_us.div_ceil(self.period_us.max(1))).unwrap_or(usize::MAX).max(1)
    }

    fn is_below(&self, other: &Self) -> bool {
        let scaled = |quota: u64, period: u64| u128::from(quota) * u128::from(period);
        scaled(self.quota_us, other.period_us) < scaled(other.quota_us, self.period_us)
    }
}

impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processors = (self.processors() * 100.0).round() / 100.0;
        write!(f, "time of {processors} processors ({})", self.place)
    }
}

/// The tightest quota of the control groups above this process; `None` where there is none.
pub fn cpu_quota() -> Option<CpuQuota> {
    read(&text(Path::new(OWN))?, Path::new(MOUNT))
}

fn read(own: &str, mount: &Path) -> Option<CpuQuota> {
    let found = groups(own, mount).into_iter().filter(|group| group.has("cpu")).filter_map(|group| quota(&group));
    found.reduce(|tightest, quota| if quota.is_below(&tightest) { quota } else { tightest })
}

fn quota(group: &Group<'_>) -> Option<CpuQuota> {
    let read = |name: &str| text(&group.directory.join(name));
    let (name, [quota, period]) = match group.is_version_2() {
        true => ("cpu.max", fields(&read("cpu.max")?)?),
        false => ("cpu.cfs_quota_us", [read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?]),
    };
    // "max" and -1, which stand for no quota, are no numbers either.
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number > 0);
    let place = group.directory.join(name).display().to_string();
    Some(CpuQuota { quota_us: number(&quota)?, period_us: number(&period)?, place })
}

/// Quota and period in one line.
fn fields(line: &str) -> Option<[String; 2]> {
    let (quota, period) = line.trim().split_once(' ')?;
    Some([quota.to_owned(), period.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quota read from files below a directory of the test's own.
    fn quota_of(own: &str, files: &[(&str, &str)]) -> Option<(String, usize)> {
        let mount = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = mount.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = format!("{}/", mount.path().display());
        read(own, mount.path()).map(|quota| (quota.to_string().replace(&root, ""), quota.threads()))
    }

    #[test]
    fn the_tightest_quota_above_the_process_counts_and_is_rounded_up() {
        let files = [
            ("pod/cpu.max", "250000 100000\n"),
            ("pod/container/cpu.max", "max 100000\n"),
            ("cpu.max", "30000 10000\n"),
        ];
        let found = quota_of("0::/pod/container\n", &files);
        assert_eq!(found, Some(("time of 2.5 processors (pod/cpu.max)".into(), 3)));
        let half = quota_of("0::/\n", &[("cpu.max", "50000 100000")]);
        assert_eq!(half, Some(("time of 0.5 processors (cpu.max)".into(), 1)));
    }

    #[test]
    fn version_1_has_two_files_and_its_own_hierarchy() {
        let own = "3:cpu,cpuacct:/docker/0123\n2:memory:/\n";
        let files = [("cpu,cpuacct/cpu.cfs_quota_us", "400000\n"), ("cpu,cpuacct/cpu.cfs_period_us", "100000\n")];
        let found = quota_of(own, &files);
        assert_eq!(found, Some(("time of 4 processors (cpu,cpuacct/cpu.cfs_quota_us)".into(), 4)));
        let unlimited = [("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"), ("cpu,cpuacct/cpu.cfs_period_us", "100000\n")];
        assert_eq!(quota_of(own, &unlimited), None);
        // The time that was used has a controller of its own, which sets nothing.
        let accounts = [("cpuacct/cpu.cfs_quota_us", "1000\n"), ("cpuacct/cpu.cfs_period_us", "1000\n")];
        assert_eq!(quota_of("3:cpuacct:/\n", &accounts), None);
    }

    #[test]
    fn what_is_no_quota_is_none() {
        let huge = "99999999999999999999 1";
        for text in ["", "max", "max 100000", "100000", "0 100000", "1 0", "-5 100000", huge, "a b"] {
            assert_eq!(quota_of("0::/\n", &[("cpu.max", text)]), None, "{text}");
        }
        let most = quota_of("0::/../..\n", &[("cpu.max", "18446744073709551615 1")]).unwrap();
        assert_eq!(most.1, usize::MAX);
        assert_eq!(quota_of("nonsense", &[("cpu.max", "1 1")]), None);
    }
}
