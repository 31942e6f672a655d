//! Time zones by name.

use std::error::Error;
use std::fmt;

use jiff::tz::{TimeZone, TimeZoneDatabase};

pub(super) fn utc() -> TimeZone {
    TimeZone::UTC
}

/// Looks a zone up in the system's database, and if that is missing or lacks the name, in the compiled-in database.
pub(super) fn find(name: &str) -> Result<TimeZone, UnknownZone> {
    let found = TimeZone::get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
    // `Etc/Unknown` is a name without a place.
    found.ok().filter(|zone| !zone.is_unknown()).ok_or_else(|| UnknownZone { name: name.into() })
}

/// No time zone has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownZone {
    name: Box<str>,
}

impl UnknownZone {
    /// The name that was looked up.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for UnknownZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no time zone; write a name of the IANA database, such as Europe/Berlin, or UTC", self.name)
    }
}

impl Error for UnknownZone {}
