//! The scripts' replies.

use std::error::Error;
use std::fmt;

use ::redis::Value;
use smallvec::SmallVec;
use tower_sluice::time::Timestamp;

use super::{KeyText, Scripted, whole};

/// A key's text. A bucket's state has 17 characters.
type ReplyText = SmallVec<[u8; 24]>;

/// A script's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptReply {
    /// The time at which the script ran, on the server's clock.
    pub(crate) now: Timestamp,
    /// For one key: the number of admitted requests. For several keys: the number of the alternative that was charged,
    /// 1 if there is one alone. For a request that may be a retry: 1 if the key was charged, 2 if the budget was. For a
    /// refund: 1 if any units were refunded.
    pub(crate) admitted: u32,
    /// The text that each key held before.
    old: SmallVec<[Option<ReplyText>; 1]>,
}

/// A reply that cannot be read, or that Rust disagrees with. Nothing may be concluded from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadReply {
    /// The reply does not have our scripts' shape.
    Shape,
    /// The server's clock shows the year 2112 or later, for which sums would not be exact.
    Time,
    /// A key held text that is not a state of the algorithm.
    State,
    /// Rust admits a request that the script rejected, or the other way round.
    Disagreement,
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => "the server's reply is not that of a script of ours",
            Self::Time => "the server's clock is beyond the year 2112",
            Self::State => "a key of ours holds something else on the server",
            Self::Disagreement => "the server's decision contradicts the state in its reply",
        })
    }
}

impl Error for BadReply {}

/// A server's clock must show less, which it does until the year 2112. Then sums of a time and a debt stay below 2^53.
const MAX_MICROS: u64 = 1 << 52;

impl ScriptReply {
    /// Reads any script's reply to a call for one request with this number of `keys`.
    pub(crate) fn read(reply: Value, keys: usize) -> Result<Self, BadReply> {
        let text = match reply {
            Value::BulkString(text) => text,
            Value::Array(items) => return Self::from_array(items),
            _ => return Err(BadReply::Shape),
        };
        // The last key's text may contain commas.
        let mut words = text.splitn(3 + keys, |byte| *byte == b',');
        let time = [read_number(words.next())?, read_number(words.next())?];
        Self::read_request(time, &mut words, keys)?.ok_or(BadReply::Shape)
    }

    /// Reads the reply to a call for several requests with this number of `keys` each: `<seconds>,<microseconds>`, and
    /// for each request `,<admitted>` and an `,<old>` for each key, which is empty if the key was. `None` for a request
    /// that must be made alone.
    pub(crate) fn read_each(
        reply: &Value,
        requests: usize,
        keys: usize,
    ) -> Result<SmallVec<[Option<Self>; 32]>, BadReply> {
        let Value::BulkString(text) = reply else { return Err(BadReply::Shape) };
        let mut words = text.split(|byte| *byte == b',');
        let time = [read_number(words.next())?, read_number(words.next())?];
        let replies = (0..requests).map(|_| Self::read_request(time, &mut words, keys)).collect::<Result<_, _>>()?;
        if words.next().is_some() { Err(BadReply::Shape) } else { Ok(replies) }
    }

    fn read_request<'a>(
        time: [u64; 2],
        words: &mut impl Iterator<Item = &'a [u8]>,
        keys: usize,
    ) -> Result<Option<Self>, BadReply> {
        let admitted = words.next();
        let old = words.take(keys).map(|old| (!old.is_empty()).then(|| old.into())).collect::<SmallVec<_>>();
        if old.len() < keys {
            return Err(BadReply::Shape);
        }
        if admitted == Some(b"-") {
            return Ok(None);
        }
        Self::new([time[0], time[1], read_number(admitted)?], old).map(Some)
    }

    /// Reads these numbers, and each key's old text, from an array.
    fn from_array(items: Vec<Value>) -> Result<Self, BadReply> {
        let mut items = items.into_iter();
        let mut number = || items.next().as_ref().and_then(whole_number).ok_or(BadReply::Shape);
        let numbers = [number()?, number()?, number()?];
        let old = items.map(|item| match item {
            Value::Nil => Ok(None),
            Value::BulkString(state) => Ok(Some(state.into())),
            _ => Err(BadReply::Shape),
        });
        Self::new(numbers, old.collect::<Result<_, _>>()?)
    }

    fn new([seconds, micros, admitted]: [u64; 3], old: SmallVec<[Option<ReplyText>; 1]>) -> Result<Self, BadReply> {
        if micros >= 1_000_000 {
            return Err(BadReply::Shape);
        }
        let now = seconds.saturating_mul(1_000_000).saturating_add(micros);
        if now >= MAX_MICROS {
            return Err(BadReply::Time);
        }
        Ok(Self {
            now: Timestamp::from_nanos(now * 1_000),
            admitted: u32::try_from(admitted).map_err(|_| BadReply::Shape)?,
            old,
        })
    }

    /// Returns the old text of the key at `index`.
    pub(crate) fn old(&self, index: usize) -> Result<Option<&[u8]>, BadReply> {
        self.old.get(index).map(Option::as_deref).ok_or(BadReply::Shape)
    }

    /// Returns the old text of the key at `index`, in its parts.
    pub(crate) fn text(&self, index: usize) -> Result<KeyText<'_>, BadReply> {
        KeyText::read(self.old(index)?)
    }

    /// Returns the old state of the key at `index`.
    pub(crate) fn state<A: Scripted>(&self, algorithm: &A, index: usize) -> Result<Option<A::State>, BadReply> {
        self.old(index)?.map(|old| algorithm.read(old, self.now).ok_or(BadReply::State)).transpose()
    }

    /// Checks that the alternative with this number was charged, or nothing if it is 0.
    pub(crate) const fn charged(&self, alternative: u32) -> Result<(), BadReply> {
        if self.admitted == alternative { Ok(()) } else { Err(BadReply::Disagreement) }
    }
}

fn read_number(word: Option<&[u8]>) -> Result<u64, BadReply> {
    word.and_then(whole).ok_or(BadReply::Shape)
}

/// The server's replies have numbers in both forms: `TIME` replies with digits, and Lua's numbers are integers.
fn whole_number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => whole(digits),
        _ => None,
    }
}
