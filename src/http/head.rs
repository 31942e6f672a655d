//! `RequestHead` and `ResponseHead`: requests and responses without their bodies.

use http::header::AsHeaderName;
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};

/// A request without its body, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: Version,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// The method.
    #[must_use]
    pub const fn method(&self) -> &'a Method {
        self.method
    }

    /// The target.
    #[must_use]
    pub const fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// The protocol version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The header fields.
    #[must_use]
    pub const fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The extensions that the server and outer layers have attached.
    #[must_use]
    pub const fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}

impl<'a, B> From<&'a Request<B>> for RequestHead<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl<'a> From<&'a Parts> for RequestHead<'a> {
    fn from(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            version: parts.version,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}

/// A response without its body, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> ResponseHead<'a> {
    /// The status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The gRPC call's status: 0 is OK, and 16 UNAUTHENTICATED. `None` if the response does not have a readable one.
    ///
    /// A call that fails at once has it in its head, and any other call in its trailers. The closures in
    /// [`charge_when`](crate::Policy::charge_when) and [`cost_after`](crate::Policy::cost_after) get both.
    #[must_use]
    pub fn grpc_status(&self) -> Option<u32> {
        std::str::from_utf8(trimmed(only_line(self.headers, "grpc-status")?)).ok()?.parse().ok()
    }

    /// The HTTP status. For a gRPC call, its [status](Self::grpc_status), translated as a gateway does
    /// (`google/rpc/code.proto`).
    #[must_use]
    pub fn translated_status(&self) -> StatusCode {
        match self.grpc_status() {
            None => self.status,
            Some(0) => StatusCode::OK,
            // The client closed the request. No RFC has a status for this.
            Some(1) => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
            Some(3 | 9 | 11) => StatusCode::BAD_REQUEST,
            Some(4) => StatusCode::GATEWAY_TIMEOUT,
            Some(5) => StatusCode::NOT_FOUND,
            Some(6 | 10) => StatusCode::CONFLICT,
            Some(7) => StatusCode::FORBIDDEN,
            Some(8) => StatusCode::TOO_MANY_REQUESTS,
            Some(12) => StatusCode::NOT_IMPLEMENTED,
            Some(14) => StatusCode::SERVICE_UNAVAILABLE,
            Some(16) => StatusCode::UNAUTHORIZED,
            Some(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The header fields, and a gRPC call's trailers.
    #[must_use]
    pub const fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The extensions that the handler and inner layers have attached.
    #[must_use]
    pub const fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}

/// A head that is kept until the trailers come.
#[derive(Debug)]
pub(crate) struct KeptHead {
    status: StatusCode,
    headers: HeaderMap,
    extensions: Extensions,
}

impl KeptHead {
    /// Adds the trailers.
    pub(crate) fn with(mut self, trailers: &HeaderMap) -> Self {
        for (name, value) in trailers {
            // If the map has more than 24,576 fields, we stop reading.
            let _ = self.headers.try_append(name, value.clone());
        }
        self
    }
}

impl From<&ResponseHead<'_>> for KeptHead {
    fn from(head: &ResponseHead<'_>) -> Self {
        Self { status: head.status, headers: head.headers.clone(), extensions: head.extensions.clone() }
    }
}

impl<'a> From<&'a KeptHead> for ResponseHead<'a> {
    fn from(head: &'a KeptHead) -> Self {
        Self { status: head.status, headers: &head.headers, extensions: &head.extensions }
    }
}

impl<'a, B> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }
}

/// Sets a field. If the map is full, leaves the field out, because that is not a reason to fail a response.
///
/// Not inlined, like [`append_field`], because the functions in `http` have 2 KB each, and would be compiled into each
/// caller.
#[inline(never)]
pub(crate) fn set_field(fields: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let _ = fields.try_insert(name, value);
}

/// Adds a line to a field. Returns whether the field had one before. If the map is full, leaves the line out.
#[inline(never)]
pub(crate) fn append_field(fields: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> bool {
    fields.try_append(name, value).unwrap_or(false)
}

/// Returns a field's value, if the field occurs exactly once.
pub fn only_line(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    lines.next().filter(|_| lines.next().is_none())
}

/// Returns a field value without the optional white space around it, which is not part of the value (RFC 9110, section
/// 5.5). Servers remove it in HTTP/1.1, but `h2` does not.
pub(crate) fn trimmed(value: &HeaderValue) -> &[u8] {
    // The only ASCII white space in a `HeaderValue` is spaces and tabs.
    value.as_bytes().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_statuses_are_translated() {
        let of = |status: &'static str| {
            let response = Response::builder().header("grpc-status", status).body(()).unwrap();
            let head = ResponseHead::from(&response);
            (head.grpc_status(), head.translated_status().as_u16())
        };
        let translated: Vec<_> = (0..=17).map(|code: u32| of(code.to_string().leak()).1).collect();
        let table = [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401, 500];
        assert_eq!(translated, table);
        assert_eq!(of(" 16 "), (Some(16), 401));
        assert_eq!([of("x"), of(""), of("-1")], [(None, 200); 3]);
        let twice = Response::builder().header("grpc-status", "0").header("grpc-status", "16").body(()).unwrap();
        assert_eq!(ResponseHead::from(&twice).grpc_status(), None);
    }
}
