//! temporary stand-in until the real file lands
#![allow(missing_docs, missing_debug_implementations)]
use super::{KeyError, KeyExtractor, ip::*};
use crate::head::RequestHead;
use crate::partition::PartitionKey;
use std::net::IpAddr;
#[derive(Clone, Debug)]
pub struct ClientIp;
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum IpSource {
    Peer,
    XForwardedFor,
    Forwarded,
    Header(http::HeaderName),
}
#[derive(Clone, Debug)]
pub struct TrustedProxies;
#[derive(Clone, Debug)]
pub enum Unidentified {
    UsePeer,
}
impl TrustedProxies {
    pub fn ranges<S: AsRef<str>>(_: impl IntoIterator<Item = S>) -> Result<Self, String> {
        Ok(Self)
    }
    pub fn and_count(self, _: usize) -> Self {
        self
    }
    pub fn count(_: usize) -> Self {
        Self
    }
}
impl ClientIp {
    pub const fn peer() -> Self {
        Self
    }
    pub fn new(_: IpSource, _: TrustedProxies) -> Self {
        Self
    }
    pub fn with_ipv6_prefix(self, _: u8) -> Self {
        self
    }
    pub fn address(&self, h: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
        peer_addr(h).map(|a| a.ip()).ok_or_else(peer_unknown)
    }
    pub fn network(&self, h: &RequestHead<'_>) -> Result<IpNetwork, KeyError> {
        Ok(IpNetwork::of(self.address(h)?, 64))
    }
}
impl KeyExtractor for ClientIp {
    fn extract(&self, h: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(self.network(h)?.into())
    }
}
