//! The messages in `envoy.service.ratelimit.v3` and `envoy.extensions.common.ratelimit.v3`, written by hand, so that
//! the build does not need a Protobuf compiler. Fields that this service does not use are left out, since decoding
//! skips them.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// For descriptors that do not set their own number. 0 means 1.
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<LimitOverride>,
    /// `google.protobuf.UInt64Value`. 0 only looks.
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
}

/// The texts are read as bytes, because Envoy makes values from fields that a client sends. A value that is not UTF-8
/// must not be an error, because the request would then pass all limits.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

impl Entry {
    #[allow(dead_code, reason = "the tests make requests")]
    pub(crate) fn new(key: &str, value: &str) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LimitOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    /// See [`Unit`](crate::rules::Unit); 0 for none.
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
    /// One for each descriptor, in the same order.
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) request_headers_to_add: Vec<HeaderValue>,
    /// The response body for a rejected request.
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
    #[prost(message, optional, tag = "6")]
    pub(crate) dynamic_metadata: Option<prost_types::Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<prost_types::Duration>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    /// See [`Unit`](crate::rules::Unit); 0 for none.
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Code {
    /// Envoy takes it for OK.
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}
