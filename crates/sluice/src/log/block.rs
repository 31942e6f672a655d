//! Requests that were read and wait for their turn.

use std::borrow::Cow;
use std::net::IpAddr;

use super::{Entry, Headers};

/// The requests per block. A block is so small that one request that waits for a long time keeps little memory, and so
/// large that its lines show which times are odd.
pub(super) const LINES: usize = 64;

/// Consecutive requests from one file, reduced to the fields that policies read. Its memory is reused.
#[derive(Debug, Default)]
pub(super) struct Block {
    records: Vec<Record>,
    /// The texts of all records, one behind the other.
    text: Vec<u8>,
    /// The lengths of names and values.
    headers: Vec<(usize, usize)>,
}

/// A request. Its texts are, in this order: method, target, user, and the names and values of its header fields.
#[derive(Debug)]
struct Record {
    nanos: u64,
    line: u64,
    length: u64,
    client: Option<IpAddr>,
    status: u16,
    text: usize,
    method: usize,
    target: usize,
    user: Option<usize>,
    /// The index of its first header field, and how many it has.
    headers: (usize, usize),
}

impl Block {
    pub(super) fn push(&mut self, entry: &Entry<'_>, line: u64) {
        self.records.push(Record {
            nanos: entry.nanos,
            line,
            length: entry.length,
            client: entry.client,
            status: entry.status,
            text: self.text.len(),
            method: entry.method.len(),
            target: entry.target.len(),
            user: entry.user.as_ref().map(|user| user.len()),
            headers: (self.headers.len(), entry.headers.len()),
        });
        self.text.extend_from_slice(&entry.method);
        self.text.extend_from_slice(&entry.target);
        if let Some(user) = &entry.user {
            self.text.extend_from_slice(user.as_bytes());
        }
        for (name, value) in &entry.headers {
            self.headers.push((name.len(), value.len()));
            self.text.extend_from_slice(name.as_bytes());
            self.text.extend_from_slice(value);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= LINES
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn nanos(&self, index: usize) -> u64 {
        self.records[index].nanos
    }

    /// The times of the requests from `index` on.
    pub(super) fn times_from(&self, index: usize) -> impl Iterator<Item = u64> {
        self.records[index.min(self.records.len())..].iter().map(|record| record.nanos)
    }

    /// Replaces a request's time by its neighbours' time.
    pub(super) fn set_nanos(&mut self, index: usize, nanos: u64) {
        self.records[index].nanos = nanos;
    }

    pub(super) fn line(&self, index: usize) -> u64 {
        self.records[index].line
    }

    pub(super) fn entry(&self, index: usize) -> Entry<'_> {
        let record = &self.records[index];
        let mut text = &self.text[record.text..];
        let mut split = |length: usize| {
            let (part, rest) = text.split_at(length);
            text = rest;
            part
        };
        // Names were valid UTF-8 when they were stored.
        let as_text = |bytes| Cow::Borrowed(std::str::from_utf8(bytes).unwrap_or_default());
        let (method, target) = (split(record.method), split(record.target));
        let user = record.user.map(|length| as_text(split(length)));
        let (first, count) = record.headers;
        let headers = self.headers[first..first + count].iter();
        let headers: Headers<'_> =
            headers.map(|(name, value)| (as_text(split(*name)), Cow::Borrowed(split(*value)))).collect();
        Entry {
            nanos: record.nanos,
            client: record.client,
            user,
            method: Cow::Borrowed(method),
            target: Cow::Borrowed(target),
            status: record.status,
            length: record.length,
            headers,
        }
    }

    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.text.clear();
        self.headers.clear();
    }

    /// The memory that the block occupies, whether used or not.
    pub(super) fn bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>() + self.text.capacity() + self.headers.capacity() * 16
    }
}
