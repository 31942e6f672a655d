//! The request that a line of a log stands for.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, MatchedPath};
use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, REFERER, USER_AGENT};
use http::{Extensions, Method, Request};
use tower_sluice::Verdict;
use tower_sluice::internal::WholeQuery;
use tower_sluice::key::User;

use crate::log::{Entry, Unreadable};
use crate::path::Target;

/// What the policies of the configurations may read of a request. What none reads is left out, since it takes time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Header fields that only a policy reads which names them.
    pub(super) headers: bool,
    /// The path that the router has matched.
    pub(super) matched: bool,
}

impl Needs {
    /// Everything that a file names. It may name a header as a key, in exemptions and for idempotency, always by this
    /// word; a cookie, which is in a header; and the path as a key.
    pub(super) fn of_file(text: &str) -> Self {
        Self {
            headers: text.contains("header") || text.contains("cookie:"),
            matched: text.contains("\"path\"") || text.contains("'path'"),
        }
    }

    #[cfg(test)]
    pub(crate) const fn all() -> Self {
        Self { headers: true, matched: true }
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self { headers: self.headers || other.headers, matched: self.matched || other.matched }
    }
}

/// Makes the requests of a log.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(super) needs: Needs,
    /// The extensions of a request that is over, with its peer or none: the next request uses their memory.
    spare: Extensions,
    /// Whether they have a long query.
    has_long_query: bool,
}

impl Requests {
    pub(crate) fn new(needs: Needs) -> Self {
        Self { needs, spare: Extensions::new(), has_long_query: false }
    }

    /// Makes the request of a line and its target, with the address of the client as its peer.
    ///
    /// # Errors
    ///
    /// If the method is none.
    pub(crate) fn build(&mut self, entry: &Entry<'_>, target: Option<&Target<'_>>) -> Result<Request<()>, Unreadable> {
        let method =
            Method::from_bytes(&entry.method).map_err(|_| Unreadable::new("the method is no method of HTTP"))?;
        // As the service spells it. `OPTIONS *` and `CONNECT` have no path, and are to no route.
        if target.is_none() && *entry.target != b"*"[..] && method != Method::CONNECT {
            return Err(Unreadable::new("the path does not begin with a slash; perhaps the fields have another order"));
        }
        let uri = target.map(Target::uri).unwrap_or_default();
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        add_headers(entry, self.needs, request.headers_mut());
        let extensions = request.extensions_mut();
        *extensions = std::mem::take(&mut self.spare);
        match (entry.client, extensions.get_mut()) {
            (Some(ip), Some(peer)) => *peer = peer_of(ip),
            (Some(ip), None) => drop(extensions.insert(peer_of(ip))),
            (None, _) => extensions.clear(),
        }
        // Few lines have one, so that most neither insert it nor look for that of the line before.
        let long_query = target.and_then(Target::long_query);
        if let Some(query) = long_query {
            extensions.insert(WholeQuery(Bytes::copy_from_slice(query)));
        } else if self.has_long_query {
            extensions.remove::<WholeQuery>();
        }
        self.has_long_query = long_query.is_some();
        if let Some(user) = &entry.user {
            extensions.insert(User::new(&**user));
        }
        Ok(request)
    }

    /// Takes back the extensions of a request that is over.
    pub(super) fn reuse(&mut self, mut extensions: Extensions) {
        // In nearly all lines, there is nothing else but the peer.
        extensions.remove::<Verdict>();
        if extensions.len() > 1 {
            extensions.clear();
        }
        self.spare = extensions;
    }
}

/// Notes the path that a router has matched.
pub(super) fn set_matched(request: &mut Request<()>, path: &MatchedPath) {
    request.extensions_mut().insert(path.clone());
}

fn peer_of(ip: IpAddr) -> ConnectInfo<SocketAddr> {
    // No log has the port, and no key.
    ConnectInfo(SocketAddr::new(ip, 0))
}

fn add_headers(entry: &Entry<'_>, needs: Needs, headers: &mut HeaderMap) {
    for (name, value) in &entry.headers {
        let name = match &**name {
            "referer" | "user-agent" if !needs.headers => continue,
            "referer" => Ok(REFERER),
            "user-agent" => Ok(USER_AGENT),
            "host" => Ok(HOST),
            name => HeaderName::try_from(name),
        };
        if let Some((name, value)) = name.ok().zip(HeaderValue::from_bytes(value).ok()) {
            headers.append(name, value);
        }
    }
}
