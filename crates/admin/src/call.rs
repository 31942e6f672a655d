//! [`Call`]: the operation that a request asks for, by its path.

use http::{Method, StatusCode};

use super::problem::Problem;

/// A call. Its name is the last segment of its path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Policies,
    Stores,
    Exceptions,
    Offenders,
    Key,
    Act(Act),
    Adjust(Adjustment),
}

/// An action on a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Reset,
    Ban,
    Allow,
    Unban,
}

/// A change to a key's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjustment {
    Credit,
    Charge,
}

impl Call {
    /// Finds a call by its name.
    pub(crate) fn parse(name: &str) -> Result<Self, Problem> {
        Ok(match name {
            "policies" => Self::Policies,
            "stores" => Self::Stores,
            "exceptions" => Self::Exceptions,
            "offenders" => Self::Offenders,
            "key" => Self::Key,
            "reset" => Self::Act(Act::Reset),
            "ban" => Self::Act(Act::Ban),
            "allow" => Self::Act(Act::Allow),
            "unban" => Self::Act(Act::Unban),
            "credit" => Self::Adjust(Adjustment::Credit),
            "charge" => Self::Adjust(Adjustment::Charge),
            _ => {
                let all = "policies, stores, exceptions, offenders, key, reset, ban, allow, unban, credit and charge";
                return Err(Problem::new(StatusCode::NOT_FOUND, format!("there is no such call; there are {all}")));
            }
        })
    }

    /// Rejects a method that isn't this call's.
    pub(crate) fn check_method(self, method: &Method) -> Result<(), Problem> {
        match (self.has_body(), method) {
            (false, &Method::GET | &Method::HEAD) | (true, &Method::POST) => Ok(()),
            (false, _) => Err(Problem::method_not_allowed("GET")),
            (true, _) => Err(Problem::method_not_allowed("POST")),
        }
    }

    /// Whether the request has a body. It names a key, which must not be in an address, because addresses are logged.
    const fn has_body(self) -> bool {
        match self {
            Self::Policies | Self::Stores | Self::Exceptions | Self::Offenders => false,
            Self::Key | Self::Act(_) | Self::Adjust(_) => true,
        }
    }
}
