//! The requests in each protocol, and how to read the answers.

use bytes::{BufMut, Bytes, BytesMut};

use crate::load::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Envoy's, version 3.
    RateLimitService,
    /// As nginx and others ask.
    Auth,
    ThrottlecrabGrpc,
    ThrottlecrabHttp,
    ThrottlecrabRedis,
}

/// Which limit a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So high that every request is admitted.
    High,
    /// [`EXACTLY`] requests a day.
    Low,
}

/// The low limit's units.
pub const EXACTLY: u32 = 100;

/// The high limit's units, per day.
pub const HIGH: u32 = 1_000_000;

const DAY: u32 = 86_400;

impl Limit {
    /// The descriptor's key, and a path's last part.
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "user",
            Self::Low => "few",
        }
    }

    const fn units(self) -> u32 {
        match self {
            Self::High => HIGH,
            Self::Low => EXACTLY,
        }
    }
}

impl Protocol {
    /// The gRPC method's path; `None` for other protocols.
    pub const fn method(self) -> Option<&'static str> {
        match self {
            Self::RateLimitService => Some("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
            Self::ThrottlecrabGrpc => Some("/throttlecrab.RateLimiter/Throttle"),
            Self::Auth | Self::ThrottlecrabHttp | Self::ThrottlecrabRedis => None,
        }
    }

    /// The request bytes; in gRPC, the message bytes with their length.
    pub fn request(self, limit: Limit, index: u64) -> Bytes {
        // Twenty bytes.
        let key = format!("client-of-us-{index:07}");
        let (name, units) = (limit.name(), limit.units());
        match self {
            Self::RateLimitService => {
                let entry = [text(1, name), text(2, &key)].concat();
                let descriptor = bytes(1, &entry);
                framed(&[text(1, "shop"), bytes(2, &descriptor)].concat())
            }
            Self::ThrottlecrabGrpc => {
                framed(&[text(1, &key), number(2, units), number(3, units), number(4, DAY), number(5, 1)].concat())
            }
            Self::Auth => format!(
                "GET /auth HTTP/1.1\r\nhost: sluice\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /shop/{name}\r\n\
                 x-client: {key}\r\n\r\n"
            )
            .into(),
            Self::ThrottlecrabHttp => {
                let body = format!(
                    r#"{{"key":"{key}","max_burst":{units},"count_per_period":{units},"period":{DAY},"quantity":1}}"#
                );
                let length = body.len();
                format!(
                    "POST /throttle HTTP/1.1\r\nhost: throttlecrab\r\ncontent-type: application/json\r\n\
                     content-length: {length}\r\n\r\n{body}"
                )
                .into()
            }
            Self::ThrottlecrabRedis => {
                let [units, day] = [units.to_string(), DAY.to_string()];
                let words = ["THROTTLE", &key, &units, &units, &day];
                let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
                format!("*5\r\n{words}").into()
            }
        }
    }

    /// Whether an answer admits the request. In gRPC, it is the message with its length; in the other protocols, it
    /// ends as [`Protocol::end`] says.
    pub fn admits(self, answer: &[u8]) -> Outcome<bool> {
        let unreadable = || format!("unreadable: {}", String::from_utf8_lossy(answer));
        match self {
            // The first field is the code: 1 is OK, and 2 is over the limit.
            Self::RateLimitService => match answer.get(5..7) {
                Some([8, 1]) => Ok(true),
                Some([8, 2]) => Ok(false),
                _ => Err(unreadable()),
            },
            // Protobuf leaves out a false value.
            Self::ThrottlecrabGrpc => Ok(answer.get(5..7) == Some(&[8, 1])),
            Self::Auth => match answer.get(9..12) {
                Some(b"200") => Ok(true),
                Some(b"429") => Ok(false),
                _ => Err(unreadable()),
            },
            Self::ThrottlecrabHttp => {
                let holds = |text: &[u8]| answer.windows(text.len()).any(|window| window == text);
                if holds(br#""allowed":true"#) {
                    Ok(true)
                } else if holds(br#""allowed":false"#) {
                    Ok(false)
                } else {
                    Err(unreadable())
                }
            }
            Self::ThrottlecrabRedis => match answer.get(4..7) {
                Some(b":1\r") => Ok(true),
                Some(b":0\r") => Ok(false),
                _ => Err(unreadable()),
            },
        }
    }

    /// The length of the answer at the beginning of `read`, if all of it is there.
    pub fn end(self, read: &[u8]) -> Option<usize> {
        if self == Self::ThrottlecrabRedis {
            // An array with five numbers: a line each, and one before them.
            let ends = read.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            return ends.map(|(end, _)| end + 1).nth(5);
        }
        let head = read.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let length = content_length(&read[..head]).unwrap_or(0);
        (read.len() >= head + length).then_some(head + length)
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length: ";
    let value = head.windows(NAME.len()).position(|window| window.eq_ignore_ascii_case(NAME))? + NAME.len();
    let value = &head[value..];
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

/// A gRPC message: its length goes first.
fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}

fn text(field: u8, text: &str) -> Vec<u8> {
    bytes(field, text.as_bytes())
}

/// A Protobuf field with fewer than 128 bytes.
fn bytes(field: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128).expect("all of ours are short");
    [&[field << 3 | 2, length], bytes].concat()
}

fn number(field: u8, mut number: u32) -> Vec<u8> {
    let mut out = vec![field << 3];
    while number >= 128 {
        out.push(number as u8 | 128);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_its_body() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP";
        let end = answer.len() - "HTTP".len();
        assert_eq!(Protocol::Auth.end(answer), Some(end));
        assert_eq!(Protocol::Auth.end(&answer[..end - 1]), None);
        let answer = b"*5\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n";
        assert_eq!(Protocol::ThrottlecrabRedis.end(answer), Some(answer.len()));
        assert_eq!(Protocol::ThrottlecrabRedis.end(&answer[..20]), None);
        assert_eq!(Protocol::ThrottlecrabRedis.admits(answer), Ok(true));
    }

    #[test]
    fn numbers_are_written_in_seven_bits() {
        assert_eq!(number(1, 300), [8, 0b1010_1100, 2]);
    }
}
