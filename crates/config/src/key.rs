//! `key`: the key extractors that a file can name.

use http::HeaderName;

use tower_sluice::key::{ClientIp, Global, HeaderKey, KeyExtractor, PathKey, User};

/// Makes the extractors of keys that only a program knows: see [`ConfigReader::keys`](super::ConfigReader::keys).
pub(crate) type CustomKeys = dyn Fn(&str, &[String]) -> Option<Result<Box<dyn KeyExtractor>, String>> + Send + Sync;

/// Makes the extractor of the key that a file names for a policy.
pub(crate) fn extractor(
    policy: &str,
    names: &[String],
    client_ip: &ClientIp,
    custom: Option<&CustomKeys>,
) -> Result<Box<dyn KeyExtractor>, String> {
    match custom.and_then(|custom| custom(policy, names)) {
        Some(extractor) => extractor,
        None => Ok(KeySpec::parse(names)?.extractor(client_ip)),
    }
}

/// A key as a file names it.
pub(crate) enum KeySpec {
    Global,
    ClientIp,
    Header(HeaderName),
    User,
    Path,
    Combined(Vec<Self>),
}

impl KeySpec {
    pub(crate) fn parse(names: &[String]) -> Result<Self, String> {
        match names {
            [] => Err("the key is empty; write global, client-ip, header:NAME, user or path".to_owned()),
            [name] => Self::parse_one(name),
            names => Ok(Self::Combined(names.iter().map(|name| Self::parse_one(name)).collect::<Result<_, _>>()?)),
        }
    }

    fn parse_one(name: &str) -> Result<Self, String> {
        match name {
            "global" => Ok(Self::Global),
            "client-ip" => Ok(Self::ClientIp),
            "user" => Ok(Self::User),
            "path" => Ok(Self::Path),
            _ => {
                let header = name.strip_prefix("header:").and_then(|header| header.trim().parse().ok());
                header.map(Self::Header).ok_or_else(|| {
                    format!(
                        "unknown key `{name}`; write global, client-ip, header:NAME (such as header:x-api-key), \
                         user, path, or a list of these"
                    )
                })
            }
        }
    }

    /// Whether it is the same for all requests.
    pub(crate) fn is_global(&self) -> bool {
        match self {
            Self::Global => true,
            Self::Combined(parts) => parts.iter().all(Self::is_global),
            Self::ClientIp | Self::Header(_) | Self::User | Self::Path => false,
        }
    }

    pub(crate) fn extractor(&self, client_ip: &ClientIp) -> Box<dyn KeyExtractor> {
        match self {
            Self::Global => Box::new(Global),
            Self::ClientIp => Box::new(client_ip.clone()),
            Self::Header(name) => Box::new(HeaderKey::new(name.clone())),
            Self::User => Box::new(User::key()),
            #[cfg(feature = "axum")]
            Self::Path => Box::new(PathKey::matched()),
            #[cfg(not(feature = "axum"))]
            Self::Path => Box::new(PathKey::raw()),
            Self::Combined(parts) => Box::new(parts.iter().map(|part| part.extractor(client_ip)).collect::<Vec<_>>()),
        }
    }
}
