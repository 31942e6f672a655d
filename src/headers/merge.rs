//! Fields that are there already, of a service or a layer further in.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::decimal;

/// Sets a field; if it is there already, to what `merge` makes of all its lines.
pub(super) fn insert_or(
    fields: &mut HeaderMap,
    name: HeaderName,
    value: HeaderValue,
    merge: impl FnOnce(&HeaderMap, &HeaderName, HeaderValue) -> HeaderValue,
) {
    // Looked up first, since nearly always nothing is there; an entry would take twice as long as both.
    let value = if fields.contains_key(&name) { merge(fields, &name, value) } else { value };
    insert_first(fields, name, value);
}

/// Sets a field that is known not to be there.
pub(super) fn insert_first(fields: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    // A map that is full takes no more; that is no reason to fail a response.
    let _ = fields.try_insert(name, value);
}

/// Appends members to a field that is a list (RFC 9110, section 5.3): what is there stays in front, all
/// in one line. Nothing is taken away, so that no limit looks wider than it is.
pub(super) fn merge_member(fields: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    insert_or(fields, name, value, after_all);
}

/// All lines of a field, and `value`, in one.
#[cold]
fn after_all(fields: &HeaderMap, name: &HeaderName, value: HeaderValue) -> HeaderValue {
    let mut all = Vec::new();
    let lines = fields.get_all(name).iter().chain([&value]).map(HeaderValue::as_bytes);
    for line in lines.filter(|line| !line.is_empty()) {
        if !all.is_empty() {
            all.extend_from_slice(b", ");
        }
        all.extend_from_slice(line);
    }
    HeaderValue::from_bytes(&all).unwrap_or(value)
}

/// Whether a field that is no list, and tells what remains, is there and must stay: it tells of less
/// than `left`, or cannot be read.
pub(super) fn is_stricter(fields: &HeaderMap, name: &HeaderName, left: u32) -> bool {
    let mut lines = fields.get_all(name).iter();
    lines.any(|line| remaining_in(line.as_bytes()).is_none_or(|there| there <= u64::from(left)))
}

/// An Integer, or the `remaining` of draft-07.
fn remaining_in(value: &[u8]) -> Option<u64> {
    let members = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let number = members.filter_map(|member| member.strip_prefix(b"remaining=")).next();
    decimal::parse(number.unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::RATELIMIT;

    fn merged(lines: &[&'static str], ours: &'static str) -> Vec<String> {
        let mut fields = HeaderMap::new();
        for line in lines {
            fields.append(RATELIMIT, HeaderValue::from_static(line));
        }
        merge_member(&mut fields, RATELIMIT, HeaderValue::from_static(ours));
        fields.get_all(RATELIMIT).iter().map(|line| line.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_is_there_stays_and_comes_first() {
        assert_eq!(merged(&[], "\"a\";r=1"), ["\"a\";r=1"]);
        assert_eq!(merged(&["\"b\";r=0;t=5"], "\"a\";r=1"), ["\"b\";r=0;t=5, \"a\";r=1"]);
        let lines = ["\"b\";r=0", "\"c\";r=2,\"d\";r=3"];
        assert_eq!(merged(&lines, "\"a\";r=1, \"e\";r=9"), ["\"b\";r=0, \"c\";r=2,\"d\";r=3, \"a\";r=1, \"e\";r=9"]);
        assert_eq!(merged(&["", "\"b\";r=0"], "\"a\";r=1"), ["\"b\";r=0, \"a\";r=1"]);
    }

    #[test]
    fn what_is_not_ascii_stays_as_well() {
        let mut fields = HeaderMap::new();
        fields.insert(RATELIMIT, HeaderValue::from_bytes(b"\"\xff\";r=0").unwrap());
        merge_member(&mut fields, RATELIMIT, HeaderValue::from_static("\"a\";r=1"));
        assert_eq!(fields[RATELIMIT].as_bytes(), b"\"\xff\";r=0, \"a\";r=1");
    }

    #[test]
    fn a_single_number_yields_to_a_smaller_one_only() {
        let stays = |there: &[&'static str]| {
            let mut fields = HeaderMap::new();
            for line in there {
                fields.append(RATELIMIT, HeaderValue::from_static(line));
            }
            is_stricter(&fields, &RATELIMIT, 5)
        };
        assert!(!stays(&[]) && !stays(&["6"]) && !stays(&["limit=9, remaining=6, reset=1"]));
        assert!(stays(&["5"]) && stays(&["0"]) && stays(&["limit=9, remaining=4, reset=1"]));
        assert!(stays(&["many"]) && stays(&["9", "3"]));
    }
}
