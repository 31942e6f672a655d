//! `key`: the key extractors that a file can name.

use http::HeaderName;

use tower_sluice::key::{ClientIp, CookieKey, Global, HeaderKey, KeyExtractor, MethodKey, PathKey, QueryKey, User};

/// Makes extractors for keys that only a program knows: see [`ConfigReader::keys`](super::ConfigReader::keys).
pub(crate) type CustomKeys = dyn Fn(&str, &[String]) -> Option<Result<Box<dyn KeyExtractor>, String>> + Send + Sync;

/// Makes the extractor for a policy's key in the file.
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

/// The keys that a file may name.
const KEYS: &str = "global, client-ip, header:NAME (such as header:x-api-key), cookie:NAME, query:NAME, user, path, method, \
                    or a list of these";

/// A key as a file names it.
pub(crate) enum KeySpec {
    Global,
    ClientIp,
    Header(HeaderName),
    Cookie(String),
    Query(String),
    User,
    Path,
    Method,
    Combined(Vec<Self>),
}

impl KeySpec {
    pub(crate) fn parse(names: &[String]) -> Result<Self, String> {
        match names {
            [] => Err(format!("the key is empty; write {KEYS}")),
            [name] => Self::parse_one(name),
            names => Ok(Self::Combined(names.iter().map(|name| Self::parse_one(name)).collect::<Result<_, _>>()?)),
        }
    }

    fn parse_one(name: &str) -> Result<Self, String> {
        let spec = match name.split_once(':') {
            None => match name {
                "global" => Some(Self::Global),
                "client-ip" => Some(Self::ClientIp),
                "user" => Some(Self::User),
                "path" => Some(Self::Path),
                "method" => Some(Self::Method),
                _ => None,
            },
            Some(("header", header)) => header.trim().parse().ok().map(Self::Header),
            // A cookie's name is a token (RFC 6265, section 4.1.1), like a header's.
            Some(("cookie", cookie)) => {
                let cookie = cookie.trim();
                cookie.parse::<HeaderName>().ok().map(|_| Self::Cookie(cookie.to_owned()))
            }
            Some(("query", name)) => {
                Some(name.trim()).filter(|name| !name.is_empty()).map(|it| Self::Query(it.to_owned()))
            }
            Some(_) => None,
        };
        spec.ok_or_else(|| format!("unknown key `{name}`; write {KEYS}"))
    }

    /// Whether all requests have one key.
    pub(crate) fn is_global(&self) -> bool {
        match self {
            Self::Global => true,
            Self::Combined(parts) => parts.iter().all(Self::is_global),
            Self::ClientIp | Self::Header(_) | Self::Cookie(_) | Self::Query(_) => false,
            Self::User | Self::Path | Self::Method => false,
        }
    }

    pub(crate) fn extractor(&self, client_ip: &ClientIp) -> Box<dyn KeyExtractor> {
        match self {
            Self::Global => Box::new(Global),
            Self::ClientIp => Box::new(client_ip.clone()),
            Self::Header(name) => Box::new(HeaderKey::new(name.clone())),
            Self::Cookie(name) => Box::new(CookieKey::new(name.clone())),
            Self::Query(name) => Box::new(QueryKey::new(name.clone())),
            Self::User => Box::new(User::key()),
            Self::Method => Box::new(MethodKey::new()),
            #[cfg(feature = "axum")]
            Self::Path => Box::new(PathKey::matched()),
            #[cfg(not(feature = "axum"))]
            Self::Path => Box::new(PathKey::raw()),
            Self::Combined(parts) => Box::new(parts.iter().map(|part| part.extractor(client_ip)).collect::<Vec<_>>()),
        }
    }
}
