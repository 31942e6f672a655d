//! The names of keys on the server.

use tower_sluice::PartitionKey;
use tower_sluice::internal::remote::Tags;
use tower_sluice::store::remote::KeyTag;

/// The name of a key on the server, `PREFIX:{TAG}:NAME:KIND`.
///
/// The tag is 128 bits of a SHA-256 of the [`PartitionKey`], so a client's bytes never reach the server: they cannot
/// imitate another key, and no user of the server can read them there. With a secret, trying keys does not find a tag's
/// key, and a client cannot make its tag fall into a chosen slot in a cluster. All budgets for one client carry the
/// same tag, so they are in one slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    text: Box<str>,
    slot: u16,
}

/// A cluster's number of slots.
pub(crate) const SLOTS: u16 = 16_384;

/// Makes the names for one limiter's budgets.
#[derive(Clone)]
pub(crate) struct KeyNames {
    prefix: Box<str>,
    name: Box<str>,
    #[cfg_attr(
        not(feature = "internal"),
        allow(dead_code, reason = "for the states of other packages, and for tests")
    )]
    tags: Tags,
}

impl KeyNames {
    /// Makes names with this prefix for the limiter called `name`. Processes that share its budgets must agree on all
    /// three.
    pub(crate) fn new(prefix: &str, name: &str, secret: &[u8]) -> Self {
        Self { prefix: prefix.into(), name: name.into(), tags: Tags::new(secret) }
    }

    /// Returns the tag for a key of this limiter, in its names and in this process's tables.
    #[cfg_attr(not(feature = "internal"), allow(dead_code, reason = "for the states of other packages, and for tests"))]
    pub(crate) fn tag(&self, key: &PartitionKey) -> KeyTag {
        self.tags.of(key)
    }

    /// Returns the name of the state that one kind of algorithm keeps. `kind` is a separate letter: `b` for buckets,
    /// `f` and `s` for fixed and sliding windows, `c` for calendar windows, `q` for queues, `p` for a partner's pace,
    /// `n` for the number of units in flight, `l` for a balance's lots.
    pub(crate) fn key(&self, tag: KeyTag, kind: char) -> Key {
        self.with_kind(tag, &[kind.encode_utf8(&mut [0; 4])])
    }

    /// Returns the name of the budget for free retries that this kind of algorithm keeps: `r` and its letter.
    pub(crate) fn budget_of_retries(&self, tag: KeyTag, kind: char) -> Key {
        self.with_kind(tag, &["r", kind.encode_utf8(&mut [0; 4])])
    }

    /// Returns the name of the record for a request by the key with this tag: `o` ("once") and the request's name.
    pub(crate) fn record(&self, tag: KeyTag, request: KeyTag) -> Key {
        self.with_kind(tag, &["o", &request.to_string()])
    }

    /// Returns the name of the reference for a charge by hand to the key with this tag: `h` ("by hand") and the
    /// reference's name.
    pub(crate) fn reference(&self, tag: KeyTag, reference: KeyTag) -> Key {
        self.with_kind(tag, &["h", &reference.to_string()])
    }

    /// Returns the name of a key's number of bans, if they grow.
    pub(crate) fn bans(&self, tag: KeyTag) -> Key {
        self.with_kind(tag, &["x"])
    }

    fn with_kind(&self, tag: KeyTag, kind: &[&str]) -> Key {
        Key::new(&self.prefix, &self.name, tag, kind)
    }
}

impl Key {
    /// Kinds differ from each other and have no colon, so the names of different limiters differ too.
    pub(crate) fn new(prefix: &str, name: &str, tag: KeyTag, kind: &[&str]) -> Self {
        let digits = tag.text();
        let tag = std::str::from_utf8(&digits).expect("base64 is ASCII");
        let slot = crc16(tag.as_bytes()) % SLOTS;
        let parts = [prefix, ":{", tag, "}:", name, ":"];
        // Without `format!`, since every decision does this.
        let parts = || parts.iter().chain(kind);
        let mut text = String::with_capacity(parts().map(|part| part.len()).sum());
        parts().for_each(|part| text.push_str(part));
        Self { slot, text: text.into() }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) const fn slot(&self) -> u16 {
        self.slot
    }
}

/// The CRC from which a cluster computes slots (CRC-16/XMODEM; Redis cluster specification, "Key distribution model").
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut index: u16 = 0;
        while index < 256 {
            let mut crc = index << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            table[index as usize] = crc;
            index += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ *byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    /// By prefix, secret, limiter and key.
    #[test]
    fn names_differ_by_all_their_parts() {
        let name = |prefix, name, secret: &[u8], key: &str| {
            let names = KeyNames::new(prefix, name, secret);
            names.key(names.tag(&PartitionKey::from(key)), 'b')
        };
        let base = name("sluice", "api", b"", "alice");
        let text = base.as_str();
        assert!(
            text.starts_with("sluice:{") && text.ends_with("}:api:b") && text.len() == "sluice:{}:api:b".len() + 22,
            "{text}"
        );
        assert_eq!(base, name("sluice", "api", b"", "alice"));
        for other in [name("s", "api", b"", "alice"), name("sluice", "web", b"", "alice")] {
            assert!(other != base && other.slot() == base.slot());
        }
        for other in [name("sluice", "api", b"x", "alice"), name("sluice", "api", b"", "bob")] {
            assert!(other != base && other.slot() != base.slot());
        }
    }

    /// A limiter with any name shares no key with another limiter's records or budgets.
    #[test]
    fn records_and_budgets_have_their_own_names() {
        let key = PartitionKey::from("alice");
        let mut texts = std::collections::HashSet::new();
        for name in ["api", "api:r", "api:o", "api:o:b", "api:rb", ""] {
            let names = KeyNames::new("sluice", name, b"");
            let [tag, request] = [key.clone(), PartitionKey::from("request")].map(|key| names.tag(&key));
            let keys = [names.key(tag, 'b'), names.budget_of_retries(tag, 'b'), names.record(tag, request)];
            assert!(keys.iter().all(|key| key.slot() == keys[0].slot()));
            assert!(keys.into_iter().all(|key| texts.insert(key.text)), "{texts:?}");
        }
        assert!(texts.iter().any(|text| text.ends_with("}:api:rb")));
        let record = texts.iter().find(|text| text.contains("}:api:o") && !text.ends_with(['b', 's'])).unwrap();
        assert_eq!(record.rsplit(':').next().unwrap().len(), 23, "{record}");
    }

    /// Its slot depends on the whole key.
    #[test]
    fn any_keys_name_is_ascii() {
        let names = KeyNames::new("sluice", "api", b"");
        let mut nodes = [0_u32; 3];
        for number in 0..10_000 {
            let key = names.key(names.tag(&PartitionKey::from(format!("{{x}}{number}\r\n:"))), 'b');
            assert!(key.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
            nodes[usize::from(key.slot()) * 3 / usize::from(SLOTS)] += 1;
        }
        // As often as by chance: chi-squared with two degrees of freedom is above 9.2 in 1 % of samples. The keys are
        // fixed.
        let chi: u32 = nodes.iter().map(|count| count.abs_diff(3_333).pow(2) / 3_333).sum();
        assert!(chi < 10, "{nodes:?}");
    }
}
