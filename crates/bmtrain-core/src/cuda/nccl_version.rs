//! [`Version`]: a version of NCCL. Called by the survey of libraries, and by NCCL's communicators, whose module
//! publishes it.

/// A version of NCCL, as it counts them: 22809 is 2.28.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Before 2.9 the minor version had one digit less.
        let thousands = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / thousands, self.0 % thousands / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(Version(22809).to_string(), "2.28.9");
        assert_eq!(Version(21800).to_string(), "2.18.0");
        assert_eq!(Version(2708).to_string(), "2.7.8");
        assert!(Version(2708) < Version(21800) && Version(22809) > Version(21800));
    }
}
