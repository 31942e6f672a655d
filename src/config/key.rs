use http::HeaderName;

use crate::head::RequestHead;
use crate::key::{ClientIp, Global, HeaderKey, KeyExtractor, PathKey, User};
use crate::partition::PartitionKey;

/// A key as a configuration names it.
#[derive(Clone, Debug)]
pub(super) enum KeySpec {
    Global,
    ClientIp,
    Header(HeaderName),
    User,
    Path,
    Combined(Vec<Self>),
}

impl KeySpec {
    pub(super) fn parse(names: &[String]) -> Result<Self, String> {
        match names {
            [] => Err("the key names nothing; write global, client-ip, header:NAME, user or path".to_owned()),
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
                let header = name.strip_prefix("header:").map(|header| header.trim().to_ascii_lowercase());
                header.and_then(|header| header.parse().ok()).map(Self::Header).ok_or_else(|| {
                    format!(
                        "unknown key `{name}`; write global, client-ip, header:NAME (such as header:x-api-key), \
                         user, path, or a list of these"
                    )
                })
            }
        }
    }

    pub(super) fn extractor(&self, client_ip: &ClientIp) -> Box<dyn KeyExtractor> {
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

    /// The key that a request like this one would have on `path`, for people to read.
    pub(super) fn explain(&self, client_ip: &ClientIp, head: &RequestHead<'_>, path: &str) -> String {
        let text = |key: PartitionKey| String::from_utf8_lossy(key.as_bytes()).into_owned();
        match self {
            Self::Global => "everybody".to_owned(),
            Self::ClientIp => match client_ip.network(head) {
                Ok(network) => network.to_string(),
                Err(error) => error.to_string(),
            },
            Self::Combined(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| part.explain(client_ip, head, path)).collect();
                parts.join(" + ")
            }
            Self::Path => path.to_owned(),
            Self::Header(_) | Self::User => match self.extractor(client_ip).extract(head) {
                Ok(key) => text(key),
                Err(error) => error.to_string(),
            },
        }
    }
}
