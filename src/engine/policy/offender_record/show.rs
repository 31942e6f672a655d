//! [`ShowKey`]: the form in which an operator sees a key.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

/// How [offenders'](crate::Policy::track_offenders) keys may be shown. A key is personal data in most cases, so an
/// operator sees only the form that you choose here, and a store keeps only that form for other processes.
///
/// | | `203.0.113.7` is shown as | |
/// |---|---|---|
/// | [`hash`](Self::hash) | `fec52565aa0cf18f` | support can find a key that it knows. Whoever sees a hash can try all addresses: it is a pseudonym |
/// | [`keyed_hash`](Self::keyed_hash) | `81af85b51ba93208`, say | the same for those who have the secret, and nothing for others |
/// | [`prefix`](Self::prefix)`(6)` | `203.0.…` | a network, a tenant, the public part of an API key |
/// | [`whole`](Self::whole) | `203.0.113.7` | |
/// | [`by`](Self::by) | as your function writes it | |
///
/// A key is first written as text, as its [extractor](crate::key::KeyExtractor::write_text) does: `alice`,
/// `2001:db8::/64`. A key longer than 256 bytes is `(sha256:…)` with its SHA-256 in hexadecimal, since only its hash
/// [is kept](crate::PartitionKey#cost), and another key that is not text is `(0x…)` with its bytes. [An
/// operator](crate::policy::KeyOf) may type all these texts. The key that requests share is shown as `(shared)` in any
/// form. A whole key has at most 516 bytes, and any other form is cut at 256. Control characters are escaped, so that
/// no client can paint on an operator's terminal.
#[must_use]
pub struct ShowKey(Form);

enum Form {
    Hash,
    KeyedHash(Box<Hmac>),
    Prefix(usize),
    Whole,
    By(Box<dyn Fn(&str) -> String + Send + Sync>),
}

/// A shown key's greatest length, in bytes.
const LONGEST: usize = 256;

impl ShowKey {
    /// Shows the first 16 hexadecimal digits (64 bits) of the SHA-256 of the key's text. For a key that it knows,
    /// support gets the same from `printf %s 203.0.113.7 | sha256sum | cut -c1-16`.
    pub const fn hash() -> Self {
        Self(Form::Hash)
    }

    /// Shows the first 16 hexadecimal digits (64 bits) of the key text's HMAC-SHA-256 (RFC 2104) with this secret:
    /// `printf %s 203.0.113.7 | openssl dgst -sha256 -hmac SECRET`. Processes that share a limit should have the same
    /// secret.
    pub fn keyed_hash(secret: impl AsRef<[u8]>) -> Self {
        Self(Form::KeyedHash(Box::new(Hmac::new(secret.as_ref()))))
    }

    /// Shows the first `characters` of the key's text, and `…` if there are more. Shorter keys are shown whole.
    pub const fn prefix(characters: usize) -> Self {
        Self(Form::Prefix(characters))
    }

    /// Shows the key's whole text.
    pub const fn whole() -> Self {
        Self(Form::Whole)
    }

    /// Shows the text that `show` makes from the key's text. It is called for 128 keys when an operator looks, and at
    /// most once a second for a shared store, but not by a request.
    pub fn by(show: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self(Form::By(Box::new(show)))
    }

    /// Shows a key's text.
    pub(crate) fn show(&self, text: &str) -> String {
        match &self.0 {
            Form::Hash => first_digits(&Sha256::digest(text)),
            Form::KeyedHash(hmac) => first_digits(&hmac.of(text.as_bytes())),
            Form::Prefix(characters) => match text.char_indices().nth(*characters) {
                Some((end, _)) => clean(&format!("{}…", &text[..end])),
                None => clean(text),
            },
            // The text is bounded and free from control characters. If we changed it, it would stand for another key.
            Form::Whole => text.to_owned(),
            Form::By(show) => clean(&show(text)),
        }
    }
}

impl fmt::Debug for ShowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Form::Hash => "ShowKey::hash",
            Form::KeyedHash(_) => "ShowKey::keyed_hash",
            Form::Prefix(_) => "ShowKey::prefix",
            Form::Whole => "ShowKey::whole",
            Form::By(_) => "ShowKey::by",
        })
    }
}

/// Escapes control characters, and cuts a text that is too long.
fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len().min(LONGEST));
    for char in text.chars() {
        let before = cleaned.len();
        if char.is_control() {
            cleaned.extend(char.escape_default());
        } else {
            cleaned.push(char);
        }
        if cleaned.len() > LONGEST {
            cleaned.truncate(before);
            cleaned.push('…');
            break;
        }
    }
    cleaned
}

/// The first 64 bits of a hash, in hexadecimal.
fn first_digits(hash: &[u8]) -> String {
    hash[..8].iter().fold(String::with_capacity(16), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// HMAC-SHA-256: the two hash states after the secret.
struct Hmac {
    inner: Sha256,
    outer: Sha256,
}

impl Hmac {
    fn new(secret: &[u8]) -> Self {
        let mut block = [0; 64];
        if secret.len() > block.len() {
            block[..32].copy_from_slice(&Sha256::digest(secret));
        } else {
            block[..secret.len()].copy_from_slice(secret);
        }
        let padded = |pad: u8| Sha256::new_with_prefix(block.map(|byte| byte ^ pad));
        Self { inner: padded(0x36), outer: padded(0x5c) }
    }

    fn of(&self, text: &[u8]) -> [u8; 32] {
        let inner = self.inner.clone().chain_update(text).finalize();
        self.outer.clone().chain_update(inner).finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_common_tools() {
        // printf %s 203.0.113.7 | sha256sum
        assert_eq!(ShowKey::hash().show("203.0.113.7"), "fec52565aa0cf18f");
        // RFC 4231, test cases 2 and 6: a secret longer than a block is hashed.
        assert_eq!(ShowKey::keyed_hash("Jefe").show("what do ya want for nothing?"), "5bdcc146bf60754e");
        let long = ShowKey::keyed_hash([0xaa; 131]);
        assert_eq!(long.show("Test Using Larger Than Block-Size Key - Hash Key First"), "60e431591ee0b67f");
    }

    #[test]
    fn a_prefix_says_whether_there_is_more() {
        assert_eq!(ShowKey::prefix(6).show("203.0.113.7"), "203.0.…");
        assert_eq!(ShowKey::prefix(11).show("203.0.113.7"), "203.0.113.7");
        assert_eq!(ShowKey::prefix(2).show("žluťoučký"), "žl…");
        assert_eq!(ShowKey::prefix(0).show("alice"), "…");
    }

    #[test]
    fn keys_cannot_paint_or_fill_terminals() {
        let shown = |text: &str| {
            let text = text.to_owned();
            ShowKey::by(move |_| text.clone()).show("x")
        };
        assert_eq!(shown("a\u{1b}[2J\n\u{9b}b"), "a\\u{1b}[2J\\n\\u{9b}b");
        assert_eq!(shown(&"ß".repeat(1_000)), "ß".repeat(128) + "…");
        assert_eq!(shown(&"\n".repeat(1_000)), "\\n".repeat(128) + "…");
    }

    #[test]
    fn debug_output_shows_no_secret() {
        assert_eq!(format!("{:?}", ShowKey::keyed_hash("secret")), "ShowKey::keyed_hash");
    }
}
